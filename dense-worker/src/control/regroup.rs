//! The workers of a run meet, and meet again when one of them was lost.
//!
//! In mode `hybrid` a lost worker does not end the run (invariant RK-3). Those left give up the step in progress, wait
//! at the coordinator for another process in the place of the lost one, form the next group with it, and all go on with
//! the state of the one that is furthest. The others' batches are not lost: what was read and not trained on is read
//! again from where the stream was broken off. The splits of the lost worker are dealt out again.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};
use zagros_collective::{CollectiveError, ProcessGroupConfig, Rendezvous};
use zagros_coordinator_client::wait_for_group;
use zagros_embedding_client::Permit;
use zagros_job::Mode;
use zagros_protocol::control::GroupResponse;

use super::blocking::blocking;
use super::fence::watch_group;
use super::peers::Peers;
use super::resume::{ResumePoint, Training};
use super::train::Trainer;
use crate::datapath::dense::{Dense, Stepped};
use crate::datapath::prepared::{Prepared, inconsistent};
use crate::datapath::push::Gradients;
use crate::datapath::standing::{Standing, furthest};
use crate::error::{WorkerError, names};
use crate::event::Event;
use crate::progress::Overall;
use crate::summary::Outcome;

/// Groups in a row in which no step is made; then something else is wrong than a worker that was lost.
const FRUITLESS: u32 = 3;

/// A batch whose step failed on this worker.
#[derive(Debug)]
pub(crate) struct Unsettled {
    pub(crate) seq: u64,
    pub(crate) prepared: Prepared,
    pub(crate) permit: Permit,
}

impl Trainer {
    /// Trains to the end, from the checkpoint if no other worker has trained in this run before; in as many groups as it
    /// takes.
    ///
    /// # Errors
    /// The first cause of whatever went wrong. A lost worker is one where none takes its place in time, and in other modes
    /// than `hybrid`.
    pub(crate) async fn train_through(&mut self, point: Option<&ResumePoint>) -> Result<Outcome, WorkerError> {
        let (mut after, mut fruitless) = (0, 0);
        loop {
            let steps = self.tracker.steps;
            let ended = self.train_in_group(after, point).await;
            let left = match ended.map_err(|error| error.by_index(&self.indices)) {
                Err(WorkerError::Peers(error)) if self.forms_again(&error) => {
                    self.tell_lost(&error);
                    error.into()
                }
                Err(joins @ WorkerError::AnotherJoins) => {
                    info!(step = self.tracker.steps, "{joins}");
                    joins
                }
                ended => return ended,
            };
            fruitless = if self.tracker.steps > steps { 0 } else { fruitless + 1 };
            if fruitless > FRUITLESS {
                return Err(left);
            }
            after = self.peers.map_or(after, |peers| peers.generation);
            self.leave_group().await?;
        }
    }

    /// In one group, until training has ended or the group fails.
    async fn train_in_group(&mut self, after: u64, point: Option<&ResumePoint>) -> Result<Outcome, WorkerError> {
        let standings = self.form(after).await?;
        let first_epoch = match furthest(&standings) {
            None if self.peers.is_some_and(|peers| peers.generation > 1) => return Err(WorkerError::NobodyLeft),
            None => self.resume(point).await?,
            Some(source) => self.take_over(&standings, source).await?,
        };
        self.begun = true;
        self.train_and_conclude(first_epoch).await
    }

    /// Waits for the other workers of the job and joins the first group later than `after`; there is none for a job of
    /// one worker. Answers how far each is, by rank.
    ///
    /// # Errors
    /// When one does not come, or does not fit.
    pub(crate) async fn form(&mut self, mut after: u64) -> Result<Vec<Standing>, WorkerError> {
        let workers = self.job.cluster.workers;
        if workers == 1 {
            return Ok(Vec::new());
        }
        let rendezvous = self.rendezvous.clone().ok_or(WorkerError::Unreachable { workers })?;
        let mut fruitless = 0;
        loop {
            self.observer.on(&Event::WaitingFor("the other dense workers".to_owned()));
            let group = self.next_group(after).await?;
            self.indices.clone_from(&group.workers);
            match self.meet_in(&group, Arc::clone(&rendezvous)).await {
                Err(WorkerError::Peers(error)) if self.forms_again(&error) && fruitless < FRUITLESS => {
                    self.tell_lost(&error.numbered(&self.indices));
                    (after, fruitless) = (group.generation, fruitless + 1);
                }
                met => {
                    self.peers = Some(Peers::of(&self.job, &group));
                    return met;
                }
            }
        }
    }

    /// Who is in it, by the coordinator. Another process in the place of a lost worker may come as late as `timeout`
    /// after the lost one's lease has run out; the coordinator ends the run then.
    async fn next_group(&mut self, after: u64) -> Result<GroupResponse, WorkerError> {
        let lease = if after > 0 { self.membership.lease() * 2 } else { Duration::ZERO };
        let timeout = self.job.cluster.timeout + lease;
        let (control, mut stop) = (Arc::clone(&self.splits.control), self.stop.clone());
        tokio::select! {
            biased;
            reason = stop.requested() => Err(reason),
            group = wait_for_group(&*control, &self.membership, after, timeout, self.stop.shutdown()) => Ok(group?),
        }
    }

