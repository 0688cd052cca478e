//! What the dense workers of a run do together: sums, broadcasts, gathers, each with a deadline.
//!
//! Workers find each other through a [`Rendezvous`] and form a [`Collective`]. [`StoreRendezvous`] makes one across
//! processes, on libtorch's own c10d with the [`Backend`] that the job wants; [`InProcess`] makes one of threads, for
//! tests; [`Alone`] is a world of one.

mod alone;
mod backend;
mod connector;
mod cuda;
mod error;
mod guard;
mod in_process;
mod interrupt;
mod processes;
mod rendezvous;
mod roll;
mod sys;
#[cfg(test)]
mod testing;

use std::time::Duration;

pub use alone::Alone;
pub use backend::Backend;
pub use cuda::{CUDA_HALF, open_cuda_half};
pub use error::CollectiveError;
pub use in_process::InProcess;
pub use interrupt::Interrupt;
pub use rendezvous::StoreRendezvous;

/// A group of ranks `0 .. world`, one per worker. All ranks make the same calls in the same order; each call waits
/// for the others for at most the group's timeout (invariant WT-1). After an error the group is of no more use.
pub trait Collective: Send {
    /// This worker's place: 0 .. world − 1.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world(&self) -> usize;

    /// What ends this group's calls from another thread. Of a group that never waits it does nothing.
    fn interrupt(&self) -> Interrupt {
        Interrupt::default()
    }

    /// Replaces each value by its sum over all ranks, the same to the last bit on every rank; in every run too, but for
    /// NCCL, which promises no order of the additions. All ranks give as many values.
    ///
    /// # Errors
    /// When a rank does not take part.
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let pending = self.start_all_reduce_sum(values.to_vec())?;
        values.copy_from_slice(&self.wait(pending)?);
        Ok(())
    }

    /// As [`Self::all_reduce_sum`], but returns at once: the sum is made while this worker does something else. Any
    /// number may be under way; they are made one after another, as they were started.
    ///
    /// # Errors
    /// When the group is of no more use.
    fn start_all_reduce_sum(&mut self, values: Vec<f32>) -> Result<PendingSum, CollectiveError>;

    /// Waits for a sum of this group that was started, and gives it.
    ///
    /// # Errors
    /// When a rank does not take part.
    fn wait(&mut self, pending: PendingSum) -> Result<Vec<f32>, CollectiveError>;

    /// Replaces the values by those of rank `root`.
    ///
    /// # Errors
    /// When a rank does not take part.
    fn broadcast(&mut self, root: usize, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Every rank's bytes, in the order of the ranks; lengths may differ.
    ///
    /// # Errors
    /// When a rank does not take part.
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Returns once every rank has come here.
    ///
    /// # Errors
    /// When a rank does not take part.
    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.all_reduce_sum(&mut [0.0])
    }
}

/// A sum that was started and not waited for, with its values. Dropping it gives up the sum, not the group's order: the
/// other ranks still get theirs.
#[derive(Debug)]
#[must_use = "a sum is to be waited for"]
pub struct PendingSum(Sum);

#[derive(Debug)]
enum Sum {
    /// Nothing to wait for.
    Done(Vec<f32>),
    /// The number of the call among threads, and how many values it has.
    Call(u64, usize),
    NativeWork(sys::NativeWork),
}

/// One worker's end of how workers meet.
pub trait Rendezvous: Send + Sync {
    /// Where the others find this worker, should it be rank 0.
    fn address(&self) -> &str;

    /// Waits until all ranks of the place are there, and connects them.
    ///
    /// # Errors
    /// [`CollectiveError::Missing`] names the ranks that did not come within the timeout.
    fn meet(&self, place: &ProcessGroupConfig) -> Result<Box<dyn Collective>, CollectiveError>;
}

/// Which group is formed, and who this worker is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessGroupConfig {
    /// This worker: 0 .. world − 1.
    pub rank: usize,
    /// How many ranks there are.
    pub world: usize,
    /// Counts up with each group of a run: no rank of an older group is taken for one of this.
    pub generation: u64,
    /// [`Rendezvous::address`] of rank 0.
    pub store: String,
    /// How long any wait for the others lasts.
    pub timeout: Duration,
}
