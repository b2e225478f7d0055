//! What an operator says: install, upgrade, go back, trust, revoke, ask why.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvasir_operate as operate;
use kvasir_operate::plugin_store::{explain, packages, revoke, trust};
use kvasir_operate::settings::Settings;

#[derive(Subcommand)]
pub enum StoreCommand {
    /// Verify a package, put it into the store and make it the active one.
    #[command(
        after_help = "Examples:\n  kvasir plugin install\n  kvasir plugin install my-kernel-0.1.0.kvp --no-activate\n  \
                      kvasir plugin install my-kernel-0.0.9.kvp --allow-downgrade"
    )]
    Install {
        /// Package [default: the newest *.kvp in the working folder].
        package: Option<PathBuf>,
        /// Leave the active plugin as it is.
        #[arg(long)]
        no_activate: bool,
        #[command(flatten)]
        downgrade: DowngradeArguments,
    },
    /// Show the installed plugins: name, version, revision, digest, publishers, and whether each is active, installed, superseded,
    /// revoked, expired, not yet valid or refused.
    #[command(after_help = "Example:\n  kvasir plugin list --json")]
    List,
    /// Install a newer version of the active plugin and let it take over, once it has passed its golden vectors.
    #[command(after_help = "Example:\n  kvasir plugin upgrade my-kernel-0.2.0.kvp")]
    Upgrade {
        /// Package [default: the newest *.kvp in the working folder].
        package: Option<PathBuf>,
    },
    /// Make an installed plugin the active one.
    #[command(after_help = "Example:\n  kvasir plugin activate 3f0a9c")]
    Activate {
        /// Its digest, or the first six or more digits of it.
        digest: String,
        #[command(flatten)]
        downgrade: DowngradeArguments,
    },
    /// Make the plugin active that was active before the present one.
    #[command(after_help = "Examples:\n  kvasir plugin rollback\n  kvasir plugin rollback --allow-downgrade")]
    Rollback {
        #[command(flatten)]
        downgrade: DowngradeArguments,
    },
    /// Remove an installed plugin from the store: not the active one, nor the one before it.
    #[command(after_help = "Example:\n  kvasir plugin remove 3f0a9c")]
    Remove {
        /// Its digest, or the first six or more digits of it.
        digest: String,
    },
    /// Show what happened to the installed plugins and to the trusted keys.
    #[command(after_help = "Example:\n  kvasir plugin history")]
    History,
    /// Let a key's signatures, or a package, not count any more. For good: nothing takes it back.
    #[command(after_help = "\
Examples:
  kvasir plugin revoke 3f0a9c                      an installed plugin, by the first digits of its digest
  kvasir plugin revoke publisher.pub               every plugin that this key signed")]
    Revoke {
        /// A plugin's digest, or a key: `ed25519:...`, a file, or its id.
        #[arg(value_name = "KEY|DIGEST")]
        what: String,
        /// Secret key file of the role `revocation`, where it is not keys/root.key; once for each, where that takes several.
        #[arg(long, env = "KVASIR_ROOT_KEY", value_name = "FILE")]
        root_key: Vec<PathBuf>,
    },
    /// Say whose plugins may run here: the keys that the root names, signed by the root key.
    #[command(subcommand)]
    Trust(TrustCommand),
    /// Say what plugins may use here, and why one is refused.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Show the plugins whose kernels failed on this machine, in WebAssembly or on its GPU, or let one run again.
    #[command(after_help = "Example:\n  kvasir plugin quarantine --lift DIGEST")]
    Quarantine {
        /// Digest of the plugin to let run again: all 64 digits, as the list shows them.
        #[arg(long, value_name = "DIGEST")]
        lift: Option<String>,
    },
}

#[derive(Subcommand)]
pub enum TrustCommand {
    /// Trust a publisher's key.
    #[command(after_help = "\
Examples:
  kvasir plugin trust add                                     your own key, for the plugin in the working folder
  kvasir plugin trust add acme.pub --namespace acme           for plugins named acme:...")]
    Add {
        /// `ed25519:...` or a file that holds one [default: your own publisher key].
        key: Option<String>,
        #[command(flatten)]
        options: TrustArguments,
    },
    /// Trust a publisher's key no more, without revoking it.
    #[command(after_help = "Example:\n  kvasir plugin trust remove acme.pub")]
    Remove {
        /// `ed25519:...`, a file that holds one, or a key id.
        key: String,
        #[command(flatten)]
        options: TrustArguments,
    },
    /// Make a new root key and let it take the place of the old one, which signs that.
    #[command(after_help = "Example:\n  kvasir plugin trust rotate")]
    Rotate {
        /// Secret root key file, where it is not keys/root.key; once for each, where the root takes several: the first is replaced.
        #[arg(long, env = "KVASIR_ROOT_KEY", value_name = "FILE")]
        root_key: Vec<PathBuf>,
    },
    /// Show the root, its keys by what they may sign, and what is revoked.
    #[command(after_help = "Example:\n  kvasir plugin trust show --json")]
    Show,
}

