//! Experts on their way to a worker: which were asked for, what of them has come.
//!
//! A blob is asked for as one range, on a stream of its own, a few at a time. The proof in its first chunk is checked
//! before the rest is taken, so that a blob of another model, or of another expert than the name says, costs one chunk. Of an expert whose weights may be on this
//! machine, one byte is asked for: the proof comes with it. What a session leaves half way is [`Beginnings`] for the next
//! one, which asks for the rest. Nothing here loads or sends.

use std::collections::{HashMap, VecDeque};

use kvasir_merkle::Hash;
use kvasir_model::{ExpertIndex, LayerIndex, expert_leaf};
use kvasir_wire::codec::DecodeError;
use kvasir_wire::id::{ExpertDigest, ModelDigest};
use kvasir_wire::key::PublicKey;
use kvasir_wire::message::{Assigned, Chunk, ExpertName, NotHeldReason, Want};

use crate::store::LoadError;

/// Blobs asked for at one time: while one is on its way, the next one's request is too.
const MAX_OPEN: usize = 4;

/// Experts that may wait; an assignment beyond it is refused.
pub(crate) const MAX_WAITING: usize = 64 * 1024;

/// Bytes of beginnings that are kept from one session to the next; more are fetched again.
const MAX_BEGINNING_BYTES: usize = 64 << 20;

/// First stream for blobs; they are odd.
const FIRST_STREAM: u32 = 3;

/// The experts of one session that are not here yet.
#[derive(Debug)]
pub(crate) struct Fetches {
    model: ModelDigest,
    waiting: VecDeque<(Assigned, Extent)>,
    open: HashMap<u32, Fetch>,
    next_stream: u32,
    /// What came of blobs in an earlier session.
    begun: HashMap<ExpertDigest, Vec<u8>>,
}

/// What came of blobs before their session ended. It is of use with the same backbone alone: another one would pay with a
/// refused blob for what the first one sent.
#[derive(Debug, Default)]
pub(crate) struct Beginnings {
    of: Option<(PublicKey, ModelDigest)>,
    blobs: HashMap<ExpertDigest, Vec<u8>>,
}

/// How much of a blob is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it.
    Whole,
    /// Its proof, and a byte that is of no interest.
    Proof,
}

/// What an expert is fetched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be called.
    Serve,
    /// For the candidate, which computes beside the kernel that is called.
    Shadow,
}

#[derive(Debug)]
struct Fetch {
    assigned: Assigned,
    extent: Extent,
    purpose: Purpose,
    /// Bytes that were here before.
    begun: usize,
    blob: Vec<u8>,
}

/// What a chunk brought.
#[derive(Debug)]
pub(crate) enum Taken {
    /// More is to come.
    More,
    /// The blob has come whole; its digest is still to be checked.
    Whole(Assigned, Purpose, Vec<u8>),
    /// The proof alone was asked for, and it holds.
    Proven(Assigned, Purpose),
    /// It is not what was asked for. Where `cancel` is set, the rest of the range is still on its way.
    Refused { name: ExpertName, purpose: Purpose, error: LoadError, cancel: bool },
}

impl Fetches {
    pub(crate) fn new(model: ModelDigest) -> Self {
        let (waiting, open, begun) = (VecDeque::new(), HashMap::new(), HashMap::new());
        Self { model, waiting, open, next_stream: FIRST_STREAM, begun }
    }

    /// The fetches of a session with `backbone`, which go on with what an earlier one began.
    pub(crate) fn going_on(model: ModelDigest, backbone: PublicKey, beginnings: Beginnings) -> Self {
        let begun = if beginnings.of == Some((backbone, model)) { beginnings.blobs } else { HashMap::new() };
        Self { begun, ..Self::new(model) }
    }

    /// What came of blobs that are half way, when the session with `backbone` is over.
    pub(crate) fn leave(&mut self, backbone: PublicKey) -> Beginnings {
        let mut beginnings = Beginnings { of: Some((backbone, self.model)), ..Beginnings::default() };
        let open = self.open.drain().map(|(_, fetch)| fetch).filter(|fetch| fetch.extent == Extent::Whole);
        let open = open.map(|fetch| (fetch.assigned.digest, fetch.blob));
        let mut left = MAX_BEGINNING_BYTES;
        for (digest, blob) in open.chain(self.begun.drain()) {
            if !blob.is_empty() && blob.len() <= left {
                left -= blob.len();
                beginnings.blobs.insert(digest, blob);
            }
        }
        beginnings
    }

    /// Queues an expert; false if too many wait.
    pub(crate) fn add(&mut self, assigned: Assigned, extent: Extent) -> bool {
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        self.waiting.push_back((assigned, extent));
        true
    }

