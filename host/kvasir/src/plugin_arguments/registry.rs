//! What carries packages: push and pull.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvasir_operate as operate;
use kvasir_operate::plugin_push_pull::{PullOptions, RegistryOptions};

/// Where packages go to and come from, for the help.
const PLACES: &str = "A place is `oci:PATH:TAG` or a path (a folder with an OCI layout), `oci://HOST/NAME:TAG` or \
    `oci://HOST/NAME@sha256:DIGEST` (a registry). Credentials are KVASIR_REGISTRY_USER and KVASIR_REGISTRY_PASSWORD, or what \
    ~/.docker/config.json says of the host.";

#[derive(Subcommand)]
pub enum RegistryCommand {
    /// Carry a package to an OCI layout or a registry.
    #[command(after_help = format!(
        "{PLACES}\n\nExample:\n  kvasir plugin push my-kernel-0.1.0.kvp oci://ghcr.io/someone/my-kernel:0.1.0"
    ))]
    Push {
        /// The package.
        package: PathBuf,
        /// Where to.
        destination: String,
        #[command(flatten)]
        registry: RegistryArguments,
    },
    /// Fetch a package from an OCI layout or a registry. Verifies nothing: `verify` and `install` do.
    #[command(after_help = format!(
        "{PLACES}\n\nExample:\n  kvasir plugin pull oci://ghcr.io/someone/my-kernel:0.1.0"
    ))]
    Pull(PullArguments),
}

#[derive(Args)]
pub struct PullArguments {
    /// Where from.
    pub source: String,
    /// File to write; NAME-VERSION.kvp here where none is named.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Replace the file that is there although it has other bytes.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub registry: RegistryArguments,
}

#[derive(Args)]
pub struct RegistryArguments {
    /// Speak plain HTTP to a host other than this machine: anyone on the way reads the credentials.
    #[arg(long)]
    pub plain_http: bool,
    /// Certificates in PEM to trust in place of the usual ones.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Seconds for the whole, a day at most.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=operate::plugin_push_pull::TIMEOUT_SECONDS_MAX))]
    pub timeout: u64,
}

pub fn run(command: &RegistryCommand, json: bool) -> anyhow::Result<()> {
    match command {
        RegistryCommand::Push { package, destination, registry } => {
            operate::plugin_push_pull::push(package, destination, &registry.into(), json)
        }
        RegistryCommand::Pull(options) => operate::plugin_push_pull::pull(&options.into(), json),
    }
}

impl From<&RegistryArguments> for RegistryOptions {
    fn from(arguments: &RegistryArguments) -> Self {
        RegistryOptions {
            plain_http: arguments.plain_http,
            certificates: arguments.ca.clone(),
            timeout: arguments.timeout,
        }
    }
}

impl From<&PullArguments> for PullOptions {
    fn from(arguments: &PullArguments) -> Self {
        PullOptions {
            source: arguments.source.clone(),
            out: arguments.out.clone(),
            force: arguments.force,
            registry: (&arguments.registry).into(),
        }
    }
}
