//! A dense worker's process: what its driver and its clients know, and what it does at its turn. It joins, beats, sends its pushes, reports
//! complete splits, and performs what its training loop says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use zagros_coordinator_core::{Core, CoreInput, MemberSlot};
use zagros_protocol::control::assign_response::Work;
use zagros_protocol::control::{
    AssignRequest, CompleteRequest, GroupRequest, GroupResponse, HeartbeatRequest, JoinRequest, LeaveRequest, Outcome,
    PositionRequest, PositionResponse, Progress,
};
use zagros_protocol::{BucketMap, Generation, Refusal, RefusalKind};
use zagros_worker_core::{Action, Event, LoopConfig, LoopEnd, StepFacts, TrainingPolicy};

use super::recorded::{CoreCall, LEASE, join_request};
use super::server::{BucketNumber, PushAnswer, PushId, PushPart};
use super::world::{BEAT, BUCKETS, HistoryPlan, RunWorld};
use crate::simulated::{BatchId, SeededDice, SimulatedWorker, plain_reply};

/// A split, by epoch.
pub(crate) type SplitId = (u32, u64);

/// A push without all its answers.
#[derive(Clone, Debug)]
pub(crate) struct OpenPush {
    pub(crate) id: PushId,
    pub(crate) split: SplitId,
    pub(crate) left: BTreeSet<BucketNumber>,
}

#[derive(Default)]
pub(crate) struct WorkerProcess {
    /// Its training loop starts once it has joined.
    pub(crate) worker: SimulatedWorker,
    pub(crate) instance: u64,
    pub(crate) member: u64,
    /// 0 until it has joined.
    pub(crate) incarnation: u32,
    pub(crate) next_beat: Duration,
    /// When its last answered heartbeat was sent.
    pub(crate) heard: Duration,
    pub(crate) newest_group: u64,
    pub(crate) broken_group: u64,
    pub(crate) group: Option<GroupResponse>,
    pub(crate) is_forming: bool,
    /// The number of its next ballot in its group.
    pub(crate) ballot: u64,
    /// The newest barrier that it has asked for.
    pub(crate) asked_barrier: u64,
    pub(crate) counted: VotedSteps,
    pub(crate) map: Option<BucketMap>,
    pub(crate) is_outdated: bool,
    pub(crate) next_seq: u64,
    pub(crate) pushes: Vec<OpenPush>,
    pub(crate) has_stream: bool,
    /// Batches of a split that are not trained on yet.
    pub(crate) open: BTreeMap<SplitId, u64>,
    /// Turns that it takes to save; `None` before it begins.
    pub(crate) unsaved: Option<u64>,
    pub(crate) has_left: bool,
}

/// What asynchronous workers have counted at their last vote: steps by index, and those of processes that have gone since.
#[derive(Clone, Debug, Default)]
pub(crate) struct VotedSteps {
    pub(crate) by_worker: BTreeMap<u32, u64>,
    gone: u64,
}

impl VotedSteps {
    pub(crate) fn others_steps(&self, index: usize) -> u64 {
        let others = self.by_worker.iter().filter(|(other, _)| **other as usize != index);
        self.gone + others.map(|(_, steps)| steps).sum::<u64>()
    }

    pub(crate) fn note_departed(&mut self, is_gone: impl Fn(usize) -> bool) {
        let gone = self.by_worker.extract_if(.., |index, _| is_gone(*index as usize));
        self.gone += gone.map(|(_, steps)| steps).sum::<u64>();
    }
}

impl WorkerProcess {
    /// The process and its member slot, as calls of the coordinator name them.
    pub(crate) fn identity(&self) -> (u64, u32) {
        (self.member, self.incarnation)
    }

    /// It has given its group up and has no other yet.
    pub(crate) fn is_forming_anew(&self) -> bool {
        self.is_forming && self.worker.is_forming()
    }

    /// Splits whose every gradient is acknowledged.
    pub(crate) fn completed(&self) -> Vec<SplitId> {
        let is_pushed = |split: &SplitId| self.pushes.iter().all(|push| push.split != *split);
        self.open.iter().filter(|(split, left)| **left == 0 && is_pushed(split)).map(|(split, _)| *split).collect()
    }

