//! What a dense worker does at its turn: it joins, beats, sends its pushes, reports complete splits, and performs what its training loop says.

use std::collections::BTreeSet;
use std::time::Duration;

use zagros_coordinator_core::{Core, CoreInput, Role};
use zagros_protocol::control::assign_response::Work;
use zagros_protocol::control::{
    AssignRequest, CompleteRequest, GroupRequest, HeartbeatRequest, JoinRequest, LeaveRequest, Outcome,
    PositionRequest, Progress,
};
use zagros_protocol::{BucketMap, Generation, PROTOCOL_VERSION, Refusal, RefusalKind};
use zagros_worker_core::{Action, Event, LoopConfig, LoopEnd, StepFacts, TrainingLoop, TrainingPolicy};

use super::SeededDice;
use super::server::{BucketNumber, PushAnswer, PushId, PushPart};
use super::worker::{BatchId, OpenPush, SplitId, WorkerProcess};
use super::world::{BEAT, BUCKETS, LEASE, RunWorld};

/// Pushes without an answer that a worker has at most.
const STALENESS: usize = 4;

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
    pub(crate) fn worker(&mut self, index: usize) -> &mut WorkerProcess {
        self.workers[index].as_mut().expect("it runs")
    }

    pub(crate) fn worker_turn(&mut self, index: usize) {
        let Some(worker) = self.workers[index].as_ref().filter(|worker| !worker.has_left) else { return };
        if worker.incarnation == 0 {
            return self.join_worker(index);
        }
        if worker.next_beat <= self.now {
            self.beat_of_worker(index);
            return;
        }
        if worker.is_outdated && !self.loses() {
            let now = self.now;
            if let Some(placement) = self.coordinator.placement(now).filter(|placement| placement.generation > 0) {
                let worker = self.worker(index);
                worker.map = BucketMap::unpack_owners(Generation(placement.generation), &placement.owners).ok();
                worker.is_outdated = false;
            }
            return;
        }
        let has_pushes = !self.worker(index).pushes.is_empty();
        if has_pushes && !self.dice.one_in(3) {
            return self.send_some_push(index);
        }
        if let Some(split) = self.worker(index).completed().first().copied()
            && !self.dice.one_in(3)
        {
            return self.complete(index, split);
        }
        self.act(index);
    }

    fn join_worker(&mut self, index: usize) {
        let instance = self.worker(index).instance;
        let request = JoinRequest {
            role: Role::DenseWorker.to_wire(),
            index: index as u32,
            address: format!("worker:{instance}"),
            instance,
            job_fingerprint: 1,
            protocol_version: PROTOCOL_VERSION,
            files: self.files(),
            // Its supervisor has seen the end of the process before.
            supersede: true,
            ..JoinRequest::default()
        };
        let answer = self.ask(CoreInput::Join(request.clone()), |core, now| core.join(now, &request));
        let Some(Ok(joined)) = answer else { return };
        let (now, epochs) = (self.now, self.plan.epochs);
        let worker = self.worker(index);
        if joined.over {
            (worker.ending, worker.has_left) = (Some(LoopEnd::Finished), true);
            return;
        }
        let mut training = TrainingLoop::new(LoopConfig {
            epochs,
            evaluate_every: Some(7),
            resets_rows: true,
            checkpoint_every: Some(5),
            is_replacement: joined.incarnation > 1,
            ..crate::config(TrainingPolicy::SynchronousGroup { in_turns: false })
        });
        worker.at = *training.start().last().expect("a first action");
        worker.training = Some(training);
        (worker.member, worker.incarnation) = (joined.member, joined.incarnation);
        (worker.heard, worker.next_beat) = (now, now + BEAT);
    }

    fn beat_of_worker(&mut self, index: usize) {
        let worker = self.worker(index);
        let progress = worker.has_trained().then(Progress::default);
        let (member, incarnation) = (worker.member, worker.incarnation);
        let request = HeartbeatRequest { member, incarnation, progress, ..HeartbeatRequest::default() };
        let input = CoreInput::Heartbeat(request.clone());
        let answer = self.ask_as_worker(index, input, |core, now| core.heartbeat(now, &request));
        let Some(answer) = answer else { return };
        let now = self.now;
        let worker = self.worker(index);
        if answer.finished {
            // It has come too late to train.
            (worker.ending, worker.has_left) = (Some(LoopEnd::Finished), true);
            return;
        }
        (worker.heard, worker.next_beat) = (now, now + BEAT);
        (worker.newest_group, worker.broken_group) = (answer.group, answer.broken_group);
        worker.is_outdated |= worker.map.as_ref().is_none_or(|map| map.generation().0 < answer.generation);
    }

    /// Whether its own clock proves its lease (invariant MB-3).
    fn has_proof(&mut self, index: usize) -> bool {
        let now = self.now;
        now - self.worker(index).heard < LEASE * 2 / 3
    }

    /// Makes a call of the coordinator. A worker that is fenced ends. `None` without an answer: it tries again.
    pub(crate) fn ask_as_worker<A>(
        &mut self,
        index: usize,
        input: CoreInput,
        call: impl FnOnce(&mut Core, Duration) -> Result<A, Refusal>,
    ) -> Option<A> {
        match self.ask(input, call)? {
            Ok(answer) => return Some(answer),
            Err(refusal) if refusal.kind == RefusalKind::Fenced => self.kill_worker(index),
            Err(refusal) => assert_eq!(refusal.kind, RefusalKind::Unavailable, "worker {index} is refused: {refusal}"),
        }
        None
    }

    pub(crate) fn make_push(&mut self, index: usize, batch: BatchId) {
        let split = (batch.0, batch.1);
        let buckets = buckets_of(batch);
        let worker = self.worker(index);
        let id = PushId { writer: worker.member, incarnation: worker.incarnation, seq: worker.next_seq };
        worker.next_seq += 1;
        worker.pushes.push(OpenPush { id, split, left: buckets.clone() });
        *worker.open.get_mut(&split).expect("a split that it holds") -= 1;
        let trainer = (index as u32, worker.incarnation);
        let trainers = self.ledger.trained.entry(batch).or_default();
        assert!(!trainers.contains(&trainer), "{trainer:?} trains on {batch:?} twice");
        trainers.push(trainer);
        self.ledger.made.insert(id, buckets);
    }

    /// Sends a part of a push to the server that has its buckets.
    fn send_some_push(&mut self, index: usize) {
        let count = self.worker(index).pushes.len() as u64;
        let chosen = self.dice.below(count) as usize;
        let Some(map) = self.worker(index).map.clone() else { return };
        let push = self.worker(index).pushes[chosen].clone();
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
            PushAnswer::Moved => self.worker(index).is_outdated = true,
            PushAnswer::Fenced => self.kill_worker(index),
            PushAnswer::Unavailable | PushAnswer::Died => {}
        }
    }

    fn acknowledged(&mut self, index: usize, chosen: usize, part: &PushPart) {
        let worker = self.worker(index);
        let push = &mut worker.pushes[chosen];
        push.left.retain(|bucket| !part.buckets.contains(bucket));
        if push.left.is_empty() {
            worker.pushes.remove(chosen);
        }
        self.ledger.acknowledged.extend(part.buckets.iter().map(|bucket| (part.id, *bucket)));
    }

    fn complete(&mut self, index: usize, split: SplitId) {
        let worker = self.worker(index);
        let (member, incarnation) = (worker.member, worker.incarnation);
        let (epoch, splits) = (split.0, vec![split.1]);
        let request = CompleteRequest { member, incarnation, epoch, splits, ..CompleteRequest::default() };
        let input = CoreInput::Complete(request.clone());
        // What the coordinator has taken counts, also where its answer is lost.
        let mut is_taken = false;
        let answer = self.ask_as_worker(index, input, |core, now| {
            let answer = core.complete(now, &request);
            is_taken = answer.is_ok();
            answer
        });
        if is_taken {
            self.note_completed(split, (index as u32, incarnation));
        }
        if answer.is_some() {
            self.worker(index).open.remove(&split);
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
            Action::NextBatch { .. } => self.next_batch(index),
            Action::Drain | Action::CompleteStream => self.worker(index).is_drained().then_some(Event::Drained),
            Action::LeaveGroup | Action::CloseRound { .. } => self.worker(index).is_drained().then(|| {
                let worker = self.worker(index);
                if let Some(batch) = worker.batch.take() {
                    worker.stream.push_front(batch);
                }
                if action == Action::LeaveGroup { Event::Left } else { Event::Drained }
            }),
            Action::Conclude { finished: false } => Some(Event::Concluded),
            Action::Save { together: false, .. } => Some(Event::Saved),
            Action::Save { .. } => self.save_together(index),
            action => panic!("{action:?} is not expected in this mode"),
        };
        if let Some(event) = event.filter(|_| self.workers[index].is_some()) {
            self.tell(index, event);
        }
    }

    pub(crate) fn tell(&mut self, index: usize, event: Event) {
        let worker = self.worker(index);
        let actions = worker.training.as_mut().expect("it has joined").on_event(event);
        let (last, before) = actions.split_last().expect("actions follow");
        worker.at = *last;
        for action in before {
            if let Action::StartRound { stream, .. } = action {
                worker.has_stream = *stream;
            }
        }
        if matches!(last, Action::Form { .. }) {
            worker.is_forming = true;
        }
        if let Action::End(ending) = last {
            worker.ending = Some(*ending);
        }
    }

    fn leave(&mut self, index: usize, ending: LoopEnd) {
        assert_eq!(ending, LoopEnd::Finished, "worker {index}");
        let worker = self.worker(index);
        let (member, incarnation) = (worker.member, worker.incarnation);
        let request =
            LeaveRequest { member, incarnation, outcome: Outcome::Finished.into(), ..LeaveRequest::default() };
        let input = CoreInput::Leave(request.clone());
        // Where it is refused, the run is over: an answer to an earlier call was lost.
        if self.ask_as_worker(index, input, |core, now| core.leave(now, &request)).is_some() {
            self.worker(index).has_left = true;
        }
    }

    fn form(&mut self, index: usize, after: u64) {
        if self.worker(index).is_forming {
            let (member, incarnation) = (self.worker(index).member, self.worker(index).incarnation);
            let request = GroupRequest { member, incarnation, after };
            let answer = self.ask_as_worker(index, CoreInput::Group(request), |core, now| core.group(now, &request));
            if let Some(group) = answer.filter(|group| group.generation > after) {
                let worker = self.worker(index);
                (worker.group, worker.is_forming) = (Some(group), false);
            }
            return;
        }
        self.meet(index);
    }

    fn find_stream(&mut self, index: usize, epoch: u32) -> Option<Event> {
        if !self.worker(index).stream.is_empty() {
            return Some(Event::StreamFound);
        }
        let otherwise = match self.assign(index, epoch, false)? {
            Work::Split(split) => {
                self.take_split(index, (epoch, split.id));
                return Some(Event::StreamFound);
            }
            Work::Wait(_) => Event::SplitsHeld { pause: Duration::from_millis(1), checkpoint_by_time: false },
            Work::EpochDone(_) => Event::NoSplits,
            Work::ResumeCursor(cursor) => panic!("a run from the start has no {cursor:?}"),
        };
        Some(if self.take_those_never_given(index, epoch)? { Event::StreamFound } else { otherwise })
    }

    fn assign(&mut self, index: usize, epoch: u32, continuing: bool) -> Option<Work> {
        let (member, incarnation) = (self.worker(index).member, self.worker(index).incarnation);
        let request = AssignRequest { member, incarnation, epoch, continuing, ..AssignRequest::default() };
        self.ask_as_worker(index, CoreInput::Assign(request), |core, now| core.assign(now, &request))?.work
    }

    /// Splits that are this worker's by the coordinator's books, and whose assignment was lost on its way.
    fn take_those_never_given(&mut self, index: usize, epoch: u32) -> Option<bool> {
        let request =
            PositionRequest { member: self.worker(index).member, incarnation: self.worker(index).incarnation, epoch };
        let position = self.ask_as_worker(index, CoreInput::Tick, |core, now| core.position(now, &request))?;
        let open = self.worker(index).open.clone();
        let is_missing = |split: &u64| !open.contains_key(&(epoch, *split));
        let missing: Vec<u64> = position.held.into_iter().filter(is_missing).collect();
        missing.iter().for_each(|split| self.take_split(index, (epoch, *split)));
        Some(!missing.is_empty())
    }

    fn take_split(&mut self, index: usize, split: SplitId) {
        let completer = self.ledger.completed.get(&split);
        assert_eq!(completer, None, "a split that is complete is dealt out again");
        let worker = self.worker(index);
        worker.open.insert(split, batches_of(split));
        worker.stream.extend((0..batches_of(split)).map(|number| (split.0, split.1, number)));
    }

    fn next_batch(&mut self, index: usize) -> Option<Event> {
        if !self.has_proof(index) || self.worker(index).pushes.len() > STALENESS {
            return None;
        }
        let (checkpoint_by_time, newest_group) = (self.dice.one_in(30), self.worker(index).newest_group);
        let facts = StepFacts { checkpoint_by_time, newest_group, leaves: false };
        if self.worker(index).stream.is_empty() && self.worker(index).has_stream {
            let epoch = self.worker(index).epoch();
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
