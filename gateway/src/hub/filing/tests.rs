//! Filing against ledgers that are away, wait for a cure, or refuse.

use super::*;
use crate::stop::switch;
use kvasir_wire::key::SecretKey;
use kvasir_wire::limits::MAX_NOTE_BYTES;
use std::{fs, sync::atomic::AtomicBool};

use super::spool::REFUSED_FOLDER;

/// A ledger that does not answer `failures` times, then keeps what it is given.
#[derive(Default)]
struct Flaky {
    failures: AtomicUsize,
    refuse: bool,
    /// Takes notes with the word `sick` now.
    cured: AtomicBool,
    kept: Mutex<Vec<String>>,
}

impl Ledger for Flaky {
    fn post_receipt(&self, note: &Note) -> Result<(), LedgerError> {
        let left = self.failures.load(Ordering::SeqCst);
        if left > 0 {
            self.failures.store(left - 1, Ordering::SeqCst);
            return Err(LedgerError::Passing("nobody there".into()));
        }
        if self.refuse {
            return Err(LedgerError::Refused("conflict".into()));
        }
        if note.text().contains("sick") && !self.cured.load(Ordering::SeqCst) {
            return Err(LedgerError::Curable("no delegation".into()));
        }
        self.kept.lock().unwrap().push(note.text().to_owned());
        Ok(())
    }

    fn post_grant(&self, note: &Note) -> Result<(), LedgerError> {
        self.post_receipt(note)
    }

    fn price(&self) -> Result<String, LedgerError> {
        Err(LedgerError::Passing("none".into()))
    }
}

fn note(text: &str) -> Note {
    let mut note = Note::unsigned(format!("{text}\n")).unwrap();
    note.sign("test/hub".parse().unwrap(), &SecretKey::from_seed([1; 32])).unwrap();
    note
}

fn spooled(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file()).count()
}

#[tokio::test]
async fn a_receipt_outlives_a_ledger_that_is_away_and_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let away = Arc::new(Flaky { failures: AtomicUsize::new(usize::MAX), ..Flaky::default() });
    let (filing, filer) = open(folder.path(), away, FilingTimes::default()).unwrap();
    let (stopper, stop) = switch();
    let running = tokio::spawn(filer.run(stop));
    let answer = filing.file(SessionId([1; 32]), 1, &note("one")).await.unwrap();
    let _second = filing.file(SessionId([1; 32]), 2, &note("two")).await.unwrap();
    assert_eq!(spooled(folder.path()), 2);
    stopper.stop();
    running.await.unwrap();
    assert!(answer.await.is_err(), "nobody says that it was filed");

    let back = Arc::new(Flaky { failures: AtomicUsize::new(2), ..Flaky::default() });
    let (filing, filer) = open(folder.path(), back.clone(), FilingTimes::default()).unwrap();
    assert_eq!(filing.waiting(), 2);
    let (_stopper, stop) = switch();
    let running = tokio::spawn(filer.run(stop));
    let third = filing.file(SessionId([0; 32]), 1, &note("three")).await.unwrap();
    assert_eq!(third.await.unwrap(), Ok(()));
    assert_eq!(*back.kept.lock().unwrap(), ["one\n", "two\n", "three\n"]);
    assert_eq!((spooled(folder.path()), filing.waiting()), (0, 0));
    drop(filing);
    running.await.unwrap();
}

#[tokio::test]
async fn a_refused_receipt_is_set_aside_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let (filing, filer) =
        open(folder.path(), Arc::new(Flaky { refuse: true, ..Flaky::default() }), FilingTimes::default())
            .unwrap();
    let (_stopper, stop) = switch();
    tokio::spawn(filer.run(stop));
    let answer = filing.file(SessionId([1; 32]), 1, &note("one")).await.unwrap();
    assert!(matches!(answer.await.unwrap(), Err(FilingError::Refused(_))));
    assert_eq!(spooled(folder.path()), 0);
    assert_eq!(spooled(&folder.path().join(REFUSED_FOLDER)), 1);
    assert_eq!((filing.waiting(), filing.refused()), (0, 1));
    drop(filing);

    // At the next start it is tried once more: the operator may have mended what stood against it.
    let mended = Arc::new(Flaky::default());
    let (filing, filer) = open(folder.path(), mended.clone(), FilingTimes::default()).unwrap();
    let (_stopper, stop) = switch();
    let running = tokio::spawn(filer.run(stop));
    drop(filing);
    running.await.unwrap();
    assert_eq!(*mended.kept.lock().unwrap(), ["one\n"]);
    assert_eq!(spooled(&folder.path().join(REFUSED_FOLDER)), 0);
}

#[tokio::test]
async fn what_is_no_receipt_in_the_spool_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x.receipt"), b"half").unwrap();
    fs::write(folder.path().join("y.receipt"), vec![b'a'; MAX_NOTE_BYTES + 1]).unwrap();
    let (filing, filer) = open(folder.path(), Arc::new(Flaky::default()), FilingTimes::default()).unwrap();
    let (_stopper, stop) = switch();
    let running = tokio::spawn(filer.run(stop));
    drop(filing);
    running.await.unwrap();
    assert_eq!(spooled(&folder.path().join(REFUSED_FOLDER)), 2);
}