    /// Nothing is in flight, and every complete split is reported.
    pub(crate) fn is_drained(&self) -> bool {
        self.pushes.is_empty() && self.completed().is_empty()
    }

    pub(crate) fn is_saving(&self) -> bool {
        matches!(self.worker.at, Action::Save { .. })
    }
}

/// Pushes without an answer that a worker has at most.
const STALENESS: usize = 4;

/// A question, which changes nothing but the time.
impl CoreCall for PositionRequest {
    type Answer = PositionResponse;

    fn to_input(&self) -> CoreInput {
        CoreInput::Tick
    }

    fn make(&self, core: &mut Core, now: Duration) -> Result<PositionResponse, Refusal> {
        core.tick(now);
        core.view_position(self)
    }
}

pub(crate) fn batches_of(split: SplitId) -> u64 {
    1 + split.1 % 3
}

/// The buckets with rows of a batch.
fn buckets_of(batch: BatchId) -> BTreeSet<BucketNumber> {
    let mut dice = SeededDice::new(u64::from(batch.0) << 32 | batch.1 << 8 | batch.2);
    let mut buckets: BTreeSet<BucketNumber> = (0..BUCKETS).filter(|_| dice.one_in(3)).collect();
    buckets.insert(dice.below(u64::from(BUCKETS)) as u32);
    buckets
}

impl RunWorld {
    pub(crate) fn process(&mut self, index: usize) -> &mut WorkerProcess {
        self.workers[index].as_mut().expect("it runs")
    }

    pub(crate) fn worker(&mut self, index: usize) -> &mut SimulatedWorker {
        &mut self.process(index).worker
    }

    pub(crate) fn worker_turn(&mut self, index: usize) {
        let Some(worker) = self.workers[index].as_ref().filter(|worker| !worker.has_left) else { return };
        if worker.incarnation == 0 {
            return self.join_worker(index);
        }
        // A process that only has to leave is a member no more once the coordinator has heard so.
        let only_leaves = matches!(worker.worker.ending, Some(LoopEnd::Left | LoopEnd::Interrupted));
        if worker.next_beat <= self.now && !only_leaves {
            self.beat_of_worker(index);
            return;
        }
        if worker.is_outdated && !self.loses() {
            if let Some(placement) = self.placement().filter(|placement| placement.generation > 0) {
                let process = self.process(index);
                process.map = BucketMap::unpack_owners(Generation(placement.generation), &placement.owners).ok();
                process.is_outdated = false;
            }
            return;
        }
        let has_pushes = !self.process(index).pushes.is_empty();
        if has_pushes && !self.dice.one_in(3) {
            return self.send_some_push(index);
        }
        if let Some(split) = self.process(index).completed().first().copied()
            && !self.dice.one_in(3)
        {
            return self.complete(index, split);
        }
        self.act(index);
    }

    fn join_worker(&mut self, index: usize) {
        let instance = self.process(index).instance;
        let joins = join_request(MemberSlot::worker(index as u32), instance, self.files());
        // Its supervisor has seen the end of the process before.
        let request = JoinRequest { supersede: true, ..joins };
        let Some(Ok(joined)) = self.ask(&request) else { return };
        let (now, is_late) = (self.now, index as u32 >= self.plan.first_workers());
        let HistoryPlan { policy, epochs, max_steps, early_stop, .. } = self.plan;
        let process = self.process(index);
        if joined.over {
            (process.worker.ending, process.has_left) = (Some(LoopEnd::Finished), true);
            return;
        }
        process.worker = SimulatedWorker::start(LoopConfig {
            epochs,
            max_steps,
            early_stop,
            evaluate_every: (!policy.is_asynchronous()).then_some(3),
            resets_rows: !policy.is_asynchronous(),
            checkpoint_every: (index == 0).then_some(5),
            is_replacement: joined.incarnation > 1 || is_late,
            ..crate::config(policy)
        });
        (process.member, process.incarnation) = (joined.member, joined.incarnation);
        (process.is_forming, process.is_outdated, process.next_seq) = (true, true, 1);
        (process.heard, process.next_beat) = (now, now + BEAT);
    }

