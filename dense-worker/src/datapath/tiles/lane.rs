//! The lane of layers: a thread that makes the workers' calls for layers, one after another.
//!
//! All ranks make the same calls in the same order. A layer's weights are gathered before they are used, and its gradients are
//! summed after that, while the step computes with another layer.

use std::sync::mpsc;

use zagros_collective::CollectiveGroup;

use crate::error::WorkerError;

type LaneCall = Box<dyn FnOnce(&mut dyn CollectiveGroup) + Send>;

/// The thread ends once the handle is dropped and all calls are made.
#[derive(Debug)]
pub(super) struct LayerLane {
    pub(super) rank: usize,
    pub(super) world: usize,
    calls: mpsc::Sender<LaneCall>,
}

impl LayerLane {
    /// Starts the thread with a process group of its own.
    pub(super) fn start(mut group: Box<dyn CollectiveGroup>) -> Result<Self, WorkerError> {
        let (rank, world) = (group.rank(), group.world_size());
        let (send, calls) = mpsc::channel::<LaneCall>();
        let run = move || calls.into_iter().for_each(|call| call(group.as_mut()));
        let spawned = std::thread::Builder::new().name("layers".to_owned()).spawn(run);
        spawned.map_err(|error| WorkerError::Thread { thread: "layers", reason: format!("cannot start: {error}") })?;
        Ok(Self { rank, world, calls: send })
    }

    /// Makes a call after those before. A call that is never made drops what it owns.
    pub(super) fn call(&self, call: impl FnOnce(&mut dyn CollectiveGroup) + Send + 'static) {
        // The thread ends early only with a panic. The caller that waits for the call learns of it.
        let _ = self.calls.send(Box::new(call));
    }
}

#[cfg(test)]
mod tests {
    use zagros_collective::SingleRank;

    use super::*;

    #[test]
    fn calls_are_made_in_their_order_also_after_the_handle_is_gone() {
        let lane = LayerLane::start(Box::new(SingleRank)).unwrap();
        assert_eq!((lane.rank, lane.world), (0, 1));
        let (tell, heard) = mpsc::channel();
        for number in 0..100 {
            let tell = tell.clone();
            lane.call(move |group| tell.send((number, group.world_size())).unwrap());
        }
        drop((lane, tell));
        assert_eq!(heard.iter().collect::<Vec<_>>(), (0..100).map(|number| (number, 1)).collect::<Vec<_>>());
    }
}
