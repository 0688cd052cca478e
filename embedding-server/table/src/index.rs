//! The index of a stripe: key → slot number, at 12 bytes an entry.
//!
//! Five entries fill a cache line and make a bucket. A key's home is the bucket at its place in the order of all keys;
//! a full bucket overflows into the next. At four entries in five at most, one line answers nine of ten questions.
//! Growth by a quarter keeps the index near that, and keeps the order of buckets, so that growing reads the old memory
//! and writes the new from one end to the other.
//!
//! Every bucket between a key's home and the bucket it lies in is full, so a search ends at a bucket with room. What is
//! removed leaves no mark: a key that overflowed past the hole moves back into it.

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
            place = self.after(place);
        }
        Found::Nothing(0)
    }

    /// Adds a key that is not there; `place` is where the search for it ended.
    pub(crate) fn add(&mut self, key: u64, place: usize, slot: u32) {
        let place = if self.len < FULL * self.buckets().len() { place } else { self.grow(key) };
        put(&mut self.buckets_mut()[place], key, slot);
        self.len += 1;
    }

    /// Takes a key out and answers its slot.
    pub(crate) fn remove(&mut self, key: u64) -> Option<u32> {
        let Found::Slot(slot) = self.find(key) else {
            return None;
        };
        let mut hole = self.place_of(key);
        let mut was_full = take(&mut self.buckets_mut()[hole], key);
        while was_full && let Some((place, moved)) = self.overflowed_past(hole) {
            let bucket = &mut self.buckets_mut()[place];
            let Some(slot) = slot_in(bucket, moved) else {
                break;
            };
            was_full = take(bucket, moved);
            put(&mut self.buckets_mut()[hole], moved, slot);
            hole = place;
        }
        self.len -= 1;
        Some(slot)
    }

    /// All keys and slots, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        self.buckets().iter().flat_map(entries)
    }

    /// Appends the keys and slots of whole buckets from bucket `from` on, until there are `enough` more; answers the
    /// bucket to go on from, `None` at the end.
    pub(crate) fn scan(&self, from: usize, enough: usize, into: &mut Vec<(u64, u32)>) -> Option<usize> {
        let enough = into.len().saturating_add(enough);
        for (place, bucket) in self.buckets().iter().enumerate().skip(from) {
            if into.len() >= enough {
                return Some(place);
            }
            into.extend(entries(bucket));
        }
        None
    }

    /// Bytes that the index would grow by for this many keys more.
    pub(crate) fn growth(&self, keys: usize) -> usize {
        let now = self.buckets().len();
        let mut buckets = now;
        while self.len + keys > FULL * buckets {
            buckets += buckets / 4 + 1;
        }
        (buckets - now) * WORDS * size_of::<u32>()
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

    /// The bucket in which a key that is there lies.
    fn place_of(&self, key: u64) -> usize {
        let buckets = self.buckets();
        let mut place = home(key, buckets.len());
        while slot_in(&buckets[place], key).is_none() {
            place = self.after(place);
        }
        place
    }

    /// The nearest key behind `hole`, and its bucket, whose search passed `hole` while it was full.
    fn overflowed_past(&self, hole: usize) -> Option<(usize, u64)> {
        let buckets = self.buckets();
        let mut place = self.after(hole);
        while place != hole {
            let bucket = &buckets[place];
            let passed = |key: u64| self.distance(home(key, buckets.len()), place) >= self.distance(hole, place);
            if let Some((key, _)) = entries(bucket).find(|(key, _)| passed(*key)) {
                return Some((place, key));
            }
            if (bucket[COUNT] as usize) < WAYS {
                return None;
            }
            place = self.after(place);
        }
        None
    }

    #[inline(always)]
    fn after(&self, place: usize) -> usize {
        if place + 1 == self.buckets().len() { 0 } else { place + 1 }
    }

    /// Buckets from `from` on to `to`, around the end if need be.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.buckets().len() - from }
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
fn way_of(bucket: &Bucket, key: u64) -> Option<usize> {
    let (low, high) = (key as u32, (key >> 32) as u32);
    let mut hits = 0_u32;
    for way in 0..8 {
        hits |= u32::from((bucket[way] == low) & (bucket[HIGH + way] == high)) << way;
    }
    hits &= (1 << bucket[COUNT]) - 1;
    (hits != 0).then(|| (hits.trailing_zeros() as usize).min(WAYS - 1))
}

#[inline(always)]
fn slot_in(bucket: &Bucket, key: u64) -> Option<u32> {
    way_of(bucket, key).map(|way| bucket[SLOT + way])
}

fn put(bucket: &mut Bucket, key: u64, slot: u32) {
    let way = bucket[COUNT] as usize;
    bucket[way] = key as u32;
    bucket[HIGH + way] = (key >> 32) as u32;
    bucket[SLOT + way] = slot;
    bucket[COUNT] += 1;
}

/// Takes a key out of its bucket; whether the bucket was full.
fn take(bucket: &mut Bucket, key: u64) -> bool {
    let last = bucket[COUNT] as usize - 1;
    if let Some(way) = way_of(bucket, key) {
        for part in [0, HIGH, SLOT] {
            bucket[part + way] = bucket[part + last];
        }
        bucket[COUNT] -= 1;
    }
    last + 1 == WAYS
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

        /// Removals between additions: holes in the middle of overflows, also around the end.
        #[test]
        fn what_is_removed_is_gone_and_the_rest_stays(
            calls in prop::collection::vec((0_u64..4, 0_u64..12, any::<bool>(), 0_u8..5), 0..600),
        ) {
            let (mut index, mut model) = (Index::new(), HashMap::new());
            for (number, (part, low, end, call)) in calls.into_iter().enumerate() {
                let high = if end { u64::from(u32::MAX) - part } else { part };
                let key = high << 32 | low;
                match index.find(key) {
                    Found::Nothing(place) if call > 1 => {
                        model.insert(key, number as u32);
                        index.add(key, place, number as u32);
                    }
                    _ if call < 2 => prop_assert_eq!(index.remove(key), model.remove(&key)),
                    found => prop_assert_eq!(found == Found::Slot(number as u32), false, "no slot is given twice"),
                }
                check(&index, &model);
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
    fn a_scan_in_parts_meets_each_key_once() {
        let (index, model) = filled((0..1000).map(key_of));
        let (mut all, mut from, mut parts) = (Vec::new(), Some(0), 0);
        while let Some(place) = from {
            let before = all.len();
            from = index.scan(place, 50, &mut all);
            parts += 1;
            assert!((1..50 + WAYS).contains(&(all.len() - before)));
        }
        assert_eq!((all.len(), parts), (1000, 20));
        assert_eq!(all.into_iter().collect::<HashMap<_, _>>(), model);
    }

    #[test]
    fn growth_is_told_before_it_comes() {
        let mut index = Index::new();
        for key in (0..3000).map(key_of) {
            let (before, told) = (index.bytes(), index.growth(1));
            let Found::Nothing(place) = index.find(key) else { panic!("keys differ") };
            index.add(key, place, 0);
            assert_eq!(index.bytes() - before, told);
        }
    }

    #[test]
    fn an_empty_index_finds_nothing_and_holds_nothing() {
        let index = Index::new();
        index.prefetch(5);
        assert_eq!((index.find(0), index.bytes()), (Found::Nothing(0), 0));
    }
}
