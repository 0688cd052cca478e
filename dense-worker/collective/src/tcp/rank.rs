//! A rank of a group over TCP: a thread makes its calls one after another, in the order in which they were started.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use super::limit::WaitLimit;
use super::mesh::RankMesh;
use crate::{CollectiveError, CollectiveGroup, PendingSum, check_bounds};

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
