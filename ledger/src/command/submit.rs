//! `submit`: a note that somebody signed elsewhere, for example a delegation made with `--print-note`.

use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use kvasir_wire::account::{Settlement, Statement};
use kvasir_wire::limits::MAX_NOTE_BYTES;
use kvasir_wire::note::Note;
use kvasir_wire::receipt::RECEIPT_KIND;

use super::ask::Asked;
use super::report;
use crate::files::read_regular;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvasir-ledger submit delegation.note --ledger http://192.168.1.5:9750\n  \
                        kvasir-ledger delegate --wallet-key wallet.key --worker ed25519:<64 hex> --network atlas \\\n    \
                        --print-note | ssh ledger kvasir-ledger submit -\n\n\
                        Sending a note again is safe: the answer is the first one."
)]
pub(super) struct Submit {
    /// The file with the signed note, byte for byte; - reads standard input
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    #[command(flatten)]
    asked: Asked,
}

impl Submit {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let shown = if self.reads_standard_input() {
            "standard input".to_owned()
        } else {
            self.file.display().to_string()
        };
        let read = self.read();
        let is_too_long = match &read {
            Ok(bytes) => bytes.len() > MAX_NOTE_BYTES,
            Err(error) => error.kind() == std::io::ErrorKind::FileTooLarge,
        };
        if is_too_long {
            bail!("{shown} is longer than {MAX_NOTE_BYTES} bytes: it is not one note; send one note a call");
        }
        let bytes = read.with_context(|| format!("{shown}: cannot be read"))?;
        let note = Note::parse(&bytes).with_context(|| {
            format!(
                "{shown} is not a signed note; give the exact bytes that `--print-note` or the signer wrote"
            )
        })?;
        let client = self.asked.client()?;
        let accepted = match note.text().lines().next().unwrap_or_default() {
            RECEIPT_KIND => client.post_receipt(&note)?,
            Settlement::KIND => client.post_settlement(&note)?,
            _ => client.post_note(&note)?,
        };
        let state = if accepted.repeated { "was stored before" } else { "stored" };
        let sentence =
            format!("{} {state} as entry {}, leaf {}", accepted.kind, accepted.index, accepted.leaf);
        let mut object = serde_json::to_value(&accepted)?;
        object["repeated"] = accepted.repeated.into();
        report(json, &object, &sentence)
    }

    fn reads_standard_input(&self) -> bool {
        self.file.as_os_str() == "-"
    }

    /// Of standard input at most one byte more than a note may have, so that a wrong file is neither read whole nor cut to fit.
    fn read(&self) -> std::io::Result<Vec<u8>> {
        if !self.reads_standard_input() {
            // A pipe that nobody writes to would keep it waiting for ever; what comes through one comes by standard input.
            return read_regular(&self.file, MAX_NOTE_BYTES as u64);
        }
        let mut bytes = Vec::new();
        std::io::stdin().lock().take(MAX_NOTE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
