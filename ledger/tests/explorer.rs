//! The pages over HTTP: what they show, what they escape, what they refuse, and that no question is without a bound.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;
#[path = "network/scene.rs"]
mod scene;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvasir_ledger::api::{MAX_PAGE, Side, StatementQuery, exact_kvr};
use kvasir_ledger::log::{Checkpoint, Policy, ProofFile};
use kvasir_ledger::publish::Publisher;
use kvasir_ledger::server::{ServeLimits, listen, serve_log};
use kvasir_ledger::store::{Store, Stretch};
use kvasir_merkle::Hash;
use network::Network;
use scene::{END, HOSTILE, Scene};
use tokio::sync::oneshot;

struct Served {
    url: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Answer {
    status: u16,
    headers: ureq::http::HeaderMap,
    body: String,
}

impl Served {
    fn start(path: &Path) -> Self {
        Self::start_log(path, None)
    }

    fn start_log(path: &Path, log: Option<Publisher>) -> Self {
        let network = Network::new();
        let mut store = Store::open(path, &network.name, network.keys()).unwrap();
        // The service does it as soon as it runs: a page must not depend on who was first.
        store.sweep(END).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
                tell.send(address).unwrap();
                let stop = async {
                    let _ = stopped.await;
                };
                let (limits, clock) = (ServeLimits::default(), Arc::new(|| END));
                serve_log(limits, listener, store, network.name, clock, log, stop).await.unwrap();
            });
        });
        let url = format!("http://{}", told.recv().unwrap());
        Self { url, stop: Some(stop), thread: Some(thread) }
    }

    fn ask(&self, path: &str, accept: &str) -> Answer {
        let config = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0);
        let agent: ureq::Agent = config.max_redirects_will_error(false).build().into();
        let mut response = agent.get(format!("{}{path}", self.url)).header("accept", accept).call().unwrap();
        let headers = response.headers().clone();
        Answer {
            status: response.status().as_u16(),
            headers,
            body: String::from_utf8_lossy(&response.body_mut().read_to_vec().unwrap()).into_owned(),
        }
    }

    fn get(&self, path: &str) -> Answer {
        self.ask(path, "text/html")
    }

    /// The page at `path`, or where it leads.
    fn page(&self, path: &str) -> String {
        let mut answer = self.get(path);
        if answer.status == 303 {
            answer = self.get(answer.header("location"));
        }
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// Where a search leads.
    fn found(&self, asked: &str) -> String {
        let answer = self.get(&format!("/search?q={asked}"));
        assert_eq!(answer.status, 303, "{asked}: {}", answer.body);
        answer.header("location").to_owned()
    }
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn played(folder: &Path) -> Scene {
    let network = Network::new();
    let path = folder.join("ledger.db");
    Store::create(&path, &network.name).unwrap();
    scene::play(&mut Store::open(&path, &network.name, network.keys()).unwrap())
}

fn start() -> (Served, Scene, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let scene = played(folder.path());
    (Served::start(&folder.path().join("ledger.db")), scene, folder)
}

#[test]
fn every_page_is_a_whole_document_that_needs_no_script_and_nothing_from_elsewhere() {
    let (served, scene, _folder) = start();
    let of = &scene.networks[0];
    for path in [
        "/".to_owned(),
        "/receipts".to_owned(),
        "/settlements".to_owned(),
        "/wallets".to_owned(),
        "/entries".to_owned(),
        "/entries?kind=correct".to_owned(),
        "/log".to_owned(),
        format!("/wallet/{}", of.payee()),
        format!("/wallet/{}/moves", of.payee()),
        format!("/account/{}", of.payer()),
        format!("/account/{}/moves", of.payer()),
        format!("/session/{}", scene.conflict.0.terms.session),
        format!("/digest/{}", of.worker.public().digest()),
        format!("/digest/{}?in=receipt.worker", of.worker.public().digest()),
        format!("/receipts?wallet={}", of.payee()),
        format!("/settlements?wallet={}", of.payee()),
        "/entry/0".to_owned(),
        "/entry/20".to_owned(),
        "/entry/999999".to_owned(),
        "/nowhere".to_owned(),
    ] {
        let answer = served.get(&path);
        let missing = path.contains("999999") || path == "/nowhere";
        assert_eq!(answer.status, if missing { 404 } else { 200 }, "{path}: {}", answer.body);
        assert_eq!(answer.header("content-type"), "text/html; charset=utf-8", "{path}");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{path}: {policy}");
        assert!(
            !policy.contains("script-src") && policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer", "{path}");
        let body = &answer.body;
        for part in [
            "<!DOCTYPE html>",
            "<html lang=\"en\">",
            "<meta name=\"viewport\"",
            "<main id=\"content\"",
            "<nav aria-label=",
            "role=\"search\"",
            "<h1",
            "<label",
            "</html>",
        ] {
            assert!(body.contains(part), "{path} lacks {part}");
        }
        for part in
            ["<script", "javascript:", " style=", " onclick", "http://", "https://", "//cdn", "<iframe"]
        {
            assert!(!body.contains(part), "{path} has {part}");
        }
        assert_eq!(body.matches("<h1").count(), 1, "{path}");
        // Every table scrolls in a box of its own that the keyboard reaches.
        assert_eq!(
            body.matches("<table").count(),
            body.matches("<div class=\"scroll\" role=\"region\"").count(),
            "{path}"
        );
    }
    for (path, kind) in [("/style.css", "text/css; charset=utf-8"), ("/icon.svg", "image/svg+xml")] {
        let answer = served.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, kind));
        assert!(!answer.body.contains("url(") && !answer.body.contains("@import"), "{path}");
    }
}

