//! `gateway.toml`: what stands in the file when neither a flag nor an environment variable says it.
//!
//! One file may serve all three long-running commands of a machine. Unknown keys are errors, since a misspelt limit that
//! is ignored is worse than none. Paths are relative to the file's folder; secrets are paths, never values.

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::{Path, PathBuf},
};

use kvasir_ledger::files::read_regular_text;
use serde::Deserialize;

use crate::edge::{pass_through::Route, trusted::Network};

/// The file that is read when it exists and no other is named.
pub const DEFAULT_FILE: &str = "gateway.toml";
/// Most bytes of the file.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("reading {path}: {source}; name another file with --config")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is too large.
    #[error("{path} is larger than {MAX_FILE_BYTES} bytes: it is not a gateway.toml")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It does not parse.
    #[error("{path}: {detail}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What and where.
        detail: String,
    },
    /// A value stands nowhere.
    #[error("{flag} is missing: give the flag, set {variable}, or write {key} into gateway.toml")]
    Missing {
        /// The flag.
        flag: &'static str,
        /// The environment variable.
        variable: &'static str,
        /// The key in the file.
        key: &'static str,
    },
}

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayFile {
    /// What is logged: a level, or a filter.
    pub log: Option<String>,
    /// For `kvasir-gateway edge`.
    pub edge: EdgeTable,
    /// For `kvasir-gateway hub`.
    pub hub: HubTable,
    /// For `kvasir-gateway settle`.
    pub settle: SettleTable,
}

/// Table `[edge]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EdgeTable {
    /// Address to listen on.
    pub listen: Option<SocketAddr>,
    /// The hub, `host:port`.
    pub hub: Option<String>,
    /// Network name.
    pub network: Option<String>,
    /// Certificate chain, PEM.
    pub certificate: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    pub certificate_key: Option<PathBuf>,
    /// The edge key file.
    pub edge_key: Option<PathBuf>,
    /// Most connections.
    pub max_connections: Option<NonZeroUsize>,
    /// Most connections without a ticket.
    pub max_unauthenticated: Option<NonZeroUsize>,
    /// Most connections of one address.
    pub max_per_address: Option<NonZeroUsize>,
    /// Proxies that speak HTTP and whose `X-Forwarded-For` is believed.
    pub trusted_peers: Vec<Network>,
    /// Proxies that pass TCP on and send a PROXY header in front of every connection.
    pub proxy_protocol_peers: Vec<Network>,
    /// Most connections a second, for long.
    pub max_accepts_per_second: Option<NonZeroU32>,
    /// Address of the operations listener; off without one.
    pub operations: Option<SocketAddr>,
    /// A certificate by ACME instead of files, `[edge.acme]`.
    pub acme: Option<AcmeTable>,
    /// Names whose connections go to backends, `[[edge.pass_through]]`.
    pub pass_through: Vec<Route>,
}

/// Table `[edge.acme]`; [`crate::acme::AcmeOptions`] checks it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AcmeTable {
    /// Names of the certificate.
    pub domains: Vec<String>,
    /// E-mail addresses at which the server's operator reaches this one's.
    pub contact: Vec<String>,
    /// `production` or `staging`, which are Let's Encrypt's, or the address of a server's directory.
    pub directory: Option<String>,
    /// Folder of account and certificate.
    pub cache: Option<PathBuf>,
    /// Whether the server's terms of service are agreed to.
    pub accept_terms: bool,
    /// PEM file of the authorities that the server's own certificate is from.
    pub directory_roots: Option<PathBuf>,
}

/// Table `[hub]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HubTable {
    /// Address to listen on; on the LAN only.
    pub listen: Option<SocketAddr>,
    /// Network name.
    pub network: Option<String>,
    /// The hub's secret key file.
    pub hub_key: Option<PathBuf>,
    /// The edge key file: tickets carry a seal made with it.
    pub edge_key: Option<PathBuf>,
    /// The ledger's address, `http://host:port`.
    pub ledger: Option<String>,
    /// Folder for receipts that the ledger has not taken yet.
    pub spool: Option<PathBuf>,
    /// Most connections.
    pub max_connections: Option<NonZeroUsize>,
    /// Most connections a second, for long.
    pub max_accepts_per_second: Option<NonZeroU32>,
    /// Whether workers that ask for it may open a second connection for bulk; off unless said.
    pub bulk_connection: Option<bool>,
    /// Address of the operations listener; off without one.
    pub operations: Option<SocketAddr>,
}

/// Table `[settle]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SettleTable {
    /// The ledger's address, `http://host:port`.
    pub ledger: Option<String>,
    /// Network name.
    pub network: Option<String>,
    /// The settler's secret key file.
    pub settler_key: Option<PathBuf>,
    /// The file that holds how far receipts were read.
    pub cursor: Option<PathBuf>,
    /// Time between two looks, for example `5s`.
    pub interval: Option<String>,
}

impl GatewayFile {
    /// Reads the named file, or [`DEFAULT_FILE`] of the current folder if it exists.
    pub fn load(named: Option<&Path>) -> Result<Self, ConfigError> {
        match named {
            Some(path) => Self::read(path),
            None if Path::new(DEFAULT_FILE).exists() => Self::read(Path::new(DEFAULT_FILE)),
            None => Ok(Self::default()),
        }
    }

