//! A pause of a run at a point of its training: a checkpoint is written, and the same command goes on from it. A sweep compares its
//! trials there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zagros_dense_worker::{HeldOutPart, Observer, WorkerEvent};
use zagros_plumbing::lifecycle::Shutdown;

/// When a run pauses: once the validation part was scored at this point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PausePoint {
    Steps(u64),
    Epochs(u64),
}

/// Requests the end of a run at a point, and passes all events on.
pub(crate) struct RunPause {
    point: PausePoint,
    shutdown: Shutdown,
    next: Arc<dyn Observer>,
    /// Step of the last end of an epoch, and of the last score; 0 before the first.
    epoch_end: AtomicU64,
    scored: AtomicU64,
    has_paused: AtomicBool,
}

impl RunPause {
    pub(crate) fn new(point: PausePoint, shutdown: Shutdown, next: Arc<dyn Observer>) -> Self {
        let (epoch_end, scored) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { point, shutdown, next, epoch_end, scored, has_paused: AtomicBool::new(false) }
    }

    /// Whether the run was asked to end here.
    pub(crate) fn has_paused(&self) -> bool {
        self.has_paused.load(Ordering::Acquire)
    }

    fn is_at_point(&self, event: &WorkerEvent) -> bool {
        match (self.point, event) {
            (PausePoint::Steps(steps), WorkerEvent::Evaluated { part: HeldOutPart::Validation, step, .. }) => {
                *step >= steps
            }
            (PausePoint::Epochs(epochs), WorkerEvent::EpochEnded { epoch, step, .. })
                if u64::from(*epoch) + 1 >= epochs =>
            {
                self.epoch_end.store(*step, Ordering::Release);
                self.scored.load(Ordering::Acquire) == *step
            }
            (PausePoint::Epochs(_), WorkerEvent::Evaluated { part: HeldOutPart::Validation, step, .. }) => {
                self.scored.store(*step, Ordering::Release);
                self.epoch_end.load(Ordering::Acquire) == *step
            }
            _ => false,
        }
    }
}

impl Observer for RunPause {
    fn observe(&self, event: &WorkerEvent) {
        self.next.observe(event);
        if self.is_at_point(event) && !self.has_paused.swap(true, Ordering::AcqRel) {
            self.shutdown.request();
        }
    }
}

#[cfg(test)]
mod tests {
    use zagros_dense_worker::{Evaluation, ObserverList};

    use super::*;

    fn scored(step: u64, epoch: u32, part: HeldOutPart) -> WorkerEvent {
        WorkerEvent::Evaluated { step, part, epoch, evaluation: Evaluation::default(), targets: Vec::new() }
    }

    /// The number of events after which the run is asked to end.
    fn paused_after(point: PausePoint, events: &[WorkerEvent]) -> Option<usize> {
        let shutdown = Shutdown::new();
        let pause = RunPause::new(point, shutdown.clone(), Arc::new(ObserverList::default()));
        let position = events.iter().position(|event| {
            pause.observe(event);
            shutdown.is_requested()
        });
        assert_eq!(pause.has_paused(), position.is_some());
        position
    }

    #[test]
    fn a_run_pauses_once_the_validation_part_is_scored_at_the_point() {
        use HeldOutPart::{Test, Validation};
        let events = [scored(10, 0, Validation), scored(20, 0, Test), scored(20, 0, Validation)];
        assert_eq!(paused_after(PausePoint::Steps(20), &events), Some(2));
        assert_eq!(paused_after(PausePoint::Steps(21), &events), None);
    }

    #[test]
    fn an_epoch_is_over_once_it_has_ended_and_was_scored() {
        let ended = |epoch| {
            let (step, training) = (9 * (u64::from(epoch) + 1), Evaluation::default());
            WorkerEvent::EpochEnded { step, epoch, training }
        };
        let first = [ended(0), scored(9, 0, HeldOutPart::Validation)];
        let mid_epoch = [scored(12, 1, HeldOutPart::Validation), ended(1), scored(18, 1, HeldOutPart::Validation)];
        let events = [&first[..], &mid_epoch].concat();
        assert_eq!(paused_after(PausePoint::Epochs(1), &events), Some(1));
        let paused = paused_after(PausePoint::Epochs(2), &events);
        assert_eq!(paused, Some(4), "a score within the epoch is not that of its end");
        let other_order = [scored(9, 0, HeldOutPart::Validation), ended(0)];
        assert_eq!(paused_after(PausePoint::Epochs(1), &other_order), Some(1));
    }
}
