//! How the ACME server is asked: HTTPS alone, no redirects, every answer bounded in size and time.
//!
//! The client blocks, so each request has a thread for its time; there are some twenty for a certificate. No runtime waits for
//! such a thread: a program that stops does not wait for a server that is silent.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use kvasir_ledger::files::read_regular;
use tokio::sync::oneshot;
use ureq::{
    Agent,
    http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header},
    tls::{PemItem, RootCerts, TlsConfig, parse_pem},
};

/// From the look-up of the name to the last byte of the answer.
const REQUEST_TIME: Duration = Duration::from_secs(30);
/// Most bytes of an answer: a directory, an order of a hundred names, a certificate chain.
const MAX_ANSWER_BYTES: u64 = 256 * 1024;
/// Most bytes of the head of an answer.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// The longest wait that a server may ask for; longer ones are taken as this. Let's Encrypt's limits are over after hours at most,
/// those of a week aside.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(6 * 60 * 60);
/// Most bytes of the file of authorities.
const MAX_ROOTS_BYTES: u64 = 1 << 20;

/// Why the file of authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// It cannot be read.
    #[error("reading {path}: {source}; edge.acme.directory_roots is a PEM file")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It holds no certificate.
    #[error("{path} holds no usable certificate of an authority: {detail}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        detail: String,
    },
}

/// Asks one ACME server; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Http {
    agent: Agent,
    /// Until when the server has asked to be left alone.
    quiet_until: Arc<Mutex<Option<Instant>>>,
}

impl Http {
    /// For the server with this directory.
    pub(super) fn new(directory: &str, roots: Option<&Path>) -> Result<Self, RootsError> {
        let roots = roots.map(authorities).transpose()?.unwrap_or(RootCerts::WebPki);
        let mut config = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .https_only(true)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(MAX_HEAD_BYTES)
            .timeout_global(Some(REQUEST_TIME));
        if is_loopback(directory) {
            config = config.proxy(None);
        }
        Ok(Http { agent: config.build().into(), quiet_until: Arc::default() })
    }

    /// For how long the server has asked to be left alone.
    pub(super) fn asked_to_wait(&self) -> Duration {
        let until = *self.quiet_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// One request on the thread that calls it.
    fn exchange(&self, request: Request<Vec<u8>>) -> Result<BytesResponse, Error> {
        let failed = |error: ureq::Error| Error::Other(Box::new(error));
        let answer = match request.body().is_empty() {
            true => self.agent.run(request.map(drop)),
            false => self.agent.run(request),
        };
        let (mut parts, body) = answer.map_err(failed)?.into_parts();
        let body = body.into_with_config().limit(MAX_ANSWER_BYTES).read_to_vec().map_err(failed)?;
        let asked = bound_retry_after(&mut parts.headers);
        if matches!(parts.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            let until = asked.and_then(|asked| Instant::now().checked_add(asked));
            *self.quiet_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        }
        let refused = parts.status.is_client_error() || parts.status.is_server_error();
        if refused && !is_json(&parts.headers) {
            return Err(Error::Other(
                format!("the server answers {} and says no reason", parts.status).into(),
            ));
        }
        Ok(BytesResponse { parts, body: Box::new(Bytes::from(body)) })
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let http = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let Ok(body) = body.collect().await;
            let request = Request::from_parts(parts, body.to_bytes().to_vec());
            let (sender, receiver) = oneshot::channel();
            std::thread::Builder::new()
                .name("acme".into())
                // Nobody may wait for the answer any more.
                .spawn(move || drop(sender.send(http.exchange(request))))
                .map_err(|error| Error::Other(Box::new(error)))?;
            receiver.await.unwrap_or_else(|_| Err(Error::Other("the request was given up".into())))
        })
    }
}

/// Reads how long the server asks to wait, where it says so in seconds, and writes the longest that is waited instead of what is
/// longer: the library adds it to the time of day, whatever it is.
fn bound_retry_after(headers: &mut HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse::<u64>().ok()?;
    let asked = Duration::from_secs(seconds);
    if asked > MAX_RETRY_AFTER {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(MAX_RETRY_AFTER.as_secs()));
    }
    Some(asked.min(MAX_RETRY_AFTER))
}

/// Whether an answer says that it is a JSON text, the kind for problems included.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind == "application/problem+json"
}

/// A server on this machine is asked directly, whatever proxy the environment names.
fn is_loopback(directory: &str) -> bool {
    let Ok(address) = directory.parse::<Uri>() else { return false };
    let host = address.host().unwrap_or_default().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn authorities(path: &Path) -> Result<RootCerts, RootsError> {
    let pem = read_regular(path, MAX_ROOTS_BYTES)
        .map_err(|source| RootsError::Unreadable { path: path.into(), source })?;
    let unusable = |detail: String| RootsError::Unusable { path: path.into(), detail };
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| unusable(error.to_string()))? {
            found.push(certificate);
        }
    }
    match found.is_empty() {
        true => Err(unusable("no CERTIFICATE section".into())),
        false => Ok(RootCerts::from(found)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn what_a_server_asks_to_wait_is_bounded_before_anybody_adds_it_to_a_time() {
        for (said, taken, seen) in [
            ("120", Some(120), "120"),
            (" 0 ", Some(0), "0"),
            ("21601", Some(21_600), "21600"),
            ("18446744073709551615", Some(21_600), "21600"),
            ("18446744073709551616", None, "18446744073709551616"),
            ("Fri, 31 Dec 1999 23:59:59 GMT", None, "Fri, 31 Dec 1999 23:59:59 GMT"),
        ] {
            let mut headers = headers(header::RETRY_AFTER, said);
            assert_eq!(bound_retry_after(&mut headers), taken.map(Duration::from_secs), "{said}");
            let left = headers.get(header::RETRY_AFTER).unwrap().to_str().unwrap();
            assert_eq!(left.trim(), seen);
        }
        assert_eq!(bound_retry_after(&mut HeaderMap::new()), None);
    }

    #[test]
    fn kinds_of_answers_and_servers_on_this_machine_are_told_apart() {
        for (kind, json) in [
            ("application/problem+json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/html", false),
            ("", false),
        ] {
            assert_eq!(is_json(&headers(header::CONTENT_TYPE, kind)), json, "{kind}");
        }
        for (directory, loopback) in [
            ("https://localhost:1/dir", true),
            ("https://127.0.0.1:1/dir", true),
            ("https://[::1]:1/dir", true),
            ("https://ca.example/dir", false),
            ("https://10.0.0.1/dir", false),
        ] {
            assert_eq!(is_loopback(directory), loopback, "{directory}");
        }
    }

    #[test]
    fn a_file_of_authorities_must_hold_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        assert!(matches!(Http::new("https://a.b", Some(&path)), Err(RootsError::Unreadable { .. })));
        std::fs::write(&path, "").unwrap();
        assert!(matches!(Http::new("https://a.b", Some(&path)), Err(RootsError::Unusable { .. })));
        std::fs::write(&path, vec![b'a'; MAX_ROOTS_BYTES as usize + 1]).unwrap();
        assert!(matches!(Http::new("https://a.b", Some(&path)), Err(RootsError::Unreadable { .. })));
        assert!(Http::new("https://a.b", None).is_ok());
    }
}
