//! Training: the steps of a round, each from rows to gradients on their way, and what comes between two steps.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use tokio_util::task::AbortOnDropHandle;
use zagros_collective::Rendezvous;
use zagros_embedding_client::{EmbeddingClient, Permit, TableIds, Window};
use zagros_ingest::{Batch, IngestError};
use zagros_job::{Job, Mode};
use zagros_plumbing::Deadline;
use zagros_protocol::control::{self, CompleteRequest, ReportEvaluationRequest};

use super::barrier::Barriers;
use super::completer::Completer;
use super::conclude::ModelChoice;
use super::divergence::Divergence;
use super::evaluate::{HeldOut, HeldOutParts, Scorer};
use super::label_runs::LabelRuns;
use super::peers::Peers;
use super::regroup::Unsettled;
use super::resume::Cutter;
use super::splits::{Begun, Splits, control_error};
use super::stop::Stop;
use super::stream::StreamPlace;
use super::tracker::{Step, Tracker, progress};
use crate::datapath::dense::{Dense, DenseThread, Stepped};
use crate::datapath::group::Agreed;
use crate::datapath::prefetch::Prefetch;
use crate::datapath::prepared::Fetched;
use crate::datapath::push::{Gradients, Pushes};
use crate::error::WorkerError;
use crate::event::{Evaluation, Event, HeldOutPart, Observer};
use crate::metrics::{Metrics, Stage};
use crate::model::ModelError;
use crate::summary::Outcome;

/// All that training works with.
pub(crate) struct Trainer {
    pub(crate) job: Arc<Job>,
    pub(crate) client: Arc<EmbeddingClient>,
    pub(crate) dense: DenseThread,
    pub(crate) metrics: Metrics,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) membership: Arc<zagros_coordinator_client::Membership>,
    pub(crate) stop: Stop,
    pub(crate) splits: Splits,
    pub(crate) held_out: HeldOutParts,
    pub(crate) tracker: Tracker,
    /// Of the rows that this worker trains on.
    pub(crate) label_runs: LabelRuns,
    /// How this worker meets the others of a run of several.
    pub(crate) rendezvous: Option<Arc<dyn Rendezvous>>,
    /// Them, once it has.
    pub(crate) peers: Option<Peers>,
    /// Index of each, by rank.
    pub(crate) indices: Vec<u32>,
    /// Ends the group's calls when one of them is lost.
    pub(crate) group_watch: Option<AbortOnDropHandle<()>>,
    /// It has trained in this run, so that its state is worth going on with.
    pub(crate) begun: bool,
    /// Epoch over the data that it is in; their number once all are over.
    pub(crate) epoch: u32,
    /// What is left of the stream in which a group failed.
    pub(crate) broken_off: Option<Begun>,
    /// The batch of the step in which a group failed.
    pub(crate) unsettled: Option<Unsettled>,
    /// What all workers bring to the next step, where they have agreed on it with the last one.
    pub(crate) agreed_ahead: Option<Agreed>,
    /// What that step gave, where others may have made it.
    pub(crate) unapplied: Option<Stepped>,
    /// Where workers that step apart meet.
    pub(crate) barriers: Barriers,
    /// Rows that hold the dense network's weights, in mode `async`.
    pub(crate) weights: Option<TableIds>,
    pub(crate) window: Window,
    pub(crate) pushes: Pushes,
    pub(crate) completer: Completer,
    pub(crate) next_seq: u64,
    /// Where in its data this worker is.
    pub(crate) stream: StreamPlace,
    pub(crate) cutter: Cutter,
    /// The last batch's place in the window, kept until nothing more is to be done between it and the next.
    pub(crate) place: Option<Arc<Permit>>,
    /// Asked to end, after the one batch whose lookup has counted already (mode `sync`).
    pub(crate) stopping: bool,
    /// The last evaluation while training, and after which step it was.
    pub(crate) evaluated: Option<(u64, Evaluation)>,
    /// Rows of the streams that had none to train on.
    pub(crate) untrained_rows: u64,
    /// Measures of the training rows of each epoch.
    pub(crate) of_epochs: Vec<Evaluation>,
    /// Which state becomes the model, and when training ends early.
    pub(crate) model: ModelChoice,
    /// Of the last step; of workers that step together, of all.
    pub(crate) last_loss: f64,
    /// Whether the loss still makes sense.
    pub(crate) divergence: Divergence,
    /// Splits of the epoch that this worker has read to their ends, by id.
    pub(crate) read: BTreeSet<u64>,
}

