//! One order of RFC 8555, from the account to the chain: the names are proved by TLS-ALPN-01 alone, on the port that the edge
//! serves anyway.

use std::{io, time::Duration};

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount, NewOrder,
    Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};

use super::{
    cache::Cache,
    challenges::{AnswerError, Challenges},
    http::Http,
    options::AcmeOptions,
};
use crate::{secret_file::SecretFileError, served_certificate::Unusable};

/// How long the server may take to look at the challenges, and then to sign.
const POLL: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));
/// What a server says to an account that it does not have.
const NO_SUCH_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// A chain that was issued, and the private key that was made for it; both PEM.
pub(super) struct Issued {
    pub(super) chain: String,
    pub(super) private_key: String,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error("{0}")]
    Server(#[from] Error),
    #[error("{0}; what is wrong: {1}")]
    NotProved(Error, String),
    #[error("the server could not prove a name: {0}")]
    Invalid(String),
    #[error("the server asks for {asked} proofs for {names} names")]
    Authorizations { asked: usize, names: usize },
    #[error("the server asks for a proof of {0}, which was not ordered")]
    NotOrdered(String),
    #[error("the server's proof of {name} is {status:?}")]
    Authorization { name: String, status: AuthorizationStatus },
    #[error("the server does not prove {0} by tls-alpn-01, which is all that this port can do")]
    NoChallenge(String),
    #[error("{0}")]
    Answer(#[from] AnswerError),
    #[error("making a key and a request for it: {0}")]
    Making(#[from] rcgen::Error),
    #[error("{0}")]
    Kept(#[from] SecretFileError),
    #[error("keeping the account, without which no certificate is ordered: {0}")]
    Keeping(#[from] io::Error),
    #[error("not done within {} s", .0.as_secs())]
    Late(Duration),
    #[error(
        "the order broke off at something that the server said and that no ACME server should; the log says where"
    )]
    BrokenOff,
    #[error("what the server issued cannot be served: {0}")]
    Unusable(#[from] Unusable),
    #[error("what the server issued is not for {0}")]
    OtherName(String),
    #[error("what the server issued has expired, by this machine's clock")]
    Expired,
}

/// Orders a certificate. A challenge is answered as long as this runs.
pub(super) async fn issue(
    options: &AcmeOptions,
    cache: &Cache,
    challenges: &Challenges,
    http: &Http,
) -> Result<Issued, OrderError> {
    let issued = order(options, cache, challenges, http).await;
    if let Err(OrderError::Server(Error::Api(problem))) = &issued
        && problem.r#type.as_deref() == Some(NO_SUCH_ACCOUNT)
    {
        tracing::warn!("the ACME server knows the account no more: the next try makes another one");
        if let Err(error) = cache.forget_account() {
            tracing::error!("the account that is kept cannot be removed: {error}");
        }
    }
    issued
}

async fn order(
    options: &AcmeOptions,
    cache: &Cache,
    challenges: &Challenges,
    http: &Http,
) -> Result<Issued, OrderError> {
    let account = account(options, cache, http).await?;
    let identifiers: Vec<_> = options.domains.iter().cloned().map(Identifier::Dns).collect();
    let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
    let (asked, names) = (order.state().authorizations.len(), options.domains.len());
    if asked > names {
        return Err(OrderError::Authorizations { asked, names });
    }
    let open = challenges.open();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        let name = match authorization.identifier().identifier {
            Identifier::Dns(name) if options.domains.contains(name) => name.clone(),
            other => return Err(OrderError::NotOrdered(format!("{other:?}"))),
        };
        match authorization.status {
            AuthorizationStatus::Pending => {}
            // Proved for an earlier order.
            AuthorizationStatus::Valid => continue,
            status => return Err(OrderError::Authorization { name, status }),
        }
        let challenge = authorization.challenge(ChallengeType::TlsAlpn01);
        let mut challenge = challenge.ok_or_else(|| OrderError::NoChallenge(name.clone()))?;
        open.answer(&name, challenge.key_authorization().digest().as_ref())?;
        challenge.set_ready().await?;
    }
    let ready = order.poll_ready(&POLL).await;
    match ready {
        Ok(OrderStatus::Ready) => {}
        Ok(_) => return Err(OrderError::Invalid(reasons(&mut order).await)),
        Err(error @ Error::Api(_)) => {
            let reasons = reasons(&mut order).await;
            return Err(OrderError::NotProved(error, reasons));
        }
        Err(error) => return Err(error.into()),
    }
    drop(open);
    let mut params = CertificateParams::new(options.domains.clone())?;
    // The names say all there is; a common name has been of no use for long.
    params.distinguished_name = DistinguishedName::new();
    let key = KeyPair::generate()?;
    let request = params.serialize_request(&key)?;
    order.finalize_csr(request.der()).await?;
    let chain = order.poll_certificate(&POLL).await?;
    Ok(Issued { chain, private_key: key.serialize_pem() })
}

/// The account that is kept, or a new one, which is kept before anything is asked of it.
async fn account(options: &AcmeOptions, cache: &Cache, http: &Http) -> Result<Account, OrderError> {
    let contact: Vec<&str> = options.contact.iter().map(String::as_str).collect();
    let builder = Account::builder_with_http(Box::new(http.clone()));
    if let Some(kept) = cache.account()? {
        match serde_json::from_value::<AccountCredentials>(kept.credentials.clone()) {
            Ok(credentials) => {
                let account = builder.from_credentials(credentials).await?;
                if kept.contact != options.contact {
                    account.update_contacts(&contact).await?;
                    cache.keep_account(&options.contact, kept.credentials)?;
                }
                return Ok(account);
            }
            // The text of the error may quote the key.
            Err(_) => tracing::warn!("the account that was kept cannot be understood: another one is made"),
        }
    }
    let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
    let (account, credentials) = builder.create(&new, options.directory.clone(), None).await?;
    let credentials = serde_json::to_value(&credentials).map_err(Error::from)?;
    cache.keep_account(&options.contact, credentials)?;
    tracing::info!(account = account.id(), "registered with the ACME server");
    Ok(account)
}

/// What the server says about the names that it could not prove.
async fn reasons(order: &mut Order) -> String {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else { continue };
        for problem in state.challenges.iter().filter_map(|challenge| challenge.error.as_ref()) {
            reasons.push(format!("{}: {problem}", state.identifier()));
        }
    }
    match reasons.is_empty() {
        true => "it does not say why".into(),
        false => reasons.join("; "),
    }
}
