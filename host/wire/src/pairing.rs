//! Pairing: one transcript that the hub sends to both ends of a session, which each signs after checking it.
//!
//! What an end does not find in the transcript it signed, it does not believe. The hub verifies both signatures and
//! hands each end the other's with `welcome`; each end verifies it again under the key in the transcript.

use kvasir_merkle::Hash;

use crate::codec::{DecodeError, Reader, Writer};
use crate::handshake::{Admission, Class, Features, Welcome, read_class, read_formats};
use crate::id::{ModelDigest, Nonce, PluginDigest, SessionId, TicketDigest, WalletDigest, sha256};
use crate::key::{PublicKey, SecretKey, Signature};
use crate::limits::MAX_NETWORK_BYTES;
use crate::refusal::{Refusal, RefusalCode};
use crate::ticket::{Role, check_network};

/// The payload of a `pair` frame: the hub asks a backbone, on its control link, to dial a data link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairRequest {
    /// The session to name in the data link's hello.
    pub session: SessionId,
    /// The worker's key, proven to the hub.
    pub worker: PublicKey,
    /// The plugin that both have.
    pub plugin: PluginDigest,
    /// The class of the worker's results: what the transcript will say, and what this backbone accepts.
    pub class: Class,
    /// Tensor formats that the worker takes.
    pub formats: Vec<u32>,
    /// Bytes of weights that the worker is willing to hold.
    pub memory_bytes: u64,
    /// The wallet of the worker's ticket: the `payee` of the session's receipts.
    pub payee: WalletDigest,
    /// Leaf hash of the price note that holds: the `price` of the session's grant and receipts.
    pub price: Hash,
}

impl PairRequest {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(self.session.as_bytes()).bytes(self.worker.as_bytes()).bytes(self.plugin.as_bytes());
        w.u8(self.class as u8)
            .u64(self.memory_bytes)
            .bytes(self.payee.as_bytes())
            .bytes(self.price.as_bytes());
        w.u16(self.formats.len() as u16);
        for format in &self.formats {
            w.u32(*format);
        }
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<PairRequest, DecodeError> {
        let mut r = Reader::new(payload);
        let session = SessionId(r.array("session")?);
        let worker = r.key("worker key")?;
        let plugin = PluginDigest(r.array("plugin")?);
        let class = read_class(&mut r)?;
        let memory_bytes = r.u64("memory")?;
        let payee = WalletDigest(r.array("payee")?);
        let price = Hash::from_bytes(r.array("price")?);
        let formats = read_formats(&mut r)?;
        r.end()?;
        Ok(PairRequest { session, worker, plugin, class, formats, memory_bytes, payee, price })
    }
}

/// One end as the transcript names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TranscriptEnd {
    /// Its key.
    pub key: PublicKey,
    /// The nonce of its hello.
    pub nonce: Nonce,
    /// Its ticket.
    pub ticket: TicketDigest,
}

impl From<&Admission> for TranscriptEnd {
    fn from(admission: &Admission) -> Self {
        TranscriptEnd { key: admission.holder, nonce: admission.nonce, ticket: admission.ticket_digest }
    }
}

/// What both ends sign; the payload of a `transcript` frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcript {
    /// Protocol version of the session.
    pub version: u8,
    /// The network.
    pub network: String,
    /// The session.
    pub session: SessionId,
    /// The worker.
    pub worker: TranscriptEnd,
    /// The backbone.
    pub backbone: TranscriptEnd,
    /// The plugin whose kernels the worker runs.
    pub plugin: PluginDigest,
    /// The model whose experts are meant.
    pub model: ModelDigest,
    /// The class of the worker's results, which the backbone accepts.
    pub class: Class,
    /// Optional parts that both have.
    pub features: Features,
}

impl Transcript {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u8(self.version).string(&self.network).bytes(self.session.as_bytes());
        for end in [&self.worker, &self.backbone] {
            w.bytes(end.key.as_bytes()).bytes(end.nonce.as_bytes()).bytes(end.ticket.as_bytes());
        }
        w.bytes(self.plugin.as_bytes()).bytes(self.model.as_bytes());
        w.u8(self.class as u8).u64(self.features.0);
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Transcript, DecodeError> {
        let mut r = Reader::new(payload);
        let version = r.u8("version")?;
        let network = r.string("network", MAX_NETWORK_BYTES)?.to_owned();
        check_network(&network)?;
        let session = SessionId(r.array("session")?);
        let worker = read_end(&mut r)?;
        let backbone = read_end(&mut r)?;
        let plugin = PluginDigest(r.array("plugin")?);
        let model = ModelDigest(r.array("model")?);
        let class = read_class(&mut r)?;
        let features = Features(r.u64("features")?);
        r.end()?;
        Ok(Transcript { version, network, session, worker, backbone, plugin, model, class, features })
    }

    /// The end of a role.
    pub fn end(&self, role: Role) -> &TranscriptEnd {
        match role {
            Role::Worker => &self.worker,
            Role::Backbone => &self.backbone,
        }
    }

    /// SHA-256 of the payload.
    pub fn digest(&self) -> [u8; 32] {
        sha256(&[&self.encode()])
    }

    /// What the end of `role` signs: a domain, its role, the payload. The role keeps one end's signature from passing
    /// for the other's.
    pub fn signed_bytes(&self, role: Role) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(PAIRING_DOMAIN).u8(role.number()).bytes(&self.encode());
        w.finish()
    }

    /// Verifies the signature of the end of `role`.
    pub fn verify(&self, role: Role, signature: &Signature) -> Result<(), Refusal> {
        self.end(role).key.verify(&self.signed_bytes(role), signature).map_err(|_| {
            Refusal::new(
                RefusalCode::BadSignature,
                format!(
                    "the {role}'s signature over the transcript of session {} does not verify",
                    self.session
                ),
                "open a new connection; if it happens again, report both keys to the operator",
            )
            .about(self.session)
        })
    }
}

