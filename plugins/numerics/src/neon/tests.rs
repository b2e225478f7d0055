//! The names mean what WASM's specification says: each against its meaning spelled out lane by lane, on random vectors and on
//! vectors of extremes.

use super::*;

/// Vectors of every byte's extremes, then random ones (SplitMix64).
fn vectors() -> Vec<v128> {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut vectors: Vec<v128> = [0u8, 1, 15, 16, 0x7f, 0x80, 0x81, 0xff].map(u8x16_splat).to_vec();
    vectors.extend((0..24).map(|_| u64x2(next(), next())));
    vectors
}

/// Every pair of vectors: `found` against the lanes that `expected` makes of theirs.
fn pairs<A: Lane, const N: usize, B: Lane + PartialEq + std::fmt::Debug, const M: usize>(
    name: &str,
    found: impl Fn(v128, v128) -> v128,
    expected: impl Fn([A; N], [A; N]) -> [B; M],
) {
    for a in vectors() {
        for b in vectors() {
            let (left, right) = (to_lanes::<A, N>(a), to_lanes::<A, N>(b));
            assert_eq!(to_lanes::<B, M>(found(a, b)), expected(left, right), "{name}");
        }
    }
}

/// As [`pairs`], lane by lane.
fn lanes<A: Lane, B: Lane + PartialEq + std::fmt::Debug, const N: usize>(
    name: &str,
    found: impl Fn(v128, v128) -> v128,
    expected: impl Fn(A, A) -> B,
) {
    pairs::<A, N, B, N>(name, found, |a, b| std::array::from_fn(|i| expected(a[i], b[i])));
}

fn mask<T>(yes: bool, all: T, none: T) -> T {
    if yes { all } else { none }
}

macro_rules! check {
    ($type:ty, $other:ty, $count:literal: $($name:ident $expected:expr),* $(,)?) => {
        $(lanes::<$type, $other, $count>(stringify!($name), $name, $expected);)*
    };
}

#[test]
fn sums_products_and_comparisons() {
    check!(u8, u8, 16: i8x16_add u8::wrapping_add, u8x16_add u8::wrapping_add, i8x16_sub u8::wrapping_sub,
        u8x16_min std::cmp::min, u8x16_max std::cmp::max, u8x16_gt |a, b| mask(a > b, 255, 0),
        i8x16_eq |a, b| mask(a == b, 255, 0), v128_and |a, b| a & b, v128_or |a, b| a | b, v128_xor |a, b| a ^ b,
        v128_andnot |a, b| a & !b);
    check!(i8, i8, 16: i8x16_min std::cmp::min, i8x16_max std::cmp::max, i8x16_lt |a, b| mask(a < b, -1, 0),
        i8x16_gt |a, b| mask(a > b, -1, 0));
    check!(i16, i16, 8: i16x8_add i16::wrapping_add, i16x8_sub i16::wrapping_sub, i16x8_mul i16::wrapping_mul,
        i16x8_min std::cmp::min, i16x8_max std::cmp::max, i16x8_lt |a, b| mask(a < b, -1, 0),
        i16x8_gt |a, b| mask(a > b, -1, 0), i16x8_eq |a, b| mask(a == b, -1, 0));
    check!(i32, i32, 4: i32x4_add i32::wrapping_add, i32x4_sub i32::wrapping_sub, i32x4_mul i32::wrapping_mul,
        i32x4_min std::cmp::min, i32x4_max std::cmp::max, i32x4_lt |a, b| mask(a < b, -1, 0),
        i32x4_gt |a, b| mask(a > b, -1, 0), i32x4_eq |a, b| mask(a == b, -1, 0));
    check!(i8, i8, 16: first_abs i8_abs, first_neg |a: i8, _| a.wrapping_neg());
    lanes::<i32, u32, 4>("f32x4_convert_i32x4", |a, _| f32x4_convert_i32x4(a), |a, _| (a as f32).to_bits());
}

fn first_abs(a: v128, _: v128) -> v128 {
    i8x16_abs(a)
}

fn first_neg(a: v128, _: v128) -> v128 {
    i8x16_neg(a)
}

