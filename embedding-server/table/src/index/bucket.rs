//! One cache line of the index: seven entries and their fingerprints.
//!
//! `[fingerprints and, in the last byte, how many entries] [entry; 7]`. A key is taken apart so:
//!
//! ```text
//! bits 63 … 32                  31 … 24        23 … 0
//! home, then what is left of it | fingerprint | lowest bits, which choose the stripe
//! ```
//!
//! and an entry is `[as many of the upper half's lowest bits as there is room for | lowest bits | slot]`.

/// Entries of a bucket.
pub(super) const WAYS: usize = 7;
/// Words of 64 bits in a bucket.
pub(super) const WORDS: usize = 8;

/// Bits of a key below the fingerprint.
const LOW_BITS: u32 = 24;
const LOW_MASK: u64 = (1 << LOW_BITS) - 1;
/// One in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Words as memory has them; the low half of each pair comes first.
pub(super) type Bucket = [[u32; 2]; WORDS];

/// Entries in use.
#[inline(always)]
pub(super) fn count(bucket: &Bucket) -> usize {
    (bucket[0][1] >> 24) as usize
}

/// Looks at the entries whose fingerprint is the key's. A byte that equals is the lowest to borrow when one is taken
/// from each byte of the difference; above it others may seem to, which is why entries are compared too.
#[inline(always)]
pub(super) fn way_of(bucket: &Bucket, key: u64, slot_bits: u32) -> Option<usize> {
    let difference = word(bucket, 0) ^ fingerprint(key).wrapping_mul(ONES);
    let used = (1_u64 << (8 * count(bucket))) - 1;
    let mut equal = difference.wrapping_sub(ONES) & !difference & (ONES << 7) & used;
    let rest = rest_of(key, slot_bits);
    while equal != 0 {
        let way = (equal.trailing_zeros() / 8) as usize;
        if (word(bucket, 1 + way) ^ rest) >> slot_bits == 0 {
            return Some(way);
        }
        equal &= equal - 1;
    }
    None
}

#[inline(always)]
pub(super) fn slot_of(bucket: &Bucket, way: usize, slot_bits: u32) -> u32 {
    (word(bucket, 1 + way) & ((1 << slot_bits) - 1)) as u32
}

/// Key and slot of an entry whose key has an upper half of at least `lowest`, and so little more that an entry tells
/// all of them apart.
pub(super) fn take_apart(bucket: &Bucket, way: usize, slot_bits: u32, lowest: u32) -> (u64, u32) {
    let rest = word(bucket, 1 + way) >> slot_bits;
    let mask = u32::MAX >> 32_u32.saturating_sub(u64::BITS - slot_bits - LOW_BITS);
    let high = lowest.wrapping_add(((rest >> LOW_BITS) as u32).wrapping_sub(lowest) & mask);
    let fingerprint = word(bucket, 0) >> (8 * way) & 0xff;
    (u64::from(high) << 32 | fingerprint << LOW_BITS | rest & LOW_MASK, slot_of(bucket, way, slot_bits))
}

/// Adds an entry to a bucket with room.
pub(super) fn fill(bucket: &mut Bucket, key: u64, slot: u32, slot_bits: u32) {
    let way = count(bucket);
    set_word(bucket, 1 + way, rest_of(key, slot_bits) | u64::from(slot));
    let head = word(bucket, 0) & !(0xff << (8 * way)) | fingerprint(key) << (8 * way);
    set_word(bucket, 0, head + (1 << 56));
}

/// Moves the last entry to `way`.
pub(super) fn swap_remove(bucket: &mut Bucket, way: usize) {
    let (head, last) = (word(bucket, 0), count(bucket) - 1);
    let moved = head >> (8 * last) & 0xff;
    set_word(bucket, 1 + way, word(bucket, 1 + last));
    set_word(bucket, 0, (head & !(0xff << (8 * way)) | moved << (8 * way)) - (1 << 56));
}

/// The lowest bits choose the stripe and are all alike; the highest choose the home.
#[inline(always)]
fn fingerprint(key: u64) -> u64 {
    key >> LOW_BITS & 0xff
}

/// A key's part of its entry: all of its lower half that is not the fingerprint, below as much of its upper half as
/// there is room for.
#[inline(always)]
fn rest_of(key: u64, slot_bits: u32) -> u64 {
    (key >> 32 << LOW_BITS | key & LOW_MASK) << slot_bits
}

#[inline(always)]
fn word(bucket: &Bucket, index: usize) -> u64 {
    let [low, high] = bucket[index];
    u64::from(low) | u64::from(high) << 32
}

fn set_word(bucket: &mut Bucket, index: usize, word: u64) {
    bucket[index] = [word as u32, (word >> 32) as u32];
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Entries of keys whose upper halves lie within what an entry tells apart, in and out.
        #[test]
        fn what_is_put_in_is_found_and_taken_apart(
            keys in prop::collection::hash_set((0_u32..1 << 20, any::<u32>()), 0..=WAYS),
            lowest: u32,
            slot_bits in 4_u32..20,
            removed in 0..WAYS,
        ) {
            let key = |(high, low): &(u32, u32)| u64::from(lowest.wrapping_add(*high)) << 32 | u64::from(*low);
            let mut keys: Vec<u64> = keys.iter().map(key).collect();
            let mut bucket = [[0; 2]; WORDS];
            for (slot, key) in keys.iter().enumerate() {
                prop_assert_eq!(way_of(&bucket, *key, slot_bits), None);
                fill(&mut bucket, *key, slot as u32, slot_bits);
            }
            let mut slots: Vec<u32> = (0..keys.len() as u32).collect();
            if removed < keys.len() {
                swap_remove(&mut bucket, removed);
                prop_assert_eq!(way_of(&bucket, keys.swap_remove(removed), slot_bits), None);
                slots.swap_remove(removed);
            }
            prop_assert_eq!(count(&bucket), keys.len());
            for way in 0..keys.len() {
                prop_assert_eq!(way_of(&bucket, keys[way], slot_bits), Some(way));
                prop_assert_eq!(take_apart(&bucket, way, slot_bits, lowest), (keys[way], slots[way]));
            }
        }
    }
}
