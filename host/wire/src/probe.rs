//! Probe records: calls whose rows may be seen, with the proof that a receipt's work root is about them.
//!
//! A file belongs to one receipt. It holds some of the results that the receipt counted: the work item, its inclusion
//! proof under the receipt's `work` root, the call's whole payload and the result's rows. Whoever has the file and the
//! receipt can compute each call again and compare bytes; nothing else is needed but the expert and the plugin, which
//! the receipt names by digest. A payer keeps its private rows in the same form.
//!
//! Layout, little-endian: [`PROBE_DOMAIN`], session 32, seq u64, receipt id 32, work items u64, work root 32, records
//! u32; per record: index u64, work item ([`WORK_ITEM_BYTES`]), proof hashes u8 and 32 bytes each, payload and rows as
//! byte strings. Records ascend strictly by index. The number of work items is the file's own claim: a receipt does not
//! state it, but under any other number the proofs lead to other roots.
//!
//! This module reads, writes and checks bytes. It opens no file and computes no expert.

use std::fmt;
use std::str::FromStr;

use kvasir_merkle::{Hash, InclusionProof, MAX_PROOF_HASHES, ProofError};
use thiserror::Error;

use crate::codec::{DecodeError, Reader, Writer, within};
use crate::id::{IdError, SessionId, sha256};
use crate::limits::MAX_PAYLOAD_BYTES;
use crate::message::Call;
use crate::receipt::{Receipt, ReceiptId};
use crate::work::{MAX_UNCUT_RESULTS, WORK_ITEM_BYTES, WorkItem};

/// Begins every file of probe records.
pub const PROBE_DOMAIN: &[u8] = b"kvasir.example/probes@v1\0";
/// Most records of one file: a receipt is about no more results than this.
pub const MAX_PROBE_RECORDS: usize = MAX_UNCUT_RESULTS;
/// Most bytes of one file: the largest call with the largest result, and half of that again.
pub const MAX_PROBE_FILE_BYTES: usize = 3 * MAX_PAYLOAD_BYTES;
/// Most bytes of a list of published files: a million lines.
pub const MAX_PROBE_INDEX_BYTES: usize = 1_000_000 * PROBE_LINE_BYTES;
/// Path, under a folder or address of probe records, of the list of its files.
pub const PROBE_INDEX_PATH: &str = "index";

/// Session, a space, the longest number, a line feed.
const PROBE_LINE_BYTES: usize = 64 + 1 + 19 + 1;
/// Ending of a file's name.
const PROBE_ENDING: &str = ".probes";
/// Bytes that every record has, whatever its proof, payload and rows.
const LEAST_RECORD_BYTES: usize = 8 + WORK_ITEM_BYTES + 1 + 4 + 4;

/// Where a file of probe records lies: `Display` and `FromStr` are `SESSION/SEQ.probes`, the session in 64 lower-case
/// hexadecimal digits, the number without leading zeros, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeName {
    /// The session.
    pub session: SessionId,
    /// Number of the receipt.
    pub seq: u64,
}

/// The records that belong to one receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeFile {
    /// The session.
    pub session: SessionId,
    /// Number of the receipt, from 1.
    pub seq: u64,
    /// Identity of the receipt.
    pub receipt: ReceiptId,
    /// Work items of the session up to this receipt: leaves of the tree under `root`.
    pub size: u64,
    /// The receipt's work root.
    pub root: Hash,
    /// The records, ascending by index.
    pub records: Vec<ProbeRecord>,
}

/// One result that counted, and its call.
#[derive(Clone, PartialEq, Eq)]
pub struct ProbeRecord {
    /// Number of the work item within the session, from 0.
    pub index: u64,
    /// The work item's bytes.
    pub item: [u8; WORK_ITEM_BYTES],
    /// Siblings from the item to the root, its own first.
    pub proof: Vec<Hash>,
    /// Payload of the `call` frame.
    pub payload: Vec<u8>,
    /// The result's rows: f32, little-endian.
    pub rows: Vec<u8>,
}

/// Why bytes are no probe records, or prove nothing. Every one is the publisher's fault.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProbeError {
    /// More bytes than [`MAX_PROBE_FILE_BYTES`].
    #[error("the file has {0} bytes, the most are {MAX_PROBE_FILE_BYTES}")]
    TooLong(usize),
    /// The bytes do not begin with [`PROBE_DOMAIN`].
    #[error("the file does not begin as probe records of version 1 do")]
    OtherKind,
    /// The layout is broken.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A record breaks a rule or proves nothing.
    #[error("record of work item {index}: {fault}")]
    Record {
        /// The record's index.
        index: u64,
        /// What is wrong with it.
        fault: RecordFault,
    },
    /// The file is about another receipt than the one at hand.
    #[error("the file's {0} is not the receipt's")]
    OtherReceipt(&'static str),
    /// A line or path that names no file.
    #[error(
        "`{0}` names no file of probe records; it is SESSION/SEQ{PROBE_ENDING}, or SESSION SEQ in a list"
    )]
    Name(String),
}

