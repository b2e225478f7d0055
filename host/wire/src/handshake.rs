//! The handshake of one link, without the link: hello, challenge, proof, welcome.
//!
//! ```text
//! holder                                   hub
//!   hello(ticket, nonce, purpose, ...) ->
//!                                       <- challenge(version, nonce, signature)
//!   proof(signature)                   ->
//!                                       <- welcome(admitted) | refuse
//! ```
//!
//! Both signatures cover the chosen version, both nonces, the ticket digest and the digest of the hello, each under a
//! domain of its own; so nobody on the way can change what was offered, and an answer fits one challenge only. Nonces
//! and times come from the caller.

use crate::codec::{DecodeError, Reader, Writer};
use crate::id::{ModelDigest, Nonce, PluginDigest, SessionId, TicketDigest, sha256};
use crate::key::{PublicKey, SecretKey, Signature};
use crate::limits::{MAX_OFFERED_FORMATS, MAX_OFFERED_PLUGINS, MAX_TICKET_BYTES, PROTOCOL_VERSION};
use crate::refusal::{Refusal, RefusalCode};
use crate::ticket::{EdgeKey, Role, Ticket};

/// Optional parts of the protocol, a bit each. Bit 0 is reserved for sealed payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features(pub u64);

impl Features {
    /// Nothing optional.
    pub const NONE: Features = Features(0);

    /// A session goes on over another connection when one was cut: bit 1.
    pub const RESUME: Features = Features(2);

    /// Bulk may have a connection of its own: bit 2. A worker that says so asks for one; a backbone says that each of its bulk
    /// frames has a message of its own.
    pub const BULK_CONNECTION: Features = Features(4);

    /// These and those of `other`.
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// All of these but those of `other`.
    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// What both have.
    pub const fn common(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }

    /// Whether all of `other` is in `self`.
    pub const fn contains(self, other: Features) -> bool {
        other.0 & !self.0 == 0
    }
}

/// How equal a kernel's results are: what a worker says of its own, and the loosest that a backbone accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// Bit for bit.
    Exact = 1,
    /// Within the plugin's stated tolerance.
    Tolerance = 2,
}

impl Class {
    /// The class of a number, if there is one.
    pub const fn from_number(number: u8) -> Option<Class> {
        match number {
            1 => Some(Class::Exact),
            2 => Some(Class::Tolerance),
            _ => None,
        }
    }

    /// The word in receipts and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Exact => "exact",
            Class::Tolerance => "tolerance",
        }
    }

    /// Whether who accepts `self` at the loosest takes results of class `offered`: exact ones are within every tolerance.
    pub const fn accepts(self, offered: Class) -> bool {
        matches!((self, offered), (Class::Tolerance, _) | (_, Class::Exact))
    }
}

/// Why a link is made, and what its holder brings or needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// A worker that wants to be paired.
    Worker(WorkerOffer),
    /// A backbone's control link: it wants to hear of workers.
    Control(BackboneOffer),
    /// A backbone's data link for a session that the hub offered with `pair`.
    Session(SessionId),
    /// Another connection for a link of a session that goes on.
    Resume(Resumption),
    /// A second connection for the bulk of a worker's session.
    Bulk(BulkConnection),
}

impl Purpose {
    /// The role that a ticket for this purpose must have.
    pub const fn role(&self) -> Role {
        match self {
            Purpose::Worker(_) => Role::Worker,
            Purpose::Control(_) | Purpose::Session(_) => Role::Backbone,
            Purpose::Resume(resumption) => resumption.role,
            Purpose::Bulk(_) => Role::Worker,
        }
    }
}

/// Which link a connection is for whose link had another one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumption {
    /// Which end of the session comes back.
    pub role: Role,
    /// The session.
    pub session: SessionId,
    /// Messages of the hub that it has received on this link: the hub goes on behind them.
    pub received: u64,
}

/// Which session a worker's second connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkConnection {
    /// The session.
    pub session: SessionId,
    /// Its number, chosen by the worker: from 1, each above the one before.
    pub connection: u32,
}

