//! A rank of a group across processes, on c10d's Gloo or NCCL.

use std::time::{Duration, Instant};

use zagros_collective::{CollectiveError, CollectiveGroup, GroupInterrupt, PendingSum, ROLL_CALL, check_bounds};
use zagros_job::CollectiveKind;
use zagros_zip::number_from;

use crate::c10d::roll::RankRoll;
use crate::c10d::sys::{NativeGroup, NativeWork, PartsCall};
use crate::c10d::within::run_within;

/// The call that a step waits in.
const SUM: &str = "an all-reduce";

pub(crate) struct ProcessRank {
    /// `None` once a call has failed.
    group: Option<NativeGroup>,
    /// Whether other ranks can delay the end of the group.
    ends_late: bool,
    roll: RankRoll,
    interrupt: GroupInterrupt,
    first: Option<CollectiveError>,
}

impl ProcessRank {
    pub(crate) fn new(group: NativeGroup, roll: RankRoll, backend: CollectiveKind, interrupt: GroupInterrupt) -> Self {
        Self { group: Some(group), ends_late: backend == CollectiveKind::Nccl, roll, interrupt, first: None }
    }

    fn run<T>(
        &mut self,
        call: &'static str,
        work: impl FnOnce(&mut NativeGroup) -> Result<T, String>,
    ) -> Result<T, CollectiveError> {
        let started = Instant::now();
        let Some(group) = &mut self.group else {
            let (call, waited, reason) = ("an earlier call", Duration::ZERO, "it did not say why".to_owned());
            let unknown = || CollectiveError::Broken { call, waited, reason };
            return Err(CollectiveError::Failed { first: Box::new(self.first.clone().unwrap_or_else(unknown)) });
        };
        let reason = match work(group) {
            Ok(done) => return Ok(done),
            Err(reason) => reason,
        };
        // Closes every connection, so that ranks that wait in this call learn of the failure at once.
        self.leave(true);
        let error = self.roll.post_mortem(call, started, reason);
        self.first = Some(error.clone());
        Err(error)
    }

    /// Ends the group. If other ranks can delay its end, it ends on a thread of its own, which is abandoned if that takes
    /// longer than a roll call.
    fn leave(&mut self, failed: bool) {
        let Some(mut group) = self.group.take() else { return };
        let end = move || {
            if failed {
                // The first failure is the one to report.
                let _ = group.give_up();
            }
            drop(group);
        };
        if self.interrupt.is_set() {
            // The interrupted call still runs, and ends with the group.
            run_within(Duration::ZERO, end);
        } else if self.ends_late {
            run_within(ROLL_CALL, end);
        } else {
            end();
        }
    }

    /// A call with parts, from its start to its end.
    fn with_parts(
        &mut self,
        call: &'static str,
        parts: PartsCall,
        values: Vec<f32>,
        bounds: &[usize],
    ) -> Result<Vec<f32>, CollectiveError> {
        check_bounds(bounds, self.roll.world, values.len())?;
        let interrupt = self.interrupt.clone();
        self.run(call, |group| group.start_parts(parts, values, bounds)?.wait(&interrupt))
    }

    /// The bytes of every rank, each padded to the length of `mine`.
    fn gather_padded(&mut self, mine: &mut [u8]) -> Result<Vec<u8>, CollectiveError> {
        let mut all = vec![0; mine.len() * self.roll.world];
        if !mine.is_empty() {
            let interrupt = self.interrupt.clone();
            self.run("a gather", |group| group.all_gather(mine, &mut all, &interrupt))?;
        }
        Ok(all)
    }
}

impl CollectiveGroup for ProcessRank {
    fn rank(&self) -> usize {
        self.roll.rank
    }

    fn world_size(&self) -> usize {
        self.roll.world
    }

    fn start_all_reduce_sum(&mut self, values: Vec<f32>) -> Result<PendingSum, CollectiveError> {
        if values.is_empty() {
            return Ok(PendingSum::new(None::<NativeWork>));
        }
        Ok(PendingSum::new(Some(self.run(SUM, |group| group.start_all_reduce(values))?)))
    }

    fn wait(&mut self, pending: PendingSum) -> Result<Vec<f32>, CollectiveError> {
        match pending.into_state::<Option<NativeWork>>()? {
            Some(work) => {
                let interrupt = self.interrupt.clone();
                self.run(SUM, |_| work.wait(&interrupt))
            }
            // Of no values.
            None => Ok(Vec::new()),
        }
    }

    fn reduce_scatter_sum(&mut self, values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        self.with_parts("a reduce-scatter", PartsCall::ReduceScatter, values, bounds)
    }