    fn beat_of_worker(&mut self, index: usize) {
        let progress = self.worker(index).has_trained().then(Progress::default);
        let process = self.process(index);
        let ((member, incarnation), barrier) = (process.identity(), process.asked_barrier);
        let leaving = process.worker.stop;
        let request =
            HeartbeatRequest { member, incarnation, progress, barrier, leaving, ..HeartbeatRequest::default() };
        let Some(answer) = self.ask_as_worker(index, &request) else { return };
        let now = self.now;
        let process = self.process(index);
        if answer.finished {
            // It has come too late to train.
            (process.worker.ending, process.has_left) = (Some(LoopEnd::Finished), true);
            return;
        }
        (process.heard, process.next_beat) = (now, now + BEAT);
        (process.newest_group, process.broken_group) = (answer.group, answer.broken_group);
        let worker = &mut process.worker;
        worker.heard_barrier = worker.heard_barrier.max(answer.barrier);
        worker.stop |= !answer.draining.is_empty();
        worker.leaves |= answer.leave;
        process.is_outdated |= process.map.as_ref().is_none_or(|map| map.generation().0 < answer.generation);
    }

    /// Whether its own clock proves its lease (invariant MB-3).
    fn has_proof(&mut self, index: usize) -> bool {
        let now = self.now;
        now - self.process(index).heard < LEASE * 2 / 3
    }

    /// Makes a call of the coordinator. A worker that is fenced ends. `None` without an answer: it tries again.
    pub(crate) fn ask_as_worker<R: CoreCall>(&mut self, index: usize, request: &R) -> Option<R::Answer> {
        match self.ask(request)? {
            Ok(answer) => return Some(answer),
            Err(refusal) if refusal.kind == RefusalKind::Fenced => self.kill_worker(index),
            Err(refusal) => assert_eq!(refusal.kind, RefusalKind::Unavailable, "worker {index} is refused: {refusal}"),
        }
        None
    }

    pub(crate) fn make_push(&mut self, index: usize, batch: BatchId) {
        let split = (batch.0, batch.1);
        let buckets = buckets_of(batch);
        let process = self.process(index);
        let id = PushId { writer: process.member, incarnation: process.incarnation, seq: process.next_seq };
        process.next_seq += 1;
        process.pushes.push(OpenPush { id, split, left: buckets.clone() });
        *process.open.get_mut(&split).expect("a split that it holds") -= 1;
        let trainer = (index as u32, process.incarnation);
        let trainers = self.ledger.trained.entry(batch).or_default();
        assert!(!trainers.contains(&trainer), "{trainer:?} trains on {batch:?} twice");
        trainers.push(trainer);
        self.ledger.made.insert(id, buckets);
    }

    /// Sends a part of a push to the server that has its buckets.
    fn send_some_push(&mut self, index: usize) {
        let count = self.process(index).pushes.len() as u64;
        let chosen = self.dice.below(count) as usize;
        let Some(map) = self.process(index).map.clone() else { return };
        let push = self.process(index).pushes[chosen].clone();
        let owner = |bucket: BucketNumber| map.bucket_owner(bucket).expect("every bucket has one").0 as usize;
        let servers: Vec<usize> = push.left.iter().map(|bucket| owner(*bucket)).collect();
        let server = servers[self.dice.below(servers.len() as u64) as usize];
        let buckets: BTreeSet<BucketNumber> =
            push.left.iter().copied().filter(|bucket| owner(*bucket) == server).collect();
        let part = PushPart { generation: map.generation().0, id: push.id, buckets };
        self.copy_of_push(server, &part);
        if self.loses() {
            return;
        }
        let answer = self.push_to(server, &part);
        if self.loses() || self.workers[index].is_none() {
            return;
        }
        match answer {
            PushAnswer::Acknowledged => self.acknowledged(index, chosen, &part),
            PushAnswer::Moved => self.process(index).is_outdated = true,
            PushAnswer::Fenced => self.kill_worker(index),
            PushAnswer::Unavailable | PushAnswer::Died => {}
        }
    }

