//! The index of a stripe: it maps a key to a slot number, at 9 bytes per entry.
//!
//! A bucket is one cache line with seven entries. The order of keys is divided evenly among the buckets. The bucket of
//! a key in this order is its home. A full bucket overflows into the next one:
//!
//! ```text
//! bucket    6                7                8                9
//!         │ a a a a · · · │ b b b b b b b │ b c c · · · · │ d · · · · · · │
//!                                           ▲ home 7, which is full
//! ```
//!
//! Invariant: every bucket between a key's home and the bucket it lies in is full. A search therefore ends at the first
//! bucket with room. When a key is removed, a key that overflowed past the freed entry moves back into it.
//!
//! A bucket has at most five entries on average. At this load, 19 of 20 searches read one cache line. The index grows
//! by a quarter at a time, so the load stays close to this limit.
//!
//! An entry has two parts: a fingerprint of 8 bits, and 64 bits with the slot and a part of the key. One operation
//! compares all fingerprints of a bucket. The entry does not store the upper bits of the key. They follow from the
//! bucket's position, because a key lies within [`REACH`] buckets of its home (Knuth's quotienting, The Art of Computer
//! Programming 6.4, exercise 13).
//!
//! A key that finds no room within reach goes to an ordered map, the crowd. With evenly spread hashes the crowd is almost
//! empty. Someone who chooses ids that collide makes the crowd longer, and searches slower by the logarithm of its length.

mod bucket;

use std::collections::BTreeMap;
use std::sync::Arc;

use bucket::{Bucket, WAYS, WORDS, count, fill, swap_remove, take_apart};

use crate::machine::memory::{Arena, MemoryBlock};
use crate::machine::prefetch;

/// The index grows when buckets have more entries than this on average.
const FULL: usize = 5;
/// A key lies in one of this many buckets, counted from its home.
const REACH: usize = 12;
/// Buckets of one memory block. All large indexes use blocks of this size, so another stripe can reuse a freed block.
const SEGMENT: usize = 1024;
/// Bytes of a key in the crowd, about.
const CROWD_BYTES: usize = 24;
/// The position of a key that is in the crowd.
const CROWD: usize = usize::MAX;

/// Keys and their slots. The keys must be hashes whose order is random.
#[derive(Debug)]
pub(crate) struct SlotIndex {
    arena: Arc<Arena>,
    segments: Vec<MemoryBlock>,
    buckets: usize,
    slot_bits: u32,
    len: usize,
    crowd: BTreeMap<u64, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexEntry {
    Slot(u32),
    /// The key is absent. The position is where it would be added.
    Nothing(usize),
}

impl SlotIndex {
    pub(crate) fn new(arena: &Arc<Arena>) -> Self {
        Self::sized(arena, 0)
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, key: u64) {
        if let Some(bucket) = self.bucket(self.home(key)) {
            prefetch(bucket);
        }
    }

    /// Returns the slot of a key that lies in its home bucket. Otherwise prefetches the next bucket. Then
    /// [`Self::find`] decides.
    #[inline(always)]
    pub(crate) fn peek(&self, key: u64) -> Option<u32> {
        let home = self.home(key);
        if let Some(bucket) = self.bucket(home)
            && let Some(slot) = self.slot_in(bucket, key)
        {
            return Some(slot);
        }
        if let Some(bucket) = self.bucket(home + 1) {
            prefetch(bucket);
        }
        None
    }

    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> IndexEntry {
        let mut place = self.home(key);
        for _ in 0..REACH.min(self.buckets) {
            let Some(bucket) = self.bucket(place) else { break };
            if let Some(slot) = self.slot_in(bucket, key) {
                return IndexEntry::Slot(slot);
            }
            if count(bucket) < WAYS {
                return IndexEntry::Nothing(place);
            }
            place = self.place_after(place, 1);
        }
        self.find_in_crowd(key)
    }

    /// Adds an absent key. `place` is where the search for the key ended. Slots are numbered from 0, in the order of
    /// their first use.
    pub(crate) fn add(&mut self, key: u64, place: usize, slot: u32) {
        let place = if self.len < FULL * self.buckets { place } else { self.grow(key) };
        self.put(key, place, slot);
        self.len += 1;
    }