    fn read(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Unreadable { path: path.into(), source };
        let text = read_regular_text(path, MAX_FILE_BYTES).map_err(|source| match source.kind() {
            std::io::ErrorKind::FileTooLarge => ConfigError::TooLarge { path: path.into() },
            _ => unreadable(source),
        })?;
        let mut file: GatewayFile = toml::from_str(&text)
            .map_err(|error| ConfigError::Malformed { path: path.into(), detail: error.to_string() })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let acme = file.edge.acme.iter_mut();
        let acme = acme.flat_map(|acme| [&mut acme.cache, &mut acme.directory_roots]);
        for relative in [
            &mut file.edge.certificate,
            &mut file.edge.certificate_key,
            &mut file.edge.edge_key,
            &mut file.hub.hub_key,
            &mut file.hub.edge_key,
            &mut file.hub.spool,
            &mut file.settle.settler_key,
            &mut file.settle.cursor,
        ]
        .into_iter()
        .chain(acme)
        .flatten()
        {
            *relative = folder.join(&*relative);
        }
        Ok(file)
    }
}

/// The value of a flag or variable, else of the file, else the error that names all three.
pub fn needed<T>(
    given: Option<T>,
    from_file: Option<T>,
    flag: &'static str,
    variable: &'static str,
    key: &'static str,
) -> Result<T, ConfigError> {
    given.or(from_file).ok_or(ConfigError::Missing { flag, variable, key })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn paths_are_relative_to_the_file_and_unknown_keys_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.toml");
        fs::write(
            &path,
            "[edge]\nlisten = \"127.0.0.1:0\"\nedge_key = \"edge.key\"\n[hub]\nspool = \"/var/spool\"\n",
        )
        .unwrap();
        let file = GatewayFile::load(Some(&path)).unwrap();
        assert_eq!(file.edge.edge_key, Some(folder.path().join("edge.key")));
        assert_eq!(file.hub.spool, Some("/var/spool".into()));
        assert_eq!(file.hub.bulk_connection, None);
        fs::write(&path, "[hub]\nbulk_connection = true\n").unwrap();
        assert_eq!(GatewayFile::load(Some(&path)).unwrap().hub.bulk_connection, Some(true));

        fs::write(&path, "[edge]\nmax_conections = 5\n").unwrap();
        let error = GatewayFile::load(Some(&path)).unwrap_err().to_string();
        assert!(error.contains("max_conections"), "{error}");
        let peers = "trusted_peers = [\"10.0.0.0/8\", \"::1\"]\nproxy_protocol_peers = [\"10.0.0.7\"]\n";
        fs::write(&path, format!("[edge]\n{peers}")).unwrap();
        let edge = GatewayFile::load(Some(&path)).unwrap().edge;
        assert_eq!((edge.trusted_peers.len(), edge.proxy_protocol_peers.len()), (2, 1));
        fs::write(&path, "[edge]\ntrusted_peers = [\"10.0.0.7/8\"]\n").unwrap();
        let error = GatewayFile::load(Some(&path)).unwrap_err().to_string();
        assert!(error.contains("10.0.0.7/8") && error.contains("bits"), "{error}");
        let one = "[[edge.pass_through]]\nname = \"hub.example\"\nto = \"10.0.0.2:7443\"\n";
        fs::write(&path, format!("[edge]\n{one}proxy_protocol = true\n{one}")).unwrap();
        let routes = GatewayFile::load(Some(&path)).unwrap().edge.pass_through;
        assert_eq!((routes[0].proxy_protocol, routes[1].proxy_protocol), (true, false));
        assert_eq!((routes[1].name.as_str(), routes[1].to.as_str()), ("hub.example", "10.0.0.2:7443"));
        fs::write(&path, format!("{one}proxy = true\n")).unwrap();
        assert!(GatewayFile::load(Some(&path)).unwrap_err().to_string().contains("proxy"));
        let acme = "[edge.acme]\ndomains = [\"a.b\"]\ncache = \"acme\"\naccept_terms = true\n";
        fs::write(&path, acme).unwrap();
        let found = GatewayFile::load(Some(&path)).unwrap().edge.acme.unwrap();
        assert_eq!(found.cache, Some(folder.path().join("acme")));
        assert!(found.accept_terms && found.directory_roots.is_none() && found.domains == ["a.b"]);
        fs::write(&path, format!("{acme}terms = true\n")).unwrap();
        assert!(GatewayFile::load(Some(&path)).unwrap_err().to_string().contains("terms"));
        fs::write(&path, vec![b'#'; MAX_FILE_BYTES as usize + 1]).unwrap();
        assert!(matches!(GatewayFile::load(Some(&path)), Err(ConfigError::TooLarge { .. })));
        assert!(GatewayFile::load(Some(&folder.path().join("none"))).is_err());
    }

    #[test]
    fn a_flag_wins_over_the_file_and_a_missing_value_names_its_three_places() {
        let chosen = needed(Some("flag"), Some("file"), "--hub", "KVASIR_GATEWAY_HUB", "edge.hub").unwrap();
        assert_eq!(chosen, "flag");
        assert_eq!(needed(None, Some("file"), "--hub", "KVASIR_GATEWAY_HUB", "edge.hub").unwrap(), "file");
        let error =
            needed::<String>(None, None, "--hub", "KVASIR_GATEWAY_HUB", "edge.hub").unwrap_err().to_string();
        assert!(
            error.contains("--hub") && error.contains("KVASIR_GATEWAY_HUB") && error.contains("edge.hub")
        );
    }
}
