//! Unpacking of the quantised blocks into whole numbers, for the scalar reference. One function per format; the
//! layouts are ggml's.

/// Weights of a block of Q4_0 or Q8_0.
pub(crate) const SMALL: usize = 32;
/// Weights of a super-block of the K formats.
pub(crate) const SUPER: usize = 256;

/// The nibbles of a Q4_0 block (after its two bytes of scale), less 8.
#[inline]
pub(crate) fn q4_0_weights(quants: &[u8]) -> [i8; SMALL] {
    let mut weights = [0i8; SMALL];
    for (i, &byte) in quants[..16].iter().enumerate() {
        weights[i] = (byte & 15) as i8 - 8;
        weights[i + 16] = (byte >> 4) as i8 - 8;
    }
    weights
}

/// The eight 6-bit scales and eight 6-bit minima of a Q4_K block from its 12 bytes.
#[inline]
pub(crate) fn q4_k_scales(packed: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0u8; 8], [0u8; 8]);
    for j in 0..4 {
        scales[j] = packed[j] & 63;
        minima[j] = packed[j + 4] & 63;
        scales[j + 4] = (packed[j + 8] & 15) | ((packed[j] >> 6) << 4);
        minima[j + 4] = (packed[j + 8] >> 4) | ((packed[j + 4] >> 6) << 4);
    }
    (scales, minima)
}

/// The 256 nibbles of a Q4_K block (0..=15), in column order, from its 128 bytes.
#[inline]
pub(crate) fn q4_k_weights(quants: &[u8]) -> [i8; SUPER] {
    let mut weights = [0i8; SUPER];
    for (pair, bytes) in quants[..128].chunks_exact(32).enumerate() {
        for (i, &byte) in bytes.iter().enumerate() {
            weights[pair * 64 + i] = (byte & 15) as i8;
            weights[pair * 64 + 32 + i] = (byte >> 4) as i8;
        }
    }
    weights
}

/// The 256 weights of a Q6_K block (-32..=31), in column order, from its low nibbles and its high pairs.
#[inline]
pub(crate) fn q6_k_weights(low: &[u8], high: &[u8]) -> [i8; SUPER] {
    let mut weights = [0i8; SUPER];
    for half in 0..2 {
        let (low, high) = (&low[half * 64..][..64], &high[half * 32..][..32]);
        for i in 0..32 {
            let at = half * 128 + i;
            weights[at] = ((low[i] & 15) | ((high[i] & 3) << 4)) as i8 - 32;
            weights[at + 32] = ((low[i + 32] & 15) | (((high[i] >> 2) & 3) << 4)) as i8 - 32;
            weights[at + 64] = ((low[i] >> 4) | (((high[i] >> 4) & 3) << 4)) as i8 - 32;
            weights[at + 96] = ((low[i + 32] >> 4) | ((high[i] >> 6) << 4)) as i8 - 32;
        }
    }
    weights
}

/// The parts of a Q4_K block of 144 bytes.
pub(crate) struct Q4K<'a>(pub &'a [u8]);

impl<'a> Q4K<'a> {
    #[inline]
    pub(crate) fn scale(&self) -> f32 {
        crate::half::read_f16(self.0)
    }
    #[inline]
    pub(crate) fn minimum_scale(&self) -> f32 {
        crate::half::read_f16(&self.0[2..])
    }
    #[inline]
    pub(crate) fn packed_scales(&self) -> &'a [u8] {
        &self.0[4..16]
    }
    #[inline]
    pub(crate) fn quants(&self) -> &'a [u8] {
        &self.0[16..144]
    }
}

/// The parts of a Q6_K block of 210 bytes.
pub(crate) struct Q6K<'a>(pub &'a [u8]);

impl<'a> Q6K<'a> {
    #[inline]
    pub(crate) fn low(&self) -> &'a [u8] {
        &self.0[..128]
    }
    #[inline]
    pub(crate) fn high(&self) -> &'a [u8] {
        &self.0[128..192]
    }
    /// Sixteen i8 scales, as bytes.
    #[inline]
    pub(crate) fn scales(&self) -> &'a [u8] {
        &self.0[192..208]
    }
    #[inline]
    pub(crate) fn scale(&self) -> f32 {
        crate::half::read_f16(&self.0[208..])
    }
}
