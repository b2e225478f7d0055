//! Flags of a certificate by ACME, put together with `[edge.acme]`.

use std::path::PathBuf;

use clap::Args;

use crate::{
    acme::{AcmeOptions, AcmeOptionsError},
    config::AcmeTable,
};

// No doc comment: it would become the help text of the command that these flags are a part of.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Certificate by ACME, instead of files")]
pub(super) struct AcmeArgs {
    /// A name of the certificate, which is ordered and renewed; may be repeated
    #[arg(
        long = "acme-domain",
        env = "KVASIR_GATEWAY_ACME_DOMAINS",
        value_name = "NAME",
        value_delimiter = ','
    )]
    domains: Vec<String>,
    /// E-mail address at which the ACME server's operator reaches you; may be repeated
    #[arg(
        long = "acme-contact",
        env = "KVASIR_GATEWAY_ACME_CONTACTS",
        value_name = "ADDRESS",
        value_delimiter = ','
    )]
    contacts: Vec<String>,
    /// production or staging, which are Let's Encrypt's, or the address of a directory [default: production]
    #[arg(long = "acme-directory", env = "KVASIR_GATEWAY_ACME_DIRECTORY", value_name = "URL")]
    directory: Option<String>,
    /// Folder for account and certificate [default: edge-acme]
    #[arg(long = "acme-cache", env = "KVASIR_GATEWAY_ACME_CACHE", value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Agree to the ACME server's terms of service
    #[arg(long = "acme-accept-terms", env = "KVASIR_GATEWAY_ACME_ACCEPT_TERMS")]
    accept_terms: bool,
    /// Authorities that the ACME server's own certificate is from, PEM [default: the public ones]
    #[arg(long = "acme-directory-roots", env = "KVASIR_GATEWAY_ACME_DIRECTORY_ROOTS", value_name = "FILE")]
    directory_roots: Option<PathBuf>,
}

impl AcmeArgs {
    /// Flag by flag before what the file says; nothing where neither says anything.
    pub(super) fn over(self, file: Option<AcmeTable>) -> Result<Option<AcmeOptions>, AcmeOptionsError> {
        let AcmeArgs { domains, contacts, directory, cache, accept_terms, directory_roots } = self;
        let silent = domains.is_empty()
            && contacts.is_empty()
            && !accept_terms
            && directory.is_none()
            && cache.is_none()
            && directory_roots.is_none();
        if silent && file.is_none() {
            return Ok(None);
        }
        let file = file.unwrap_or_default();
        let either = |given: Vec<String>, from_file| if given.is_empty() { from_file } else { given };
        let table = AcmeTable {
            domains: either(domains, file.domains),
            contact: either(contacts, file.contact),
            directory: directory.or(file.directory),
            cache: cache.or(file.cache),
            accept_terms: accept_terms || file.accept_terms,
            directory_roots: directory_roots.or(file.directory_roots),
        };
        AcmeOptions::new(table).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_file_and_without_both_there_is_no_acme() {
        assert_eq!(AcmeArgs::default().over(None), Ok(None));
        let file =
            AcmeTable { domains: vec!["file.example".into()], accept_terms: true, ..AcmeTable::default() };
        let options = AcmeArgs::default().over(Some(file.clone())).unwrap().unwrap();
        assert_eq!(options.domains(), ["file.example"]);
        let args = AcmeArgs { domains: vec!["flag.example".into()], ..AcmeArgs::default() };
        let options = args.clone().over(Some(file)).unwrap().unwrap();
        assert_eq!(options.domains(), ["flag.example"]);
        assert_eq!(args.over(None), Err(AcmeOptionsError::Terms));
        let cache = AcmeArgs { cache: Some("acme".into()), accept_terms: true, ..AcmeArgs::default() };
        assert_eq!(cache.over(None), Err(AcmeOptionsError::NoDomain), "a part of it says that it is wanted");
    }
}