    /// The next request to send, if one may be sent now.
    pub(crate) fn next_want(&mut self) -> Option<Want> {
        if self.open.len() >= MAX_OPEN {
            return None;
        }
        let (assigned, extent) = self.waiting.pop_front()?;
        self.open(assigned, extent, Purpose::Serve)
    }

    /// A request for an expert of the candidate's, if nothing that is to be called waits.
    pub(crate) fn shadow_want(&mut self, assigned: Assigned, extent: Extent) -> Option<Want> {
        if !self.waiting.is_empty() || self.open.len() >= MAX_OPEN {
            return None;
        }
        self.open(assigned, extent, Purpose::Shadow)
    }

    fn open(&mut self, assigned: Assigned, extent: Extent, purpose: Purpose) -> Option<Want> {
        let stream = self.next_stream;
        self.next_stream = stream.checked_add(2)?;
        let blob = match extent {
            Extent::Whole => self.begun.remove(&assigned.digest).unwrap_or_default(),
            Extent::Proof => Vec::new(),
        };
        // Where the blob is shorter than what came of it, somebody lied about one of the two.
        let blob = if (blob.len() as u64) < assigned.blob_bytes { blob } else { Vec::new() };
        let fetch = Fetch { assigned, extent, purpose, begun: blob.len(), blob };
        let offset = fetch.begun as u64;
        let Assigned { name, digest, .. } = assigned;
        let want = Want { stream, name, digest, offset, length: fetch.wanted_bytes() - offset };
        self.open.insert(stream, fetch);
        Some(want)
    }

    /// Whether nothing is on its way and nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.open.is_empty()
    }

    /// An expert is not wanted any more. Gives the streams on which it was being fetched.
    pub(crate) fn forget(&mut self, name: ExpertName) -> Vec<u32> {
        self.waiting.retain(|(assigned, _)| assigned.name != name);
        let streams: Vec<u32> = self
            .open
            .iter()
            .filter(|(_, fetch)| fetch.assigned.name == name)
            .map(|(stream, _)| *stream)
            .collect();
        self.open.retain(|stream, _| !streams.contains(stream));
        streams
    }

    /// Nothing is wanted for the candidate any more. Gives the streams of what was on its way.
    pub(crate) fn forget_shadow(&mut self) -> Vec<u32> {
        let is_shadow = |fetch: &Fetch| fetch.purpose == Purpose::Shadow;
        let streams = self.open.iter().filter(|(_, fetch)| is_shadow(fetch)).map(|(stream, _)| *stream);
        let streams: Vec<u32> = streams.collect();
        self.open.retain(|_, fetch| !is_shadow(fetch));
        streams
    }

    /// Takes a chunk. Chunks on streams that were given up are let pass: they were on their way.
    pub(crate) fn take(&mut self, stream: u32, payload: &[u8], more: bool) -> Result<Taken, DecodeError> {
        let chunk = Chunk::decode(payload)?;
        let Some(fetch) = self.open.get_mut(&stream) else {
            if stream >= self.next_stream {
                return Err(DecodeError::Broken {
                    field: "chunk",
                    rule: "comes on a stream that a want named",
                });
            }
            return Ok(Taken::More);
        };
        if let Err(error) = fetch.accept(&chunk, &self.model, more) {
            let (name, purpose) = (fetch.assigned.name, fetch.purpose);
            self.open.remove(&stream);
            return Ok(Taken::Refused { name, purpose, error, cancel: more });
        }
        if more {
            return Ok(Taken::More);
        }
        match self.open.remove(&stream) {
            Some(Fetch { assigned, purpose, extent: Extent::Proof, .. }) => {
                Ok(Taken::Proven(assigned, purpose))
            }
            Some(Fetch { assigned, purpose, blob, .. }) => Ok(Taken::Whole(assigned, purpose, blob)),
            None => Ok(Taken::More),
        }
    }
}

impl Fetch {
    fn wanted_bytes(&self) -> u64 {
        match self.extent {
            Extent::Whole => self.assigned.blob_bytes,
            Extent::Proof => 1,
        }
    }

    fn accept(&mut self, chunk: &Chunk<'_>, model: &ModelDigest, more: bool) -> Result<(), LoadError> {
        let broken = |sentence: String| LoadError::new(NotHeldReason::NotReceived, sentence);
        let expected = self.blob.len() as u64;
        if chunk.offset != expected {
            return Err(broken(format!(
                "a chunk at byte {} came where byte {expected} was due",
                chunk.offset
            )));
        }
        if self.blob.len() == self.begun && !chunk.data.is_empty() {
            self.check_proof(chunk, model)?;
        }
        let length = expected + chunk.data.len() as u64;
        let wanted = self.wanted_bytes();
        if length > wanted || (!more && length < wanted) {
            return Err(broken(format!("{length} bytes came of a range of {wanted}")));
        }
        self.blob.extend_from_slice(chunk.data);
        Ok(())
    }

