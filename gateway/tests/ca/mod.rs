//! A small ACME server (RFC 8555) on the loopback, with TLS of its own: as much as an edge asks for, and what goes wrong with
//! real ones. It proves names as they do: by a connection to the edge.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod jose;
mod prove;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use kvasir_gateway::{
    certificate::{self, Names},
    edge::Certificates,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, DnType, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::watch,
};
use tokio_rustls::TlsAcceptor;

use jose::{Answer, Asked, problem};
pub use prove::connect;

/// Validity of the certificates that are issued unless told otherwise: seconds from now.
pub const NINETY_DAYS: (i64, i64) = (-3_600, 90 * 86_400);

/// A running server.
pub struct Ca {
    /// Address of its directory.
    pub directory: String,
    /// PEM file of the authority that its own TLS is from.
    pub roots: PathBuf,
    server: Arc<Server>,
    _folder: tempfile::TempDir,
}

/// What it does differently from one that does what it is asked.
#[derive(Clone, Copy)]
pub struct Mood {
    /// Validity of what it issues, seconds from now.
    pub validity: (i64, i64),
    /// After so many orders it takes no more.
    pub orders_left: usize,
    /// It expects another digest than the right one.
    pub wrong_digest: bool,
    /// Its directory is this much longer.
    pub padding: usize,
    /// It wants one proof more than there are names.
    pub one_proof_more: bool,
    /// What its directory says of nonces is no address.
    pub no_address: bool,
}

struct Server {
    base: String,
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Where names are proved.
    edge: watch::Sender<Option<SocketAddr>>,
    mood: Mutex<Mood>,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    requests: usize,
    nonces: jose::Nonces,
    accounts: Vec<Option<Account>>,
    orders: Vec<Order>,
}

struct Account {
    key: Value,
    contact: Value,
}

struct Order {
    account: usize,
    names: Vec<String>,
    proofs: Vec<Proof>,
    chain: Option<String>,
}

struct Proof {
    token: String,
    status: &'static str,
    error: Option<String>,
}

impl Ca {
    pub async fn start() -> Ca {
        let folder = tempfile::tempdir().unwrap();
        let files =
            certificate::make(folder.path(), &Names::parse(&["127.0.0.1".into()]).unwrap(), false).unwrap();
        let tls = Certificates::load(&files.certificate, &files.key).unwrap().server_config().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("https://{}", listener.local_addr().unwrap());
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "The authority of a test");
        let server = Arc::new(Server {
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap(),
            edge: watch::Sender::new(None),
            mood: Mutex::new(Mood {
                validity: NINETY_DAYS,
                orders_left: usize::MAX,
                wrong_digest: false,
                padding: 0,
                one_proof_more: false,
                no_address: false,
            }),
            book: Mutex::default(),
            base,
        });
        tokio::spawn(serve(server.clone(), listener, TlsAcceptor::from(tls)));
        Ca {
            directory: format!("{}/directory", server.base),
            roots: files.authority,
            server,
            _folder: folder,
        }
    }

    /// Names are proved there from now on.
    pub fn proves_at(&self, edge: SocketAddr) {
        self.server.edge.send_replace(Some(edge));
    }

    pub fn change(&self, change: impl FnOnce(&mut Mood)) {
        change(&mut self.server.mood.lock().unwrap());
    }

    /// The certificate that what it issues is signed with.
    pub fn issuer(&self) -> CertificateDer<'static> {
        self.server.issuer.der().clone()
    }

    /// Requests that it has had.
    pub fn requests(&self) -> usize {
        self.server.book.lock().unwrap().requests
    }

    /// Contacts of all accounts that it ever had.
    pub fn contacts(&self) -> Vec<Option<Value>> {
        let book = self.server.book.lock().unwrap();
        book.accounts.iter().map(|account| account.as_ref().map(|account| account.contact.clone())).collect()
    }

    /// From now on it knows none of the accounts that it has.
    pub fn forget_accounts(&self) {
        self.server.book.lock().unwrap().accounts.iter_mut().for_each(|account| *account = None);
    }

    /// A chain and its key, both PEM, that it has signed without being asked.
    pub fn signed(&self, name: &str, validity: (i64, i64)) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.not_before, params.not_after) = (at(validity.0).into(), at(validity.1).into());
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.server.issuer).unwrap();
        (format!("{}{}", certificate.pem(), self.server.issuer.pem()), key.serialize_pem())
    }
}

