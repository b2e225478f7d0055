//! What the author of a kernel says: make one, build it, test it, time it.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use kvasir_operate as operate;
use kvasir_operate::plugin_project::Language;
use kvasir_operate::settings::Settings;

#[derive(Subcommand)]
pub enum AuthorCommand {
    /// Make a small kernel project that builds and passes every test as it is.
    #[command(after_help = "Examples:\n  kvasir plugin new demo\n  kvasir plugin new acme:fast --language c")]
    New {
        /// Name of the kernel, and of the folder; a namespace may stand before a colon.
        name: String,
        /// What to write the kernel in.
        #[arg(long, value_enum, default_value_t = LanguageArgument::Rust)]
        language: LanguageArgument,
    },
    /// Compile the kernel in a folder: build/kernel.wasm, sbom.cdx.json, and golden vectors where there are none.
    #[command(after_help = "Example:\n  cd demo && kvasir plugin build")]
    Build {
        /// The kernel's folder.
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Run the conformance suite on a kernel's folder or on a package.
    #[command(
        after_help = "Examples:\n  cd demo && kvasir plugin test\n  kvasir plugin test my-kernel-0.1.0.kvp --json"
    )]
    Test {
        /// A kernel's folder after `build`, or a package.
        #[arg(default_value = ".")]
        target: PathBuf,
        /// Make only the checks of these names (`--list` shows them all).
        #[arg(long, value_name = "CHECK", value_delimiter = ',')]
        only: Vec<String>,
        /// Show what the checks are instead of making them.
        #[arg(long)]
        list: bool,
    },
    /// Measure a kernel beside the bundled one: microseconds an expert-row, by format and rows.
    #[command(
        after_help = "Examples:\n  cd demo && kvasir plugin bench\n  kvasir plugin bench --formats Q4_K --rows 1,16 --shape 122b"
    )]
    Bench {
        /// A kernel's folder after `build`, or a package.
        #[arg(default_value = ".")]
        target: PathBuf,
        /// Formats to measure [default: all that the kernel has].
        #[arg(long, value_delimiter = ',', value_parser = operate::bench::kernels::parse_format)]
        formats: Vec<operate::bench::Format>,
        /// Rows an expert is given at once [default: 1,16].
        #[arg(long, value_delimiter = ',')]
        rows: Vec<usize>,
        /// Shape of the experts: 122b, 35b, atlas or HIDDENxWIDTH.
        #[arg(long, default_value = "atlas", value_parser = operate::bench::kernels::Shape::parse)]
        shape: operate::bench::kernels::Shape,
        /// Seconds for each figure.
        #[arg(long, default_value_t = 0.5)]
        seconds: f64,
    },
    /// Turn a core WASM module built against the WIT world into a component.
    #[command(after_help = "Example:\n  kvasir plugin component kernel.wasm kernel-component.wasm")]
    Component {
        module: PathBuf,
        component: PathBuf,
        /// Replace the file that is there although it is no component.
        #[arg(long)]
        force: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub enum LanguageArgument {
    Rust,
    C,
}

impl From<LanguageArgument> for Language {
    fn from(argument: LanguageArgument) -> Self {
        match argument {
            LanguageArgument::Rust => Language::Rust,
            LanguageArgument::C => Language::C,
        }
    }
}

pub fn run(_settings: &Settings, command: &AuthorCommand, json: bool) -> anyhow::Result<()> {
    match command {
        AuthorCommand::New { name, language } => {
            operate::plugin_project::command_new(Path::new("."), name, (*language).into(), json)
        }
        AuthorCommand::Build { folder } => operate::plugin_project::command_build(folder, json),
        AuthorCommand::Test { list: true, .. } => operate::plugin_test::command_list(json),
        AuthorCommand::Test { target, only, list: false } => {
            operate::plugin_test::command(target, only, json)
        }
        AuthorCommand::Bench { target, formats, rows, shape, seconds } => {
            let options = operate::plugin_bench::BenchOptions {
                target: target.clone(),
                formats: formats.clone(),
                rows: rows.clone(),
                shape: shape.clone(),
                seconds: *seconds,
            };
            operate::plugin_bench::command(&options, json)
        }
        AuthorCommand::Component { module, component, force } => {
            operate::plugin_tool::componentize(module, component, *force, json)
        }
    }
}
