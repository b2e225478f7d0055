//! The command line of `kvasir-gateway`.
//!
//! A value comes from its flag, else from its `KVASIR_GATEWAY_*` variable, else from `gateway.toml`. Secrets are files. With
//! `--json` a command prints JSON on standard output; everything else goes to standard error.

mod acme;
#[cfg(unix)]
mod hand_over;
#[cfg(not(unix))]
#[path = "no_hand_over.rs"]
mod hand_over;
mod logging;
mod once;
mod reload;
mod serve;
mod settings;

use std::{
    io::Write as _,
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use kvasir_ledger::plain_text::printable;
use kvasir_wire::ticket::Role;

use crate::{
    config::{ConfigError, GatewayFile},
    credentials::{Lifetime, PublisherName, Span},
    edge::trusted::Network,
};
use acme::AcmeArgs;
use logging::LogFilter;

/// Edge, hub and settlement poller of a Kvasir network.
#[derive(Debug, Parser)]
#[command(name = "kvasir-gateway", version, max_term_width = 110, after_help = EXAMPLES)]
struct CommandLine {
    /// Configuration file [default: gateway.toml, if it exists]
    #[arg(long, global = true, env = "KVASIR_GATEWAY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON on standard output
    #[arg(long, global = true)]
    json: bool,
    /// What to log: error, warn, info, debug, or a filter such as kvasir_gateway=debug [default: info]
    #[arg(long, global = true, env = "KVASIR_LOG", value_name = "FILTER")]
    log: Option<String>,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  kvasir-gateway edge-key edge.key
  kvasir-gateway certificate --name gateway.example --out tls
  kvasir-gateway hub --listen 10.0.0.2:7400 --network atlas --ledger http://10.0.0.2:9750 \\
      --hub-key hub.key --edge-key edge.key
  kvasir-gateway edge --listen 0.0.0.0:443 --network atlas --hub 10.0.0.2:7400 \\
      --certificate tls/server.pem --certificate-key tls/server.key --edge-key edge.key
  kvasir-gateway settle --ledger http://10.0.0.2:9750 --network atlas --settler-key settler.key";

#[derive(Debug, Subcommand)]
enum Command {
    /// End TLS, check tickets, splice workers to the hub
    Edge(EdgeArgs),
    /// Pair workers with backbones, meter, file receipts; on the LAN only
    Hub(HubArgs),
    /// Turn receipts into credit
    Settle(SettleArgs),
    /// Make a ticket for a worker or a backbone
    Ticket(TicketArgs),
    /// Make a development certificate and the authority that signs it
    Certificate(CertificateArgs),
    /// Make the key that hub and edges share
    EdgeKey(EdgeKeyArgs),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-gateway edge --listen 0.0.0.0:443 --network atlas --hub 10.0.0.2:7400 \\\n      \
    --certificate tls/server.pem --certificate-key tls/server.key --edge-key edge.key\n  \
    kvasir-gateway edge --listen 0.0.0.0:443 --network atlas --hub 10.0.0.2:7400 --edge-key edge.key \\\n      \
    --acme-domain gateway.example --acme-contact ops@gateway.example --acme-accept-terms\n\n\
    Names whose connections go on to other servers, TLS as it is, stand in gateway.toml: [[edge.pass_through]]."
)]
struct EdgeArgs {
    /// Address to listen on; port 0 lets the system choose
    #[arg(long, env = "KVASIR_GATEWAY_LISTEN", value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// The hub to splice to
    #[arg(long, env = "KVASIR_GATEWAY_HUB", value_name = "HOST:PORT")]
    hub: Option<String>,
    /// Network that tickets must be for
    #[arg(long, env = "KVASIR_GATEWAY_NETWORK", value_name = "NAME")]
    network: Option<String>,
    /// Certificate chain, PEM; read again when it changes
    #[arg(long, env = "KVASIR_GATEWAY_CERTIFICATE", value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, env = "KVASIR_GATEWAY_CERTIFICATE_KEY", value_name = "FILE")]
    certificate_key: Option<PathBuf>,
    /// The key shared with the hub
    #[arg(long, env = "KVASIR_GATEWAY_EDGE_KEY", value_name = "FILE")]
    edge_key: Option<PathBuf>,
    /// Most connections [default: 4000]
    #[arg(long, env = "KVASIR_GATEWAY_MAX_CONNECTIONS", value_name = "NUMBER")]
    max_connections: Option<NonZeroUsize>,
    /// Most connections that have not shown a ticket yet [default: 512]
    #[arg(long, env = "KVASIR_GATEWAY_MAX_UNAUTHENTICATED", value_name = "NUMBER")]
    max_unauthenticated: Option<NonZeroUsize>,
    /// Most connections of one address [default: 256]
    #[arg(long, env = "KVASIR_GATEWAY_MAX_PER_ADDRESS", value_name = "NUMBER")]
    max_per_address: Option<NonZeroUsize>,
    /// A proxy that speaks HTTP, or a network of them, whose X-Forwarded-For is believed; may be repeated
    #[arg(
        long = "trusted-peer",
        env = "KVASIR_GATEWAY_TRUSTED_PEERS",
        value_name = "NETWORK",
        value_delimiter = ','
    )]
    trusted_peers: Vec<Network>,
    /// A proxy that passes TCP on, or a network of them, which must send a PROXY header; may be repeated
    #[arg(
        long = "proxy-protocol-peer",
        env = "KVASIR_GATEWAY_PROXY_PROTOCOL_PEERS",
        value_name = "NETWORK",
        value_delimiter = ','
    )]
    proxy_protocol_peers: Vec<Network>,
    /// Most connections a second, for long; four times as many may come at once [default: 500]
    #[arg(long, env = "KVASIR_GATEWAY_MAX_ACCEPTS_PER_SECOND", value_name = "NUMBER")]
    max_accepts_per_second: Option<NonZeroU32>,
    /// Address for GET /metrics, /ready, /status and /v1/status, of this machine or the LAN; off unless given
    #[arg(long, env = "KVASIR_GATEWAY_OPERATIONS", value_name = "ADDRESS:PORT")]
    operations: Option<SocketAddr>,
    #[command(flatten)]
    acme: AcmeArgs,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:\n  kvasir-gateway hub --listen 10.0.0.2:7400 --network atlas \\\n      \
    --ledger http://10.0.0.2:9750 --hub-key hub.key --edge-key edge.key\n\n\
    GET /ready and GET /v1/status on the same address say how it is.")]