fn i8_abs(a: i8, _: i8) -> i8 {
    a.wrapping_abs()
}

/// NaN's payload apart.
#[test]
fn floats() {
    let same = |value: f32| if value.is_nan() { u32::MAX } else { value.to_bits() };
    for (name, found, expected) in [
        ("add", f32x4_add as fn(v128, v128) -> v128, (|a, b| a + b) as fn(f32, f32) -> f32),
        ("sub", f32x4_sub, |a, b| a - b),
        ("mul", f32x4_mul, |a, b| a * b),
        ("div", f32x4_div, |a, b| a / b),
    ] {
        for a in vectors() {
            for b in vectors() {
                let (left, right) = (to_lanes::<f32, 4>(a), to_lanes::<f32, 4>(b));
                let found = to_lanes::<f32, 4>(found(a, b)).map(same);
                let expected: [f32; 4] = std::array::from_fn(|i| expected(left[i], right[i]));
                assert_eq!(found, expected.map(same), "{name}");
            }
        }
    }
}

#[test]
fn dots() {
    pairs::<i16, 8, i32, 4>("i32x4_dot_i16x8", i32x4_dot_i16x8, |a, b| {
        let product = |i: usize| i32::from(a[i]) * i32::from(b[i]);
        std::array::from_fn(|i| product(2 * i).wrapping_add(product(2 * i + 1)))
    });
    let seven_bits = |b: v128| v128_and(b, u8x16_splat(127));
    pairs::<i8, 16, i16, 8>(
        "i16x8_relaxed_dot",
        |a, b| i16x8_relaxed_dot_i8x16_i7x16(a, seven_bits(b)),
        |a, b| {
            let product = |i: usize| i16::from(a[i]) * i16::from(b[i] & 127);
            std::array::from_fn(|i| product(2 * i) + product(2 * i + 1))
        },
    );
    let start = i32x4(1, -1, i32::MAX, i32::MIN);
    pairs::<i8, 16, i32, 4>(
        "i32x4_relaxed_dot_add",
        |a, b| i32x4_relaxed_dot_i8x16_i7x16_add(a, seven_bits(b), start),
        |a, b| {
            let product = |i: usize| i32::from(a[i]) * i32::from(b[i] & 127);
            let start = to_lanes::<i32, 4>(start);
            std::array::from_fn(|i| (4 * i..4 * i + 4).fold(start[i], |sum, i| sum.wrapping_add(product(i))))
        },
    );
}

#[test]
fn shifts_count_modulo_the_width() {
    for by in [0, 1, 3, 4, 7, 8, 12, 15, 16, 23, 31, 32, 33, 63, 64] {
        lanes::<u8, u8, 16>("u8x16_shr", |a, _| u8x16_shr(a, by), |a, _| a >> (by % 8));
        lanes::<i8, i8, 16>("i8x16_shr", |a, _| i8x16_shr(a, by), |a, _| a >> (by % 8));
        lanes::<u8, u8, 16>("i8x16_shl", |a, _| i8x16_shl(a, by), |a, _| a << (by % 8));
        lanes::<u16, u16, 8>("u16x8_shr", |a, _| u16x8_shr(a, by), |a, _| a >> (by % 16));
        lanes::<i16, i16, 8>("i16x8_shr", |a, _| i16x8_shr(a, by), |a, _| a >> (by % 16));
        lanes::<u16, u16, 8>("u16x8_shl", |a, _| u16x8_shl(a, by), |a, _| a << (by % 16));
        lanes::<u32, u32, 4>("u32x4_shr", |a, _| u32x4_shr(a, by), |a, _| a >> (by % 32));
        lanes::<i32, i32, 4>("i32x4_shr", |a, _| i32x4_shr(a, by), |a, _| a >> (by % 32));
        lanes::<u32, u32, 4>("u32x4_shl", |a, _| u32x4_shl(a, by), |a, _| a << (by % 32));
        lanes::<u64, u64, 2>("u64x2_shr", |a, _| u64x2_shr(a, by), |a, _| a >> (by % 64));
    }
}

