//! One registry over HTTP: credentials on demand, redirects with care, every answer bounded in bytes and time.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use ureq::http::header::{AUTHORIZATION, LOCATION, WWW_AUTHENTICATE};
use ureq::http::{HeaderMap, Method, Request, Response, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Timeout};

use crate::challenge::Challenge;
use crate::credentials::Credentials;
use crate::document::shown;
use crate::error::RegistryError;
use crate::limits::*;
use crate::plain_file;
use crate::reference::{is_loopback, is_near_address, is_odd_address};
use crate::resolver::{Guarded, NearAddress};

/// How a registry is spoken to.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who one is; nobody where there is none.
    pub credentials: Option<Credentials>,
    /// Plain HTTP to a host other than this machine. Without it TLS is used, but on this machine itself.
    pub plain_http: bool,
    /// TLS on this machine itself too.
    pub loopback_tls: bool,
    /// A file of certificates in PEM to trust in place of the usual ones.
    pub certificates: Option<PathBuf>,
    /// Time for the whole push or pull, at most [`MAX_DEADLINE`].
    pub deadline: Duration,
    /// Longest silence of the other side.
    pub silence: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            credentials: None,
            plain_http: false,
            loopback_tls: false,
            certificates: None,
            deadline: DEFAULT_DEADLINE,
            silence: MAX_SILENCE,
        }
    }
}

/// A registry, for one push or pull.
pub(crate) struct Client {
    agent: Agent,
    host: String,
    plain: bool,
    options: Options,
    started: Instant,
    /// The header that the registry asked for, once it has.
    authorization: Option<String>,
}

/// What is asked of a registry.
pub(crate) struct Ask<'a> {
    pub method: Method,
    /// A path, or an address that the registry gave.
    pub target: &'a str,
    pub headers: &'a [(&'static str, &'a str)],
    pub body: Option<&'a [u8]>,
    /// For error messages: `the blob sha256:..`.
    pub what: &'a str,
    /// What a bearer key is to allow, where the registry does not say.
    pub scope: &'a str,
}

/// The head of an answer, and its body to be read.
pub(crate) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub what: String,
    body: Body,
}

