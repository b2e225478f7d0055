//! The program `kvasir`: its command line and nothing else. What the commands do is in `kvasir-operate`.
//!
//! Exit codes: 0 done, 1 failed (the reason is on standard error; `doctor` and other judges say it in their result), 2 the command line is not understood, 3 an audit came to no
//! verdict (1 is a finding there), 141 whoever read standard output went away before everything was said (nothing is on standard
//! error; a worker goes on instead).

mod arguments;
mod audit_arguments;
mod bench_arguments;
mod plan_arguments;
mod plugin_arguments;
mod serve_arguments;

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use kvasir_operate as operate;
use kvasir_operate::audit::NoVerdict;
use kvasir_operate::output::{self, ReaderGone};

use crate::arguments::{Command, CommandLine, KeyCommand};
use crate::bench_arguments::BenchCommand;

fn main() -> ExitCode {
    let line = match CommandLine::command().try_get_matches().and_then(|found| {
        bench_arguments::check_place(&found)?;
        CommandLine::from_arg_matches(&found)
    }) {
        Ok(line) => line,
        Err(said) => return help_or_complaint(&said),
    };
    match operate::logging::start(line.verbose, line.quiet).and_then(|()| run(&line)) {
        Ok(code) => code,
        Err(error) => failure(&error),
    }
}

fn failure(error: &anyhow::Error) -> ExitCode {
    if ReaderGone::caused(error) {
        return ExitCode::from(ReaderGone::EXIT_CODE);
    }
    output::remark(format!("kvasir: {}", operate::logging::sentence(error)));
    if NoVerdict::caused(error) { ExitCode::from(NoVerdict::EXIT_CODE) } else { ExitCode::FAILURE }
}

/// Help and the version go to standard output and must arrive there; complaints go to standard error.
fn help_or_complaint(said: &clap::Error) -> ExitCode {
    match said.print() {
        Err(error) if !said.use_stderr() && error.kind() == ErrorKind::BrokenPipe => {
            ExitCode::from(ReaderGone::EXIT_CODE)
        }
        Err(error) if !said.use_stderr() => failure(&error.into()),
        _ => ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2)),
    }
}

fn run(line: &CommandLine) -> anyhow::Result<ExitCode> {
    let settings = operate::settings::Settings::load(line.config.as_deref(), line.home.as_deref())?;
    match &line.command {
        Command::Setup(options) => operate::setup::command(&settings, &options.into(), line.json)?,
        Command::Run(options) => operate::run::command(&settings, &options.try_into()?, line.json)?,
        Command::Serve(options) => operate::serve::command(&settings, &options.try_into()?, line.json)?,
        Command::Plan(options) => {
            return operate::plan::command(&settings, &options.try_into()?, line.json);
        }
        Command::Worker(options) => operate::serve_worker::command(&settings, &options.into(), line.json)?,
        Command::Doctor(options) => return operate::doctor::command(&settings, &options.into(), line.json),
        Command::Demo(options) => return operate::demo::command(&options.try_into()?, line.json),
        Command::Audit(options) => {
            return match &options.evidence_file {
                Some(file) => operate::audit::again::command(&settings, &options.into(), file, line.json),
                None => operate::audit::command(&settings, &options.into(), line.json),
            };
        }
        Command::Bench(options) => match &options.experts {
            None => operate::bench::command(&settings, &options.into(), line.json)?,
            Some(BenchCommand::Kernels(options)) => {
                operate::bench::kernels::command(&settings, &options.into(), line.json)?;
            }
            Some(BenchCommand::Layer(options)) => {
                operate::bench::layer::command(&settings, &options.into(), line.json)?;
            }
        },
        Command::Inspect { model } => operate::inspect::command(&settings, model.as_deref(), line.json)?,
        Command::Key(KeyCommand::New { path }) => operate::key_file::command_new(path, line.json)?,
        Command::Key(KeyCommand::Show { path }) => operate::key_file::command_show(path, line.json)?,
        Command::Plugin(command) => plugin_arguments::run(&settings, command, line.json)?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut CommandLine::command(), "kvasir", &mut script);
            output::bytes(&script)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
