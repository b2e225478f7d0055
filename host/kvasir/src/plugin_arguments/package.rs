//! What is said of packages: pack, sign, check, look into, carry.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvasir_operate as operate;
use kvasir_operate::settings::Settings;

#[derive(Subcommand)]
pub enum PackageCommand {
    /// Pack and sign a folder that holds plugin.toml, kernel.wasm, vectors/ and perhaps shaders/.
    #[command(
        after_help = "Example:\n  kvasir plugin pack my-kernel --key publisher.key --out my-kernel-0.1.0.kvp"
    )]
    Pack(PackArguments),
    /// Check a package's signature and digests against the trusted publishers, then run its golden vectors.
    #[command(after_help = "Example:\n  kvasir plugin verify my-kernel-0.1.0.kvp")]
    Verify {
        /// Package; the installed one where none is named.
        package: Option<PathBuf>,
        /// Folder of trusted publishers' public keys.
        #[arg(long, env = "KVASIR_TRUST")]
        trust: Option<PathBuf>,
    },
}

#[derive(Args)]
pub struct PackArguments {
    pub folder: PathBuf,
    /// Secret key file of the publisher.
    #[arg(long)]
    pub key: PathBuf,
    /// Package to write.
    #[arg(long)]
    pub out: PathBuf,
    /// Days until the signature expires.
    #[arg(long, default_value_t = 365)]
    pub days: u32,
    /// Replace the file that is there although it is no package.
    #[arg(long)]
    pub force: bool,
}

pub fn run(settings: &Settings, command: &PackageCommand, json: bool) -> anyhow::Result<()> {
    match command {
        PackageCommand::Pack(options) => operate::plugin_tool::pack(&options.into(), json),
        PackageCommand::Verify { package, trust } => {
            operate::plugin_tool::verify(settings, package.as_deref(), trust.as_deref(), json)
        }
    }
}

impl From<&PackArguments> for operate::plugin_tool::PackOptions {
    fn from(arguments: &PackArguments) -> Self {
        operate::plugin_tool::PackOptions {
            folder: arguments.folder.clone(),
            key: arguments.key.clone(),
            out: arguments.out.clone(),
            days: arguments.days,
            force: arguments.force,
        }
    }
}
