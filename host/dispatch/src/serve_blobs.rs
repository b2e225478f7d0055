//! Hands experts over to one worker: `want` in, chunks out, on the bulk lane, one range after the other.
//!
//! Only experts that were assigned to the worker are given. The proof that leads from the blob to the model's digest
//! travels in the first chunk of every range.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use kvasir_link::LinkSender;
use kvasir_model::{ExpertIndex, LayerIndex, Model, ModelError};
use kvasir_wire::id::ExpertDigest;
use kvasir_wire::message::{Assigned, Chunk, ExpertName, Want};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use tokio::sync::mpsc;

use crate::placement::ExpertAddress;
use crate::session::Session;

/// Ranges that a worker may have asked for and not been given.
pub(crate) const MAX_OPEN_WANTS: usize = 64;

/// The receiving half: takes wants and cancels, and hands them to the task that sends.
pub(crate) struct BlobServer {
    model: Arc<Model>,
    session: Arc<Session>,
    wanted: mpsc::Sender<Want>,
    cancelled: Arc<Mutex<HashSet<u32>>>,
}

/// The sending half.
struct Sending {
    model: Arc<Model>,
    session: Arc<Session>,
    wanted: mpsc::Receiver<Want>,
    cancelled: Arc<Mutex<HashSet<u32>>>,
}

/// What an assignment says of these experts. Reads their weights once if the model's digests are not known yet.
pub(crate) fn assignment(model: &Model, experts: &[ExpertAddress]) -> Result<Vec<Assigned>, ModelError> {
    let digests = model.digests()?;
    let mut assigned = Vec::with_capacity(experts.len());
    for &(layer, expert) in experts {
        let (layer_index, expert_index) = (LayerIndex(layer), ExpertIndex(expert));
        let blob_bytes = model.expert(layer_index, expert_index)?.blob_bytes() as u64;
        let Some(digest) = digests.expert(layer_index, expert_index) else { continue };
        let name = ExpertName { layer, expert };
        assigned.push(Assigned { name, digest: ExpertDigest(digest.0), blob_bytes });
    }
    Ok(assigned)
}

impl BlobServer {
    /// Starts the task that sends experts of `model` which the session's worker was assigned; it ends when the server is dropped or the
    /// link ends.
    pub(crate) fn start(model: Arc<Model>, session: Arc<Session>) -> Self {
        let (wanted, receiver) = mpsc::channel(MAX_OPEN_WANTS);
        let cancelled = Arc::new(Mutex::default());
        let sending = Sending {
            model: Arc::clone(&model),
            session: Arc::clone(&session),
            wanted: receiver,
            cancelled: Arc::clone(&cancelled),
        };
        tokio::spawn(sending.run());
        Self { model, session, wanted, cancelled }
    }

    /// The digest under which an expert is assigned.
    pub(crate) fn digest(&self, (layer, expert): ExpertAddress) -> Option<ExpertDigest> {
        // They were computed before anything was assigned.
        let digest = self.model.digests().ok()?.expert(LayerIndex(layer), ExpertIndex(expert))?;
        Some(ExpertDigest(digest.0))
    }

    /// Queues a range.
    pub(crate) fn want(&self, want: Want) -> Result<(), Refusal> {
        let ExpertName { layer, expert } = want.name;
        let is_assigned = self.digest((layer, expert)) == Some(want.digest) && {
            let state = self.session.state();
            // A session that has ended has nothing assigned any more; what it asked before is no fault.
            state.ended.is_some() || state.assigned.contains(&(layer, expert))
        };
        if !is_assigned {
            return Err(Refusal::new(
                RefusalCode::ProtocolError,
                format!(
                    "expert {expert} of layer {layer} was not assigned as {} in this session",
                    want.digest
                ),
                "ask only for experts of an assign message",
            ));
        }
        self.wanted.try_send(want).map_err(|_| {
            Refusal::new(
                RefusalCode::LimitReached,
                format!("more than {MAX_OPEN_WANTS} blob ranges are open at one time"),
                "wait for chunks before asking for more",
            )
        })
    }

    /// Forgets ranges.
    pub(crate) fn cancel(&self, streams: &[u32]) {
        let mut cancelled = self.cancelled.lock().unwrap_or_else(PoisonError::into_inner);
        // A worker that cancels streams it never opened gains nothing: the set is bounded, older entries only cost it a
        // break in a range that it asked for.
        if cancelled.len() > 16 * MAX_OPEN_WANTS {
            cancelled.clear();
        }
        cancelled.extend(streams);
    }
}

impl Sending {
    async fn run(mut self) {
        while let Some(want) = self.wanted.recv().await {
            if let Err(why) = self.send(want).await {
                tracing::debug!(session = %self.session.id.short(), why, "a blob range was broken off");
            }
        }
    }

    async fn send(&self, want: Want) -> Result<(), String> {
        let link = &self.session.link;
        let Some((blob, head)) = self.read(want).await else {
            return break_off(link, want.stream, want.offset).await;
        };
        let end = want.offset.saturating_add(want.length).min(blob.len() as u64);
        if want.offset >= end {
            return break_off(link, want.stream, want.offset).await;
        }
        let mut proof = head.proof;
        let mut offset = want.offset;
        while offset < end {
            if self.is_cancelled(want.stream) || self.session.has_ended() {
                return break_off(link, want.stream, offset).await;
            }
            let room = Chunk::room(proof.as_ref()) as u64;
            let to = end.min(offset + room);
            let chunk = Chunk { offset, proof: proof.take(), data: &blob[offset as usize..to as usize] };
            let bytes = chunk.encode();
            link.send_chunk(want.stream, bytes, to < end).await.map_err(|error| error.to_string())?;
            self.session.state().numbers.expert_bytes += to - offset;
            offset = to;
        }
        Ok(())
    }

    /// The blob, and a first chunk that holds its proof and no data yet. Read off the runtime's threads: the file may have
    /// to be fetched from a disk.
    async fn read(&self, want: Want) -> Option<(Vec<u8>, Chunk<'static>)> {
        let ExpertName { layer, expert } = want.name;
        // It may have been taken back since it was asked for.
        if !self.session.state().assigned.contains(&(layer, expert)) {
            return None;
        }
        let model = Arc::clone(&self.model);
        let read = tokio::task::spawn_blocking(move || {
            let (layer, expert) = (LayerIndex(layer), ExpertIndex(expert));
            let blob = model.expert(layer, expert)?.blob();
            Ok::<_, ModelError>((blob, model.digests()?.proof(layer, expert)))
        });
        match read.await {
            Ok(Ok((blob, Some(proof)))) => {
                Some((blob, Chunk { offset: want.offset, proof: Some(proof), data: &[] }))
            }
            Ok(Ok((_, None))) | Err(_) => None,
            Ok(Err(error)) => {
                tracing::warn!(%error, layer, expert, "an expert cannot be read");
                None
            }
        }
    }

    fn is_cancelled(&self, stream: u32) -> bool {
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream)
    }
}

/// The last chunk of a range, empty.
async fn break_off(link: &LinkSender, stream: u32, offset: u64) -> Result<(), String> {
    let chunk = Chunk { offset, proof: None, data: &[] };
    link.send_chunk(stream, chunk.encode(), false).await.map_err(|error| error.to_string())
}
