//! `cargo run -p kvasir-replay --example escape-table`: how likely a worker that cheats is not found, as docs/audit.md prints it.
//!
//! Computed: (1 - p)^n for n cheated calls at the audit rate p. Simulated: sessions whose items are all published, checkpoints
//! whose signatures are as good as random, and the draw as auditors do it. Arguments: items, trials. Prints; asserts nothing.

use kvasir_merkle::Hash;
use kvasir_replay::{Drawn, Lot};
use kvasir_wire::id::{SessionId, sha256};

/// Items of a session.
const SESSION_ITEMS: u64 = 1_000;
/// Audit rates, in items of ten thousand.
const RATES: [u64; 6] = [10, 50, 100, 200, 500, 1_000];
/// Calls that are cheated.
const CHEATED: [usize; 8] = [1, 2, 5, 10, 20, 50, 100, 500];

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().unwrap_or(0u64));
    let items = arguments.next().unwrap_or(20_000).clamp(1_000, 100_000);
    let trials = arguments.next().unwrap_or(10_000).clamp(1, 1_000_000);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let escaped = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|part| scope.spawn(move || simulate(items, (part..trials).step_by(threads as usize))))
            .collect();
        let mut sum = [[0u64; RATES.len()]; CHEATED.len()];
        for part in parts {
            // A part that panicked has said so.
            let Ok(counts) = part.join() else { continue };
            sum.iter_mut().flatten().zip(counts.iter().flatten()).for_each(|(sum, count)| *sum += count);
        }
        sum
    });

    println!("{items} items, {trials} checkpoints; computed (1-p)^n, simulated");
    let heads: Vec<String> = RATES.iter().map(|rate| format!("p = {} %", *rate as f64 / 100.0)).collect();
    println!("| cheated calls | {} |", heads.join(" | "));
    println!("| ---: |{}", " ---: |".repeat(RATES.len()));
    for (cheated, counts) in CHEATED.iter().zip(&escaped) {
        let cells: Vec<String> = RATES
            .iter()
            .zip(counts)
            .map(|(rate, count)| {
                let computed = (1.0 - *rate as f64 / 10_000.0).powi(*cheated as i32);
                format!("{computed:.4}, {:.4}", *count as f64 / trials as f64)
            })
            .collect();
        println!("| {cheated} | {} |", cells.join(" | "));
    }
}

/// For every number of cheated calls and every rate: in how many of the trials none of the cheated calls was drawn.
fn simulate(items: u64, trials: impl Iterator<Item = u64>) -> [[u64; RATES.len()]; CHEATED.len()] {
    let most = items * RATES.iter().max().copied().unwrap_or(0) / 10_000;
    let mut escaped = [[0; RATES.len()]; CHEATED.len()];
    // Spread over the sessions; which ones they are makes no difference to a draw that nobody foresees.
    let mut places = vec![0usize; items as usize];
    let chosen: Vec<usize> =
        (0..CHEATED[CHEATED.len() - 1] as u64).map(|n| (n * 7_919 % items) as usize).collect();
    for trial in trials {
        let signature =
            [sha256(&[b"log", &trial.to_le_bytes()]), sha256(&[b"witness", &trial.to_le_bytes()])];
        let lot = Lot {
            origin: "kvasir.example/atlas/00000000".to_owned(),
            size: 1_000 + trial,
            signatures: vec![signature.concat()],
        };
        let mut drawn = Drawn::new(most as usize);
        for session in 0..items.div_ceil(SESSION_ITEMS) {
            let name = SessionId(sha256(&[b"session", &session.to_le_bytes()]));
            let seed = lot.seed(name, &Hash(sha256(&[b"work", &session.to_le_bytes()])));
            let first = session * SESSION_ITEMS;
            for index in 0..SESSION_ITEMS.min(items - first) {
                drawn.offer(seed.rank(index), (first + index) as usize);
            }
        }
        places.fill(usize::MAX);
        for (place, item) in drawn.into_items().into_iter().enumerate() {
            places[item] = place;
        }
        for (row, cheated) in escaped.iter_mut().zip(CHEATED) {
            let first = chosen[..cheated].iter().map(|item| places[*item]).min().unwrap_or(usize::MAX);
            for (count, rate) in row.iter_mut().zip(RATES) {
                *count += u64::from(first >= (items * rate / 10_000) as usize);
            }
        }
    }
    escaped
}
