//! One step of all ranks of a group: what they agree on, the step, and the pushes.

use std::sync::Arc;
use std::time::Instant;

use zagros_worker_core::{Event, StepAgreement, StepVote, VoteRule};
use zagros_zip::number_from;

use super::group_session::{GroupRank, InFlightBatch};
use super::tracker::MadeStep;
use super::trainer::Trainer;
use crate::datapath::dense::{Dense, Stepped};
use crate::datapath::early_rows::settled_tables;
use crate::datapath::id_filter::IdFilter;
use crate::datapath::prefetch::Prefetch;
use crate::datapath::prepared::{Fetched, inconsistent};
use crate::datapath::process_group::{AgreedTurns, RankTurn, TurnAhead};
use crate::datapath::push::Gradients;
use crate::error::WorkerError;
use crate::metrics::Stage;

impl Trainer {
    /// Shares what this rank brings to the next step, and returns what all bring.
    pub(super) async fn agree(&mut self, vote: StepVote, batch: bool) -> Result<Event, WorkerError> {
        let turn = RankTurn { vote, ..RankTurn::default() };
        let mine = match &self.stream.batch {
            Some(fetched) if batch => turn.with(&fetched.prepared.batch),
            _ => turn,
        };
        let agreed = self.run.dense.call(move |dense| dense.agree(mine)).await??;
        let agreement = agreed.agreement();
        self.group.agreed = Some(agreed);
        self.share_ids(batch).await?;
        Ok(Event::Agreed(agreement))
    }

    /// In mode `sync`, tells all ranks which ids this rank's batch has, and the prefetch which ids all batches of the step have.
    async fn share_ids(&mut self, batch: bool) -> Result<(), WorkerError> {
        let is_in_turns = self.group.in_step().is_some_and(|rank| rank.in_turns);
        // Else no rank looks anything up early.
        if !is_in_turns || !settled_tables(&self.run.job).contains(&true) {
            return Ok(());
        }
        let fetched = self.stream.batch.as_deref().filter(|_| batch);
        let mine = fetched.map(|fetched| IdFilter::of(&fetched.prepared.unique)).unwrap_or_default().to_bytes();
        let all = self.run.dense.call(move |dense| dense.all_gather(&mine)).await??;
        let Some(seq) = fetched.map(|fetched| fetched.seq) else { return Ok(()) };
        let odd = |rank| inconsistent(seq, format!("what dense worker {rank} sent of its ids"));
        let filters: Vec<IdFilter> = number_from(0, &all)
            .map(|(rank, bytes)| IdFilter::from_bytes(bytes).ok_or_else(|| odd(rank)))
            .collect::<Result<_, _>>()?;
        self.stream.step_begins(seq, || filters);
        Ok(())
    }

    /// Makes the step that all ranks have agreed on. Returns what they agree on for the next one, where all know it in time.
    pub(super) async fn group_step(
        &mut self,
        epoch: u32,
        rank: GroupRank,
        fetched: Option<Fetched>,
        ahead: Option<VoteRule>,
    ) -> Result<Option<StepAgreement>, WorkerError> {
        let none = AgreedTurns::of_nobody();
        let agreed = self.group.agreed.take().unwrap_or(none);
        match fetched {
            Some(fetched) => self.step_with(epoch, rank, fetched, &agreed, ahead).await?,
            None => self.step_without(epoch, rank, &agreed).await?,
        }
        Ok(self.group.agreed.as_ref().map(AgreedTurns::agreement))
    }

    /// Without a batch of its own a rank steps with those that have one.
    async fn step_without(&mut self, epoch: u32, rank: GroupRank, agreed: &AgreedTurns) -> Result<(), WorkerError> {
        let step = self.tracker.steps + 1;
        let work = move |dense: &mut Dense| dense.group_step(None, 0.0, step, &TurnAhead::default());
        match self.run.dense.call(work).await? {
            Err(skipped @ WorkerError::Skipped { .. }) => self.count_skipped_group_step(skipped, agreed),
            stepped => {
                let (stepped, _) = stepped?;
                self.push(epoch, rank, agreed, None).await?;
                self.report_group_step(agreed, &[], &stepped, 0);
            }
        }
        Ok(())
    }

