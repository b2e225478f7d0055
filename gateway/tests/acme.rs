//! The edge with a certificate by ACME: ordered from a small server of the test's own, proved on the edge's port, kept, renewed.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod ca;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod scene;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ca::{Ca, NINETY_DAYS};
use kvasir_gateway::{
    acme::{Acme, AcmeOptions, Pauses},
    config::AcmeTable,
    edge::{
        Edge, EdgeOptions,
        pass_through::{Route, Routes},
    },
    operations::Served,
    secret_file,
    stop::{Stopper, switch},
};
use kvasir_wire::ticket::EdgeKey;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::TlsConnector;

/// The names of the edge.
const NAMES: [&str; 2] = ["edge.example", "gateway.example"];
/// What ACME servers offer.
const ACME_TLS: &[u8] = b"acme-tls/1";
/// What is far more than a server's answer may have.
const TOO_MUCH: usize = 300 * 1024;

/// A running edge with two names, a hub that nobody should reach, and an ACME server that proves names at the edge.
struct Rig {
    edge: SocketAddr,
    acme: Arc<Acme>,
    hub: TcpListener,
    served: Arc<dyn Served>,
    stop: Stopper,
    run: JoinHandle<()>,
}

/// What an edge asks of the server.
fn asks(ca: &Ca, cache: &Path) -> AcmeOptions {
    let table = AcmeTable {
        domains: NAMES.map(str::to_owned).to_vec(),
        contact: vec!["ops@edge.example".into()],
        directory: Some(ca.directory.clone()),
        cache: Some(cache.into()),
        accept_terms: true,
        directory_roots: Some(ca.roots.clone()),
    };
    let pauses = Pauses { floor: Duration::from_millis(20), ceiling: Duration::from_millis(100) };
    AcmeOptions::new(table).unwrap().with_pauses(pauses)
}

impl Rig {
    async fn start(ca: &Ca, cache: &Path) -> Rig {
        Rig::start_with(ca, cache, |_| {}).await
    }

    async fn start_with(ca: &Ca, cache: &Path, change: impl FnOnce(&mut EdgeOptions)) -> Rig {
        let hub = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hub_address = hub.local_addr().unwrap().to_string();
        let mut options = EdgeOptions::new(([127, 0, 0, 1], 0).into(), hub_address, "atlas".into());
        change(&mut options);
        let acme = Acme::open(asks(ca, cache)).unwrap();
        let edge = Edge::bind(options, EdgeKey::from_bytes([4; 32]), acme.clone()).await.unwrap();
        let address = edge.address();
        ca.proves_at(address);
        let (stop, stopped) = switch();
        let served = edge.served(stopped.clone());
        Rig { edge: address, acme, hub, served, stop, run: tokio::spawn(edge.run(stopped)) }
    }

    async fn ready(&self) {
        until(|| self.served.ready().is_ok(), || format!("{:?}", self.served.ready())).await;
    }

    /// Waits until the metrics have this line.
    async fn metric(&self, line: &str) {
        until(
            || self.served.metrics().lines().any(|found| found == line),
            || format!("no {line} in:\n{}", self.served.metrics()),
        )
        .await;
    }

    /// Waits until the last order has failed for a reason that has these words.
    async fn fails_for(&self, words: &str) {
        let why = || self.status()["certificate_failure"].as_str().unwrap_or_default().to_owned();
        until(|| why().contains(words), || format!("no {words:?} in {:?}", why())).await;
    }

    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.served.status()).unwrap()
    }

    async fn shown(&self, ca: &Ca, name: &str) -> std::io::Result<CertificateDer<'static>> {
        shown(self.edge, ca, name).await
    }

    async fn end(self) {
        self.stop.stop();
        self.run.await.unwrap();
        let waiting = tokio::time::timeout(Duration::from_millis(1), self.hub.accept()).await;
        assert!(waiting.is_err(), "the hub was dialled");
    }
}

/// Waits for what comes about by itself.
async fn until(what: impl Fn() -> bool, seen: impl Fn() -> String) {
    let comes = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), comes).await;
    assert!(waited.is_ok(), "{}", seen());
}

