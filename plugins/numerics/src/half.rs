//! Exact widening of 16-bit floats to f32. Integer arithmetic only, so that every machine gives the same bits.

/// IEEE-754 binary16 to binary32, exactly; subnormals are kept, infinities and NaN stay what they are.
#[inline]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let mantissa = u32::from(bits) & 0x3ff;
    let magnitude = match exponent {
        // Subnormal: mantissa * 2^-24, a product that f32 holds exactly.
        0 => (mantissa as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        31 => 0x7f80_0000 | (mantissa << 13),
        _ => ((exponent + 112) << 23) | (mantissa << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// bfloat16 to binary32, exactly.
#[inline]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `2^(exponent - 128)`: half of the power of two that the exponent byte of an MXFP4 block means, since its table of four-bit
/// floats is doubled. Subnormal for 0 and 1. 255, which means NaN, is the caller's to refuse.
#[inline]
pub(crate) fn power_of_two_halved(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })
}

/// The f16 at the start of `bytes`, widened.
#[inline]
pub(crate) fn read_f16(bytes: &[u8]) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// The bfloat16 at the start of `bytes`, widened.
#[inline]
pub(crate) fn read_bf16(bytes: &[u8]) -> f32 {
    bf16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// The f32 at the start of `bytes`.
#[inline]
pub(crate) fn read_f32(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let (sign, exponent, mantissa) = (bits >> 15, i32::from(bits >> 10) & 31, f64::from(bits & 1023));
            let wide = f16_to_f32(bits);
            assert_eq!(wide.is_sign_negative(), sign == 1);
            match exponent {
                31 if mantissa == 0.0 => assert!(wide.is_infinite()),
                31 => assert!(wide.is_nan()),
                0 => assert_eq!(f64::from(wide.abs()), mantissa * 2f64.powi(-24)),
                _ => assert_eq!(f64::from(wide.abs()), (1024.0 + mantissa) * 2f64.powi(exponent - 25)),
            }
        }
    }

    #[test]
    fn every_exponent_is_its_power_of_two() {
        for exponent in 0..255 {
            let expected = 2f64.powi(i32::from(exponent) - 128);
            assert_eq!(f64::from(power_of_two_halved(exponent)), expected, "{exponent}");
        }
    }

    #[test]
    fn bf16_is_the_upper_half() {
        assert_eq!(bf16_to_f32(0x3f80), 1.0);
        assert_eq!(bf16_to_f32(0xc000), -2.0);
    }
}