/// What is wrong with one record.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordFault {
    /// The work item's bytes are none.
    #[error("these bytes are no work item")]
    Item,
    /// The proof has not the length that index and size demand, or leads to another root.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// The payload's SHA-256 is not the one in the item.
    #[error("the payload is not the one that the work item is about")]
    OtherPayload,
    /// The SHA-256 of the rows is not the one in the item.
    #[error("the rows are not those that the work item is about")]
    OtherRows,
    /// The payload is no call.
    #[error("the payload is no call: {0}")]
    Call(DecodeError),
    /// Number, layer or mode of item and call differ.
    #[error("the work item's {0} is not the call's")]
    Differs(&'static str),
    /// The rows are not as long as the call demands.
    #[error("{found} bytes of rows, the call asks for {expected}")]
    RowBytes {
        /// Bytes of the record.
        found: usize,
        /// Bytes that the call asks for.
        expected: usize,
    },
}

impl ProbeFile {
    /// The file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(PROBE_DOMAIN).bytes(&self.session.0).u64(self.seq).bytes(&self.receipt.0);
        w.u64(self.size).bytes(self.root.as_bytes()).u32(self.records.len() as u32);
        for record in &self.records {
            w.u64(record.index).bytes(&record.item).u8(record.proof.len() as u8);
            for hash in &record.proof {
                w.bytes(hash.as_bytes());
            }
            w.byte_string(&record.payload).byte_string(&record.rows);
        }
        w.finish()
    }

    /// Reads a file: what is accepted is exactly what [`ProbeFile::encode`] writes. Whether the records are true says
    /// [`ProbeFile::check`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ProbeError> {
        if bytes.len() > MAX_PROBE_FILE_BYTES {
            return Err(ProbeError::TooLong(bytes.len()));
        }
        let mut r = Reader::new(bytes.strip_prefix(PROBE_DOMAIN).ok_or(ProbeError::OtherKind)?);
        let session = SessionId(r.array("session")?);
        let seq = r.u64("seq")?;
        if seq == 0 {
            return Err(DecodeError::Broken { field: "seq", rule: "counts from 1" }.into());
        }
        let receipt = ReceiptId(r.array("receipt")?);
        let size = r.u64("work items")?;
        let root = Hash(r.array("work root")?);
        let count = r.u32("records")?;
        let count = r.check_count("records", count.into(), MAX_PROBE_RECORDS, LEAST_RECORD_BYTES)?;
        let mut records: Vec<ProbeRecord> = Vec::with_capacity(count);
        for _ in 0..count {
            let record = read_record(&mut r, size)?;
            if records.last().is_some_and(|last| last.index >= record.index) {
                return Err(DecodeError::Broken { field: "index", rule: "ascends strictly" }.into());
            }
            records.push(record);
        }
        r.end()?;
        Ok(Self { session, seq, receipt, size, root, records })
    }

    /// Where the file lies.
    pub fn name(&self) -> ProbeName {
        ProbeName { session: self.session, seq: self.seq }
    }

    /// Checks that the file belongs to `receipt`, whose signatures the caller has verified, and every record.
    pub fn check(&self, receipt: &Receipt) -> Result<(), ProbeError> {
        let checks = [
            ("session", self.session == receipt.terms.session),
            ("seq", self.seq == receipt.seq),
            ("receipt id", self.receipt == receipt.id()),
            ("work root", self.root == receipt.counters.work),
        ];
        if let Some((field, _)) = checks.into_iter().find(|(_, holds)| !holds) {
            return Err(ProbeError::OtherReceipt(field));
        }
        self.records.iter().try_for_each(|record| record.check(self.size, &self.root).map(|_| ()))
    }
}

impl ProbeRecord {
    /// Checks everything that needs no model: that payload, rows and item belong together, and that the item lies at its
    /// index in the tree of `size` items with this `root`. Gives the item.
    pub fn check(&self, size: u64, root: &Hash) -> Result<WorkItem, ProbeError> {
        self.checked(size, root).map_err(|fault| ProbeError::Record { index: self.index, fault })
    }

