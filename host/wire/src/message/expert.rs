//! `assign`, `release`, `have`, `want`, `chunk`: experts on their way to a worker.

use kvasir_merkle::{Hash, InclusionProof, MAX_PROOF_HASHES};

use crate::codec::{DecodeError, Reader, Writer, within};
use crate::frame::StreamClass;
use crate::id::ExpertDigest;
use crate::limits::{MAX_BLOB_BYTES, MAX_BULK_PAYLOAD_BYTES, MAX_EXPERTS_PER_MESSAGE};

/// One expert of the session's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertName {
    /// Layer.
    pub layer: u16,
    /// Index in the layer.
    pub expert: u16,
}

/// One expert to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigned {
    /// Which.
    pub name: ExpertName,
    /// Digest of its blob.
    pub digest: ExpertDigest,
    /// Length of its blob in bytes.
    pub blob_bytes: u64,
}

/// The payload of an `assign` frame: experts to fetch, if they are not at hand, and to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assign {
    /// The experts, ascending and each once.
    pub experts: Vec<Assigned>,
}

impl Assign {
    /// The payload. At most [`MAX_EXPERTS_PER_MESSAGE`] experts.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(4 + self.experts.len() * ASSIGNED_BYTES);
        w.u32(self.experts.len() as u32);
        for assigned in &self.experts {
            write_name(&mut w, assigned.name);
            w.bytes(assigned.digest.as_bytes()).u64(assigned.blob_bytes);
        }
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Assign, DecodeError> {
        let mut r = Reader::new(payload);
        let count = r.u32("experts")?;
        let count = r.check_count("experts", count.into(), MAX_EXPERTS_PER_MESSAGE, ASSIGNED_BYTES)?;
        let mut experts = Vec::with_capacity(count);
        for _ in 0..count {
            let name = read_name(&mut r)?;
            let digest = ExpertDigest(r.array("digest")?);
            let blob_bytes = r.u64("blob bytes")?;
            if blob_bytes == 0 {
                return Err(DecodeError::Broken {
                    field: "blob bytes",
                    rule: "a blob has at least one byte",
                });
            }
            within("blob bytes", blob_bytes, MAX_BLOB_BYTES)?;
            experts.push(Assigned { name, digest, blob_bytes });
        }
        r.end()?;
        check_ascending(experts.iter().map(|assigned| assigned.name))?;
        Ok(Assign { experts })
    }
}

/// The payload of a `release` frame: experts to drop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The experts, ascending and each once.
    pub experts: Vec<ExpertName>,
}

impl Release {
    /// The payload. At most [`MAX_EXPERTS_PER_MESSAGE`] experts.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(4 + self.experts.len() * 4);
        w.u32(self.experts.len() as u32);
        for name in &self.experts {
            write_name(&mut w, *name);
        }
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Release, DecodeError> {
        let mut r = Reader::new(payload);
        let count = r.u32("experts")?;
        let count = r.check_count("experts", count.into(), MAX_EXPERTS_PER_MESSAGE, 4)?;
        let experts = (0..count).map(|_| read_name(&mut r)).collect::<Result<Vec<_>, _>>()?;
        r.end()?;
        check_ascending(experts.iter().copied())?;
        Ok(Release { experts })
    }
}

/// One expert that a worker holds, checked and loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Which.
    pub name: ExpertName,
    /// Digest of its blob.
    pub digest: ExpertDigest,
}

/// Why an assigned expert is not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NotHeldReason {
    /// No memory left for it.
    NoMemory = 1,
    /// The blob's digest is another.
    DigestMismatch = 2,
    /// The proof does not lead to the session's model.
    ProofFailed = 3,
    /// The kernel does not take its formats or shape.
    Unsupported = 4,
    /// The weights break a rule of their format.
    MalformedWeights = 5,
    /// The blob did not come.
    NotReceived = 6,
    /// It was released.
    Released = 7,
}

impl NotHeldReason {
    /// The reason of a number, if there is one.
    pub const fn from_number(number: u8) -> Option<NotHeldReason> {
        match number {
            1 => Some(NotHeldReason::NoMemory),
            2 => Some(NotHeldReason::DigestMismatch),
            3 => Some(NotHeldReason::ProofFailed),
            4 => Some(NotHeldReason::Unsupported),
            5 => Some(NotHeldReason::MalformedWeights),
            6 => Some(NotHeldReason::NotReceived),
            7 => Some(NotHeldReason::Released),
            _ => None,
        }
    }
}

/// One expert that a worker was assigned and does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotHeld {
    /// Which.
    pub name: ExpertName,
    /// Why.
    pub reason: NotHeldReason,
}

/// The payload of a `have` frame: what changed since the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Have {
    /// Bytes of weights that the worker could still take.
    pub free_bytes: u64,
    /// Experts that are held now, ascending and each once.
    pub held: Vec<Held>,
    /// Experts that are not, ascending and each once.
    pub not_held: Vec<NotHeld>,
}

