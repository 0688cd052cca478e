//! Faults of `docs/runbook.md` that touch a worker, each by value: what happens to the worker, and what it does.

use crate::{HYBRID, config};
use zagros_worker_core::{
    Action, BarrierDecision, BarrierReason, EarlyStopRule, Event, FailureCause, GroupFailure, GroupMember, InFlight,
    LoopConfig, LoopCounts, LoopEnd, LoopState, MeasuredState, RankProgress, StepAgreement, StepFacts, StepVote,
    TrainingLoop, TrainingPolicy,
};

const ALONE: TrainingPolicy = TrainingPolicy::OneWorker { in_turns: false };
const IN_TURNS: TrainingPolicy = TrainingPolicy::SynchronousGroup { in_turns: true };
const FAILED: Action = Action::End(LoopEnd::Failed(FailureCause::LastEvent));
const FACTS: StepFacts = StepFacts { checkpoint_by_time: false, newest_group: 1, leaves: false };

fn progress(steps: u64) -> RankProgress {
    RankProgress { has_trained: true, epoch: 0, steps, evaluated: 0, barriers: 0 }
}

fn agreed(samples: u64) -> Event {
    Event::Agreed(StepAgreement { samples, ..StepAgreement::default() })
}

fn lost(generation: u64) -> Event {
    Event::Lost(GroupFailure { generation, about_others: true, stop_requested: false })
}

fn member(rank: u32, generation: u64) -> Option<GroupMember> {
    Some(GroupMember { rank, generation })
}

/// Replies with these events, one after another. Returns the actions that follow the last.
fn reply_all(training: &mut TrainingLoop, events: impl IntoIterator<Item = Event>) -> Vec<Action> {
    events.into_iter().fold(Vec::new(), |_, event| training.on_event(event))
}

/// Rank 0 of a group, or a lone worker, with its first batch.
fn training(config: LoopConfig) -> TrainingLoop {
    let mut training = TrainingLoop::new(config);
    training.start();
    let group = match config.policy {
        TrainingPolicy::OneWorker { .. } => None,
        _ => member(0, 1),
    };
    let counts = LoopCounts { untouched: true, ..LoopCounts::default() };
    let formed = Event::Formed { group, progress: vec![RankProgress::default(); 2] };
    reply_all(&mut training, [formed, Event::Ready(counts), Event::StreamFound]);
    training
}

fn last(actions: &[Action]) -> Action {
    *actions.last().expect("actions")
}

#[test]
fn what_a_worker_cannot_continue_after_ends_it() {
    let started = |config| {
        let mut worker = TrainingLoop::new(config);
        worker.start();
        worker
    };
    let replacement = started(LoopConfig { is_replacement: true, ..config(HYBRID) });
    let alone = Event::Formed { group: member(0, 3), progress: vec![RankProgress::default(); 2] };
    let stopping = Event::Lost(GroupFailure { generation: 1, about_others: true, stop_requested: true });
    let nobody_left = Action::End(LoopEnd::Failed(FailureCause::NobodyLeft));
    for (fault, mut worker, event, end) in [
        ("coordinator down: it stays away", started(config(HYBRID)), Event::Failed, FAILED),
        ("embedding server down: a lookup fails", training(config(HYBRID)), Event::Failed, FAILED),
        ("worker down before any step: no other group forms", started(config(HYBRID)), lost(1), FAILED),
        ("all workers down: replacements have nothing to continue from", replacement, alone, nobody_left),
        ("exit code 143: it does not wait for a lost worker", training(config(HYBRID)), stopping, FAILED),
    ] {
        assert_eq!(worker.on_event(event), [end], "{fault}");
    }
}

#[test]
fn worker_down_the_others_wait_for_its_replacement_and_push_what_others_have_made() {
    let mut worker = training(config(HYBRID));
    reply_all(&mut worker, [Event::BatchReady(FACTS), agreed(128)]);
    assert_eq!(worker.on_event(lost(1)), [Action::ReportLost, Action::LeaveGroup]);
    assert_eq!(worker.on_event(Event::Left), [Action::Form { after: 1, progress: progress(0) }]);
    // The other rank has all sums of the step; the replacement has nothing.
    let ranks = vec![progress(0), progress(1), RankProgress::default()];
    let formed = Event::Formed { group: member(0, 2), progress: ranks };
    let follow = Action::Follow { source: 1, in_flight: InFlight::Push, adopt: true, same_epoch: true };
    assert_eq!(worker.on_event(formed), [follow]);
    let ready = Event::Ready(LoopCounts { steps: 1, ..LoopCounts::default() });
    assert_eq!(worker.on_event(ready), [Action::FindStream(0)]);
}

