//! The words of `kvasir plugin`, by who uses them.

mod author;
mod package;
mod registry;
mod store;

use clap::Subcommand;
use kvasir_operate::settings::Settings;

#[derive(Subcommand)]
pub enum PluginCommand {
    #[command(flatten)]
    Author(author::AuthorCommand),
    #[command(flatten)]
    Package(package::PackageCommand),
    #[command(flatten)]
    Registry(registry::RegistryCommand),
    #[command(flatten)]
    Store(store::StoreCommand),
}

/// Carries one of them out.
pub fn run(settings: &Settings, command: &PluginCommand, json: bool) -> anyhow::Result<()> {
    match command {
        PluginCommand::Author(command) => author::run(settings, command, json),
        PluginCommand::Package(command) => package::run(settings, command, json),
        PluginCommand::Registry(command) => registry::run(command, json),
        PluginCommand::Store(command) => store::run(settings, command, json),
    }
}
