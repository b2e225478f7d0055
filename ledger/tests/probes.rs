//! `/probes`: files of probe records by their names, a list of them, and nothing else of the disk.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kvasir_ledger::server::{Beside, ServeLimits, listen, serve_beside};
use kvasir_ledger::store::Store;
use kvasir_wire::probe::{MAX_PROBE_FILE_BYTES, ProbeName};
use network::{Network, START};
use tokio::sync::oneshot;

struct Served {
    url: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn start(folder: &Path, probes: &Path) -> Self {
        Self::start_within(ServeLimits::default(), folder, probes)
    }

    fn start_within(limits: ServeLimits, folder: &Path, probes: &Path) -> Self {
        let network = Network::new();
        let path = folder.join("ledger.db");
        Store::create(&path, &network.name).unwrap();
        let store = Store::open(&path, &network.name, network.keys()).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let beside = Beside { probes: Some(probes.to_owned()), ..Beside::default() };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
                tell.send(address).unwrap();
                let stop = async {
                    let _ = stopped.await;
                };
                let clock = Arc::new(|| START);
                serve_beside(limits, listener, store, network.name, clock, beside, stop).await.unwrap();
            });
        });
        Served { url: format!("http://{}", told.recv().unwrap()), stop: Some(stop), thread: Some(thread) }
    }

    /// Status and body. The path goes out as it stands: nothing tidies it up on the way.
    fn get(&self, path: &str) -> (u16, Vec<u8>) {
        let mut stream = std::net::TcpStream::connect(self.url.strip_prefix("http://").unwrap()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let status = std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap();
        (status, answer.split_off(end + 4))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
        let _ = self.thread.take().unwrap().join();
    }
}

#[test]
fn files_are_served_by_name_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    let probes = folder.path().join("probes");
    let (first, second) = ("aa".repeat(32), "bb".repeat(32));
    for (session, seq) in [(&second, 1), (&first, 10), (&first, 2)] {
        fs::create_dir_all(probes.join(session)).unwrap();
        // Longer than what is in memory of it at one time.
        let bytes = vec![seq as u8; 100_000 + seq];
        fs::write(probes.join(session).join(format!("{seq}.probes")), bytes).unwrap();
    }
    let served = Served::start(folder.path(), &probes);
    let (status, list) = served.get("/probes/index");
    assert_eq!(status, 200);
    let names = ProbeName::parse_list(std::str::from_utf8(&list).unwrap()).unwrap();
    let told: Vec<String> = names.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [format!("{first}/2.probes"), format!("{first}/10.probes"), format!("{second}/1.probes")]
    );
    for name in &names {
        let (status, bytes) = served.get(&format!("/probes/{name}"));
        assert_eq!((status, bytes), (200, vec![name.seq as u8; 100_000 + name.seq as usize]));
    }
    // The API beside it is as it was.
    assert_eq!(served.get("/ready").0, 200);
    assert_eq!(served.get("/elsewhere").0, 404);
}

#[test]
fn a_reader_that_takes_nothing_loses_its_connection_and_another_reads_on() {
    // More than the system keeps for two ends that talk over loopback.
    const LENGTH: usize = 32 << 20;
    let folder = tempfile::tempdir().unwrap();
    let probes = folder.path().join("probes");
    let session = "aa".repeat(32);
    fs::create_dir_all(probes.join(&session)).unwrap();
    fs::write(probes.join(&session).join("1.probes"), vec![7; LENGTH]).unwrap();
    let limits = ServeLimits { request_time: Duration::from_secs(1), ..ServeLimits::default() };
    let served = Served::start_within(limits, folder.path(), &probes);
    let path = format!("/probes/{session}/1.probes");
    let mut stalled = std::net::TcpStream::connect(served.url.strip_prefix("http://").unwrap()).unwrap();
    write!(stalled, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut beginning = [0; 12];
    stalled.read_exact(&mut beginning).unwrap();
    assert_eq!(&beginning, b"HTTP/1.1 200");
    assert_eq!(served.get(&path).1.len(), LENGTH);
    // The ledger's end is closed once nothing was taken for long enough; until then what it wrote waits to be read.
    std::thread::sleep(3 * limits.request_time);
    let mut rest = Vec::new();
    let _ = stalled.read_to_end(&mut rest);
    assert!(rest.len() < LENGTH, "{} bytes came", rest.len());
}

#[test]
fn nothing_else_of_the_disk_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let probes = folder.path().join("probes");
    let session = "ab".repeat(32);
    let place = probes.join(&session);
    fs::create_dir_all(place.join("3.probes")).unwrap();
    fs::write(folder.path().join("secret"), b"secret").unwrap();
    fs::write(folder.path().join("1.probes"), b"secret").unwrap();
    fs::write(probes.join("index"), b"secret").unwrap();
    for name in [".2.part", "02.probes", "2.probes.bak", "0.probes", "x.probes"] {
        fs::write(place.join(name), b"secret").unwrap();
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.path().join("secret"), place.join("4.probes")).unwrap();
    let large = fs::File::create(place.join("5.probes")).unwrap();
    large.set_len(MAX_PROBE_FILE_BYTES as u64 + 1).unwrap();
    // A session that is kept elsewhere.
    let elsewhere = "cd".repeat(32);
    fs::create_dir(folder.path().join("elsewhere")).unwrap();
    fs::write(folder.path().join("elsewhere/6.probes"), b"secret").unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), probes.join(&elsewhere)).unwrap();

    let served = Served::start(folder.path(), &probes);
    for path in [
        format!("/probes/{session}/.2.part"),
        format!("/probes/{session}/02.probes"),
        format!("/probes/{session}/2.probes.bak"),
        format!("/probes/{session}/0.probes"),
        format!("/probes/{session}/x.probes"),
        format!("/probes/{session}/3.probes"),
        format!("/probes/{session}/4.probes"),
        format!("/probes/{session}/5.probes"),
        format!("/probes/{session}/9.probes"),
        format!("/probes/{elsewhere}/6.probes"),
        format!("/probes/{}/1.probes", session.to_uppercase()),
        format!("/probes/{session}/..%2F..%2Fsecret"),
        format!("/probes/{session}/../../secret"),
        "/probes/../secret".to_owned(),
        "/probes/../1.probes".to_owned(),
        "/probes/..%2F..%2F/1.probes".to_owned(),
        "/probes/".to_owned(),
        format!("/probes/{session}/1.probes%00"),
    ] {
        let (status, body) = served.get(&path);
        assert_eq!(status, 404, "{path}");
        assert!(!body.windows(6).any(|six| six == b"secret"), "{path}");
    }
    let (status, list) = served.get("/probes/index");
    assert_eq!((status, list), (200, Vec::new()), "what is not served is not listed");
}