    async fn meet_in(
        &mut self,
        group: &GroupResponse,
        rendezvous: Arc<dyn Rendezvous>,
    ) -> Result<Vec<Standing>, WorkerError> {
        let (rank, world) = (group.rank as usize, group.world as usize);
        let (generation, store, timeout) = (group.generation, group.store.clone(), self.job.cluster.timeout);
        let place = ProcessGroupConfig { rank, world, generation, store, timeout };
        let met = blocking("rendezvous", move || rendezvous.meet(&place)).await??;
        let generation = Some(generation).filter(|_| self.job.train.mode == Mode::Hybrid);
        self.group_watch = Some(watch_group(met.interrupt(), self.membership.subscribe(), generation));
        // Fitted transforms are part of what all must start from.
        let (seed, like, standing) = (self.job.train.seed, format!("{:?}", self.job.features), self.standing());
        self.dense.call(move |dense| dense.join(met, seed, like.as_bytes(), standing)).await?
    }

    fn standing(&self) -> Standing {
        let evaluated = self.evaluated.map_or(0, |(step, _)| step);
        Standing { begun: self.begun, epoch: self.epoch, steps: self.tracker.steps, evaluated }
    }

    /// Whether the run goes on in another group after this.
    fn forms_again(&self, error: &CollectiveError) -> bool {
        let is_about_others = !matches!(error, CollectiveError::Address { .. });
        let may_go_on = is_about_others && (self.begun || self.membership.incarnation() > 1);
        let mode = self.job.train.mode;
        if may_go_on && mode != Mode::Hybrid {
            warn!("only in mode hybrid do the other workers wait for a lost one; the run ends");
        }
        may_go_on && mode == Mode::Hybrid && !self.stop.is_requested()
    }

    /// Tells everyone whom this worker misses.
    fn tell_lost(&self, error: &CollectiveError) {
        let (step, workers) = (self.tracker.steps, names(error.missing()));
        warn!(step, workers, %error, "a worker is lost; waiting for another process in its place");
        let timeout = self.job.cluster.timeout;
        self.observer.on(&Event::WorkerLost { step, workers, cause: error.to_string(), timeout });
    }

    /// Leaves nothing of the group's last step under way: what was pushed is acknowledged and told, what was read is known.
    async fn leave_group(&mut self) -> Result<(), WorkerError> {
        self.tracker.pause();
        self.place = None;
        self.unapplied = self.dense.call(Dense::leave_group).await?;
        self.drain(self.epoch).await?;
        self.stream.closed(self.job.cluster.timeout).await
    }

    /// Goes on with the state of the worker that is furthest. Answers the epoch that it is in.
    async fn take_over(&mut self, standings: &[Standing], source: usize) -> Result<u32, WorkerError> {
        let rank = self.peers.map_or(0, |peers| peers.rank as usize);
        let (mine, furthest) = (standings[rank], standings[source]);
        // The sums of a step arrive everywhere or fail in the midst of it: one step is all that can be between them.
        let was_made = mine.begun && furthest.steps == mine.steps + 1;
        self.settle(was_made).await?;
        let said =
            if rank == source { serde_json::to_vec(&self.as_training()).unwrap_or_default() } else { Vec::new() };
        let followed = self.dense.call(move |dense| dense.follow(source, said)).await??;
        if mine != furthest {
            let mut training: Training = serde_json::from_slice(&followed)
                .map_err(|error| inconsistent(0, format!("what dense worker {source} says of training ({error})")))?;
            self.epoch = training.epoch;
            // The rows that this worker has seen in the epoch are its own.
            let own = Some(self.tracker.overall().clone()).filter(|_| mine.epoch == furthest.epoch);
            training.tracker = training.tracker.with_overall(own.unwrap_or_else(Overall::new));
            self.go_on_from(training);
            // Its batches are numbered as those of the others are, for whoever reads of them.
            self.next_seq = self.next_seq.max(self.tracker.steps);
        }
        self.broken_off = self.stream.broken_off().filter(|_| mine.epoch == furthest.epoch);
        self.pushes.count_from(self.next_seq);
        let generation = self.peers.map_or(0, |peers| peers.generation);
        let (step, workers) = (self.tracker.steps, self.indices.clone());
        self.observer.on(&Event::Regrouped { step, generation, source: workers[source], workers });
        Ok(self.epoch)
    }

    /// Ends the batch of the step that failed: where others made the step, this worker's gradients are in it, and so the
    /// rows' must be; else it is read again.
    async fn settle(&mut self, was_made: bool) -> Result<(), WorkerError> {
        let (batch, stepped) = (self.unsettled.take(), self.unapplied.take());
        let (Some(batch), Some(Stepped { gradients, share, .. }), true) = (batch, stepped, was_made) else {
            return Ok(());
        };
        let Unsettled { seq, mut prepared, permit } = batch;
        let ends = self.stream.advance(&mut prepared.batch);
        let permit = Arc::new(permit);
        let step = self.row_step(seq);
        self.pushes.start(Gradients { seq, step, unique: prepared.unique, values: gradients, share, ends, permit });
        self.drain(self.epoch).await
    }
}
