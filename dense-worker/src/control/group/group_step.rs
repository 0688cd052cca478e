//! One step of all ranks of a group: what they agree on, the step, and the pushes.

use std::sync::Arc;
use std::time::Instant;

use zagros_worker_core::{Event, StepAgreement, StepVote, VoteRule};

use super::{GroupRank, InFlightBatch};
use crate::control::step::MadeStep;
use crate::control::trainer::Trainer;
use crate::datapath::dense::{DenseStage, StepResult};
use crate::datapath::lookahead::{StepSide, rows_change_by_pushes_alone};
use crate::datapath::prefetch::RowPrefetch;
use crate::datapath::prepared::FetchedBatch;
use crate::datapath::process_group::{AgreedTurns, RankShare, RankTurn, TurnAhead};
use crate::datapath::push::BatchGradients;
use crate::error::WorkerError;
use crate::metrics::PipelineStage;

impl Trainer {
    pub(crate) async fn agree_on_step(&mut self, vote: StepVote, batch: bool) -> Result<Event, WorkerError> {
        let turn = RankTurn { vote, ..RankTurn::default() };
        let mine = match &self.stream.batch {
            Some(fetched) if batch => turn.with_batch(&fetched.prepared.batch),
            _ => turn,
        };
        let agreed = self.run.dense.call(move |dense| dense.agree_on_step(mine)).await??;
        let agreement = agreed.step_agreement();
        self.group.agreed = Some(agreed);
        Ok(Event::Agreed(agreement))
    }

    /// Makes the step that all ranks have agreed on. Returns what they agree on for the next one, where all know it in time.
    pub(crate) async fn group_step(
        &mut self,
        rank: GroupRank,
        fetched: Option<FetchedBatch>,
        ahead: Option<VoteRule>,
    ) -> Result<Option<StepAgreement>, WorkerError> {
        let agreed = self.group.agreed.take().unwrap_or_default();
        match fetched {
            Some(fetched) => self.step_with(rank, fetched, &agreed, ahead).await?,
            None => self.step_without(rank, &agreed).await?,
        }
        Ok(self.group.agreed.as_ref().map(AgreedTurns::step_agreement))
    }

    /// Without a batch of its own a rank steps with those that have one.
    async fn step_without(&mut self, rank: GroupRank, agreed: &AgreedTurns) -> Result<(), WorkerError> {
        let step = self.tracker.own_steps() + 1;
        let work =
            move |dense: &mut DenseStage| dense.group_step(None, RankShare::default(), step, &TurnAhead::default());
        match self.run.dense.call(work).await? {
            Err(skipped @ WorkerError::Skipped { .. }) => self.count_skipped_group_step(skipped, agreed),
            stepped => {
                let (stepped, _) = stepped?;
                self.push(rank, agreed, None).await?;
                self.report_group_step(agreed, &[], &stepped, 0);
            }
        }
        Ok(())
    }

