//! Tickets: what the hub signs so that a key may join a network in a role, and the three checks of it.
//!
//! A ticket names its holder's key; it is worth nothing without that key, and it may be used again by it. The edge
//! checks MAC, network and time, to route; the hub checks everything; a holder checks the hub's signature.
//!
//! Bytes: payload, ed25519 signature of the hub (64), HMAC-SHA256 over both under the edge key (32). Text:
//! `kvasir-ticket-v1.` and base64url without padding of those bytes.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::codec::{DecodeError, Reader, Writer, within};
use crate::id::{KeyDigest, PluginDigest, TicketDigest, WalletDigest, sha256};
use crate::key::{PublicKey, SecretKey, Signature};
use crate::limits::{
    CLOCK_SKEW_SECONDS, MAX_NETWORK_BYTES, MAX_TICKET_ALLOWED, MAX_TICKET_BYTES, MAX_TICKET_SECONDS,
};
use crate::refusal::{Refusal, RefusalCode};

/// What the holder of a ticket may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Holds experts and runs kernels.
    Worker = 1,
    /// Runs a model and calls workers.
    Backbone = 2,
}

impl Role {
    /// The role of a number, if there is one.
    pub const fn from_number(number: u8) -> Option<Role> {
        match number {
            1 => Some(Role::Worker),
            2 => Some(Role::Backbone),
            _ => None,
        }
    }

    /// The number on the wire.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Worker => "worker",
            Role::Backbone => "backbone",
        })
    }
}

/// What a ticket says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketClaims {
    /// Name of the network: 1 to 64 of `a-z 0-9 . -`.
    pub network: String,
    /// What the holder may be.
    pub role: Role,
    /// The holder's key.
    pub holder: PublicKey,
    /// The hub's key: the holder pins it.
    pub hub: PublicKey,
    /// The account to credit; a worker's ticket has one.
    pub wallet: Option<WalletDigest>,
    /// Plugins that the holder may serve or ask for; see [`TicketClaims::allows`].
    pub plugins: Vec<PluginDigest>,
    /// Publishers whose plugins the holder may serve or ask for.
    pub publishers: Vec<KeyDigest>,
    /// Bounds on the holder.
    pub limits: TicketLimits,
    /// Unix seconds from which on it holds.
    pub issued: u64,
    /// Unix seconds from which on it does not.
    pub expires: u64,
}

/// Bounds that a ticket puts on its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TicketLimits {
    /// Sessions at one time, at least 1.
    pub sessions: u16,
    /// Payload bytes of one session, up and down together; the hub drains it there. 0: no bound.
    pub session_bytes: u64,
}

impl Default for TicketLimits {
    fn default() -> Self {
        TicketLimits { sessions: 2, session_bytes: 0 }
    }
}

impl TicketClaims {
    /// Whether a plugin is allowed, for a party that has verified who published it. Empty lists allow nothing.
    pub fn allows(&self, plugin: &PluginDigest, publisher: &KeyDigest) -> bool {
        self.plugins.contains(plugin) || self.publishers.contains(publisher)
    }

