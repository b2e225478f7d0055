//! The settlement poller: asks the ledger what receipts added, and signs the settlements that credit it.
//!
//! It may be killed at any point and run twice at once. Nothing is remembered that could be wrong: the ledger names what
//! is not settled, a settlement's id is made of the receipts that it covers, and the ledger takes each receipt into one
//! settlement only. A poller that loses a race reads again. The cursor file says how far receipts were seen; losing it
//! costs one needless question.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use kvasir_ledger::{
    api::MAX_PAGE,
    client::{Client, ClientError, Settled},
    files::{Existing, Readers, read_regular, write_whole},
};
use kvasir_wire::{key::SecretKey, note::NetworkName};
use serde::{Deserialize, Serialize};

use kvasir_link::unix_now;

use crate::stop::Stop;

/// Time between two looks unless told otherwise.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
/// Even without new receipts the ledger is asked this often: a payer may have been funded meanwhile.
const ASK_ANYWAY: Duration = Duration::from_secs(60);
/// Longest pause after failures.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Most bytes of a cursor file.
const MAX_CURSOR_BYTES: u64 = 4096;
/// Rounds in one look: a lost race is tried again at once, but not for ever.
const MAX_ROUNDS: usize = 4;

/// Why a look failed.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    /// The ledger did not do what was asked.
    #[error(transparent)]
    Ledger(#[from] ClientError),
    /// The cursor file cannot be read or written.
    #[error("the cursor file {path}: {source}")]
    Cursor {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What one look did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Look {
    /// Receipts that were not seen before.
    pub new_receipts: u64,
    /// Settlements that this look credited.
    pub settlements: u64,
    /// Bytes that they covered.
    pub bytes: u64,
    /// What they credited.
    pub credited_nanokvr: i64,
    /// Settlements that stood already when they were sent: another poller was faster with the very same one. None of the
    /// figures above counts them.
    pub already_credited: u64,
    /// Why parts were not settled, one sentence each.
    pub refused: Vec<String>,
}

/// A poller of one ledger.
#[derive(Debug)]
pub struct Poller {
    ledger: Client,
    network: NetworkName,
    settler: SecretKey,
    cursor: Option<CursorFile>,
    seen: Option<u64>,
    asked: Option<tokio::time::Instant>,
}

impl Poller {
    /// A poller; with a cursor file it goes on where an earlier one ended.
    pub fn new(
        ledger: Client,
        network: NetworkName,
        settler: SecretKey,
        cursor: Option<&Path>,
    ) -> Result<Self, SettleError> {
        let cursor = cursor.map(|path| CursorFile(path.into()));
        let seen = cursor.as_ref().map(CursorFile::read).transpose()?.flatten();
        Ok(Poller { ledger, network, settler, cursor, seen, asked: None })
    }

    /// One look: reads the receipts after the cursor and settles what the ledger names as unsettled. Blocks.
    pub fn look(&mut self) -> Result<Look, SettleError> {
        let mut look = Look::default();
        let mut seen = self.seen;
        loop {
            let page = self.ledger.receipts(seen, MAX_PAGE)?;
            look.new_receipts += page.receipts.len() as u64;
            seen = page.next.or(seen);
            if page.receipts.len() < MAX_PAGE as usize {
                break;
            }
        }
        let due = self.asked.is_none_or(|asked| asked.elapsed() >= ASK_ANYWAY);
        if look.new_receipts == 0 && !due {
            return Ok(look);
        }
        for round in 1..=MAX_ROUNDS {
            let outcomes = self.ledger.settle_once(&self.network, &self.settler, unix_now())?;
            let mut raced = false;
            look.refused.clear();
            for outcome in outcomes {
                match outcome {
                    Settled::Credited { settlement, accepted } => {
                        tracing::info!(
                            payee = %settlement.payee,
                            payer = %settlement.payer,
                            bytes = settlement.bytes.get(),
                            nanokvr = settlement.amount.get(),
                            index = accepted.index,
                            "credited"
                        );
                        look.settlements += 1;
                        look.bytes += settlement.bytes.get();
                        look.credited_nanokvr += settlement.amount.get();
                    }
                    Settled::AlreadyCredited { settlement, accepted } => {
                        tracing::info!(payee = %settlement.payee, index = accepted.index, "already credited");
                        look.already_credited += 1;
                    }
                    Settled::Refused { payee, payer, body } => {
                        // Another poller was faster, or a wallet's balance moved between reading and writing.
                        raced |= body.code == "conflict" || body.code == "balance_moved";
                        look.refused.push(format!("{payee} from {payer}: {} ({})", body.message, body.code));
                    }
                }
            }
            if !raced || round == MAX_ROUNDS {
                break;
            }
        }
        for refused in &look.refused {
            tracing::warn!("not settled: {refused}");
        }
        // Only now: a crash before this line makes the next poller look again, which credits nothing twice. What was
        // refused is asked for again at the next look.
        self.asked = look.refused.is_empty().then(tokio::time::Instant::now);
        if seen != self.seen {
            if let (Some(cursor), Some(seen)) = (&self.cursor, seen) {
                cursor.write(seen)?;
            }
            self.seen = seen;
        }
        Ok(look)
    }

    /// Looks every `interval` until it is stopped; after failures it waits longer, up to a minute.
    pub async fn run(self, interval: Duration, mut stop: Stop) {
        let mut poller = self;
        let mut pause = interval;
        while !stop.is_stopped() {
            let looked = tokio::task::spawn_blocking(move || {
                let result = poller.look();
                (poller, result)
            });
            let result;
            (poller, result) = match looked.await {
                Ok(looked) => looked,
                Err(error) => {
                    tracing::error!("the poller stopped: {error}");
                    return;
                }
            };
            pause = match result {
                Ok(_) => interval,
                Err(error) => {
                    let longer = (pause * 2).clamp(interval, MAX_PAUSE.max(interval));
                    tracing::error!("not settled, next try in {longer:?}: {error}");
                    longer
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.stopped() => {}
            }
        }
    }
}

/// The file that says how far receipts were seen: one JSON object, replaced as a whole.
#[derive(Debug)]
struct CursorFile(PathBuf);

#[derive(Serialize, Deserialize)]
struct CursorText {
    last_receipt: u64,
}

impl CursorFile {
    /// Nothing where there is no file, or one that cannot be understood: then everything is read once more.
    fn read(&self) -> Result<Option<u64>, SettleError> {
        match read_regular(&self.0, MAX_CURSOR_BYTES) {
            Ok(bytes) => match serde_json::from_slice::<CursorText>(&bytes) {
                Ok(text) => Ok(Some(text.last_receipt)),
                Err(error) => {
                    tracing::warn!(file = %self.0.display(), "not a cursor, reading from the start: {error}");
                    Ok(None)
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                tracing::warn!(file = %self.0.display(), "not a cursor, reading from the start: {error}");
                Ok(None)
            }
            Err(source) => Err(SettleError::Cursor { path: self.0.clone(), source }),
        }
    }

    fn write(&self, last_receipt: u64) -> Result<(), SettleError> {
        let text = serde_json::to_vec(&CursorText { last_receipt }).map_err(io::Error::from);
        let written = text.and_then(|text| write_whole(&self.0, &text, Existing::Replace, Readers::Anyone));
        written.map_err(|source| SettleError::Cursor { path: self.0.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_kept_and_a_broken_one_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let cursor = CursorFile(folder.path().join("settle.cursor"));
        assert_eq!(cursor.read().unwrap(), None);
        cursor.write(41).unwrap();
        cursor.write(42).unwrap();
        assert_eq!(cursor.read().unwrap(), Some(42));
        std::fs::write(&cursor.0, b"{\"last_rec").unwrap();
        assert_eq!(cursor.read().unwrap(), None);
        std::fs::write(&cursor.0, vec![b' '; MAX_CURSOR_BYTES as usize + 1]).unwrap();
        assert_eq!(cursor.read().unwrap(), None);
        #[cfg(unix)]
        assert!(CursorFile("/dev/zero".into()).read().is_err());
    }
}