    fn all_gather_parts(&mut self, values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        self.with_parts("a gather of parts", PartsCall::AllGather, values, bounds)
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let lengths = self.gather_padded(&mut (mine.len() as u64).to_le_bytes())?;
        let lengths: Vec<usize> =
            lengths.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes) as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut padded = mine.to_vec();
        padded.resize(longest, 0);
        let all = self.gather_padded(&mut padded)?;
        Ok(number_from(0, lengths).map(|(rank, length): (usize, _)| all[rank * longest..][..length].to_vec()).collect())
    }
}

impl Drop for ProcessRank {
    fn drop(&mut self) {
        self.leave(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zagros_collective::{ProcessGroupConfig, Rendezvous};

    use crate::c10d::testing::{self, place};
    use crate::c10d::tests::end;

    #[test]
    fn sums_equal_a_plain_sum_for_all_worlds_and_lengths() {
        testing::check_against_plain_sums(|| |_| Box::new(end(CollectiveKind::Gloo)) as Box<dyn Rendezvous>, 5);
    }

    #[test]
    fn a_rank_that_misses_a_call_is_named_and_the_next_group_forms() {
        let ends = [end(CollectiveKind::Gloo), end(CollectiveKind::Gloo), end(CollectiveKind::Gloo)];
        let store = ends[0].address().to_owned();
        let gathered = testing::ranks(3, |rank| {
            let short = ProcessGroupConfig { timeout: Duration::from_millis(500), ..place(rank, 3, &store) };
            let mut group = ends[rank].form_group(&short).unwrap();
            if rank != 2 {
                let error = group.all_reduce_sum(&mut [1.0; 1000]).unwrap_err();
                assert_eq!(error.missing_ranks(), [2], "{error}");
                let again = group.barrier().unwrap_err();
                assert!(again.to_string().contains("has failed before") && again.missing_ranks() == [2], "{again}");
            }
            // Rank 2 still holds the first group.
            let mut next =
                ends[rank].form_group(&ProcessGroupConfig { generation: 2, ..place(rank, 3, &store) }).unwrap();
            next.all_gather(&[rank as u8]).unwrap()
        });
        assert_eq!(gathered, vec![vec![vec![0], vec![1], vec![2]]; 3]);
    }

    #[test]
    fn an_interrupt_ends_a_call_before_its_timeout() {
        let ends = [end(CollectiveKind::Gloo), end(CollectiveKind::Gloo)];
        let store = ends[0].address().to_owned();
        let (tell_end, ended) = std::sync::mpsc::channel::<()>();
        let (tell_end, ended) = (parking_lot::Mutex::new(Some(tell_end)), parking_lot::Mutex::new(ended));
        let patient = |rank| ProcessGroupConfig { timeout: Duration::from_secs(3600), ..place(rank, 2, &store) };
        testing::ranks(2, |rank| {
            let place = patient(rank);
            let mut group = ends[rank].form_group(&place).unwrap();
            if rank == 1 {
                // Stays in the group without a call until the other rank has given up.
                let _ = ended.lock().recv();
                return;
            }
            std::thread::spawn(move || place.interrupt.set());
            let error = group.all_reduce_sum(&mut [1.0; 1000]).unwrap_err();
            assert!(error.to_string().contains("was interrupted"), "{error}");
            assert_eq!(error.missing_ranks(), [1], "{error}");
            let again = group.all_gather(&[1]).unwrap_err();
            assert!(again.to_string().contains("has failed before"), "{again}");
            tell_end.lock().take();
        });
    }

    #[test]
    fn sums_in_flight_end_with_the_group_and_their_memory_stays_valid() {
        let ends = [end(CollectiveKind::Gloo), end(CollectiveKind::Gloo)];
        let store = ends[0].address().to_owned();
        testing::ranks(2, |rank| {
            let short = ProcessGroupConfig { timeout: Duration::from_millis(500), ..place(rank, 2, &store) };
            let mut group = ends[rank].form_group(&short).unwrap();
            if rank == 1 {
                group.barrier().unwrap();
                return;
            }
            let barrier = group.start_all_reduce_sum(vec![0.0]).unwrap();
            let sums: Vec<_> = (0..4).map(|_| group.start_all_reduce_sum(vec![1.0; 100_000]).unwrap()).collect();
            assert_eq!(group.wait(barrier).unwrap(), [0.0]);
            let mut sums = sums.into_iter();
            // This sum is given up. The next ones have failed.
            drop(sums.next());
            let error = group.wait(sums.next().unwrap()).unwrap_err();
            assert!(matches!(error, CollectiveError::Broken { .. } | CollectiveError::Missing { .. }), "{error}");
            let again = group.wait(sums.next().unwrap()).unwrap_err();
            assert!(again.to_string().contains("has failed before"), "{again}");
            assert!(group.start_all_reduce_sum(vec![1.0]).is_err());
        });
    }
}