/// Retries at once; a session may go on for ever, or not at all.
fn times(cure: Duration) -> FilingTimes {
    FilingTimes { retry: Duration::from_millis(5), cure }
}

const FOR_EVER: Duration = Duration::from_secs(1_000_000);

#[tokio::test]
async fn a_note_that_waits_for_a_cure_holds_up_no_other_and_is_filed_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Arc::new(Flaky::default());
    let (filing, filer) = open(folder.path(), ledger.clone(), times(FOR_EVER)).unwrap();
    let (_stopper, stop) = switch();
    let running = tokio::spawn(filer.run(stop));
    let sick = filing.file(SessionId([1; 32]), 1, &note("sick")).await.unwrap();
    let well = filing.file(SessionId([2; 32]), 1, &note("well")).await.unwrap();
    assert_eq!(well.await.unwrap(), Ok(()));
    assert_eq!(*ledger.kept.lock().unwrap(), ["well\n"]);
    assert_eq!(spooled(folder.path()), 1);
    while filing.postponed() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(filing.postponed_because().as_deref(), Some("no delegation"));
    ledger.cured.store(true, Ordering::SeqCst);
    assert_eq!(sick.await.unwrap(), Ok(()));
    assert_eq!(*ledger.kept.lock().unwrap(), ["well\n", "sick\n"]);
    assert_eq!((filing.waiting(), filing.postponed(), filing.postponed_because()), (0, 0, None));
    drop(filing);
    running.await.unwrap();
}

#[tokio::test]
async fn a_session_hears_of_a_cure_that_does_not_come_and_the_note_is_filed_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Arc::new(Flaky::default());
    let (filing, filer) = open(folder.path(), ledger.clone(), times(Duration::ZERO)).unwrap();
    let (stopper, stop) = switch();
    let running = tokio::spawn(filer.run(stop));
    let sick = filing.file(SessionId([1; 32]), 1, &note("sick")).await.unwrap();
    assert_eq!(sick.await.unwrap(), Err(FilingError::Postponed("no delegation".into())));
    // A hub that stops leaves it in the spool; the next one files it.
    drop(filing);
    stopper.stop();
    running.await.unwrap();
    assert_eq!(spooled(folder.path()), 1);
    ledger.cured.store(true, Ordering::SeqCst);
    let (filing, filer) = open(folder.path(), ledger.clone(), times(FOR_EVER)).unwrap();
    let (_stopper, stop) = switch();
    let running = tokio::spawn(filer.run(stop));
    drop(filing);
    running.await.unwrap();
    assert_eq!(*ledger.kept.lock().unwrap(), ["sick\n"]);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_now_is_neither_refused_nor_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    // Reading a folder fails as a bad disk does.
    fs::create_dir(folder.path().join("0.receipt")).unwrap();
    let ledger = Arc::new(Flaky::default());
    let (filing, filer) = open(folder.path(), ledger.clone(), times(FOR_EVER)).unwrap();
    let (_stopper, stop) = switch();
    let running = tokio::spawn(filer.run(stop));
    let well = filing.file(SessionId([2; 32]), 1, &note("well")).await.unwrap();
    assert_eq!(well.await.unwrap(), Ok(()));
    assert_eq!(spooled(&folder.path().join(REFUSED_FOLDER)), 0);
    assert!(filing.postponed_because().unwrap().contains("cannot be read"));
    fs::remove_dir(folder.path().join("0.receipt")).unwrap();
    drop(filing);
    running.await.unwrap();
}

#[tokio::test]
async fn a_disk_that_keeps_nothing_is_said_with_place_and_remedy_and_so_is_a_full_spool() {
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("spool");
    let (filing, _filer) = open(&spool, Arc::new(Flaky::default()), FilingTimes::default()).unwrap();
    fs::remove_dir_all(&spool).unwrap();
    let error = filing.file(SessionId([1; 32]), 1, &note("one")).await.unwrap_err().to_string();
    for part in [spool.to_str().unwrap(), "free space", "--spool", "The session ends"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    filing.counts.refused.store(1, Ordering::Relaxed);
    filing.counts.waiting.store(MAX_SPOOLED - 1, Ordering::Relaxed);
    let error = filing.file(SessionId([1; 32]), 1, &note("one")).await.unwrap_err();
    assert_eq!(error, FilingError::Full { path: spool });
}

#[test]
fn only_a_ledgers_own_incurable_no_is_final() {
    let refused = |status, code: &str| {
        let body = kvasir_ledger::api::ErrorBody {
            code: code.into(),
            message: "m".into(),
            what_to_do: "w".into(),
            evidence: None,
        };
        ledger_error(ClientError::Refused { status, body: Box::new(body) })
    };
    for code in ["clock_ahead", "unknown_delegation", "unknown_grant", "unknown_price", "delegation_expired"]
    {
        assert!(matches!(refused(422, code), LedgerError::Curable(_)), "{code}");
    }
    assert!(matches!(refused(409, "conflict"), LedgerError::Refused(_)));
    assert!(matches!(refused(503, "store_busy"), LedgerError::Passing(_)));
    let proxy = ClientError::BadAnswer { url: "u".into(), reason: "r".into() };
    assert!(matches!(ledger_error(proxy), LedgerError::Passing(_)));
}
