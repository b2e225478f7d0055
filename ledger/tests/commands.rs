//! The program `kvasir-ledger` as an operator uses it.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use kvasir_ledger::client::Client;
use kvasir_ledger::server::system_clock;
use network::Network;
use serde_json::Value;

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir-ledger"));
    command.env_remove("KVASIR_LOG");
    for name in ["CONFIG", "STORE", "NETWORK", "HUBS", "TREASURY", "SETTLERS", "LISTEN", "URL"] {
        command.env_remove(format!("KVASIR_LEDGER_{name}"));
    }
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    program().current_dir(folder).args(arguments).output().unwrap()
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let output = run(folder, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {output:?}"))
}

fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn serve(folder: &Path, arguments: &[&str]) -> (Child, String) {
    let mut child = program()
        .current_dir(folder)
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}"));
    (child, format!("http://{address}"))
}

#[test]
fn from_nothing_to_a_credited_wallet() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut network = Network::new();
    let mut public = Vec::new();
    for (name, key) in [
        ("hub", &mut network.hub),
        ("worker", &mut network.worker),
        ("backbone", &mut network.backbone),
        ("wallet", &mut network.wallet),
        ("treasury", &mut network.treasury),
        ("settler", &mut network.settler),
    ] {
        let file = format!("{name}.key");
        let made = json(folder, &["key", &file]);
        *key = kvasir_ledger::config::read_secret(&folder.join(&file)).unwrap();
        assert_eq!(made["public"], key.public().to_string());
        public.push(made["public"].as_str().unwrap().to_owned());
        assert!(complaint(&run(folder, &["key", &file])).contains("cannot be made"));
    }
    let [hub, worker, backbone, wallet, treasury, settler] = public.try_into().unwrap();
    json(
        folder,
        &["init", ".", "--network", "atlas", "--hub", &hub, "--treasury", &treasury, "--settler", &settler],
    );
    let again = run(folder, &["init", ".", "--network", "atlas"]);
    assert!(complaint(&again).contains("exists already"));

    let (mut child, url) = serve(folder, &[]);
    let at = |command: &[&str]| json(folder, &[command, &["--ledger", &url]].concat());
    at(&["price", "--treasury-key", "treasury.key", "--nanokvr-per-byte", "7"]);
    let fund = ["fund", "--treasury-key", "treasury.key", "--account", &backbone, "--kvr", "100"];
    assert_eq!(at(&fund)["kind"], "fund");
    assert_eq!(at(&["delegate", "--wallet-key", "wallet.key", "--worker", &worker])["index"], 6);
    let grant = at(&["grant", "--backbone-key", "backbone.key", "--hub", &hub, "--bytes", "1000000"]);
    let account = at(&["account", &backbone]);
    assert_eq!(
        (&account["available_nanokvr"], &account["kvr"]),
        (&100_000_000_000i64.into(), &"100.00000 KVR".into())
    );

    let client = Client::new(&url).unwrap();
    let now = system_clock()();
    let mut receipt = network.first(1, 100, 200);
    receipt.terms.grant = grant["leaf"].as_str().unwrap().parse().unwrap();
    receipt.terms.price = client.price().unwrap().leaf.parse().unwrap();
    (receipt.terms.from, receipt.to) = (now, now);
    client.post_receipt(&network.sign(&receipt)).unwrap();
    client.settle_once(&network.name, &network.settler, now).unwrap();
    assert_eq!(at(&["wallet", &wallet])["pending_nanokvr"], 2_100);
    assert_eq!(at(&["receipts"])["receipts"].as_array().unwrap().len(), 1);

    // In words, and on the file while it is served.
    let words = run(folder, &["wallet", &wallet, "--ledger", &url]);
    assert!(String::from_utf8_lossy(&words.stdout).contains("0.00000 KVR  (2100 nanoKVR)"), "{words:?}");
    let verified = json(folder, &["verify"]);
    assert_eq!((&verified["ok"], &verified["entries"]), (&true.into(), &10.into()));
    let exported = json(folder, &["export", "receipts"]);
    assert_eq!((&exported["rows"][0]["up"], &exported["rows"][0]["down"]), (&100.into(), &200.into()));
    assert_eq!(exported["rows"][0]["session"], "01".repeat(32));
    let csv = String::from_utf8(run(folder, &["export", "postings"]).stdout).unwrap();
    assert_eq!(csv.lines().next(), Some("number,cause,step,debit_kind,debit,credit_kind,credit,nanokvr,at"));
    assert_eq!(csv.lines().count(), 3);

    let stopped = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(stopped.success() && child.wait().unwrap().success());

    // Somebody changes the file.
    let file = rusqlite::Connection::open(folder.join("ledger.db")).unwrap();
    file.execute_batch(
        "DROP TRIGGER no_UPDATE_of_postings; UPDATE postings SET nanokvr = 1 WHERE step = 'settle'",
    )
    .unwrap();
    let found = run(folder, &["verify", "--json"]);
    assert!(complaint(&found).contains("entry 9 is wrong"));
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!((&found["ok"], &found["first_bad_index"]), (&false.into(), &9.into()));
}

