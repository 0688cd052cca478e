//! The connections of one rank to all others, and the calls over them.
//!
//! In round k of a call a rank sends to the rank k above it, and receives from the rank k below it. A rank that is in its
//! earliest round of all is therefore never waited for by the one that it waits for, and no two ranks wait for each other.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use zagros_zip::ZipEq;

use super::FormingLines;
use super::greeting::{LineKind, WaitLimit};
use crate::{
    CollectiveError, CollectiveGroup, GroupInterrupt, PendingSum, ProcessGroupConfig, ROLL_CALL, check_bounds,
};

/// Bytes that fit into the buffers of a connection, whatever its other end does: they need no thread that sends.
const SMALL: usize = 4 << 10;

/// Bytes of a gather that are received at once. So a length that is not true takes no memory.
const CHUNK: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct RankMesh {
    pub(super) rank: usize,
    pub(super) world: usize,
    timeout: Duration,
    interrupt: GroupInterrupt,
    /// From the rank one above this one on, around to the rank one below it.
    peers: Vec<MeshPeer>,
    first_failure: Option<CollectiveError>,
}

#[derive(Debug)]
struct MeshPeer {
    rank: usize,
    address: String,
    values: TcpStream,
    roll: TcpStream,
}

impl RankMesh {
    pub(super) fn new(place: &ProcessGroupConfig, mut lines: FormingLines) -> Self {
        let peer = |distance: usize| {
            let rank = (place.rank + distance) % place.world;
            let mut take = |kind| lines.remove(&(rank, kind))?.ok();
            let (values, roll) = (take(LineKind::Values)?, take(LineKind::Roll)?);
            Some(MeshPeer { rank, address: place.rank_address(rank).to_owned(), values, roll })
        };
        let peers = (1..place.world).filter_map(peer).collect();
        let (timeout, interrupt) = (place.timeout, place.interrupt.clone());
        Self { rank: place.rank, world: place.world, timeout, interrupt, peers, first_failure: None }
    }

