//! Rotary position embedding: the angles in f64, the rotation in f32.

/// Writes `cosines[i] = f32(cos t)` and `sines[i] = f32(sin t)` for i below n/2, `t = position * theta^(-2i/n)` in f64,
/// n = `2 * cosines.len()` the rotated dimensions.
///
/// # Panics
/// Where the two slices have different lengths.
pub fn rope_table(theta: f64, position: u32, cosines: &mut [f32], sines: &mut [f32]) {
    assert_eq!(cosines.len(), sines.len(), "rope_table: as many sines as cosines");
    let dimensions = 2.0 * cosines.len() as f64;
    for (i, (cosine, sine)) in cosines.iter_mut().zip(sines).enumerate() {
        let angle = f64::from(position) * libm::pow(theta, (-2.0 * i as f64) / dimensions);
        *cosine = libm::cos(angle) as f32;
        *sine = libm::sin(angle) as f32;
    }
}

/// Rotates the first `2 * cosines.len()` values of `head`; the pairs are (i, i + n/2), the half-split of NeoX. The pair
/// (a, b) becomes `(a*c - b*s, b*c + a*s)`, each operation rounded; the other values stay.
///
/// # Panics
/// Where `head` is shorter, or the two tables have different lengths.
pub fn rotate(head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    assert_eq!(cosines.len(), sines.len(), "rotate: as many sines as cosines");
    let (first, second) = head[..2 * cosines.len()].split_at_mut(cosines.len());
    for (((a, b), c), s) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
        (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
    }
}