/// Invariant RK-6: a replacement of the first worker gets the dense network from a worker that waited for the save.
#[test]
fn worker_down_the_others_stay_until_the_first_has_saved() {
    let mut worker = training(LoopConfig { epochs: 1, has_held_out: false, ..config(HYBRID) });
    let dry = [Event::StreamDry(FACTS), agreed(0), Event::Drained, Event::Drained, Event::AllHere, Event::EpochClosed];
    let actions = reply_all(&mut worker, dry);
    assert_eq!(last(&actions), Action::Conclude { finished: true });
    let save = Action::Save { finished: true, together: true };
    assert_eq!(worker.on_event(Event::Concluded), [save]);
    assert_eq!(worker.on_event(lost(1)), [Action::ReportLost, Action::LeaveGroup]);
    worker.on_event(Event::Left);
    let ranks = vec![RankProgress::default(), worker.rank_progress()];
    assert_eq!(ranks[1].epoch, 1);
    let formed = Event::Formed { group: member(1, 2), progress: ranks };
    assert!(matches!(worker.on_event(formed)[..], [Action::Follow { source: 1, adopt: false, .. }]));
    let counts = LoopCounts { epoch: 1, evaluated: Some(0), ..LoopCounts::default() };
    assert_eq!(worker.on_event(Event::Ready(counts)), [Action::Conclude { finished: true }]);
    assert_eq!(worker.on_event(Event::Concluded), [save]);
    assert_eq!(worker.on_event(Event::Saved), [Action::End(LoopEnd::Finished)]);
}

#[test]
fn worker_down_in_mode_sync_the_run_ends() {
    let mut worker = training(config(IN_TURNS));
    let ends = [Action::WarnNoRegroup, FAILED];
    assert_eq!(worker.on_event(lost(1)), ends);
}

/// The barrier is due again in the next group, because no worker was at it.
#[test]
fn worker_down_at_a_barrier_the_others_come_again_with_its_replacement() {
    let mut worker = training(config(TrainingPolicy::AsynchronousWorkers));
    assert_eq!(worker.on_event(Event::BarrierDue), [Action::Vote(BarrierReason::Checkpoint)]);
    assert_eq!(worker.on_event(lost(1)), [Action::ReportLost, Action::LeaveGroup]);
    reply_all(&mut worker, [Event::Left]);
    let new = RankProgress { has_trained: false, ..progress(0) };
    let follow = Action::Follow { source: 0, in_flight: InFlight::ReadAgain, adopt: false, same_epoch: true };
    assert_eq!(worker.on_event(Event::Formed { group: member(0, 2), progress: vec![progress(0), new] }), [follow]);
    reply_all(&mut worker, [Event::Ready(LoopCounts::default()), Event::StreamFound]);
    assert_eq!(worker.on_event(Event::BarrierDue), [Action::Vote(BarrierReason::Checkpoint)]);
}

/// Each asynchronous worker counts its own steps. A replacement goes to the barriers after those that are over.
#[test]
fn worker_down_the_others_train_on_and_take_its_replacement_in_between_two_steps() {
    let mut worker = training(config(TrainingPolicy::AsynchronousWorkers));
    assert_eq!(worker.on_event(Event::GroupDue), [Action::ReportJoin, Action::LeaveGroup]);
    assert!(matches!(worker.on_event(Event::Left)[..], [Action::Form { after: 1, .. }]));
    let others = vec![progress(7), progress(0)];
    let formed = |rank, progress| Event::Formed { group: member(rank, 2), progress };
    assert!(matches!(worker.on_event(formed(1, others))[..], [Action::Follow { source: 0, adopt: false, .. }]));
    let mut replacement = TrainingLoop::new(config(TrainingPolicy::AsynchronousWorkers));
    replacement.start();
    let after_barrier = RankProgress { barriers: 4, ..progress(7) };
    let new = RankProgress { has_trained: false, ..progress(0) };
    let follow = replacement.on_event(formed(1, vec![after_barrier, new]));
    assert!(matches!(follow[..], [Action::Follow { source: 0, adopt: true, .. }]), "{follow:?}");
    reply_all(&mut replacement, [Event::Ready(LoopCounts::default())]);
    let first = replacement.on_event(Event::StreamFound);
    assert!(matches!(first[..], [.., Action::NextBatch { barriers_after: Some(4), .. }]), "{first:?}");
}

