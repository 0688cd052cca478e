//! Which embedding server owns which bucket when the number of servers changes.
//!
//! The plan balances the weights of the buckets and moves as little weight as possible:
//!
//! ```text
//! 1. buckets of servers that leave      each goes to the server with the least weight
//! 2. the heaviest server ─► the lightest  until all are balanced, and never more than either needs
//! ```
//!
//! A plan of a plan changes nothing. A caller may therefore plan again at any time.

use std::collections::BTreeSet;

use zagros_zip::{ZipEq, number_from};

/// Servers whose weights differ from the mean by less than this share, in percent, are left alone.
const TOLERANCE_PERCENT: u128 = 5;

/// One server while the plan is made: its weight, and its buckets by weight.
#[derive(Clone, Debug, Default)]
struct PlannedServer {
    weight: u64,
    buckets: BTreeSet<(u64, u32)>,
}

impl PlannedServer {
    fn add(&mut self, weight: u64, bucket: u32) {
        self.weight += weight;
        self.buckets.insert((weight, bucket));
    }

    fn remove(&mut self, weight: u64, bucket: u32) {
        self.weight -= weight;
        self.buckets.remove(&(weight, bucket));
    }

    fn heaviest(&self, most: u64) -> Option<(u64, u32)> {
        self.buckets.range(..=(most, u32::MAX)).next_back().copied()
    }
}

/// The owner of each bucket for `servers` servers, which have the indices 0 … `servers` − 1. `owners` are the present
/// owners, `weights` says how much each bucket costs its server, in any unit. A weight of 0 counts as 1.
///
/// # Panics
/// If there is no server, or if `owners` and `weights` have different lengths.
#[must_use]
pub fn plan_owners(owners: &[u32], weights: &[u64], servers: u32) -> Vec<u32> {
    assert!(servers > 0 && owners.len() == weights.len(), "a plan needs servers, and a weight for each bucket");
    let weight = |bucket: u32| weights[bucket as usize].max(1);
    let mut planned = vec![PlannedServer::default(); servers as usize];
    let mut homeless = Vec::new();
    for (bucket, owner) in number_from(0, owners) {
        match planned.get_mut(*owner as usize) {
            Some(server) => server.add(weight(bucket), bucket),
            None => homeless.push((weight(bucket), bucket)),
        }
    }
    if homeless.is_empty() && is_balanced(&planned) {
        return owners.to_vec();
    }
    homeless.sort_unstable_by_key(|(weight, bucket)| (std::cmp::Reverse(*weight), *bucket));
    for (weight, bucket) in homeless {
        let lightest = lightest(&planned);
        planned[lightest].add(weight, bucket);
    }
    while let Some((from, to, weight, bucket)) = next_step(&planned) {
        planned[from].remove(weight, bucket);
        planned[to].add(weight, bucket);
    }
    let mut result = owners.to_vec();
    for (server, planned) in number_from(0, &planned) {
        planned.buckets.iter().for_each(|(_, bucket)| result[*bucket as usize] = server);
    }
    result
}

/// Buckets that change their owner together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedMove {
    pub(crate) source: u32,
    pub(crate) target: u32,
    /// In ascending order.
    pub(crate) buckets: Vec<u32>,
}

/// The first pair of servers between which buckets have to move, with all of these buckets. `None` once `owners` are
/// those of the goal.
pub(crate) fn next_move(owners: &[u32], goal: &[u32]) -> Option<PlannedMove> {
    let differing = || number_from(0, owners.iter().zip_eq(goal)).filter(|(_, (now, then))| now != then);
    let (_, (source, target)) = differing().next()?;
    let buckets = differing().filter(|(_, pair)| *pair == (source, target)).map(|(bucket, _)| bucket).collect();
    Some(PlannedMove { source: *source, target: *target, buckets })
}

pub(crate) fn buckets_left(owners: &[u32], goal: &[u32]) -> u32 {
    owners.iter().zip_eq(goal).filter(|(now, then)| now != then).count() as u32
}

fn total(servers: &[PlannedServer]) -> u128 {
    servers.iter().map(|server| u128::from(server.weight)).sum()
}

fn is_balanced(servers: &[PlannedServer]) -> bool {
    let (total, count) = (total(servers), servers.len() as u128);
    servers.iter().all(|server| {
        let weight = u128::from(server.weight) * count;
        weight.abs_diff(total) * 100 <= total * TOLERANCE_PERCENT
    })
}

fn lightest(servers: &[PlannedServer]) -> usize {
    (0..servers.len()).min_by_key(|server| servers[*server].weight).unwrap_or(0)
}

