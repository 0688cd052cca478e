//! AUC within groups of samples, such as the impressions of one user (GAUC).
//!
//! A model must rank items within one user's page, not across users. The AUC of all samples rewards a model that knows
//! which users click much. GAUC is the mean of the groups' own AUCs, weighted by their samples, over the groups with both
//! classes (Zhou et al. 2018, "Deep Interest Network for Click-Through Rate Prediction", section 5.2).

use serde::{Deserialize, Serialize};

use crate::measure;

/// Scores with the group of each sample, in bounded memory.
///
/// At most `capacity` samples are kept, 16 bytes each. Up to that number the result is exact. With more samples, half of
/// all groups is dropped, repeatedly until the others fit. Whole groups are dropped, by a hash of the group alone. The kept
/// groups therefore depend neither on the order of samples nor on how parts were merged. The result reports the share of
/// groups that was kept ([`GroupAuc::share`]).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupedScores {
    capacity: usize,
    /// A group is kept if its hash starts with at least so many zero bits.
    halvings: u32,
    samples: Vec<GroupedSample>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct GroupedSample {
    group: u64,
    logit: f32,
    is_positive: bool,
}

/// AUC within groups, and how much of the data it covers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupAuc {
    /// Mean of the groups' AUCs, weighted by their samples; `None` when no group has both classes, or a score is NaN.
    pub value: Option<f64>,
    pub groups: u64,
    /// Share of all groups that were measured; 1 unless there were too many samples.
    pub share: f64,
}

impl GroupedScores {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, halvings: 0, samples: Vec::new() }
    }

    /// Adds a sample: positive when `label` is above one half.
    #[inline]
    pub fn push(&mut self, group: u64, label: f32, logit: f32) {
        if is_kept(group, self.halvings) {
            // −0 becomes +0, so that the two tie.
            self.samples.push(GroupedSample { group, logit: logit + 0.0, is_positive: label > 0.5 });
            self.shrink();
        }
    }

    /// Adds the samples of another part. The result equals that of one part with all samples.
    pub fn merge(&mut self, mut other: Self) {
        self.capacity = self.capacity.min(other.capacity);
        let halvings = self.halvings.max(other.halvings);
        self.halve_to(halvings);
        other.halve_to(halvings);
        self.samples.append(&mut other.samples);
        self.shrink();
    }

    /// The measure. O(n log n), in place.
    pub fn gauc(&mut self) -> GroupAuc {
        let key = |sample: &GroupedSample| (sample.group, sample.is_positive);
        self.samples.sort_unstable_by(|a, b| key(a).cmp(&key(b)).then(a.logit.total_cmp(&b.logit)));
        let (mut weighted, mut samples, mut groups) = (0.0, 0_u64, 0);
        let (mut positives, mut negatives) = (Vec::new(), Vec::new());
        for group in self.samples.chunk_by(|a, b| a.group == b.group) {
            let first_positive = group.partition_point(|sample| !sample.is_positive);
            copy_logits(&group[..first_positive], &mut negatives);
            copy_logits(&group[first_positive..], &mut positives);
            if positives.is_empty() || negatives.is_empty() {
                continue;
            }
            groups += 1;
            samples += group.len() as u64;
            // Only a NaN has no AUC here. The sum is then NaN too.
            weighted += group.len() as f64 * measure::auc(&positives, &negatives).unwrap_or(f64::NAN);
        }
        let value = (samples > 0 && !f64::is_nan(weighted)).then(|| weighted / samples as f64);
        GroupAuc { value, groups, share: 0.5_f64.powi(self.halvings.cast_signed()) }
    }

    fn shrink(&mut self) {
        while self.samples.len() > self.capacity && self.halvings < u64::BITS {
            self.halve_to(self.halvings + 1);
        }
    }

    fn halve_to(&mut self, halvings: u32) {
        if halvings > self.halvings {
            self.halvings = halvings;
            self.samples.retain(|sample| is_kept(sample.group, halvings));
        }
    }
}

fn copy_logits(samples: &[GroupedSample], into: &mut Vec<f32>) {
    into.clear();
    into.extend(samples.iter().map(|sample| sample.logit));
}

#[inline]
fn is_kept(group: u64, halvings: u32) -> bool {
    // After the last halving no group is left, so that the bound holds for any hash.
    halvings == 0 || (halvings < u64::BITS && mix_bits(group).leading_zeros() >= halvings)
}

