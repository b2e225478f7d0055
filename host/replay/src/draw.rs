//! Which published calls are replayed: drawn by a public rule from a checkpoint that nobody had when the results were sent.
//!
//! The work root of a receipt fixes results; the receipt is then logged, and a later checkpoint covers it. Signatures under that
//! checkpoint, by the log and by witnesses that the log does not control, are the seed. Anybody who holds the checkpoint draws the
//! same items; nobody could have known them while computing. `docs/protocol.md` is the written form.

use kvasir_merkle::Hash;
use kvasir_wire::id::{SessionId, sha256};

/// Begins the seed's preimage.
pub const DRAW_DOMAIN: &[u8] = b"kvasir.example/draw@v1\0";
/// Most items of one draw.
pub const MAX_DRAWN: usize = 100_000;

/// The part of the seed that all receipts under one checkpoint share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lot {
    /// Origin of the log.
    pub origin: String,
    /// Leaves that the checkpoint covers.
    pub size: u64,
    /// Signature blobs under the checkpoint, key id and signature as published: those of the witnesses that the auditor knows, in
    /// line order; the log's own where there are none.
    pub signatures: Vec<Vec<u8>>,
}

/// A receipt's own seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed([u8; 32]);

/// Places of published items in the order of the draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(pub [u8; 32]);

/// The `count` smallest of the items offered; holds no more than that.
#[derive(Clone, Debug)]
pub struct Drawn<T> {
    count: usize,
    chosen: std::collections::BTreeMap<Rank, T>,
}

impl Lot {
    /// The seed of a receipt with this session and work root:
    /// SHA-256(domain, origin, line feed, size as u64, number of blobs as u64, the blobs each after its length as u64, session,
    /// work root), integers little-endian.
    pub fn seed(&self, session: SessionId, work: &Hash) -> Seed {
        let size = self.size.to_le_bytes();
        let count = (self.signatures.len() as u64).to_le_bytes();
        let lengths: Vec<[u8; 8]> =
            self.signatures.iter().map(|blob| (blob.len() as u64).to_le_bytes()).collect();
        let mut parts: Vec<&[u8]> = vec![DRAW_DOMAIN, self.origin.as_bytes(), b"\n", &size, &count];
        for (blob, length) in self.signatures.iter().zip(&lengths) {
            parts.extend([&length[..], blob]);
        }
        parts.extend([&session.0[..], &work.0]);
        Seed(sha256(&parts))
    }
}

impl Seed {
    /// SHA-256(seed, item's index as u64 little-endian): items are replayed in ascending order of it.
    pub fn rank(&self, index: u64) -> Rank {
        Rank(sha256(&[&self.0, &index.to_le_bytes()]))
    }
}

impl<T> Drawn<T> {
    /// Will keep the `count` first, at most [`MAX_DRAWN`].
    pub fn new(count: usize) -> Self {
        Drawn { count: count.min(MAX_DRAWN), chosen: Default::default() }
    }

    /// Offers an item. The same item offered twice is drawn once.
    pub fn offer(&mut self, rank: Rank, item: T) {
        self.chosen.entry(rank).or_insert(item);
        if self.chosen.len() > self.count {
            self.chosen.pop_last();
        }
    }

    /// The items, first drawn first.
    pub fn into_items(self) -> Vec<T> {
        self.chosen.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lot() -> Lot {
        Lot {
            origin: "kvasir.example/atlas/00000000".into(),
            size: 77,
            signatures: vec![vec![1; 76], vec![2; 76]],
        }
    }

    #[test]
    fn the_seed_is_what_the_document_says() {
        let (session, work) = (SessionId([3; 32]), Hash([4; 32]));
        let mut bytes = b"kvasir.example/draw@v1\0kvasir.example/atlas/00000000\n".to_vec();
        bytes.extend(77u64.to_le_bytes());
        bytes.extend(2u64.to_le_bytes());
        for blob in [[1u8; 76], [2; 76]] {
            bytes.extend(76u64.to_le_bytes());
            bytes.extend(blob);
        }
        bytes.extend([3; 32]);
        bytes.extend([4; 32]);
        let seed = sha256(&[&bytes]);
        assert_eq!(lot().seed(session, &work), Seed(seed));
        assert_eq!(Seed(seed).rank(258), Rank(sha256(&[&seed, &[2, 1, 0, 0, 0, 0, 0, 0]])));
        let hex = hex::encode(lot().seed(session, &work).0);
        assert_eq!(hex, hex::encode(seed));
    }

    #[test]
    fn everything_in_the_seed_moves_the_draw() {
        let (session, work) = (SessionId([3; 32]), Hash([4; 32]));
        let seed = lot().seed(session, &work);
        let changed: [fn(&mut Lot); 5] = [
            |lot| lot.origin.push('1'),
            |lot| lot.size += 1,
            |lot| lot.signatures[1][75] ^= 1,
            |lot| lot.signatures.swap(0, 1),
            |lot| drop(lot.signatures.pop()),
        ];
        for change in changed {
            let mut other = lot();
            change(&mut other);
            assert_ne!(other.seed(session, &work), seed, "{other:?}");
        }
        assert_ne!(lot().seed(SessionId([4; 32]), &work), seed);
        assert_ne!(lot().seed(session, &Hash([3; 32])), seed);
    }

    #[test]
    fn the_smallest_are_drawn_in_order_and_each_once() {
        let seed = lot().seed(SessionId([3; 32]), &Hash([4; 32]));
        let mut drawn = Drawn::new(10);
        for index in (0..1000).chain(0..1000) {
            drawn.offer(seed.rank(index), index);
        }
        let mut all: Vec<u64> = (0..1000).collect();
        all.sort_by_key(|index| seed.rank(*index));
        assert_eq!(drawn.into_items(), all[..10]);
        let mut none = Drawn::new(0);
        none.offer(seed.rank(1), 1);
        assert!(none.into_items().is_empty());
    }

    #[test]
    fn a_cheat_escapes_as_often_as_computed() {
        // As in docs/audit.md, with few items; the heads are fixed, so the counts are the same at every run.
        const ITEMS: u64 = 500;
        const TRIALS: u64 = 2_000;
        for (drawn_items, cheated) in [(5, 1), (5, 20), (25, 10), (50, 5)] {
            let mut escaped = 0;
            for trial in 0..TRIALS {
                let lot = Lot { size: 77 + trial, ..lot() };
                let seed = lot.seed(SessionId([3; 32]), &Hash([4; 32]));
                let mut drawn = Drawn::new(drawn_items);
                (0..ITEMS).for_each(|index| drawn.offer(seed.rank(index), index));
                escaped += u64::from(drawn.into_items().iter().all(|item| *item >= cheated));
            }
            // Drawn without putting back.
            let computed: f64 = (0..drawn_items as u64)
                .map(|nth| (ITEMS - cheated - nth) as f64 / (ITEMS - nth) as f64)
                .product();
            let spread = (computed * (1.0 - computed) / TRIALS as f64).sqrt();
            let found = escaped as f64 / TRIALS as f64;
            assert!(
                (found - computed).abs() < 4.0 * spread,
                "{drawn_items} of {cheated}: {found}, {computed} computed"
            );
        }
    }
}
