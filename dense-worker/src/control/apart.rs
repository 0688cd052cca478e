//! Workers that step apart, in mode `async`: what each has done, and where the dense weights come from.

use serde::{Deserialize, Serialize};
use zagros_embedding_client::UniqueIds;
use zagros_protocol::datapath::Access;

use super::peers::Peers;
use super::train::Trainer;
use crate::error::WorkerError;

/// What a worker has done so far, as the others are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) steps: u64,
    /// Those of them that were skipped.
    pub(crate) skipped: u64,
    pub(crate) samples: u64,
    pub(crate) staleness_max: u64,
    pub(crate) staleness_sum: u64,
    /// Microseconds of training.
    pub(crate) micros: u64,
}

impl Account {
    /// Of both together; they trained at the same time.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            skipped: self.skipped + other.skipped,
            samples: self.samples + other.samples,
            staleness_max: self.staleness_max.max(other.staleness_max),
            staleness_sum: self.staleness_sum + other.staleness_sum,
            micros: self.micros.max(other.micros),
        }
    }
}

impl Trainer {
    /// Whether each worker of several steps at its own pace.
    pub(super) fn is_apart(&self) -> bool {
        self.peers.is_some_and(|peers| peers.apart)
    }

    /// The others, where all make each step together.
    pub(super) fn in_step(&self) -> Option<Peers> {
        self.peers.filter(|peers| !peers.apart)
    }

    /// Bytes that all workers have read when this one has read so many, for progress.
    pub(super) fn bytes_of_all(&self, mine: u64) -> u64 {
        let workers = self.peers.filter(|peers| peers.apart).map_or(1, |peers| u64::from(peers.world));
        mine * workers
    }

    /// In mode `async`, gives the network the weights as the embedding servers hold them now.
    ///
    /// # Errors
    /// When a server does not serve in time, or libtorch fails.
    pub(crate) async fn pull_weights(&self) -> Result<(), WorkerError> {
        let Some(weights) = self.weights.clone() else { return Ok(()) };
        let rows = self.client.lookup(&UniqueIds { tables: vec![weights] }.into(), Access::Read).await;
        let rows = rows.map_err(|source| WorkerError::Embedding { batch: self.next_seq, source })?;
        Ok(self.dense.call(move |dense| dense.take_weights(&rows)).await??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_add_up_in_any_order() {
        let one = Account { steps: 3, skipped: 1, samples: 128, staleness_max: 3, staleness_sum: 4, micros: 9 };
        let other = Account { steps: 1, skipped: 0, samples: 64, staleness_max: 1, staleness_sum: 1, micros: 10 };
        let both = Account { steps: 4, skipped: 1, samples: 192, staleness_max: 3, staleness_sum: 5, micros: 10 };
        assert_eq!((one.and(other), other.and(one)), (both, both));
        assert_eq!([one, other].into_iter().fold(Account::default(), Account::and), both);
    }
}