/// The certificate that a worker is shown which believes the authority.
async fn shown(edge: SocketAddr, ca: &Ca, name: &str) -> std::io::Result<CertificateDer<'static>> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.issuer()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(edge).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    // It is the edge that answers, as it does whom it knows nothing about.
    client.write_all(b"GET / HTTP/1.1\r\nHost: edge\r\n\r\n").await?;
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await?;
    assert!(answer.starts_with(b"HTTP/1.1 404"), "{}", String::from_utf8_lossy(&answer));
    Ok(client.get_ref().1.peer_certificates().unwrap()[0].clone())
}

fn cache(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("acme")
}

#[tokio::test]
async fn a_certificate_is_ordered_proved_and_served_and_the_next_start_asks_nobody() {
    let (ca, folder) = (Ca::start().await, tempfile::tempdir().unwrap());
    let rig = Rig::start(&ca, &cache(&folder)).await;
    rig.ready().await;
    rig.metric("kvasir_gateway_acme_issued_total 1").await;
    rig.metric("kvasir_gateway_acme_failed_total 0").await;
    rig.metric("kvasir_gateway_acme_last_failure_timestamp_seconds 0").await;
    // One for each name, and nothing that came inside them was answered.
    rig.metric("kvasir_gateway_handshakes_total{result=\"acme_challenge\"} 2").await;
    let first = rig.shown(&ca, NAMES[0]).await.unwrap();
    assert_eq!(rig.shown(&ca, NAMES[1]).await.unwrap(), first);
    let left = rig.status()["certificate_seconds_left"].as_i64().unwrap();
    assert!((NINETY_DAYS.1 - 3_600..=NINETY_DAYS.1).contains(&left), "{left}");
    assert!(rig.served.page().contains("The certificate holds for another "));
    assert_eq!(ca.contacts(), [Some(serde_json::json!(["mailto:ops@edge.example"]))]);
    // Nobody is a challenger who offers another protocol too, or after the order is through.
    let protocols: [&[&[u8]]; 3] = [&[ACME_TLS, b"http/1.1"], &[b"http/1.0", ACME_TLS], &[ACME_TLS]];
    for protocols in protocols {
        assert!(ca::connect(rig.edge, NAMES[0], protocols).await.is_err(), "{protocols:?}");
    }
    rig.metric("kvasir_gateway_handshakes_total{result=\"acme_challenge\"} 2").await;
    rig.end().await;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&cache(&folder)), 0o700);
        for name in ["account.json", "certificate.json"] {
            assert_eq!(mode(&cache(&folder).join(name)), 0o600, "{name}");
        }
    }

    let asked = ca.requests();
    let again = Rig::start(&ca, &cache(&folder)).await;
    assert_eq!(again.served.ready(), Ok(()));
    assert_eq!(again.shown(&ca, NAMES[0]).await.unwrap(), first);
    again.metric("kvasir_gateway_acme_issued_total 0").await;
    again.end().await;
    assert_eq!(ca.requests(), asked);
}

#[tokio::test]
async fn a_server_that_refuses_is_told_of_and_costs_nothing_but_the_renewal() {
    let (ca, folder) = (Ca::start().await, tempfile::tempdir().unwrap());
    // One certificate, of which less than a third of its time is left when it comes.
    ca.change(|mood| (mood.validity, mood.orders_left) = ((-3 * 3_600, 3_600), 1));
    let rig = Rig::start(&ca, &cache(&folder)).await;
    rig.ready().await;
    rig.fails_for("too many certificates already issued").await;
    let first = rig.shown(&ca, NAMES[0]).await.unwrap();
    assert_eq!(rig.served.ready(), Ok(()), "the one that there is still holds");
    assert!(rig.served.page().contains("too many certificates already issued"));
    let metrics = rig.served.metrics();
    let when = metrics
        .lines()
        .find_map(|line| line.strip_prefix("kvasir_gateway_acme_last_failure_timestamp_seconds "))
        .unwrap();
    assert!(when.parse::<u64>().unwrap() > 1_700_000_000, "{metrics}");

    // It changes its mind: the edge takes the new one without a restart.
    ca.change(|mood| (mood.validity, mood.orders_left) = (NINETY_DAYS, usize::MAX));
    rig.metric("kvasir_gateway_acme_issued_total 2").await;
    rig.metric("kvasir_gateway_acme_last_failure_timestamp_seconds 0").await;
    assert_ne!(rig.shown(&ca, NAMES[0]).await.unwrap(), first);
    assert!(rig.status().get("certificate_failure").is_none());
    assert_eq!(ca.contacts().len(), 1, "one account for all of it");
    rig.end().await;
}

