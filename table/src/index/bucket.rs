//! One cache line of the index: seven entries and their fingerprints.
//!
//! The layout is `[seven fingerprints, then the number of entries, one byte each] [entry; 7]`. A key is divided as
//! follows:
//!
//! ```text
//! bits 63 … 32                  31 … 24        23 … 0
//! upper half: chooses the home   | fingerprint | low bits: choose the stripe
//! ```
//!
//! An entry is `[low bits of the upper half, as many as fit | low bits | slot]`.

pub(super) const WAYS: usize = 7;
/// Words of 64 bits in a bucket.
pub(super) const WORDS: usize = 8;

/// Bits of a key below the fingerprint.
const LOW_BITS: u32 = 24;
const LOW_MASK: u64 = (1 << LOW_BITS) - 1;
/// The value 1 in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// The words of a bucket in memory order. The low half of each word comes first.
pub(super) type Bucket = [[u32; 2]; WORDS];

/// Number of used entries.
#[inline(always)]
pub(super) fn count(bucket: &Bucket) -> usize {
    (bucket[0][1] >> 24) as usize
}

/// Returns the way of a key's entry. It compares all fingerprints in one operation, then the entries whose fingerprint
/// seems equal. The lowest way reported by this operation is right. A higher one may be wrong, because a subtraction
/// borrows from the byte above it.
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

/// Key and slot of an entry. `lowest` is the smallest possible upper half of the key. The stored bits of the upper half
/// are enough to tell all possible keys apart.
pub(super) fn take_apart(bucket: &Bucket, way: usize, slot_bits: u32, lowest: u32) -> (u64, u32) {
    let rest = word(bucket, 1 + way) >> slot_bits;
    let mask = u32::MAX >> 32_u32.saturating_sub(u64::BITS - slot_bits - LOW_BITS);
    let high = lowest.wrapping_add(((rest >> LOW_BITS) as u32).wrapping_sub(lowest) & mask);
    let fingerprint = word(bucket, 0) >> (8 * way) & 0xff;
    (u64::from(high) << 32 | fingerprint << LOW_BITS | rest & LOW_MASK, slot_of(bucket, way, slot_bits))
}

/// Adds an entry to a bucket that has room.
pub(super) fn fill(bucket: &mut Bucket, key: u64, slot: u32, slot_bits: u32) {
    let way = count(bucket);
    set_word(bucket, 1 + way, rest_of(key, slot_bits) | u64::from(slot));
    let head = word(bucket, 0) & !(0xff << (8 * way)) | fingerprint(key) << (8 * way);
    set_word(bucket, 0, head + (1 << 56));
}

/// Removes the entry at `way`: the last entry takes its place.
pub(super) fn swap_remove(bucket: &mut Bucket, way: usize) {
    let (head, last) = (word(bucket, 0), count(bucket) - 1);
    let moved = head >> (8 * last) & 0xff;
    set_word(bucket, 1 + way, word(bucket, 1 + last));
    set_word(bucket, 0, (head & !(0xff << (8 * way)) | moved << (8 * way)) - (1 << 56));
}

/// Eight bits from the middle of the key. The lowest bits are equal within a stripe, and the highest bits choose the
/// home.
#[inline(always)]
fn fingerprint(key: u64) -> u64 {
    key >> LOW_BITS & 0xff
}

/// The part of a key that its entry stores: the low bits, and above them as many bits of the upper half as fit.
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
        /// Entries come back whole if the upper halves of their keys differ in the stored bits.
        #[test]
        fn entries_are_found_and_read_whole(
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