#[test]
fn what_a_stranger_wrote_is_shown_and_never_obeyed() {
    let (served, scene, _folder) = start();
    let reversed = served.page(&format!("/digest/{}", scene.reversed.id()));
    assert!(reversed.contains("Reversed") && reversed.contains("Correction: settlement"), "{reversed}");
    let list = served.page("/entries?kind=correct");
    let entry = list.split("href=\"/entry/").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let page = served.page(&format!("/entry/{entry}"));
    assert!(
        page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(2)&gt;"),
        "{page}"
    );
    assert!(page.contains("\\u{202e}desrever\\u{202c} &amp; &quot;quoted&quot;"), "{page}");
    assert!(!page.contains('\u{202e}') && !page.contains("<img src=x"), "{page}");
    // The note alone is exactly what was signed.
    let note = served.get(&format!("/entry/{entry}/note"));
    assert!(note.body.contains(HOSTILE));
    assert_eq!(note.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(note.header("content-disposition"), format!("attachment; filename=\"entry-{entry}.note\""));
    assert_eq!(note.header("x-content-type-options"), "nosniff");

    let search = served.get("/search?q=%3Cscript%3Ealert(1)%3C/script%3E%E2%80%AE");
    assert_eq!(search.status, 400);
    assert!(search.body.contains("&lt;script&gt;") && !search.body.contains('\u{202e}'), "{}", search.body);
}

#[test]
fn every_digest_is_found_whole_and_by_its_beginning() {
    let (served, scene, folder) = start();
    let network = &scene.networks[0];
    let receipt = &scene.conflict.0;
    let note = network.sign(receipt);
    let store = Store::open(&folder.path().join("ledger.db"), &network.name, network.keys()).unwrap();
    let at = |leaf: Hash| format!("/entry/{}", store.answers().note(&leaf).unwrap().index);
    let entry = at(note.leaf_hash());
    let number = entry.strip_prefix("/entry/").unwrap();
    let reversed = scene.reversed.id().to_string();
    let settled_by = served.get(&format!("/digest/{reversed}")).header("location").to_owned();
    assert!(settled_by.starts_with("/entry/"), "{settled_by}");
    let wallet = format!("/wallet/{}", network.payee());
    let worker = format!("/digest/{}", network.worker.public().digest());
    for (asked, place) in [
        (number.to_owned(), &entry),
        (receipt.id().to_string(), &entry),
        (receipt.id().to_string()[..12].to_owned(), &entry),
        (note.leaf_hash().to_string(), &entry),
        (note.leaf_hash().to_string().to_uppercase(), &entry),
        (network.price().leaf_hash().to_string(), &at(network.price().leaf_hash())),
        (receipt.terms.session.to_string(), &format!("/session/{}", receipt.terms.session)),
        (network.payee().to_string(), &wallet),
        (network.payee().to_string()[..8].to_owned(), &wallet),
        (network.wallet.public().to_string(), &wallet),
        (network.worker.public().digest().to_string(), &worker),
        (network.worker.public().to_string(), &worker),
        (network.payer().to_string(), &format!("/account/{}", network.payer())),
        (network.hub.public().digest().to_string(), &format!("/digest/{}", network.hub.public().digest())),
        (receipt.terms.plugin.to_string(), &format!("/digest/{}", receipt.terms.plugin)),
        (receipt.terms.model.to_string(), &format!("/digest/{}", receipt.terms.model)),
        (receipt.counters.work.to_string(), &format!("/digest/{}", receipt.counters.work)),
    ] {
        assert_eq!(&served.found(&asked), place, "{asked}");
        served.page(place);
    }
    let found = served.found(&reversed);
    assert!(served.page(&found).contains("Reversed"), "{found}");
    // Nothing, too little, too much.
    for (asked, status) in [
        ("ab".repeat(32), 404),
        ("99999999".to_owned(), 404),
        ("abcdef0".to_owned(), 400),
        ("%20".to_owned(), 400),
        ("x".repeat(201), 400),
        ("a".repeat(65), 400),
        ("%F0%9F%A6%84".to_owned(), 400),
    ] {
        assert_eq!(served.get(&format!("/search?q={asked}")).status, status, "{asked}");
    }
}

#[test]
fn an_entry_shows_its_note_its_place_and_who_signed() {
    let (served, scene, _folder) = start();
    let page = served.page(&format!("/digest/{}", scene.conflict.0.id()));
    let note = scene.networks[0].sign(&scene.conflict.0);
    assert!(page.contains(&note.to_string()), "the note is shown as it is");
    for part in [
        note.leaf_hash().to_string(),
        scene.conflict.0.id().to_string(),
        "atlas/worker".to_owned(),
        "Verified".to_owned(),
        "/note\"".to_owned(),
        // Another receipt says something else.
        "Receipts that contradict this one".to_owned(),
        scene.conflict.1.id().to_string(),
        "Settled".to_owned(),
    ] {
        assert!(page.contains(&part), "lacks {part}");
    }
    assert!(page.contains("3 of 3 signatures were verified again"), "the hub's key is an entry: {page}");
    // A finding, what was done about it, and what the worker says to that.
    for (kind, parts) in [
        ("audit", ["1 of 1 signatures", "convicted", "Penalty: evidence"]),
        ("penalty", ["1 of 1 signatures", "three engines", "Appeal: penalty"]),
        ("appeal", ["1 of 1 signatures", "&lt;script&gt;", "\\u{202e}"]),
        ("price", ["1 of 1 signatures", "nanokvr-per-byte", "Grant: price"]),
        ("key", ["1 of 1 signatures", "believed", "settler"]),
    ] {
        let list = served.page(&format!("/entries?kind={kind}"));
        let entry = list.split("href=\"/entry/").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        let page = served.page(&format!("/entry/{entry}"));
        for part in parts {
            assert!(page.contains(part), "{kind} lacks {part}: {page}");
        }
    }
    let worker = served.page(&format!("/digest/{}", scene.networks[0].worker.public().digest()));
    for part in ["Penalty: worker", "Appeal: worker", "Receipt: worker"] {
        assert!(worker.contains(part), "lacks {part}");
    }
    // A delegation is signed by the wallet, whose key stands in it.
    let delegation = served.page("/entries?kind=delegate");
    let entry = delegation.split("href=\"/entry/").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let page = served.page(&format!("/entry/{entry}"));
    assert!(page.contains("1 of 1 signatures were verified again"), "{page}");
}

#[test]
fn the_log_shows_what_is_published_and_gives_proofs_that_verify() {
    let folder = tempfile::tempdir().unwrap();
    let scene = played(folder.path());
    let path = folder.path().join("ledger.db");
    let store = Store::open(&path, &Network::new().name, Network::new().keys()).unwrap();
    let entries = store.answers().head().unwrap().0;
    let served = Served::start(&path);
    assert!(served.page("/log").contains("publishes no log yet"));
    assert_eq!(served.get("/entry/7/proof").status, 404);

    scene::publish(&store, folder.path(), entries - 3);
    let page = served.page("/log");
    for part in [
        "kvasir.example/atlas/0badcafe",
        "the log's own",
        "witness.example/first",
        "By a key that this ledger's settings do not name",
        "<span class=\"mark\">Yes</span>",
        "<dd>3</dd>",
    ] {
        assert!(page.contains(part), "lacks {part}: {page}");
    }
    let vkey = std::fs::read_to_string(folder.path().join("log.vkey")).unwrap();
    let policy = Policy::of_log(vkey.trim().parse().unwrap());
    for index in [0, 7, entries - 4] {
        let answer = served.get(&format!("/entry/{index}/proof"));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let disposition = format!("attachment; filename=\"entry-{index}.tlog-proof\"");
        assert_eq!(answer.header("content-disposition"), disposition);
        let proof = ProofFile::parse(answer.body.as_bytes()).unwrap();
        let note = served.get(&format!("/entry/{index}/note")).body;
        assert_eq!((proof.index, proof.extra.as_deref()), (index, Some(note.as_bytes())));
        proof.verify(note.as_bytes(), &policy).unwrap();
        assert!(served.page(&format!("/entry/{index}")).contains(&format!("/entry/{index}/proof")));
    }
    let unpublished = format!("/entry/{}", entries - 1);
    assert_eq!(served.get(&format!("{unpublished}/proof")).status, 404);
    assert!(served.page(&unpublished).contains("Not published yet"));
    // A published log that is not this ledger's says so, and no false proof is given out.
    let other = scene.networks[0].price();
    let key = kvasir_wire::key::SecretKey::from_seed([90; 32]);
    let origin = "kvasir.example/atlas/0badcafe".parse().unwrap();
    let false_head = Checkpoint { origin, size: entries - 3, root: other.leaf_hash() }.sign(&key).unwrap();
    std::fs::write(folder.path().join("log/checkpoint"), false_head.note().to_string()).unwrap();
    assert_eq!(served.get("/entry/7/proof").status, 500);
    assert!(served.page("/log").contains("<span class=\"mark\">No</span>"));
    std::fs::write(folder.path().join("log/checkpoint"), "not a checkpoint").unwrap();
    assert_eq!(served.get("/log").status, 500);
    assert!(served.page("/entry/7").contains("cannot be read now"));
}

#[test]
fn a_file_of_the_log_that_cannot_be_read_is_not_said_to_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    played(folder.path());
    let mut publisher = scene::publisher(folder.path());
    publisher.publish().unwrap();
    let served = Served::start_log(&folder.path().join("ledger.db"), Some(publisher));
    let entries = folder.path().join("log/tile/entries/000.p");
    let partial = std::fs::read_dir(&entries).unwrap().next().unwrap().unwrap().file_name();
    let path = format!("/tile/entries/000.p/{}", partial.to_str().unwrap());
    assert_eq!(served.get(&path).status, 200);
    for folder in ["/tile/0", "/tile/entries", "/tile/entries/000.p", "/tile/entries/000.p/"] {
        assert_eq!(served.get(folder).status, 404, "{folder}");
    }
    // A folder in its place cannot be read by anybody, root included.
    std::fs::remove_file(entries.join(&partial)).unwrap();
    assert_eq!(served.get(&path).status, 404);
    std::fs::create_dir(entries.join(&partial)).unwrap();
    assert_eq!(served.get(&path).status, 500);
}

