//! Groups of the threads of one process: every rank adds up by itself what all have brought.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use zagros_collective::{
    CollectiveError, CollectiveGroup, GroupInterrupt, GroupLane, PendingSum, ProcessGroupConfig, Rendezvous,
    WAIT_SLICE, check_bounds,
};
use zagros_zip::ZipEq;

/// By generation and lane.
type ExchangeTables = BTreeMap<(u64, GroupLane), Arc<ExchangeTable>>;

/// The place where the workers of one process find each other. Clones are the same place.
#[derive(Clone, Debug, Default)]
pub struct InProcess {
    groups: Arc<Mutex<ExchangeTables>>,
}

impl Rendezvous for InProcess {
    fn address(&self) -> &'static str {
        "in-process:0"
    }

    fn transport(&self) -> &'static str {
        "in-process"
    }

    fn form_group(&self, place: &ProcessGroupConfig) -> Result<Box<dyn CollectiveGroup>, CollectiveError> {
        let table = Arc::clone(self.groups.lock().entry((place.generation, place.lane)).or_default());
        let (rank, world, timeout) = (place.rank, place.world, place.timeout);
        let mut rank_end = InProcessRank { table, rank, world, timeout, calls: 0, interrupt: place.interrupt.clone() };
        rank_end.exchange("forming the group", Vec::new())?;
        Ok(Box::new(rank_end))
    }
}

#[derive(Debug, Default)]
struct ExchangeTable {
    state: Mutex<ExchangeState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ExchangeState {
    /// By call: the bytes of each rank, and how many ranks have taken them.
    calls: BTreeMap<u64, ExchangeCall>,
    left: Vec<usize>,
}

#[derive(Debug, Default)]
struct ExchangeCall {
    brought: BTreeMap<usize, Arc<Vec<u8>>>,
    taken: usize,
}

/// A sum under way: the number of the call, and of the values.
type StartedCall = (u64, usize);

struct InProcessRank {
    table: Arc<ExchangeTable>,
    rank: usize,
    world: usize,
    timeout: Duration,
    calls: u64,
    interrupt: GroupInterrupt,
}

impl InProcessRank {
    /// Adds `mine` to this rank's next call and waits for the bytes of the others. Returns all, by rank.
    fn exchange(&mut self, call: &'static str, mine: Vec<u8>) -> Result<Vec<Arc<Vec<u8>>>, CollectiveError> {
        let number = self.post_bytes(mine);
        self.collect_bytes(call, number)
    }

    /// Adds `mine` to this rank's next call. Returns the number of the call.
    fn post_bytes(&mut self, mine: Vec<u8>) -> u64 {
        self.calls += 1;
        let mut state = self.table.state.lock();
        state.calls.entry(self.calls).or_default().brought.insert(self.rank, Arc::new(mine));
        self.table.changed.notify_all();
        self.calls
    }

    fn collect_bytes(&self, call: &'static str, number: u64) -> Result<Vec<Arc<Vec<u8>>>, CollectiveError> {
        let started = Instant::now();
        let mut state = self.table.state.lock();
        loop {
            let brought = &state.calls.entry(number).or_default().brought;
            if brought.len() == self.world {
                return Ok(self.take_bytes(&mut state, number));
            }
            let missing: Vec<usize> = (0..self.world).filter(|rank| !brought.contains_key(rank)).collect();
            let gone: Vec<usize> = missing.iter().copied().filter(|rank| state.left.contains(rank)).collect();
            let waited = started.elapsed();
            if !gone.is_empty() {
                let reason = "left the group".to_owned();
                return Err(CollectiveError::Missing { ranks: gone, call, waited, reason });
            }
            if waited >= self.timeout || self.interrupt.is_set() {
                let reason =
                    if waited >= self.timeout { "not here in time" } else { GroupInterrupt::REASON }.to_owned();
                return Err(CollectiveError::Missing { ranks: missing, call, waited, reason });
            }
            self.table.changed.wait_until(&mut state, (started + self.timeout).min(Instant::now() + WAIT_SLICE));
        }
    }

