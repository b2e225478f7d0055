//! A blocking client of the ledger, for the gateway's settlement poller, the hub, and commands.
//!
//! Plain HTTP: the ledger listens on the LAN only. Every call has a time limit and a bound on the answer's size.
//! Sending a note again is always safe: the ledger gives the first answer again.

use std::time::Duration;

use kvasir_merkle::Hash;
use kvasir_wire::account::{AccountError, SettledSession, Settlement, Statement};
use kvasir_wire::id::{KeyDigest, WalletDigest};
use kvasir_wire::key::SecretKey;
use kvasir_wire::money::{MeteredBytes, NanoKvr, PricePerByte};
use kvasir_wire::note::{NetworkName, Note};
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::api::{
    Accepted, Account, AccountStatement, CurrentPrice, ErrorBody, Ready, Receipts, STORED_BEFORE,
    STORED_HEADER, Side, StatementQuery, StoredNote, Unsettled, UnsettledPart, Wallet,
};

/// Time for one call, connecting included.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection is kept for the next call.
const MAX_IDLE: Duration = Duration::from_secs(5);
/// Largest answer that is read: a page of 500 receipts of 16 KiB, escaped.
pub const MAX_ANSWER_BYTES: u64 = 16 * 1024 * 1024;

/// Codes of refusals that hold only until somebody does what the refusal says; then the same note is taken.
pub const CURABLE_CODES: [&str; 8] = [
    "clock_ahead",
    "clock_skew",
    "unknown_grant",
    "unknown_price",
    "unknown_delegation",
    "delegation_expired",
    "account_unfunded",
    "unknown_hub",
];

/// A connection to one ledger; cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    base: String,
    agent: ureq::Agent,
}