/// What an end demands of a transcript beside its own part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expectation {
    /// Plugins that it takes part with.
    pub plugins: Vec<PluginDigest>,
    /// The model, if it is this end that names it.
    pub model: Option<ModelDigest>,
    /// The class of the results: the worker's own, or the one that the backbone was told and accepts.
    pub class: Option<Class>,
    /// The other end's key, if it was told before.
    pub peer: Option<PublicKey>,
    /// The session, if it was told before.
    pub session: Option<SessionId>,
}

/// An end that has signed a transcript and waits for the other's signature.
#[derive(Debug)]
pub struct EndPairing {
    transcript: Transcript,
    role: Role,
}

impl EndPairing {
    /// Takes the `transcript`: checks every field that this end can know, gives the payload of the `sign` frame.
    pub fn transcript(
        payload: &[u8],
        admission: &Admission,
        key: &SecretKey,
        expectation: &Expectation,
    ) -> Result<(EndPairing, Vec<u8>), Refusal> {
        let transcript = Transcript::decode(payload)?;
        let role = admission.ticket.claims().role;
        if let Some(field) = first_mismatch(&transcript, role, admission, expectation) {
            let sentence = match (field, expectation.class) {
                ("class", Some(class)) => format!(
                    "the transcript says class {}, this {role} signs for class {} alone",
                    transcript.class.name(),
                    class.name()
                ),
                _ => format!("the transcript's {field} is not what this {role} said or wants"),
            };
            return Err(Refusal::new(
                RefusalCode::TranscriptMismatch,
                sentence,
                "open a new connection; if it happens again, report it to the hub's operator",
            )
            .about(transcript.session));
        }
        let signature = key.sign(&transcript.signed_bytes(role));
        Ok((EndPairing { transcript, role }, signature.0.to_vec()))
    }

    /// Takes the `welcome` with the other end's signature: the session begins.
    pub fn welcome(self, payload: &[u8]) -> Result<Transcript, Refusal> {
        let Welcome::Paired { peer } = Welcome::decode(payload)? else {
            return Err(Refusal::new(
                RefusalCode::ProtocolError,
                "the hub's welcome carries no signature of the other end",
                "update the older of the two sides",
            ));
        };
        self.transcript.verify(other(self.role), &peer)?;
        Ok(self.transcript)
    }

    /// What was signed.
    pub fn signed(&self) -> &Transcript {
        &self.transcript
    }
}

/// The hub's side of a pairing: collects both signatures.
#[derive(Debug)]
pub struct HubPairing {
    transcript: Transcript,
    signatures: [Option<Signature>; 2],
}

impl HubPairing {
    /// Begins; send [`Transcript::encode`] to both ends.
    pub fn new(transcript: Transcript) -> Self {
        HubPairing { transcript, signatures: [None; 2] }
    }

    /// The transcript.
    pub fn transcript(&self) -> &Transcript {
        &self.transcript
    }

    /// Takes the `sign` of one end.
    pub fn signed(&mut self, role: Role, payload: &[u8]) -> Result<(), Refusal> {
        let mut r = Reader::new(payload);
        let signature = Signature(r.array("signature")?);
        r.end()?;
        self.transcript.verify(role, &signature)?;
        self.signatures[usize::from(role == Role::Backbone)] = Some(signature);
        Ok(())
    }

    /// The payloads of the two `welcome` frames (worker's, backbone's), once both have signed.
    pub fn welcomes(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let [Some(worker), Some(backbone)] = self.signatures else { return None };
        Some((Welcome::Paired { peer: backbone }.encode(), Welcome::Paired { peer: worker }.encode()))
    }
}

const PAIRING_DOMAIN: &[u8] = b"kvasir/pair/v1\0";

fn other(role: Role) -> Role {
    match role {
        Role::Worker => Role::Backbone,
        Role::Backbone => Role::Worker,
    }
}

fn first_mismatch(
    transcript: &Transcript,
    role: Role,
    admission: &Admission,
    expectation: &Expectation,
) -> Option<&'static str> {
    let own = transcript.end(role);
    let peer = transcript.end(other(role));
    let checks = [
        ("version", transcript.version == admission.version),
        ("network", transcript.network == admission.ticket.claims().network),
        ("key of this end", own.key == admission.holder),
        ("nonce of this end", own.nonce == admission.nonce),
        ("ticket of this end", own.ticket == admission.ticket_digest),
        ("features", admission.features.contains(transcript.features)),
        ("plugin", expectation.plugins.contains(&transcript.plugin)),
        ("model", expectation.model.is_none_or(|model| model == transcript.model)),
        ("class", expectation.class.is_none_or(|class| class == transcript.class)),
        ("key of the other end", expectation.peer.is_none_or(|key| key == peer.key)),
        ("session", expectation.session.is_none_or(|session| session == transcript.session)),
        ("ends", own.key != peer.key),
    ];
    checks.into_iter().find(|(_, holds)| !holds).map(|(field, _)| field)
}

fn read_end(r: &mut Reader<'_>) -> Result<TranscriptEnd, DecodeError> {
    let key = r.key("key")?;
    let nonce = Nonce(r.array("nonce")?);
    let ticket = TicketDigest(r.array("ticket digest")?);
    Ok(TranscriptEnd { key, nonce, ticket })
}