/// One step of `SplitMix64` (Steele et al. 2014): ids may be hashes or small numbers.
fn mix_bits(id: u64) -> u64 {
    let mut mixed = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::fixture::{auc_by_pairs, quarters};

    type Triple = (u64, bool, f32);

    fn grouped(samples: &[Triple], capacity: usize) -> GroupedScores {
        let mut grouped = GroupedScores::new(capacity);
        for (group, label, logit) in samples {
            grouped.push(*group, f32::from(u8::from(*label)), *logit);
        }
        grouped
    }

    /// The definition: pair by pair within each group.
    fn by_definition(samples: &[Triple]) -> Option<f64> {
        let mut groups: BTreeMap<u64, Vec<(bool, f32)>> = BTreeMap::new();
        samples.iter().for_each(|(group, label, logit)| groups.entry(*group).or_default().push((*label, *logit)));
        let (mut weighted, mut weight) = (0.0, 0.0);
        for samples in groups.values() {
            if let Some(auc) = auc_by_pairs(samples) {
                weighted += samples.len() as f64 * auc;
                weight += samples.len() as f64;
            }
        }
        (weight > 0.0).then(|| weighted / weight)
    }

    fn samples() -> impl Strategy<Value = Vec<Triple>> {
        prop::collection::vec((0_u64..12, any::<bool>(), quarters()), 0..120)
    }

    #[test]
    fn a_worked_example() {
        // Group 1 orders its pair correctly (2 samples), group 2 orders one of two (3 samples), group 3 has one class.
        let samples =
            [(1, true, 0.5), (1, false, 0.1), (2, true, 0.0), (2, false, -1.0), (2, false, 1.0), (3, true, 9.0)];
        let found = grouped(&samples, 100).gauc();
        assert_eq!((found.value, found.groups, found.share), (Some((2.0 + 1.5) / 5.0), 2, 1.0));
    }

    #[test]
    fn an_undefined_measure_is_none() {
        assert_eq!(GroupedScores::new(5).gauc(), GroupAuc { value: None, groups: 0, share: 1.0 });
        assert_eq!(grouped(&[(1, true, 0.5), (2, false, 0.5)], 5).gauc().value, None);
        assert_eq!(grouped(&[(1, true, f32::NAN), (1, false, 0.5)], 5).gauc().value, None);
    }

    #[test]
    fn one_group_that_does_not_fit_leaves_nothing() {
        let samples: Vec<Triple> = (0..100).map(|sample| (7, sample % 2 == 0, 0.0)).collect();
        let mut grouped = grouped(&samples, 10);
        let found = grouped.gauc();
        assert!(
            found.value.is_none() && found.groups == 0 && found.share < 1.0 && grouped.samples.is_empty(),
            "{found:?}"
        );
    }

    /// The sampled measure estimates the whole one: of 2,000 groups, about an eighth is measured.
    #[test]
    fn a_sample_of_the_groups_estimates_all_of_them() {
        let sample = |row: u64| {
            let noise = mix_bits(row) as f64 / u64::MAX as f64;
            (row % 2_000, row.is_multiple_of(3), (noise + if row.is_multiple_of(3) { 0.4 } else { 0.0 }) as f32)
        };
        let samples: Vec<Triple> = (0..40_000).map(sample).collect();
        let (exact, sampled) = (grouped(&samples, 40_000).gauc(), grouped(&samples, 6_000).gauc());
        assert_eq!((exact.share, exact.groups), (1.0, 2_000));
        assert!(sampled.share <= 0.25 && sampled.groups > 100, "{sampled:?}");
        let difference = exact.value.unwrap() - sampled.value.unwrap();
        assert!(difference.abs() < 0.02, "{exact:?} {sampled:?}");
    }

    proptest! {
        #[test]
        fn gauc_equals_its_definition(samples in samples()) {
            let (fast, slow) = (grouped(&samples, 1000).gauc(), by_definition(&samples));
            prop_assert_eq!(fast.value.is_some(), slow.is_some());
            prop_assert!(slow.is_none_or(|slow| (fast.value.unwrap() - slow).abs() < 1e-12), "{fast:?} {slow:?}");
        }

        /// With enough capacity for all samples, and with little.
        #[test]
        fn order_and_merges_change_nothing(samples in samples(), capacity in 1_usize..150, middle in 0_usize..120, seed: u64) {
            let whole = grouped(&samples, capacity).gauc();
            let mut shuffled = samples.clone();
            shuffled.sort_by_key(|(group, label, logit)| mix_bits(group ^ seed ^ u64::from(logit.to_bits()) ^ u64::from(*label)));
            prop_assert_eq!(grouped(&shuffled, capacity).gauc(), whole);
            let (left, right) = samples.split_at(middle.min(samples.len()));
            let mut merged = grouped(right, capacity);
            merged.merge(grouped(left, capacity));
            prop_assert_eq!(merged.gauc(), whole);
        }

        #[test]
        fn at_most_the_capacity_is_kept_and_groups_stay_whole(samples in samples(), capacity in 0_usize..150) {
            let mut kept = grouped(&samples, capacity);
            prop_assert!(kept.samples.len() <= capacity);
            let of_kept: Vec<Triple> = samples.into_iter().filter(|(group, ..)| is_kept(*group, kept.halvings)).collect();
            prop_assert_eq!(of_kept.len(), kept.samples.len());
            prop_assert_eq!(kept.gauc().value, grouped(&of_kept, 1000).gauc().value);
        }
    }
}