/// What comes next out of this worker's stream.
pub(super) enum Next {
    Batch(Box<Fetched>),
    /// The stream has no more batches.
    Dry,
    /// Shutdown was requested.
    Interrupted,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// None was made.
    End(End),
    /// It was made, and is the last: someone was asked to stop.
    Last,
    /// It was made; whether a checkpoint is cut after it.
    Step { cuts: bool },
}

impl Made {
    pub(super) fn step(cuts: bool, last: bool) -> Self {
        if last { Self::Last } else { Self::Step { cuts } }
    }
}

/// Why a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The stream has no more batches.
    Data,
    /// As many steps as the job asked for, or as make the validation part better.
    Steps,
    /// Shutdown was requested.
    Interrupted,
}

impl Trainer {
    pub(super) async fn steps(&mut self, epoch: u32, prefetch: &mut Option<Prefetch>) -> Result<End, WorkerError> {
        // Of an earlier round, or of another group.
        self.agreed_ahead = None;
        loop {
            // Settled already where an evaluation was the last thing that a group did.
            if self.steps_left() == 0 || self.model.is_settled() {
                return Ok(End::Steps);
            }
            let next = self.next(epoch, prefetch).await?;
            let made = match (self.in_step(), next) {
                (Some(peers), next) => self.step_together(epoch, peers, next, prefetch).await?,
                (None, Next::Batch(fetched)) => self.step(epoch, *fetched).await?,
                (None, Next::Dry) => Made::End(if self.stopping { End::Interrupted } else { End::Data }),
                (None, Next::Interrupted) => Made::End(End::Interrupted),
            };
            self.check_bad_rows()?;
            let cuts = match made {
                Made::End(end) => return Ok(end),
                Made::Last => return Ok(End::Interrupted),
                Made::Step { cuts } => cuts,
            };
            self.check_divergence(self.last_loss)?;
            if self.is_evaluation_due() {
                self.drain(epoch).await?;
                if let Err(error) = self.evaluate(epoch).await {
                    return interrupted_or(error).map(|_| End::Interrupted);
                }
                if self.model.is_settled() {
                    return Ok(End::Steps);
                }
                self.tracker.resume();
            }
            if cuts {
                self.cut(epoch).await?;
            }
            self.place = None;
        }
    }

    /// The next batch that has samples, its rows looked up. Acknowledgements are booked meanwhile, and barriers gone to.
    async fn next(&mut self, epoch: u32, prefetch: &mut Option<Prefetch>) -> Result<Next, WorkerError> {
        // Once asked to stop, the batch that may be looked up already is waited for no longer than a server.
        let mut until = None;
        loop {
            let (since, may_be_called) = (Instant::now(), self.may_be_called());
            let fetched = tokio::select! {
                biased;
                // Of a batch that the others count on, this worker makes the step first.
                reason = self.stop.requested(), if !self.stopping && self.agreed_ahead.is_none() => {
                    let outcome = interrupted_or(reason)?;
                    if outcome == Outcome::Interrupted && self.job.train.mode != Mode::Sync {
                        return Ok(Next::Interrupted);
                    }
                    (self.stopping, until) = (true, Some(since + self.job.cluster.timeout));
                    continue;
                }
                () = self.barriers.due(), if may_be_called => {
                    self.metrics.spent(Stage::Waiting, since.elapsed());
                    if self.answer_call(epoch).await? {
                        continue;
                    }
                    return Ok(Next::Interrupted);
                }
                complete = self.pushes.acknowledged() => {
                    self.complete(epoch, complete?);
                    self.metrics.spent(Stage::Waiting, since.elapsed());
                    continue;
                }
                () = passed(until) => return Ok(Next::Interrupted),
                fetched = from_stream(prefetch) => fetched,
            };
            self.metrics.spent(Stage::Waiting, since.elapsed());
            let Some(fetched) = self.rows_or_end(fetched)? else { return Ok(Next::Dry) };
            self.next_seq = fetched.seq + 1;
            if fetched.prepared.batch.size > 0 {
                return match self.prove_lease().await {
                    Ok(()) => Ok(Next::Batch(Box::new(fetched))),
                    Err(reason) => interrupted_or(reason).map(|_| Next::Interrupted),
                };
            }
            self.pass_over(epoch, fetched.seq, fetched.prepared.batch);
        }
    }

    /// Splits without a training row are nothing to stop for, once some had rows.
    fn rows_or_end(&mut self, fetched: Option<Result<Fetched, WorkerError>>) -> Result<Option<Fetched>, WorkerError> {
        match fetched.transpose() {
            Err(WorkerError::Ingest(IngestError::NoRows { .. })) if self.may_be_without_rows() => Ok(None),
            fetched => fetched,
        }
    }

