//! What is asked of an ACME server, checked.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use instant_acme::LetsEncrypt;
use ureq::http::Uri;

use crate::{config::AcmeTable, edge::client_hello::is_host_name};

/// Most names of one certificate: as many as Let's Encrypt puts into one.
pub const MAX_DOMAINS: usize = 100;
/// Most contacts of an account.
pub const MAX_CONTACTS: usize = 8;
/// Most bytes of a contact.
const MAX_CONTACT_BYTES: usize = 256;
/// Most bytes of a directory's address.
const MAX_DIRECTORY_BYTES: usize = 1_024;
/// Folder of account and certificate unless told otherwise.
pub const DEFAULT_CACHE: &str = "edge-acme";
/// Shortest pause after a failure. Let's Encrypt allows five failed proofs of a name an hour.
pub const RETRY_FLOOR: Duration = Duration::from_secs(60);
/// The longest.
pub const RETRY_CEILING: Duration = Duration::from_secs(60 * 60);

/// What is asked of whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeOptions {
    /// Names of the certificate, in lower case.
    pub(super) domains: Vec<String>,
    /// Contacts of the account, as addresses of the scheme `mailto:`.
    pub(super) contact: Vec<String>,
    /// Address of the server's directory, `https:`.
    pub(super) directory: String,
    /// Folder of account and certificate.
    pub(super) cache: PathBuf,
    /// PEM file of the authorities that the server's own certificate is from; the public ones where there is none.
    pub(super) directory_roots: Option<PathBuf>,
    /// Pauses after failures.
    pub(super) pauses: Pauses,
}

/// Pauses after failures; the defaults but in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// The shortest.
    pub floor: Duration,
    /// The longest, but where the server asks for a longer one.
    pub ceiling: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Pauses { floor: RETRY_FLOOR, ceiling: RETRY_CEILING }
    }
}

/// Why `[edge.acme]` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcmeOptionsError {
    /// The terms of service are not agreed to.
    #[error(
        "a certificate by ACME takes your agreement to the terms of service of the ACME server: accept_terms = true in \
         [edge.acme], or --acme-accept-terms"
    )]
    Terms,
    /// No name is asked for.
    #[error("edge.acme.domains names nothing: write the names that workers dial, or give --acme-domain")]
    NoDomain,
    /// Too many are.
    #[error("edge.acme.domains lists {0} names, a certificate has at most {MAX_DOMAINS}")]
    TooManyDomains(usize),
    /// A name cannot be proved on the edge's port.
    #[error(
        "edge.acme.domains: {0:?} is no name that can be proved on this port: write a host name, no wildcard, no address, and \
         without a dot at the end"
    )]
    Domain(String),
    /// A name is listed more than once.
    #[error("edge.acme.domains lists {0} twice")]
    Twice(String),
    /// A contact is no e-mail address.
    #[error("edge.acme.contact: {0:?} is no e-mail address")]
    Contact(String),
    /// There are too many.
    #[error("edge.acme.contact lists {0} addresses, at most {MAX_CONTACTS} are sent")]
    TooManyContacts(usize),
    /// The directory is neither a word nor an address.
    #[error(
        "edge.acme.directory: {0:?} is neither production nor staging nor an address that begins with https://"
    )]
    Directory(String),
}

impl AcmeOptions {
    /// Checks a table; flags and variables are in it already.
    pub fn new(table: AcmeTable) -> Result<Self, AcmeOptionsError> {
        if !table.accept_terms {
            return Err(AcmeOptionsError::Terms);
        }
        Ok(AcmeOptions {
            domains: domains(table.domains)?,
            contact: contacts(table.contact)?,
            directory: directory(table.directory)?,
            cache: table.cache.unwrap_or_else(|| DEFAULT_CACHE.into()),
            directory_roots: table.directory_roots,
            pauses: Pauses::default(),
        })
    }

    /// The same with other pauses.
    pub fn with_pauses(self, pauses: Pauses) -> Self {
        AcmeOptions { pauses, ..self }
    }

    /// Names of the certificate, in lower case.
    pub fn domains(&self) -> &[String] {
        &self.domains
    }
}

fn domains(names: Vec<String>) -> Result<Vec<String>, AcmeOptionsError> {
    if names.is_empty() {
        return Err(AcmeOptionsError::NoDomain);
    }
    if names.len() > MAX_DOMAINS {
        return Err(AcmeOptionsError::TooManyDomains(names.len()));
    }
    let mut checked = Vec::with_capacity(names.len());
    for mut name in names {
        name.make_ascii_lowercase();
        if !is_host_name(name.as_bytes()) || name.parse::<IpAddr>().is_ok() {
            return Err(AcmeOptionsError::Domain(name));
        }
        if checked.contains(&name) {
            return Err(AcmeOptionsError::Twice(name));
        }
        checked.push(name);
    }
    Ok(checked)
}