#[test]
fn a_ledger_that_publishes_shows_its_witnesses_and_who_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let scene = played(folder.path());
    let mut publisher = scene::publisher(folder.path());
    publisher.publish().unwrap();
    let vkey = publisher.verifier();
    let served = Served::start_log(&folder.path().join("ledger.db"), Some(publisher));
    let page = served.page("/log");
    for part in [
        "the log's own",
        " witness, cosigned at <time datetime=",
        "witness.example/away",
        "has not cosigned it yet",
        "<span class=\"mark\">Yes</span>",
        &vkey.to_string(),
        "href=\"/checkpoint\"",
    ] {
        assert!(page.contains(part), "lacks {part}: {page}");
    }
    let place = served.found(&scene.conflict.0.id().to_string());
    let proof = ProofFile::parse(served.get(&format!("{place}/proof")).body.as_bytes()).unwrap();
    let note = served.get(&format!("{place}/note")).body;
    proof.verify(note.as_bytes(), &Policy::of_log(vkey)).unwrap();
    assert_eq!(proof.checkpoint.signatures().len(), 2, "the log and one witness");
}

#[test]
fn a_wallet_has_the_sums_that_the_ledger_has() {
    let (served, scene, folder) = start();
    let network = &scene.networks[0];
    let store = Store::open(&folder.path().join("ledger.db"), &network.name, network.keys()).unwrap();
    for network in &scene.networks {
        let page = served.page(&format!("/wallet/{}", network.payee()));
        let wallet = store.answers().wallet(network.payee()).unwrap();
        let grouped = |number: i64| {
            let digits = number.to_string();
            let mut shown = String::new();
            for (at, digit) in digits.chars().enumerate() {
                if at > 0 && (digits.len() - at).is_multiple_of(3) {
                    shown.push(',');
                }
                shown.push(digit);
            }
            shown
        };
        for (name, amount) in
            [("Posted, final", wallet.posted_nanokvr), ("Pending, can be reversed", wallet.pending_nanokvr)]
        {
            let tile = page.split(name).nth(1).and_then(|rest| rest.split("</dd>").next()).unwrap();
            assert!(tile.contains(&format!(">{} nanoKVR<", grouped(amount))), "{name} {amount}: {tile}");
        }
        let tile = page.split("Not settled yet").nth(1).and_then(|rest| rest.split("</dd>").next()).unwrap();
        assert!(tile.contains(&format!("<dd>{} <small", grouped(wallet.unsettled_bytes as i64))), "{tile}");
        assert!(
            page.contains("<svg")
                && page.contains("Credit over time")
                && page.contains("The same as a table")
        );
        let account = store.answers().account(network.payer()).unwrap();
        let page = served.page(&format!("/account/{}", network.payer()));
        assert!(page.contains(&format!(">{} nanoKVR<", grouped(account.available_nanokvr))), "{page}");
        assert!(page.contains(&format!(">{} nanoKVR<", grouped(account.funded_nanokvr))), "{page}");
    }
    let totals = served.page("/");
    assert!(totals.contains("Bytes a day") && totals.contains(">4</a>"), "four wallets");
}