    /// Whether a plugin may be allowed, for a party that knows only its digest (the hub): false only where no
    /// publisher could make it allowed.
    pub fn may_allow(&self, plugin: &PluginDigest) -> bool {
        self.plugins.contains(plugin) || !self.publishers.is_empty()
    }

    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u8(TICKET_VERSION).u8(self.role.number()).string(&self.network);
        w.bytes(self.holder.as_bytes()).bytes(self.hub.as_bytes());
        w.u8(self.wallet.is_some().into());
        if let Some(wallet) = &self.wallet {
            w.bytes(wallet.as_bytes());
        }
        w.u16(self.plugins.len() as u16);
        for plugin in &self.plugins {
            w.bytes(plugin.as_bytes());
        }
        w.u16(self.publishers.len() as u16);
        for publisher in &self.publishers {
            w.bytes(publisher.as_bytes());
        }
        w.u16(self.limits.sessions).u64(self.limits.session_bytes);
        w.u64(self.issued).u64(self.expires);
        w.finish()
    }

    fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(payload);
        let version = r.u8("ticket version")?;
        if version != TICKET_VERSION {
            return Err(DecodeError::UnknownValue { field: "ticket version", value: version.into() });
        }
        let role = r.u8("role")?;
        let role =
            Role::from_number(role).ok_or(DecodeError::UnknownValue { field: "role", value: role.into() })?;
        let network = r.string("network", MAX_NETWORK_BYTES)?.to_owned();
        let holder = r.key("holder key")?;
        let hub = r.key("hub key")?;
        let wallet = if r.flag("wallet")? { Some(WalletDigest(r.array("wallet")?)) } else { None };
        let plugins = names(&mut r, "allowed plugins", PluginDigest)?;
        let publishers = names(&mut r, "allowed publishers", KeyDigest)?;
        let limits = TicketLimits { sessions: r.u16("sessions")?, session_bytes: r.u64("session bytes")? };
        let (issued, expires) = (r.u64("issued")?, r.u64("expires")?);
        r.end()?;
        let claims =
            TicketClaims { network, role, holder, hub, wallet, plugins, publishers, limits, issued, expires };
        claims.check()?;
        Ok(claims)
    }

    /// The rules that need no clock and no other key.
    fn check(&self) -> Result<(), DecodeError> {
        let broken = |field, rule| Err(DecodeError::Broken { field, rule });
        check_network(&self.network)?;
        for (field, count) in
            [("allowed plugins", self.plugins.len()), ("allowed publishers", self.publishers.len())]
        {
            within(field, count as u64, MAX_TICKET_ALLOWED as u64)?;
        }
        if self.role == Role::Worker && self.wallet.is_none() {
            return broken("wallet", "a worker's ticket names a wallet");
        }
        if self.limits.sessions == 0 {
            return broken("sessions", "at least one session");
        }
        if self.expires <= self.issued {
            return broken("expires", "must lie after issued");
        }
        within("lifetime in seconds", self.expires - self.issued, MAX_TICKET_SECONDS)?;
        Ok(())
    }
}

/// Checks a network name: 1 to 64 of `a-z 0-9 . -`, since it becomes part of key names in notes.
pub fn check_network(name: &str) -> Result<(), DecodeError> {
    within("network", name.len() as u64, MAX_NETWORK_BYTES as u64)?;
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-';
    if name.is_empty() || !name.bytes().all(plain) {
        return Err(DecodeError::Broken { field: "network", rule: "1 to 64 characters of a-z 0-9 . -" });
    }
    Ok(())
}

/// The 32-byte key that hub and edges share.
#[derive(Clone)]
pub struct EdgeKey(Zeroizing<[u8; 32]>);

impl EdgeKey {
    /// From 32 bytes of randomness.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        EdgeKey(Zeroizing::new(bytes))
    }

    /// The one line of an edge key file, with its line feed.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{EDGE_KEY_PREFIX}{}\n", hex::encode(*self.0)))
    }

    /// Reads an edge key file's text; `None` if it has another form.
    pub fn from_text(text: &str) -> Option<Self> {
        let digits = text.strip_suffix('\n').unwrap_or(text).strip_prefix(EDGE_KEY_PREFIX)?;
        crate::id::parse_hex_32(digits).ok().map(EdgeKey::from_bytes)
    }

    fn mac(&self, parts: [&[u8]; 2]) -> Hmac<Sha256> {
        // `new` takes a key of exactly one block: ours, padded with zeros as HMAC itself would.
        let mut block = Zeroizing::new([0u8; 64]);
        block[..32].copy_from_slice(&*self.0);
        let mut mac = Hmac::<Sha256>::new((&*block).into());
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for EdgeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EdgeKey(..)")
    }
}

/// A ticket that could be read. That it was read says nothing about who made it: see the three checks.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    claims: TicketClaims,
    bytes: Vec<u8>,
}

impl Ticket {
    /// Makes a ticket. The hub's public half must be the one in the claims.
    pub fn issue(claims: &TicketClaims, hub: &SecretKey, edge: &EdgeKey) -> Result<Ticket, TicketError> {
        claims.check()?;
        if claims.hub != hub.public() {
            return Err(TicketError::OtherHub);
        }
        let mut bytes = claims.encode();
        let signature = hub.sign(&signed_bytes(&bytes));
        let mac = edge.mac([&bytes, &signature.0]).finalize().into_bytes();
        bytes.extend_from_slice(&signature.0);
        bytes.extend_from_slice(&mac);
        within("ticket", bytes.len() as u64, MAX_TICKET_BYTES as u64)?;
        Ok(Ticket { claims: claims.clone(), bytes })
    }

