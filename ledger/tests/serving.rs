//! The HTTP API through its client: answers, refusals, and two pollers at once.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvasir_ledger::api::{Accepted, ErrorBody};
use kvasir_ledger::client::{Client, ClientError, Settled};
use kvasir_ledger::server::{ServeLimits, listen, serve_within};
use kvasir_ledger::store::Store;
use kvasir_wire::account::{PENDING_SECONDS, Statement};
use network::{Network, START, counters};
use tokio::sync::oneshot;

/// A served ledger with a clock of its own.
struct Served {
    url: String,
    client: Client,
    clock: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    folder: tempfile::TempDir,
}

impl Served {
    fn start(network: &Network) -> Self {
        Self::start_within(ServeLimits::default(), None, network)
    }

    fn start_within(limits: ServeLimits, store_bytes: Option<u64>, network: &Network) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        Store::create(&path, &network.name).unwrap();
        let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
        if let Some(bytes) = store_bytes {
            for note in network.foundation() {
                store.accept_note(note.to_string().as_bytes(), START).unwrap();
            }
            store.limit_size(bytes).unwrap();
        }
        let clock = Arc::new(AtomicU64::new(START + 20));
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let (name, time) = (network.name.clone(), clock.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
                tell.send(address).unwrap();
                let stop = async {
                    let _ = stopped.await;
                };
                let clock = Arc::new(move || time.load(Ordering::SeqCst));
                serve_within(limits, listener, store, name, clock, stop).await.unwrap();
            });
        });
        let url = format!("http://{}", told.recv().unwrap());
        let client = Client::new(&url).unwrap();
        for note in network.foundation() {
            client.post_note(&note).unwrap();
        }
        Self { url, client, clock, stop: Some(stop), thread: Some(thread), folder }
    }

    /// Status and body of a raw request.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let url = format!("{}{path}", self.url);
        let mut response = match method {
            "GET" => agent.get(url).call(),
            "DELETE" => agent.delete(url).call(),
            _ => agent.post(url).send(body),
        }
        .unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    /// A connection that says `bytes` and then nothing.
    fn half_open(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.url.strip_prefix("http://").unwrap()).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    fn stop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_whole_conversation() {
    let network = Network::new();
    let mut served = Served::start(&network);
    let client = served.client.clone();
    assert_eq!(client.price().unwrap().nanokvr_per_byte, 7);
    assert_eq!(client.price().unwrap().leaf, network.price().leaf_hash().to_string());
    assert_eq!(client.note(&network.price().leaf_hash()).unwrap().note, network.price().to_string());

    let one = network.first(1, 425_984, 851_968);
    let note = network.sign(&one);
    let accepted = client.post_receipt(&note).unwrap();
    assert_eq!((accepted.index, accepted.kind.as_str()), (4, "receipt"));
    assert_eq!(accepted.id, one.id().to_string());
    assert_eq!(accepted.leaf, note.leaf_hash().to_string());

    let page = client.receipts(None, 10).unwrap();
    assert_eq!(page.receipts[0].note, note.to_string());
    assert_eq!(page.next, Some(4));
    // A page of none would never come to an end.
    assert_eq!(client.receipts(None, 0).unwrap(), client.receipts(None, 1).unwrap());
    assert_eq!(client.receipts(page.next, 10).unwrap().receipts, []);
    assert_eq!(client.receipts(page.next, 10).unwrap().next, Some(4));

    let outcomes = client.settle_once(&network.name, &network.settler, START + 20).unwrap();
    assert!(
        matches!(&outcomes[..], [Settled::Credited { settlement, .. }] if settlement.bytes.get() == 1_277_952)
    );
    assert!(client.settle_once(&network.name, &network.settler, START + 20).unwrap().is_empty());
    let wallet = client.wallet(&network.payee()).unwrap();
    assert_eq!((wallet.pending_nanokvr, wallet.kvr.as_str()), (8_945_664, "0.00895 KVR"));
    assert_eq!(client.account(&network.payer()).unwrap().spent_nanokvr, 8_945_664);
    let ready = client.ready().unwrap();
    assert_eq!((ready.entries, ready.network.as_str()), (6, "atlas"));

    served.stop();
    // What was served is in the file, in order, and its root is the one that was told.
    let path = served.folder.path().join("ledger.db");
    let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
    assert_eq!(store.answers().head().unwrap().1.to_string(), ready.root);
    assert_eq!(store.sweep(START + 20 + PENDING_SECONDS).unwrap(), 1);
}