    /// Whether rows may be elsewhere: read before, or by another worker.
    fn may_be_without_rows(&self) -> bool {
        self.tracker.steps > 0 || self.job.cluster.workers > 1 || self.membership.incarnation() > 1
    }

    /// Everything about one batch from rows to gradients on their way.
    async fn step(&mut self, epoch: u32, fetched: Fetched) -> Result<Made, WorkerError> {
        let Fetched { seq, prepared, rows, permit } = fetched;
        let made = Made::step(self.cuts_after(self.tracker.steps + 1), self.stopping);
        let permit = Arc::new(permit);
        self.place = Some(Arc::clone(&permit));
        let work = move |dense: &mut Dense| (dense.step(&prepared, rows), prepared);
        let (stepped, mut prepared) = self.dense.call(work).await?;
        if let Err(skipped @ ModelError::Skipped { .. }) = stepped {
            let bytes = self.bytes_of_all(prepared.batch.bytes);
            self.skip(&skipped, bytes);
            self.pass_over(epoch, seq, prepared.batch);
            return Ok(made);
        }
        let failed = |source| WorkerError::Step { step: self.tracker.steps + 1, source };
        let Stepped { loss, logits, gradients, share } = stepped.map_err(failed)?;
        let staleness = u32::try_from(permit.staleness()).unwrap_or(u32::MAX);
        let ends = self.stream.advance(&mut prepared.batch);
        let step = self.row_step(seq);
        self.pushes.start(Gradients { seq, step, unique: prepared.unique, values: gradients, share, ends, permit });
        let (labels, bytes) = (&prepared.batch.labels, self.bytes_of_all(prepared.batch.bytes));
        self.tell(Step { samples: labels.len() as u64, labels, logits: &logits, loss, staleness, bytes });
        Ok(made)
    }

    /// What rows take for the step of a batch that is about to be pushed. Where workers step together it is the run's own
    /// count, the same for all of them however late each one came; else the worker's own, which is that of its batches.
    pub(super) fn row_step(&self, seq: u64) -> u64 {
        if self.is_apart() { seq } else { self.tracker.steps }
    }

    /// A step that changes nothing: neither the dense network, which refused it, nor any row. It counts all the same,
    /// or a run of `max_steps` would want more batches than were fetched for it.
    pub(super) fn skip(&mut self, cause: &dyn std::error::Error, bytes: u64) {
        let skipped = self.tracker.skipped(bytes);
        self.metrics.steps.inc();
        self.metrics.skipped_steps.inc();
        // The first of many say enough.
        if skipped.is_power_of_two() {
            let step = self.tracker.steps;
            tracing::warn!(step, skipped, "{cause} (train.non_finite, or the loss scale of train.precision = \"f16\")");
        }
    }

    /// A batch that is skipped for good.
    pub(super) fn pass_over(&mut self, epoch: u32, seq: u64, mut batch: Batch) {
        let ends = self.stream.advance(&mut batch);
        let complete = self.pushes.skip(seq, ends);
        self.complete(epoch, complete);
    }

    pub(super) fn tell(&mut self, step: Step<'_>) {
        self.last_loss = f64::from(step.loss);
        if let Some(long) = self.label_runs.add(step.labels) {
            tracing::warn!("{long}");
        }
        let report = self.tracker.stepped(step);
        self.metrics.steps.inc();
        self.metrics.samples.inc_by(step.labels.len() as u64);
        self.metrics.loss.set(report.loss);
        self.metrics.staleness.set(i64::from(report.staleness));
        let so_far = self.tracker.staleness();
        self.metrics.staleness_max.set(i64::from(so_far.max));
        self.metrics.staleness_mean.set(so_far.mean);
        let stages = self.metrics.stage_seconds();
        let batch = self.next_seq;
        // Read inside: a checkpoint that becomes complete meanwhile is told after this, or is in it.
        self.membership.update_progress(|told| {
            let progress = progress(&report, self.cutter.newest(), so_far, &stages);
            *told = control::Progress { batch, ..progress };
        });
        self.observer.on(&Event::Step(report));
    }

    /// Scores the held-out part, unless that was done after this very step. Everything pushed is acknowledged, so
    /// that the scores are of one consistent state.
    pub(super) async fn evaluate(&mut self, epoch: u32) -> Result<(), WorkerError> {
        let step = self.tracker.steps_of_all();
        let Some(held_out) = self.held_out.during.clone() else { return Ok(()) };
        if self.evaluated.is_some_and(|(at, _)| at == step) {
            return Ok(());
        }
        self.tracker.pause();
        let evaluation = self.score(&held_out, epoch).await?;
        self.evaluated = Some((step, evaluation));
        self.consider(evaluation).await
    }