struct HubArgs {
    /// Address to listen on, of the LAN; port 0 lets the system choose
    #[arg(long, env = "KVASIR_GATEWAY_LISTEN", value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Name of the network
    #[arg(long, env = "KVASIR_GATEWAY_NETWORK", value_name = "NAME")]
    network: Option<String>,
    /// The ledger
    #[arg(long, env = "KVASIR_GATEWAY_LEDGER", value_name = "URL")]
    ledger: Option<String>,
    /// The hub's secret key
    #[arg(long, env = "KVASIR_GATEWAY_HUB_KEY", value_name = "FILE")]
    hub_key: Option<PathBuf>,
    /// The key shared with the edges
    #[arg(long, env = "KVASIR_GATEWAY_EDGE_KEY", value_name = "FILE")]
    edge_key: Option<PathBuf>,
    /// Folder for receipts that the ledger has not taken yet [default: hub-spool]
    #[arg(long, env = "KVASIR_GATEWAY_SPOOL", value_name = "FOLDER")]
    spool: Option<PathBuf>,
    /// Let workers that ask for it open a second connection for bulk, which helps where packets are lost
    #[arg(long, env = "KVASIR_GATEWAY_BULK_CONNECTION")]
    bulk_connection: bool,
    /// Most connections [default: 4000]
    #[arg(long, env = "KVASIR_GATEWAY_MAX_CONNECTIONS", value_name = "NUMBER")]
    max_connections: Option<NonZeroUsize>,
    /// Most connections a second, for long; four times as many may come at once [default: 500]
    #[arg(long, env = "KVASIR_GATEWAY_MAX_ACCEPTS_PER_SECOND", value_name = "NUMBER")]
    max_accepts_per_second: Option<NonZeroU32>,
    /// Address for GET /metrics, /ready, /status and /v1/status, of this machine or the LAN; off unless given
    #[arg(long, env = "KVASIR_GATEWAY_OPERATIONS", value_name = "ADDRESS:PORT")]
    operations: Option<SocketAddr>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-gateway settle --ledger http://10.0.0.2:9750 --network atlas \\\n      \
    --settler-key settler.key --cursor settle.cursor"
)]
struct SettleArgs {
    /// The ledger
    #[arg(long, env = "KVASIR_GATEWAY_LEDGER", value_name = "URL")]
    ledger: Option<String>,
    /// Name of the network
    #[arg(long, env = "KVASIR_GATEWAY_NETWORK", value_name = "NAME")]
    network: Option<String>,
    /// The settler's secret key
    #[arg(long, env = "KVASIR_GATEWAY_SETTLER_KEY", value_name = "FILE")]
    settler_key: Option<PathBuf>,
    /// File that remembers how far receipts were seen; without it every start looks at all of them
    #[arg(long, env = "KVASIR_GATEWAY_CURSOR", value_name = "FILE")]
    cursor: Option<PathBuf>,
    /// Time between two looks [default: 5s]
    #[arg(long, env = "KVASIR_GATEWAY_INTERVAL", value_name = "TIME")]
    interval: Option<Span>,
    /// Look once, report, and end
    #[arg(long)]
    once: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-gateway ticket --role worker --network atlas --holder ed25519:9d61b1... \\\n      \
    --wallet 3a7f... --plugin 5e44... --expires 30d --hub-key hub.key --edge-key edge.key > worker.ticket\n\n\
    A ticket is a credential, though of use only to the holder's key: keep it in a file."
)]
struct TicketArgs {
    /// What the holder may be
    #[arg(long)]
    role: RoleName,
    /// The holder's public key, ed25519:<64 hex digits>
    #[arg(long, value_name = "KEY")]
    holder: kvasir_wire::key::PublicKey,
    /// The wallet to credit, 64 hex digits; a worker's ticket needs one
    #[arg(long, value_name = "DIGEST")]
    wallet: Option<kvasir_wire::id::WalletDigest>,
    /// The hub's secret key, which signs
    #[arg(long, env = "KVASIR_GATEWAY_HUB_KEY", value_name = "FILE")]
    hub_key: Option<PathBuf>,
    /// The key shared by hub and edges, which seals
    #[arg(long, env = "KVASIR_GATEWAY_EDGE_KEY", value_name = "FILE")]
    edge_key: Option<PathBuf>,
    /// Name of the network
    #[arg(long, env = "KVASIR_GATEWAY_NETWORK", value_name = "NAME")]
    network: Option<String>,
    /// How long the ticket holds
    #[arg(long, default_value = "30d", value_name = "TIME")]
    expires: Lifetime,
    /// A plugin that the holder may serve or ask for, by digest; may be repeated
    #[arg(long, value_name = "DIGEST", required_unless_present = "publisher")]
    plugin: Vec<kvasir_wire::id::PluginDigest>,
    /// A publisher whose plugins the holder may serve or ask for: its public key, or the digest of it; may be repeated
    #[arg(long, value_name = "KEY")]
    publisher: Vec<PublisherName>,
    /// Most connections of the holder at one time: a newer one takes the oldest one's place. A worker that changes over to
    /// another version of its plugin has two for a moment
    #[arg(long, default_value_t = 2, value_name = "NUMBER")]
    sessions: u16,
    /// Payload bytes after which a session is finished in order; 0: no bound
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    session_bytes: u64,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-gateway certificate --name gateway.example --name 10.0.0.2 --out tls\n\n\
    For development and LANs. Workers trust it with --ca tls/ca.pem."
)]
struct CertificateArgs {
    /// A name or IP address that workers dial; may be repeated
    #[arg(long, value_name = "NAME", required = true)]
    name: Vec<String>,
    /// Folder for ca.pem, server.pem and server.key
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Overwrite what is there
    #[arg(long)]
    replace: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-gateway edge-key edge.key\n\nTickets made with the old key stop working when it is replaced."
)]
struct EdgeKeyArgs {
    /// File to write, readable by its owner only
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Overwrite what is there
    #[arg(long)]
    replace: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleName {
    Worker,
    Backbone,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Role {
        match name {
            RoleName::Worker => Role::Worker,
            RoleName::Backbone => Role::Backbone,
        }
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    let line = CommandLine::parse();
    let log = match LogFilter::start(line.log.as_deref()) {
        Ok(log) => log,
        Err(error) => {
            complain(&format!("--log (or KVASIR_LOG) {}: {error}", line.log.unwrap_or_default()));
            return ExitCode::from(2);
        }
    };
    match run(line, log) {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has seen enough (`| head`) is no failure of ours.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&sentence(&error));
            ExitCode::FAILURE
        }
    }
}