impl Client {
    pub fn new(host: &str, options: &Options) -> Result<Self, RegistryError> {
        let loopback = is_loopback(host);
        let plain = if loopback { !options.loopback_tls } else { options.plain_http };
        let roots = match &options.certificates {
            None => RootCerts::WebPki,
            Some(path) => certificates(path)?,
        };
        let mut config = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .user_agent(concat!("kvasir/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // Redirects are followed here, where it is known what must not follow.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(MAX_HEAD_BYTES)
            .timeout_resolve(Some(options.silence))
            .timeout_connect(Some(options.silence))
            .timeout_recv_response(Some(options.silence))
            .timeout_per_read(Some(options.silence))
            .timeout_per_write(Some(options.silence));
        if loopback {
            config = config.proxy(None);
        }
        let resolver = Guarded::new(host, loopback);
        // A clock cannot be set to any time that a caller may name.
        let options = Options { deadline: options.deadline.min(MAX_DEADLINE), ..options.clone() };
        Ok(Client {
            agent: Agent::with_parts(config.build(), DefaultConnector::default(), resolver),
            host: host.to_owned(),
            plain,
            options,
            started: Instant::now(),
            authorization: None,
        })
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// Asks, showing credentials where the registry demands them, and following what redirects may be followed.
    pub fn ask(&mut self, ask: &Ask<'_>) -> Result<Answer, RegistryError> {
        let own = self.own(ask)?;
        let mut address = own.clone();
        let (mut redirects, mut tried) = (0, false);
        loop {
            let at_home = same_server(&address, &own);
            let authorization = self.authorization.clone().filter(|_| at_home);
            let answer = self.exchange(&address, ask, authorization.as_deref())?;
            let status = answer.status().as_u16();
            if status == 401 && at_home && !tried {
                tried = true;
                self.authorization = Some(self.authorize(&answer, ask)?);
                continue;
            }
            if matches!(status, 301 | 302 | 303 | 307 | 308) {
                redirects += 1;
                address = self.redirected(&address, &answer, ask, redirects)?;
                continue;
            }
            let (parts, body) = answer.into_parts();
            return Ok(Answer { status, headers: parts.headers, what: ask.what.to_owned(), body });
        }
    }

    /// The body of a document of at most `limit` bytes.
    pub fn document(&self, answer: Answer, limit: u64) -> Result<Vec<u8>, RegistryError> {
        let (what, bytes) = self.read(answer, limit)?;
        if bytes.len() as u64 > limit {
            return Err(RegistryError::TooLarge { place: self.host.clone(), what, limit });
        }
        Ok(bytes)
    }

    /// The body of a blob of exactly `size` bytes, or what of a longer one shows that it is longer.
    pub fn blob(&self, answer: Answer, size: u64) -> Result<Vec<u8>, RegistryError> {
        let announced = answer.body.content_length().filter(|announced| *announced != size);
        let what = answer.what.clone();
        let found = match announced {
            Some(announced) => announced,
            None => {
                let (_, bytes) = self.read(answer, size)?;
                if bytes.len() as u64 == size {
                    return Ok(bytes);
                }
                bytes.len() as u64
            }
        };
        Err(RegistryError::Size { place: self.host.clone(), what, found, expected: size })
    }

    /// The error that an answer's status means.
    pub fn refusal(&self, answer: Answer) -> RegistryError {
        let (host, what, status) = (self.host.clone(), answer.what.clone(), answer.status);
        match status {
            401 | 403 => RegistryError::Denied { host, what, status },
            404 => RegistryError::NotFound { host, what },
            _ => {
                let text = self.read(answer, MAX_REFUSAL_BYTES).map(|(_, bytes)| bytes).unwrap_or_default();
                let text = shown(&String::from_utf8_lossy(&text));
                let text = if text.is_empty() { "it says nothing".to_owned() } else { text };
                RegistryError::Refused { host, what, status, text }
            }
        }
    }

    /// At most one byte more than `limit`.
    fn read(&self, mut answer: Answer, limit: u64) -> Result<(String, Vec<u8>), RegistryError> {
        let mut bytes = Vec::new();
        let read = answer.body.as_reader().take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.failed(&self.host, &answer.what, ureq::Error::from(error)))?;
        Ok((answer.what, bytes))
    }

    /// The address asked for, which must be this registry's own.
    fn own(&self, ask: &Ask<'_>) -> Result<Uri, RegistryError> {
        let scheme = if self.plain { "http" } else { "https" };
        let wrong = |reason: &str| RegistryError::Protocol {
            place: self.host.clone(),
            what: ask.what.to_owned(),
            reason: reason.to_owned(),
        };
        let home = format!("{scheme}://{}", self.host);
        let text = match ask.target.starts_with('/') && !ask.target.starts_with("//") {
            true => format!("{home}{}", ask.target),
            false => ask.target.to_owned(),
        };
        let address: Uri = text.parse().map_err(|_| wrong("it gave an address that is none"))?;
        let home: Uri = home.parse().map_err(|_| wrong("its host is none"))?;
        if !same_server(&address, &home) {
            return Err(wrong("it wants the upload sent to another server; that is not done"));
        }
        Ok(address)
    }

    fn redirected(
        &self,
        from: &Uri,
        answer: &Response<Body>,
        ask: &Ask<'_>,
        redirects: usize,
    ) -> Result<Uri, RegistryError> {
        let refused = |reason: &str| RegistryError::Redirect {
            host: self.host.clone(),
            what: ask.what.to_owned(),
            reason: reason.to_owned(),
        };
        if ask.body.is_some() || !matches!(ask.method, Method::GET | Method::HEAD) {
            return Err(refused("only what is fetched may be fetched elsewhere"));
        }
        if redirects > MAX_REDIRECTS {
            return Err(refused(&format!("it was redirected more than {MAX_REDIRECTS} times")));
        }
        let target = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let target = target.ok_or_else(|| refused("it does not say where"))?;
        let target = match (target.starts_with("//"), target.starts_with('/'), from.authority()) {
            (false, true, Some(authority)) => {
                format!("{}://{authority}{target}", from.scheme_str().unwrap_or("https"))
            }
            _ => target.to_owned(),
        };
        let target: Uri = target.parse().map_err(|_| refused("the address is none"))?;
        self.fit(&target).map_err(|reason| refused(&reason))?;
        Ok(target)
    }

    /// Whether an address that the registry names may be spoken to: TLS where the registry has it, and not this machine's own
    /// services unless the registry is here.
    fn fit(&self, address: &Uri) -> Result<(), String> {
        let authority = address.authority().map(ToString::to_string).unwrap_or_default();
        match address.scheme_str() {
            Some("https") => {}
            Some("http") if self.plain => {}
            _ => return Err("it leads away from TLS".to_owned()),
        }
        if authority.contains('@') {
            return Err("the address holds a password".to_owned());
        }
        if is_loopback(&self.host) || authority.eq_ignore_ascii_case(&self.host) {
            return Ok(());
        }
        // Names are judged by what they resolve to, where the connection is made; a proxy resolves them elsewhere.
        if is_near_address(&authority) {
            return Err("it leads to this machine's own services".to_owned());
        }
        if is_odd_address(&authority) {
            return Err("it leads to an address that is not written as four numbers".to_owned());
        }
        Ok(())
    }

    fn exchange(
        &self,
        address: &Uri,
        ask: &Ask<'_>,
        authorization: Option<&str>,
    ) -> Result<Response<Body>, RegistryError> {
        let mut request = Request::builder().method(ask.method.clone()).uri(address.clone());
        for (name, value) in ask.headers {
            request = request.header(*name, *value);
        }
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let host = address.authority().map_or(self.host.clone(), ToString::to_string);
        let left = self.options.deadline.checked_sub(self.started.elapsed());
        let left = left.filter(|left| !left.is_zero()).ok_or_else(|| self.late(&host, ask.what))?;
        let answer = match ask.body {
            None => request.body(()).map_err(ureq::Error::from).and_then(|asked| self.run(asked, left)),
            Some(bytes) => {
                request.body(bytes).map_err(ureq::Error::from).and_then(|asked| self.run(asked, left))
            }
        };
        answer.map_err(|error| self.failed(&host, ask.what, error))
    }

    fn run(
        &self,
        request: Request<impl ureq::AsSendBody>,
        left: Duration,
    ) -> Result<Response<Body>, ureq::Error> {
        self.agent.run(self.agent.configure_request(request).timeout_global(Some(left)).build())
    }

    /// The header that the registry's challenge asks for.
    fn authorize(&self, answer: &Response<Body>, ask: &Ask<'_>) -> Result<String, RegistryError> {
        let denied =
            || RegistryError::Denied { host: self.host.clone(), what: ask.what.to_owned(), status: 401 };
        let challenges = answer.headers().get_all(WWW_AUTHENTICATE).iter();
        let mut challenges = challenges.filter_map(|value| Challenge::parse(value.to_str().ok()?));
        match challenges.next().ok_or_else(denied)? {
            Challenge::Basic => Ok(self.options.credentials.as_ref().ok_or_else(denied)?.basic()),
            Challenge::Bearer { realm, service, scope } => {
                let scope = scope.unwrap_or_else(|| ask.scope.to_owned());
                self.bearer(&realm, service.as_deref(), &scope)
            }
        }
    }

    /// Fetches a bearer key from the server at `realm`; with the credentials, where there are any.
    fn bearer(&self, realm: &str, service: Option<&str>, scope: &str) -> Result<String, RegistryError> {
        #[derive(Deserialize)]
        struct Given {
            #[serde(rename = "token")]
            key: Option<String>,
            #[serde(rename = "access_token")]
            other: Option<String>,
        }
        const WHAT: &str = "a bearer key";
        const FORM: &[(&str, &str)] = &[("content-type", "application/x-www-form-urlencoded")];
        let wrong = |reason: String| RegistryError::Protocol {
            place: self.host.clone(),
            what: WHAT.to_owned(),
            reason,
        };
        let address: Uri =
            realm.parse().map_err(|_| wrong("it names a server for keys by no address".to_owned()))?;
        self.fit(&address).map_err(|reason| wrong(format!("of the server for keys it named: {reason}")))?;

        let mut query = format!("scope={}", encoded(scope));
        if let Some(service) = service {
            query += &format!("&service={}", encoded(service));
        }
        let credentials = self.options.credentials.as_ref();
        let form;
        let (ask, authorization) = match credentials.and_then(Credentials::refresh) {
            Some(refresh) => {
                form = format!(
                    "grant_type=refresh_token&client_id=kvasir&{query}&refresh_token={}",
                    encoded(refresh)
                );
                let body = Some(form.as_bytes());
                (
                    Ask { method: Method::POST, target: realm, headers: FORM, body, what: WHAT, scope: "" },
                    None,
                )
            }
            None => {
                form = format!("{realm}{}{query}", if realm.contains('?') { '&' } else { '?' });
                let ask = Ask {
                    method: Method::GET,
                    target: &form,
                    headers: &[],
                    body: None,
                    what: WHAT,
                    scope: "",
                };
                (ask, credentials.map(Credentials::basic))
            }
        };
        let address: Uri = ask.target.parse().map_err(|_| wrong("its address is none".to_owned()))?;
        let answer = self.exchange(&address, &ask, authorization.as_deref())?;
        let status = answer.status().as_u16();
        let (parts, body) = answer.into_parts();
        let answer = Answer { status, headers: parts.headers, what: WHAT.to_owned(), body };
        if status != 200 {
            return Err(self.refusal(answer));
        }
        let text = self.document(answer, MAX_BEARER_ANSWER_BYTES)?;
        let given: Given = serde_json::from_slice(&text)
            .map_err(|_| wrong("the server for keys answers in another form".to_owned()))?;
        let key = given.key.or(given.other).unwrap_or_default();
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("the server for keys gave none".to_owned()));
        }
        Ok(format!("Bearer {key}"))
    }

