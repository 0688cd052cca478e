//! The admission filter of one stripe: a policy and its frequency counts.

use hashbrown::HashTable;
use hashbrown::hash_table::OccupiedEntry;

use super::super::row_batch::FrequencyCounts;
use super::policy::{AdmissionPolicy, FrequencyCounter};
use super::sketch::CountMinSketch;
use crate::key::id_of;
use crate::row::weight_type::StepNoise;

/// The random words of this step number choose the admitted share of ids. No push has this step number.
const CHOICE: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub(crate) enum AdmissionFilter {
    /// Counts nothing: every id is admitted.
    Always,
    Exact {
        needed: u32,
        counts: HashTable<(u64, u32)>,
    },
    Sketch {
        needed: u32,
        sketch: CountMinSketch,
    },
    /// Counts nothing. A hash of the id decides.
    Share {
        noise: StepNoise,
        below: u64,
    },
}

impl AdmissionFilter {
    pub(super) fn new(admission: AdmissionPolicy, stripes: usize, seed: u64, table: u32) -> Self {
        match admission {
            AdmissionPolicy::Always => Self::Always,
            AdmissionPolicy::Count { threshold: needed, counter: FrequencyCounter::Exact } => {
                Self::Exact { needed, counts: HashTable::new() }
            }
            AdmissionPolicy::Count { threshold: needed, counter: FrequencyCounter::CountMin { error, failure } } => {
                Self::Sketch { needed, sketch: CountMinSketch::new(error, failure, stripes) }
            }
            AdmissionPolicy::Probability { share } => {
                let below = (f64::from(share) * 2.0_f64.powi(32)) as u64;
                Self::Share { noise: StepNoise::new(seed, table, CHOICE), below }
            }
        }
    }

    /// Counts one use of a key that has no row. Returns whether the key gets a row now.
    pub(crate) fn observe(&mut self, key: u64) -> bool {
        match self {
            Self::Exact { needed, counts } => count(counts, key, *needed),
            Self::Sketch { needed, sketch } => sketch.add(key) >= *needed,
            Self::Always | Self::Share { .. } => self.admits(key),
        }
    }

    /// Whether a key gets a row without being counted. Pushes call it, because gradients are not counted.
    pub(crate) fn admits(&self, key: u64) -> bool {
        match self {
            Self::Always => true,
            Self::Exact { .. } | Self::Sketch { .. } => false,
            Self::Share { noise, below } => u64::from(noise.row(key).lane(0)) < *below,
        }
    }