#[tokio::test]
async fn a_name_that_is_not_proved_is_named_and_the_edge_is_not_ready() {
    let (ca, folder) = (Ca::start().await, tempfile::tempdir().unwrap());
    ca.change(|mood| mood.wrong_digest = true);
    let rig = Rig::start(&ca, &cache(&folder)).await;
    rig.fails_for("incorrect acmeIdentifier").await;
    rig.fails_for(NAMES[0]).await;
    let why = rig.served.ready().unwrap_err();
    assert!(why.contains("no certificate yet") && why.contains("acmeIdentifier"), "{why}");
    rig.metric("kvasir_gateway_certificate_seconds_left 0").await;
    assert!(rig.shown(&ca, NAMES[0]).await.is_err(), "there is nothing to show");
    ca.change(|mood| mood.wrong_digest = false);
    rig.ready().await;
    rig.shown(&ca, NAMES[0]).await.unwrap();
    rig.end().await;
}

#[tokio::test]
async fn what_a_server_answers_is_bounded_and_checked() {
    let (ca, folder) = (Ca::start().await, tempfile::tempdir().unwrap());
    ca.change(|mood| mood.padding = TOO_MUCH);
    let rig = Rig::start(&ca, &cache(&folder)).await;
    rig.fails_for("larger than").await;
    ca.change(|mood| (mood.padding, mood.one_proof_more) = (0, true));
    rig.fails_for("3 proofs for 2 names").await;
    // At this one the library panics.
    ca.change(|mood| (mood.one_proof_more, mood.no_address) = (false, true));
    rig.fails_for("broke off").await;
    ca.change(|mood| (mood.no_address, mood.validity) = (false, (-7_200, -3_600)));
    rig.fails_for("expired").await;
    assert!(rig.served.ready().is_err());
    ca.change(|mood| mood.validity = NINETY_DAYS);
    rig.ready().await;
    rig.end().await;
}

#[tokio::test]
async fn an_expired_certificate_in_the_folder_is_none_and_one_for_other_names_is_replaced() {
    let (ca, folder) = (Ca::start().await, tempfile::tempdir().unwrap());
    let cache = cache(&folder);
    let put = |(chain, key): (String, String)| {
        let kept = serde_json::json!({"directory": ca.directory, "chain": chain, "private_key": key});
        secret_file::write(&cache.join("certificate.json"), kept.to_string().as_bytes(), true).unwrap();
    };
    drop(Acme::open(asks(&ca, &cache)).unwrap()); // makes the folder
    ca.change(|mood| mood.orders_left = 0);
    put(ca.signed(NAMES[0], (-7_200, -3_600)));
    let rig = Rig::start(&ca, &cache).await;
    assert!(rig.served.ready().unwrap_err().contains("no certificate yet"));
    rig.fails_for("too many certificates").await;
    assert!(rig.shown(&ca, NAMES[0]).await.is_err());
    rig.end().await;

    // It holds, and is for one name of two: better than none until there is one for both.
    put(ca.signed(NAMES[0], NINETY_DAYS));
    let rig = Rig::start(&ca, &cache).await;
    assert_eq!(rig.served.ready(), Ok(()));
    rig.shown(&ca, NAMES[0]).await.unwrap();
    assert!(rig.shown(&ca, NAMES[1]).await.is_err());
    ca.change(|mood| mood.orders_left = 1);
    rig.metric("kvasir_gateway_acme_issued_total 1").await;
    rig.shown(&ca, NAMES[1]).await.unwrap();
    rig.end().await;
}