    /// Makes room for this many keys in all. An index that gets its keys in the order of their homes needs its size first: in
    /// a small index the first keys would all lie in the first buckets, and most of them in the crowd.
    pub(crate) fn reserve(&mut self, keys: usize) {
        let buckets = keys.div_ceil(FULL);
        let buckets = if buckets > SEGMENT { buckets.next_multiple_of(SEGMENT) } else { buckets };
        if buckets > self.buckets {
            self.resize(buckets);
        }
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<u32> {
        let slot = match self.place_of(key) {
            Some((place, way)) => self.take(place, way).1,
            None => self.crowd.remove(&key)?,
        };
        self.len -= 1;
        Some(slot)
    }

    /// All keys and slots, in arbitrary order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let of_bucket = |place| self.entries(place).map(|(_, key, slot)| (key, slot));
        (0..self.buckets).flat_map(of_bucket).chain(self.crowd.iter().map(|(key, slot)| (*key, *slot)))
    }

    /// Appends the keys and slots of whole buckets, starting with bucket `from`, until it has appended at least
    /// `enough`. Returns the bucket to continue with, or `None` at the end.
    pub(crate) fn scan(&self, from: usize, enough: usize, into: &mut Vec<(u64, u32)>) -> Option<usize> {
        let enough = into.len().saturating_add(enough);
        for place in from..self.buckets {
            if into.len() >= enough {
                return Some(place);
            }
            into.extend(self.entries(place).map(|(_, key, slot)| (key, slot)));
        }
        into.extend(self.crowd.iter().map(|(key, slot)| (*key, *slot)));
        None
    }

    /// Bytes that the index would grow by if `keys` more keys were added.
    pub(crate) fn growth_bytes(&self, keys: usize) -> usize {
        let mut buckets = self.buckets;
        while self.len + keys > FULL * buckets {
            buckets = wider(buckets);
        }
        segment_bytes(buckets) - segment_bytes(self.buckets)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// An empty index with memory from the same arena.
    pub(crate) fn empty_copy(&self) -> Self {
        Self::new(&self.arena)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        segment_bytes(self.buckets) + self.crowd.len() * CROWD_BYTES
    }

    fn sized(arena: &Arc<Arena>, buckets: usize) -> Self {
        let words = buckets.min(SEGMENT) * 2 * WORDS;
        let segments = (0..buckets.div_ceil(SEGMENT)).map(|_| arena.take_block(words)).collect();
        // Slots are numbered below 8 × the largest number of buckets so far.
        let slot_bits = 4 + buckets.max(1).ilog2();
        Self { arena: Arc::clone(arena), segments, buckets, slot_bits, len: 0, crowd: BTreeMap::new() }
    }

    /// Grows the index. Returns the position for the absent `key` in the larger index.
    #[cold]
    fn grow(&mut self, key: u64) -> usize {
        self.resize(wider(self.buckets));
        self.room_for(key)
    }

    fn resize(&mut self, buckets: usize) {
        let wider = Self { len: self.len, ..Self::sized(&self.arena, buckets) };
        let old = std::mem::replace(self, wider);
        for (key, slot) in old.iter() {
            let place = self.room_for(key);
            self.put(key, place, slot);
        }
    }

    fn room_for(&self, key: u64) -> usize {
        let IndexEntry::Nothing(place) = self.find(key) else { unreachable!("a key is added once") };
        place
    }

    #[cold]
    fn find_in_crowd(&self, key: u64) -> IndexEntry {
        self.crowd.get(&key).map_or(IndexEntry::Nothing(CROWD), |slot| IndexEntry::Slot(*slot))
    }

    /// Bucket and way of a key, unless it is absent or in the crowd.
    fn place_of(&self, key: u64) -> Option<(usize, usize)> {
        (0..REACH.min(self.buckets)).find_map(|steps| {
            let place = self.place_after(self.home(key), steps);
            let way = bucket::way_of(self.bucket(place)?, key, self.slot_bits)?;
            Some((place, way))
        })
    }

    fn put(&mut self, key: u64, place: usize, slot: u32) {
        assert!(u64::from(slot) >> self.slot_bits == 0, "slots are numbered in the order of their first use");
        let slot_bits = self.slot_bits;
        match self.bucket_mut(place) {
            Some(bucket) => fill(bucket, key, slot, slot_bits),
            None => _ = self.crowd.insert(key, slot),
        }
    }

    /// Removes an entry from its bucket, and moves back each key that had overflowed because of it.
    fn take(&mut self, mut place: usize, mut way: usize) -> (u64, u32) {
        let taken = self.entry(place, way);
        while let Some(bucket) = self.bucket_mut(place) {
            let was_full = count(bucket) == WAYS;
            swap_remove(bucket, way);
            if !was_full {
                break;
            }
            let Some((next, next_way)) = self.overflowed_past(place) else {
                self.admit_from_crowd(place);
                break;
            };
            let (key, slot) = self.entry(next, next_way);
            self.put(key, place, slot);
            (place, way) = (next, next_way);
        }
        taken
    }

    /// Bucket and way of the nearest key after `hole` that was put past `hole` because `hole` was full.
    fn overflowed_past(&self, hole: usize) -> Option<(usize, usize)> {
        for steps in 1..REACH.min(self.buckets) {
            let place = self.place_after(hole, steps);
            let passed = |key: u64| self.distance(self.home(key), place) >= steps;
            if let Some((way, ..)) = self.entries(place).find(|(_, key, _)| passed(*key)) {
                return Some((place, way));
            }
            if self.bucket(place).is_none_or(|bucket| count(bucket) < WAYS) {
                return None;
            }
        }
        None
    }

    /// Moves one key of the crowd to the free entry of bucket `place`, if a key has `place` in reach.
    fn admit_from_crowd(&mut self, place: usize) {
        // Keys are in the order of their homes: if any key reaches, the first one from the farthest home on does, or the first of all.
        let first =
            self.crowd.range(u64::from(self.lowest(place)) << 32..).next().or_else(|| self.crowd.first_key_value());
        let Some(key) = first.map(|(key, _)| *key).filter(|key| self.distance(self.home(*key), place) < REACH) else {
            return;
        };
        if let Some(slot) = self.crowd.remove(&key) {
            self.put(key, place, slot);
        }
    }

    fn entries(&self, place: usize) -> impl Iterator<Item = (usize, u64, u32)> {
        let ways = self.bucket(place).map_or(0, count);
        (0..ways).map(move |way| {
            let (key, slot) = self.entry(place, way);
            (way, key, slot)
        })
    }

    /// Key and slot of a used entry. The upper bits of the key follow from the bucket's position.
    fn entry(&self, place: usize, way: usize) -> (u64, u32) {
        let bucket = self.bucket(place).map_or([[0; 2]; WORDS], |bucket| *bucket);
        // The keys that can lie here differ in the stored bits.
        take_apart(&bucket, way, self.slot_bits, self.lowest(place))
    }

    /// The smallest upper half of any key that can lie in a bucket.
    fn lowest(&self, place: usize) -> u32 {
        let lowest_place = self.place_after(place, self.buckets - (REACH - 1).min(self.buckets - 1));
        (((lowest_place as u64) << 32).div_ceil(self.buckets as u64)) as u32
    }

    #[inline(always)]
    fn slot_in(&self, bucket: &Bucket, key: u64) -> Option<u32> {
        let way = bucket::way_of(bucket, key, self.slot_bits)?;
        Some(bucket::slot_of(bucket, way, self.slot_bits))
    }

    /// Multiply-shift over the upper half of the key. It works for any number of buckets.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        ((key >> 32).wrapping_mul(self.buckets as u64) >> 32) as usize
    }