#[test]
fn an_init_that_was_cut_off_is_finished_by_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let init = ["init", "l", "--network", "atlas"];
    // The settings cannot be written: nothing is made, and nothing stands in the way of the next try.
    fs::create_dir_all(folder.join("l/ledger.toml.partial")).unwrap();
    assert!(complaint(&run(folder, &init)).contains("nothing was made"));
    assert!(!folder.join("l/ledger.db").exists());
    fs::remove_dir(folder.join("l/ledger.toml.partial")).unwrap();
    json(folder, &init);

    // The database is there, the settings are not: as after a power failure between the two.
    fs::remove_file(folder.join("l/ledger.toml")).unwrap();
    assert!(complaint(&run(folder, &["init", "l", "--network", "other"])).contains("keeps network atlas"));
    json(folder, &init);
    assert_eq!(json(folder, &["verify", "--config", "l/ledger.toml"])["entries"], 0);

    // A ledger with notes in it is never taken for an unfinished one.
    let network = Network::new();
    let path = folder.join("l/ledger.db");
    let mut store = kvasir_ledger::store::Store::open(&path, &network.name, network.keys()).unwrap();
    network.prepare(&mut store);
    drop(store);
    fs::remove_file(folder.join("l/ledger.toml")).unwrap();
    assert!(complaint(&run(folder, &init)).contains("holds 4 notes"));
}

