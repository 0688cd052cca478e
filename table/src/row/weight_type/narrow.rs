//! Conversion between f32 and the two 16-bit formats. The code uses plain integer and float operations, so compilers
//! vectorise it.

/// All bits but the sign.
const MAGNITUDE: u32 = 0x7FFF_FFFF;
const INFINITE: u32 = 0x7F80_0000;
/// Largest finite bfloat16.
const BF16_LARGEST: u32 = 0x7F7F;
/// Largest finite f16, as f16 and as f32, and the f16 infinity.
const F16_LARGEST: u32 = 0x7BFF;
const F16_LARGEST_VALUE: f32 = 65504.0;
const F16_INFINITE: u32 = 0x7C00;
/// Numbers from here on are nearer to 2¹⁶, which f16 does not have, than to its largest.
pub(super) const F16_BEYOND: f32 = 65520.0;
/// The same of bfloat16 and 2¹²⁸.
pub(super) const BF16_BEYOND: f32 = f32::from_bits(BF16_LARGEST << 16 | 0x8000);
/// 2⁻¹⁴ in f32. Below it, f16 numbers are 2⁻²⁴ apart.
const F16_NORMAL: u32 = 113 << 23;
/// Difference between the exponent biases of f32 and f16.
const F16_BIAS: u32 = 127 - 15;
/// Fraction bits of f32 that f16 lacks.
const F16_TRUNCATED: u32 = 13;
/// A number below 2⁻¹⁴ is at most 2¹⁰ multiples of 2⁻²⁴. This many bits of fraction fit next to them into 31 bits.
const F16_FRACTION: u32 = 20;

/// Widens `from` into `to`, which has the same length.
#[inline(always)]
pub(super) fn decode(from: &[u16], to: &mut [f32], widen: impl Fn(u16) -> f32) {
    let from = &from[..to.len()];
    for index in 0..to.len() {
        to[index] = widen(from[index]);
    }
}

/// Narrows `from` into `to`, which has the same length. `narrow` gets the position and the value. The loop is plain:
/// with vectors of known length, compilers turn the conditions in `narrow` into branches.
#[inline(always)]
pub(super) fn encode(from: &[f32], to: &mut [u16], narrow: impl Fn(u32, f32) -> u16) {
    let from = &from[..to.len()];
    for index in 0..to.len() {
        to[index] = narrow(index as u32, from[index]);
    }
}

#[inline(always)]
pub(super) fn bf16_to_f32(value: u16) -> f32 {
    f32::from_bits(u32::from(value) << 16)
}

/// Shifts the bits into place. Then it corrects the exponent by an exact multiplication, which also works for subnormal
/// values.
#[inline(always)]
pub(super) fn f16_to_f32(value: u16) -> f32 {
    const MEND: f32 = f32::from_bits((127 + F16_BIAS) << 23);
    let magnitude = u32::from(value) & 0x7FFF;
    let finite = f32::from_bits(magnitude << F16_TRUNCATED) * MEND;
    let bits = if magnitude >= F16_INFINITE { magnitude << F16_TRUNCATED | INFINITE } else { finite.to_bits() };
    f32::from_bits(bits | (u32::from(value) & 0x8000) << 16)
}

pub(super) fn nearest_bf16(value: f32) -> u16 {
    if value.is_nan() {
        return half::bf16::NAN.to_bits();
    }
    let largest = half::bf16::MAX.to_f32();
    half::bf16::from_f32(if value.is_finite() { value.clamp(-largest, largest) } else { value }).to_bits()
}

pub(super) fn nearest_f16(value: f32) -> u16 {
    if value.is_nan() {
        return half::f16::NAN.to_bits();
    }
    let finite = value.clamp(-F16_LARGEST_VALUE, F16_LARGEST_VALUE);
    half::f16::from_f32(if value.is_finite() { finite } else { value }).to_bits()
}

/// Adds random bits to the bits that are cut off. The larger the cut-off part is, the likelier the carry rounds away
/// from zero.
#[inline(always)]
pub(super) fn stochastic_bf16(value: f32, random: u32) -> u16 {
    let (bits, magnitude) = (value.to_bits(), value.to_bits() & MAGNITUDE);
    let rounded = (magnitude.wrapping_add(random & 0xFFFF) >> 16).min(BF16_LARGEST);
    // A NaN stays a NaN, even if only its low bits are set.
    let special = magnitude >> 16 | u32::from(magnitude > INFINITE) << 6;
    let narrow = if magnitude >= INFINITE { special } else { rounded };
    (narrow | (bits & !MAGNITUDE) >> 16) as u16
}