    pub(crate) fn save(&self, into: &mut FrequencyCounts) {
        match self {
            Self::Always | Self::Share { .. } => {}
            Self::Sketch { sketch, .. } => into.cells.extend_from_slice(sketch.words()),
            Self::Exact { counts, .. } => {
                let mut sorted: Vec<(u64, u32)> = counts.iter().map(|(key, count)| (id_of(*key), *count)).collect();
                sorted.sort_unstable();
                into.ids.extend(sorted.iter().map(|entry| entry.0));
                into.counts.extend(sorted.iter().map(|entry| entry.1));
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Self::Always | Self::Share { .. } => {}
            Self::Exact { counts, .. } => counts.clear(),
            Self::Sketch { sketch, .. } => sketch.clear(),
        }
    }

    /// Adds to the count of a key that has no row. A filter that counts nothing ignores the call.
    pub(crate) fn add_count(&mut self, key: u64, more: u32) {
        match self {
            Self::Exact { counts, .. } => {
                let mut entry = entry_of(counts, key);
                entry.get_mut().1 = entry.get().1.saturating_add(more);
            }
            Self::Sketch { sketch, .. } => {
                sketch.add_times(key, more);
            }
            Self::Always | Self::Share { .. } => {}
        }
    }

    /// Adds the cells of a sketch of the same stripe, from this server or another one. A filter without a sketch
    /// ignores the call.
    /// `Err` has the number of words of the sketch, if `cells` are not within it.
    pub(crate) fn merge(&mut self, from: usize, cells: &[u32]) -> Result<(), usize> {
        if let Self::Sketch { sketch, .. } = self { sketch.merge(from, cells) } else { Ok(()) }
    }

    /// Raises the cells of a sketch, from word `from` on, to at least these. No count becomes too low, and none is higher than the higher
    /// one of both sketches says. Returns what was added to these cells. A filter without a sketch ignores the call.
    /// `Err` has the number of words of the sketch, if these are not within it.
    pub(crate) fn raise(&mut self, from: usize, cells: &[u32]) -> Result<Vec<u32>, usize> {
        if let Self::Sketch { sketch, .. } = self { sketch.raise(from, cells) } else { Ok(Vec::new()) }
    }

    /// Returns whether the key had an exact count.
    pub(crate) fn forget(&mut self, key: u64) -> bool {
        let Self::Exact { counts, .. } = self else { return false };
        counts.find_entry(hash_of(key), |entry| entry.0 == key).map(OccupiedEntry::remove).is_ok()
    }

    pub(crate) fn counted_ids(&self) -> Vec<u64> {
        let Self::Exact { counts, .. } = self else { return Vec::new() };
        counts.iter().map(|(key, _)| id_of(*key)).collect()
    }

    pub(crate) fn exact_count(&self, key: u64) -> u32 {
        let Self::Exact { counts, .. } = self else { return 0 };
        counts.find(hash_of(key), |entry| entry.0 == key).map_or(0, |entry| entry.1)
    }

    /// The count of a key: the exact one, or what the sketch says.
    pub(crate) fn count(&self, key: u64) -> u32 {
        if let Self::Sketch { sketch, .. } = self { sketch.count(key) } else { self.exact_count(key) }
    }

    /// The cells of the sketch. Each word holds two. Empty without a sketch.
    pub(crate) fn sketch_cells(&self) -> &[u32] {
        if let Self::Sketch { sketch, .. } = self { sketch.words() } else { &[] }
    }

    /// How the filter counts ids, for a saved model. `None` if it counts nothing.
    pub(crate) fn describe(&self) -> Option<String> {
        match self {
            Self::Always | Self::Share { .. } => None,
            Self::Exact { .. } => Some("exact".to_owned()),
            Self::Sketch { sketch, .. } => {
                let [width, depth] = sketch.shape();
                Some(format!("sketch {width} x {depth}"))
            }
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Always | Self::Share { .. } => 0,
            Self::Exact { counts, .. } => counts.allocation_size(),
            Self::Sketch { sketch, .. } => size_of_val(sketch.words()),
        }
    }
}

/// Counts a key. Forgets the count once the key is admitted.
fn count(counts: &mut HashTable<(u64, u32)>, key: u64, needed: u32) -> bool {
    let mut entry = entry_of(counts, key);
    let count = entry.get().1.saturating_add(1);
    entry.get_mut().1 = count;
    if count >= needed {
        entry.remove();
    }
    count >= needed
}

/// The entry of a key. A new one has a count of 0.
fn entry_of(counts: &mut HashTable<(u64, u32)>, key: u64) -> OccupiedEntry<'_, (u64, u32)> {
    counts.entry(hash_of(key), |entry| entry.0 == key, |entry| hash_of(entry.0)).or_insert((key, 0))
}