#[test]
fn a_resend_over_http_is_answered_byte_for_byte() {
    let network = Network::new();
    let served = Served::start(&network);
    let note = network.sign(&network.first(1, 100, 200)).to_string();
    let first = served.ask("POST", "/v1/receipts", note.as_bytes());
    assert_eq!(first.0, 200);
    served.clock.store(START + 5_000_000, Ordering::SeqCst);
    assert_eq!(served.ask("POST", "/v1/receipts", note.as_bytes()), first);
}

#[test]
fn every_refusal_is_json_with_code_message_and_advice() {
    let network = Network::new();
    let served = Served::start(&network);
    let hex = "ab".repeat(32);
    let conflicting = network.sign(&network.first(1, 1, 1)).to_string();
    served.client.post_receipt(&network.sign(&network.first(1, 1, 2))).unwrap();
    for (method, path, body, status, code) in [
        ("GET", "/v1", "", 404, "no_such_path"),
        ("DELETE", "/v1/receipts", "", 405, "wrong_method"),
        ("POST", "/v1/receipts", "", 400, "malformed_note"),
        ("POST", "/v1/receipts", &"x".repeat(16 * 1024 + 1), 413, "too_large"),
        ("POST", "/v1/receipts", &conflicting, 409, "conflict"),
        ("POST", "/v1/notes", &conflicting, 400, "unknown_kind"),
        ("POST", "/v1/settlements", &conflicting, 400, "malformed_note"),
        ("GET", "/v1/receipts?after=-1", "", 400, "bad_question"),
        ("GET", "/v1/receipts?before=1", "", 400, "bad_question"),
        ("GET", "/v1/wallets/abc", "", 400, "bad_question"),
        ("GET", &format!("/v1/notes/{}", hex.to_uppercase()), "", 400, "bad_question"),
        ("GET", &format!("/v1/notes/{hex}"), "", 404, "unknown_note"),
    ] {
        let (found, body) = served.ask(method, path, body.as_bytes());
        let body: ErrorBody =
            serde_json::from_str(&body).unwrap_or_else(|_| panic!("{method} {path}: {body}"));
        assert_eq!((found, body.code.as_str()), (status, code), "{method} {path}");
        assert!(!body.message.is_empty() && !body.what_to_do.is_empty(), "{method} {path}");
        assert_eq!(body.evidence.is_some(), code == "conflict");
    }
    let refused = served.client.post_receipt(&network.sign(&network.first(1, 1, 1))).unwrap_err();
    assert!(matches!(&refused, ClientError::Refused { status: 409, .. }));
    assert!(!refused.is_passing() && refused.code() == Some("conflict"));
    // An unknown wallet has nothing, which is an answer.
    assert_eq!(served.client.wallet(&[9; 32].into()).unwrap().pending_nanokvr, 0);
}

