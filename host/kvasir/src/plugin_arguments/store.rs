//! What an operator says: install, upgrade, go back, trust, revoke, ask why.

use clap::Subcommand;
use kvasir_operate as operate;
use kvasir_operate::settings::Settings;

#[derive(Subcommand)]
pub enum StoreCommand {
    /// Show the plugins whose kernels failed on this machine's GPU, or let one on it again.
    #[command(after_help = "Example:\n  kvasir plugin quarantine --lift DIGEST")]
    Quarantine {
        /// Digest of the plugin to let on the GPU again.
        #[arg(long, value_name = "DIGEST")]
        lift: Option<String>,
    },
}

pub fn run(settings: &Settings, command: &StoreCommand, json: bool) -> anyhow::Result<()> {
    match command {
        StoreCommand::Quarantine { lift } => operate::quarantine::command(settings, lift.as_deref(), json),
    }
}
