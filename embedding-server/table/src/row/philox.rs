//! Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1,
//! 2, 3" (SC 2011). It returns 128 random bits as a pure function of a 128-bit counter and a 64-bit key.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// The golden ratio and √3 − 1: the paper's Weyl increments of the key.
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four random words for one counter under one key.
#[inline]
pub(crate) fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 1..ROUNDS {
        counter = round(counter, key);
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    round(counter, key)
}

#[inline]
fn round(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
    let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
    [high(second) ^ counter[1] ^ key[0], second as u32, high(first) ^ counter[3] ^ key[1], first as u32]
}

#[inline]
fn high(product: u64) -> u32 {
    (product >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The three `philox4x32 10` lines of Random123's `kat_vectors`.
    #[test]
    fn known_answers_of_random123() {
        let known = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, answer) in known {
            assert_eq!(philox4x32(counter, key), answer, "counter {counter:x?} key {key:x?}");
        }
    }
}