/// What a worker brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerOffer {
    /// Plugins that it has verified and trusts, best first.
    pub plugins: Vec<PluginDigest>,
    /// Tensor formats (GGUF type numbers) that its kernels take.
    pub formats: Vec<u32>,
    /// Bytes of weights that it is willing to hold.
    pub memory_bytes: u64,
    /// The class of its results, whatever the plugin. A worker whose class changes says so on a new link.
    pub class: Class,
}

/// What a backbone needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackboneOffer {
    /// The model that it runs.
    pub model: ModelDigest,
    /// Plugins that it accepts, best first.
    pub plugins: Vec<PluginDigest>,
    /// Tensor formats of the experts that it hands out.
    pub formats: Vec<u32>,
    /// The loosest class that it accepts.
    pub accepts: Class,
}

/// The first payload of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Lowest protocol version that the holder speaks.
    pub min_version: u8,
    /// Highest protocol version that the holder speaks.
    pub max_version: u8,
    /// Optional parts that the holder has.
    pub features: Features,
    /// The holder's nonce.
    pub nonce: Nonce,
    /// The ticket.
    pub ticket: Ticket,
    /// What for.
    pub purpose: Purpose,
}

impl Hello {
    /// The payload of a `hello` frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u8(self.min_version).u8(self.max_version).u64(self.features.0);
        w.bytes(self.nonce.as_bytes()).byte_string(self.ticket.as_bytes());
        match &self.purpose {
            Purpose::Worker(offer) => {
                w.u8(1);
                write_plugins_and_formats(&mut w, &offer.plugins, &offer.formats);
                w.u64(offer.memory_bytes).u8(offer.class as u8);
            }
            Purpose::Control(offer) => {
                w.u8(2);
                write_plugins_and_formats(&mut w, &offer.plugins, &offer.formats);
                w.bytes(offer.model.as_bytes()).u8(offer.accepts as u8);
            }
            Purpose::Session(session) => {
                w.u8(3).bytes(session.as_bytes());
            }
            Purpose::Resume(resumption) => {
                let number = match resumption.role {
                    Role::Worker => 4,
                    Role::Backbone => 5,
                };
                w.u8(number).bytes(resumption.session.as_bytes()).u64(resumption.received);
            }
            Purpose::Bulk(bulk) => {
                w.u8(6).bytes(bulk.session.as_bytes()).u32(bulk.connection);
            }
        }
        w.finish()
    }

    /// Reads a `hello` frame's payload. The versions are looked at first: what follows them may have another form in a
    /// version that this side does not speak.
    pub fn decode(payload: &[u8]) -> Result<Hello, Refusal> {
        let mut r = Reader::new(payload);
        let (min_version, max_version) = (r.u8("lowest version")?, r.u8("highest version")?);
        if min_version > max_version {
            let rule = "must not be above the highest";
            return Err(DecodeError::Broken { field: "lowest version", rule }.into());
        }
        if min_version > PROTOCOL_VERSION || max_version < PROTOCOL_VERSION {
            return Err(unsupported_version(PROTOCOL_VERSION, PROTOCOL_VERSION, min_version, max_version));
        }
        let features = Features(r.u64("features")?);
        let nonce = Nonce(r.array("nonce")?);
        let ticket = Ticket::from_bytes(r.byte_string("ticket", MAX_TICKET_BYTES)?)?;
        let purpose = match r.u8("purpose")? {
            1 => {
                let (plugins, formats) = read_plugins_and_formats(&mut r)?;
                let memory_bytes = r.u64("memory")?;
                Purpose::Worker(WorkerOffer { plugins, formats, memory_bytes, class: read_class(&mut r)? })
            }
            2 => {
                let (plugins, formats) = read_plugins_and_formats(&mut r)?;
                let model = ModelDigest(r.array("model")?);
                let accepts = read_class(&mut r)?;
                Purpose::Control(BackboneOffer { model, plugins, formats, accepts })
            }
            3 => Purpose::Session(SessionId(r.array("session")?)),
            number @ (4 | 5) => {
                let role = if number == 4 { Role::Worker } else { Role::Backbone };
                let session = SessionId(r.array("session")?);
                Purpose::Resume(Resumption { role, session, received: r.u64("received")? })
            }
            6 => {
                let session = SessionId(r.array("session")?);
                Purpose::Bulk(BulkConnection { session, connection: read_bulk_connection(&mut r)? })
            }
            value => return Err(DecodeError::UnknownValue { field: "purpose", value: value.into() }.into()),
        };
        r.end()?;
        Ok(Hello { min_version, max_version, features, nonce, ticket, purpose })
    }
}

