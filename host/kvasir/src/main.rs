//! The program `kvasir`: its command line and nothing else. What the commands do is in `kvasir-operate`.
//!
//! Exit codes: 0 done, 1 failed (the reason is on standard error), 2 the command line is not understood.

mod arguments;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use kvasir_operate as operate;

use crate::arguments::{Command, CommandLine, KeyCommand, PluginCommand};

fn main() -> ExitCode {
    let line = CommandLine::parse();
    operate::logging::start(line.verbose, line.quiet);
    match run(&line) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kvasir: {}", operate::logging::sentence(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(line: &CommandLine) -> anyhow::Result<ExitCode> {
    let settings = operate::settings::Settings::load(line.config.as_deref(), line.home.as_deref())?;
    match &line.command {
        Command::Setup(options) => operate::setup::command(&settings, &options.into(), line.json)?,
        Command::Run(options) => operate::run::command(&settings, &options.try_into()?, line.json)?,
        Command::Worker(options) => operate::serve_worker::command(&settings, &options.into(), line.json)?,
        Command::Demo(options) => return operate::demo::command(&options.try_into()?, line.json),
        Command::Bench(options) => operate::bench::command(&settings, &options.into(), line.json)?,
        Command::Inspect { model } => operate::inspect::command(&settings, model.as_deref(), line.json)?,
        Command::Key(KeyCommand::New { path }) => operate::key_file::command_new(path, line.json)?,
        Command::Key(KeyCommand::Show { path }) => operate::key_file::command_show(path, line.json)?,
        Command::Plugin(PluginCommand::Component { module, component }) => {
            operate::plugin_tool::componentize(module, component, line.json)?;
        }
        Command::Plugin(PluginCommand::Pack { folder, key, out, days }) => {
            operate::plugin_tool::pack(folder, key, out, *days, line.json)?;
        }
        Command::Plugin(PluginCommand::Verify { package, trust }) => {
            operate::plugin_tool::verify(&settings, package.as_deref(), trust.as_deref(), line.json)?;
        }
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut CommandLine::command(), "kvasir", &mut std::io::stdout());
        }
    }
    Ok(ExitCode::SUCCESS)
}
