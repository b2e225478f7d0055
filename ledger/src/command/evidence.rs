//! `prove`, `check-proof`, `fraud` and `convict`: files that convince anybody, offline.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use kvasir_merkle::{Hash, leaf_hash};
use kvasir_wire::key::PublicKey;
use kvasir_wire::note::Note;
use kvasir_wire::probe::{MAX_PROBE_FILE_BYTES, ProbeFile};
use kvasir_wire::receipt::{Receipt, ReceiptKeys};
use serde_json::json;

use super::audit::LogTrust;
use super::{NoVerdict, print, report};
use crate::evidence::{Evidence, LogFraud, MAX_EVIDENCE_BYTES, ReceiptFraud, TwoLeaves, WorkFraud};
use crate::files::{Existing, Readers, read_regular, write_whole};
use crate::log::{
    CHECKPOINT_PATH, Checkpoint, LogSource, MAX_CHECKPOINT_BYTES, MAX_ENTRY_BYTES, MAX_PROOF_FILE_BYTES,
    ProofFile, Prover, SignedCheckpoint, bundles_of, find_bundle, parse_bundle, source_at,
};

/// Write a proof that an entry is in the log: a paystub that is valid offline
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvasir-ledger prove https://ledger.example --log-key \"$(cat log.vkey)\" --index 731\n  \
                        kvasir-ledger prove /srv/log --policy policy.txt --session <64 hex> --seq 4 --output pay.tlog-proof\n\n\
                        The file is a C2SP tlog-proof; any tool that reads those verifies it. The entry itself is in its `extra` line,\n\
                        which the proof authenticates: it is the leaf."
)]
pub(super) struct Prove {
    /// Address or folder of the log
    log: String,
    #[command(flatten)]
    trust: LogTrust,
    /// The entry's index
    #[arg(long, value_name = "N", required_unless_present_any = ["session", "digest"], conflicts_with_all = ["session", "digest"])]
    index: Option<u64>,
    /// A receipt's session; found by reading the log
    #[arg(long, value_name = "HEX", requires = "seq")]
    session: Option<Hash>,
    /// The receipt's number in its session
    #[arg(long, value_name = "N", requires = "session")]
    seq: Option<u64>,
    /// Leaf hash of the entry, or digest of its text; found by reading the log
    #[arg(long, value_name = "HEX", conflicts_with = "session")]
    digest: Option<Hash>,
    /// File to write [default: entry-N.tlog-proof]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Verify a proof file, offline
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvasir-ledger check-proof entry-731.tlog-proof --policy policy.txt\n\n\
                        Exits with 0 where it proves the entry, with 1 where it does not, and with 3 where a file cannot be read.")]
pub(super) struct CheckProof {
    /// The proof file
    file: PathBuf,
    #[command(flatten)]
    trust: LogTrust,
    /// The entry, where it is not in the file
    #[arg(long, value_name = "FILE")]
    entry: Option<PathBuf>,
}

/// Put two things that cannot both be into one file that convicts
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvasir-ledger fraud receipts one.note other.note --hub ed25519:... --worker ed25519:... --backbone ed25519:... > a.fraud\n  \
                        kvasir-ledger fraud log one.checkpoint other.checkpoint --log-key \"$(cat log.vkey)\" > b.fraud"
)]
pub(super) struct Fraud {
    #[command(subcommand)]
    kind: FraudKind,
}

#[derive(Debug, Subcommand)]
enum FraudKind {
    /// Two receipts of one session and number
    #[command(
        after_help = "Example:\n  kvasir-ledger fraud receipts one.note other.note --hub ed25519:... --worker ed25519:... --backbone ed25519:..."
    )]
    Receipts {
        /// One receipt
        first: PathBuf,
        /// The other
        second: PathBuf,
        #[command(flatten)]
        keys: Parties,
    },
    /// Two heads that one log signed
    #[command(
        after_help = "Examples:\n  kvasir-ledger fraud log one.checkpoint other.checkpoint --log-key \"$(cat log.vkey)\"\n  \
                            kvasir-ledger fraud log one other --log-key ... --first-log /mirror-a --second-log /mirror-b --index 5"
    )]
    Log {
        /// One head
        first: PathBuf,
        /// The other
        second: PathBuf,
        /// The log's verifier key
        #[arg(long, value_name = "VKEY", env = "KVASIR_LOG_KEY")]
        log_key: String,
        /// Files of the first log, where the sizes differ
        #[arg(long, value_name = "LOG", requires_all = ["second_log", "index"])]
        first_log: Option<String>,
        /// Files of the second log
        #[arg(long, value_name = "LOG")]
        second_log: Option<String>,
        /// A place at which the two logs have different entries
        #[arg(long, value_name = "N")]
        index: Option<u64>,
    },
    /// A result that can be computed again
    #[command(
        after_help = "Example:\n  kvasir-ledger fraud work receipt.note 4.probes --hub ed25519:... --worker ed25519:... --backbone ed25519:..."
    )]
    Work {
        /// The receipt
        receipt: PathBuf,
        /// The probe file under it
        record: PathBuf,
        #[command(flatten)]
        keys: Parties,
    },
}

