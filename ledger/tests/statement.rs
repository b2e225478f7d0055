//! Statements: what a wallet or an account held before and after a period, and everything in between, to the nanoKVR.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod network;
#[path = "network/scene.rs"]
mod scene;

use std::path::Path;
use std::process::{Command, Output};

use kvasir_ledger::api::{AccountStatement, MAX_PAGE, Side, StatementLine, StatementQuery, exact_kvr};
use kvasir_ledger::store::Store;
use kvasir_wire::account::PENDING_SECONDS;
use network::{Network, START, counters, post, prepared, refused};
use scene::{DAY, DAYS, END};

const ALL: StatementQuery =
    StatementQuery { from: None, to: None, at: None, after: None, limit: Some(MAX_PAGE) };

fn of(store: &Store, side: Side, owner: [u8; 32], asked: StatementQuery) -> AccountStatement {
    store.answers().statement(side, owner, &asked).unwrap()
}

fn sum(statement: &AccountStatement) -> i64 {
    statement.postings.iter().map(|line| line.nanokvr).sum()
}

/// Every account of the scene, with what the ledger says that it holds.
fn accounts(networks: &[Network], store: &Store) -> Vec<(Side, [u8; 32], i64)> {
    let wallets = networks.iter().map(|network| {
        let wallet = store.answers().wallet(network.payee()).unwrap();
        (Side::Payee, network.payee().0, wallet.pending_nanokvr + wallet.posted_nanokvr)
    });
    let payers = networks.iter().map(|network| {
        let account = store.answers().account(network.payer()).unwrap();
        (Side::Payer, network.payer().0, account.available_nanokvr)
    });
    wallets.chain(payers).collect()
}

#[test]
fn opening_and_postings_are_the_closing_balance_in_every_period() {
    let network = Network::new();
    let mut store = Store::in_memory(&network.name, network.keys()).unwrap();
    let scene = scene::play(&mut store);
    // Cuts at days, at the very seconds of postings, and one second beside them.
    let days = (0..=DAYS + 1).map(|day| START + day * DAY);
    let evenings = (0..DAYS).flat_map(|day| (0..3).map(move |second| START + day * DAY + 3_599 + second));
    let mut cuts: Vec<u64> = days.chain(evenings).collect();
    cuts.sort_unstable();
    for (side, owner, balance) in accounts(&scene.networks, &store) {
        let whole = of(&store, side, owner, ALL);
        assert!(whole.postings.len() >= 5 && whole.next.is_none());
        assert_eq!((whole.opening_nanokvr, whole.closing_nanokvr), (0, balance));
        let mut lines: Vec<StatementLine> = Vec::new();
        let mut before = 0;
        for pair in [0].into_iter().chain(cuts.iter().copied()).collect::<Vec<_>>().windows(2) {
            let period =
                of(&store, side, owner, StatementQuery { from: Some(pair[0]), to: Some(pair[1]), ..ALL });
            assert_eq!(period.opening_nanokvr, before, "{pair:?}");
            assert_eq!(period.opening_nanokvr + sum(&period), period.closing_nanokvr, "{pair:?}");
            assert!(period.postings.iter().all(|line| (pair[0]..pair[1]).contains(&line.at)));
            before = period.closing_nanokvr;
            lines.extend(period.postings);
        }
        assert_eq!((before, lines), (balance, whole.postings.clone()));
        let mut running = 0;
        for line in &whole.postings {
            running += line.nanokvr;
            assert_eq!(line.balance_nanokvr, running);
            assert_eq!(line.kvr, exact_kvr(line.nanokvr));
        }
    }
}