    /// Reads the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Ticket, TicketError> {
        within("ticket", bytes.len() as u64, MAX_TICKET_BYTES as u64)?;
        let payload =
            bytes.len().checked_sub(SIGNATURE_BYTES + MAC_BYTES).map(|length| &bytes[..length]).ok_or_else(
                || DecodeError::Truncated {
                    field: "ticket",
                    missing: SIGNATURE_BYTES + MAC_BYTES - bytes.len(),
                },
            )?;
        Ok(Ticket { claims: TicketClaims::decode(payload)?, bytes: bytes.to_vec() })
    }

    /// Reads the text form; white space around it (a file ends in a line feed) is not part of it.
    pub fn from_text(text: &str) -> Result<Ticket, TicketError> {
        let encoded = text.trim_ascii().strip_prefix(TEXT_PREFIX).ok_or(TicketError::Text)?;
        if encoded.len() > MAX_TICKET_BYTES * 4 / 3 + 4 {
            return Err(DecodeError::AboveLimit {
                field: "ticket text",
                value: encoded.len() as u64,
                limit: (MAX_TICKET_BYTES * 4 / 3 + 4) as u64,
            }
            .into());
        }
        Ticket::from_bytes(&URL_SAFE_NO_PAD.decode(encoded).map_err(|_| TicketError::Text)?)
    }

    /// Reads an `Authorization` header's value: `Bearer` and the text form.
    pub fn from_authorization(value: &str) -> Result<Ticket, TicketError> {
        Ticket::from_text(value.strip_prefix("Bearer ").ok_or(TicketError::Text)?)
    }

    /// The text form, for `Authorization: Bearer` and for files.
    pub fn to_text(&self) -> String {
        format!("{TEXT_PREFIX}{}", URL_SAFE_NO_PAD.encode(&self.bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it says; believe it after a check.
    pub fn claims(&self) -> &TicketClaims {
        &self.claims
    }

    /// SHA-256 over payload and signature. The MAC is left out, so a new edge key makes no new ticket.
    pub fn digest(&self) -> TicketDigest {
        TicketDigest(sha256(&[self.payload(), &self.signature().0]))
    }

    /// The edge's check, to route: MAC (in constant time), network, time.
    pub fn check_at_edge(&self, edge: &EdgeKey, network: &str, now: u64) -> Result<(), Refusal> {
        self.check_mac(edge)?;
        self.check_network_name(network)?;
        self.check_time(now)
    }

    /// The hub's check: everything that can be known before the holder proved its key.
    pub fn check_at_hub(
        &self,
        hub: &PublicKey,
        edge: &EdgeKey,
        network: &str,
        role: Role,
        now: u64,
    ) -> Result<(), Refusal> {
        self.check_at_edge(edge, network, now)?;
        if self.claims.hub != *hub {
            return Err(Refusal::new(
                RefusalCode::BadTicket,
                format!(
                    "the ticket was signed by hub key {}, this hub is {}",
                    self.claims.hub.digest(),
                    hub.digest()
                ),
                "ask this network's operator for a new ticket",
            ));
        }
        self.check_signature()?;
        if self.claims.role != role {
            return Err(Refusal::new(
                RefusalCode::WrongRole,
                format!("the ticket is for a {}, this door is for a {role}", self.claims.role),
                format!("use a ticket that was made for a {role}"),
            ));
        }
        Ok(())
    }

    /// The holder's check, before it uses a ticket: the hub's signature, its own key, its role, time.
    pub fn check_as_holder(&self, holder: &PublicKey, role: Role, now: u64) -> Result<(), Refusal> {
        self.check_signature()?;
        if self.claims.holder != *holder {
            return Err(Refusal::new(
                RefusalCode::WrongKey,
                format!("the ticket belongs to key {}, this key is {}", self.claims.holder, holder),
                "use the key that the ticket was made for, or ask for a ticket for this key",
            ));
        }
        if self.claims.role != role {
            return Err(Refusal::new(
                RefusalCode::WrongRole,
                format!("the ticket is for a {}, it was to be used by a {role}", self.claims.role),
                format!("use a ticket that was made for a {role}"),
            ));
        }
        self.check_time(now)
    }

    fn check_mac(&self, edge: &EdgeKey) -> Result<(), Refusal> {
        let (signed, mac) = self.bytes.split_at(self.bytes.len() - MAC_BYTES);
        edge.mac([signed, &[]]).verify_slice(mac).map_err(|_| {
            Refusal::new(
                RefusalCode::BadTicket,
                "the ticket's seal was not made with this network's edge key",
                "check that the whole ticket was copied; else ask the operator for a new one",
            )
        })
    }

    fn check_signature(&self) -> Result<(), Refusal> {
        self.claims.hub.verify(&signed_bytes(self.payload()), &self.signature()).map_err(|_| {
            Refusal::new(
                RefusalCode::BadTicket,
                "the hub's signature in the ticket does not verify",
                "check that the whole ticket was copied; else ask the operator for a new one",
            )
        })
    }

    fn check_network_name(&self, network: &str) -> Result<(), Refusal> {
        if self.claims.network == network {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCode::UnknownNetwork,
            format!("the ticket is for network {}, this is {network}", self.claims.network),
            "dial the address that came with the ticket, or use a ticket for this network",
        ))
    }

    fn check_time(&self, now: u64) -> Result<(), Refusal> {
        let claims = &self.claims;
        if now >= claims.expires {
            return Err(Refusal::new(
                RefusalCode::TicketExpired,
                format!("the ticket expired at unix time {}, it is now {now} here", claims.expires),
                "ask the operator for a new ticket; if it should still hold, compare the two clocks",
            ));
        }
        if now + CLOCK_SKEW_SECONDS < claims.issued {
            return Err(Refusal::new(
                RefusalCode::TicketNotYetValid,
                format!("the ticket holds from unix time {}, it is only {now} here", claims.issued),
                "set the clock that is behind; up to two minutes of difference are allowed",
            ));
        }
        Ok(())
    }

    fn payload(&self) -> &[u8] {
        &self.bytes[..self.bytes.len() - SIGNATURE_BYTES - MAC_BYTES]
    }

    fn signature(&self) -> Signature {
        let at = self.bytes.len() - SIGNATURE_BYTES - MAC_BYTES;
        let mut signature = [0; SIGNATURE_BYTES];
        signature.copy_from_slice(&self.bytes[at..at + SIGNATURE_BYTES]);
        Signature(signature)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A ticket is a credential: logs get its digest, never its text.
        f.debug_struct("Ticket").field("digest", &self.digest()).field("role", &self.claims.role).finish()
    }
}

/// Why bytes or text are no ticket, or none could be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TicketError {
    /// A field breaks a rule.
    #[error("bad ticket: {0}")]
    Decode(#[from] DecodeError),
    /// Not the text form of a ticket.
    #[error("not a ticket: expected `{TEXT_PREFIX}` and base64url without padding")]
    Text,
    /// The claims name another hub key than the one that signs.
    #[error("the claims name another hub key than the one that signs")]
    OtherHub,
}

impl From<TicketError> for Refusal {
    fn from(error: TicketError) -> Refusal {
        Refusal::new(
            RefusalCode::BadTicket,
            error.to_string(),
            "check that the whole ticket was copied; else ask the operator for a new one",
        )
    }
}

const TICKET_VERSION: u8 = 1;
const SIGNATURE_BYTES: usize = 64;
const MAC_BYTES: usize = 32;
const TEXT_PREFIX: &str = "kvasir-ticket-v1.";
const EDGE_KEY_PREFIX: &str = "kvasir-edge-v1 ";
const TICKET_DOMAIN: &[u8] = b"kvasir/ticket/v1\0";

fn signed_bytes(payload: &[u8]) -> Vec<u8> {
    [TICKET_DOMAIN, payload].concat()
}

fn names<T>(r: &mut Reader<'_>, field: &'static str, make: fn([u8; 32]) -> T) -> Result<Vec<T>, DecodeError> {
    let count = r.u16(field)?;
    let count = r.check_count(field, count.into(), MAX_TICKET_ALLOWED, 32)?;
    (0..count).map(|_| r.array(field).map(make)).collect()
}
