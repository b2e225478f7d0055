//! Open descriptors: how many this process may have, how many it has, and from which one on it takes no more connections.
//!
//! A process without a free descriptor can neither accept nor write a receipt to its spool. So new connections are refused
//! while a fifth is left, and every session that is open goes on.

use std::fmt;

/// Of the limit on descriptors, the hundredths that connections may use. The rest is for the spool, the log, certificates
/// and the ledger.
pub const USABLE_PERCENT: u64 = 80;

/// The limit on open descriptors, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit(Option<u64>);

impl DescriptorLimit {
    /// A limit of so many; `None` for none.
    pub const fn new(limit: Option<u64>) -> Self {
        DescriptorLimit(limit)
    }

    /// This process's soft limit.
    pub fn of_process() -> Self {
        #[cfg(unix)]
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        #[cfg(not(unix))]
        let limit = None;
        DescriptorLimit(limit)
    }

    /// Raises the soft limit to the hard one, where the system allows it; answers the limit that holds then. Called once at
    /// the start of a program: 4,000 sessions do not fit into the soft limit of 1,024 that a login shell commonly has.
    pub fn raise() -> Self {
        #[cfg(unix)]
        {
            use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
            let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
            if current != maximum
                && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
            {
                tracing::warn!("the limit on descriptors stays at {current:?} of {maximum:?}: {error}");
            }
        }
        Self::of_process()
    }

    /// The number, if there is a limit.
    pub fn get(self) -> Option<u64> {
        self.0
    }

    /// Whether a descriptor with this number is beyond what connections may use. The system gives the lowest number that
    /// is free, so a high number says that all below it are taken, and counting them is spared.
    pub fn is_beyond(self, descriptor: u64) -> bool {
        self.0.is_some_and(|limit| {
            descriptor >= limit / 100 * USABLE_PERCENT + limit % 100 * USABLE_PERCENT / 100
        })
    }
}

impl fmt::Display for DescriptorLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(limit) => write!(formatter, "{limit}"),
            None => formatter.write_str("none"),
        }
    }
}

/// Descriptors that are open now; `None` where the system does not say. It costs a look at each, so it is asked for reports
/// and never at an accept.
pub fn open() -> Option<u64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    // One of them is the folder that is being read.
    Some((entries.count() as u64).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_refused_from_four_fifths_on() {
        let limit = DescriptorLimit::new(Some(1024));
        assert!(!limit.is_beyond(818));
        assert!(limit.is_beyond(819));
        assert!(DescriptorLimit::new(Some(1)).is_beyond(0));
        assert!(!DescriptorLimit::new(Some(u64::MAX)).is_beyond(1 << 40));
        assert!(!DescriptorLimit::new(None).is_beyond(u64::MAX));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_open_file_is_counted() {
        let before = open().unwrap();
        let files: Vec<_> = (0..50).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests of this process open and close a few meanwhile.
        assert!(open().unwrap() >= before + 25);
        drop(files);
        assert!(DescriptorLimit::of_process().get().is_some());
    }
}