    /// Scores a part with what the model is now, and tells everyone.
    pub(crate) async fn score(&self, held_out: &HeldOut, epoch: u32) -> Result<Evaluation, WorkerError> {
        // In the end that may be an earlier state than the last.
        let (step, part) = (self.model_age().0, held_out.name);
        if self.peers.is_some() {
            // The others' gradients are acknowledged too.
            self.dense.call(Dense::barrier).await??;
        }
        self.pull_weights().await?;
        let scorer = Scorer {
            peers: self.peers,
            job: Arc::clone(&self.job),
            client: Arc::clone(&self.client),
            dense: self.dense.clone(),
            observer: Arc::clone(&self.observer),
            stop: self.stop.clone(),
        };
        let evaluation = scorer.score(held_out, step).await?;
        self.metrics.evaluated(part, &evaluation);
        self.observer.on(&Event::Evaluated { step, part, epoch, evaluation });
        if self.peers.is_none_or(Peers::leads) {
            self.report(step, epoch, part, evaluation).await;
        }
        Ok(evaluation)
    }

    /// The coordinator only shows it: a silent one is told no more and stops nothing.
    async fn report(&self, step: u64, epoch: u32, part: HeldOutPart, evaluation: Evaluation) {
        let part = match part {
            HeldOutPart::Validation => control::HeldOutPart::Validation,
            HeldOutPart::Test => control::HeldOutPart::Test,
        };
        let measures = control::Evaluation {
            step,
            epoch,
            samples: evaluation.samples,
            auc: evaluation.auc.unwrap_or(f64::NAN),
            logloss: evaluation.logloss.unwrap_or(f64::NAN),
            part: part.into(),
        };
        let (member, incarnation) = (self.splits.member, self.splits.incarnation);
        let request = ReportEvaluationRequest { member, incarnation, evaluation: Some(measures) };
        let deadline = Deadline::after(self.job.cluster.timeout);
        let told = tokio::time::timeout(deadline.left(), self.splits.control.report_evaluation(request)).await;
        if let Ok(Err(refusal)) = told {
            let error = control_error(&*self.splits.control, "take an evaluation", deadline, refusal);
            tracing::warn!(%error, "training goes on");
        }
    }

    /// Waits until every gradient is acknowledged and every complete split is told.
    pub(super) async fn drain(&mut self, epoch: u32) -> Result<(), WorkerError> {
        let complete = self.pushes.drain().await?;
        self.complete(epoch, complete);
        self.completer.flush().await
    }

    pub(super) fn complete(&mut self, epoch: u32, splits: Vec<u64>) {
        if !splits.is_empty() {
            self.read.extend(&splits);
            let (member, incarnation) = (self.splits.member, self.splits.incarnation);
            let bad_rows = splits.iter().map(|split| self.stream.bad_rows(*split)).collect();
            self.completer.complete(CompleteRequest { member, incarnation, epoch, splits, bad_rows });
        }
    }

    /// Those of this worker's stream are checked where they are read; here those of all workers are.
    fn check_bad_rows(&self) -> Result<(), WorkerError> {
        let (count, limit) = (self.completer.bad_rows(), self.job.data.max_bad_rows);
        if count <= limit {
            return Ok(());
        }
        Err(IngestError::TooManyBadRows { count, limit, first: Vec::new() }.into())
    }

    pub(super) fn steps_left(&self) -> u64 {
        self.job.train.max_steps.map_or(u64::MAX, |most| most.saturating_sub(self.tracker.steps))
    }

    pub(super) fn is_evaluation_due(&self) -> bool {
        self.job.train.evaluate_every.is_some_and(|every| self.tracker.steps.is_multiple_of(every))
    }
}

/// Waits for a moment; for ever without one.
async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// Of no stream there is no next batch.
async fn from_stream(prefetch: &mut Option<Prefetch>) -> Option<Result<Fetched, WorkerError>> {
    match prefetch {
        Some(prefetch) => prefetch.next().await,
        None => None,
    }
}

/// An interruption is an outcome; anything else is an error.
pub(crate) fn interrupted_or(reason: WorkerError) -> Result<Outcome, WorkerError> {
    match reason {
        WorkerError::Interrupted => Ok(Outcome::Interrupted),
        WorkerError::Ingest(IngestError::Cancelled) => Ok(Outcome::Interrupted),
        error => Err(error),
    }
}