#[test]
fn pages_are_the_whole_whatever_their_size() {
    let network = Network::new();
    let mut store = Store::in_memory(&network.name, network.keys()).unwrap();
    let scene = scene::play(&mut store);
    let owner = scene.networks[2].payee().0;
    let asked = StatementQuery { from: Some(START + 2 * DAY), to: Some(START + 9 * DAY), ..ALL };
    let whole = of(&store, Side::Payee, owner, asked);
    for limit in [0, 1, 2, 3, whole.postings.len() as u32, u32::MAX] {
        let (mut lines, mut after, mut balance) = (Vec::new(), None, whole.opening_nanokvr);
        loop {
            let page = of(&store, Side::Payee, owner, StatementQuery { after, limit: Some(limit), ..asked });
            assert_eq!(page.opening_nanokvr, balance);
            assert_eq!(page.closing_nanokvr, whole.closing_nanokvr);
            assert!(page.postings.len() <= limit.clamp(1, MAX_PAGE) as usize);
            balance = page.postings.last().map_or(balance, |line| line.balance_nanokvr);
            lines.extend(page.postings);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(lines, whole.postings, "{limit}");
    }
    let backwards = StatementQuery { from: Some(2), to: Some(1), ..ALL };
    let refusal = refused(store.answers().statement(Side::Payee, owner, &backwards));
    assert_eq!((refusal.status, refusal.code), (400, "bad_question"));
}

#[test]
fn a_line_says_where_its_credit_came_from_and_what_became_of_it() {
    let (network, mut store) = prepared();
    for session in [1, 2] {
        let first = network.first(session, 425_984, 851_968);
        post(&mut store, &network.sign(&first)).unwrap();
        let next = first.next(counters(425_985, 851_968), first.to, false).unwrap();
        post(&mut store, &network.sign(&next)).unwrap();
    }
    let one = network.settlement(&[(1, 1, 1, 1_277_952), (2, 1, 2, 1_277_953)], 0, START + 20);
    network.settle(&mut store, &one).unwrap();
    let two = network.settlement(&[(1, 2, 2, 1)], one.amount.get(), START + 21);
    network.settle(&mut store, &two).unwrap();
    let (payee, payer) = (network.payee().0, network.payer().0);

    let wallet = of(&store, Side::Payee, payee, ALL);
    let [first, second] = wallet.postings.as_slice() else { panic!("{wallet:?}") };
    assert_eq!(
        (first.kind.as_str(), first.nanokvr, first.kvr.as_str()),
        ("settle", 17_891_335, "0.017891335")
    );
    assert_eq!((first.entry, first.at), (8, START + 20));
    assert_eq!(first.other, Some(network.payer().to_string()));
    let settlement = first.settlement.clone().unwrap();
    assert_eq!((settlement.id, settlement.bytes), (one.id().to_string(), 2_555_905));
    assert_eq!(
        (settlement.pending_until, settlement.state.as_str()),
        (START + 20 + PENDING_SECONDS, "pending")
    );
    let sessions =
        settlement.sessions.iter().map(|part| (part.session.clone(), part.from_seq, part.to_seq, part.bytes));
    assert_eq!(
        sessions.collect::<Vec<_>>(),
        [("01".repeat(32), 1, 1, 1_277_952), ("02".repeat(32), 1, 2, 1_277_953)]
    );
    assert_eq!(second.nanokvr, 7);
    assert_eq!(wallet.closing_pending_nanokvr, 17_891_342);

    // The second is reversed, the first is posted. Before, both were pending, and a statement of then still says so.
    let note = network.correction(two.id(), START + 30);
    store.accept_note(note.to_string().as_bytes(), START + 30).unwrap();
    store.sweep(START + 20 + PENDING_SECONDS).unwrap();
    let now = of(&store, Side::Payee, payee, ALL);
    let changes = |statement: &AccountStatement| -> Vec<(String, i64, i64, String)> {
        let line = |line: &StatementLine| {
            let state = line.settlement.as_ref().map_or("", |settlement| &settlement.state);
            (line.kind.clone(), line.nanokvr, line.moved_nanokvr, state.to_owned())
        };
        statement.postings.iter().map(line).collect()
    };
    let line = |kind: &str, change, moved, state: &str| (kind.to_owned(), change, moved, state.to_owned());
    assert_eq!(
        changes(&now),
        [
            line("settle", 17_891_335, 17_891_335, "posted"),
            line("settle", 7, 7, "reversed"),
            line("reverse", -7, 7, "reversed"),
            line("post", 0, 17_891_335, "posted"),
        ]
    );
    assert_eq!((now.closing_nanokvr, now.closing_pending_nanokvr), (17_891_335, 0));
    assert_eq!(now.postings[3].other, None);
    let then = of(&store, Side::Payee, payee, StatementQuery { at: Some(START + 29), ..ALL });
    assert_eq!(then, wallet);
    let at_the_second = of(&store, Side::Payee, payee, StatementQuery { at: Some(START + 30), ..ALL });
    assert_eq!(at_the_second.postings.len(), 3);

    // The payer's side of the same moves.
    let account = of(&store, Side::Payer, payer, ALL);
    assert_eq!(
        changes(&account),
        [
            line("fund", 1_000_000_000_000, 1_000_000_000_000, ""),
            line("settle", -17_891_335, 17_891_335, "posted"),
            line("settle", -7, 7, "reversed"),
            line("reverse", 7, 7, "reversed"),
        ]
    );
    assert_eq!((account.postings[0].other.clone(), account.closing_pending_nanokvr), (None, 0));
    let nobody = of(&store, Side::Payee, [9; 32], ALL);
    assert_eq!((nobody.opening_nanokvr, nobody.closing_nanokvr, nobody.postings.len()), (0, 0, 0));
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir-ledger"));
    for name in ["CONFIG", "NETWORK", "URL"] {
        command.env_remove(format!("KVASIR_LEDGER_{name}"));
    }
    command.current_dir(folder).args(arguments).output().unwrap()
}

#[test]
fn the_command_reads_a_file_and_prints_words_csv_and_json() {
    let network = Network::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    Store::create(&path, &network.name).unwrap();
    let mut store = Store::open(&path, &network.name, network.keys()).unwrap();
    let scene = scene::play(&mut store);
    let key = scene.networks[2].wallet.public().to_string();
    let arguments = |rest: &[&'static str]| -> Vec<String> {
        let first = ["statement", &key, "--store", "ledger.db", "--network", "atlas"].map(str::to_owned);
        first.into_iter().chain(rest.iter().map(|&text| text.to_owned())).collect()
    };
    let run = |rest: &[&'static str]| {
        let arguments = arguments(rest);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        run(folder.path(), &arguments)
    };
    let out = |rest: &[&'static str]| {
        let output = run(rest);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let whole = of(&store, Side::Payee, scene.networks[2].payee().0, ALL);
    let said: serde_json::Value = serde_json::from_str(&out(&["--json"])).unwrap();
    assert_eq!(serde_json::from_value::<AccountStatement>(said.clone()).unwrap(), whole);
    assert!(said["from"].is_null() && said["as_of"].is_null());

    let csv = out(&["--csv"]);
    let mut lines = csv.lines();
    let head = "number,at,entry,kind,nanokvr,kvr,balance_nanokvr,other,settlement,sessions,bytes,pending_until,state";
    assert_eq!(lines.next(), Some(head));
    let column = |at: usize| -> Vec<String> {
        csv.lines().skip(1).map(|line| line.split(',').nth(at).unwrap().to_owned()).collect()
    };
    let sum: i64 = column(4).iter().map(|change| change.parse::<i64>().unwrap()).sum();
    assert_eq!((lines.count(), sum), (whole.postings.len(), whole.closing_nanokvr));
    assert_eq!(column(12).iter().filter(|state| *state == "reversed").count(), 2);

    // A day is its beginning, in UTC; the first of the scene is 2026-09-21, 14:13:20.
    let text = out(&["--from", "2026-09-22", "--to", "1790100000", "--side", "payee"]);
    assert!(text.contains("time (UTC)") && text.contains("2026-09-22 15:13:20"), "{text}");
    assert!(text.contains(&format!("wallet  {}", whole.owner)) && text.contains("  posted\n"), "{text}");
    let widths: Vec<usize> = text.lines().skip(2).filter_map(|line| line.find("settle")).collect();
    assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    assert!(out(&["--side", "payer"]).contains("nothing moved"));
    assert!(out(&[]).contains("pending until 2026-"), "{END}");

    assert_eq!(run(&["--from", "yesterday"]).status.code(), Some(2));
    assert_eq!(run(&["--csv", "--json"]).status.code(), Some(2));
    let backwards = run(&["--from", "2", "--to", "1"]);
    assert_eq!(backwards.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&backwards.stderr).contains("ends before it begins"));
}
