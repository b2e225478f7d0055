//! AVX-512 with VNNI: products of the formats that it makes faster; the others, Q4_K among them, have AVX2's code, which was as
//! fast or faster where both were measured. Bit-equal to the scalar reference, since integer sums are exact in any order.

mod formats;

use core::ops::Range;

use crate::block_walk;
use crate::format::Format;
use crate::matrix::Matrix;

/// As [`crate::product()`], whose checks have been made.
///
/// # Safety
/// AVX2, F16C and the features of AVX-512 that [`formats`] names.
#[target_feature(enable = "avx2,f16c")]
pub(crate) unsafe fn product(
    matrix: Matrix<'_>,
    outputs: Range<usize>,
    rows: &[u8],
    count: usize,
    out: &mut [f32],
) {
    match matrix.format() {
        _ if matrix.is_interleaved() => crate::avx2::product(matrix, outputs, rows, count, out),
        Format::Q6K => block_walk::product::<formats::Q6K>(matrix, outputs, rows, count, out),
        Format::Q8_0 => block_walk::product::<formats::Q8_0>(matrix, outputs, rows, count, out),
        Format::Q4_0 => block_walk::product::<formats::Q4_0>(matrix, outputs, rows, count, out),
        _ => crate::avx2::product(matrix, outputs, rows, count, out),
    }
}
