//! Strict signature checks, and receipts checked, on one core and on all.

use kvasir_wire::note::Note;
use kvasir_wire::receipt::{ReceiptKeys, SignedReceipt};

use crate::figures::{Figures, timed};
use crate::network::Network;
use crate::writing::session;

/// Checks on each core.
const CHECKS: u32 = 6_000;

/// How fast this machine checks.
pub struct Checks {
    /// Cores.
    pub cores: usize,
    /// Strict signature checks a second, one core at work.
    pub strict: f64,
    /// The same with all cores at work, together.
    pub strict_on_all: f64,
    /// Receipts checked a second on one core.
    pub receipts: f64,
}

pub fn measure(figures: &mut Figures, network: &Network, cores: usize) -> Checks {
    eprintln!("signature checks");
    let notes: Vec<Note> = (0..20).flat_map(|number| session(network, number)).collect();
    let message = notes[0].text().as_bytes();
    let signature = network.hub.sign(message);
    let check =
        || timed(|| (0..CHECKS).for_each(|_| network.hub.public().verify(message, &signature).unwrap())).0;
    let strict = f64::from(CHECKS) / check();
    let (seconds, ()) = timed(|| {
        std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(check))));
    });
    let strict_on_all = f64::from(CHECKS) * cores as f64 / seconds;
    let what = format!("{} byte texts", message.len());
    figures.plain("strict signature checks", strict, "checks/s on one core", what.clone());
    figures.plain("strict signature checks on all cores", strict_on_all, "checks/s", what);
    let keys = ReceiptKeys {
        hub: network.hub.public(),
        worker: network.worker.public(),
        backbone: network.backbone.public(),
    };
    let (seconds, ()) = timed(|| {
        for note in &notes {
            SignedReceipt::verify(note.clone(), &keys).unwrap();
        }
    });
    let receipts = notes.len() as f64 / seconds;
    figures.plain(
        "receipts checked of raw signature checks",
        receipts / (strict / 3.0),
        "of a third of the checks/s",
        format!("{receipts:.0} receipts/s on one core: grammar, keys, three strict signatures"),
    );
    Checks { cores, strict, strict_on_all, receipts }
}