/// Why a call gave no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The address has another form than `http://host:port`.
    #[error("`{0}` is no ledger address: expected http://host:port")]
    Address(String),
    /// The ledger said no.
    #[error("the ledger refused ({status} {}): {}; {}", body.code, body.message, body.what_to_do)]
    Refused {
        /// HTTP status.
        status: u16,
        /// Reason, advice and evidence.
        body: Box<ErrorBody>,
    },
    /// No answer in time, or no connection. Sending again is safe.
    #[error("the ledger at {url} does not answer: {source}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// Why it failed.
        source: Box<ureq::Error>,
    },
    /// An answer that is not this API's.
    #[error("the answer of {url} is not a ledger's: {reason}")]
    BadAnswer {
        /// What was asked.
        url: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// A settlement cannot be made from what the ledger says.
    #[error("cannot settle: {0}")]
    Settlement(#[from] AccountError),
}

/// What became of one settlement in [`Client::settle_once`].
#[derive(Debug)]
pub enum Settled {
    /// Credited now, by this call.
    Credited {
        /// What was settled.
        settlement: Box<Settlement>,
        /// The ledger's answer.
        accepted: Accepted,
    },
    /// The very same settlement was there already: another poller sent it, or an earlier call whose answer was lost.
    /// It is credited, once, and this call adds nothing to that.
    AlreadyCredited {
        /// What was settled.
        settlement: Box<Settlement>,
        /// The ledger's answer.
        accepted: Accepted,
    },
    /// Not credited: another poller was faster (code `conflict` or `balance_moved`), the payer is short
    /// (`payer_short`), or another reason. The receipts stay unsettled unless somebody else settled them.
    Refused {
        /// The wallet that waits.
        payee: String,
        /// The account that was to pay.
        payer: String,
        /// Reason and advice.
        body: Box<ErrorBody>,
    },
}

impl ClientError {
    /// The ledger's code where it refused.
    pub fn code(&self) -> Option<&str> {
        match self {
            ClientError::Refused { body, .. } => Some(&body.code),
            _ => None,
        }
    }

    /// True where the ledger refused, but will take the very same note once somebody has done what it says: a clock is set, a
    /// missing grant, price, delegation, key or funding arrives. See [`CURABLE_CODES`].
    pub fn is_curable(&self) -> bool {
        self.code().is_some_and(|code| CURABLE_CODES.contains(&code))
    }

    /// True where the same call may succeed later without a change: no connection, or a ledger in trouble.
    pub fn is_passing(&self) -> bool {
        match self {
            ClientError::Unreachable { .. } => true,
            ClientError::Refused { status, .. } => *status >= 500 || *status == 408,
            _ => false,
        }
    }
}

impl Client {
    /// A client of the ledger at `address`, for example `http://127.0.0.1:9750`, with [`DEFAULT_TIMEOUT`].
    pub fn new(address: &str) -> Result<Self, ClientError> {
        Self::with_timeout(address, DEFAULT_TIMEOUT)
    }

    /// The same with a time limit of one's own.
    pub fn with_timeout(address: &str, timeout: Duration) -> Result<Self, ClientError> {
        let base = address.trim_end_matches('/');
        if !base.strip_prefix("http://").is_some_and(is_host_and_port) {
            // A password that somebody put there is not shown on a terminal or in a log.
            let shown = match address.rsplit_once('@') {
                Some((_, host)) => format!("...@{host}"),
                None => address.to_owned(),
            };
            return Err(ClientError::Address(shown));
        }
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            // The ledger closes a connection that was silent for 10 s; one that is about to be closed is not used again.
            .max_idle_age(MAX_IDLE)
            // A LAN service is asked directly, whatever proxy the environment names.
            .proxy(None)
            .build()
            .into();
        Ok(Self { base: base.to_owned(), agent })
    }

    /// Stores a receipt.
    pub fn post_receipt(&self, note: &Note) -> Result<Accepted, ClientError> {
        self.post("/v1/receipts", note)
    }

    /// Stores a price, grant, fund, delegate or correct note.
    pub fn post_note(&self, note: &Note) -> Result<Accepted, ClientError> {
        self.post("/v1/notes", note)
    }

    /// Stores a settlement: credits a wallet.
    pub fn post_settlement(&self, note: &Note) -> Result<Accepted, ClientError> {
        self.post("/v1/settlements", note)
    }

    /// Receipts after an index (from the start where it is `None`), at most `limit`.
    pub fn receipts(&self, after: Option<u64>, limit: u32) -> Result<Receipts, ClientError> {
        let after = after.map(|index| format!("&after={index}")).unwrap_or_default();
        self.get(&format!("/v1/receipts?limit={limit}{after}"))
    }

    /// The note with this leaf hash.
    pub fn note(&self, leaf: &Hash) -> Result<StoredNote, ClientError> {
        self.get(&format!("/v1/notes/{leaf}"))
    }

    /// A wallet's credit; zeros where it never earned.
    pub fn wallet(&self, payee: &WalletDigest) -> Result<Wallet, ClientError> {
        self.get(&format!("/v1/wallets/{payee}"))
    }

    /// A paying account; zeros where it was never funded.
    pub fn account(&self, account: &KeyDigest) -> Result<Account, ClientError> {
        self.get(&format!("/v1/accounts/{account}"))
    }

    /// One account over a period, a page of it.
    pub fn statement(
        &self,
        side: Side,
        owner: &Hash,
        asked: &StatementQuery,
    ) -> Result<AccountStatement, ClientError> {
        let accounts = match side {
            Side::Payee => "wallets",
            Side::Payer => "accounts",
        };
        let StatementQuery { from, to, at, after, limit } = *asked;
        let numbers =
            [("from", from), ("to", to), ("at", at), ("after", after), ("limit", limit.map(u64::from))];
        let given = numbers.into_iter().filter_map(|(name, number)| Some(format!("{name}={}", number?)));
        let parameters = given.collect::<Vec<_>>().join("&");
        self.get(&format!("/v1/{accounts}/{owner}/statement?{parameters}"))
    }

    /// The price that holds now.
    pub fn price(&self) -> Result<CurrentPrice, ClientError> {
        self.get("/v1/price")
    }

    /// Receipts that wait to be settled.
    pub fn unsettled(&self) -> Result<Unsettled, ClientError> {
        self.get("/v1/unsettled")
    }

    /// Whether the ledger serves.
    pub fn ready(&self) -> Result<Ready, ClientError> {
        self.get("/ready")
    }

    /// One round of the settlement poller: asks what is unsettled, signs and posts a settlement for each part.
    /// Safe to repeat after any failure and to run twice at once: the ledger credits each byte at most once.
    /// `now` in Unix seconds.
    pub fn settle_once(
        &self,
        network: &NetworkName,
        settler: &SecretKey,
        now: u64,
    ) -> Result<Vec<Settled>, ClientError> {
        let mut outcomes = Vec::new();
        // Credit that this round has given a wallet already: several parts may be for one wallet.
        let mut credited: std::collections::HashMap<String, NanoKvr> = std::collections::HashMap::new();
        for part in self.unsettled()?.parts {
            let earlier = credited.get(&part.payee).copied().unwrap_or(NanoKvr::ZERO);
            let settlement =
                settlement_of(&part, network, earlier, now).ok_or_else(|| ClientError::BadAnswer {
                    url: format!("{}/v1/unsettled", self.base),
                    reason: "digests, bytes or amounts that cannot be read".to_owned(),
                })??;
            match self.post_settlement(&settlement.sign(settler)?) {
                Ok(accepted) => {
                    let sum = earlier.checked_add(settlement.amount).map_err(AccountError::from)?;
                    credited.insert(part.payee, sum);
                    let settlement = Box::new(settlement);
                    outcomes.push(if accepted.repeated {
                        Settled::AlreadyCredited { settlement, accepted }
                    } else {
                        Settled::Credited { settlement, accepted }
                    });
                }
                Err(ClientError::Refused { status, body }) if status < 500 => {
                    outcomes.push(Settled::Refused { payee: part.payee, payer: part.payer, body });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(outcomes)
    }

    fn post(&self, path: &str, note: &Note) -> Result<Accepted, ClientError> {
        let url = format!("{}{path}", self.base);
        let request = self.agent.post(&url).content_type("text/plain; charset=utf-8");
        let result = request.send(note.to_string());
        let before = result.as_ref().is_ok_and(|response| {
            response
                .headers()
                .get(STORED_HEADER)
                .is_some_and(|value| value.as_bytes() == STORED_BEFORE.as_bytes())
        });
        let accepted: Accepted = read(result, url)?;
        Ok(Accepted { repeated: before, ..accepted })
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let url = format!("{}{path}", self.base);
        read(self.agent.get(&url).call(), url)
    }
}

/// The settlement that a part of `GET /v1/unsettled` asks for; nothing where its text fields cannot be read.
fn settlement_of(
    part: &UnsettledPart,
    network: &NetworkName,
    earlier: NanoKvr,
    now: u64,
) -> Option<Result<Settlement, AccountError>> {
    let parties = (part.payer.parse().ok()?, part.payee.parse().ok()?);
    let price = (part.price.parse().ok()?, PricePerByte::new(part.nanokvr_per_byte).ok()?);
    let sessions = part
        .sessions
        .iter()
        .map(|session| {
            Some(SettledSession {
                session: session.session.parse().ok()?,
                from_seq: session.from_seq,
                to_seq: session.to_seq,
                bytes: MeteredBytes::new(session.bytes).ok()?,
            })
        })
        .collect::<Option<Vec<_>>>()?;
    let before = NanoKvr::new(part.before_nanokvr).checked_add(earlier).ok()?;
    Some(Settlement::new(network.clone(), parties, price, sessions, before, now))
}

/// `host`, `host:port`, `[address]` or `[address]:port`. What is let through here and is none would be asked at port 80.
fn is_host_and_port(text: &str) -> bool {
    let is_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, port)| {
            address.parse::<std::net::Ipv6Addr>().is_ok()
                && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
        });
    }
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_host =
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    is_host && port.is_none_or(is_port)
}

type HttpResult = Result<ureq::http::Response<ureq::Body>, ureq::Error>;

fn read<T: DeserializeOwned>(result: HttpResult, url: String) -> Result<T, ClientError> {
    let unreachable = |url: String, source| ClientError::Unreachable { url, source: Box::new(source) };
    let mut response = match result {
        Ok(response) => response,
        Err(source) => return Err(unreachable(url, source)),
    };
    let status = response.status().as_u16();
    let body = match response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string() {
        Ok(body) => body,
        Err(source) => return Err(unreachable(url, source)),
    };
    if status == 200 {
        return serde_json::from_str(&body)
            .map_err(|error| ClientError::BadAnswer { url, reason: error.to_string() });
    }
    match serde_json::from_str::<ErrorBody>(&body) {
        Ok(body) => Err(ClientError::Refused { status, body: Box::new(body) }),
        Err(_) => Err(ClientError::BadAnswer { url, reason: format!("status {status} without a reason") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["http://127.0.0.1:9750", "http://ledger:1/", "http://[::1]:9750"] {
            assert!(Client::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "127.0.0.1:9750",
            "https://ledger",
            "http://",
            "http://ledger/v1",
            "http://a@b",
            "http://a b",
            "http://127.0.0.1:99999",
            "http://127.0.0.1:0",
            "http://127.0.0.1:",
            "http://127.0.0.1:+1",
            "http://[::1",
            "http://[::1]9750",
            "http://[ledger]:1",
        ] {
            assert!(matches!(Client::new(bad), Err(ClientError::Address(_))), "{bad}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_not_said_again() {
        let error = Client::new("http://user:secret@ledger:1").unwrap_err().to_string();
        assert!(!error.contains("secret") && error.contains("ledger:1"), "{error}");
    }

    #[test]
    fn nobody_there() {
        let client = Client::with_timeout("http://127.0.0.1:1", Duration::from_secs(2)).unwrap();
        let error = client.ready().unwrap_err();
        assert!(error.is_passing() && error.code().is_none(), "{error}");
    }
}