impl Have {
    /// The payload. At most [`MAX_EXPERTS_PER_MESSAGE`] experts in each list.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(16 + self.held.len() * 36 + self.not_held.len() * 5);
        w.u64(self.free_bytes).u32(self.held.len() as u32);
        for held in &self.held {
            write_name(&mut w, held.name);
            w.bytes(held.digest.as_bytes());
        }
        w.u32(self.not_held.len() as u32);
        for not_held in &self.not_held {
            write_name(&mut w, not_held.name);
            w.u8(not_held.reason as u8);
        }
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Have, DecodeError> {
        let mut r = Reader::new(payload);
        let free_bytes = r.u64("free bytes")?;
        let count = r.u32("held")?;
        let count = r.check_count("held", count.into(), MAX_EXPERTS_PER_MESSAGE, 36)?;
        let mut held = Vec::with_capacity(count);
        for _ in 0..count {
            held.push(Held { name: read_name(&mut r)?, digest: ExpertDigest(r.array("digest")?) });
        }
        let count = r.u32("not held")?;
        let count = r.check_count("not held", count.into(), MAX_EXPERTS_PER_MESSAGE, 5)?;
        let mut not_held = Vec::with_capacity(count);
        for _ in 0..count {
            let name = read_name(&mut r)?;
            let reason = r.u8("reason")?;
            let reason = NotHeldReason::from_number(reason)
                .ok_or(DecodeError::UnknownValue { field: "reason", value: reason.into() })?;
            not_held.push(NotHeld { name, reason });
        }
        r.end()?;
        check_ascending(held.iter().map(|held| held.name))?;
        check_ascending(not_held.iter().map(|not_held| not_held.name))?;
        Ok(Have { free_bytes, held, not_held })
    }
}

/// The payload of a `want` frame: a range of an expert's blob, to be answered on `stream`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Odd stream from 3 that the worker chose for the answer; not one in use.
    pub stream: u32,
    /// The expert. Two may have one blob, and each has a proof of its own.
    pub name: ExpertName,
    /// Its blob.
    pub digest: ExpertDigest,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least one.
    pub length: u64,
}

impl Want {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(self.stream).u16(self.name.layer).u16(self.name.expert);
        w.bytes(self.digest.as_bytes()).u64(self.offset).u64(self.length);
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Want, DecodeError> {
        let mut r = Reader::new(payload);
        let stream = r.u32("stream")?;
        let name = ExpertName { layer: r.u16("layer")?, expert: r.u16("expert")? };
        let digest = ExpertDigest(r.array("digest")?);
        let (offset, length) = (r.u64("offset")?, r.u64("length")?);
        r.end()?;
        if StreamClass::of(stream) != StreamClass::Blob {
            return Err(DecodeError::Broken { field: "stream", rule: "blobs travel on odd streams from 3" });
        }
        if length == 0 {
            return Err(DecodeError::Broken { field: "length", rule: "at least one byte" });
        }
        within("offset", offset, MAX_BLOB_BYTES)?;
        within("offset and length", offset.saturating_add(length), MAX_BLOB_BYTES)?;
        Ok(Want { stream, name, digest, offset, length })
    }
}

/// The payload of a `chunk` frame. The frame's flag `more` says that the range goes on; the last one has no `more`, and
/// is empty where the sender breaks off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Offset in the blob of the first byte of `data`.
    pub offset: u64,
    /// In the first chunk of a range: the blob's place in the model digest.
    pub proof: Option<InclusionProof>,
    /// Bytes of the blob.
    pub data: &'a [u8],
}

impl<'a> Chunk<'a> {
    /// Bytes of data that fit into a chunk with this proof.
    pub fn room(proof: Option<&InclusionProof>) -> usize {
        MAX_BULK_PAYLOAD_BYTES
            - CHUNK_HEAD_BYTES
            - proof.map_or(0, |p| PROOF_HEAD_BYTES + 32 * p.hashes.len())
    }

    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(MAX_BULK_PAYLOAD_BYTES);
        w.u64(self.offset).u8(self.proof.is_some().into());
        if let Some(proof) = &self.proof {
            w.u64(proof.index).u64(proof.size).u8(proof.hashes.len() as u8);
            for hash in &proof.hashes {
                w.bytes(hash.as_bytes());
            }
        }
        w.bytes(self.data);
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &'a [u8]) -> Result<Chunk<'a>, DecodeError> {
        within("chunk", payload.len() as u64, MAX_BULK_PAYLOAD_BYTES as u64)?;
        let mut r = Reader::new(payload);
        let offset = within("offset", r.u64("offset")?, MAX_BLOB_BYTES)?;
        let proof = if r.flag("proof")? {
            let (index, size) = (r.u64("proof index")?, r.u64("proof size")?);
            let count = r.u8("proof hashes")?;
            let count = r.check_count("proof hashes", count.into(), MAX_PROOF_HASHES, 32)?;
            if index >= size {
                return Err(DecodeError::Broken { field: "proof index", rule: "must be below the size" });
            }
            let hashes =
                (0..count).map(|_| r.array::<32>("proof hash").map(Hash)).collect::<Result<Vec<_>, _>>()?;
            Some(InclusionProof { index, size, hashes })
        } else {
            None
        };
        let data = r.rest();
        within("offset and data", offset + data.len() as u64, MAX_BLOB_BYTES)?;
        Ok(Chunk { offset, proof, data })
    }
}

const ASSIGNED_BYTES: usize = 4 + 32 + 8;
const CHUNK_HEAD_BYTES: usize = 9;
const PROOF_HEAD_BYTES: usize = 17;

fn write_name(w: &mut Writer, name: ExpertName) {
    w.u16(name.layer).u16(name.expert);
}

fn read_name(r: &mut Reader<'_>) -> Result<ExpertName, DecodeError> {
    Ok(ExpertName { layer: r.u16("layer")?, expert: r.u16("expert")? })
}

fn check_ascending(names: impl Iterator<Item = ExpertName>) -> Result<(), DecodeError> {
    let mut last = None;
    for name in names {
        if last.is_some_and(|last| last >= name) {
            return Err(DecodeError::Broken { field: "experts", rule: "ascend strictly by layer and index" });
        }
        last = Some(name);
    }
    Ok(())
}
