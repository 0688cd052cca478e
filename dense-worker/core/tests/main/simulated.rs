//! What the simulation is made of: chance by a seed, and a worker, which is a training loop with what its driver
//! keeps for it.

use std::collections::VecDeque;

use zagros_worker_core::{
    Action, Event, GroupFailure, InFlight, LoopConfig, LoopCounts, LoopEnd, MeasuredState, RankProgress, StepAgreement,
    TrainingLoop,
};

/// A batch: epoch, split, number in the split.
pub(crate) type BatchId = (u32, u64, u64);

/// Chance by a seed: `SplitMix64`.
#[derive(Clone, Debug)]
pub(crate) struct SeededDice(u64);

impl SeededDice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }

    pub(crate) fn one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }
}

pub(crate) struct SimulatedWorker {
    pub(crate) training: TrainingLoop,
    /// What it does: the action whose reply it waits for.
    pub(crate) at: Action,
    /// That of its group; 0 without one.
    pub(crate) generation: u64,
    pub(crate) steps: u64,
    pub(crate) evaluated: Option<u64>,
    /// Read and not trained on.
    pub(crate) stream: VecDeque<BatchId>,
    pub(crate) batch: Option<BatchId>,
    /// The batch of a step in which its group failed.
    pub(crate) in_flight: Option<BatchId>,
    /// It was asked to end, and the whole run with it.
    pub(crate) stop: bool,
    /// It was asked to end, and the run goes on without it.
    pub(crate) leaves: bool,
    /// The newest barrier that it has heard of.
    pub(crate) heard_barrier: u64,
    pub(crate) ending: Option<LoopEnd>,
}

/// One that has joined no run.
impl Default for SimulatedWorker {
    fn default() -> Self {
        Self::start(crate::config(crate::HYBRID))
    }
}

impl SimulatedWorker {
    pub(crate) fn start(config: LoopConfig) -> Self {
        let mut training = TrainingLoop::new(config);
        Self {
            at: *training.start().last().expect("a first action"),
            training,
            generation: 0,
            steps: 0,
            evaluated: None,
            stream: VecDeque::new(),
            batch: None,
            in_flight: None,
            stop: false,
            leaves: false,
            heard_barrier: 0,
            ending: None,
        }
    }

    pub(crate) fn has_trained(&self) -> bool {
        self.training.rank_progress().has_trained
    }

    pub(crate) fn is_forming(&self) -> bool {
        matches!(self.at, Action::Form { .. })
    }

    /// Gives the actions without a reply that come before the next one with a reply.
    pub(crate) fn reply(&mut self, event: Event) -> Vec<Action> {
        let mut actions = self.training.on_event(event);
        self.at = actions.pop().expect("actions follow");
        assert!(actions.iter().all(|action| !action.has_reply()), "{actions:?}");
        if let Action::End(ending) = self.at {
            self.ending = Some(ending);
        }
        actions
    }

    /// What must be equal on all who take part in a call. Only the workers of a group make each step together.
    pub(crate) fn describe_call(&self, counts_steps: bool) -> String {
        let step = if counts_steps { self.steps } else { 0 };
        match self.at {
            Action::Form { .. } => "form".to_owned(),
            Action::Follow { source, .. } => format!("follow {source}"),
            Action::Agree { .. } => format!("agree on {step}"),
            Action::Step { last, .. } => format!("step {step}, last: {last}"),
            Action::Vote(_) => "vote".to_owned(),
            action => format!("{action:?} of epoch {} after {step}", self.training.epoch()),
        }
    }

    pub(crate) fn lose_call(&mut self) -> Event {
        if let Action::Step { batch: true, .. } = self.at {
            self.in_flight = self.batch.take();
        }
        Event::Lost(GroupFailure { generation: self.generation, about_others: true, stop_requested: self.stop })
    }

    /// Gives the batch of this worker that the step was made with: its gradients are pushed.
    pub(crate) fn make_step(&mut self) -> Option<BatchId> {
        let Action::Step { batch, .. } = self.at else { unreachable!() };
        self.steps += 1;
        self.batch.take().filter(|_| batch)
    }

