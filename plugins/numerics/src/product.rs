//! The product of a weight matrix and rows: argument checks and the choice of implementation.

use core::ops::Range;

use crate::instruction_set::{InstructionSet, Kind};
use crate::matrix::Matrix;

/// `out[(o - outputs.start) * count + r]` = row r of `rows` times matrix row o, for o in `outputs`.
///
/// `rows` are `count` rows of `matrix.columns()` values in `matrix.row_format()`, back to back, made by
/// [`crate::quantise_row`] or passed by [`crate::check_rows`]; the matrix must have passed [`Matrix::check_weights`] for
/// the instruction sets to agree. Output-major, so that threads split outputs into contiguous chunks; an element's bits
/// depend on its own row and matrix row alone. Overflow gives an infinity or a NaN, which the caller refuses.
///
/// # Panics
/// Where `outputs` is not a range of matrix rows, or `rows` or `out` has another length.
pub fn product(
    isa: InstructionSet,
    matrix: Matrix<'_>,
    outputs: Range<usize>,
    rows: &[u8],
    count: usize,
    out: &mut [f32],
) {
    assert!(outputs.start <= outputs.end && outputs.end <= matrix.rows(), "product: no such outputs");
    let row_bytes = matrix.row_format().row_bytes(matrix.columns());
    let expected = row_bytes.and_then(|bytes| bytes.checked_mul(count));
    assert_eq!(Some(rows.len()), expected, "product: rows are not {count} rows of the matrix's row format");
    assert_eq!(Some(out.len()), outputs.len().checked_mul(count), "product: out must hold outputs x count");
    if count == 0 || outputs.is_empty() {
        return;
    }
    match isa.0 {
        Kind::Scalar if matrix.is_interleaved() => {
            crate::interleaved::product_scalar(matrix, outputs, rows, count, out)
        }
        Kind::Scalar => crate::product_scalar::product(matrix, outputs, rows, count, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction set is the proof that this machine has AVX2 and F16C.
        Kind::Avx2 => unsafe { crate::avx2::product(matrix, outputs, rows, count, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction set is the proof that this machine has AVX2, F16C and the features of AVX-512.
        Kind::Avx512 => unsafe { crate::avx512::product(matrix, outputs, rows, count, out) },
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        Kind::Neon => crate::simd128::product(matrix, outputs, rows, count, out),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd"))]
        Kind::Simd128 => crate::simd128::product(matrix, outputs, rows, count, out),
    }
}