    fn late(&self, host: &str, what: &str) -> RegistryError {
        RegistryError::Deadline { host: host.to_owned(), what: what.to_owned(), limit: self.options.deadline }
    }

    fn failed(&self, host: &str, what: &str, error: ureq::Error) -> RegistryError {
        let (host, what) = (host.to_owned(), what.to_owned());
        match error {
            ureq::Error::Timeout(Timeout::Global) => self.late(&host, &what),
            ureq::Error::Timeout(_) => RegistryError::Deadline { host, what, limit: self.options.silence },
            ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) | ureq::Error::Http(_) => {
                RegistryError::Protocol { place: host, what, reason: shown(&error.to_string()) }
            }
            ureq::Error::Other(error) if error.is::<NearAddress>() => {
                RegistryError::Redirect { host: self.host.clone(), what, reason: error.to_string() }
            }
            error => RegistryError::Unreachable { host, reason: shown(&error.to_string()) },
        }
    }
}

/// Same scheme, host and port, in the form in which they are written.
fn same_server(a: &Uri, b: &Uri) -> bool {
    let port = |address: &Uri| {
        address.port_u16().unwrap_or(if address.scheme_str() == Some("http") { 80 } else { 443 })
    };
    let plain =
        |address: &Uri| !address.authority().is_some_and(|authority| authority.as_str().contains('@'));
    plain(a)
        && plain(b)
        && a.scheme_str() == b.scheme_str()
        && a.host().is_some()
        && a.host().map(str::to_ascii_lowercase) == b.host().map(str::to_ascii_lowercase)
        && port(a) == port(b)
}

fn certificates(path: &Path) -> Result<RootCerts, RegistryError> {
    let pem = plain_file::read(path, MAX_CERTIFICATES_BYTES).map_err(|source| RegistryError::File {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    let wrong = |reason: String| RegistryError::Certificates { path: path.to_owned(), reason };
    if pem.len() as u64 > MAX_CERTIFICATES_BYTES {
        return Err(wrong(format!("it has more than {MAX_CERTIFICATES_BYTES} bytes")));
    }
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| wrong(error.to_string()))? {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        return Err(wrong("there is none".to_owned()));
    }
    Ok(RootCerts::from(found))
}

/// Percent-encoded for a query or a form.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_scheme_host_and_port() {
        let same = |a: &str, b: &str| same_server(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("https://a.org/x", "https://A.org:443/y"));
        assert!(same("http://a.org", "http://a.org:80"));
        for other in
            ["http://a.org", "https://b.org", "https://a.org:444", "https://a.org.b.org", "https://u@a.org"]
        {
            assert!(!same("https://a.org", other), "{other}");
        }
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(encoded("repository:a/b:pull,push x&y"), "repository%3Aa%2Fb%3Apull%2Cpush%20x%26y");
    }
}