    /// The batch that no step was made with is read again.
    pub(crate) fn put_batch_back(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.stream.push_front(batch);
        }
    }

    pub(crate) fn evaluate(&mut self, others_steps: u64, measured: Option<MeasuredState>) -> Event {
        assert!(self.in_flight.is_none());
        self.evaluated = Some(self.steps + others_steps);
        Event::Evaluated { measured }
    }

    pub(crate) fn counts(&self) -> LoopCounts {
        let (epoch, search) = (self.training.epoch(), self.training.search_state());
        LoopCounts { epoch, steps: self.steps, evaluated: self.evaluated, search, ..LoopCounts::default() }
    }

    /// Takes what it is to take of the most advanced worker's state. Asynchronous workers each count their own steps.
    /// Gives the counts to go on with, and the batch in flight that another rank has made the step of: its gradients are
    /// pushed.
    pub(crate) fn follow(&mut self, lead: LoopCounts, is_asynchronous: bool) -> (LoopCounts, Option<BatchId>) {
        let Action::Follow { in_flight, adopt, same_epoch, .. } = self.at else { unreachable!() };
        let mut pushed = None;
        if let Some(batch) = self.in_flight.take() {
            let was_made = lead.steps == self.steps + 1;
            let what = "gradients are pushed where another rank made the step, and only there";
            assert_eq!(in_flight == InFlight::Push, was_made, "{what}: {:?}", self.at);
            match in_flight {
                InFlight::Push => pushed = Some(batch),
                InFlight::ReadAgain => self.stream.push_front(batch),
            }
        }
        assert!(same_epoch || self.stream.is_empty(), "a stream of another epoch is left");
        let mut counts = if adopt { lead } else { self.counts() };
        if is_asynchronous {
            counts.steps = self.steps;
        }
        assert!(is_asynchronous || counts.steps == lead.steps);
        (self.steps, self.evaluated) = (counts.steps, counts.evaluated);
        (counts, pushed)
    }
}

/// A call that waits for all workers in every mode of several.
pub(crate) fn is_call_of_all(action: &Action) -> bool {
    use Action::{
        Agree, Checkpoint, CloseEpoch, Conclude, Evaluate, FinalCheckpoint, Follow, ResetRows, Resume, WaitForAll,
    };
    matches!(
        action,
        Resume
            | Follow { .. }
            | Agree { .. }
            | Evaluate
            | Checkpoint
            | FinalCheckpoint
            | WaitForAll
            | CloseEpoch { .. }
            | ResetRows
            | Conclude { finished: true }
    )
}

pub(crate) fn step_agreement(calls: &[Action]) -> StepAgreement {
    calls.iter().fold(StepAgreement::default(), |all, call| match call {
        Action::Agree { vote, batch } => all.with_vote(*vote, u64::from(*batch)),
        call => panic!("{call:?} agrees on no step"),
    })
}

/// How far all ranks are that form a group.
pub(crate) fn group_progress(calls: &[Action]) -> Vec<RankProgress> {
    let progress = |call: &Action| match call {
        Action::Form { progress, .. } => *progress,
        call => panic!("{call:?} is not to form a group"),
    };
    calls.iter().map(progress).collect()
}

/// The reply to an action that changes nothing in a simulation.
pub(crate) fn plain_reply(action: &Action) -> Event {
    match action {
        Action::Resume => Event::Ready(LoopCounts { untouched: true, ..LoopCounts::default() }),
        Action::Drain | Action::CompleteStream | Action::CloseRound { .. } => Event::Drained,
        Action::LeaveGroup => Event::Left,
        Action::Checkpoint | Action::FinalCheckpoint => Event::CheckpointDone,
        Action::WaitForAll => Event::AllHere,
        Action::CloseEpoch { .. } => Event::EpochClosed,
        Action::ResetRows => Event::RowsReset,
        Action::Conclude { .. } => Event::Concluded,
        Action::Save { .. } => Event::Saved,
        action => panic!("{action:?} is not expected in this mode"),
    }
}