#[test]
fn lists_have_pages_that_meet_and_every_parameter_is_bounded() {
    let (served, scene, folder) = start();
    let network = &scene.networks[0];
    let store = Store::open(&folder.path().join("ledger.db"), &network.name, network.keys()).unwrap();
    let stored: Vec<u64> = store
        .answers()
        .entries_page(Some("receipt"), Stretch::Latest, 1_000)
        .unwrap()
        .iter()
        .map(|entry| entry.number)
        .collect();
    assert!(stored.len() > 100, "{}", stored.len());
    let numbers = |page: &str| -> Vec<u64> {
        let rows = page.split("<th class=\"number\" scope=\"row\"><a href=\"/entry/").skip(1);
        rows.map(|row| row.split('"').next().unwrap().parse().unwrap()).collect()
    };
    let (mut listed, mut path) = (Vec::new(), "/receipts".to_owned());
    loop {
        let page = served.page(&path);
        let rows = numbers(&page);
        assert!(rows.len() <= 50, "{path}: {}", rows.len());
        listed.extend(rows);
        match page.split("rel=\"next\" href=\"").nth(1) {
            Some(next) => path = next.split('"').next().unwrap().replace("&amp;", "&"),
            None => break,
        }
    }
    assert_eq!(listed, stored);
    // And back.
    let page = served.page(&path);
    let back = page.split("rel=\"prev\" href=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(
        numbers(&served.page(&back.replace("&amp;", "&"))),
        stored[stored.len() - 50 - numbers(&page).len()..stored.len() - numbers(&page).len()]
    );

    let digest = network.payee();
    for path in [
        "/receipts?before=-1".to_owned(),
        "/receipts?before=99999999999999999999999".to_owned(),
        "/receipts?before=1&after=1".to_owned(),
        "/receipts?limit=1000000".to_owned(),
        "/receipts?wallet=abc".to_owned(),
        "/wallets?page=0".to_owned(),
        "/wallets?page=101".to_owned(),
        "/wallets?page=4294967296".to_owned(),
        "/entries?kind=%3Cb%3E".to_owned(),
        format!("/entries?kind={}", "a".repeat(33)),
        "/entry/-1".to_owned(),
        "/entry/01".to_owned(),
        "/entry/18446744073709551616".to_owned(),
        "/entry/abc/note".to_owned(),
        "/wallet/abc".to_owned(),
        format!("/wallet/{}", digest.to_string().to_uppercase()),
        format!("/digest/{digest}?in=receipt"),
        format!("/digest/{digest}?in=receipt.%27"),
        "/session/..%2f..".to_owned(),
        "/search?q=1&x=2".to_owned(),
    ] {
        assert_eq!(served.get(&path).status, 400, "{path}");
    }
    for path in [
        format!("/wallet/{}", "0".repeat(64)),
        format!("/account/{}", "0".repeat(64)),
        format!("/session/{}", "0".repeat(64)),
        format!("/digest/{}", "0".repeat(64)),
        "/entry/18446744073709551615".to_owned(),
        "/entry/9223372036854775808/note".to_owned(),
    ] {
        assert_eq!(served.get(&path).status, 404, "{path}");
    }
    for path in
        ["/receipts?before=18446744073709551615", "/receipts?after=18446744073709551615", "/wallets?page=100"]
    {
        assert_eq!(served.get(path).status, 200, "{path}");
    }
    // The API keeps its own words for its own callers.
    for (path, accept) in
        [("/nowhere", "application/json"), ("/v1/nowhere", "text/html"), ("/nowhere", "*/*")]
    {
        let answer = served.ask(path, accept);
        assert_eq!(answer.status, 404);
        assert!(answer.body.contains("no_such_path"), "{path} {accept}: {}", answer.body);
    }
}