/// The next bucket to move: from where, to where, its weight. It never leaves the heaviest server lighter than the mean,
/// nor makes the lightest one heavier than the mean, unless a smaller bucket does not exist.
fn next_step(servers: &[PlannedServer]) -> Option<(usize, usize, u64, u32)> {
    let from = (0..servers.len()).max_by_key(|server| (servers[*server].weight, std::cmp::Reverse(*server)))?;
    let target = lightest(servers);
    let mean = u64::try_from(total(servers) / servers.len() as u128).unwrap_or(u64::MAX);
    let (above, below) = (servers[from].weight.saturating_sub(mean), mean.saturating_sub(servers[target].weight));
    let gap = servers[from].weight - servers[target].weight;
    let fitting = servers[from].heaviest(above.min(below));
    // A bucket that is moved makes the two closer only if it is lighter than the gap, and is not lifted back later.
    let (weight, bucket) =
        fitting.or_else(|| servers[from].buckets.first().copied().filter(|(weight, _)| *weight < gap))?;
    Some((from, target, weight, bucket))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn weights_of(owners: &[u32], weights: &[u64], servers: u32) -> Vec<u64> {
        let mut sums = vec![0; servers as usize];
        owners.iter().zip_eq(weights).for_each(|(owner, weight)| sums[*owner as usize] += weight);
        sums
    }

    fn moved(before: &[u32], after: &[u32], weights: &[u64]) -> u64 {
        before.iter().zip_eq(after).zip_eq(weights).filter(|((a, b), _)| a != b).map(|(_, weight)| weight).sum()
    }

    fn even(buckets: u32, servers: u32) -> Vec<u32> {
        (0..buckets).map(|bucket| (u64::from(bucket) * u64::from(servers) / u64::from(buckets)) as u32).collect()
    }

    #[test]
    fn equal_buckets_move_as_few_as_possible() {
        let weights = [1; 1024];
        let (two, four) = (even(1024, 2), plan_owners(&even(1024, 2), &weights, 4));
        assert_eq!((weights_of(&four, &weights, 4), moved(&two, &four, &weights)), (vec![256; 4], 512));
        let three = plan_owners(&four, &weights, 3);
        assert_eq!(moved(&four, &three, &weights), 256, "only the buckets of the server that leaves");
        assert!(weights_of(&three, &weights, 3).iter().all(|weight| (341..=342).contains(weight)));
    }

    #[test]
    fn moves_lead_from_the_present_owners_to_the_goal_pair_by_pair() {
        let (mut owners, goal) = (even(64, 2), plan_owners(&even(64, 2), &[1; 64], 3));
        let mut pairs = Vec::new();
        while let Some(PlannedMove { source, target, buckets }) = next_move(&owners, &goal) {
            pairs.push((source, target));
            assert!(buckets_left(&owners, &goal) >= buckets.len() as u32);
            for bucket in buckets {
                assert_eq!(std::mem::replace(&mut owners[bucket as usize], target), source);
            }
        }
        assert_eq!((pairs, &owners, buckets_left(&owners, &goal)), (vec![(0, 2), (1, 2)], &goal, 0));
    }

    fn cases() -> impl Strategy<Value = (Vec<u32>, Vec<u64>, u32)> {
        let bucket = (0_u32..8, 1_u64..100);
        (prop::collection::vec(bucket, 200..600), 1_u32..8).prop_map(|(buckets, servers)| {
            let (owners, weights) = buckets.into_iter().unzip();
            (owners, weights, servers)
        })
    }

    proptest! {
        #[test]
        fn a_plan_is_balanced_within_5_percent((owners, weights, servers) in cases()) {
            let planned = plan_owners(&owners, &weights, servers);
            let sums = weights_of(&planned, &weights, servers);
            let mean = sums.iter().sum::<u64>() as f64 / f64::from(servers);
            // 200 buckets of up to 99 on 7 servers: one bucket may be more than 5 % of a server.
            let slack = (mean * 0.05).max(*weights.iter().max().unwrap() as f64);
            prop_assert!(sums.iter().all(|sum| (*sum as f64 - mean).abs() <= slack + 1.0), "{sums:?}");
        }

        #[test]
        fn equal_buckets_are_balanced_within_one(owners in prop::collection::vec(0_u32..8, 200..600), servers in 1_u32..8) {
            let weights = vec![1; owners.len()];
            let planned = plan_owners(&owners, &weights, servers);
            let sums = weights_of(&planned, &weights, servers);
            let mean = owners.len() as f64 / f64::from(servers);
            prop_assert!(sums.iter().all(|sum| (*sum as f64 - mean).abs() <= (mean * 0.05).max(1.0)), "{sums:?}");
        }

        #[test]
        fn a_plan_of_a_plan_changes_nothing((owners, weights, servers) in cases()) {
            let planned = plan_owners(&owners, &weights, servers);
            prop_assert_eq!(&plan_owners(&planned, &weights, servers), &planned);
        }

        /// At least what is above the mean has to move, and all buckets of servers that leave. One bucket for each server
        /// may come on top, because buckets are not divided.
        #[test]
        fn little_moves((owners, weights, servers) in cases()) {
            let planned = plan_owners(&owners, &weights, servers);
            let stays: Vec<(u32, u64)> =
                owners.iter().copied().zip_eq(weights.iter().copied()).filter(|(owner, _)| *owner < servers).collect();
            let homeless = weights.iter().sum::<u64>() - stays.iter().map(|(_, weight)| weight).sum::<u64>();
            let (kept, of): (Vec<u32>, Vec<u64>) = stays.into_iter().unzip();
            let mean = weights.iter().sum::<u64>() / u64::from(servers);
            let excess: u64 = weights_of(&kept, &of, servers).iter().map(|sum| sum.saturating_sub(mean)).sum();
            let most = homeless + excess + u64::from(servers) * weights.iter().max().unwrap();
            prop_assert!(moved(&owners, &planned, &weights) <= most);
        }
    }
}
