//! Functions and vector operations: accuracy, the definition spelled out, and equal bits under every instruction set.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod random;

use kvasir_numerics::*;
use proptest::prelude::*;
use random::Random;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { u32::MAX } else { value.to_bits() }).collect()
}

/// Runs `operation` on a copy of `input` under every set and expects one answer, which it returns.
fn same_everywhere(input: &[f32], operation: impl Fn(InstructionSet, &mut [f32])) -> Vec<f32> {
    let mut results = InstructionSet::available().map(|isa| {
        let mut values = input.to_vec();
        operation(isa, &mut values);
        (isa, values)
    });
    let (_, expected) = results.next().unwrap();
    for (isa, found) in results {
        assert_eq!(bits(&found), bits(&expected), "{isa}");
    }
    expected
}

fn finite_floats(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<f32>> {
    let any = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite());
    prop::collection::vec(prop_oneof![3 => -20f32..20f32, 1 => any], len)
}

/// Distance in units of the last place between `found` and the real number `expected`.
fn ulps(found: f32, expected: f64) -> f64 {
    let exponent = (found.to_bits() >> 23 & 0xff) as i32 - 127 - 23;
    (f64::from(found) - expected).abs() / 2f64.powi(exponent)
}

#[test]
fn exp_is_within_one_ulp() {
    let mut worst = 0f64;
    // A stride through all magnitudes of the range, both signs.
    for magnitude in (0..88f32.to_bits()).step_by(3571) {
        for x in [f32::from_bits(magnitude), -f32::from_bits(magnitude)] {
            if x >= -87.3 {
                worst = worst.max(ulps(exp(x), f64::from(x).exp()));
            }
        }
    }
    assert!(worst <= 1.0, "{worst} ulp");
    assert!(worst > 0.5, "a stride that finds no error at all looks at nothing: {worst} ulp");
}

#[test]
fn exp_is_clamped_and_keeps_nan() {
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(-0.0), 1.0);
    for low in [-87.31, -1e30, f32::MIN, f32::NEG_INFINITY] {
        assert_eq!(exp(low).to_bits(), exp(-87.3).to_bits());
    }
    for high in [88.01, 1e30, f32::MAX, f32::INFINITY] {
        assert_eq!(exp(high).to_bits(), exp(88.0).to_bits());
    }
    assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
    assert!(exp(-87.3) >= f32::MIN_POSITIVE && exp(88.0).is_finite());
}

/// The definition with a real `round_ties_even` and a real clamp, which `core` lacks or WASM must not have.
#[allow(clippy::excessive_precision, clippy::approx_constant, reason = "the digits of the definition")]
#[test]
fn exp_is_the_definition() {
    let definition = |x: f32| {
        let x = x.clamp(-87.3, 88.0);
        let n = (x * 1.442_695_04f32).round_ties_even();
        let r = (x - n * 0.693_359_375f32) - n * -2.121_944_4e-4f32;
        let coefficients = [
            1.398_199_950_7e-3f32,
            8.333_451_907_3e-3,
            4.166_579_589_4e-2,
            1.666_666_545_9e-1,
            5.000_000_120_1e-1,
        ];
        let p = coefficients.iter().fold(1.987_569_15e-4f32, |p, c| p * r + c);
        (((p * (r * r)) + r) + 1.0) * 2f32.powi(n as i32)
    };
    for pattern in (0..=u32::MAX).step_by(40_009) {
        let x = f32::from_bits(pattern);
        if !x.is_nan() {
            assert_eq!(exp(x).to_bits(), definition(x).to_bits(), "{x:e}");
        }
    }
}

#[test]
fn sigmoid_silu_and_softplus_are_their_formulas() {
    for step in -400..400 {
        let x = step as f32 * 0.37;
        assert_eq!(sigmoid(x).to_bits(), (1.0 / (1.0 + exp(-x))).to_bits());
        assert_eq!(silu(x).to_bits(), (x / (1.0 + exp(-x))).to_bits());
        let expected = f64::from(x).exp().ln_1p();
        assert!((f64::from(softplus(x)) - expected).abs() <= 1e-7 * expected.max(1e-30), "{x}");
    }
    assert_eq!(softplus(20.1), 20.1);
    assert_eq!(decay(-0.5, 1.0, 0.25).to_bits(), exp(-0.5 * softplus(1.25)).to_bits());
    assert_eq!(decay_rate_from_log(0.0), -1.0);
    assert_eq!(inverse_square_root(256), 0.0625);
}

