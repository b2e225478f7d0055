//! The quantised blocks taken apart into whole numbers and scales, for the scalar reference, the dequantised row and the load
//! check. The layouts are ggml's. Vector code unpacks for itself.

mod small;
mod super_block;

#[cfg(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", target_endian = "little"),
    all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd")
))]
pub(crate) use small::{E2M1_ABOVE_12, IQ4_BYTES};
pub(crate) use small::{SMALL, small_block};
pub(crate) use super_block::{SUB, SUPER, super_block};

use crate::format::Format;

/// Where the f16 numbers of a block lie: the scale and, where there is one, the minimum or its scale.
pub(crate) const fn f16_places(format: Format) -> &'static [usize] {
    match format {
        Format::F16 | Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::IQ4NL | Format::IQ4XS => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        Format::F32 | Format::BF16 | Format::MXFP4 => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_numbers_lie_inside_their_blocks() {
        for format in Format::ALL {
            assert!(f16_places(format).iter().all(|place| place + 2 <= format.block_bytes()), "{format}");
        }
    }
}
