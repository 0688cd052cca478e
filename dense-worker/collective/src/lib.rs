//! Collective operations of the dense workers: all-reduce, reduce-scatter, all-gather, barrier. Each has a deadline.
//!
//! Workers find each other through a [`Rendezvous`] and form a [`CollectiveGroup`]. [`TcpRendezvous`] forms one across processes. So
//! does the crate torch, with libtorch's c10d. The crate fakes forms one of threads.
//! [`SingleRank`] is a group of one rank.

mod error;
mod tcp;
#[cfg(test)]
mod testing;

// The tests of groups across processes use the same helpers.
#[cfg(test)]
extern crate self as zagros_collective;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use error::{CollectiveError, renumber_all};
pub use tcp::TcpRendezvous;

/// A group of ranks `0 .. world`, one per worker. All ranks make the same calls in the same order. Each call waits for the
/// others until the group's timeout (invariant WT-1). After an error the group cannot be used any more.
pub trait CollectiveGroup: Send {
    /// This worker's rank: 0 .. world − 1.
    fn rank(&self) -> usize;

    fn world_size(&self) -> usize;

    /// Replaces each value by its sum over all ranks. The sum has the same bits on every rank, and in every run except with
    /// NCCL, which adds in no fixed order. All ranks give equally many values.
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let pending = self.start_all_reduce_sum(values.to_vec())?;
        values.copy_from_slice(&self.wait(pending)?);
        Ok(())
    }

    /// As [`Self::all_reduce_sum`], but returns at once: the sum is made while this worker does something else. Any number
    /// of sums may be in flight. They are made in the order in which they were started.
    fn start_all_reduce_sum(&mut self, values: Vec<f32>) -> Result<PendingSum, CollectiveError>;

    /// Waits for a sum that this group started, and returns it.
    fn wait(&mut self, pending: PendingSum) -> Result<Vec<f32>, CollectiveError>;

    /// Makes this rank's part of the values its sum over all ranks. The other parts hold anything then. Rank r's part is
    /// `bounds[r] .. bounds[r + 1]`. All ranks give parts of the same lengths, which may begin elsewhere in their values.
    /// Parts are added in the order of the ranks, so a sum has the same bits in every run.
    fn reduce_scatter_sum(&mut self, values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError>;

    /// Replaces the parts of the other ranks by theirs. Bounds as for [`Self::reduce_scatter_sum`].
    fn all_gather_parts(&mut self, values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError>;

    /// The bytes of every rank, by rank. Their lengths may differ.
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Returns once every rank has made this call.
    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.all_reduce_sum(&mut [0.0])
    }
}

/// A started sum, as the group keeps it. Dropping it gives up this rank's result. The other ranks still get theirs.
#[must_use = "a sum is to be waited for"]
pub struct PendingSum(Box<dyn Any + Send>);

impl PendingSum {
    pub fn new(state: impl Any + Send) -> Self {
        Self(Box::new(state))
    }

    /// What the group kept.
    ///
    /// # Errors
    /// When another kind of group started the sum.
    pub fn into_state<T: 'static>(self) -> Result<T, CollectiveError> {
        let reason = "it was started by another group".to_owned();
        let foreign = |_| CollectiveError::Broken { call: "waiting for a sum", waited: Duration::ZERO, reason };
        self.0.downcast().map(|state| *state).map_err(foreign)
    }
}

impl fmt::Debug for PendingSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingSum")
    }
}

pub trait Rendezvous: Send + Sync {
    /// The address at which the others find this worker.
    fn address(&self) -> &str;

    /// How the ranks of its groups exchange values. Ranks with another transport cannot join, so the coordinator refuses them.
    fn transport(&self) -> &'static str;

    /// Waits for all ranks of the group and connects them.
    ///
    /// # Errors
    /// [`CollectiveError::Missing`] names the ranks that did not come before the timeout.
    fn form_group(&self, place: &ProcessGroupConfig) -> Result<Box<dyn CollectiveGroup>, CollectiveError>;
}

/// What a group is for. The groups of one generation have different ones, so that their calls never wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupLane {
    /// The agreement on steps, and sums of gradients.
    #[default]
    Steps,
    /// The layers of streamed weights.
    Layers,
}

