//! The index of a stripe: key → slot number, at 12 bytes an entry.
//!
//! Five entries fill a cache line and make a bucket. A key's home is the bucket at its place in the order of all keys;
//! a full bucket overflows into the next. At four entries in five at most, one line answers nine of ten questions.
//! Growth by a quarter keeps the index near that, and keeps the order of buckets, so that growing reads the old memory
//! and writes the new from one end to the other. Rows are never removed one by one, so a search ends at a bucket with
//! room.

use crate::memory::{Memory, Pages};
use crate::prefetch::prefetch;

/// Entries of a bucket.
const WAYS: usize = 5;
/// Words of a bucket: `[low half of key; 5] [high half; 5] [slot; 5] [entries]`, one cache line.
const WORDS: usize = 16;
const HIGH: usize = WAYS;
const SLOT: usize = 2 * WAYS;
const COUNT: usize = 3 * WAYS;
/// Entries for each bucket, on average, above which the index grows.
const FULL: usize = 4;

type Bucket = [u32; WORDS];

/// Keys, hashed so well that their order is random, and their slots.
#[derive(Debug)]
pub(crate) struct Index {
    memory: Memory,
    len: usize,
}

/// Where a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// At the key's entry.
    Slot(u32),
    /// At the bucket that would take it.
    Nothing(usize),
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { memory: Memory::zeroed(0, Pages::Huge), len: 0 }
    }

    /// Asks for the memory of a key's home.
    #[inline(always)]
    pub(crate) fn prefetch(&self, key: u64) {
        let buckets = self.buckets();
        if let Some(bucket) = buckets.get(home(key, buckets.len())) {
            prefetch(bucket);
        }
    }

    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Found {
        let buckets = self.buckets();
        let mut place = home(key, buckets.len());
        while let Some(bucket) = buckets.get(place) {
            if let Some(slot) = slot_in(bucket, key) {
                return Found::Slot(slot);
            }
            if (bucket[COUNT] as usize) < WAYS {
                return Found::Nothing(place);
            }
            place = if place + 1 == buckets.len() { 0 } else { place + 1 };
        }
        Found::Nothing(0)
    }

    /// Adds a key that is not there; `place` is where the search for it ended.
    pub(crate) fn add(&mut self, key: u64, place: usize, slot: u32) {
        let place = if self.len < FULL * self.buckets().len() { place } else { self.grow(key) };
        put(&mut self.buckets_mut()[place], key, slot);
        self.len += 1;
    }

    /// All keys and slots, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        self.buckets().iter().flat_map(entries)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Answers where `key`, which is not there, belongs afterwards.
    #[cold]
    fn grow(&mut self, key: u64) -> usize {
        let buckets = self.buckets().len();
        let wider = Memory::zeroed((buckets + buckets / 4 + 1) * WORDS, Pages::Huge);
        let old = std::mem::replace(self, Self { memory: wider, len: self.len });
        for (key, slot) in old.iter() {
            let place = self.room_for(key);
            put(&mut self.buckets_mut()[place], key, slot);
        }
        self.room_for(key)
    }

    fn room_for(&self, key: u64) -> usize {
        match self.find(key) {
            Found::Nothing(place) => place,
            Found::Slot(_) => unreachable!("a key is added once"),
        }
    }

    #[inline(always)]
    fn buckets(&self) -> &[Bucket] {
        self.memory.words().as_chunks().0
    }

    #[inline(always)]
    fn buckets_mut(&mut self) -> &mut [Bucket] {
        self.memory.words_mut().as_chunks_mut().0
    }
}

/// Multiply-shift over the upper half of the key: any number of buckets will do.
#[inline(always)]
fn home(key: u64, buckets: usize) -> usize {
    (((key >> 32) * buckets as u64) >> 32) as usize
}

/// Compares with all entries at once; the first eight words of each half are the widest comparison that stays inside
/// the bucket, of which the first five count.
#[inline(always)]
fn slot_in(bucket: &Bucket, key: u64) -> Option<u32> {
    let (low, high) = (key as u32, (key >> 32) as u32);
    let mut hits = 0_u32;
    for way in 0..8 {
        hits |= u32::from((bucket[way] == low) & (bucket[HIGH + way] == high)) << way;
    }
    hits &= (1 << bucket[COUNT]) - 1;
    (hits != 0).then(|| bucket[SLOT + (hits.trailing_zeros() as usize).min(WAYS - 1)])
}

fn put(bucket: &mut Bucket, key: u64, slot: u32) {
    let way = bucket[COUNT] as usize;
    bucket[way] = key as u32;
    bucket[HIGH + way] = (key >> 32) as u32;
    bucket[SLOT + way] = slot;
    bucket[COUNT] += 1;
}

fn entries(bucket: &Bucket) -> impl Iterator<Item = (u64, u32)> {
    (0..bucket[COUNT] as usize)
        .map(|way| (u64::from(bucket[way]) | u64::from(bucket[HIGH + way]) << 32, bucket[SLOT + way]))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::group::key_of;

    fn filled(keys: impl IntoIterator<Item = u64>) -> (Index, HashMap<u64, u32>) {
        let (mut index, mut model) = (Index::new(), HashMap::new());
        for key in keys {
            let slot = model.len() as u32 * 7;
            match index.find(key) {
                Found::Slot(found) => assert_eq!(model.get(&key), Some(&found)),
                Found::Nothing(place) => {
                    assert_eq!(model.insert(key, slot), None);
                    index.add(key, place, slot);
                }
            }
        }
        (index, model)
    }

    fn check(index: &Index, model: &HashMap<u64, u32>) {
        assert_eq!(index.len(), model.len());
        assert_eq!(&index.iter().collect::<HashMap<_, _>>(), model);
        assert!(model.iter().all(|(key, slot)| index.find(*key) == Found::Slot(*slot)));
    }

    proptest! {
        /// Keys that share a home, a half or all their bits: long overflows, also around the end.
        #[test]
        fn it_is_a_map_of_any_keys(keys in prop::collection::vec((0_u64..6, 0_u64..40, any::<bool>()), 0..300)) {
            let high = |part: u64, end: bool| if end { u64::from(u32::MAX) - part } else { part };
            let keys: Vec<u64> = keys.into_iter().map(|(part, low, end)| high(part, end) << 32 | low).collect();
            let (index, model) = filled(keys.iter().copied());
            check(&index, &model);
            for part in 0..8 {
                let absent = part << 32 | 99;
                prop_assert!(matches!(index.find(absent), Found::Nothing(_)));
            }
        }
    }

    #[test]
    fn many_keys_are_found_and_cost_little() {
        let (index, model) = filled((0..200_000).map(key_of));
        check(&index, &model);
        let bytes = index.bytes() as f64 / 200_000.0;
        assert!((16.0..=20.1).contains(&bytes), "{bytes} bytes an entry");
    }

    #[test]
    fn an_empty_index_finds_nothing_and_holds_nothing() {
        let index = Index::new();
        index.prefetch(5);
        assert_eq!((index.find(0), index.bytes()), (Found::Nothing(0), 0));
    }
}
