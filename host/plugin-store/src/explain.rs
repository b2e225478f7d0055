//! Why a plugin would be refused, or what it would be granted: the checks that the store makes before a load, one by one, in the order
//! in which they are made.
//!
//! Nothing is written, so that asking changes no answer, and nothing is run: imports, contract and golden vectors are the load's own.

use std::collections::BTreeSet;

use kvasir_plugin::{
    Grant, KeyId, MAX_PACKAGE_BYTES, PluginDigest, PluginError, UnixSeconds, VerifiedPlugin,
};

use crate::downgrade::Override;
use crate::error::StoreError;
use crate::history::Named;
use crate::store::Store;
use crate::trust::{Found, Trust};

/// What to explain.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A package that need not be in the store.
    Package(&'a [u8]),
    /// An installed plugin.
    Installed(PluginDigest),
}

/// The checks before a load.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// In order; after the first that failed none was made.
    pub checks: Vec<Check>,
    /// The plugin, where its package was verified.
    pub plugin: Option<Named>,
    /// The keys whose signatures count, where its package was verified.
    pub publishers: BTreeSet<KeyId>,
    /// What it would be granted, where every check passed.
    pub grant: Option<Grant>,
    /// Whether it is the active one.
    pub active: bool,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// A word for it.
    pub name: &'static str,
    /// How it went.
    pub outcome: Outcome,
    /// What was found, in a sentence; where it failed, with what to do.
    pub said: String,
}

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It failed: the plugin is refused for it.
    Failed,
    /// An earlier one failed.
    NotReached,
}

/// The checks of [`kvasir_plugin::verify`], in its order, and what each says where it passes.
const OF_PACKAGE: [(&str, &str); 10] = [
    ("trust-validity", "root and revocations are valid now"),
    ("form", "the package is whole, in canonical form and within its limits"),
    ("signature", "a key that this host knows signed it, and every signature by a known key holds"),
    ("key-revocation", "no key that signed and counts is revoked"),
    ("statement", "the signed statement is one of a plugin"),
    ("package-revocation", "the package is not revoked"),
    ("publisher", "enough keys of its namespace's publishers signed"),
    ("validity", "the package is valid now"),
    ("host", "this host is new enough for it"),
    (
        "files",
        "every file is the one that was signed, plugin.toml agrees with the statement, and the bill of materials, the layout's \
         documents and the shader's table fit",
    ),
];

/// Which of [`OF_PACKAGE`] an error belongs to. What is not known here counts as the form, so that no check is said to have passed
/// that perhaps was not made.
fn place_of(error: &PluginError) -> usize {
    let name = match error {
        PluginError::UnknownPublisher { .. }
        | PluginError::BadSignature { .. }
        | PluginError::NotSigned
        | PluginError::UnknownScheme { .. }
        | PluginError::DuplicateKey { .. }
        | PluginError::TooManySignatures { .. }
        | PluginError::PayloadType { .. } => "signature",
        PluginError::RevokedKey { .. } => "key-revocation",
        PluginError::TrustExpired { .. } => "trust-validity",
        PluginError::Statement { .. } => "statement",
        PluginError::RevokedPackage { .. } => "package-revocation",
        PluginError::NoPublisher { .. } | PluginError::TooFewPublishers { .. } => "publisher",
        PluginError::Expired { .. } | PluginError::NotYetValid { .. } => "validity",
        PluginError::HostTooOld { .. } => "host",
        PluginError::Unsigned { .. }
        | PluginError::SignedButMissing { .. }
        | PluginError::SizeMismatch { .. }
        | PluginError::DigestMismatch { .. }
        | PluginError::Manifest { .. }
        | PluginError::Disagreement { .. }
        | PluginError::Sbom { .. }
        | PluginError::NotCanonical { .. }
        | PluginError::ShaderMissing { .. }
        | PluginError::ShaderNotNamed { .. }
        | PluginError::ShaderNotUtf8 { .. } => "files",
        _ => "form",
    };
    OF_PACKAGE.iter().position(|(known, _)| *known == name).unwrap_or(0)
}

impl Explanation {
    /// The check for which the plugin is refused; none where every one passed.
    pub fn failed(&self) -> Option<&Check> {
        self.checks.iter().find(|check| check.outcome == Outcome::Failed)
    }

    fn passed(&mut self, name: &'static str, said: impl Into<String>) {
        self.checks.push(Check { name, outcome: Outcome::Passed, said: said.into() });
    }

    /// Ends the list: `name` failed, and of the rest none was made.
    fn refused(mut self, name: &'static str, said: String) -> Self {
        self.checks.push(Check { name, outcome: Outcome::Failed, said });
        let all = ["trust", "installed"]
            .into_iter()
            .chain(OF_PACKAGE.iter().map(|(name, _)| *name))
            .chain(["revision", "policy"]);
        for name in all.skip_while(|other| *other != name).skip(1) {
            self.checks.push(Check {
                name,
                outcome: Outcome::NotReached,
                said: "not checked, since an earlier check failed".to_owned(),
            });
        }
        self
    }
}