#[test]
fn the_index_is_kept_made_anew_and_never_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let scene = played(folder.path());
    let (path, index) = (folder.path().join("ledger.db"), folder.path().join("explorer.db"));
    let wallet = format!("/wallet/{}", scene.networks[0].payee());
    let first = {
        let served = Served::start(&path);
        assert!(!index.exists(), "nobody has looked yet");
        served.page(&wallet)
    };
    assert!(index.exists());
    assert_eq!(Served::start(&path).page(&wallet), first, "kept over a restart");
    // Another ledger's index, here one of the same network with other entries, is noticed and made anew.
    let other = tempfile::tempdir().unwrap();
    let network = Network::new();
    let other_path = other.path().join("ledger.db");
    Store::create(&other_path, &network.name).unwrap();
    let mut store = Store::open(&other_path, &network.name, network.keys()).unwrap();
    network.prepare(&mut store);
    drop(store);
    for ending in ["", "-wal", "-shm"] {
        let from = folder.path().join(format!("explorer.db{ending}"));
        if from.exists() {
            std::fs::copy(from, other.path().join(format!("explorer.db{ending}"))).unwrap();
        }
    }
    let served = Served::start(&other_path);
    let mut answer = served.get(&wallet);
    let since = Instant::now();
    while answer.status == 200 && since.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
        answer = served.get(&wallet);
    }
    assert_eq!(answer.status, 404, "{}", answer.body);
    drop(served);
    // What is no index is left alone, and the pages are there all the same.
    for name in ["explorer.db", "explorer.db-wal", "explorer.db-shm"] {
        let _ = std::fs::remove_file(folder.path().join(name));
    }
    std::fs::write(&index, "somebody's notes about explorers, not a database at all").unwrap();
    assert_eq!(Served::start(&path).page(&wallet), first);
    assert!(std::fs::read_to_string(&index).unwrap().starts_with("somebody's notes"));
}