#[test]
fn widening() {
    pairs::<i8, 16, i16, 8>(
        "low i8",
        |a, _| i16x8_extend_low_i8x16(a),
        |a, _| std::array::from_fn(|i| a[i].into()),
    );
    pairs::<i8, 16, i16, 8>(
        "high i8",
        |a, _| i16x8_extend_high_i8x16(a),
        |a, _| std::array::from_fn(|i| a[i + 8].into()),
    );
    pairs::<u8, 16, u16, 8>(
        "low u8",
        |a, _| u16x8_extend_low_u8x16(a),
        |a, _| std::array::from_fn(|i| a[i].into()),
    );
    pairs::<u8, 16, u16, 8>(
        "high u8",
        |a, _| u16x8_extend_high_u8x16(a),
        |a, _| std::array::from_fn(|i| a[i + 8].into()),
    );
    pairs::<u16, 8, u32, 4>(
        "low u16",
        |a, _| u32x4_extend_low_u16x8(a),
        |a, _| std::array::from_fn(|i| a[i].into()),
    );
    pairs::<u16, 8, u32, 4>(
        "high u16",
        |a, _| u32x4_extend_high_u16x8(a),
        |a, _| std::array::from_fn(|i| a[i + 4].into()),
    );
    pairs::<i16, 8, i32, 4>(
        "low i16",
        |a, _| i32x4_extend_low_i16x8(a),
        |a, _| std::array::from_fn(|i| a[i].into()),
    );
    pairs::<i16, 8, i32, 4>(
        "high i16",
        |a, _| i32x4_extend_high_i16x8(a),
        |a, _| std::array::from_fn(|i| a[i + 4].into()),
    );
    pairs::<i16, 8, i32, 4>(
        "pairs of i16",
        |a, _| i32x4_extadd_pairwise_i16x8(a),
        |a, _| std::array::from_fn(|i| i32::from(a[2 * i]) + i32::from(a[2 * i + 1])),
    );
    pairs::<i8, 16, i16, 8>(
        "pairs of i8",
        |a, _| i16x8_extadd_pairwise_i8x16(a),
        |a, _| std::array::from_fn(|i| i16::from(a[2 * i]) + i16::from(a[2 * i + 1])),
    );
    pairs::<i8, 16, i16, 8>("low products", i16x8_extmul_low_i8x16, |a, b| {
        std::array::from_fn(|i| i16::from(a[i]) * i16::from(b[i]))
    });
    pairs::<i8, 16, i16, 8>("high products", i16x8_extmul_high_i8x16, |a, b| {
        std::array::from_fn(|i| i16::from(a[i + 8]) * i16::from(b[i + 8]))
    });
}

#[test]
fn places() {
    let numbers = u8x16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    pairs::<u8, 16, u8, 16>("swizzle", i8x16_swizzle, |a, b| {
        b.map(|at| *a.get(usize::from(at)).unwrap_or(&0))
    });
    pairs::<u32, 4, u32, 4>("shuffle of words", i32x4_shuffle::<0, 4, 3, 7>, |a, b| [a[0], b[0], a[3], b[3]]);
    pairs::<u8, 16, u8, 16>(
        "select",
        |a, b| v128_bitselect(a, b, numbers),
        |a, b| std::array::from_fn(|i| (a[i] & i as u8) | (b[i] & !(i as u8))),
    );
    assert_eq!(i32x4_extract_lane::<2>(i32x4(5, 6, 7, 8)), 7);
    assert_eq!(u16x8_extract_lane::<1>(numbers), 0x0302);
    assert_eq!(to_lanes::<i32, 4>(i32x4_replace_lane::<3>(i32x4(5, 6, 7, 8), 9)), [5, 6, 7, 9]);
    let bytes = to_lanes::<u8, 16>(numbers);
    // SAFETY: the array has the bytes that are read.
    unsafe {
        assert_eq!(to_lanes::<u8, 16>(v128_load(bytes.as_ptr().cast())), bytes);
        assert_eq!(
            to_lanes::<u64, 2>(v128_load64_zero(bytes.as_ptr().add(1).cast())),
            [0x0807_0605_0403_0201, 0]
        );
        assert_eq!(to_lanes::<u16, 8>(v128_load16_splat(bytes.as_ptr().add(1).cast())), [0x0201; 8]);
    }
}
