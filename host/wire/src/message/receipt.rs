//! `receipt` and `countersign`: the conversation in which hub, backbone and worker sign one text.
//!
//! The text's grammar is in [`crate::receipt`]; here it is only carried. Order: the hub cuts (to the backbone), the
//! backbone countersigns with the text, the hub proposes it (to the worker), the worker countersigns, the hub posts the
//! note and sends it to both.

use crate::codec::{DecodeError, Reader, Writer};
use crate::key::Signature;
use crate::limits::{MAX_CALL_ID, MAX_EXCLUDED_CALLS, MAX_NOTE_BYTES};

/// The hub's numbers at a cut. All are cumulative over the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutRequest {
    /// Number of the receipt, from 1.
    pub seq: u64,
    /// SHA-256 of the receipt's text before; zeros at the first.
    pub prev: [u8; 32],
    /// Results relayed so far; the receipt is about exactly these.
    pub results: u64,
    /// Payload bytes of their calls, by the hub's meter.
    pub up: u64,
    /// Payload bytes of the results, by the hub's meter.
    pub down: u64,
    /// Unix seconds by the hub's clock: the first byte.
    pub from: u64,
    /// Unix seconds by the hub's clock: now.
    pub to: u64,
    /// The session ends with it.
    pub is_final: bool,
}

/// The payload of a `receipt` frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiptMessage {
    /// To the backbone: write and sign the receipt for these numbers.
    Cut(CutRequest),
    /// To the worker: check this text against your own books and sign it.
    Proposal {
        /// The receipt's text.
        text: String,
        /// Calls whose results do not count, ascending.
        excluded: Vec<u64>,
        /// The hub's signature over the text.
        hub: Signature,
        /// The backbone's signature over the text.
        backbone: Signature,
    },
    /// To both: the note as the ledger has it.
    Complete {
        /// Text and signature lines.
        note: String,
    },
}

impl ReceiptMessage {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        match self {
            ReceiptMessage::Cut(cut) => {
                w.u8(1).u8(cut.is_final.into()).u64(cut.seq).bytes(&cut.prev);
                w.u64(cut.results).u64(cut.up).u64(cut.down).u64(cut.from).u64(cut.to);
            }
            ReceiptMessage::Proposal { text, excluded, hub, backbone } => {
                w.u8(2).string(text);
                write_excluded(&mut w, excluded);
                w.bytes(&hub.0).bytes(&backbone.0);
            }
            ReceiptMessage::Complete { note } => {
                w.u8(3).string(note);
            }
        }
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<ReceiptMessage, DecodeError> {
        let mut r = Reader::new(payload);
        let message = match r.u8("receipt step")? {
            1 => {
                let is_final = r.flag("final")?;
                let seq = r.u64("seq")?;
                let prev = r.array("prev")?;
                let results = r.u64("results")?;
                let (up, down) = (r.u64("up")?, r.u64("down")?);
                let (from, to) = (r.u64("from")?, r.u64("to")?);
                if seq == 0 {
                    return Err(DecodeError::Broken { field: "seq", rule: "counts from 1" });
                }
                if (seq == 1) != (prev == [0; 32]) {
                    return Err(DecodeError::Broken {
                        field: "prev",
                        rule: "zeros at the first and only there",
                    });
                }
                if to < from {
                    return Err(DecodeError::Broken { field: "to", rule: "not before from" });
                }
                ReceiptMessage::Cut(CutRequest { seq, prev, results, up, down, from, to, is_final })
            }
            2 => {
                let text = r.string("text", MAX_NOTE_BYTES)?.to_owned();
                let excluded = read_excluded(&mut r)?;
                let hub = Signature(r.array("hub signature")?);
                let backbone = Signature(r.array("backbone signature")?);
                ReceiptMessage::Proposal { text, excluded, hub, backbone }
            }
            3 => ReceiptMessage::Complete { note: r.string("note", MAX_NOTE_BYTES)?.to_owned() },
            value => return Err(DecodeError::UnknownValue { field: "receipt step", value: value.into() }),
        };
        r.end()?;
        Ok(message)
    }
}

/// The payload of a `countersign` frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Countersign {
    /// The backbone's answer to a cut.
    Backbone {
        /// The receipt's text.
        text: String,
        /// Calls whose results it did not accept, ascending.
        excluded: Vec<u64>,
        /// Its signature over the text.
        signature: Signature,
    },
    /// The worker's answer to a proposal.
    Worker {
        /// Number of the receipt.
        seq: u64,
        /// Its signature over the text.
        signature: Signature,
    },
}

impl Countersign {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        match self {
            Countersign::Backbone { text, excluded, signature } => {
                w.u8(1).string(text);
                write_excluded(&mut w, excluded);
                w.bytes(&signature.0);
            }
            Countersign::Worker { seq, signature } => {
                w.u8(2).u64(*seq).bytes(&signature.0);
            }
        }
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Countersign, DecodeError> {
        let mut r = Reader::new(payload);
        let message = match r.u8("countersign step")? {
            1 => {
                let text = r.string("text", MAX_NOTE_BYTES)?.to_owned();
                let excluded = read_excluded(&mut r)?;
                Countersign::Backbone { text, excluded, signature: Signature(r.array("signature")?) }
            }
            2 => Countersign::Worker { seq: r.u64("seq")?, signature: Signature(r.array("signature")?) },
            value => {
                return Err(DecodeError::UnknownValue { field: "countersign step", value: value.into() });
            }
        };
        r.end()?;
        Ok(message)
    }
}

fn write_excluded(w: &mut Writer, excluded: &[u64]) {
    w.u32(excluded.len() as u32);
    for call in excluded {
        w.u64(*call);
    }
}

fn read_excluded(r: &mut Reader<'_>) -> Result<Vec<u64>, DecodeError> {
    let count = r.u32("excluded calls")?;
    let count = r.check_count("excluded calls", count.into(), MAX_EXCLUDED_CALLS, 8)?;
    let calls = (0..count).map(|_| r.u64("excluded call")).collect::<Result<Vec<_>, _>>()?;
    let ascending = calls.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || calls.iter().any(|call| *call == 0 || *call > MAX_CALL_ID) {
        return Err(DecodeError::Broken {
            field: "excluded calls",
            rule: "call numbers, strictly ascending",
        });
    }
    Ok(calls)
}
