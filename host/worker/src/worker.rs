//! [`Worker`]: the door of this crate. Checks the options, proves the plugins, and runs.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kvasir_link::{SessionNumbers, TlsTrust};
use tokio::sync::watch;

use crate::changeover::Changeover;
use crate::life::Common;
use crate::options::{Summary, WorkerError, WorkerOptions};
use crate::store::Budget;
use crate::switch::PluginSwitch;
use crate::version::Version;
use crate::workbench::Workbench;

/// A worker, ready to run.
pub struct Worker {
    common: Arc<Common>,
    version: Version,
}

/// Asks a running worker to end in order: it answers what it was asked, countersigns a last receipt and leaves.
#[derive(Debug, Clone)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    /// Asks. More than once is the same as once.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// A [`Stop`] and what [`Worker::run`] listens to. The worker also ends when every `Stop` is gone without a word: hold
/// on to it.
pub fn stop() -> (Stop, watch::Receiver<bool>) {
    let (sender, receiver) = watch::channel(false);
    (Stop(Arc::new(sender)), receiver)
}

/// Most bytes of a file of certificates; a bundle of all public authorities has a quarter of it.
const MAX_CERTIFICATE_FILE_BYTES: u64 = 1 << 20;
impl Worker {
    /// Checks the options, compiles and proves the plugins. Takes seconds, for the compiler.
    pub fn new(options: WorkerOptions) -> Result<Self, WorkerError> {
        if options.plugins.is_empty() {
            let what = "no plugin was given; without one there is nothing to compute with".to_owned();
            return Err(WorkerError::Options(what));
        }
        let wallet = options.ticket.claims().wallet.ok_or_else(|| {
            WorkerError::Options("the ticket names no wallet: it is not a worker's".to_owned())
        })?;
        let trust = tls_trust(&options.gateway, options.certificate_authority.as_deref())?;
        let system = |what| move |error: io::Error| WorkerError::System { what, reason: error.to_string() };
        let bench = Arc::new(Workbench::new(options.threads).map_err(system("threads"))?);

        let budget = Arc::new(Budget::new(options.store_bytes));
        let version = Version::prove(&options, &options.plugins, options.limits, &budget)?;
        let results = Arc::new(AtomicU64::new(0));
        let switch = PluginSwitch::new();
        let canary = watch::channel(None).0;
        let numbers = SessionNumbers::default();
        let common = Common { options, trust, wallet, budget, bench, results, switch, canary, numbers };
        Ok(Self { common: Arc::new(common), version })
    }

    /// What offers this worker other plugins while it runs.
    pub fn switch(&self) -> PluginSwitch {
        self.common.switch.clone()
    }

    /// Serves until stopped, refused for good, or out of attempts. Needs a tokio runtime with I/O and time. Dropping the
    /// future cuts the connection.
    pub async fn run(self, stop: watch::Receiver<bool>) -> Result<Summary, WorkerError> {
        Changeover::begin(self.common, self.version).run(stop).await
    }
}

/// Whom a worker believes at `gateway`, given a file of certificate authorities or none.
///
/// # Errors
/// Where the file cannot be used.
pub fn tls_trust(gateway: &str, certificate_authority: Option<&Path>) -> Result<TlsTrust, WorkerError> {
    if gateway.starts_with("ws://") {
        return Ok(TlsTrust::PlainText);
    }
    let Some(path) = certificate_authority else { return Ok(TlsTrust::WebRoots) };
    let unusable = |problem: String| {
        WorkerError::Options(format!("the certificate file {} cannot be used: {problem}", path.display()))
    };
    let trust = TlsTrust::CaFile(read_certificates(path).map_err(|error| unusable(error.to_string()))?);
    // Now, and not at every attempt to connect.
    trust.check().map_err(unusable)?;
    Ok(trust)
}

/// A plain file of bounded size: a pipe could wait for ever, a device never end.
fn read_certificates(path: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
    }
    let mut pem = Vec::new();
    File::open(path)?.take(MAX_CERTIFICATE_FILE_BYTES + 1).read_to_end(&mut pem)?;
    if pem.len() as u64 > MAX_CERTIFICATE_FILE_BYTES {
        let problem = format!("it has more than {MAX_CERTIFICATE_FILE_BYTES} bytes, the most that are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(pem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_read_from_plain_files_of_bounded_size_alone() {
        let folder = std::env::temp_dir().join(format!("kvasir-certificates-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("ca.pem");
        std::fs::write(&file, vec![b'a'; MAX_CERTIFICATE_FILE_BYTES as usize]).unwrap();
        assert!(read_certificates(&file).is_ok());
        std::fs::write(&file, vec![b'a'; MAX_CERTIFICATE_FILE_BYTES as usize + 1]).unwrap();
        assert!(read_certificates(&file).unwrap_err().to_string().contains("1048576"));
        for no_file in [&folder, Path::new("/dev/zero")] {
            assert!(read_certificates(no_file).unwrap_err().to_string().contains("plain file"));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
