//! What the author of a kernel says: make one, build it, test it, time it.

use std::path::PathBuf;

use clap::Subcommand;
use kvasir_operate as operate;
use kvasir_operate::settings::Settings;

#[derive(Subcommand)]
pub enum AuthorCommand {
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

pub fn run(_settings: &Settings, command: &AuthorCommand, json: bool) -> anyhow::Result<()> {
    match command {
        AuthorCommand::Component { module, component, force } => {
            operate::plugin_tool::componentize(module, component, *force, json)
        }
    }
}