#[tokio::test]
async fn a_certificate_that_cannot_be_kept_is_used_and_put_into_the_folder_later() {
    let (ca, folder) = (Ca::start().await, tempfile::tempdir().unwrap());
    ca.change(|mood| mood.orders_left = 0);
    let rig = Rig::start(&ca, &cache(&folder)).await;
    rig.fails_for("too many certificates").await;
    // Like a full disk: a folder cannot be replaced by a file.
    let path = cache(&folder).join("certificate.json");
    fs::create_dir(&path).unwrap();
    ca.change(|mood| mood.orders_left = 1);
    rig.fails_for("cannot be kept").await;
    assert_eq!(rig.served.ready(), Ok(()));
    let first = rig.shown(&ca, NAMES[0]).await.unwrap();

    fs::remove_dir(&path).unwrap();
    rig.acme.try_now();
    until(|| rig.status().get("certificate_failure").is_none(), || rig.status().to_string()).await;
    rig.end().await;
    let again = Rig::start(&ca, &cache(&folder)).await;
    assert_eq!(again.shown(&ca, NAMES[0]).await.unwrap(), first);
    again.end().await;
}

#[tokio::test]
async fn an_account_that_the_server_has_lost_is_made_again() {
    let (ca, folder) = (Ca::start().await, tempfile::tempdir().unwrap());
    ca.change(|mood| (mood.validity, mood.orders_left) = ((-3 * 3_600, 3_600), 1));
    let rig = Rig::start(&ca, &cache(&folder)).await;
    rig.ready().await;
    rig.fails_for("too many certificates").await;
    ca.forget_accounts();
    ca.change(|mood| (mood.validity, mood.orders_left) = (NINETY_DAYS, usize::MAX));
    rig.metric("kvasir_gateway_acme_issued_total 2").await;
    assert_eq!(ca.contacts(), [None, Some(serde_json::json!(["mailto:ops@edge.example"]))]);
    rig.end().await;
}

#[tokio::test]
async fn a_name_that_is_passed_through_goes_to_its_backend_challenges_included() {
    let (ca, folder) = (Ca::start().await, tempfile::tempdir().unwrap());
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = backend.local_addr().unwrap().to_string();
    let route = Route { name: "other.example".into(), to, proxy_protocol: false };
    let routes = Routes::new(vec![route]).unwrap();
    let rig = Rig::start_with(&ca, &cache(&folder), |options| options.pass_through = routes).await;
    // The edge's own names are proved as without such a list.
    rig.ready().await;
    let dialled = tokio::spawn(ca::connect(rig.edge, "other.example", &[ACME_TLS]));
    let (mut arrived, _) =
        tokio::time::timeout(Duration::from_secs(60), backend.accept()).await.unwrap().unwrap();
    let mut first = [0; 3];
    arrived.read_exact(&mut first).await.unwrap();
    assert_eq!(first[..2], [22, 3], "the handshake as it came");
    drop(arrived);
    assert!(dialled.await.unwrap().is_err());
    rig.end().await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_takes_over_serves_what_the_old_one_was_issued() {
    use std::process::Command;

    use process::Running;
    use tokio::net::UnixDatagram;

    struct Ended(String);
    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = Command::new("kill").args(["-KILL", &self.0]).status();
        }
    }

    let (ca, folder) = (Ca::start().await, tempfile::tempdir().unwrap());
    let path = folder.path();
    let key = EdgeKey::from_bytes([4; 32]).to_text();
    secret_file::write(&path.join("edge.key"), key.as_bytes(), false).unwrap();
    let manager = UnixDatagram::bind(path.join("manager")).unwrap();
    let roots = ca.roots.to_str().unwrap();
    let edge = ["edge", "--hub", "127.0.0.1:1", "--acme-domain", NAMES[0], "--acme-accept-terms"];
    let server = ["--acme-directory", &ca.directory, "--acme-directory-roots", roots, "--acme-cache", "acme"];
    let edge = Running::start(path, &[&edge[..], &server].concat(), &[("NOTIFY_SOCKET", "manager")]);
    ca.proves_at(edge.address);
    let issued = async {
        loop {
            match shown(edge.address, &ca, NAMES[0]).await {
                Ok(shown) => break shown,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let first = scene::patiently(issued).await;
    let asked = ca.requests();

    edge.signal("-USR2");
    let mut message = [0; 100];
    let length = scene::patiently(manager.recv(&mut message)).await.unwrap();
    let message = std::str::from_utf8(&message[..length]).unwrap();
    let _successor = Ended(message.strip_prefix("MAINPID=").unwrap().trim_end().to_owned());
    until(|| edge.has_ended(), || "the old one has nothing to wait for".into()).await;
    assert_eq!(shown(edge.address, &ca, NAMES[0]).await.unwrap(), first);
    assert_eq!(ca.requests(), asked);
}
