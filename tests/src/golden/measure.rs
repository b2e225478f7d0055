//! How far two vectors are apart, and a product in f64 to measure against.

use kvasir_model::{DeltaConfig, Tensor};
use kvasir_numerics::{dequantise_row, quantise_row, read_row};

/// The output product of a delta net in f64, its rows quantised after their value heads were moved to the places that
/// `place` gives, and moved back.
///
/// The references of GGUF files were computed with the heads in the order of Hugging Face, and quantise blocks in that
/// order. Exact-v1 quantises in the order of the file. The two are equal where a block holds one head or all, and
/// differ by percents where it holds some, as in the tiny model (heads of 16, blocks of 32). So the product in the
/// file's order is compared by itself, and the layer goes on with the reference's.
pub(super) fn product_in_order(
    matrix: &Tensor,
    rows: &[f32],
    shape: &DeltaConfig,
    place: &dyn Fn(usize) -> usize,
) -> Vec<f32> {
    let (columns, value) = (matrix.columns(), shape.value_dimension as usize);
    let format = matrix.row_format();
    let mut weights = vec![0.0; matrix.rows() * columns];
    for (row, weights) in weights.chunks_exact_mut(columns).enumerate() {
        dequantise_row(matrix.matrix(), row, weights);
    }
    let mut products = Vec::with_capacity(rows.len() / columns * matrix.rows());
    for row in rows.chunks_exact(columns) {
        let mut moved = vec![0.0; columns];
        for (head, values) in row.chunks_exact(value).enumerate() {
            moved[place(head) * value..][..value].copy_from_slice(values);
        }
        let mut bytes = vec![0; format.row_bytes(columns).expect("whole blocks")];
        quantise_row(&moved, format, &mut bytes).expect("finite values");
        read_row(format, &bytes, &mut moved);
        let rounded: Vec<f32> =
            (0..columns / value).flat_map(|head| moved[place(head) * value..][..value].to_vec()).collect();
        products.extend(weights.chunks_exact(columns).map(|weights| {
            let terms = weights.iter().zip(&rounded).map(|(a, b)| f64::from(*a) * f64::from(*b));
            terms.sum::<f64>() as f32
        }));
    }
    products
}

/// The cosine of the angle between two vectors.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "vectors of one length");
    let product =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    product(a, b) / (product(a, a) * product(b, b)).sqrt()
}

/// |ours - reference| / |reference| for each row of `width` values.
pub(super) fn relative_errors(ours: &[f32], reference: &[f32], width: usize) -> Vec<f64> {
    assert_eq!(ours.len(), reference.len(), "as many rows as the reference");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let rows = ours.chunks_exact(width).zip(reference.chunks_exact(width));
    rows.map(|(ours, reference)| {
        let differences = ours.iter().zip(reference).map(|(a, b)| f64::from(*a) - f64::from(*b));
        norm(&mut differences.into_iter()) / norm(&mut reference.iter().map(|value| f64::from(*value)))
    })
    .collect()
}

pub(super) fn largest(errors: &[f64]) -> f64 {
    errors
        .iter()
        .copied()
        .fold(0.0, |largest, error| if error > largest || error.is_nan() { error } else { largest })
}

/// The largest value's index (the lowest of equals) and how much larger it is than the next.
pub(super) fn best_and_margin(logits: &[f32]) -> (usize, f32) {
    let mut best = 0;
    let mut second = f32::NEG_INFINITY;
    for (at, &logit) in logits.iter().enumerate().skip(1) {
        if logit > logits[best] {
            second = logits[best];
            best = at;
        } else {
            second = second.max(logit);
        }
    }
    (best, logits[best] - second)
}