/// The last words, on standard error; where nobody can hear them the exit code says it.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "error: {}", printable(text));
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut kinds = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    kinds.next().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Writes to standard output, and says so where that fails: what is lost there must not look like success.
fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("standard output cannot be written")
}

fn print_line(line: &str) -> anyhow::Result<()> {
    print(format!("{line}\n").as_bytes())
}

/// An error with its causes, each said once: many of ours name their cause already.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Where settings come from that no flag and no variable says.
struct Source {
    config: Option<PathBuf>,
    log: LogFilter,
}

impl Source {
    /// The file as it is now.
    fn read(&self) -> Result<GatewayFile, ConfigError> {
        GatewayFile::load(self.config.as_deref())
    }

    /// The file at the start of a program; what it says about the log holds from here on.
    fn start(&self) -> anyhow::Result<GatewayFile> {
        let file = self.read()?;
        self.log.change(self.log.of_file(file.log.as_deref())?)?;
        Ok(file)
    }
}

fn run(line: CommandLine, log: LogFilter) -> anyhow::Result<()> {
    let source = Source { config: line.config, log };
    match line.command {
        Command::Edge(args) => serve::edge(args, source, line.json),
        Command::Hub(args) => serve::hub(args, source, line.json),
        Command::Settle(args) => serve::settle(args, &source, line.json),
        Command::Ticket(args) => once::ticket(args, source.read()?.hub, line.json),
        Command::Certificate(args) => once::certificate(&args, line.json),
        Command::EdgeKey(args) => once::edge_key(&args, line.json),
        Command::Completions { shell } => {
            // Into memory first: the generator panics where its stream fails.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut CommandLine::command(), "kvasir-gateway", &mut script);
            print(&script)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::Error::new(std::io::Error::other("disk full"))
            .context("writing x: disk full")
            .context("cannot save");
        assert_eq!(sentence(&error), "cannot save: writing x: disk full");
    }

    #[test]
    fn every_command_shows_an_example() {
        for command in CommandLine::command().get_subcommands() {
            let shown = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(
                shown.contains("Example") || command.get_name() == "completions",
                "{}",
                command.get_name()
            );
        }
    }
}
