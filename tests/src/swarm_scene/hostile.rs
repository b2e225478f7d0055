//! A backbone that follows the protocol up to the point where it lies.

use kvasir_link::{LinkOptions, Session, connect_backbone};
use kvasir_model::{ExpertIndex, LayerIndex, Model};
use kvasir_wire::account::{Grant, Statement as _};
use kvasir_wire::frame::{HUB_STREAM, Kind, PAIR_STREAM};
use kvasir_wire::handshake::{BackboneOffer, Class, Features, Purpose};
use kvasir_wire::id::{ExpertDigest, ModelDigest, PluginDigest};
use kvasir_wire::message::{Assign, Assigned, Chunk, ExpertName, Have, Want};
use kvasir_wire::money::MeteredBytes;
use kvasir_wire::pairing::{Expectation, PairRequest};
use kvasir_wire::ticket::Role;

use super::{NETWORK, Scene, key, now, plugin};

/// What is wrong with what it hands over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// One byte of a later chunk.
    Chunk,
    /// The proof is another expert's.
    Proof,
    /// There is no proof.
    NoProof,
    /// It is another expert of the model, with all that proves it, under this one's name.
    Name,
    /// A chunk is left out.
    Gap,
    /// None, but the expert is larger than the worker's store.
    TooLarge,
}

/// Pairs with the next worker as a backbone of `model`.
pub async fn pair(scene: &Scene, model: &Model) -> Session {
    let key = key(20);
    let ticket = scene.ticket(Role::Backbone, key.public(), plugin());
    let plugin = PluginDigest(plugin().digest().0);
    let digest = ModelDigest(model.digests().unwrap().model.0);
    let offer =
        BackboneOffer { model: digest, plugins: vec![plugin], formats: vec![8], accepts: Class::Exact };
    let options = LinkOptions::default();
    let dial = |purpose| connect_backbone(&scene.address, &ticket, &key, purpose, Features::NONE, &options);
    let mut control = dial(Purpose::Control(offer)).await.unwrap();
    let request = loop {
        let payload = control.receiver.recv().await.unwrap();
        if payload.kind == Kind::Pair {
            break PairRequest::decode(&payload.bytes).unwrap();
        }
    };
    let link = dial(Purpose::Session(request.session)).await.unwrap();
    let expectation = Expectation { plugins: vec![plugin], ..Expectation::default() };
    let session = link.pair(&key, &expectation).await.unwrap();
    let grant = Grant {
        network: NETWORK.parse().unwrap(),
        session: Some(request.session),
        hub: scene.hub_key.public().digest(),
        worker: Some(request.worker.digest()),
        backbone: key.public(),
        price: request.price,
        bytes: MeteredBytes::new(1 << 30).unwrap(),
        from: now() - 60,
        until: now() + 3600,
    };
    let note = grant.sign(&key).unwrap();
    session.sender.send(Kind::Grant, HUB_STREAM, note.to_string().into_bytes()).await.unwrap();
    // The control link must outlive the session.
    std::mem::forget(control);
    session
}

/// Assigns one expert, lies about it, and gives what the worker says of it.
pub async fn hand_over(session: &mut Session, model: &Model, lie: Lie) -> Have {
    let (layer, expert) = (LayerIndex(1), ExpertIndex(2));
    let digests = model.digests().unwrap();
    let given = if lie == Lie::Name { ExpertIndex(3) } else { expert };
    let mut blob = model.expert(layer, given).unwrap().blob();
    let assigned = Assigned {
        name: ExpertName { layer: layer.0, expert: expert.0 },
        digest: ExpertDigest(digests.expert(layer, given).unwrap().0),
        blob_bytes: blob.len() as u64,
    };
    let assign = Assign { experts: vec![assigned] };
    session.sender.send(Kind::Assign, PAIR_STREAM, assign.encode()).await.unwrap();
    if lie == Lie::Chunk {
        let last = blob.len() - 1;
        blob[last] ^= 1;
    }
    let proved = if lie == Lie::Proof { ExpertIndex(3) } else { given };
    let proof = digests.proof(layer, proved).unwrap();
    loop {
        let payload = session.receiver.recv().await.unwrap();
        match payload.kind {
            Kind::Want => {
                let want = Want::decode(&payload.bytes).unwrap();
                let middle = blob.len() / 2;
                let first = Chunk {
                    offset: 0,
                    proof: (lie != Lie::NoProof).then(|| proof.clone()),
                    data: &blob[..middle],
                };
                session.sender.send_chunk(want.stream, first.encode(), true).await.unwrap();
                let from = if lie == Lie::Gap { middle + 1 } else { middle };
                let second = Chunk { offset: from as u64, proof: None, data: &blob[from..] };
                session.sender.send_chunk(want.stream, second.encode(), false).await.unwrap();
            }
            Kind::Have => return Have::decode(&payload.bytes).unwrap(),
            _ => {}
        }
    }
}