    /// The call, read from the payload.
    pub fn call(&self) -> Result<Call<'_>, ProbeError> {
        let fault = |error| ProbeError::Record { index: self.index, fault: RecordFault::Call(error) };
        Call::decode(&self.payload).map_err(fault)
    }

    fn checked(&self, size: u64, root: &Hash) -> Result<WorkItem, RecordFault> {
        let item = WorkItem::decode(&self.item).ok_or(RecordFault::Item)?;
        if sha256(&[&self.payload]) != item.payload {
            return Err(RecordFault::OtherPayload);
        }
        if sha256(&[&self.rows]) != item.rows {
            return Err(RecordFault::OtherRows);
        }
        let call = Call::decode(&self.payload).map_err(RecordFault::Call)?;
        let same = [
            ("call number", call.call == item.call),
            ("layer", call.layer == item.layer),
            ("mode", call.mode as u8 == item.mode),
        ];
        if let Some((field, _)) = same.into_iter().find(|(_, holds)| !holds) {
            return Err(RecordFault::Differs(field));
        }
        // A call that was decoded has whole rows and an answer that fits a payload.
        let expected = call.result_rows() * call.columns().unwrap_or(0) * 4;
        if self.rows.len() != expected {
            return Err(RecordFault::RowBytes { found: self.rows.len(), expected });
        }
        kvasir_merkle::verify_inclusion(&item.leaf(), self.index, size, &self.proof, root)?;
        Ok(item)
    }
}

impl fmt::Debug for ProbeRecord {
    /// Sizes of payload and rows, not the bytes: megabytes help nobody.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeRecord")
            .field("index", &self.index)
            .field("item", &WorkItem::decode(&self.item))
            .field("proof_hashes", &self.proof.len())
            .field("payload_bytes", &self.payload.len())
            .field("row_bytes", &self.rows.len())
            .finish()
    }
}

fn read_record(r: &mut Reader<'_>, size: u64) -> Result<ProbeRecord, ProbeError> {
    let index = r.u64("index")?;
    let item = r.array("work item")?;
    let fault = |fault| ProbeError::Record { index, fault };
    WorkItem::decode(&item).ok_or(fault(RecordFault::Item))?;
    let count = r.u8("proof hashes")?;
    within("proof hashes", count.into(), MAX_PROOF_HASHES as u64)?;
    let hashes = r.bytes("proof hashes", usize::from(count) * 32)?;
    let proof = InclusionProof::from_bytes(index, size, hashes).map_err(|error| fault(error.into()))?.hashes;
    let payload = r.byte_string("payload", MAX_PAYLOAD_BYTES)?.to_vec();
    let rows = r.byte_string("rows", MAX_PAYLOAD_BYTES)?.to_vec();
    Ok(ProbeRecord { index, item, proof, payload, rows })
}

impl ProbeName {
    /// The file's line in a list: session, a space, the receipt's number, a line feed.
    pub fn line(&self) -> String {
        format!("{} {}\n", self.session, self.seq)
    }

    /// Reads a list: lines in any order, each once spelled as [`ProbeName::line`] does.
    pub fn parse_list(text: &str) -> Result<Vec<ProbeName>, ProbeError> {
        if text.len() > MAX_PROBE_INDEX_BYTES {
            let (field, value) = ("list of probe records", text.len() as u64);
            return Err(DecodeError::AboveLimit { field, value, limit: MAX_PROBE_INDEX_BYTES as u64 }.into());
        }
        if !text.is_empty() && !text.ends_with('\n') {
            return Err(
                DecodeError::Broken { field: "list of probe records", rule: "ends in a line feed" }.into()
            );
        }
        text.split_terminator('\n').map(|line| Self::read(line, ' ', "")).collect()
    }

    fn read(text: &str, separator: char, ending: &str) -> Result<Self, ProbeError> {
        let wrong = || ProbeError::Name(text.chars().take(2 * PROBE_LINE_BYTES).collect());
        let (session, rest) = text.split_once(separator).ok_or_else(wrong)?;
        let digits = rest.strip_suffix(ending).ok_or_else(wrong)?;
        let session = session.parse().map_err(|_: IdError| wrong())?;
        let leading_zero = digits.starts_with('0');
        if leading_zero || digits.len() > 19 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let seq = digits.parse().map_err(|_| wrong())?;
        Ok(Self { session, seq })
    }
}

impl fmt::Display for ProbeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}{PROBE_ENDING}", self.session, self.seq)
    }
}

impl FromStr for ProbeName {
    type Err = ProbeError;

    fn from_str(text: &str) -> Result<Self, ProbeError> {
        Self::read(text, '/', PROBE_ENDING)
    }
}