    async fn step_with(
        &mut self,
        epoch: u32,
        rank: GroupRank,
        fetched: Fetched,
        agreed: &AgreedTurns,
        vote: Option<VoteRule>,
    ) -> Result<(), WorkerError> {
        let Fetched { seq, prepared, rows, permit } = fetched;
        let share = agreed.share(rank.rank as usize);
        let (step, ahead, dense) = (self.tracker.steps + 1, TurnAhead::default(), self.run.dense.clone());
        let known = Arc::clone(&ahead);
        let work = move |dense: &mut Dense| (dense.group_step(Some((&prepared, rows)), share, step, &known), prepared);
        let mut prefetch = self.stream.prefetch.take();
        let mut stepping = std::pin::pin!(dense.call(work));
        let stepped = tokio::select! {
            biased;
            stepped = &mut stepping => stepped,
            () = self.look_ahead(vote, &mut prefetch, ahead) => stepping.await,
        };
        self.stream.prefetch = prefetch;
        let (stepped, mut prepared) = stepped?;
        let (mut stepped, next) = match stepped {
            Ok(stepped) => stepped,
            Err(skipped @ WorkerError::Skipped { .. }) => {
                self.count_skipped_group_step(skipped, agreed);
                self.skip_batch(epoch, seq, prepared.batch);
                return Ok(());
            }
            Err(error) => {
                self.group.in_flight = Some(InFlightBatch { seq, prepared, permit, stepped: None });
                return Err(error);
            }
        };
        self.group.agreed = next;
        let staleness = u32::try_from(permit.staleness()).unwrap_or(u32::MAX);
        let ends = self.stream.position.advance(&mut prepared.batch);
        let (values, permit) = (std::mem::take(&mut stepped.gradients), Arc::new(permit));
        self.stream.permit = Some(Arc::clone(&permit));
        let step = self.row_step(seq);
        let gradients = Gradients { seq, step, unique: prepared.unique, values, share, ends, permit };
        self.push(epoch, rank, agreed, Some(gradients)).await?;
        self.report_group_step(agreed, &prepared.batch.labels, &stepped, staleness);
        Ok(())
    }

    /// Shares what this rank brings to the step after the one that is being made, once its batch is there. It shares nothing
    /// where it has no vote ahead, and where it is asked to stop: then all agree when that step comes.
    async fn look_ahead(&self, vote: Option<VoteRule>, prefetch: &mut Option<Prefetch>, ahead: TurnAhead) {
        let (Some(vote), Some(prefetch)) = (vote, prefetch.as_mut()) else { return };
        let mut stop = self.run.stop.clone();
        let fetched = tokio::select! {
            biased;
            _ = stop.requested() => return,
            fetched = prefetch.look() => fetched,
        };
        if let Some(fetched) = fetched.filter(|fetched| fetched.prepared.batch.size > 0) {
            let turn = RankTurn { vote: vote.vote(self.step_facts()), ..RankTurn::default() };
            // Nobody else sets it.
            let _ = ahead.set(turn.with(&fetched.prepared.batch));
        }
    }

    /// All ranks skip their batches of a step.
    fn count_skipped_group_step(&mut self, skipped: WorkerError, agreed: &AgreedTurns) {
        self.count_skipped_step(&skipped.by_index(&self.group.indices), agreed.bytes());
    }

    fn report_group_step(&mut self, agreed: &AgreedTurns, labels: &[f32], stepped: &Stepped, staleness: u32) {
        let (samples, bytes, main) = (agreed.samples(), agreed.bytes(), self.loss.main);
        let (logits, loss) = (&stepped.logits[..], stepped.loss);
        self.report_step(MadeStep { samples, labels, logits, main, loss, staleness, bytes });
    }

    /// Sends this rank's gradients; in turns where all runs must be equal: the order in which a row's gradients are
    /// applied changes its bits. The sum of two gradients has the same bits in both orders.
    async fn push(
        &mut self,
        epoch: u32,
        rank: GroupRank,
        agreed: &AgreedTurns,
        mut gradients: Option<Gradients>,
    ) -> Result<(), WorkerError> {
        if !rank.in_turns {
            gradients.into_iter().for_each(|gradients| self.stream.pushes.start(gradients));
            return Ok(());
        }
        // Held until the last rank's gradients are acknowledged, so that the next batch is looked up after them.
        let _permit = gradients.as_ref().map(|gradients| Arc::clone(&gradients.permit));
        for turn in self.turns(agreed) {
            if let Some(gradients) = gradients.take_if(|_| turn.contains(&(rank.rank as usize))) {
                self.stream.pushes.start(gradients);
                let complete = self.stream.pushes.drain().await?;
                self.complete(epoch, complete);
            }
            let since = Instant::now();
            self.wait_for_all().await?;
            self.run.metrics.spent(Stage::Reduce, since.elapsed());
        }
        Ok(())
    }

    /// The ranks that push at a time.
    fn turns(&self, agreed: &AgreedTurns) -> Vec<Vec<usize>> {
        let busy: Vec<usize> = agreed.busy().collect();
        let are_settled = settled_tables(&self.run.job).into_iter().all(|is_settled| is_settled);
        if busy.len() == 2 && are_settled {
            return vec![busy];
        }
        busy.into_iter().map(|rank| vec![rank]).collect()
    }

    /// Waits for all ranks. Asynchronous workers wait at the coordinator.
    pub(super) async fn wait_for_all(&mut self) -> Result<(), WorkerError> {
        if self.group.is_asynchronous() {
            return self.ballots.wait_for_all().await;
        }
        self.run.dense.call(Dense::barrier).await?
    }
}