    fn acknowledged(&mut self, index: usize, chosen: usize, part: &PushPart) {
        let pushes = &mut self.process(index).pushes;
        pushes[chosen].left.retain(|bucket| !part.buckets.contains(bucket));
        if pushes[chosen].left.is_empty() {
            pushes.remove(chosen);
        }
        self.ledger.acknowledged.extend(part.buckets.iter().map(|bucket| (part.id, *bucket)));
    }

    fn complete(&mut self, index: usize, split: SplitId) {
        let (member, incarnation) = self.process(index).identity();
        let (epoch, splits) = (split.0, vec![split.1]);
        let request = CompleteRequest { member, incarnation, epoch, splits, ..CompleteRequest::default() };
        let answer = self.ask_as_worker(index, &request);
        if self.is_taken {
            self.note_completed(split, (index as u32, incarnation));
        }
        if answer.is_some() {
            self.process(index).open.remove(&split);
        }
    }

    fn act(&mut self, index: usize) {
        let action = self.worker(index).at;
        if let Action::End(ending) = action {
            return self.leave(index, ending);
        }
        if !matches!(action, Action::Form { .. }) && self.is_collective(&action) {
            return self.meet(index);
        }
        let event = match action {
            Action::Form { after, .. } => return self.form(index, after),
            Action::FindStream(epoch) => self.find_stream(index, epoch),
            Action::WaitForSplits { barriers_after, .. } => {
                Some(self.call_due(index, barriers_after).unwrap_or(Event::WaitOver))
            }
            Action::NextBatch { stop, barriers_after, .. } => self.next_batch(index, stop, barriers_after),
            Action::Step { .. } => Some(self.step(index, None)),
            Action::Vote(reason) => self.vote(index, reason),
            Action::Drain | Action::CompleteStream | Action::LeaveGroup | Action::CloseRound { .. } => {
                self.process(index).is_drained().then(|| {
                    self.worker(index).put_batch_back();
                    plain_reply(&action)
                })
            }
            Action::Save { together: true, .. } => self.save_together(index),
            action => Some(plain_reply(&action)),
        };
        if let Some(event) = event.filter(|_| self.workers[index].is_some()) {
            self.tell(index, event);
        }
    }

    pub(crate) fn tell(&mut self, index: usize, event: Event) {
        let process = self.process(index);
        for action in process.worker.reply(event) {
            match action {
                Action::StartRound { stream, .. } => process.has_stream = stream,
                Action::AskForBarrier(number) => process.asked_barrier = process.asked_barrier.max(number),
                _ => {}
            }
        }
        process.is_forming |= process.worker.is_forming();
    }

    fn leave(&mut self, index: usize, ending: LoopEnd) {
        assert!(!matches!(ending, LoopEnd::Failed(_)), "worker {index}: {ending:?}: {}", self.describe());
        let holds = !self.process(index).open.is_empty();
        assert!(ending != LoopEnd::Left || !holds, "worker {index} leaves with splits: {}", self.describe());
        let (member, incarnation) = self.process(index).identity();
        let outcome = if ending == LoopEnd::Finished { Outcome::Finished } else { Outcome::Interrupted };
        let request = LeaveRequest { member, incarnation, outcome: outcome.into(), ..LeaveRequest::default() };
        // Where it is refused, the run is over: an answer to an earlier call was lost.
        if self.ask_as_worker(index, &request).is_some() {
            self.process(index).has_left = true;
            if ending == LoopEnd::Left {
                self.note("worker left");
            }
        }
    }

    fn form(&mut self, index: usize, after: u64) {
        if matches!(self.plan.policy, TrainingPolicy::OneWorker { .. }) {
            return self.tell(index, Event::Formed { group: None, progress: Vec::new() });
        }
        if self.process(index).is_forming {
            let (member, incarnation) = self.process(index).identity();
            let request = GroupRequest { member, incarnation, after };
            let answer = self.ask_as_worker(index, &request);
            if let Some(group) = answer.filter(|group| group.generation > after) {
                let process = self.process(index);
                process.worker.generation = group.generation;
                (process.group, process.is_forming, process.ballot) = (Some(group), false, 1);
            }
            return;
        }
        self.meet(index);
    }