#[derive(Subcommand)]
pub enum PolicyCommand {
    /// Say why a plugin would be refused, or what it would be granted: trust, signatures, revocations, validity, revision, policy and
    /// quarantine, in order. The exit status is 1 where it would be refused. Nothing is run: imports, contract and golden vectors are
    /// checked when it is loaded, and `kvasir plugin verify` shows them.
    #[command(after_help = "\
Examples:
  kvasir plugin policy explain                     the active plugin
  kvasir plugin policy explain my-kernel-0.1.0.kvp")]
    Explain {
        /// A package file, or an installed plugin's digest [default: the active plugin].
        #[arg(value_name = "PACKAGE|DIGEST")]
        what: Option<String>,
    },
    /// Show the policy that holds.
    #[command(after_help = "Example:\n  kvasir plugin policy show")]
    Show,
}

#[derive(Args)]
pub struct DowngradeArguments {
    /// Sign a permission with your root key where the version is below the highest one seen.
    #[arg(long)]
    pub allow_downgrade: bool,
    /// Secret root key file, where it is not keys/root.key; once for each, where the root takes several.
    #[arg(long, env = "KVASIR_ROOT_KEY", value_name = "FILE")]
    pub root_key: Vec<PathBuf>,
}

#[derive(Args)]
pub struct TrustArguments {
    /// Namespace of the plugins: `acme` for `acme:kernel`, `*` for all that nobody else is named for [default: that of the
    /// plugin.toml in the working folder where the key is your own, else any].
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Secret root key file, where it is not keys/root.key; once for each, where the root takes several.
    #[arg(long, env = "KVASIR_ROOT_KEY", value_name = "FILE")]
    pub root_key: Vec<PathBuf>,
}

pub fn run(settings: &Settings, command: &StoreCommand, json: bool) -> anyhow::Result<()> {
    match command {
        StoreCommand::Install { package, no_activate, downgrade } => {
            packages::install(settings, package.as_deref(), !no_activate, &downgrade.into(), json)
        }
        StoreCommand::List => packages::list(settings, json),
        StoreCommand::Upgrade { package } => packages::upgrade(settings, package.as_deref(), json),
        StoreCommand::Activate { digest, downgrade } => {
            packages::activate(settings, digest, &downgrade.into(), json)
        }
        StoreCommand::Rollback { downgrade } => packages::rollback(settings, &downgrade.into(), json),
        StoreCommand::Remove { digest } => packages::remove(settings, digest, json),
        StoreCommand::History => packages::history(settings, json),
        StoreCommand::Revoke { what, root_key } => revoke::revoke(settings, what, root_key, json),
        StoreCommand::Trust(command) => run_trust(settings, command, json),
        StoreCommand::Policy(PolicyCommand::Explain { what }) => {
            explain::explain(settings, what.as_deref(), json)
        }
        StoreCommand::Policy(PolicyCommand::Show) => explain::show(settings, json),
        StoreCommand::Quarantine { lift } => operate::quarantine::command(settings, lift.as_deref(), json),
    }
}

fn run_trust(settings: &Settings, command: &TrustCommand, json: bool) -> anyhow::Result<()> {
    let with = |key: Option<&String>, options: &TrustArguments| trust::KeyOptions {
        key: key.cloned(),
        namespace: options.namespace.clone(),
        root_keys: options.root_key.clone(),
    };
    match command {
        TrustCommand::Add { key, options } => trust::add(settings, &with(key.as_ref(), options), json),
        TrustCommand::Remove { key, options } => trust::remove(settings, &with(Some(key), options), json),
        TrustCommand::Rotate { root_key } => trust::rotate(settings, root_key, json),
        TrustCommand::Show => trust::show(settings, json),
    }
}

impl From<&DowngradeArguments> for packages::Downgrade {
    fn from(arguments: &DowngradeArguments) -> Self {
        packages::Downgrade { allow: arguments.allow_downgrade, root_keys: arguments.root_key.clone() }
    }
}
