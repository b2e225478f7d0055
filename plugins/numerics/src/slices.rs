//! Picking parts of several slices at once. Plain functions, without closures: a closure inherits the target features of the
//! function around it, and `map` and its like, which have none, could not inline it.

/// Item `at` of each slice.
#[inline(always)]
pub(crate) fn pick<T, const N: usize>(slices: [&[T]; N], at: usize) -> [&T; N] {
    let mut items = [&slices[0][at]; N];
    for (item, slice) in items.iter_mut().zip(slices) {
        *item = &slice[at];
    }
    items
}

/// References to the items.
#[inline(always)]
pub(crate) fn each<T, const N: usize, const TILE: usize>(tile: &[T; TILE]) -> [&T; N] {
    let mut items = [&tile[0]; N];
    for (item, tile) in items.iter_mut().zip(tile) {
        *item = tile;
    }
    items
}

/// `N` consecutive slices of `len` items, the first starting at item `first * len`.
#[inline(always)]
pub(crate) fn lines<T, const N: usize>(items: &[T], len: usize, first: usize) -> [&[T]; N] {
    let mut lines = [&items[..0]; N];
    for (at, line) in lines.iter_mut().enumerate() {
        *line = &items[(first + at) * len..][..len];
    }
    lines
}