/// The page reads its own index, the API the postings: both must say the same.
#[test]
fn the_statement_on_the_page_is_the_one_of_the_api() {
    let folder = tempfile::tempdir().unwrap();
    let scene = played(folder.path());
    let served = Served::start(&folder.path().join("ledger.db"));
    let client = kvasir_ledger::client::Client::new(&served.url).unwrap();
    let asked = StatementQuery { limit: Some(MAX_PAGE), ..StatementQuery::default() };
    // Answered by the writer, after it has posted what is due at the scene's end.
    client.ready().unwrap();
    for network in &scene.networks {
        for (side, page, owner) in
            [(Side::Payee, "wallet", network.payee().0), (Side::Payer, "account", network.payer().0)]
        {
            let statement = client.statement(side, &Hash(owner), &asked).unwrap();
            let page = served.page(&format!("/{page}/{}/moves", Hash(owner)));
            assert_eq!(page.matches("<tr>").count() - 1, statement.postings.len().min(50));
            let mut rest = page.as_str();
            for line in statement.postings.iter().rev().take(50) {
                let shown = |nanokvr| exact_kvr(nanokvr).replace('-', "−");
                let change = if line.nanokvr == 0 { "–".to_owned() } else { shown(line.nanokvr) };
                let row = format!(
                    "<td class=\"number\">{change}</td><td class=\"number\">{}</td>",
                    shown(line.balance_nanokvr)
                );
                let at = rest.find(&row).unwrap_or_else(|| panic!("{row} is not in {rest}"));
                rest = &rest[at + row.len()..];
            }
        }
    }
}

#[test]
fn a_ledger_without_entries_has_pages_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    Store::create(&path, &Network::new().name).unwrap();
    let served = Served::start(&path);
    for page in ["/", "/receipts", "/settlements", "/wallets", "/entries", "/log"] {
        served.page(page);
    }
    assert_eq!(served.get("/entry/0").status, 404);
}

#[test]
fn bytes_that_do_not_fit_into_one_number_keep_no_page_from_being_shown() {
    let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("ledger.db");
    Store::create(&path, &network.name).unwrap();
    let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
    network.prepare(&mut store);
    for session in 1..=3u8 {
        let grant = network.grant(i64::MAX as u64 - u64::from(session));
        store.accept_note(grant.to_string().as_bytes(), network::START).unwrap();
        let mut receipt = network.first(session, 1 << 62, 0);
        receipt.terms.grant = grant.leaf_hash();
        network::post(&mut store, &network.sign(&receipt)).unwrap();
    }
    drop(store);
    let served = Served::start(&path);
    assert!(served.page("/").contains("9,223,372,036,854,775,807"));
    assert!(served.page("/wallets").contains("9,223,372,036,854,775,807"));
    served.page("/receipts");
}
