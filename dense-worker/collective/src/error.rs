//! Why a collective operation failed.

use std::fmt;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// Some ranks did not take part, as far as that can be known.
    #[error("{} did not take part in {call} for {waited:.1?}: {reason}", RankList(ranks))]
    Missing {
        /// Ascending.
        ranks: Vec<usize>,
        /// What the others did: `an all-reduce`.
        call: &'static str,
        waited: Duration,
        reason: String,
    },
    /// Every rank is alive, but ranks cannot reach each other.
    #[error("{call} failed after {waited:.1?}, but every rank is alive: {reason}; check the network between them")]
    Broken { call: &'static str, waited: Duration, reason: String },
    /// An earlier call of the group failed.
    #[error("the group has failed before: {first}")]
    Failed { first: Box<CollectiveError> },
    /// This program or this machine lacks what the job wants.
    #[error("cluster.collective = \"nccl\": {reason}; {next}, or use cluster.collective = \"gloo\"")]
    Backend { reason: String, next: &'static str },
    /// A caller's bounds do not name a part for each rank.
    #[error("the bounds name no parts of {length} values for {world} ranks")]
    Parts { world: usize, length: usize },
    /// This worker cannot listen or connect at its own address.
    #[error("{address} cannot be used by this worker: {reason}; give the host and port that the other workers reach")]
    Address { address: String, reason: String },
}

impl CollectiveError {
    /// Why a call failed, after which these ranks did not say that they are alive.
    pub fn from_roll(ranks: Vec<usize>, call: &'static str, waited: Duration, reason: String) -> Self {
        match ranks.is_empty() {
            true => Self::Broken { call, waited, reason },
            false => Self::Missing { ranks, call, waited, reason },
        }
    }

    /// Renumbers the ranks for the caller: rank r becomes `numbers[r]`.
    pub fn renumber_ranks(&mut self, numbers: &[u32]) {
        match self {
            Self::Missing { ranks, .. } => renumber_all(ranks, numbers),
            Self::Failed { first } => first.renumber_ranks(numbers),
            Self::Broken { .. } | Self::Backend { .. } | Self::Address { .. } | Self::Parts { .. } => {}
        }
    }

    /// The ranks that did not take part, if they are known.
    pub fn missing_ranks(&self) -> &[usize] {
        match self {
            Self::Missing { ranks, .. } => ranks,
            Self::Failed { first } => first.missing_ranks(),
            Self::Broken { .. } | Self::Backend { .. } | Self::Address { .. } | Self::Parts { .. } => &[],
        }
    }
}

/// Rank r becomes `numbers[r]`.
pub fn renumber_all(ranks: &mut [usize], numbers: &[u32]) {
    for rank in ranks {
        *rank = numbers.get(*rank).map_or(*rank, |number| *number as usize);
    }
}

/// `rank 1`, `ranks 1, 3`.
struct RankList<'a>(&'a [usize]);

impl fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "{} {}", if numbers.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_named_with_the_time_waited() {
        let missing = |ranks: &[usize]| CollectiveError::Missing {
            ranks: ranks.to_vec(),
            call: "an all-reduce",
            waited: Duration::from_secs(2),
            reason: "connection closed".to_owned(),
        };
        let message = missing(&[1]).to_string();
        assert_eq!(message, "rank 1 did not take part in an all-reduce for 2.0s: connection closed");
        let mut later = CollectiveError::Failed { first: Box::new(missing(&[1, 3])) };
        assert!(later.to_string().contains("ranks 1, 3 did not"), "{later}");
        assert_eq!(later.missing_ranks(), [1, 3]);
        // The second of five workers is not in the group, and the caller does not know one rank.
        later.renumber_ranks(&[0, 2, 3]);
        assert_eq!(later.missing_ranks(), [2, 3]);
    }
}