#[derive(Debug, Args)]
struct Parties {
    /// The hub's public key
    #[arg(long, value_name = "KEY")]
    hub: PublicKey,
    /// The worker's public key
    #[arg(long, value_name = "KEY")]
    worker: PublicKey,
    /// The backbone's public key
    #[arg(long, value_name = "KEY")]
    backbone: PublicKey,
}

impl From<Parties> for ReceiptKeys {
    fn from(Parties { hub, worker, backbone }: Parties) -> Self {
        Self { hub, worker, backbone }
    }
}

/// Verify a file of evidence, from the file alone
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvasir-ledger convict a.fraud\n\n\
                        Exits with 0 where somebody is convicted, with 1 where nobody is, and with 3 where the file cannot be read, or holds a\n\
                        result: whether that is wrong, `kvasir audit --evidence-file` says, which computes the call again.")]
pub(super) struct Convict {
    /// The file that `fraud` wrote
    file: PathBuf,
}

impl Prove {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let source = source_at(&self.log)?;
        let head = source
            .read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES)?
            .context("there is no log here: no file `checkpoint`")?;
        let (signed, _) = self.trust.policy()?.verify(&head)?;
        let size = signed.checkpoint().size;
        let prover = Prover::new(source.as_ref(), size);
        let index = match self.index {
            Some(index) => index,
            None => self.find(source.as_ref(), size)?,
        };
        let entry = prover.entry(index)?;
        let proof = prover.inclusion(index)?;
        proof
            .verify(&leaf_hash(&entry), &signed.checkpoint().root)
            .context("the log's tiles are not under its head")?;
        let file =
            ProofFile { extra: Some(entry), index, hashes: proof.hashes, checkpoint: signed.note().clone() };
        let path = self.output.unwrap_or_else(|| format!("entry-{index}.tlog-proof").into());
        write_whole(&path, file.to_string().as_bytes(), Existing::Keep, Readers::Anyone)
            .with_context(|| format!("{}: cannot be written", path.display()))?;
        let object = json!({ "index": index, "size": size, "file": path.display().to_string() });
        report(json, &object, &format!("{}: entry {index} of {size}", path.display()))
    }

    fn find(&self, source: &dyn LogSource, size: u64) -> Result<u64> {
        // Bundle by bundle: asking for entries one by one would read each bundle 256 times.
        for bundle in bundles_of(0, size) {
            let found =
                find_bundle(source, &bundle)?.with_context(|| format!("the log has no {}", bundle.path()))?;
            let entries = parse_bundle(&found.bytes, found.width).with_context(|| found.path.clone())?;
            for (index, entry) in (bundle.first_entry()..size).zip(entries) {
                let Ok(note) = Note::parse(entry) else { continue };
                let is_it = match (self.digest, self.session, self.seq) {
                    (Some(digest), ..) => note.leaf_hash() == digest || note.text_digest() == digest.0,
                    (None, Some(session), Some(seq)) => Receipt::parse(note.text())
                        .is_ok_and(|receipt| receipt.terms.session.0 == session.0 && receipt.seq == seq),
                    _ => false,
                };
                if is_it {
                    return Ok(index);
                }
            }
        }
        bail!("none of the {size} entries is the one that was asked for")
    }
}