/// It has trained on all that it has read, and holds no split. The others form a group without it.
#[test]
fn exit_code_143_a_worker_that_the_run_can_do_without_leaves_between_two_steps() {
    let leaves = StepFacts { leaves: true, ..FACTS };
    let mut leaver = training(config(HYBRID));
    let with_batch = Action::Agree { vote: StepVote::default(), batch: true };
    assert_eq!(leaver.on_event(Event::BatchReady(leaves)), [with_batch], "what it has read is trained on");
    reply_all(&mut leaver, [agreed(128), Event::Stepped { ahead: None }]);
    let regroup = StepVote { regroup: true, ..StepVote::default() };
    assert_eq!(leaver.on_event(Event::StreamDry(leaves)), [Action::Agree { vote: regroup, batch: false }]);
    let all = Event::Agreed(StepAgreement { samples: 64, regroup: true, ..StepAgreement::default() });
    assert_eq!(leaver.on_event(all.clone()), [Action::ReportJoin, Action::LeaveGroup]);
    assert_eq!(leaver.on_event(Event::Left), [Action::CompleteStream]);
    assert_eq!(leaver.on_event(Event::Drained), [Action::End(LoopEnd::Left)]);

    let mut other = training(config(HYBRID));
    reply_all(&mut other, [Event::BatchReady(FACTS), all]);
    assert!(matches!(other.on_event(Event::Left)[..], [Action::Form { after: 1, .. }]));
    // In mode sync no worker leaves so.
    let mut sync = training(config(IN_TURNS));
    assert_eq!(sync.on_event(Event::StreamDry(leaves)), [Action::Agree { vote: StepVote::default(), batch: false }]);
}

#[test]
fn worker_down_four_groups_in_a_row_without_a_step_end_the_run() {
    let mut worker = training(config(HYBRID));
    for generation in 1..=3 {
        assert_eq!(last(&worker.on_event(lost(generation))), Action::LeaveGroup);
        let group = member(0, generation + 1);
        reply_all(&mut worker, [Event::Left, Event::Formed { group, progress: vec![progress(0); 2] }]);
    }
    assert_eq!(last(&worker.on_event(lost(4))), FAILED);
}

#[test]
fn worker_down_a_group_that_fails_while_it_forms_is_formed_again_three_times() {
    let mut worker = training(config(HYBRID));
    reply_all(&mut worker, [lost(1), Event::Left]);
    for generation in 2..=4 {
        let form = Action::Form { after: generation, progress: progress(0) };
        assert_eq!(worker.on_event(lost(generation)), [Action::ReportLost, form]);
    }
    assert_eq!(worker.on_event(lost(5)), [Action::ReportLost, Action::LeaveGroup]);
}

#[test]
fn training_stalled_a_worker_without_splits_waits_or_steps_with_the_others() {
    let held = || Event::SplitsHeld { pause: std::time::Duration::from_secs(1), checkpoint_by_time: false };
    let alone = || vec![Event::StreamDry(FACTS), Event::Drained, Event::Drained, held()];
    let dry = vec![Event::StreamDry(FACTS), agreed(64), Event::Stepped { ahead: None }, Event::StreamDry(FACTS)];
    let with_others = [dry, vec![agreed(0), Event::Drained, Event::Drained, held()]].concat();
    let found = |policy, events: Vec<Event>| last(&reply_all(&mut training(config(policy)), events));
    let one = found(ALONE, alone());
    assert!(matches!(one, Action::WaitForSplits { .. }), "{one:?}");
    let asynchronous = found(TrainingPolicy::AsynchronousWorkers, alone());
    assert!(matches!(asynchronous, Action::WaitForSplits { barriers_after: Some(0), .. }), "{asynchronous:?}");
    assert!(matches!(found(HYBRID, with_others), Action::NextBatch { .. }));
}

