//! What workers do together besides steps: the end of an epoch, when the books are checked, the measures added up, and rows removed where
//! the next epoch begins with new ones; and what only asynchronous workers do: vote at barriers, leave the run while it goes on (invariant
//! RK-4), and pull the dense weights.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use zagros_coordinator_client::MemberError;
use zagros_embedding_client::{Shard, UniqueIds};
use zagros_ingest::IngestError;
use zagros_protocol::RefusalKind;
use zagros_protocol::control::{BarrierReason, BarrierVote, CountedVote, LoadRequest};
use zagros_protocol::datapath::Access;
use zagros_worker_core::Event;

use crate::control::save::{on_all, storage_error};
use crate::control::step::WorkerCounts;
use crate::control::trainer::Trainer;
use crate::datapath::prepared::inconsistent_batch;
use crate::error::WorkerError;
use crate::event::WorkerEvent;
use crate::progress::OverallMeasures;

/// How long a lost worker's own account of its end may take to come by way of the coordinator: a heartbeat and a bit.
const ACCOUNT: Duration = Duration::from_secs(2);

const NAMED: usize = 3;

impl Trainer {
    pub(crate) async fn close_epoch(&mut self, check_books: bool) -> Result<Event, WorkerError> {
        if check_books {
            self.check_books().await?;
        }
        self.rows_somewhere().await?;
        self.add_up_measures().await?;
        Ok(Event::EpochClosed)
    }

    /// Removes every row before the next epoch. The first worker asks the servers, and the others wait. No gradient is in flight.
    pub(crate) async fn reset_rows(&mut self) -> Result<(), WorkerError> {
        if self.group.leads() {
            let clear = |_, server: Arc<dyn Shard>| async move {
                let cleared = server.load(LoadRequest { clear: true, ..LoadRequest::default() }).await;
                cleared.map_err(|refusal| storage_error(&*server, "remove all rows", refusal))
            };
            on_all(&self.run.client, clear).await?;
        }
        if self.group.rank.is_some() {
            self.wait_for_all().await?;
        }
        Ok(())
    }

    async fn add_up_measures(&mut self) -> Result<(), WorkerError> {
        let mut overall = self.tracker.done.overall.clone();
        if self.group.rank.is_some() {
            let all = self.run.dense.call(move |dense| dense.all_gather_values(&overall)).await??;
            overall = OverallMeasures::sum(&all);
        }
        let (step, epoch, training) = (self.tracker.all_counts().steps, self.epoch, overall.report());
        // An epoch whose end was given up, because a worker was lost in it, ends once more.
        self.scoring.of_epochs.truncate(epoch as usize);
        self.scoring.of_epochs.push(training);
        self.run.observer.observe(&WorkerEvent::EpochEnded { step, epoch, training });
        Ok(())
    }

    /// Whether any worker had a row to train on: as one worker without one is refused, so are several.
    ///
    /// # Errors
    /// [`IngestError::NoRows`], the same on all workers.
    async fn rows_somewhere(&mut self) -> Result<(), WorkerError> {
        if self.group.rank.is_none() || self.tracker.all_counts().steps > 0 {
            return Ok(());
        }
        let mine: u64 = self.stream.untrained_rows;
        let rows = if self.group.is_asynchronous() {
            // The others said so when all voted for the end of the epoch.
            mine + self.tracker.others.untrained_rows
        } else {
            self.run.dense.call(move |dense| dense.all_gather_values(&mine)).await??.into_iter().sum()
        };
        let files = &self.run.splits.files;
        let named = files.iter().take(NAMED).map(|path| path.display().to_string());
        let more = (files.len() > NAMED).then(|| "…".to_owned());
        let files = named.chain(more).collect::<Vec<_>>().join(", ");
        Err(IngestError::NoRows { files, rows, part: "train" }.into())
    }

    /// Where another worker is lost, the cause is what that worker reported the coordinator, if it still could, or what the
    /// coordinator has made of it.
    pub(crate) async fn explain_loss(&mut self, error: WorkerError) -> WorkerError {
        let is_over = |error: &MemberError| error.refusal().is_some_and(|refusal| refusal.kind == RefusalKind::Fenced);
        match &error {
            // A worker may be fenced because the run is over.
            WorkerError::Peers(_) | WorkerError::BarrierMissed { .. } | WorkerError::Fenced { .. } => {}
            WorkerError::Member(member) if is_over(member) => {}
            _ => return error,
        }
        tokio::time::timeout(ACCOUNT, self.run.stop.run_ended()).await.unwrap_or(error)
    }
}

impl Trainer {
    pub(crate) async fn vote_at_barrier(&mut self, reason: BarrierReason) -> Result<Event, WorkerError> {
        let mine = WorkerCounts { untrained_rows: self.stream.untrained_rows, ..self.tracker.own_counts() };
        // Numbers can always be written.
        let counts = serde_json::to_string(&mine).unwrap_or_default();
        let vote = BarrierVote { reason: reason.into(), called: self.barrier_calls.newest_heard(), counts };
        let result = self.ballots.vote(vote).await?;
        self.group.counted.by_worker = counts_of(&result.votes)?;
        self.tracker.others = self.group.counted.counts_of_others(self.group.worker_index());
        let called = result.votes.iter().flat_map(|counted| &counted.vote).map(|vote| vote.called).max().unwrap_or(0);
        Ok(Event::BarrierDecided { decision: result.decision(), called, others_steps: self.tracker.others.steps })
    }

    /// In mode `async`, gives the network the weights as the embedding servers hold them now.
    pub(crate) async fn pull_weights(&self) -> Result<(), WorkerError> {
        let Some(weights) = self.stream.weights.clone() else { return Ok(()) };
        let rows = self.run.client.lookup(&UniqueIds { tables: vec![weights] }.into(), Access::Read).await;
        let rows = rows.map_err(|source| WorkerError::Embedding { batch: self.stream.next_seq, source })?;
        Ok(self.run.dense.call(move |dense| dense.take_weights(&rows)).await??)
    }
}

fn counts_of(votes: &[CountedVote]) -> Result<BTreeMap<u32, WorkerCounts>, WorkerError> {
    let all = votes.iter().filter_map(|counted| Some((counted.worker, counted.vote.as_ref()?)));
    all.map(|(worker, vote)| {
        let odd = |error| inconsistent_batch(0, format!("the counts of dense worker {worker} ({error})"));
        Ok((worker, serde_json::from_str(&vote.counts).map_err(odd)?))
    })
    .collect()
}