/// The payload of a `challenge` frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge {
    /// The version that the hub chose.
    pub version: u8,
    /// The hub's nonce.
    pub nonce: Nonce,
    /// The hub's signature.
    pub signature: Signature,
}

impl Challenge {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u8(self.version).bytes(self.nonce.as_bytes()).bytes(&self.signature.0);
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Challenge, DecodeError> {
        let mut r = Reader::new(payload);
        let version = r.u8("version")?;
        let nonce = Nonce(r.array("nonce")?);
        let signature = Signature(r.array("signature")?);
        r.end()?;
        Ok(Challenge { version, nonce, signature })
    }
}

/// What a link's two sides know once the proof was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The protocol version of the link.
    pub version: u8,
    /// The holder's ticket, checked by this side.
    pub ticket: Ticket,
    /// Its digest.
    pub ticket_digest: TicketDigest,
    /// The holder's key, proven.
    pub holder: PublicKey,
    /// The holder's nonce, which the transcript names again.
    pub nonce: Nonce,
    /// Optional parts that the holder has.
    pub features: Features,
    /// What the link is for.
    pub purpose: Purpose,
}

/// The holder's side: from a ticket and a key to a link that is admitted.
#[derive(Debug)]
pub struct HolderHandshake {
    hello: Hello,
    hello_digest: [u8; 32],
}

impl HolderHandshake {
    /// Begins: checks the ticket as its holder, gives the payload of the `hello` frame.
    pub fn start(
        ticket: &Ticket,
        key: &SecretKey,
        purpose: Purpose,
        features: Features,
        nonce: Nonce,
        now: u64,
    ) -> Result<(HolderHandshake, Vec<u8>), Refusal> {
        ticket.check_as_holder(&key.public(), purpose.role(), now)?;
        let hello = Hello {
            min_version: PROTOCOL_VERSION,
            max_version: PROTOCOL_VERSION,
            features,
            nonce,
            ticket: ticket.clone(),
            purpose,
        };
        let payload = hello.encode();
        let hello_digest = sha256(&[&payload]);
        Ok((HolderHandshake { hello, hello_digest }, payload))
    }

    /// Takes the `challenge`: verifies the hub that the ticket pins, gives the payload of the `proof` frame. The link
    /// is admitted when `welcome` follows.
    pub fn challenge(self, payload: &[u8], key: &SecretKey) -> Result<(Admission, Vec<u8>), Refusal> {
        let challenge = Challenge::decode(payload)?;
        let hello = self.hello;
        if challenge.version < hello.min_version || challenge.version > hello.max_version {
            return Err(unsupported_version(
                challenge.version,
                challenge.version,
                hello.min_version,
                hello.max_version,
            ));
        }
        let ticket_digest = hello.ticket.digest();
        let signed = Signed {
            version: challenge.version,
            holder_nonce: hello.nonce,
            hub_nonce: challenge.nonce,
            ticket: ticket_digest,
            hello: self.hello_digest,
        };
        let hub = hello.ticket.claims().hub;
        hub.verify(&signed.bytes(CHALLENGE_DOMAIN), &challenge.signature).map_err(|_| {
            Refusal::new(
                RefusalCode::BadSignature,
                format!("the other side did not prove the hub key {} that the ticket names", hub.digest()),
                "do not use this address: something that is not the hub answers there; ask the operator",
            )
        })?;
        let proof = key.sign(&signed.bytes(PROOF_DOMAIN)).0.to_vec();
        let admission = Admission {
            version: challenge.version,
            ticket_digest,
            holder: hello.ticket.claims().holder,
            ticket: hello.ticket,
            nonce: hello.nonce,
            features: hello.features,
            purpose: hello.purpose,
        };
        Ok((admission, proof))
    }
}

