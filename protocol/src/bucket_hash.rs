//! The hash behind a bucket: xxh3 (64 bits) of the 12 bytes of table and id.
//!
//! It is written out for this one length. The general function chooses by length and reads its secret at each call. Here both
//! are constants, and the hash is two multiplications. The algorithm is that of the xxHash specification for 9 to 16 bytes:
//!
//! ```text
//!  byte    0         4         8        12
//!          │  table  │         id        │
//!          └────── first ──────┘                two words of 8 bytes
//!                    └────── last ───────┘      that share four bytes
//! ```

/// Pinned: it decides where a row lives and in which checkpoint file (invariant PL-1). Changing it changes
/// [`crate::PROTOCOL_VERSION`].
const SEED: u64 = 0x5a61_6772_6f73_0001;
/// Bytes 24 to 55 of xxh3's default secret, as little-endian words.
const SECRET: [u64; 4] = [0x1f67_b3b7_a4a4_4072, 0x78e5_c0cc_4ee6_79cb, 0x2172_ffcc_7dd0_5a82, 0x8e24_43f7_7446_08b8];
const OF_FIRST: u64 = (SECRET[0] ^ SECRET[1]).wrapping_add(SEED);
const OF_LAST: u64 = (SECRET[2] ^ SECRET[3]).wrapping_sub(SEED);
const BYTES: u64 = 12;
const FINAL_FACTOR: u64 = 0x1656_6791_9e37_79f9;

/// xxh3 of `table` and `id`, both little-endian, under the pinned seed.
#[inline]
pub(crate) fn bucket_hash(table: u32, id: u64) -> u64 {
    let first = (u64::from(table) | id << 32) ^ OF_FIRST;
    let last = id ^ OF_LAST;
    let product = u128::from(first) * u128::from(last);
    let folded = product as u64 ^ (product >> 64) as u64;
    let sum = BYTES.wrapping_add(first.swap_bytes()).wrapping_add(last).wrapping_add(folded);
    let mixed = (sum ^ (sum >> 37)).wrapping_mul(FINAL_FACTOR);
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64_with_seed;

    use super::*;

    proptest! {
        /// Invariant PL-1: another implementation of xxh3 finds the same.
        #[test]
        fn it_is_xxh3_of_table_and_id(table: u32, id: u64) {
            let bytes = [&table.to_le_bytes()[..], &id.to_le_bytes()].concat();
            prop_assert_eq!(bucket_hash(table, id), xxh3_64_with_seed(&bytes, SEED));
        }
    }
}
