//! What the index promises, for any keys.

use proptest::prelude::*;

use hashbrown::HashMap;

use super::*;
use crate::key::key_of;

fn empty() -> SlotIndex {
    SlotIndex::new(&Arena::new())
}

fn filled(keys: impl IntoIterator<Item = u64>) -> (SlotIndex, HashMap<u64, u32>) {
    let (mut index, mut model) = (empty(), HashMap::new());
    for key in keys {
        let slot = model.len() as u32;
        match index.find(key) {
            IndexEntry::Slot(found) => assert_eq!(model.get(&key), Some(&found)),
            IndexEntry::Nothing(place) => {
                assert_eq!(model.insert(key, slot), None);
                index.add(key, place, slot);
            }
        }
    }
    (index, model)
}

fn check(index: &SlotIndex, model: &HashMap<u64, u32>) {
    assert_eq!(index.len(), model.len());
    assert_eq!(&index.iter().collect::<HashMap<_, _>>(), model);
    assert!(model.iter().all(|(key, slot)| index.find(*key) == IndexEntry::Slot(*slot)));
    let is_full = |place| index.bucket(place).is_none_or(|bucket| count(bucket) == WAYS);
    let has_no_room =
        |key: u64| (0..REACH.min(index.buckets)).all(|steps| is_full(index.place_after(index.home(key), steps)));
    assert!(index.crowd.keys().all(|key| has_no_room(*key)), "a key is in the crowd while it has room");
}

proptest! {
    /// Removals between additions make holes in the middle of overflows, also around the end.
    #[test]
    fn removed_keys_are_gone_and_other_keys_stay(
        calls in prop::collection::vec((0_u64..4, 0_u64..12, any::<bool>(), 0_u8..5), 0..600),
    ) {
        let (mut index, mut model, mut free) = (empty(), HashMap::new(), Vec::new());
        for (part, low, end, call) in calls {
            let high = if end { u64::from(u32::MAX) - part } else { part };
            let key = high << 32 | low;
            match index.find(key) {
                IndexEntry::Nothing(place) if call > 1 => {
                    let slot = free.pop().unwrap_or(model.len() as u32);
                    model.insert(key, slot);
                    index.add(key, place, slot);
                }
                _ if call < 2 => {
                    let removed = model.remove(&key);
                    prop_assert_eq!(index.remove(key), removed);
                    free.extend(removed);
                }
                _ => {}
            }
            check(&index, &model);
        }
    }
}

#[test]
fn many_keys_are_found_and_cost_little() {
    let (index, model) = filled((0..200_000).map(key_of));
    check(&index, &model);
    let bytes = index.memory_bytes() as f64 / 200_000.0;
    assert!((12.8..=16.1).contains(&bytes), "{bytes} bytes an entry");
}

#[test]
fn an_index_with_room_takes_keys_in_the_order_of_their_homes_without_a_crowd() {
    let mut keys: Vec<u64> = (0..100_000).map(key_of).collect();
    keys.sort_unstable();
    let longest_crowd = |index: &mut SlotIndex| {
        let add = |(slot, key): (usize, &u64)| {
            let IndexEntry::Nothing(place) = index.find(*key) else { panic!("keys differ") };
            index.add(*key, place, slot as u32);
            index.crowd.len()
        };
        keys.iter().enumerate().map(add).max().unwrap()
    };
    let (mut reserved, mut grown) = (empty(), empty());
    reserved.reserve(100_000);
    let bytes = reserved.memory_bytes();
    let crowds = [longest_crowd(&mut reserved), longest_crowd(&mut grown)];
    assert!(crowds[0] < 10 && crowds[1] > 10_000, "{crowds:?}");
    assert_eq!(reserved.memory_bytes() - reserved.crowd.len() * CROWD_BYTES, bytes, "it does not grow any more");
    check(&reserved, &keys.iter().enumerate().map(|(slot, key)| (*key, slot as u32)).collect());
    let bytes = reserved.memory_bytes();
    reserved.reserve(100);
    assert_eq!(reserved.memory_bytes(), bytes);
}

#[test]
fn a_scan_in_parts_returns_each_key_once() {
    let (index, model) = filled((0..1000).map(key_of));
    let (mut all, mut from, mut parts) = (Vec::new(), Some(0), 0);
    while let Some(place) = from {
        let old_len = all.len();
        from = index.scan(place, 50, &mut all);
        parts += 1;
        assert!((1..50 + WAYS).contains(&(all.len() - old_len)));
    }
    assert_eq!((all.len(), parts), (1000, 20));
    assert_eq!(all.into_iter().collect::<HashMap<_, _>>(), model);
}

#[test]
fn growth_is_reported_before_it_comes() {
    let mut index = empty();
    for key in (0..3000).map(key_of) {
        let (before, reported) = (segment_bytes(index.buckets), index.growth_bytes(1));
        let IndexEntry::Nothing(place) = index.find(key) else { panic!("keys differ") };
        index.add(key, place, 0);
        assert_eq!(segment_bytes(index.buckets) - before, reported);
    }
}

#[test]
fn an_empty_index_has_no_keys_and_no_memory() {
    let index = empty();
    index.prefetch(5);
    assert_eq!((index.find(0), index.memory_bytes()), (IndexEntry::Nothing(CROWD), 0));
}

#[test]
fn adding_and_removing_rows_makes_no_crowd() {
    let (mut index, mut free) = (empty(), Vec::new());
    for number in 0..30_000_u64 {
        free.extend(number.checked_sub(2000).and_then(|oldest| index.remove(key_of(oldest))));
        let IndexEntry::Nothing(place) = index.find(key_of(number)) else { panic!("keys differ") };
        index.add(key_of(number), place, free.pop().unwrap_or(index.len() as u32));
    }
    assert_eq!((index.len(), index.buckets), (2000, 453));
    assert!(index.crowd.len() < 10, "{}", index.crowd.len());
}