fn at(seconds: i64) -> SystemTime {
    let span = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { SystemTime::now() - span } else { SystemTime::now() + span }
}

async fn serve(server: Arc<Server>, listener: TcpListener, tls: TlsAcceptor) {
    while let Ok((stream, _)) = listener.accept().await {
        let (server, tls) = (server.clone(), tls.clone());
        tokio::spawn(async move {
            let Ok(mut stream) = tls.accept(stream).await else { return };
            let Some(asked) = Asked::read(&mut stream).await else { return };
            let answer = server.answer(&asked);
            let _ = stream.write_all(&answer).await;
            let _ = stream.shutdown().await;
            // The other end closes; a reset could take the answer with it.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
    }
}

impl Server {
    fn answer(self: &Arc<Self>, asked: &Asked) -> Vec<u8> {
        self.book.lock().unwrap().requests += 1;
        let answer = match (asked.method.as_str(), asked.path.as_str()) {
            ("GET", "/directory") => self.directory(),
            ("HEAD", "/nonce") => Answer::json(200, json!({})),
            ("POST", path) => self.post(path, asked).unwrap_or_else(|refused| refused),
            _ => problem(404, "malformed", "there is no such thing"),
        };
        let nonce = self.book.lock().unwrap().nonces.fresh();
        answer.bytes(&nonce, asked.method == "HEAD")
    }

    fn directory(&self) -> Answer {
        let at = |path: &str| format!("{}/{path}", self.base);
        let mood = *self.mood.lock().unwrap();
        let padding = "x".repeat(mood.padding);
        let nonce = if mood.no_address { "no address".to_owned() } else { at("nonce") };
        let (account, order) = (at("account"), at("order"));
        let urls = json!({"newNonce": nonce, "newAccount": account, "newOrder": order, "padding": padding});
        Answer::json(200, urls)
    }

    fn post(self: &Arc<Self>, path: &str, asked: &Asked) -> Result<Answer, Answer> {
        let mut book = self.book.lock().unwrap();
        let signed = asked.signed(&self.base, &mut book.nonces)?;
        let payload = &signed.payload;
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let number = |index: usize| -> usize { parts[index].parse().unwrap() };
        if parts == ["account"] {
            if payload["termsOfServiceAgreed"] != json!(true) {
                return Err(problem(403, "userActionRequired", "agree to the terms"));
            }
            let account = Account { key: signed.key.unwrap(), contact: payload["contact"].clone() };
            book.accounts.push(Some(account));
            let location = format!("{}/account/{}", self.base, book.accounts.len() - 1);
            return Ok(Answer::json(201, json!({"status": "valid"})).at(location));
        }
        let account = signed.account.unwrap();
        let known = book.accounts.get_mut(account).and_then(Option::as_mut);
        let known = known.ok_or_else(|| problem(400, "accountDoesNotExist", "nobody of that name"))?;
        let mood = *self.mood.lock().unwrap();
        match parts[0] {
            "account" => {
                assert_eq!(number(1), account);
                known.contact = payload["contact"].clone();
                Ok(Answer::json(200, json!({"status": "valid"})))
            }
            "order" if parts.len() == 1 => {
                if mood.orders_left == 0 {
                    return Err(problem(429, "rateLimited", "too many certificates already issued"));
                }
                self.mood.lock().unwrap().orders_left -= 1;
                let identifiers = payload["identifiers"].as_array().unwrap().iter();
                let names: Vec<String> = identifiers
                    .map(|identifier| {
                        assert_eq!(identifier["type"], "dns");
                        identifier["value"].as_str().unwrap().to_owned()
                    })
                    .collect();
                let order = book.orders.len();
                let proofs = (0..names.len())
                    .map(|index| Proof {
                        token: format!("token-{order}-{index}"),
                        status: "pending",
                        error: None,
                    })
                    .collect();
                book.orders.push(Order { account, names, proofs, chain: None });
                let location = format!("{}/order/{order}", self.base);
                Ok(Answer::json(201, self.order(&book, order, mood)).at(location))
            }
            "order" => Ok(Answer::json(200, self.order(&book, number(1), mood))),
            "authorization" => Ok(Answer::json(200, self.authorization(&book, number(1), number(2)))),
            "challenge" => {
                let (order, index) = (number(1), number(2));
                book.orders[order].proofs[index].status = "processing";
                let thumbprint = thumbprint(&book.accounts[account].as_ref().unwrap().key);
                tokio::spawn(self.clone().prove(order, index, thumbprint));
                Ok(Answer::json(200, self.challenge(&book, order, index)))
            }
            "finalize" => {
                let order = number(1);
                let csr = BASE64_URL_SAFE_NO_PAD.decode(payload["csr"].as_str().unwrap()).unwrap();
                assert_eq!(book.orders[order].account, account);
                book.orders[order].chain = Some(self.sign(&csr, &book.orders[order].names, mood));
                Ok(Answer::json(200, self.order(&book, order, mood)))
            }
            "certificate" => Ok(Answer::pem(book.orders[number(1)].chain.clone().unwrap())),
            _ => Err(problem(404, "malformed", "there is no such thing")),
        }
    }

    fn order(&self, book: &Book, number: usize, mood: Mood) -> Value {
        let order = &book.orders[number];
        let status = if order.proofs.iter().any(|proof| proof.status == "invalid") {
            "invalid"
        } else if order.chain.is_some() {
            "valid"
        } else if order.proofs.iter().all(|proof| proof.status == "valid") {
            "ready"
        } else {
            "pending"
        };
        let proofs = order.proofs.len() + usize::from(mood.one_proof_more);
        let authorizations: Vec<String> =
            (0..proofs).map(|index| format!("{}/authorization/{number}/{index}", self.base)).collect();
        let identifiers: Vec<Value> =
            order.names.iter().map(|name| json!({"type": "dns", "value": name})).collect();
        let mut state = json!({
            "status": status,
            "identifiers": identifiers,
            "authorizations": authorizations,
            "finalize": format!("{}/finalize/{number}", self.base),
        });
        if order.chain.is_some() {
            state["certificate"] = json!(format!("{}/certificate/{number}", self.base));
        }
        state
    }

    fn authorization(&self, book: &Book, order: usize, index: usize) -> Value {
        let status = match book.orders[order].proofs[index].status {
            "processing" => "pending",
            status => status,
        };
        let none = format!("{}/none", self.base);
        let other = json!({"type": "dns-01", "url": none, "status": "pending", "token": "x"});
        json!({
            "status": status,
            "identifier": {"type": "dns", "value": book.orders[order].names[index]},
            "challenges": [other, self.challenge(book, order, index)],
        })
    }

    fn challenge(&self, book: &Book, order: usize, index: usize) -> Value {
        let proof = &book.orders[order].proofs[index];
        let mut challenge = json!({
            "type": "tls-alpn-01",
            "url": format!("{}/challenge/{order}/{index}", self.base),
            "status": proof.status,
            "token": proof.token,
        });
        if let Some(error) = &proof.error {
            challenge["error"] = json!({"type": "urn:ietf:params:acme:error:unauthorized", "detail": error});
        }
        challenge
    }

    async fn prove(self: Arc<Self>, order: usize, index: usize, thumbprint: String) {
        let edge = self.edge.subscribe().wait_for(Option::is_some).await.unwrap().unwrap();
        let (name, token) = {
            let book = self.book.lock().unwrap();
            (book.orders[order].names[index].clone(), book.orders[order].proofs[index].token.clone())
        };
        let mut digest = Sha256::digest(format!("{token}.{thumbprint}")).to_vec();
        if self.mood.lock().unwrap().wrong_digest {
            digest[0] ^= 1;
        }
        let looked = prove::look(edge, &name, &digest).await;
        let mut book = self.book.lock().unwrap();
        let proof = &mut book.orders[order].proofs[index];
        (proof.status, proof.error) = match looked {
            Ok(()) => ("valid", None),
            Err(why) => ("invalid", Some(why)),
        };
    }

    fn sign(&self, csr: &[u8], names: &[String], mood: Mood) -> String {
        let mut csr = CertificateSigningRequestParams::from_der(&csr.into()).unwrap();
        let asked: Vec<String> = csr
            .params
            .subject_alt_names
            .iter()
            .map(|name| match name {
                SanType::DnsName(name) => name.as_str().to_owned(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(asked, names);
        csr.params.not_before = at(mood.validity.0).into();
        csr.params.not_after = at(mood.validity.1).into();
        let certificate = csr.signed_by(&self.issuer).unwrap();
        format!("{}{}", certificate.pem(), self.issuer.pem())
    }
}

/// RFC 7638: the digest of the key's members in this order.
fn thumbprint(key: &Value) -> String {
    let members =
        format!(r#"{{"crv":{},"kty":{},"x":{},"y":{}}}"#, key["crv"], key["kty"], key["x"], key["y"]);
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(members))
}
