//! A hub that says one class here and another there.

use std::sync::mpsc;

use kvasir_gateway::hub::door::{Visit, enter};
use kvasir_link::{HubLink, Incoming, LinkError, LinkOptions};
use kvasir_merkle::Hash;
use kvasir_wire::frame::Kind;
use kvasir_wire::handshake::{Class, HubIdentity, Purpose};
use kvasir_wire::id::{ModelDigest, SessionId};
use kvasir_wire::pairing::{PairRequest, Transcript};
use kvasir_wire::refusal::Refusal;
use kvasir_wire::ticket::{EdgeKey, Role};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::{NETWORK, key, runtime};

/// What it says of the worker's class, and to whom.
#[derive(Debug, Clone, Copy)]
pub struct Says {
    /// On the backbone's control link.
    pub in_pair: Class,
    /// In the transcript that the backbone gets.
    pub to_backbone: Class,
    /// In the transcript that the worker gets.
    pub to_worker: Class,
    /// The model in the transcripts: this is no lie.
    pub model: ModelDigest,
}

/// The hub, and what each end answered at last.
pub struct LyingHub {
    pub address: String,
    /// Refusals as they came: whose, and what it says.
    pub refusals: mpsc::Receiver<(Role, Refusal)>,
    _runtime: Runtime,
}

const SESSION: SessionId = SessionId([0x44; 32]);

impl LyingHub {
    /// One that has the keys of the scene's hub, so that its tickets are good here.
    pub fn start(says: Says) -> Self {
        let runtime = runtime();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("ws://{}", listener.local_addr().unwrap());
        let (tell, refusals) = mpsc::channel();
        runtime.spawn(serve(listener, says, tell));
        Self { address, refusals, _runtime: runtime }
    }
}

/// Takes a worker and a control link, offers the one on the other, and pairs as it pleases.
async fn serve(listener: TcpListener, says: Says, tell: mpsc::Sender<(Role, Refusal)>) {
    let mut worker = None;
    let mut control: Option<HubLink> = None;
    loop {
        let link = admitted(&listener, &LinkOptions::default()).await;
        match link.admission.purpose {
            Purpose::Worker(_) => worker = Some(link),
            Purpose::Control(_) => control = Some(link),
            Purpose::Resume(_) | Purpose::Bulk(_) => panic!("nothing goes on at this hub"),
            Purpose::Session(_) => {
                lie(worker.take().unwrap(), link, says, &tell).await;
                continue;
            }
        }
        if let (Some(worker), Some(control)) = (&worker, &mut control) {
            let claims = worker.admission.ticket.claims();
            let Purpose::Worker(offer) = &worker.admission.purpose else { unreachable!() };
            let request = PairRequest {
                session: SESSION,
                worker: worker.admission.holder,
                plugin: offer.plugins[0],
                class: says.in_pair,
                formats: offer.formats.clone(),
                memory_bytes: offer.memory_bytes,
                payee: claims.wallet.unwrap(),
                price: Hash([0x77; 32]),
            };
            control.sender.send(Kind::Pair, request.encode()).unwrap();
            if !Class::Exact.accepts(says.in_pair) {
                let refusal = answer(control).await.unwrap_err();
                tell.send((Role::Backbone, refusal)).unwrap();
            }
        }
    }
}

/// The next link, with the keys of the scene's hub.
pub(super) async fn admitted(listener: &TcpListener, options: &LinkOptions) -> HubLink {
    let (stream, _) = listener.accept().await.unwrap();
    let identity =
        HubIdentity { network: NETWORK.to_owned(), key: key(1), edge: EdgeKey::from_bytes([2; 32]) };
    match enter(stream, &identity, options).await.unwrap() {
        Visit::Link(accepted) => accepted.admit().unwrap(),
        _ => panic!("nobody asks this hub how it is"),
    }
}

/// Sends the two transcripts; hands over signatures, if both ends sign.
async fn lie(mut worker: HubLink, mut backbone: HubLink, says: Says, tell: &mpsc::Sender<(Role, Refusal)>) {
    let Purpose::Worker(offer) = worker.admission.purpose.clone() else { unreachable!() };
    let transcript = |class| Transcript {
        version: worker.admission.version,
        network: NETWORK.to_owned(),
        session: SESSION,
        worker: (&worker.admission).into(),
        backbone: (&backbone.admission).into(),
        plugin: offer.plugins[0],
        model: says.model,
        class,
        features: worker.admission.features,
    };
    let (to_worker, to_backbone) = (transcript(says.to_worker), transcript(says.to_backbone));
    worker.sender.send(Kind::Transcript, to_worker.encode()).unwrap();
    backbone.sender.send(Kind::Transcript, to_backbone.encode()).unwrap();
    let mut signs = Vec::new();
    for (link, role) in [(&mut worker, Role::Worker), (&mut backbone, Role::Backbone)] {
        match answer(link).await {
            Ok(sign) => signs.push(sign),
            Err(refusal) => tell.send((role, refusal)).unwrap(),
        }
    }
    let [worker_signed, backbone_signed] = signs.as_slice() else { return };
    let welcome = |signature: &[u8]| [&[2][..], signature].concat();
    worker.sender.send(Kind::Welcome, welcome(backbone_signed)).unwrap();
    backbone.sender.send(Kind::Welcome, welcome(worker_signed)).unwrap();
    for (link, role) in [(&mut worker, Role::Worker), (&mut backbone, Role::Backbone)] {
        tell.send((role, answer(link).await.unwrap_err())).unwrap();
    }
}

/// The signature or the refusal that comes next.
async fn answer(link: &mut HubLink) -> Result<Vec<u8>, Refusal> {
    match link.receiver.next().await {
        Ok(Incoming::Own(payload)) if payload.kind == Kind::Sign => Ok(payload.bytes.to_vec()),
        Ok(Incoming::Own(payload)) if payload.kind == Kind::Refuse => {
            Err(Refusal::decode(&payload.bytes).unwrap())
        }
        Err(LinkError::Refused(refusal)) => Err(refusal),
        other => panic!("neither a signature nor a refusal: {other:?}"),
    }
}