#[test]
fn a_note_that_was_signed_elsewhere_is_submitted_from_a_file_or_standard_input() {
    use std::io::Write as _;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let treasury = json(folder, &["key", "treasury.key"])["public"].as_str().unwrap().to_owned();
    json(folder, &["key", "wallet.key"]);
    let hub = Network::new().hub.public().to_string();
    json(folder, &["init", ".", "--network", "atlas", "--treasury", &treasury, "--hub", &hub]);
    let (mut child, url) = serve(folder, &[]);
    let worker = Network::new().worker.public().to_string();
    let print = ["delegate", "--wallet-key", "wallet.key", "--worker", &worker, "--print-note"];
    let note = run(folder, &print);
    assert!(note.status.success(), "{note:?}");
    fs::write(folder.join("delegation.note"), &note.stdout).unwrap();
    let stored = json(folder, &["submit", "delegation.note", "--ledger", &url]);
    assert_eq!((&stored["kind"], &stored["repeated"]), (&"delegate".into(), &false.into()));

    let mut submit = program()
        .current_dir(folder)
        .args(["submit", "-", "--ledger", &url, "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    submit.stdin.take().unwrap().write_all(&note.stdout).unwrap();
    let again: Value = serde_json::from_slice(&submit.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!((&again["index"], &again["repeated"]), (&stored["index"], &true.into()));

    // A receipt goes to the receipts: this ledger has no such grant, and says so.
    let network = Network::new();
    fs::write(folder.join("receipt.note"), network.sign(&network.first(1, 1, 1)).to_string()).unwrap();
    let text = complaint(&run(folder, &["submit", "receipt.note", "--ledger", &url]));
    assert!(text.contains("unknown_grant"), "{text}");
    fs::write(folder.join("no.note"), "half a note").unwrap();
    let text = complaint(&run(folder, &["submit", "no.note", "--ledger", &url]));
    assert!(text.contains("no.note is not a signed note"), "{text}");
    fs::write(folder.join("long.note"), vec![b'a'; kvasir_wire::limits::MAX_NOTE_BYTES + 1]).unwrap();
    let text = complaint(&run(folder, &["submit", "long.note", "--ledger", &url]));
    assert!(text.contains("longer than"), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_worker_is_penalised_in_public_and_answers_in_public() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let public = |name: &str| json(folder, &["key", name])["public"].as_str().unwrap().to_owned();
    let (treasury, worker) = (public("treasury.key"), public("worker.key"));
    public("wallet.key");
    json(folder, &["init", ".", "--network", "atlas", "--treasury", &treasury]);
    let (mut child, url) = serve(folder, &[]);
    let at = |command: &[&str]| json(folder, &[command, &["--ledger", &url]].concat());
    let refused = |command: &[&str]| complaint(&run(folder, &[command, &["--ledger", &url]].concat()));
    let finding = at(&["delegate", "--wallet-key", "wallet.key", "--worker", &worker]);
    let finding = finding["leaf"].as_str().unwrap();
    let penalty = ["penalty", "--treasury-key", "treasury.key", "--worker", &worker, "--reason", "a test"];
    let watched = [&penalty[..], &["--measure", "watched", "--evidence", finding]].concat();
    let stored = at(&watched);
    assert_eq!(stored["kind"], "penalty");
    let note = stored["note"].as_str().unwrap();
    assert!(note.contains("\nmeasure watched\nreason a test\n"), "{note}");
    let printed = run(folder, &[&watched[..], &["--print-note"]].concat());
    assert!(printed.stdout.starts_with(b"kvasir.example/penalty@v1\nnetwork atlas\n"), "{printed:?}");
    // What it rests on has to be here, and the measure is one of three.
    let nothing = "ab".repeat(32);
    let text = refused(&[&penalty[..], &["--measure", "excluded", "--evidence", &nothing]].concat());
    assert!(text.contains("unknown_evidence"), "{text}");
    let output = run(folder, &[&penalty[..], &["--measure", "banned", "--evidence", finding]].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("excluded, watched or lifted"), "{output:?}");

    let leaf = stored["leaf"].as_str().unwrap();
    let appeal = ["appeal", "--penalty", leaf, "--reason", "not me"];
    assert_eq!(at(&[&appeal[..], &["--worker-key", "worker.key"]].concat())["kind"], "appeal");
    // Nobody answers for another.
    let text = refused(&[&appeal[..], &["--worker-key", "wallet.key"]].concat());
    assert!(text.contains("unknown_penalty"), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_log_is_set_by_one_variable_and_a_bad_filter_is_said() {
    let folder = tempfile::tempdir().unwrap();
    json(folder.path(), &["init", ".", "--network", "atlas"]);
    let output =
        program().current_dir(folder.path()).arg("serve").env("KVASIR_LOG", "a=b=c").output().unwrap();
    assert!(complaint(&output).contains("KVASIR_LOG"), "{output:?}");
}

#[test]
fn flags_win_over_environment_and_environment_over_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for network in ["file", "environment", "flag"] {
        json(folder, &["init", network, "--network", network]);
    }
    let config = folder.join("file/ledger.toml");
    let entries = |command: &mut Command| {
        let output = command.current_dir(folder).args(["verify", "--json"]).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let store = |name: &str| folder.join(name).join("ledger.db");
    let file = || {
        let mut command = program();
        command.env("KVASIR_LEDGER_CONFIG", &config);
        command
    };
    assert!(entries(&mut file()).0);
    let environment = || {
        let mut command = file();
        command.env("KVASIR_LEDGER_STORE", store("environment")).env("KVASIR_LEDGER_NETWORK", "environment");
        command
    };
    assert!(entries(&mut environment()).0);
    let mut half = file();
    half.env("KVASIR_LEDGER_STORE", store("environment"));
    assert!(entries(&mut half).1.contains("keeps network environment, not file"));
    let output = environment()
        .current_dir(folder)
        .args(["verify", "--network", "flag", "--store"])
        .arg(store("flag"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(complaint(&run(folder, &["serve"])).contains("--store"));
    fs::write(folder.join("ledger.toml"), "network = \"atlas\"\nstoer = \"x\"\n").unwrap();
    let text = complaint(&run(folder, &["serve"]));
    assert!(text.contains("ledger.toml") && text.contains("stoer"), "{text}");
    fs::write(folder.join("ledger.toml"), "network = \"atlas\"\nstore = \"typo.db\"\n").unwrap();
    let text = complaint(&run(folder, &["serve"]));
    assert!(text.contains("typo.db") && text.contains("init"), "{text}");
    fs::write(folder.join("ledger.toml"), "network = \"atlas\"\nhubs = [\"abc\"]\nstore = \"x\"\n").unwrap();
    let text = complaint(&run(folder, &["serve"]));
    assert!(text.contains("hubs: `abc`") && text.contains("ed25519:"), "{text}");

    // A key that others can read, and one that is none.
    json(folder, &["key", "treasury.key"]);
    fs::write(folder.join("ledger.toml"), "network = \"atlas\"\n").unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(folder.join("treasury.key")).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(folder.join("treasury.key"), fs::Permissions::from_mode(0o640)).unwrap();
        let text = complaint(&run(folder, &["price", "--treasury-key", "treasury.key"]));
        assert!(text.contains("chmod 600"), "{text}");
        fs::set_permissions(folder.join("treasury.key"), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let nobody = ["--ledger", "http://127.0.0.1:1"];
    let account = "ab".repeat(32);
    let fund = ["fund", "--treasury-key", "treasury.key", "--account", &account, "--kvr", "1"];
    let text = complaint(&run(folder, &[&fund[..], &nobody].concat()));
    assert!(text.contains("does not answer") && text.contains("--nonce"), "{text}");
    let usage = run(folder, &["fund", "--treasury-key", "treasury.key", "--account", &account]);
    assert_eq!(usage.status.code(), Some(2));
    let amount = ["fund", "--treasury-key", "treasury.key", "--account", &account, "--kvr", "1e3"];
    let usage = |arguments: &[&str], words: &str| {
        let output = run(folder, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(words), "{said}");
    };
    usage(&amount, "no amount in KVR");
    usage(&[&fund[..], &["--at", "9223372036854775808"]].concat(), "--at");
    let correct =
        ["correct", "--treasury-key", "treasury.key", "--settlement", &account, "--reason", "two\nlines"];
    usage(&correct, "one line");
    // A folder in a key's place.
    let text = complaint(&run(folder, &["price", "--treasury-key", ".", "--network", "atlas"]));
    assert!(text.contains("not a regular file") && !text.contains("chmod"), "{text}");
}

#[test]
fn completions_and_examples() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = run(folder.path(), &["completions", shell]);
        assert!(script.status.success() && String::from_utf8_lossy(&script.stdout).contains("kvasir-ledger"));
    }
    let help = run(folder.path(), &["fund", "--help"]);
    assert!(String::from_utf8_lossy(&help.stdout).contains("Example"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_or_closed_standard_output_is_said_or_ends_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    json(folder, &["key", "treasury.key"]);
    let price = ["price", "--treasury-key", "treasury.key", "--network", "atlas", "--print-note"];
    for arguments in [&["completions", "bash"][..], &price, &["key", "new.key"]] {
        let _ = fs::remove_file(folder.join("new.key"));
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = program().current_dir(folder).args(arguments).stdout(full).output().unwrap();
        assert!(complaint(&output).contains("standard output cannot be written"), "{output:?}");
        let _ = fs::remove_file(folder.join("new.key"));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = program().current_dir(folder).args(arguments).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn paths_that_are_no_text_are_taken() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"odd-\xff");
    let run = |first: &str, rest: &[&str]| {
        program().current_dir(&folder).arg(first).arg(odd).args(rest).arg("--json").output().unwrap()
    };
    for output in [run("key", &[]), {
        fs::remove_file(folder.path().join(odd)).unwrap();
        run("init", &["--network", "atlas"])
    }] {
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_no_settings_and_no_keys() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(Command::new("mkfifo").args(["-m", "600"]).arg(folder.join("pipe")).status().unwrap().success());
    for path in ["pipe", "/dev/zero"] {
        // It hangs for ever where the pipe is opened.
        let output = run(folder, &["verify", "--config", path]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(3) && text.contains("not a regular file"), "{text}");
    }
    for arguments in [&["price", "--treasury-key", "pipe", "--network", "atlas"][..], &["submit", "pipe"]] {
        let text = complaint(&run(folder, arguments));
        assert!(text.contains("not a regular file"), "{text}");
    }
}

#[test]
fn a_refused_funding_is_not_called_open_and_nothing_can_be_forged_into_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let treasury = json(folder, &["key", "treasury.key"])["public"].as_str().unwrap().to_owned();
    json(folder, &["key", "other.key"]);
    let twice = ["init", "twice", "--network", "atlas", "--treasury", &treasury, "--hub", &treasury];
    assert!(complaint(&run(folder, &twice)).contains("each role needs a key of its own"));
    json(folder, &["init", ".", "--network", "atlas", "--treasury", &treasury]);
    let said = complaint(&run(folder, &["serve", "--hub", &treasury]));
    assert!(said.contains("each role needs a key of its own"), "{said}");
    let log = fs::File::create(folder.join("serve.log")).unwrap();
    let mut child = program()
        .current_dir(folder)
        .args(["serve", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    let account = "ab".repeat(32);
    let url = format!("http://{address}");
    let fund = ["fund", "--treasury-key", "other.key", "--account", &account, "--kvr", "1", "--ledger", &url];
    let text = complaint(&run(folder, &fund));
    assert!(text.contains("unknown_signer") && !text.contains("is open"), "{text}");

    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    let head = "GET /v1/wallets/%1b%5b2J%0aFAKE HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.read_to_string(&mut String::new()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let log = fs::read_to_string(folder.join("serve.log")).unwrap();
    assert!(log.contains("FAKE") && !log.contains("\nFAKE") && !log.contains('\u{1b}'), "{log:?}");
}

#[test]
fn more_witnesses_than_a_head_has_lines_for_are_refused() {
    use kvasir_ledger::config::MAX_WITNESSES;
    use kvasir_ledger::log::CosignerKey;
    use kvasir_wire::key::SecretKey;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    json(folder, &["init", ".", "--network", "atlas"]);
    let settings = fs::read_to_string(folder.join("ledger.toml")).unwrap();
    let settings = settings.replace("witness = []\n", "");
    let witnesses = |count: usize| {
        let table = |number| {
            let key = SecretKey::from_seed([u8::try_from(number).unwrap(); 32]).public();
            let vkey = CosignerKey::new(format!("w{number}.example").parse().unwrap(), key);
            format!("\n[[witness]]\nurl = \"http://127.0.0.1:1\"\nvkey = \"{vkey}\"\n")
        };
        let tables: String = (1..=count).map(table).collect();
        fs::write(folder.join("ledger.toml"), format!("{settings}{tables}")).unwrap();
    };
    witnesses(MAX_WITNESSES + 1);
    let text = complaint(&run(folder, &["publish"]));
    assert!(text.contains("16 witnesses") && text.contains("15"), "{text}");
    witnesses(MAX_WITNESSES);
    json(folder, &["publish"]);
}