#[test]
fn not_finite_a_skipped_step_counts_and_a_loss_without_sense_ends_the_run() {
    let mut worker = training(LoopConfig { max_steps: Some(1), ..config(HYBRID) });
    reply_all(&mut worker, [Event::BatchReady(FACTS), agreed(64)]);
    assert_eq!(last(&worker.on_event(Event::Stepped { ahead: None })), Action::CloseRound { checked: true });
    let mut worker = training(config(HYBRID));
    reply_all(&mut worker, [Event::BatchReady(FACTS), agreed(64)]);
    assert_eq!(worker.on_event(Event::Failed), [FAILED]);
}

#[test]
fn checkpoint_failed_training_goes_on() {
    let mut worker = training(LoopConfig { checkpoint_every: Some(1), ..config(ALONE) });
    reply_all(&mut worker, [Event::BatchReady(FACTS), Event::Stepped { ahead: None }]);
    let next = Action::NextBatch { stop: true, deadline: false, barriers_after: None };
    assert_eq!(worker.on_event(Event::CheckpointDone), [Action::ReleasePermit, next]);
}

/// SIGTERM or Ctrl-C of this process or of another of the run.
#[test]
fn exit_code_143_a_group_finishes_its_step_and_makes_the_last_checkpoint() {
    let mut worker = training(config(HYBRID));
    let vote = StepVote { stop: true, ..StepVote::default() };
    assert_eq!(worker.on_event(Event::StopRequested), [Action::Agree { vote, batch: false }]);
    let stops = StepAgreement { samples: 64, stop: true, ..StepAgreement::default() };
    assert_eq!(worker.on_event(Event::Agreed(stops)), [Action::CloseRound { checked: false }]);
    assert_eq!(worker.on_event(Event::Drained), [Action::FinalCheckpoint]);
    let concludes = [Action::ReleasePermit, Action::Conclude { finished: false }];
    assert_eq!(worker.on_event(Event::CheckpointDone), concludes);
    assert_eq!(worker.on_event(Event::Concluded), [Action::Save { finished: false, together: false }]);
    assert_eq!(worker.on_event(Event::Saved), [Action::End(LoopEnd::Interrupted)]);
}

/// All know of the batch from the step before, and divide the step's gradient by its samples too. A worker that cannot bring
/// it makes no step in its place: the samples would be counted and not trained on, and trained on again later.
#[test]
fn coordinator_down_a_batch_that_all_have_agreed_on_is_stepped_with_or_nothing_is() {
    let mut worker = training(config(HYBRID));
    let agreement = StepAgreement { samples: 128, ..StepAgreement::default() };
    reply_all(&mut worker, [Event::BatchReady(FACTS), agreed(128)]);
    let waits = Action::NextBatch { stop: false, deadline: false, barriers_after: None };
    assert_eq!(last(&worker.on_event(Event::Stepped { ahead: Some(agreement) })), waits);
    // What the wait for the batch, or for the proof of the lease, may end with.
    for event in [Event::Interrupted, Event::StopRequested, Event::BatchLate, Event::StreamDry(FACTS)] {
        let actions = worker.clone().on_event(event.clone());
        assert!(matches!(actions[..], [Action::End(LoopEnd::Failed(_))]), "{event:?}: {actions:?}");
    }
    assert!(matches!(worker.on_event(Event::BatchReady(FACTS))[..], [Action::Step { batch: true, .. }]));
}

#[test]
fn exit_code_143_in_turns_a_batch_whose_lookup_was_counted_is_trained_on() {
    let mut worker = training(config(IN_TURNS));
    let waits = Action::NextBatch { stop: false, deadline: true, barriers_after: None };
    assert_eq!(worker.on_event(Event::StopRequested), [waits]);
    let vote = StepVote { stop: true, ..StepVote::default() };
    assert_eq!(worker.on_event(Event::BatchReady(FACTS)), [Action::Agree { vote, batch: true }]);
    let stops = StepAgreement { samples: 64, stop: true, ..StepAgreement::default() };
    assert_eq!(worker.on_event(Event::Agreed(stops)), [Action::Step { batch: true, ahead: None, last: true }]);
    assert_eq!(worker.on_event(Event::Stepped { ahead: None }), [Action::CloseRound { checked: false }]);
}