fn contacts(contacts: Vec<String>) -> Result<Vec<String>, AcmeOptionsError> {
    if contacts.len() > MAX_CONTACTS {
        return Err(AcmeOptionsError::TooManyContacts(contacts.len()));
    }
    let scheme = "mailto:";
    contacts
        .into_iter()
        .map(|contact| {
            let address = contact.strip_prefix(scheme).unwrap_or(&contact);
            let is_one = contact.len() <= MAX_CONTACT_BYTES
                && address.split_once('@').is_some_and(|(who, at)| !who.is_empty() && is_host_name(at.as_bytes()))
                // Of what may stand before the @ these would mean something else in an address.
                && address.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b',' | b':' | b'%'));
            match is_one {
                true => Ok(format!("{scheme}{address}")),
                false => Err(AcmeOptionsError::Contact(contact)),
            }
        })
        .collect()
}

fn directory(text: Option<String>) -> Result<String, AcmeOptionsError> {
    let address = match text.as_deref() {
        None | Some("production") => LetsEncrypt::Production.url(),
        Some("staging") => LetsEncrypt::Staging.url(),
        Some(address) => address,
    };
    let is_one = address.len() <= MAX_DIRECTORY_BYTES
        && address.parse::<Uri>().is_ok_and(|address| {
            address.scheme_str() == Some("https") && address.host().is_some_and(|host| !host.is_empty())
        });
    match is_one {
        true => Ok(address.to_owned()),
        false => Err(AcmeOptionsError::Directory(address.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(domains: &[&str]) -> AcmeTable {
        AcmeTable {
            domains: domains.iter().map(|name| (*name).to_owned()).collect(),
            accept_terms: true,
            ..AcmeTable::default()
        }
    }

    #[test]
    fn what_is_not_said_has_a_default_and_terms_have_none() {
        let options = AcmeOptions::new(table(&["Edge.Example"])).unwrap();
        assert_eq!(options.domains(), ["edge.example"]);
        assert_eq!(options.directory, "https://acme-v02.api.letsencrypt.org/directory");
        assert_eq!((options.cache.to_str(), options.contact.len()), (Some(DEFAULT_CACHE), 0));
        let silent = AcmeTable { accept_terms: false, ..table(&["edge.example"]) };
        assert_eq!(AcmeOptions::new(silent), Err(AcmeOptionsError::Terms));
    }

    #[test]
    fn names_that_this_challenge_cannot_prove_are_refused() {
        assert_eq!(AcmeOptions::new(table(&[])), Err(AcmeOptionsError::NoDomain));
        for name in ["", "*.example", "10.0.0.1", "::1", "edge.example.", "a b", "h\u{fc}b.example"] {
            let refused = AcmeOptions::new(table(&["a.example", name]));
            assert!(matches!(refused, Err(AcmeOptionsError::Domain(_))), "{name}");
        }
        let twice = AcmeOptions::new(table(&["a.example", "b.example", "A.example"]));
        assert_eq!(twice, Err(AcmeOptionsError::Twice("a.example".into())));
        let many: Vec<String> = (0..=MAX_DOMAINS).map(|number| format!("n{number}.example")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(AcmeOptions::new(table(&many[1..])).is_ok());
        assert_eq!(AcmeOptions::new(table(&many)), Err(AcmeOptionsError::TooManyDomains(MAX_DOMAINS + 1)));
    }

    #[test]
    fn contacts_are_mail_addresses() {
        let with = |contact: Vec<String>| AcmeOptions::new(AcmeTable { contact, ..table(&["a.example"]) });
        let options = with(vec!["ops@a.example".into(), "mailto:b+c@a.example".into()]).unwrap();
        assert_eq!(options.contact, ["mailto:ops@a.example", "mailto:b+c@a.example"]);
        let long = format!("{}@a.example", "a".repeat(MAX_CONTACT_BYTES));
        for contact in
            ["", "ops", "@a.example", "ops@", "a b@c.d", "tel:1", "a@b.c?cc=d@e.f", "a@b.c,d@e.f", &long]
        {
            assert!(matches!(with(vec![contact.into()]), Err(AcmeOptionsError::Contact(_))), "{contact}");
        }
        let many = vec!["a@b.c".to_owned(); MAX_CONTACTS + 1];
        assert_eq!(with(many), Err(AcmeOptionsError::TooManyContacts(MAX_CONTACTS + 1)));
    }

    #[test]
    fn a_directory_is_a_word_or_an_address_with_tls() {
        let with = |directory: &str| {
            AcmeOptions::new(AcmeTable { directory: Some(directory.into()), ..table(&["a.example"]) })
        };
        assert!(with("staging").unwrap().directory.contains("staging"));
        assert_eq!(with("production"), AcmeOptions::new(table(&["a.example"])));
        assert_eq!(with("https://ca.lan:14000/dir").unwrap().directory, "https://ca.lan:14000/dir");
        let long = format!("https://ca.lan/{}", "a".repeat(MAX_DIRECTORY_BYTES));
        for address in ["", "Staging", "ca.lan/dir", "http://ca.lan/dir", "https://", "file:///dir", &long] {
            assert!(matches!(with(address), Err(AcmeOptionsError::Directory(_))), "{address}");
        }
    }
}