    /// Makes a call within the group's timeout. None is made after one that has failed.
    pub(super) fn run_call<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&Self, &WaitLimit) -> Result<T, String>,
    ) -> Result<T, CollectiveError> {
        if let Some(first) = &self.first_failure {
            return Err(CollectiveError::Failed { first: Box::new(first.clone()) });
        }
        let limit = WaitLimit::new(self.timeout, self.interrupt.clone());
        let reason = match limit.check().map_err(str::to_owned).and_then(|()| work(self, &limit)) {
            Ok(done) => return Ok(done),
            Err(reason) => reason,
        };
        let waited = limit.started.elapsed();
        let error = CollectiveError::from_roll(self.call_roll(), name, waited, reason);
        self.first_failure = Some(error.clone());
        Err(error)
    }

    pub(super) fn all_reduce(&self, limit: &WaitLimit, values: &mut [f32]) -> Result<(), String> {
        let bounds: Vec<usize> = (0..=self.world).map(|rank| values.len() * rank / self.world).collect();
        self.reduce_scatter(limit, values, &bounds)?;
        self.all_gather_parts(limit, values, &bounds)
    }

    pub(super) fn reduce_scatter(&self, limit: &WaitLimit, values: &mut [f32], bounds: &[usize]) -> Result<(), String> {
        let own = bounds[self.rank]..bounds[self.rank + 1];
        let mut brought = vec![values[own.clone()].to_vec(); self.world];
        let outgoing: Vec<&[u8]> =
            bounds.windows(2).map(|ends| bytemuck::cast_slice(&values[ends[0]..ends[1]])).collect();
        let incoming = brought.iter_mut().map(|part| bytemuck::cast_slice_mut(part.as_mut_slice())).collect();
        self.exchange(limit, &outgoing, incoming)?;
        // In the order of the ranks: a sum has the same bits on every rank and in every run.
        let sums = &mut values[own];
        sums.fill(0.0);
        for part in &brought {
            sums.iter_mut().zip_eq(part).for_each(|(sum, value)| *sum += value);
        }
        Ok(())
    }

    pub(super) fn all_gather_parts(
        &self,
        limit: &WaitLimit,
        values: &mut [f32],
        bounds: &[usize],
    ) -> Result<(), String> {
        let own = values[bounds[self.rank]..bounds[self.rank + 1]].to_vec();
        let own: &[u8] = bytemuck::cast_slice(&own);
        let mut others = &mut values[bounds[0]..bounds[self.world]];
        let parts = bounds.windows(2).map(|ends| others.split_off_mut(..ends[1] - ends[0]).unwrap_or_default());
        let incoming = parts.map(bytemuck::cast_slice_mut).collect();
        self.exchange(limit, &vec![own; self.world], incoming)
    }

    /// The bytes of every rank, by rank.
    pub(super) fn all_gather(&self, limit: &WaitLimit, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let own_length = (mine.len() as u64).to_le_bytes();
        let mut lengths = vec![own_length; self.world];
        let incoming = lengths.iter_mut().map(|length| &mut length[..]).collect();
        self.exchange(limit, &vec![&own_length[..]; self.world], incoming)?;
        let lengths: Vec<usize> = lengths.into_iter().map(|length| u64::from_le_bytes(length) as usize).collect();
        let mut all: Vec<Vec<u8>> = vec![Vec::new(); self.world];
        for start in (0..lengths.iter().copied().max().unwrap_or(0)).step_by(CHUNK) {
            let end = start + CHUNK;
            all.iter_mut().zip_eq(&lengths).for_each(|(bytes, length)| bytes.resize(end.min(*length), 0));
            let incoming = all.iter_mut().map(|bytes| bytes.get_mut(start..).unwrap_or_default()).collect();
            let own = &mine[start.min(mine.len())..end.min(mine.len())];
            self.exchange(limit, &vec![own; self.world], incoming)?;
        }
        all[self.rank] = mine.to_vec();
        Ok(all)
    }

    /// Sends to each other rank what goes to it, and receives from each what comes from it, both by rank.
    fn exchange(&self, limit: &WaitLimit, outgoing: &[&[u8]], mut incoming: Vec<&mut [u8]>) -> Result<(), String> {
        let failure = OnceLock::new();
        let fail = |reason: String| {
            // What fails after that fails because the connections are closed.
            let _ = failure.set(reason);
            self.hang_up();
        };
        let send_all = || {
            if let Err(reason) = self.peers.iter().try_for_each(|peer| peer.send(limit, outgoing[peer.rank])) {
                fail(reason);
            }
        };
        thread::scope(|scope| {
            if outgoing.iter().all(|part| part.len() <= SMALL) {
                send_all();
            } else {
                scope.spawn(send_all);
            }
            let mut senders = self.peers.iter().rev();
            if let Err(reason) = senders.try_for_each(|peer| peer.receive(limit, incoming[peer.rank])) {
                fail(reason);
            }
        });
        failure.into_inner().map_or(Ok(()), Err)
    }

    /// Closes the connections for values. Ranks that wait for this one, and a thread of this one that still sends, learn it at once.
    fn hang_up(&self) {
        // One that is closed stays closed.
        self.peers.iter().for_each(|peer| drop(peer.values.shutdown(Shutdown::Both)));
    }

    /// Says that this rank is alive. Returns the ranks that do not say so, ascending. They are gone, or not in a call that has failed.
    fn call_roll(&self) -> Vec<usize> {
        self.hang_up();
        let limit = WaitLimit::new(ROLL_CALL, GroupInterrupt::default());
        // A rank that is gone does not hear it.
        self.peers.iter().for_each(|peer| drop(limit.write_all(&peer.roll, &[1])));
        let silent = self.peers.iter().filter(|peer| limit.read_all(&peer.roll, &mut [0]).is_err());
        let mut ranks: Vec<usize> = silent.map(|peer| peer.rank).collect();
        ranks.sort_unstable();
        ranks
    }
}

