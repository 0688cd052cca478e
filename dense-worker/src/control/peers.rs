//! Training with other workers: who they are, and the step that all make together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zagros_coordinator_client::MemberError;
use zagros_ingest::IngestError;
use zagros_job::{Job, Mode};
use zagros_protocol::RefusalKind;
use zagros_protocol::control::GroupResponse;

use super::regroup::Unsettled;
use super::tracker::Step;
use super::train::{End, Made, Next, Trainer};
use crate::datapath::dense::{Dense, Stepped};
use crate::datapath::group::{Agreed, Turn, TurnAhead, seed_of_rank};
use crate::datapath::prefetch::Prefetch;
use crate::datapath::prepared::Fetched;
use crate::datapath::push::Gradients;
use crate::error::WorkerError;
use crate::metrics::Stage;

/// How long a lost worker's own account of its end may take to come by way of the coordinator: a heartbeat and a bit.
const ACCOUNT: Duration = Duration::from_secs(2);

/// Files that a message names.
const NAMED: usize = 3;

/// This worker among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peers {
    /// This worker's index.
    pub(crate) rank: u32,
    /// Counts up with each group of the run.
    pub(crate) generation: u64,
    /// How many workers there are.
    pub(crate) world: u32,
    /// Workers push one after another, and nobody looks up before all have: the same bits in every run.
    in_turns: bool,
    /// Each steps at its own pace.
    pub(super) apart: bool,
}

impl Peers {
    /// As the coordinator has put it.
    pub(super) fn of(job: &Job, group: &GroupResponse) -> Self {
        let mode = job.train.mode;
        Self {
            rank: group.rank,
            generation: group.generation,
            world: group.world,
            in_turns: mode == Mode::Sync,
            apart: mode == Mode::Async,
        }
    }

    /// Whether this is the worker that reports and saves.
    pub(crate) fn leads(self) -> bool {
        self.rank == 0
    }
}

/// The seed of a worker's order of rows; rank 0's is the job's.
pub(crate) fn seed(seed: u64, rank: u32) -> u64 {
    // A job's seed is an i64 above zero.
    seed_of_rank(seed, u64::from(rank)) & i64::MAX as u64
}

impl Trainer {
    /// One step of all workers, or why there is none. A worker without a batch steps with those that have one
    /// (invariant RK-2).
    pub(super) async fn step_together(
        &mut self,
        epoch: u32,
        peers: Peers,
        next: Next,
        prefetch: &mut Option<Prefetch>,
    ) -> Result<Made, WorkerError> {
        let agreed = match self.agreed_ahead.take() {
            Some(agreed) => agreed,
            None => self.agree(peers, &next).await?,
        };
        if agreed.parts() && !peers.in_turns && !agreed.stops() {
            return Err(WorkerError::AnotherJoins);
        }
        // In turns, what is looked up is trained on: lookups count.
        if agreed.stops() && (!peers.in_turns || agreed.samples() == 0) {
            return Ok(Made::End(End::Interrupted));
        }
        if agreed.samples() == 0 {
            return Ok(Made::End(End::Data));
        }
        let fetched = match next {
            Next::Batch(fetched) => Some(*fetched),
            Next::Dry | Next::Interrupted => None,
        };
        match fetched {
            Some(fetched) => self.step_with(epoch, peers, fetched, prefetch, &agreed).await?,
            None => {
                let step = self.tracker.steps + 1;
                let work = move |dense: &mut Dense| dense.step_together(None, 0.0, step, &TurnAhead::default());
                match self.dense.call(work).await? {
                    Err(skipped @ WorkerError::Skipped { .. }) => self.leave_out(skipped, &agreed),
                    stepped => {
                        let (stepped, _) = stepped?;
                        self.push(epoch, peers, &agreed, None).await?;
                        self.told(&agreed, &[], &stepped, 0);
                    }
                }
            }
        }
        Ok(Made::step(agreed.cuts(), agreed.stops()))
    }

    /// What all workers bring to the next step.
    async fn agree(&self, peers: Peers, next: &Next) -> Result<Agreed, WorkerError> {
        let always = Turn { stops: self.stopping, ..self.turn(peers, self.tracker.steps + 1) };
        let mine = match next {
            Next::Batch(fetched) => always.with(&fetched.prepared.batch),
            Next::Dry => always,
            Next::Interrupted => Turn { stops: true, ..Turn::default() },
        };
        self.dense.call(move |dense| dense.agree(mine)).await?
    }

    /// This worker's turn in a step, but for its batch.
    fn turn(&self, peers: Peers, step: u64) -> Turn {
        let cuts = peers.leads() && self.cutter.is_due(step);
        let parts = peers.leads() && self.membership.group() > peers.generation;
        Turn { cuts, parts, ..Turn::default() }
    }

    /// Tells what this worker brings to the step after the one that is being made, once its batch is there. It tells
    /// nothing, so that all agree when that step comes, where it is asked to stop, where a checkpoint comes between, and in
    /// turns, where the next batch is looked up after this step.
    async fn look_ahead(&self, peers: Peers, agreed: &Agreed, prefetch: &mut Option<Prefetch>, ahead: TurnAhead) {
        let Some(prefetch) = prefetch.as_mut().filter(|_| !peers.in_turns && !agreed.cuts()) else { return };
        let mut stop = self.stop.clone();
        let fetched = tokio::select! {
            biased;
            _ = stop.requested() => return,
            fetched = prefetch.look() => fetched,
        };
        if let Some(fetched) = fetched.filter(|fetched| fetched.prepared.batch.size > 0) {
            let turn = self.turn(peers, self.tracker.steps + 2).with(&fetched.prepared.batch);
            // The only one who tells.
            let _ = ahead.set(turn);
        }
    }

