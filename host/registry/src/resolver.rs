//! Which addresses a registry may lead to: none of this machine's own, and none of its link, unless the user named it.
//!
//! A name says nothing about where it leads, so what counts is what it resolves to, right before a connection is made to that.

use std::fmt;
use std::net::SocketAddr;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::http::uri::Authority;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use crate::reference::is_near;

/// The usual resolver, but for addresses that a registry has no business to lead to.
#[derive(Debug)]
pub(crate) struct Guarded {
    inner: DefaultResolver,
    /// Host and port that the user named: wherever they lead is meant.
    home: Option<Authority>,
    /// Whether the registry is on this machine, so that it may lead to others that are.
    here: bool,
}

/// The error of an address that is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NearAddress(SocketAddr);

impl fmt::Display for NearAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it leads to this machine's own services, at {}", self.0)
    }
}

impl std::error::Error for NearAddress {}

impl Guarded {
    /// For the registry at `home`; `here` where that is this machine.
    pub fn new(home: &str, here: bool) -> Self {
        Guarded { inner: DefaultResolver::default(), home: home.parse().ok(), here }
    }
}

impl Resolver for Guarded {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let addresses = self.inner.resolve(uri, config, timeout)?;
        let authority = uri.authority();
        // The proxy is the user's choice too; it is often on this machine.
        let proxy = config.proxy().and_then(|proxy| proxy.uri().authority());
        let meant = authority.is_some() && (authority == self.home.as_ref() || authority == proxy);
        if self.here || meant {
            return Ok(addresses);
        }
        match addresses.iter().find(|address| is_near(address.ip())) {
            Some(near) => Err(ureq::Error::Other(Box::new(NearAddress(*near)))),
            None => Ok(addresses),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolves(guarded: &Guarded, address: &str) -> bool {
        let uri: Uri = address.parse().unwrap();
        match guarded.resolve(&uri, &Config::default(), NextTimeout::default()) {
            Ok(_) => true,
            Err(ureq::Error::Other(error)) if error.is::<NearAddress>() => false,
            Err(error) => panic!("{address}: {error}"),
        }
    }

    #[test]
    fn an_address_near_by_is_refused_in_whatever_form_unless_it_was_named() {
        let far = Guarded::new("192.0.2.1:5000", false);
        for near in [
            "http://127.0.0.1:5901/",
            "http://0.0.0.0:5901/",
            "http://127.1:5901/",
            "http://2130706433:5901/",
            "http://0x7f000001:5901/",
            "http://[::1]:5901/",
            "http://[::ffff:127.0.0.1]:5901/",
            "http://169.254.169.254/latest",
            "https://127.0.0.1/",
        ] {
            assert!(!resolves(&far, near), "{near}");
        }
        for address in ["http://192.0.2.1:5000/v2/", "http://192.0.2.2/", "https://[2001:db8::1]/"] {
            assert!(resolves(&far, address), "{address}");
        }
        // What the user named is meant, at its own port.
        let named = Guarded::new("169.254.1.1:5000", false);
        assert!(resolves(&named, "http://169.254.1.1:5000/v2/"));
        assert!(!resolves(&named, "http://169.254.1.1:5901/"));
        assert!(resolves(&Guarded::new("127.0.0.1:5000", true), "http://127.0.0.1:5901/"));
    }
}