impl MeshPeer {
    /// A message is its length and then its bytes.
    fn send(&self, limit: &WaitLimit, bytes: &[u8]) -> Result<(), String> {
        let length = (bytes.len() as u64).to_le_bytes();
        let sent = limit.write_all(&self.values, &length).and_then(|()| limit.write_all(&self.values, bytes));
        sent.map_err(|error| format!("{}: {error}", self.address))
    }

    fn receive(&self, limit: &WaitLimit, bytes: &mut [u8]) -> Result<(), String> {
        let (mut length, due) = ([0; 8], bytes.len() as u64);
        let received = limit.read_all(&self.values, &mut length).and_then(|()| match u64::from_le_bytes(length) {
            length if length == due => limit.read_all(&self.values, bytes),
            length => Err(io::Error::other(format!(
                "it has sent {length} bytes where {due} were due; give every worker the same job and data"
            ))),
        });
        received.map_err(|error| format!("{}: {error}", self.address))
    }
}

type GroupCall = Box<dyn FnOnce(&mut RankMesh) + Send>;
type GroupAnswer<T> = Receiver<Result<T, CollectiveError>>;

/// Once it is dropped, the calls that were started are made, and then the connections are closed.
#[derive(Debug)]
pub(super) struct TcpRank {
    rank: usize,
    world: usize,
    calls: Sender<GroupCall>,
}

impl TcpRank {
    pub(super) fn start(mut mesh: RankMesh) -> Self {
        let (rank, world) = (mesh.rank, mesh.world);
        let (calls, started) = mpsc::channel::<GroupCall>();
        let run = move || started.into_iter().for_each(|call| call(&mut mesh));
        // Without a thread no call is answered.
        drop(thread::Builder::new().name("collective".to_owned()).spawn(run));
        Self { rank, world, calls }
    }

    fn start_call<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&RankMesh, &WaitLimit) -> Result<T, String> + Send + 'static,
    ) -> GroupAnswer<T> {
        let (sender, answer) = mpsc::sync_channel(1);
        let call = move |mesh: &mut RankMesh| {
            // The caller may have given the sum up.
            let _ = sender.send(mesh.run_call(name, work));
        };
        // The thread ends early only with a panic, and then there is no answer.
        let _ = self.calls.send(Box::new(call));
        answer
    }
}

/// Each call has a deadline of its own.
fn wait_for_answer<T>(answer: &GroupAnswer<T>) -> Result<T, CollectiveError> {
    answer.recv().unwrap_or_else(|_| {
        let reason = "the thread of the process group has ended".to_owned();
        Err(CollectiveError::Broken { call: "a call", waited: Duration::ZERO, reason })
    })
}

impl CollectiveGroup for TcpRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world
    }

    fn start_all_reduce_sum(&mut self, mut values: Vec<f32>) -> Result<PendingSum, CollectiveError> {
        let sum = move |mesh: &RankMesh, limit: &WaitLimit| mesh.all_reduce(limit, &mut values).map(|()| values);
        Ok(PendingSum::new(self.start_call("an all-reduce", sum)))
    }

    fn wait(&mut self, pending: PendingSum) -> Result<Vec<f32>, CollectiveError> {
        wait_for_answer(&pending.into_state::<GroupAnswer<Vec<f32>>>()?)
    }

    fn reduce_scatter_sum(&mut self, mut values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        check_bounds(bounds, self.world, values.len())?;
        let bounds = bounds.to_vec();
        wait_for_answer(&self.start_call("a reduce-scatter", move |mesh, limit| {
            mesh.reduce_scatter(limit, &mut values, &bounds).map(|()| values)
        }))
    }

    fn all_gather_parts(&mut self, mut values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        check_bounds(bounds, self.world, values.len())?;
        let bounds = bounds.to_vec();
        wait_for_answer(&self.start_call("a gather of parts", move |mesh, limit| {
            mesh.all_gather_parts(limit, &mut values, &bounds).map(|()| values)
        }))
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let mine = mine.to_vec();
        wait_for_answer(&self.start_call("a gather", move |mesh, limit| mesh.all_gather(limit, &mine)))
    }
}