#[test]
fn exit_code_143_asynchronous_workers_stop_at_a_barrier() {
    let mut worker = training(config(TrainingPolicy::AsynchronousWorkers));
    assert_eq!(worker.on_event(Event::StopRequested), [Action::CloseRound { checked: false }]);
    assert_eq!(worker.on_event(Event::Drained), [Action::AskForBarrier(1), Action::Vote(BarrierReason::Stop)]);
    // Another one was called in the midst of training.
    let mut other = training(config(TrainingPolicy::AsynchronousWorkers));
    assert_eq!(other.on_event(Event::BarrierDue), [Action::Vote(BarrierReason::Checkpoint)]);
    let stops = || Event::BarrierDecided { decision: BarrierDecision::Stop, called: 1, others_steps: 3 };
    assert_eq!(worker.on_event(stops()), [Action::FinalCheckpoint]);
    assert_eq!(other.on_event(stops()), [Action::CloseRound { checked: false }]);
    assert_eq!(other.on_event(Event::Drained), [Action::FinalCheckpoint], "it has voted already");
}

#[test]
fn an_interrupted_evaluation_is_made_before_the_first_step_of_the_next_process() {
    let mut worker = TrainingLoop::new(LoopConfig { evaluate_every: Some(4), ..config(ALONE) });
    worker.start();
    worker.on_event(Event::Formed { group: None, progress: Vec::new() });
    assert_eq!(worker.on_event(Event::Ready(LoopCounts { steps: 8, ..LoopCounts::default() })), [Action::Evaluate]);
    assert_eq!(worker.on_event(Event::Interrupted), [Action::Conclude { finished: false }]);
}

/// One worker, whose search ends with an evaluation that is not the best.
fn searching(evaluate_every: u64) -> TrainingLoop {
    let early_stop = Some(EarlyStopRule { patience: 1, min_delta: 0.0 });
    training(LoopConfig { evaluate_every: Some(evaluate_every), early_stop, ..config(ALONE) })
}

fn evaluated(merit: f64) -> Event {
    Event::Evaluated { measured: Some(MeasuredState { value: merit, merit }) }
}

#[test]
fn early_stopping_ends_the_round_and_the_run() {
    let mut worker = searching(1);
    let step = || [Event::BatchReady(FACTS), Event::Stepped { ahead: None }, Event::Drained];
    let actions = reply_all(&mut worker, step().into_iter().chain([evaluated(0.7)]));
    assert!(matches!(last(&actions), Action::NextBatch { .. }), "{actions:?}");
    let actions = reply_all(&mut worker, step().into_iter().chain([evaluated(0.6)]));
    assert_eq!(actions, [Action::CloseRound { checked: true }]);
    assert_eq!(worker.search_state().best_state().map(|best| best.step), Some(1));
    assert_eq!(worker.on_event(Event::Drained), [Action::CloseEpoch { epoch: 0, check_books: false }]);
    assert_eq!(last(&worker.on_event(Event::EpochClosed)), Action::Conclude { finished: true });
    assert_eq!(worker.on_event(Event::Concluded), [Action::Save { finished: true, together: false }]);
    assert_eq!(worker.on_event(Event::Saved), [Action::End(LoopEnd::Finished)]);
    assert_eq!(worker.state(), LoopState::Ended(LoopEnd::Finished));
}

/// The end of an epoch one step after an evaluation: the same state once more, which would end the search.
#[test]
fn an_epoch_that_ends_right_after_an_evaluation_spends_no_patience() {
    let mut worker = searching(3);
    let step = || [Event::BatchReady(FACTS), Event::Stepped { ahead: None }];
    let three = step().into_iter().chain(step()).chain(step());
    reply_all(&mut worker, three.chain([Event::Drained, evaluated(0.7)]).chain(step()));
    let end = [Event::StreamDry(FACTS), Event::Drained, Event::Drained, Event::NoSplits, Event::EpochClosed];
    assert_eq!(last(&reply_all(&mut worker, end)), Action::Evaluate);
    let actions = worker.on_event(evaluated(0.6));
    assert!(actions.contains(&Action::FindStream(1)), "{actions:?}");
}