/// The group to form, and this worker's rank in it.
#[derive(Clone, Debug, Default)]
pub struct ProcessGroupConfig {
    /// This worker: 0 .. world − 1.
    pub rank: usize,
    pub world: usize,
    /// The run's number, which only its members hear. Ranks of another run cannot join this group.
    pub run: u64,
    /// Counts the groups of a run. Ranks of an older group cannot join this one.
    pub generation: u64,
    pub lane: GroupLane,
    /// [`Rendezvous::address`] of each rank.
    pub addresses: Vec<String>,
    /// The longest wait for other ranks.
    pub timeout: Duration,
    /// Ends the wait for other ranks, and later the calls of the group.
    pub interrupt: GroupInterrupt,
}

impl ProcessGroupConfig {
    /// Empty if it is not known.
    pub fn rank_address(&self, rank: usize) -> &str {
        self.addresses.get(rank).map_or("", String::as_str)
    }
}

/// Checks that bounds name a part for each rank.
///
/// # Errors
/// [`CollectiveError::Parts`] if they do not.
pub fn check_bounds(bounds: &[usize], world: usize, length: usize) -> Result<(), CollectiveError> {
    let are_there = bounds.len() == world + 1 && bounds.is_sorted() && bounds.last().is_some_and(|end| *end <= length);
    if are_there { Ok(()) } else { Err(CollectiveError::Parts { world, length }) }
}

/// Host, without brackets, and port.
///
/// # Errors
/// [`CollectiveError::Address`] if it is not `host:port`.
pub fn split_address(address: &str) -> Result<(String, u16), CollectiveError> {
    let wrong = || CollectiveError::Address { address: address.to_owned(), reason: "it is not host:port".to_owned() };
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().map_err(|_| wrong())?;
    if host.is_empty() { Err(wrong()) } else { Ok((host.to_owned(), port)) }
}

/// Ends the calls of one group on this rank: the present one, within a fraction of a second, and each later one. A call waits for the
/// other ranks until the group's timeout; a caller may learn earlier that one of them will not come, because its lease expired or the run
/// is over.
#[derive(Clone, Debug, Default)]
pub struct GroupInterrupt(Arc<AtomicBool>);

impl GroupInterrupt {
    pub const REASON: &str = "it was interrupted: a rank is known to be gone, or the run to be over";

    /// Ends the calls. A second call changes nothing.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// After a failed call, the other ranks have this time to say that they are alive. Their own call fails at the same time, because
/// the group's connections are closed by then.
pub const ROLL_CALL: Duration = Duration::from_secs(2);

/// How long one wait lasts. After each wait the call checks whether it was interrupted.
pub const WAIT_SLICE: Duration = Duration::from_millis(50);

/// A group of one rank: its calls return at once what they were given.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleRank;

impl CollectiveGroup for SingleRank {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn start_all_reduce_sum(&mut self, values: Vec<f32>) -> Result<PendingSum, CollectiveError> {
        Ok(PendingSum::new(values))
    }

    fn wait(&mut self, pending: PendingSum) -> Result<Vec<f32>, CollectiveError> {
        pending.into_state()
    }

    fn reduce_scatter_sum(&mut self, values: Vec<f32>, _: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        Ok(values)
    }

    fn all_gather_parts(&mut self, values: Vec<f32>, _: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        Ok(values)
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        Ok(vec![mine.to_vec()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_of_one_changes_nothing() {
        let mut values = [1.5, f32::NAN];
        SingleRank.all_reduce_sum(&mut values).unwrap();
        assert!(values[0] == 1.5 && values[1].is_nan());
        assert_eq!(SingleRank.all_gather(b"all").unwrap(), [b"all"]);
        let pending = SingleRank.start_all_reduce_sum(vec![2.5]).unwrap();
        assert_eq!(SingleRank.wait(pending).unwrap(), [2.5]);
        assert_eq!(SingleRank.reduce_scatter_sum(vec![1.5], &[0, 1]).unwrap(), [1.5]);
        assert_eq!(SingleRank.all_gather_parts(vec![1.5], &[0, 1]).unwrap(), [1.5]);
        SingleRank.barrier().unwrap();
    }
}