/// What a hub is: its network and keys.
#[derive(Debug, Clone)]
pub struct HubIdentity {
    /// Name of the network.
    pub network: String,
    /// The hub's key.
    pub key: SecretKey,
    /// The key shared with the edges.
    pub edge: EdgeKey,
}

/// The hub's side, from a challenge to an admitted or refused holder.
#[derive(Debug)]
pub struct HubHandshake {
    hello: Hello,
    signed: Signed,
    answered: bool,
}

impl HubHandshake {
    /// Takes the `hello` on a door for `role`: checks the ticket, chooses the version, gives the payload of the
    /// `challenge` frame. `nonce` must be fresh randomness.
    pub fn hello(
        hub: &HubIdentity,
        payload: &[u8],
        role: Role,
        nonce: Nonce,
        now: u64,
    ) -> Result<(HubHandshake, Vec<u8>), Refusal> {
        let hello = Hello::decode(payload)?;
        hello.ticket.check_at_hub(&hub.key.public(), &hub.edge, &hub.network, role, now)?;
        if hello.purpose.role() != role {
            return Err(Refusal::new(
                RefusalCode::WrongRole,
                format!("the hello asks for a {}'s link on the door for a {role}", hello.purpose.role()),
                "dial /v1/worker as a worker, /v1/backbone as a backbone",
            ));
        }
        let signed = Signed {
            version: PROTOCOL_VERSION,
            holder_nonce: hello.nonce,
            hub_nonce: nonce,
            ticket: hello.ticket.digest(),
            hello: sha256(&[payload]),
        };
        let signature = hub.key.sign(&signed.bytes(CHALLENGE_DOMAIN));
        let challenge = Challenge { version: PROTOCOL_VERSION, nonce, signature };
        Ok((HubHandshake { hello, signed, answered: false }, challenge.encode()))
    }

    /// The ticket of the hello, for checks of the hub's own (sessions of the key, the header's ticket).
    pub fn ticket(&self) -> &Ticket {
        &self.hello.ticket
    }

    /// Takes the `proof`. One challenge has one answer: a second call is refused whatever it brings.
    pub fn proof(&mut self, payload: &[u8]) -> Result<Admission, Refusal> {
        if std::mem::replace(&mut self.answered, true) {
            return Err(Refusal::new(
                RefusalCode::ReplayedAnswer,
                "a second answer came to one challenge",
                "open a new connection for another try",
            ));
        }
        let mut r = Reader::new(payload);
        let signature = Signature(r.array("signature")?);
        r.end()?;
        let holder = self.hello.ticket.claims().holder;
        holder.verify(&self.signed.bytes(PROOF_DOMAIN), &signature).map_err(|_| {
            Refusal::new(
                RefusalCode::WrongKey,
                format!("the proof was not made with the ticket's key {holder}"),
                "use the key that the ticket was made for",
            )
        })?;
        Ok(Admission {
            version: self.signed.version,
            ticket: self.hello.ticket.clone(),
            ticket_digest: self.signed.ticket,
            holder,
            nonce: self.hello.nonce,
            features: self.hello.features,
            purpose: self.hello.purpose.clone(),
        })
    }
}

/// The payload of a `welcome` frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Welcome {
    /// The proof was accepted.
    Admitted {
        /// The hub's clock, unix seconds: a holder can tell its own clock's error.
        hub_time: u64,
    },
    /// The session begins.
    Paired {
        /// The other end's signature over the transcript.
        peer: Signature,
    },
    /// The proof was accepted, and the link's messages are counted from here on: this one is the first.
    Resumable {
        /// The hub's clock, as before.
        hub_time: u64,
    },
    /// The link goes on over this connection.
    Resumed {
        /// Messages of the holder that the hub has received on this link: the holder goes on behind them.
        received: u64,
    },
    /// As [`Welcome::Resumable`], and the hub takes a second connection for bulk.
    BulkOffered {
        /// The hub's clock, as before.
        hub_time: u64,
    },
}

