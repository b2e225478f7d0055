//! What is said of packages: pack, unpack, sign, check, look into, carry.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvasir_operate as operate;
use kvasir_operate::settings::Settings;

/// Longest time that a signature may be asked to hold: a hundred years.
const DAYS_MAX: i64 = 36_500;

#[derive(Subcommand)]
pub enum PackageCommand {
    /// Pack a kernel's folder: plugin.toml, build/kernel.wasm, vectors/, perhaps shaders/ and sbom.cdx.json.
    #[command(
        after_help = "The kernel must agree with its golden vectors. Without --key the package is not signed.\n\n\
                      Example:\n  kvasir plugin pack my-kernel --key publisher.key --out my-kernel-0.1.0.kvp"
    )]
    Pack(PackArguments),
    /// Write a package's files into a folder, from which `pack` makes the same package again. Verifies nothing.
    #[command(after_help = "Example:\n  kvasir plugin unpack my-kernel-0.1.0.kvp my-kernel")]
    Unpack {
        /// Package to take apart.
        package: PathBuf,
        /// Folder to write to, new or empty; NAME-VERSION where none is named.
        folder: Option<PathBuf>,
    },
    /// Sign a kernel's folder, which makes its package, or add a signature to a package.
    #[command(
        after_help = "The key is one's own publisher key, made if there is none, unless --key names another.\n\n\
                      Examples:\n  cd my-kernel && kvasir plugin sign\n  kvasir plugin sign my-kernel-0.1.0.kvp --key second.key"
    )]
    Sign(SignArguments),
    /// Check a package's signature and digests against the trusted publishers, then run its golden vectors.
    #[command(
        after_help = "Examples:\n  kvasir plugin verify my-kernel-0.1.0.kvp\n  kvasir plugin verify my-kernel-0.1.0.kvp --rebuild ."
    )]
    Verify {
        /// Package; the installed one where none is named.
        package: Option<PathBuf>,
        /// Folder of trusted publishers' public keys.
        #[arg(long, env = "KVASIR_TRUST")]
        trust: Option<PathBuf>,
        /// Build this folder of sources too, and compare the component byte for byte. Runs the sources' own build.
        #[arg(long, value_name = "SOURCE")]
        rebuild: Option<PathBuf>,
    },
    /// Show what a package holds and asks for. Verifies nothing and runs nothing.
    #[command(after_help = "Example:\n  kvasir plugin inspect my-kernel-0.1.0.kvp")]
    Inspect {
        /// Package; the installed one where none is named.
        package: Option<PathBuf>,
    },
}

#[derive(Args)]
pub struct PackArguments {
    /// The kernel's folder.
    #[arg(default_value = ".")]
    pub folder: PathBuf,
    /// Secret key file of the publisher, to sign at once.
    #[arg(long)]
    pub key: Option<PathBuf>,
    /// Package to write; NAME-VERSION.kvp in the folder where none is named.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Days until the signature expires.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=DAYS_MAX))]
    pub days: u32,
    /// Replace the file that is there although it is no package, or is signed by others.
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct SignArguments {
    /// The kernel's folder, or a package.
    #[arg(default_value = ".", value_name = "FOLDER|PACKAGE")]
    pub target: PathBuf,
    /// Secret key file; one's own publisher key where none is named.
    #[arg(long)]
    pub key: Option<PathBuf>,
    /// Package to write; NAME-VERSION.kvp in the folder, or the package itself, where none is named.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Days until the signature expires; a signature that is added keeps the first one's.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=DAYS_MAX))]
    pub days: u32,
    /// Replace the file that is there although it is no package, or is signed by others.
    #[arg(long)]
    pub force: bool,
}

pub fn run(settings: &Settings, command: &PackageCommand, json: bool) -> anyhow::Result<()> {
    match command {
        PackageCommand::Pack(options) => operate::plugin_pack::pack(&options.into(), json),
        PackageCommand::Unpack { package, folder } => {
            operate::plugin_pack::unpack(package, folder.as_deref(), json)
        }
        PackageCommand::Sign(options) => operate::plugin_sign::sign(settings, &options.into(), json),
        PackageCommand::Verify { package, trust, rebuild } => {
            let (package, trust) = (package.as_deref(), trust.as_deref());
            operate::plugin_check::verify(settings, package, trust, rebuild.as_deref(), json)
        }
        PackageCommand::Inspect { package } => {
            operate::plugin_inspect::command(settings, package.as_deref(), json)
        }
    }
}

impl From<&PackArguments> for operate::plugin_pack::PackOptions {
    fn from(arguments: &PackArguments) -> Self {
        operate::plugin_pack::PackOptions {
            folder: arguments.folder.clone(),
            key: arguments.key.clone(),
            out: arguments.out.clone(),
            days: arguments.days,
            force: arguments.force,
        }
    }
}

impl From<&SignArguments> for operate::plugin_sign::SignOptions {
    fn from(arguments: &SignArguments) -> Self {
        operate::plugin_sign::SignOptions {
            target: arguments.target.clone(),
            key: arguments.key.clone(),
            out: arguments.out.clone(),
            days: arguments.days,
            force: arguments.force,
        }
    }
}