    async fn step_with(
        &mut self,
        epoch: u32,
        peers: Peers,
        fetched: Fetched,
        prefetch: &mut Option<Prefetch>,
        agreed: &Agreed,
    ) -> Result<(), WorkerError> {
        let Fetched { seq, prepared, rows, permit } = fetched;
        let share = agreed.share(peers.rank as usize);
        let (step, ahead, dense) = (self.tracker.steps + 1, TurnAhead::default(), self.dense.clone());
        let told = Arc::clone(&ahead);
        let work =
            move |dense: &mut Dense| (dense.step_together(Some((&prepared, rows)), share, step, &told), prepared);
        let mut stepping = std::pin::pin!(dense.call(work));
        let (stepped, mut prepared) = tokio::select! {
            biased;
            stepped = &mut stepping => stepped,
            () = self.look_ahead(peers, agreed, prefetch, ahead) => stepping.await,
        }?;
        let (mut stepped, next) = match stepped {
            Ok(stepped) => stepped,
            Err(skipped @ WorkerError::Skipped { .. }) => {
                self.leave_out(skipped, agreed);
                self.pass_over(epoch, seq, prepared.batch);
                return Ok(());
            }
            Err(error) => {
                self.unsettled = Some(Unsettled { seq, prepared, permit });
                return Err(error);
            }
        };
        self.agreed_ahead = next;
        let staleness = u32::try_from(permit.staleness()).unwrap_or(u32::MAX);
        let ends = self.stream.advance(&mut prepared.batch);
        let (values, permit) = (std::mem::take(&mut stepped.gradients), Arc::new(permit));
        self.place = Some(Arc::clone(&permit));
        let step = self.row_step(seq);
        let gradients = Gradients { seq, step, unique: prepared.unique, values, share, ends, permit };
        self.push(epoch, peers, agreed, Some(gradients)).await?;
        self.told(agreed, &prepared.batch.labels, &stepped, staleness);
        Ok(())
    }

    /// All workers leave out their batches of a step.
    fn leave_out(&mut self, skipped: WorkerError, agreed: &Agreed) {
        self.skip(&skipped.by_index(&self.indices), agreed.bytes());
    }

    fn told(&mut self, agreed: &Agreed, labels: &[f32], stepped: &Stepped, staleness: u32) {
        let (samples, bytes) = (agreed.samples(), agreed.bytes());
        self.tell(Step { samples, labels, logits: &stepped.logits, loss: stepped.loss, staleness, bytes });
    }

    /// Sends this worker's gradients; in turns where all runs must be equal: the order in which a row's gradients are
    /// applied changes its bits.
    async fn push(
        &mut self,
        epoch: u32,
        peers: Peers,
        agreed: &Agreed,
        mut gradients: Option<Gradients>,
    ) -> Result<(), WorkerError> {
        if !peers.in_turns {
            gradients.into_iter().for_each(|gradients| self.pushes.start(gradients));
            return Ok(());
        }
        // Held until the last worker's gradients are acknowledged, so that the next batch is looked up after them.
        let _place = gradients.as_ref().map(|gradients| Arc::clone(&gradients.permit));
        for rank in agreed.busy() {
            if let Some(gradients) = gradients.take_if(|_| rank == peers.rank as usize) {
                self.pushes.start(gradients);
                let complete = self.pushes.drain().await?;
                self.complete(epoch, complete);
            }
            let since = Instant::now();
            self.dense.call(Dense::barrier).await??;
            self.metrics.spent(Stage::Reduce, since.elapsed());
        }
        Ok(())
    }

    /// Whether any worker had a row to train on: as one worker without one is refused, so are several.
    ///
    /// # Errors
    /// [`IngestError::NoRows`], the same on all workers.
    pub(super) async fn rows_somewhere(&mut self) -> Result<(), WorkerError> {
        if self.peers.is_none() || self.tracker.steps_of_all() > 0 {
            return Ok(());
        }
        let mine: u64 = self.untrained_rows;
        let rows = self.dense.call(move |dense| dense.all_say(&mine)).await??.into_iter().sum();
        let named = self.splits.files.iter().take(NAMED).map(|path| path.display().to_string());
        let more = (self.splits.files.len() > NAMED).then(|| "…".to_owned());
        let files = named.chain(more).collect::<Vec<_>>().join(", ");
        Err(IngestError::NoRows { files, rows, part: "train" }.into())
    }

    /// Where another worker is lost, the cause is what that worker told the coordinator, if it still could, or what the
    /// coordinator has made of it.
    pub(super) async fn explained(&mut self, error: WorkerError) -> WorkerError {
        let is_over = |error: &MemberError| error.refusal().is_some_and(|refusal| refusal.kind == RefusalKind::Fenced);
        match &error {
            // Whoever is fenced may be so because the run is over.
            WorkerError::Peers(_) | WorkerError::Fenced { .. } => {}
            WorkerError::Member(member) if is_over(member) => {}
            _ => return error,
        }
        tokio::time::timeout(ACCOUNT, self.stop.over()).await.unwrap_or(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_worker_leads_and_each_has_a_seed_of_its_own() {
        let peers = |rank| Peers { rank, generation: 1, world: 3, in_turns: false, apart: false };
        assert_eq!([0, 1, 2].map(|rank| peers(rank).leads()), [true, false, false]);
        assert_eq!(seed(11, 0), 11);
        let seeds = std::collections::HashSet::from([0, 1, 2].map(|rank| seed(11, rank)));
        assert!(seeds.len() == 3 && seeds.iter().all(|seed| i64::try_from(*seed).is_ok()));
    }
}