#[test]
fn sixteen_sum_is_the_definition() {
    let mut random = Random(3);
    for len in 0..100 {
        let terms: Vec<f32> = (0..len).map(|_| random.signed()).collect();
        let mut p = [0f32; 16];
        for (i, term) in terms.iter().enumerate() {
            p[i % 16] += term;
        }
        for half in [8, 4, 2, 1] {
            for l in 0..half {
                p[l] += p[l + half];
            }
        }
        assert_eq!(sixteen_sum(terms.iter().copied()).to_bits(), p[0].to_bits());
        let ones = vec![1f32; len];
        same_everywhere(&terms, |isa, values| {
            let sum = dot(isa, values, &ones);
            assert_eq!(sum.to_bits(), p[0].to_bits());
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn vector_operations_agree(x in finite_floats(0..200), seed: u64, w in -4f32..4f32) {
        let mut random = Random(seed);
        let other: Vec<f32> = x.iter().map(|_| random.signed() * 3.0).collect();
        let third: Vec<f32> = x.iter().map(|_| random.signed() * 9.0).collect();
        same_everywhere(&x, |isa, out| out.fill(dot(isa, &x, &other)));
        same_everywhere(&x, |isa, x| scale_add(isa, x, w, &other));
        same_everywhere(&x, |isa, out| rms_norm(isa, &x, &other, 1e-6, out));
        same_everywhere(&x, |isa, out| gated_rms_norm(isa, &x, &other, &third, 1e-6, out));
        same_everywhere(&x, l2_normalise);
        same_everywhere(&x, softmax);
        same_everywhere(&x, silu_in_place);
        same_everywhere(&x, |isa, x| silu_multiply(isa, x, &other));
        same_everywhere(&x, |isa, x| sigmoid_multiply(isa, x, &other));
    }

    #[test]
    fn softmax_is_the_definition(x in prop::collection::vec(-30f32..30f32, 1..80)) {
        let found = same_everywhere(&x, softmax);
        let maximum = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = x.iter().map(|x| exp(x - maximum)).collect();
        let sum = sixteen_sum(powers.iter().copied());
        let expected: Vec<f32> = powers.iter().map(|power| power / sum).collect();
        prop_assert_eq!(bits(&found), bits(&expected));
    }

    #[test]
    fn norms_are_the_definition(x in prop::collection::vec(-30f32..30f32, 1..80), epsilon in 1e-7f32..1e-3) {
        let squares = sixteen_sum(x.iter().map(|x| x * x));
        let weight: Vec<f32> = (0..x.len()).map(|i| 0.5 + i as f32 / 64.0).collect();
        let r = 1.0 / (squares / x.len() as f32 + epsilon).sqrt();
        let expected: Vec<f32> = x.iter().zip(&weight).map(|(x, w)| (x * r) * w).collect();
        let found = same_everywhere(&x, |isa, out| rms_norm(isa, &x, &weight, epsilon, out));
        prop_assert_eq!(bits(&found), bits(&expected));
        let r = 1.0 / (squares + 1e-6f32).sqrt();
        let expected: Vec<f32> = x.iter().map(|x| x * r).collect();
        prop_assert_eq!(bits(&same_everywhere(&x, l2_normalise)), bits(&expected));
    }

    #[test]
    fn the_delta_rule_is_the_definition(keys in 1usize..20, values in 1usize..80, seed: u64) {
        let mut random = Random(seed);
        let mut vector = |len: usize| -> Vec<f32> { (0..len).map(|_| random.signed()).collect() };
        let (q, k, v, state) = (vector(keys), vector(keys), vector(values), vector(keys * values));
        let (beta, decay) = (0.625f32, 0.875f32);
        let mut expected = state.clone();
        let mut out = vec![0f32; values];
        for s in &mut expected {
            *s *= decay;
        }
        for j in 0..values {
            let m = (0..keys).fold(0f32, |acc, i| acc + expected[i * values + j] * k[i]);
            let d = beta * (v[j] - m);
            for i in 0..keys {
                expected[i * values + j] += k[i] * d;
            }
            out[j] = (0..keys).fold(0f32, |acc, i| acc + expected[i * values + j] * q[i]);
        }
        let found = same_everywhere(&state, |isa, state| {
            let mut found = vec![f32::NAN; values];
            delta_step(isa, state, &q, &k, &v, beta, decay, &mut found);
            assert_eq!(bits(&found), bits(&out), "{isa}");
        });
        prop_assert_eq!(bits(&found), bits(&expected));
    }

    #[test]
    fn the_convolution_is_the_definition(channels in 1usize..60, taps in 1usize..6, seed: u64) {
        let mut random = Random(seed);
        let mut vector = |len: usize| -> Vec<f32> { (0..len).map(|_| random.signed()).collect() };
        let (weights, history, current) = (vector(channels * taps), vector(channels * (taps - 1)), vector(channels));
        let expected: Vec<f32> = (0..channels)
            .map(|c| {
                (0..taps).fold(0f32, |acc, t| {
                    let x = if t + 1 == taps { current[c] } else { history[t * channels + c] };
                    acc + weights[c * taps + t] * x
                })
            })
            .collect();
        let found = same_everywhere(&current, |isa, out| convolve(isa, &weights, &history, &current, out));
        prop_assert_eq!(bits(&found), bits(&expected));
    }

    #[test]
    fn quantised_rows_are_the_definition(x in finite_floats(256..257), scale in prop::sample::select(vec![1f32, 1e-31, 1e-20, 1e10])) {
        let x: Vec<f32> = x.iter().map(|x| x * scale).filter(|x| x.is_finite()).collect();
        let x: Vec<f32> = x.iter().copied().cycle().take(256).collect();
        for format in [RowFormat::Q8, RowFormat::Q8K] {
            let mut row = vec![0xaa; format.row_bytes(256).unwrap()];
            quantise_row(&x, format, &mut row).unwrap();
            check_rows(format, 256, &row, 1).unwrap();
            for (block, values) in row.chunks_exact(format.block_bytes()).zip(x.chunks_exact(format.block_len())) {
                let amax = values.iter().fold(0f32, |amax, x| amax.max(x.abs()));
                let d = if amax < 1e-30 { 0.0 } else { amax / 127.0 };
                prop_assert_eq!(f32::from_le_bytes(block[..4].try_into().unwrap()).to_bits(), d.to_bits());
                for (quant, x) in block[4..].iter().zip(values) {
                    let expected = if amax < 1e-30 { 0.0 } else { (x * (127.0 / amax)).round_ties_even() };
                    prop_assert_eq!(f32::from(*quant as i8), expected);
                    prop_assert!(expected.abs() <= 127.0);
                }
            }
        }
    }
}

#[test]
fn a_row_with_nan_or_infinity_is_refused() {
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 31, 255, 511] {
            let mut row = vec![0.5f32; 512];
            row[at] = poison;
            for format in RowFormat::ALL {
                let mut out = vec![0; format.row_bytes(512).unwrap()];
                assert_eq!(quantise_row(&row, format, &mut out), Err(NotFinite), "{format} {at}");
            }
        }
    }
}

#[test]
fn foreign_rows_are_checked() {
    let row = |format: RowFormat| {
        let mut bytes = vec![0; format.row_bytes(512).unwrap() * 2];
        for row in bytes.chunks_exact_mut(format.row_bytes(512).unwrap()) {
            quantise_row(&[0.25; 512], format, row).unwrap();
        }
        bytes
    };
    for format in RowFormat::ALL {
        let good = row(format);
        assert_eq!(check_rows(format, 512, &good, 2), Ok(()));
        assert!(matches!(
            check_rows(format, 512, &good, 3),
            Err(RowsError::WrongLength { expected: Some(_), .. })
        ));
        assert!(matches!(check_rows(format, 512, &good[1..], 2), Err(RowsError::WrongLength { .. })));
        assert!(matches!(
            check_rows(format, 512, &good, usize::MAX),
            Err(RowsError::WrongLength { expected: None, .. })
        ));
        assert_eq!(check_rows(format, 512, &[], 0), Ok(()));
    }
    assert!(matches!(
        check_rows(RowFormat::Q8, 33, &[0; 36], 1),
        Err(RowsError::WrongLength { expected: None, found: 36 })
    ));
    for (format, at) in [(RowFormat::Q8, 36 * 20), (RowFormat::Q8K, 260 * 3)] {
        let block = at / format.block_bytes();
        for scale in [f32::NAN, f32::INFINITY, -1.0, -0.0] {
            let mut bytes = row(format);
            bytes[at..at + 4].copy_from_slice(&scale.to_le_bytes());
            assert_eq!(check_rows(format, 512, &bytes, 2), Err(RowsError::Scale { block }), "{scale}");
        }
        let mut bytes = row(format);
        bytes[at + 4 + 9] = 0x80;
        let value = block * format.block_len() + 9;
        assert_eq!(check_rows(format, 512, &bytes, 2), Err(RowsError::Value { value }));
    }
    let mut bytes = row(RowFormat::Float32);
    bytes[4 * 700..4 * 701].copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert_eq!(check_rows(RowFormat::Float32, 512, &bytes, 2), Err(RowsError::Value { value: 700 }));
}

#[test]
fn rope_turns_pairs() {
    let (mut cosines, mut sines) = ([0f32; 4], [0f32; 4]);
    rope_table(10_000.0, 3, &mut cosines, &mut sines);
    for i in 0..4 {
        let angle = 3.0 * 10_000f64.powf(-2.0 * i as f64 / 8.0);
        assert!((f64::from(cosines[i]) - angle.cos()).abs() < 1e-7);
        assert!((f64::from(sines[i]) - angle.sin()).abs() < 1e-7);
    }
    let mut head: Vec<f32> = (1..=10).map(|x| x as f32).collect();
    let before = head.clone();
    rotate(&mut head, &cosines, &sines);
    for i in 0..4 {
        let (a, b) = (before[i], before[i + 4]);
        assert_eq!(head[i].to_bits(), (a * cosines[i] - b * sines[i]).to_bits());
        assert_eq!(head[i + 4].to_bits(), (b * cosines[i] + a * sines[i]).to_bits());
    }
    assert_eq!(head[8..], before[8..]);
    rope_table(1e7, 0, &mut cosines, &mut sines);
    assert_eq!((cosines, sines), ([1.0; 4], [0.0; 4]));
}