    async fn step_with(
        &mut self,
        rank: GroupRank,
        fetched: FetchedBatch,
        agreed: &AgreedTurns,
        vote: Option<VoteRule>,
    ) -> Result<(), WorkerError> {
        let FetchedBatch { seq, prepared, rows, permit } = fetched;
        let share = agreed.share_of_rank(rank.rank as usize);
        let (step, ahead, dense) = (self.tracker.own_steps() + 1, TurnAhead::default(), self.run.dense.clone());
        let known = Arc::clone(&ahead);
        let work =
            move |dense: &mut DenseStage| (dense.group_step(Some((&prepared, rows)), share, step, &known), prepared);
        let mut prefetch = self.stream.prefetch.take();
        let mut stepping = std::pin::pin!(dense.call(work));
        let stepped = tokio::select! {
            biased;
            stepped = &mut stepping => stepped,
            () = self.share_next_turn(seq, vote, &mut prefetch, ahead) => stepping.await,
        };
        self.stream.prefetch = prefetch;
        let (stepped, mut prepared) = stepped?;
        let (mut stepped, next) = match stepped {
            Ok(stepped) => stepped,
            Err(skipped @ WorkerError::Skipped { .. }) => {
                self.count_skipped_group_step(skipped, agreed);
                self.skip_batch(seq, prepared.batch);
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
        let (unique, reach) = (prepared.unique, self.reach_of(agreed.busy_ranks().count()));
        let (samples, share) = (prepared.batch.size, share.samples);
        let gradients = BatchGradients { seq, step, unique, values, samples, share, ends, permit, reach };
        self.push(rank, agreed, Some(gradients)).await?;
        self.report_group_step(agreed, &prepared.batch.labels, &stepped, staleness);
        Ok(())
    }

    /// Shares what this rank brings to the step after the one with batch `seq`, once its next batch is there. It shares nothing
    /// where it has no vote ahead, and where it is asked to stop: then all agree when that step comes.
    async fn share_next_turn(
        &self,
        seq: u64,
        vote: Option<VoteRule>,
        prefetch: &mut Option<RowPrefetch>,
        ahead: TurnAhead,
    ) {
        let (Some(vote), Some(prefetch)) = (vote, prefetch.as_mut()) else { return };
        let mut stop = self.run.stop.clone();
        let turn = tokio::select! {
            biased;
            _ = stop.wait_for_request() => return,
            turn = next_turn(seq, self.stream.steps.as_ref(), prefetch) => turn,
        };
        if let Some(turn) = turn.filter(|turn| turn.samples > 0) {
            // No other code sets it.
            let _ = ahead.set(RankTurn { vote: vote.vote(self.step_facts()), ..turn });
        }
    }

    fn count_skipped_group_step(&mut self, skipped: WorkerError, agreed: &AgreedTurns) {
        self.count_skipped_step(&skipped.by_index(&self.group.indices), agreed.bytes_read());
    }

    fn report_group_step(&mut self, agreed: &AgreedTurns, labels: &[f32], stepped: &StepResult, staleness: u32) {
        let (samples, bytes, main) = (agreed.step_agreement().samples, agreed.bytes_read(), self.loss.main);
        let (logits, loss) = (&stepped.logits[..], stepped.loss);
        self.report_step(MadeStep { samples, labels, logits, main, loss, staleness, bytes });
    }

    /// Sends this rank's gradients; in turns where all runs must be equal: the order in which a row's gradients are
    /// applied changes its bits. The sum of two gradients has the same bits in both orders.
    async fn push(
        &mut self,
        rank: GroupRank,
        agreed: &AgreedTurns,
        mut gradients: Option<BatchGradients>,
    ) -> Result<(), WorkerError> {
        if !rank.in_turns {
            gradients.into_iter().for_each(|gradients| self.stream.pushes.start(gradients));
            return Ok(());
        }
        // Held until the last rank's gradients are acknowledged, so that the next batch is looked up after them.
        let _permit = gradients.as_ref().map(|gradients| Arc::clone(&gradients.permit));
        for turn in self.turns(agreed) {
            if let Some(gradients) = gradients.take_if(|_| turn.contains(&(rank.rank as usize))) {
                let BatchGradients { seq, step, reach, .. } = gradients;
                self.stream.pushes.start(gradients);
                self.stream.push_started(seq, step, reach, turn.len());
                let complete = self.stream.pushes.drain().await?;
                self.complete_splits(complete);
            }
            let since = Instant::now();
            self.wait_for_all().await?;
            self.run.metrics.add_stage_time(PipelineStage::Reduce, since.elapsed());
        }
        Ok(())
    }

    fn turns(&self, agreed: &AgreedTurns) -> Vec<Vec<usize>> {
        let busy: Vec<usize> = agreed.busy_ranks().collect();
        if busy.len() == 2 && rows_change_by_pushes_alone(&self.run.job) {
            return vec![busy];
        }
        busy.into_iter().map(|rank| vec![rank]).collect()
    }

    /// Waits for all ranks. Asynchronous workers wait at the coordinator.
    pub(crate) async fn wait_for_all(&mut self) -> Result<(), WorkerError> {
        if self.group.is_asynchronous() {
            return self.ballots.wait_for_all().await;
        }
        self.run.dense.call(DenseStage::wait_for_all).await?
    }
}

/// What this worker brings to the step after the one with batch `seq`, without its vote, once that is known: in mode `sync` when the batch
/// is read, else when its rows are there. `None` after the last batch, or before an error.
async fn next_turn(seq: u64, steps: Option<&StepSide>, prefetch: &mut RowPrefetch) -> Option<RankTurn> {
    match steps {
        Some(steps) => Some(steps.batch_after(seq).await?.turn),
        None => Some(RankTurn::default().with_batch(&prefetch.peek().await?.prepared.batch)),
    }
}
