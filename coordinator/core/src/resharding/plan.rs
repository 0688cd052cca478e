//! Which embedding server owns which bucket when the number of servers changes.
//!
//! Ids are spread over the buckets by a hash, so each bucket costs its server the same. The plan evens out the numbers of buckets and
//! moves as few as possible:
//!
//! ```text
//! 1. buckets of servers that leave     each goes to the server with the fewest
//! 2. the fullest server ─► the emptiest  until no two differ by more than one bucket
//! ```
//!
//! A plan of a plan changes nothing. A caller may therefore plan again at any time.

use zagros_zip::{ZipEq, number_from};

/// Servers whose numbers of buckets differ from the mean by less than this share, in percent, are left alone.
const TOLERANCE_PERCENT: usize = 5;

/// The owner of each bucket for `servers` servers, which have the indices 0 … `servers` − 1. `owners` are the present owners.
///
/// # Panics
/// If there is no server.
pub(crate) fn plan_owners(owners: &[u32], servers: u32) -> Vec<u32> {
    assert!(servers > 0, "a plan needs servers");
    let mut planned = vec![Vec::new(); servers as usize];
    let mut homeless = Vec::new();
    for (bucket, owner) in number_from(0_u32, owners) {
        planned.get_mut(*owner as usize).unwrap_or(&mut homeless).push(bucket);
    }
    if homeless.is_empty() && is_balanced(&planned, owners.len()) {
        return owners.to_vec();
    }
    for bucket in homeless {
        let emptiest = emptiest(&planned);
        planned[emptiest].push(bucket);
    }
    loop {
        let (fullest, emptiest) = (fullest(&planned), emptiest(&planned));
        if planned[fullest].len() <= planned[emptiest].len() + 1 {
            break;
        }
        let bucket = planned[fullest].pop();
        planned[emptiest].extend(bucket);
    }
    let mut result = owners.to_vec();
    for (server, buckets) in number_from(0, &planned) {
        buckets.iter().for_each(|bucket| result[*bucket as usize] = server);
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

fn is_balanced(servers: &[Vec<u32>], buckets: usize) -> bool {
    let is_near =
        |server: &Vec<u32>| (server.len() * servers.len()).abs_diff(buckets) * 100 <= buckets * TOLERANCE_PERCENT;
    servers.iter().all(is_near)
}

fn emptiest(servers: &[Vec<u32>]) -> usize {
    (0..servers.len()).min_by_key(|server| servers[*server].len()).unwrap_or(0)
}

/// The first of several.
fn fullest(servers: &[Vec<u32>]) -> usize {
    (0..servers.len()).rev().max_by_key(|server| servers[*server].len()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts(owners: &[u32], servers: u32) -> Vec<u32> {
        let mut counts = vec![0; servers as usize];
        owners.iter().for_each(|owner| counts[*owner as usize] += 1);
        counts
    }

    fn even(buckets: u32, servers: u32) -> Vec<u32> {
        (0..buckets).map(|bucket| (u64::from(bucket) * u64::from(servers) / u64::from(buckets)) as u32).collect()
    }

    #[test]
    fn as_few_buckets_as_possible_move() {
        let (two, four) = (even(1024, 2), plan_owners(&even(1024, 2), 4));
        assert_eq!((counts(&four, 4), buckets_left(&two, &four)), (vec![256; 4], 512));
        let three = plan_owners(&four, 3);
        assert_eq!(buckets_left(&four, &three), 256, "only the buckets of the server that leaves");
        assert!(counts(&three, 3).iter().all(|count| (341..=342).contains(count)));
    }

    #[test]
    fn moves_lead_from_the_present_owners_to_the_goal_pair_by_pair() {
        let (mut owners, goal) = (even(64, 2), plan_owners(&even(64, 2), 3));
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

    proptest! {
        /// At least what is above the mean has to move, and all buckets of servers that leave.
        #[test]
        fn a_plan_is_balanced_moves_little_and_is_final(owners in prop::collection::vec(0_u32..8, 200..600), servers in 1_u32..8) {
            let planned = plan_owners(&owners, servers);
            let mean = owners.len() as f64 / f64::from(servers);
            let sums = counts(&planned, servers);
            prop_assert!(sums.iter().all(|sum| (f64::from(*sum) - mean).abs() <= (mean * 0.05).max(1.0)), "{sums:?}");
            prop_assert_eq!(&plan_owners(&planned, servers), &planned);
            let kept: Vec<u32> = owners.iter().copied().filter(|owner| *owner < servers).collect();
            let excess = |count: &u32| (f64::from(*count) - mean).max(0.0).ceil() as usize;
            let most = owners.len() - kept.len() + counts(&kept, servers).iter().map(excess).sum::<usize>();
            prop_assert!(buckets_left(&owners, &planned) as usize <= most);
        }
    }
}