impl Store {
    /// Goes through the checks of a load of `subject` at `now`, and writes nothing.
    ///
    /// # Errors
    /// None but where `active.json` cannot be read; whatever else is wrong is part of the explanation.
    pub fn explain(&self, subject: Subject<'_>, now: UnixSeconds) -> Result<Explanation, StoreError> {
        let mut told = Explanation {
            checks: Vec::new(),
            plugin: None,
            publishers: BTreeSet::new(),
            grant: None,
            active: false,
        };
        let found = match Found::read(&self.places) {
            Ok(found) => found,
            Err(error) => return Ok(told.refused("trust", sentence(&error))),
        };
        told.passed("trust", describe(&found.trust));
        let package = match subject {
            Subject::Package(package) => {
                told.passed(
                    "installed",
                    format!("not asked: a package of {} bytes was named", package.len()),
                );
                package.to_vec()
            }
            Subject::Installed(digest) => match self.package(digest) {
                Ok(package) => {
                    told.passed("installed", self.places.package(digest).display().to_string());
                    package
                }
                Err(error) => return Ok(told.refused("installed", sentence(&error))),
            },
        };
        let plugin = match verify(&package, &found.trust, now) {
            Ok(plugin) => plugin,
            Err(error) => {
                let place = place_of(&error);
                for (name, said) in &OF_PACKAGE[..place] {
                    told.passed(name, *said);
                }
                let said = match subject {
                    Subject::Installed(digest) => sentence(&StoreError::refused(digest, error)),
                    Subject::Package(_) => error.to_string(),
                };
                return Ok(told.refused(OF_PACKAGE[place].0, said));
            }
        };
        for (name, said) in &OF_PACKAGE {
            told.passed(name, *said);
        }
        told.plugin = Some(Named::from(&plugin));
        told.publishers = plugin.publishers().clone();
        told.active = self.active_digest()? == Some(plugin.digest());
        match self.revision_said(&plugin, &found, now) {
            Ok(said) => told.passed("revision", said),
            Err(error) => return Ok(told.refused("revision", sentence(&error))),
        }
        match self.grant(&plugin) {
            Ok(grant) => {
                told.passed("policy", "the policy refuses nothing that it asks for");
                told.grant = Some(grant);
                Ok(told)
            }
            Err(error) => Ok(told.refused("policy", sentence(&error))),
        }
    }

    fn revision_said(
        &self,
        plugin: &VerifiedPlugin,
        found: &Found,
        now: UnixSeconds,
    ) -> Result<String, StoreError> {
        let revision = plugin.manifest().kernel_revision;
        let seen = match found.seen.revision(plugin) {
            None => return Ok(format!("revision {revision} is the first that is seen of it")),
            Some(seen) if revision >= seen => {
                return Ok(format!("revision {revision} is not below the highest seen, {seen}"));
            }
            Some(seen) => seen,
        };
        let digest = plugin.digest();
        let root = found.trust.root();
        let Some(permission) =
            root.map(|root| Override::read(&self.places, digest, root)).transpose()?.flatten()
        else {
            let (name, version) = (plugin.name().to_owned(), plugin.version().to_string());
            return Err(StoreError::Downgrade { digest, name, version, revision, seen });
        };
        let path = self.places.override_of(digest);
        permission.check(revision, seen, now).map_err(|reason| StoreError::Override { path, reason })?;
        Ok(format!(
            "revision {revision} is below the highest seen, {seen}, and your signed permission allows it until {}",
            permission.expires
        ))
    }
}

fn verify(package: &[u8], trust: &Trust, now: UnixSeconds) -> Result<VerifiedPlugin, PluginError> {
    if package.len() > MAX_PACKAGE_BYTES {
        return Err(PluginError::PackageTooLarge { bytes: package.len(), limit: MAX_PACKAGE_BYTES });
    }
    kvasir_plugin::verify(package, trust.publishers(), now)
}

fn describe(trust: &Trust) -> String {
    let keys = trust.publishers().len();
    match (trust.root(), trust.revocations()) {
        (None, _) => format!("no root yet: {keys} keys of trust/*.pub may each publish any plugin"),
        (Some(root), None) => {
            format!("root version {}, {keys} publishers' keys, nothing was ever revoked", root.version())
        }
        (Some(root), Some(revocations)) => format!(
            "root version {}, {keys} publishers' keys; revocations version {}: {} keys and {} packages",
            root.version(),
            revocations.version(),
            revocations.revocations().keys.len(),
            revocations.revocations().packages.len()
        ),
    }
}

/// An error with its causes, on one line.
fn sentence(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            said.push_str(": ");
            said.push_str(&text);
        }
        cause = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_at_after_the_statement_is_no_fault_of_the_form() {
        let name = || "shaders/kernel.wgsl".to_owned();
        for error in [
            PluginError::Sbom { reason: "it is empty".to_owned() },
            PluginError::NotCanonical { what: "index.json" },
            PluginError::ShaderMissing { name: name() },
            PluginError::ShaderNotNamed { name: name() },
            PluginError::ShaderNotUtf8 { name: name(), offset: 3 },
        ] {
            assert_eq!(OF_PACKAGE[place_of(&error)].0, "files", "{error}");
        }
        // These may come of either step.
        assert_eq!(OF_PACKAGE[place_of(&PluginError::MissingFile { name: "plugin.toml" })].0, "form");
    }
}
