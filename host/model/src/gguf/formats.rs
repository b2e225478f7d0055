//! All tensor types of GGUF: number, name, block. More than products know, so that a file's ranges can be checked and
//! an unsupported type can be named.

/// One tensor type of ggml.
pub(crate) struct TypeInfo {
    number: u32,
    /// ggml's name without the prefix.
    pub(crate) name: &'static str,
    /// Weights in a block.
    pub(crate) block_len: u64,
    /// Bytes of a block.
    pub(crate) block_bytes: u64,
}

const fn info(number: u32, name: &'static str, block_len: u64, block_bytes: u64) -> TypeInfo {
    TypeInfo { number, name, block_len, block_bytes }
}

/// Types that files may hold. Numbers that ggml has withdrawn are in `withdrawn`.
const TYPES: &[TypeInfo] = &[
    info(0, "F32", 1, 4),
    info(1, "F16", 1, 2),
    info(2, "Q4_0", 32, 18),
    info(3, "Q4_1", 32, 20),
    info(6, "Q5_0", 32, 22),
    info(7, "Q5_1", 32, 24),
    info(8, "Q8_0", 32, 34),
    info(9, "Q8_1", 32, 36),
    info(10, "Q2_K", 256, 84),
    info(11, "Q3_K", 256, 110),
    info(12, "Q4_K", 256, 144),
    info(13, "Q5_K", 256, 176),
    info(14, "Q6_K", 256, 210),
    info(15, "Q8_K", 256, 292),
    info(16, "IQ2_XXS", 256, 66),
    info(17, "IQ2_XS", 256, 74),
    info(18, "IQ3_XXS", 256, 98),
    info(19, "IQ1_S", 256, 50),
    info(20, "IQ4_NL", 32, 18),
    info(21, "IQ3_S", 256, 110),
    info(22, "IQ2_S", 256, 82),
    info(23, "IQ4_XS", 256, 136),
    info(24, "I8", 1, 1),
    info(25, "I16", 1, 2),
    info(26, "I32", 1, 4),
    info(27, "I64", 1, 8),
    info(28, "F64", 1, 8),
    info(29, "IQ1_M", 256, 56),
    info(30, "BF16", 1, 2),
    info(34, "TQ1_0", 256, 54),
    info(35, "TQ2_0", 256, 66),
    info(39, "MXFP4", 32, 17),
    info(40, "NVFP4", 64, 36),
    info(41, "Q1_0", 128, 18),
    info(42, "Q2_0", 64, 18),
];

/// The type with this number.
pub(crate) fn type_info(number: u32) -> Option<&'static TypeInfo> {
    TYPES.iter().find(|info| info.number == number)
}

/// GGUF's name of a tensor type number, `unknown` where there is none.
pub(crate) fn format_name(number: u32) -> &'static str {
    type_info(number).map_or_else(|| withdrawn(number).unwrap_or("unknown"), |info| info.name)
}

/// Types that ggml once had and no longer reads.
fn withdrawn(number: u32) -> Option<&'static str> {
    Some(match number {
        4 => "Q4_2, withdrawn",
        5 => "Q4_3, withdrawn",
        31 => "Q4_0_4_4, withdrawn",
        32 => "Q4_0_4_8, withdrawn",
        33 => "Q4_0_8_8, withdrawn",
        36 => "IQ4_NL_4_4, withdrawn",
        37 => "IQ4_NL_4_8, withdrawn",
        38 => "IQ4_NL_8_8, withdrawn",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_numerics::Format;

    #[test]
    fn the_table_agrees_with_the_formats_that_have_arithmetic() {
        for format in Format::ALL {
            let info = type_info(format.number()).unwrap();
            assert_eq!(info.name, format.name());
            assert_eq!(info.block_len as usize, format.block_len());
            assert_eq!(info.block_bytes as usize, format.block_bytes());
        }
        assert_eq!(format_name(16), "IQ2_XXS");
        assert_eq!(format_name(31), "Q4_0_4_4, withdrawn");
        assert_eq!(format_name(99), "unknown");
        assert_eq!(format_name(u32::MAX), "unknown");
    }
}