/// As [`stochastic_bf16`]. Below 2⁻¹⁴, f16 numbers are 2⁻²⁴ apart, and the value is counted in multiples of 2⁻²⁴. Less
/// than 2⁻²⁰ of one multiple counts as zero.
#[inline(always)]
pub(super) fn stochastic_f16(value: f32, random: u32) -> u16 {
    let (bits, magnitude) = (value.to_bits(), value.to_bits() & MAGNITUDE);
    let normal =
        (magnitude.wrapping_add(random & ((1 << F16_TRUNCATED) - 1)) >> F16_TRUNCATED).wrapping_sub(F16_BIAS << 10);
    // The significand, shifted so that its last bit is 2⁻⁴⁴ at the largest exponent below 2⁻¹⁴.
    let significand = (magnitude & 0x7F_FFFF | 0x80_0000) << 6;
    let steps = significand >> (112_u32.saturating_sub(magnitude >> 23)).min(31);
    let small = (steps + (random & ((1 << F16_FRACTION) - 1))) >> F16_FRACTION;
    let rounded = if magnitude < F16_NORMAL { small } else { normal.min(F16_LARGEST) };
    let special = F16_INFINITE | u32::from(magnitude > INFINITE) << 9;
    let narrow = if magnitude >= INFINITE { special } else { rounded };
    (narrow | (bits & !MAGNITUDE) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Format {
        round: fn(f32, u32) -> u16,
        nearest: fn(f32) -> u16,
        widen: fn(u16) -> f32,
        largest: f32,
        /// Smaller magnitudes become zero.
        least: f32,
    }

    const FORMATS: [Format; 2] = [
        Format {
            round: stochastic_bf16,
            nearest: nearest_bf16,
            widen: bf16_to_f32,
            largest: f32::from_bits(BF16_LARGEST << 16),
            least: 0.0,
        },
        Format {
            round: stochastic_f16,
            nearest: nearest_f16,
            widen: f16_to_f32,
            largest: F16_LARGEST_VALUE,
            least: 1.0 / (1_u64 << (24 + F16_FRACTION)) as f32,
        },
    ];

    /// Finite numbers of every size.
    fn finite() -> impl Strategy<Value = f32> {
        any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite())
    }

    #[test]
    fn every_narrow_number_is_widened_as_the_standard_says() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{bits:x}: {found} {expected}");
            let (found, expected) = (bf16_to_f32(bits), half::bf16::from_bits(bits).to_f32());
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{bits:x}: {found} {expected}");
        }
    }

    /// A weight that is not updated must keep its value.
    #[test]
    fn every_narrow_number_rounds_to_itself_for_any_random_word() {
        for bits in 0..=u16::MAX {
            for random in [0, 1, 0x1FFF, 0xFFFF, 0x9E37_79B9, u32::MAX] {
                for Format { round, widen, .. } in FORMATS {
                    let value = widen(bits);
                    let back = round(value, random);
                    assert!(back == bits || widen(back).is_nan() && value.is_nan(), "{bits:x} {random:x}: {back:x}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_result_is_a_neighbour_and_finite_stays_finite(value in finite(), random: u32) {
            for Format { round, widen, largest, least, .. } in FORMATS {
                let found = widen(round(value, random));
                prop_assert!(found.is_finite() && found.abs() <= largest, "{value} {found}");
                let (low, high) = (widen(round(value, 0)), widen(round(value, u32::MAX)));
                prop_assert!(found == low || found == high, "{value}: {found} of {low}, {high}");
                let inside = low.abs() <= value.abs() && value.abs() <= high.abs();
                prop_assert!(inside || value.abs() > largest || value.abs() < least, "{value} between {low} and {high}");
            }
        }

        /// The mean over all random words is the value itself.
        #[test]
        fn rounding_is_right_on_average(value in prop_oneof![-2.0_f32..2.0, -1e-4_f32..1e-4, -3e-7_f32..3e-7]) {
            let mean = |round: fn(f32, u32) -> u16, widen: fn(u16) -> f32| {
                let sum: f64 = (0..1 << 12).map(|random| f64::from(widen(round(value, random << 8 | 0x80)))).sum();
                sum / f64::from(1 << 12)
            };
            let exponent = value.abs().log2().floor() as i32;
            // Testing all random words would take too long. The test runs through the upper 8 of the 16 bits that
            // bfloat16 uses, the upper 5 of the 13 bits that f16 uses, and 12 of its 20 bits below the normal range.
            let (bf16, f16) = (mean(stochastic_bf16, bf16_to_f32), mean(stochastic_f16, f16_to_f32));
            let error = (bf16 - f64::from(value)).abs();
            prop_assert!(error <= 2.0_f64.powi(exponent - 7) / 256.0, "bf16: {value} {bf16}");
            let error = (f16 - f64::from(value)).abs();
            prop_assert!(error <= 2.0_f64.powi((exponent - 10).max(-24)) / 32.0, "f16: {value} {f16}");
        }

        #[test]
        fn nearest_is_nearest_and_finite(value in finite()) {
            for Format { round, nearest, widen, largest, .. } in FORMATS {
                let nearest = widen(nearest(value));
                let error = |other: f32| (f64::from(other) - f64::from(value)).abs();
                let best = error(widen(round(value, 0))).min(error(widen(round(value, u32::MAX))));
                prop_assert!(nearest.is_finite() && nearest.abs() <= largest);
                prop_assert!(error(nearest) <= best, "{value} {nearest}");
            }
        }
    }

    #[test]
    fn not_a_number_stays_not_a_number() {
        for Format { round, nearest, widen, largest, .. } in FORMATS {
            for random in [0, u32::MAX] {
                assert!(widen(round(f32::from_bits(0x7F80_0001), random)).is_nan());
                assert!(widen(round(f32::from_bits(0xFFFF_FFFF), random)).is_nan());
                assert_eq!(widen(round(f32::NEG_INFINITY, random)), f32::NEG_INFINITY);
                assert_eq!(widen(round(f32::MAX, random)), largest);
            }
            assert!(widen(nearest(f32::NAN)).is_nan());
            assert_eq!(widen(nearest(f32::INFINITY)), f32::INFINITY);
        }
    }
}