/// Swaps the halves of a key. All keys of a stripe have equal low bits, and the map uses the low bits of a hash.
fn hash_of(key: u64) -> u64 {
    key.rotate_left(32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;
    use crate::key::key_of;

    const SKETCH: FrequencyCounter = FrequencyCounter::CountMin { error: 0.001, failure: 0.01 };

    fn frequency_counts(admission: AdmissionPolicy) -> AdmissionFilter {
        AdmissionFilter::new(admission, 4, 7, 2)
    }

    fn saved(frequency_counts: &AdmissionFilter) -> FrequencyCounts {
        let mut saved = FrequencyCounts::default();
        frequency_counts.save(&mut saved);
        saved
    }

    proptest! {
        /// An id is admitted at its `needed`-th use since its last admission.
        #[test]
        fn exact_counts_are_a_map(needed in 1_u32..5, ids in prop::collection::vec(0_u64..20, 0..200)) {
            let mut exact = frequency_counts(AdmissionPolicy::Count { threshold: needed, counter: FrequencyCounter::Exact });
            let mut map = HashMap::new();
            for id in ids {
                let count = map.entry(id).or_insert(0);
                *count += 1;
                let admitted = *count == needed;
                if admitted {
                    map.remove(&id);
                }
                prop_assert_eq!(exact.observe(key_of(id)), admitted);
                prop_assert!(!exact.admits(key_of(id)));
            }
            let mut expected: Vec<(u64, u32)> = map.into_iter().collect();
            expected.sort_unstable();
            let FrequencyCounts { ids, counts, cells } = saved(&exact);
            prop_assert_eq!(ids.into_iter().zip_eq(counts).collect::<Vec<_>>(), expected);
            prop_assert!(cells.is_empty());
        }

        /// A filter with restored counts continues as if nothing had happened. No id waits longer than it should.
        #[test]
        fn restored_frequency_counts_go_on(
            before in prop::collection::vec(0_u64..20, 0..100),
            after in prop::collection::vec(0_u64..20, 0..100),
            sketch: bool,
        ) {
            let counter = if sketch { SKETCH } else { FrequencyCounter::Exact };
            let mut first = frequency_counts(AdmissionPolicy::Count { threshold: 3, counter });
            before.into_iter().for_each(|id| {
                first.observe(key_of(id));
            });
            let mut second = frequency_counts(AdmissionPolicy::Count { threshold: 3, counter });
            let FrequencyCounts { ids, counts, cells } = saved(&first);
            ids.iter().zip_eq(&counts).for_each(|(id, count)| second.add_count(key_of(*id), *count));
            if sketch {
                prop_assert_eq!(second.merge(0, &cells), Ok(()));
            }
            for id in after {
                prop_assert_eq!(first.observe(key_of(id)), second.observe(key_of(id)));
            }
            prop_assert_eq!(saved(&first), saved(&second));
        }

        #[test]
        fn a_share_is_chosen_by_seed_table_and_id_alone(id: u64, share in 0.0_f32..1.0) {
            let mut one = frequency_counts(AdmissionPolicy::Probability { share });
            let chosen = one.observe(key_of(id));
            prop_assert_eq!((one.observe(key_of(id)), one.admits(key_of(id))), (chosen, chosen));
            let other = AdmissionFilter::new(AdmissionPolicy::Probability { share }, 64, 7, 2);
            prop_assert_eq!(other.admits(key_of(id)), chosen);
            // A larger share includes every id of a smaller share.
            let larger = frequency_counts(AdmissionPolicy::Probability { share: share.midpoint(1.0) });
            prop_assert!(larger.admits(key_of(id)) || !chosen);
        }
    }

    #[test]
    fn a_share_is_as_large_as_asked() {
        let admitted = |share, seed, table| {
            let rule = AdmissionFilter::new(AdmissionPolicy::Probability { share }, 1, seed, table);
            (0..20_000).map(|id| rule.admits(key_of(id))).collect::<Vec<_>>()
        };
        let count = |share| admitted(share, 1, 1).into_iter().filter(|admitted| *admitted).count();
        assert_eq!([count(0.0), count(1.0)], [0, 20_000]);
        // The standard deviation is 61.
        assert!((4750..5250).contains(&count(0.25)), "{}", count(0.25));
        assert!(admitted(0.25, 1, 1) != admitted(0.25, 2, 1) && admitted(0.25, 1, 1) != admitted(0.25, 1, 2));
    }

    #[test]
    fn a_sketch_admits_no_later_than_it_should() {
        let mut sketch = frequency_counts(AdmissionPolicy::Count { threshold: 3, counter: SKETCH });
        for id in 0..200 {
            let admitted = [(); 3].map(|()| sketch.observe(key_of(id)));
            assert!(admitted[2], "{id}");
        }
        assert_eq!(sketch.describe().unwrap(), "sketch 680 x 5");
        assert_eq!((sketch.memory_bytes(), sketch.merge(680 * 5 / 2 - 1, &[1, 2])), (2 * 680 * 5, Err(680 * 5 / 2)));
    }

    #[test]
    fn only_counters_have_something_to_remember() {
        for admission in [AdmissionPolicy::Always, AdmissionPolicy::Probability { share: 0.5 }] {
            let rule = frequency_counts(admission);
            assert_eq!((rule.describe(), rule.memory_bytes(), saved(&rule)), (None, 0, FrequencyCounts::default()));
        }
        let mut exact = frequency_counts(AdmissionPolicy::Count { threshold: 9, counter: FrequencyCounter::Exact });
        assert_eq!((exact.describe().as_deref(), exact.memory_bytes()), (Some("exact"), 0));
        (0..100).for_each(|id| assert!(!exact.observe(key_of(id))));
        assert!(exact.memory_bytes() >= 100 * 16);
        let mut always = frequency_counts(AdmissionPolicy::Always);
        assert!(always.observe(1) && always.admits(1));
    }
}