impl CheckProof {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let policy = self.trust.policy().context(NoVerdict)?;
        let file = ProofFile::parse(&read(&self.file, MAX_PROOF_FILE_BYTES).context(NoVerdict)?)?;
        let entry = match &self.entry {
            Some(path) => read(path, MAX_ENTRY_BYTES).context(NoVerdict)?,
            None => file
                .extra
                .clone()
                .context("the file does not hold the entry: name it with --entry")
                .context(NoVerdict)?,
        };
        let (signed, quorum) = file.verify(&entry, &policy)?;
        let Checkpoint { origin, size, .. } = signed.checkpoint();
        let kind = Note::parse(&entry).map(|note| note.text().lines().next().unwrap_or_default().to_owned());
        let kind = kind.unwrap_or_else(|_| "no note".into());
        let witnesses: Vec<&str> = quorum.cosigned.iter().map(|(name, _)| name.as_str()).collect();
        let object = json!({
            "ok": true, "origin": origin.to_string(), "index": file.index, "size": size, "kind": kind, "witnesses": witnesses,
            "entry": String::from_utf8_lossy(&entry),
        });
        let sentence = format!(
            "entry {} of {size} in {origin} is this {kind}:\n\n{}",
            file.index,
            String::from_utf8_lossy(&entry)
        );
        report(json, &object, &sentence).context(NoVerdict)
    }
}

impl Fraud {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let evidence = match self.kind {
            FraudKind::Receipts { first, second, keys } => Evidence::Receipts(ReceiptFraud {
                keys: keys.into(),
                first: note(&first)?,
                second: note(&second)?,
            }),
            FraudKind::Log { first, second, log_key, first_log, second_log, index } => {
                let log = log_key.trim().parse().with_context(|| format!("log key `{log_key}`"))?;
                let (first, second) = (note(&first)?, note(&second)?);
                let leaves = match (first_log, second_log, index) {
                    (Some(one), Some(other), Some(index)) => {
                        let (first, first_proof) = place(&one, &first, &log, index)?;
                        let (second, second_proof) = place(&other, &second, &log, index)?;
                        Some(TwoLeaves { index, first, first_proof, second, second_proof })
                    }
                    _ => None,
                };
                Evidence::Log(LogFraud { log, first, second, leaves })
            }
            FraudKind::Work { receipt, record, keys } => {
                let record = ProbeFile::parse(&read(&record, MAX_PROBE_FILE_BYTES)?)?;
                Evidence::Work(WorkFraud { keys: keys.into(), receipt: note(&receipt)?, record })
            }
        };
        // A file that convicts nobody is not written.
        let proven = evidence.convict()?;
        if json {
            return report(
                true,
                &json!({ "evidence": evidence.to_string(), "sentence": proven.sentence }),
                "",
            );
        }
        print(evidence.to_string().as_bytes())
    }
}

impl Convict {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let evidence = Evidence::parse(&read(&self.file, MAX_EVIDENCE_BYTES).context(NoVerdict)?)?;
        let proven = evidence.convict()?;
        let object = json!({ "convicted": proven.is_complete, "culprits": proven.culprits, "sentence": proven.sentence });
        let who = proven.culprits.join("\n");
        if !proven.is_complete {
            // Neither guilt nor innocence: the file is right as far as it can be told from itself.
            return Err(anyhow!(
                "{}; signed by {}; nobody is convicted before that is done",
                proven.sentence,
                proven.culprits.join(", ")
            )
            .context(NoVerdict));
        }
        report(json, &object, &format!("{}\nsigned by\n{who}", proven.sentence)).context(NoVerdict)
    }
}

fn place(
    log: &str,
    head: &Note,
    verifier: &kvasir_wire::note::Verifier,
    index: u64,
) -> Result<(Hash, Vec<Hash>)> {
    let source: Box<dyn LogSource> = source_at(log)?;
    let signed = SignedCheckpoint::verify(head.to_string().as_bytes(), verifier)?;
    let prover = Prover::new(source.as_ref(), signed.checkpoint().size);
    Ok((leaf_hash(&prover.entry(index)?), prover.inclusion(index)?.hashes))
}

fn note(path: &Path) -> Result<Note> {
    Note::parse(&read(path, MAX_CHECKPOINT_BYTES)?).with_context(|| path.display().to_string())
}

fn read(path: &Path, limit: usize) -> Result<Vec<u8>> {
    read_regular(path, limit as u64).with_context(|| format!("{}: cannot be read", path.display()))
}