    /// Takes the bytes of a call. The last rank to take them removes the call.
    fn take_bytes(&self, state: &mut ExchangeState, number: u64) -> Vec<Arc<Vec<u8>>> {
        let Some(call) = state.calls.get_mut(&number) else { return Vec::new() };
        call.taken += 1;
        let all = call.brought.values().cloned().collect();
        if call.taken == self.world {
            state.calls.remove(&number);
        }
        all
    }
}

impl Drop for InProcessRank {
    fn drop(&mut self) {
        self.table.state.lock().left.push(self.rank);
        self.table.changed.notify_all();
    }
}

impl CollectiveGroup for InProcessRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world
    }

    fn start_all_reduce_sum(&mut self, values: Vec<f32>) -> Result<PendingSum, CollectiveError> {
        let call = self.post_bytes(bytemuck::cast_slice(&values).to_vec());
        Ok(PendingSum::new((call, values.len())))
    }

    fn wait(&mut self, pending: PendingSum) -> Result<Vec<f32>, CollectiveError> {
        let (call, length) = pending.into_state::<StartedCall>()?;
        let mut values = vec![0.0; length];
        for brought in self.collect_bytes("an all-reduce", call)? {
            for (value, word) in values.iter_mut().zip_eq(brought.as_chunks::<4>().0) {
                *value += f32::from_ne_bytes(*word);
            }
        }
        Ok(values)
    }

    fn reduce_scatter_sum(&mut self, mut values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        check_bounds(bounds, self.world, values.len())?;
        let own = bounds[self.rank]..bounds[self.rank + 1];
        let (first, end) = (bounds[0], bounds[self.world]);
        let all = self.exchange("a reduce-scatter", bytemuck::cast_slice(&values[first..end]).to_vec())?;
        values[own.clone()].fill(0.0);
        for brought in all {
            let part = &brought.as_chunks::<4>().0[own.start - first..own.end - first];
            values[own.clone()].iter_mut().zip_eq(part).for_each(|(sum, word)| *sum += f32::from_ne_bytes(*word));
        }
        Ok(values)
    }

    fn all_gather_parts(&mut self, mut values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        check_bounds(bounds, self.world, values.len())?;
        let own = &values[bounds[self.rank]..bounds[self.rank + 1]];
        let all = self.exchange("a gather of parts", bytemuck::cast_slice(own).to_vec())?;
        for (brought, bounds) in all.iter().zip_eq(bounds.windows(2)) {
            let part = values[bounds[0]..bounds[1]].iter_mut();
            part.zip_eq(brought.as_chunks::<4>().0).for_each(|(value, word)| *value = f32::from_ne_bytes(*word));
        }
        Ok(values)
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let all = self.exchange("a gather", mine.to_vec())?;
        Ok(all.iter().map(|brought| brought.to_vec()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use proptest::prelude::*;
    use zagros_collective::TcpRendezvous;

    use super::*;
    use crate::testing::{self, place};

    #[test]
    fn sums_equal_a_plain_sum_for_all_worlds_and_lengths() {
        testing::check_against_plain_sums(
            || {
                let rendezvous = InProcess::default();
                move |_| Box::new(rendezvous.clone())
            },
            5,
        );
    }

    #[test]
    fn a_rank_that_never_comes_is_named_after_the_timeout() {
        let mut place = place(0, 3, "");
        place.timeout = Duration::from_millis(50);
        let error = InProcess::default().form_group(&place).err().unwrap();
        assert_eq!(error.missing_ranks(), [1, 2]);
        assert!(error.to_string().contains("ranks 1, 2 did not take part in forming the group"), "{error}");
    }

    #[test]
    fn a_rank_that_is_known_to_be_gone_is_not_waited_for() {
        let place = ProcessGroupConfig { timeout: Duration::from_secs(3600), ..place(0, 2, "") };
        place.interrupt.set();
        let error = InProcess::default().form_group(&place).err().unwrap();
        assert!(error.missing_ranks() == [1] && error.to_string().contains("was interrupted"), "{error}");
    }

    #[test]
    fn a_rank_that_leaves_is_named_at_once_and_the_next_generation_forms() {
        let rendezvous = InProcess::default();
        let ranks = testing::ranks(2, move |rank| {
            let mut group = rendezvous.form_group(&place(rank, 2, "")).unwrap();
            if rank == 1 {
                drop(group);
            } else {
                let error = group.all_reduce_sum(&mut [1.0]).unwrap_err();
                assert_eq!(error.missing_ranks(), [1]);
                assert!(error.to_string().contains("left the group"), "{error}");
            }
            let next = ProcessGroupConfig { generation: 2, ..place(rank, 2, "") };
            rendezvous.form_group(&next).unwrap().all_gather(&[rank as u8]).unwrap()
        });
        assert_eq!(ranks, [[[0], [1]], [[0], [1]]]);
    }

    /// A worker's rendezvous on loopback.
    fn tcp_end() -> TcpRendezvous {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        TcpRendezvous::new(listener, address).unwrap()
    }

    /// Values of many sizes: another order of the ranks gives other sums.
    fn value(seed: u32, rank: usize, index: usize) -> f32 {
        let mixed = (u64::from(seed) << 32 | (rank << 24 | index) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 40) as f32 - 8e6) * 2_f32.powi((mixed >> 8) as i32 % 16)
    }

    /// Bits after a sum, of a part of one and after a gather of parts, and the bytes that were gathered.
    type RankResults = ([Vec<u32>; 3], Vec<Vec<u8>>);

    /// What each rank has after one call of each kind.
    fn results(
        form: impl Fn(usize) -> Box<dyn CollectiveGroup> + Sync,
        seed: u32,
        bounds: &[usize],
    ) -> Vec<RankResults> {
        let (world, length) = (bounds.len() - 1, bounds[bounds.len() - 1]);
        testing::ranks(world, |rank| {
            let mut group = form(rank);
            let values: Vec<f32> = (0..length).map(|index| value(seed, rank, index)).collect();
            let pending = group.start_all_reduce_sum(values.clone()).unwrap();
            let part =
                group.reduce_scatter_sum(values.clone(), bounds).unwrap()[bounds[rank]..bounds[rank + 1]].to_vec();
            let gathered = group.all_gather_parts(values, bounds).unwrap();
            let bytes = group.all_gather(&vec![rank as u8; length / (rank + 1)]).unwrap();
            let sums = group.wait(pending).unwrap();
            ([sums, part, gathered].map(|values| values.into_iter().map(f32::to_bits).collect()), bytes)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_group_over_tcp_gives_each_rank_the_same_bits(
            length in 0_usize..6_000, seed in any::<u32>(), inner in prop::collection::vec(0_usize..6_000, 1..5)
        ) {
            let mut bounds: Vec<usize> = inner.iter().map(|bound| bound.min(&length)).copied().chain([0, length]).collect();
            bounds.sort_unstable();
            let (world, in_process) = (bounds.len() - 1, InProcess::default());
            let ends: Vec<TcpRendezvous> = (0..world).map(|_| tcp_end()).collect();
            let addresses: Vec<String> = ends.iter().map(|end| end.address().to_owned()).collect();
            let places =
                |rank| ProcessGroupConfig { addresses: addresses.clone(), ..testing::place(rank, world, "") };
            let found = results(|rank| ends[rank].form_group(&places(rank)).unwrap(), seed, &bounds);
            let expected = results(|rank| in_process.form_group(&places(rank)).unwrap(), seed, &bounds);
            prop_assert!(found.iter().all(|([sums, ..], _)| *sums == found[0].0[0]), "ranks have other sums");
            prop_assert!(found == expected, "other values than over TCP");
        }
    }
}