#[test]
fn two_pollers_at_once_never_credit_twice() {
    const SESSIONS: u8 = 3;
    const RECEIPTS: u64 = 12;
    let network = Network::new();
    let served = Served::start(&network);
    let done = AtomicU64::new(0);
    let told = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for session in 1..=SESSIONS {
            let (client, network, done) = (served.client.clone(), &network, &done);
            scope.spawn(move || {
                let mut receipt = network.first(session, 1_000, 0);
                client.post_receipt(&network.sign(&receipt)).unwrap();
                for number in 2..=RECEIPTS {
                    receipt =
                        receipt.next(counters(1_000 * number, 0), receipt.to, number == RECEIPTS).unwrap();
                    client.post_receipt(&network.sign(&receipt)).unwrap();
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        for _ in 0..2 {
            let (client, network, done, told) = (served.client.clone(), &network, &done, &told);
            scope.spawn(move || {
                loop {
                    let all_sent = done.load(Ordering::SeqCst) == u64::from(SESSIONS);
                    for outcome in client.settle_once(&network.name, &network.settler, START + 20).unwrap() {
                        match outcome {
                            Settled::Credited { settlement, .. } => {
                                told.fetch_add(settlement.bytes.get(), Ordering::SeqCst);
                            }
                            Settled::AlreadyCredited { .. } => {}
                            Settled::Refused { body, .. } => {
                                assert!(
                                    ["conflict", "balance_moved"].contains(&body.code.as_str()),
                                    "{body:?}"
                                );
                            }
                        }
                    }
                    if all_sent && client.unsettled().unwrap().parts.is_empty() {
                        return;
                    }
                }
            });
        }
    });
    let bytes = i64::from(SESSIONS) * RECEIPTS as i64 * 1_000;
    assert_eq!(told.load(Ordering::SeqCst), bytes as u64, "each byte is reported by one poller");
    let wallet = served.client.wallet(&network.payee()).unwrap();
    assert_eq!((wallet.pending_nanokvr, wallet.bytes), (7 * bytes, bytes as u64));
    assert_eq!(
        served.client.account(&network.payer()).unwrap().available_nanokvr,
        1_000_000_000_000 - 7 * bytes
    );
}

#[test]
fn a_short_payer_stops_neither_the_poller_nor_other_wallets() {
    let mut network = Network::new();
    let served = Served::start(&network);
    let rich = network.sign(&network.first(1, 100, 0));
    // Another backbone without funds, paying the same worker.
    network.backbone = kvasir_wire::key::SecretKey::from_seed([40; 32]);
    served.client.post_note(&network.grant(1_000_000_000)).unwrap();
    served.client.post_receipt(&network.sign(&network.first(2, 100, 0))).unwrap();
    served.client.post_receipt(&rich).unwrap();
    let outcomes = served.client.settle_once(&network.name, &network.settler, START + 20).unwrap();
    let credited = outcomes.iter().filter(|outcome| matches!(outcome, Settled::Credited { .. })).count();
    let short = outcomes
        .iter()
        .any(|outcome| matches!(outcome, Settled::Refused { body, .. } if body.code == "payer_short"));
    assert!(credited == 1 && short, "{outcomes:?}");
    assert_eq!(served.client.wallet(&network.payee()).unwrap().pending_nanokvr, 700);
    assert_eq!(served.client.wallet(&network.payee()).unwrap().unsettled_nanokvr, 700);
}

#[test]
fn a_settlement_posted_twice_is_credited_once() {
    let network = Network::new();
    let served = Served::start(&network);
    served.client.post_receipt(&network.sign(&network.first(1, 100, 200))).unwrap();
    let note = network.settlement(&[(1, 1, 1, 300)], 0, START + 20).sign(&network.settler).unwrap();
    let first = served.client.post_settlement(&note).unwrap();
    served.clock.store(START + 700, Ordering::SeqCst);
    assert!(!first.repeated);
    assert_eq!(served.client.post_settlement(&note).unwrap(), Accepted { repeated: true, ..first.clone() });
    assert_eq!(served.client.wallet(&network.payee()).unwrap().pending_nanokvr, 2_100);
}

#[test]
fn a_refusal_says_whether_somebody_can_cure_it() {
    let network = Network::new();
    let served = Served::start(&network);
    let receipt = network.first(1, 100, 200);
    // The hub's clock runs ahead, the delegation is missing: both are mended, then the same note is taken.
    let mut ahead = receipt.clone();
    ahead.to = START + 1_000;
    let error = served.client.post_receipt(&network.sign(&ahead)).unwrap_err();
    assert!(error.is_curable() && !error.is_passing() && error.code() == Some("clock_ahead"), "{error}");
    let mut other = Network::new();
    other.wallet = kvasir_wire::key::SecretKey::from_seed([77; 32]);
    let undelegated = other.sign(&other.first(2, 100, 200));
    let error = served.client.post_receipt(&undelegated).unwrap_err();
    assert!(error.is_curable() && error.code() == Some("unknown_delegation"), "{error}");
    served.client.post_note(&other.delegation()).unwrap();
    served.client.post_receipt(&undelegated).unwrap();
    // Another receipt of the same number cannot be cured.
    served.client.post_receipt(&network.sign(&receipt)).unwrap();
    let error = served.client.post_receipt(&network.sign(&network.first(1, 101, 200))).unwrap_err();
    assert!(!error.is_curable() && error.code() == Some("conflict"), "{error}");
}

#[test]
fn a_connection_that_stays_silent_is_closed() {
    let network = Network::new();
    let limits = ServeLimits { request_time: Duration::from_millis(300), ..ServeLimits::default() };
    let served = Served::start_within(limits, None, &network);
    for beginning in ["", "GET /ready HT", "GET /ready HTTP/1.1\r\nHost: x\r\n"] {
        // Reads to the end: it hangs for ever where the ledger keeps the connection.
        let mut answer = Vec::new();
        let _ = served.half_open(beginning.as_bytes()).read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{beginning:?}");
    }
    // Between two requests too.
    let mut answer = String::new();
    served.half_open(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n").read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // A body that does not come is told so.
    let mut answer = String::new();
    let head = b"POST /v1/notes HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n";
    served.half_open(head).read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("\"timeout\""), "{answer}");
}

#[test]
fn an_honest_client_is_served_while_every_place_is_taken_by_silent_ones() {
    let network = Network::new();
    let limits = ServeLimits { connections: 16, ..ServeLimits::default() };
    let served = Served::start_within(limits, None, &network);
    let body = b"POST /v1/notes HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n";
    let flood = |bytes: &[u8]| (0..40).map(|_| served.half_open(bytes)).collect::<Vec<_>>();
    for beginning in [&b""[..], b"GET /ready HTTP/1.1\r\n", body] {
        let silent = flood(beginning);
        // A connection of its own each time.
        let client = Client::new(&served.url).unwrap();
        assert_eq!(client.ready().unwrap().entries, 4, "{beginning:?}");
        drop(silent);
    }
}

#[test]
fn a_ledger_that_cannot_write_is_not_ready_and_says_why() {
    let network = Network::new();
    let served = Served::start_within(ServeLimits::default(), Some(1), &network);
    assert!(served.client.ready().is_ok(), "nothing has failed yet");
    let mut receipt = network.first(1, 1, 1);
    // What lies free in the file may take a few notes more.
    let refused = (2..2_000).find_map(|number| {
        let sent = served.client.post_receipt(&network.sign(&receipt));
        receipt = receipt.next(counters(number, 1), receipt.to, false).unwrap();
        sent.err()
    });
    assert_eq!(refused.unwrap().code(), Some("disk_full"));
    for _ in 0..2 {
        let (status, body) = served.ask("GET", "/ready", b"");
        let body: ErrorBody = serde_json::from_str(&body).unwrap();
        assert_eq!((status, body.code.as_str()), (503, "disk_full"));
    }
    assert!(served.client.price().is_ok(), "questions are answered");
}

#[test]
fn a_stored_text_with_other_signatures_or_at_another_path_is_refused() {
    let network = Network::new();
    let served = Served::start(&network);
    let note = network.sign(&network.first(1, 100, 200)).to_string();
    assert_eq!(served.ask("POST", "/v1/receipts", note.as_bytes()).0, 200);
    // The last base64 digits of the last signature, changed within what still decodes.
    let mut forged = note.into_bytes();
    let at = forged.len() - 12;
    forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
    let (status, body) = served.ask("POST", "/v1/receipts", &forged);
    assert!(status == 403 && body.contains("bad_signature"), "{body}");
    for note in network.foundation() {
        assert_eq!(served.ask("POST", "/v1/receipts", note.to_string().as_bytes()).0, 400);
        assert_eq!(served.ask("POST", "/v1/notes", note.to_string().as_bytes()).0, 200);
    }
}