    /// The bucket `steps` after `place`. The first bucket follows the last one. `steps` is at most the number of
    /// buckets.
    #[inline(always)]
    fn place_after(&self, place: usize, steps: usize) -> usize {
        let sum = place + steps;
        if sum < self.buckets { sum } else { sum - self.buckets }
    }

    /// Steps from bucket `from` to bucket `to`, around the end if necessary.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.buckets - from }
    }

    #[inline(always)]
    fn bucket(&self, place: usize) -> Option<&Bucket> {
        let words = self.segments.get(place / SEGMENT)?.words();
        words.as_chunks().0.as_chunks().0.get(place % SEGMENT)
    }

    #[inline(always)]
    fn bucket_mut(&mut self, place: usize) -> Option<&mut Bucket> {
        let words = self.segments.get_mut(place / SEGMENT)?.words_mut();
        words.as_chunks_mut().0.as_chunks_mut().0.get_mut(place % SEGMENT)
    }
}

/// The number of buckets after growing. An index of more than one segment has whole segments.
fn wider(buckets: usize) -> usize {
    let more = buckets + buckets / 4 + 1;
    if more > SEGMENT { more.next_multiple_of(SEGMENT) } else { more }
}

fn segment_bytes(buckets: usize) -> usize {
    buckets * 2 * WORDS * size_of::<u32>() + buckets.div_ceil(SEGMENT) * size_of::<MemoryBlock>()
}

#[cfg(test)]
mod tests;