    fn check_proof(&self, chunk: &Chunk<'_>, model: &ModelDigest) -> Result<(), LoadError> {
        let failed = |sentence: String| LoadError::new(NotHeldReason::ProofFailed, sentence);
        let proof =
            chunk.proof.as_ref().ok_or_else(|| failed("the first chunk brought no proof".to_owned()))?;
        let Assigned { name, digest, .. } = self.assigned;
        let digest_of_model = kvasir_model::ExpertDigest(digest.0);
        let leaf = expert_leaf(LayerIndex(name.layer), ExpertIndex(name.expert), &digest_of_model);
        proof.verify(&leaf, &Hash(model.0)).map_err(|error| {
            failed(format!(
                "the proof does not lead from {digest} as expert {} of layer {} to model {model}: {error}",
                name.expert, name.layer
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use kvasir_merkle::{inclusion_proof, root};

    use super::*;

    const NAME: ExpertName = ExpertName { layer: 2, expert: 1 };

    struct Scene {
        fetches: Fetches,
        proof: kvasir_merkle::InclusionProof,
        stream: u32,
    }

    fn leaf(name: ExpertName, seed: u8) -> Hash {
        let digest = kvasir_model::ExpertDigest([seed; 32]);
        expert_leaf(LayerIndex(name.layer), ExpertIndex(name.expert), &digest)
    }

    fn scene() -> Scene {
        let leaves: Vec<Hash> = (0..5).map(|seed| leaf(NAME, seed)).collect();
        let mut fetches = Fetches::new(ModelDigest(root(&leaves).0));
        assert!(
            fetches
                .add(Assigned { name: NAME, digest: ExpertDigest([3; 32]), blob_bytes: 10 }, Extent::Whole)
        );
        let stream = fetches.next_want().unwrap().stream;
        Scene { fetches, proof: inclusion_proof(&leaves, 3).unwrap(), stream }
    }

    fn take(scene: &mut Scene, offset: u64, proof: bool, data: &[u8], more: bool) -> Taken {
        let chunk = Chunk { offset, proof: proof.then(|| scene.proof.clone()), data };
        scene.fetches.take(scene.stream, &chunk.encode(), more).unwrap()
    }

    fn reason(taken: Taken) -> NotHeldReason {
        match taken {
            Taken::Refused { error, .. } => error.reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_blob_comes_in_chunks() {
        let mut scene = scene();
        assert_eq!(scene.stream, 3);
        assert!(matches!(take(&mut scene, 0, true, b"01234", true), Taken::More));
        let Taken::Whole(assigned, Purpose::Serve, blob) = take(&mut scene, 5, false, b"56789", false) else {
            panic!()
        };
        assert_eq!((assigned.name, &blob[..]), (NAME, &b"0123456789"[..]));
    }

    #[test]
    fn proofs_are_demanded_and_checked_with_the_first_chunk() {
        assert_eq!(reason(take(&mut scene(), 0, false, b"0", true)), NotHeldReason::ProofFailed);
        let mut other = scene();
        other.proof.index = 2;
        assert_eq!(reason(take(&mut other, 0, true, b"0", true)), NotHeldReason::ProofFailed);
        let mut other = scene();
        other.proof.hashes[0].0[7] ^= 1;
        assert_eq!(reason(take(&mut other, 0, true, b"0", true)), NotHeldReason::ProofFailed);
    }

    /// A backbone that has an expert computed under another one's name would have whoever computed it convicted.
    #[test]
    fn an_expert_of_the_model_is_refused_under_the_name_of_another() {
        let names = [NAME, ExpertName { layer: 2, expert: 2 }, ExpertName { layer: 3, expert: 1 }];
        let leaves: Vec<Hash> = names.iter().zip(0..).map(|(name, seed)| leaf(*name, seed)).collect();
        for (at, seed) in (0..names.len()).zip(0..) {
            for extent in [Extent::Whole, Extent::Proof] {
                let assigned = Assigned { name: NAME, digest: ExpertDigest([seed; 32]), blob_bytes: 1 };
                let mut fetches = Fetches::new(ModelDigest(root(&leaves).0));
                assert!(fetches.add(assigned, extent));
                let stream = fetches.next_want().unwrap().stream;
                let proof = Some(inclusion_proof(&leaves, at as u64).unwrap());
                let chunk = Chunk { offset: 0, proof, data: b"0" };
                let taken = fetches.take(stream, &chunk.encode(), false).unwrap();
                match taken {
                    Taken::Whole(..) | Taken::Proven(..) => assert_eq!(at, 0),
                    Taken::Refused { error, .. } => {
                        assert!(at > 0 && error.reason == NotHeldReason::ProofFailed, "{error:?}");
                    }
                    Taken::More => panic!("the range is over"),
                }
            }
        }
    }

    #[test]
    fn a_proof_alone_costs_one_byte() {
        let mut scene = scene();
        let assigned = Assigned { name: NAME, digest: ExpertDigest([3; 32]), blob_bytes: 10 };
        assert!(scene.fetches.add(assigned, Extent::Proof));
        let want = scene.fetches.next_want().unwrap();
        assert_eq!(want.length, 1);
        scene.stream = want.stream;
        assert!(
            matches!(take(&mut scene, 0, true, b"0", false), Taken::Proven(proven, Purpose::Serve) if proven == assigned)
        );
    }

    #[test]
    fn gaps_overruns_and_short_blobs_are_refused() {
        assert_eq!(reason(take(&mut scene(), 1, true, b"0", true)), NotHeldReason::NotReceived);
        assert_eq!(reason(take(&mut scene(), 0, true, b"01234567890", true)), NotHeldReason::NotReceived);
        assert_eq!(reason(take(&mut scene(), 0, true, b"012", false)), NotHeldReason::NotReceived);
        assert_eq!(reason(take(&mut scene(), 0, false, b"", false)), NotHeldReason::NotReceived);
    }

    #[test]
    fn chunks_after_giving_up_pass_and_unasked_ones_do_not() {
        let mut scene = scene();
        assert_eq!(scene.fetches.forget(NAME), [3]);
        assert!(matches!(take(&mut scene, 0, true, b"0", true), Taken::More));
        let chunk = Chunk { offset: 0, proof: None, data: b"0" };
        assert!(scene.fetches.take(5, &chunk.encode(), false).is_err());
    }

    #[test]
    fn a_blob_that_is_half_way_goes_on_in_the_next_session_with_the_same_backbone() {
        let backbone = |seed| kvasir_wire::key::SecretKey::from_seed([seed; 32]).public();
        let model = scene().fetches.model;
        let assigned = Assigned { name: NAME, digest: ExpertDigest([3; 32]), blob_bytes: 10 };
        let cut = || {
            let mut scene = scene();
            take(&mut scene, 0, true, b"01234", true);
            scene.fetches.leave(backbone(1))
        };
        let mut next = scene();
        next.fetches = Fetches::going_on(model, backbone(1), cut());
        assert!(next.fetches.add(assigned, Extent::Whole));
        let want = next.fetches.next_want().unwrap();
        assert_eq!((want.offset, want.length), (5, 5));
        // The proof comes with the first chunk of every range, and is demanded of it.
        assert!(matches!(take(&mut next, 5, true, b"56", true), Taken::More));
        let Taken::Whole(_, _, blob) = take(&mut next, 7, false, b"789", false) else { panic!() };
        assert_eq!(blob, b"0123456789");

        let mut unproven = scene();
        unproven.fetches = Fetches::going_on(model, backbone(1), cut());
        unproven.fetches.add(assigned, Extent::Whole);
        unproven.fetches.next_want().unwrap();
        assert_eq!(reason(take(&mut unproven, 5, false, b"56", true)), NotHeldReason::ProofFailed);

        let mut others = Fetches::going_on(model, backbone(2), cut());
        assert!(others.add(assigned, Extent::Whole));
        assert_eq!(others.next_want().unwrap().offset, 0, "another backbone begins anew");
    }

    #[test]
    fn more_than_the_limit_is_not_kept_for_the_next_session() {
        let mut fetches = Fetches::new(ModelDigest([0; 32]));
        for (seed, bytes) in [(1, MAX_BEGINNING_BYTES), (2, 1)] {
            fetches.begun.insert(ExpertDigest([seed; 32]), vec![0; bytes]);
        }
        let beginnings = fetches.leave(kvasir_wire::key::SecretKey::from_seed([1; 32]).public());
        assert_eq!(beginnings.blobs.len(), 1);
    }

    #[test]
    fn few_are_open_and_the_waiting_are_bounded() {
        let mut fetches = Fetches::new(ModelDigest([0; 32]));
        let assigned = Assigned { name: NAME, digest: ExpertDigest([3; 32]), blob_bytes: 10 };
        for _ in 0..MAX_WAITING {
            assert!(fetches.add(assigned, Extent::Proof));
        }
        assert!(!fetches.add(assigned, Extent::Whole));
        let streams: Vec<u32> = std::iter::from_fn(|| fetches.next_want()).map(|want| want.stream).collect();
        assert_eq!(streams, [3, 5, 7, 9]);
    }
}