impl Welcome {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        match self {
            Welcome::Admitted { hub_time } => w.u8(1).u64(*hub_time),
            Welcome::Paired { peer } => w.u8(2).bytes(&peer.0),
            Welcome::Resumable { hub_time } => w.u8(3).u64(*hub_time),
            Welcome::Resumed { received } => w.u8(4).u64(*received),
            Welcome::BulkOffered { hub_time } => w.u8(5).u64(*hub_time),
        };
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Result<Welcome, DecodeError> {
        let mut r = Reader::new(payload);
        let welcome = match r.u8("welcome")? {
            1 => Welcome::Admitted { hub_time: r.u64("hub time")? },
            2 => Welcome::Paired { peer: Signature(r.array("peer signature")?) },
            3 => Welcome::Resumable { hub_time: r.u64("hub time")? },
            4 => Welcome::Resumed { received: r.u64("received")? },
            5 => Welcome::BulkOffered { hub_time: r.u64("hub time")? },
            value => return Err(DecodeError::UnknownValue { field: "welcome", value: value.into() }),
        };
        r.end()?;
        Ok(welcome)
    }
}

const CHALLENGE_DOMAIN: &[u8] = b"kvasir/challenge/v1\0";
const PROOF_DOMAIN: &[u8] = b"kvasir/proof/v1\0";

/// What both signatures of the handshake cover.
#[derive(Debug, Clone, Copy)]
struct Signed {
    version: u8,
    holder_nonce: Nonce,
    hub_nonce: Nonce,
    ticket: TicketDigest,
    hello: [u8; 32],
}

impl Signed {
    fn bytes(&self, domain: &[u8]) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(domain).u8(self.version);
        w.bytes(self.holder_nonce.as_bytes()).bytes(self.hub_nonce.as_bytes());
        w.bytes(self.ticket.as_bytes()).bytes(&self.hello);
        w.finish()
    }
}

fn unsupported_version(hub_min: u8, hub_max: u8, min: u8, max: u8) -> Refusal {
    Refusal::new(
        RefusalCode::UnsupportedVersion,
        format!("the holder speaks protocol versions {min} to {max}, the hub {hub_min} to {hub_max}"),
        if max < hub_min { "update this program" } else { "ask the operator to update the hub" },
    )
}

fn write_plugins_and_formats(w: &mut Writer, plugins: &[PluginDigest], formats: &[u32]) {
    w.u16(plugins.len() as u16);
    for plugin in plugins {
        w.bytes(plugin.as_bytes());
    }
    w.u16(formats.len() as u16);
    for format in formats {
        w.u32(*format);
    }
}

pub(crate) fn read_plugins_and_formats(
    r: &mut Reader<'_>,
) -> Result<(Vec<PluginDigest>, Vec<u32>), DecodeError> {
    let count = r.u16("plugins")?;
    let count = r.check_count("plugins", count.into(), MAX_OFFERED_PLUGINS, 32)?;
    let plugins = (0..count).map(|_| r.array("plugins").map(PluginDigest)).collect::<Result<Vec<_>, _>>()?;
    Ok((plugins, read_formats(r)?))
}

pub(crate) fn read_formats(r: &mut Reader<'_>) -> Result<Vec<u32>, DecodeError> {
    let count = r.u16("formats")?;
    let count = r.check_count("formats", count.into(), MAX_OFFERED_FORMATS, 4)?;
    (0..count).map(|_| r.u32("formats")).collect()
}

/// The number of a bulk connection.
pub(crate) fn read_bulk_connection(r: &mut Reader<'_>) -> Result<u32, DecodeError> {
    match r.u32("bulk connection")? {
        0 => Err(DecodeError::Broken { field: "bulk connection", rule: "numbers run from 1" }),
        number => Ok(number),
    }
}

pub(crate) fn read_class(r: &mut Reader<'_>) -> Result<Class, DecodeError> {
    let class = r.u8("class")?;
    Class::from_number(class).ok_or(DecodeError::UnknownValue { field: "class", value: class.into() })
}