    /// What an asynchronous worker listens for: a barrier that it has not been at, and a newer group than its own.
    fn call_due(&mut self, index: usize, barriers_after: Option<u64>) -> Option<Event> {
        let (after, process) = (barriers_after?, self.process(index));
        if process.worker.heard_barrier > after {
            return Some(Event::BarrierDue);
        }
        (process.newest_group > process.worker.generation).then_some(Event::GroupDue)
    }

    fn find_stream(&mut self, index: usize, epoch: u32) -> Option<Event> {
        if self.worker(index).stop {
            return Some(Event::Interrupted);
        }
        if !self.worker(index).stream.is_empty() {
            return Some(Event::StreamFound);
        }
        let otherwise = match self.assign(index, epoch, false)? {
            Work::Split(split) => {
                self.take_split(index, (epoch, split.id));
                return Some(Event::StreamFound);
            }
            Work::Wait(_) => Event::SplitsHeld { pause: Duration::from_millis(1), checkpoint_by_time: false },
            Work::EpochDone(done) if done.leave => Event::LetGo,
            Work::EpochDone(_) => Event::NoSplits,
            Work::ResumeCursor(cursor) => panic!("a run from the start has no {cursor:?}"),
        };
        Some(if self.take_those_never_given(index, epoch)? { Event::StreamFound } else { otherwise })
    }

    fn assign(&mut self, index: usize, epoch: u32, continuing: bool) -> Option<Work> {
        let (member, incarnation) = self.process(index).identity();
        let request = AssignRequest { member, incarnation, epoch, continuing, ..AssignRequest::default() };
        self.ask_as_worker(index, &request)?.work
    }

    /// Splits that are this worker's by the coordinator's books, and whose assignment was lost on its way.
    fn take_those_never_given(&mut self, index: usize, epoch: u32) -> Option<bool> {
        let (member, incarnation) = self.process(index).identity();
        let request = PositionRequest { member, incarnation, epoch };
        let position = self.ask_as_worker(index, &request)?;
        let open = self.process(index).open.clone();
        let is_missing = |split: &u64| !open.contains_key(&(epoch, *split));
        let missing: Vec<u64> = position.held.into_iter().filter(is_missing).collect();
        missing.iter().for_each(|split| self.take_split(index, (epoch, *split)));
        Some(!missing.is_empty())
    }

    fn take_split(&mut self, index: usize, split: SplitId) {
        let completer = self.ledger.completed.get(&split);
        assert_eq!(completer, None, "a split that is complete is dealt out again");
        let process = self.process(index);
        process.open.insert(split, batches_of(split));
        process.worker.stream.extend((0..batches_of(split)).map(|number| (split.0, split.1, number)));
    }

    pub(crate) fn step_facts(&mut self, index: usize) -> StepFacts {
        let checkpoint_by_time = self.dice.one_in(30);
        let process = self.process(index);
        StepFacts { checkpoint_by_time, newest_group: process.newest_group, leaves: process.worker.leaves }
    }

    fn next_batch(&mut self, index: usize, stop: bool, barriers_after: Option<u64>) -> Option<Event> {
        if stop && self.worker(index).stop {
            return Some(Event::StopRequested);
        }
        if let Some(due) = self.call_due(index, barriers_after) {
            return Some(due);
        }
        if !self.has_proof(index) || self.process(index).pushes.len() > STALENESS {
            return None;
        }
        let facts = self.step_facts(index);
        if self.worker(index).stream.is_empty() && self.process(index).has_stream {
            let epoch = self.worker(index).training.epoch();
            match self.assign(index, epoch, true)? {
                Work::Split(split) => self.take_split(index, (epoch, split.id)),
                Work::Wait(_) | Work::EpochDone(_) => return Some(Event::StreamDry(facts)),
                Work::ResumeCursor(cursor) => panic!("a run from the start has no {cursor:?}"),
            }
        }
        let worker = self.worker(index);
        worker.batch = worker.stream.pop_front();
        Some(if worker.batch.is_some() { Event::BatchReady(facts) } else { Event::StreamDry(facts) })
    }
}
