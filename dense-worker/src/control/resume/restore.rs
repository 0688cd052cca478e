//! Taking up a checkpoint: the first worker reads it, the others are sent what it read.

use std::time::Duration;

use futures::FutureExt;

use super::point::OPTIMIZER;
use super::{ResumePoint, Training};
use crate::control::peers::Peers;
use crate::control::saved_model::{Load, SavedModel};
use crate::control::train::Trainer;
use crate::datapath::group::Turn;
use crate::error::WorkerError;
use crate::event::Event;

/// How often the others hear that the first worker is still at it.
const PULSE: Duration = Duration::from_millis(500);

impl Trainer {
    /// Gives rows, network, optimiser and counts the state of the checkpoint that the first worker has; without one
    /// everything stays as it is. Answers the epoch that training is in.
    ///
    /// # Errors
    /// When the checkpoint is damaged, or a server or another worker fails.
    pub(crate) async fn resume(&mut self, point: Option<&ResumePoint>) -> Result<u32, WorkerError> {
        let leads = self.peers.is_none_or(Peers::leads);
        if leads {
            self.lead_resume(point).await?;
        } else {
            self.wait_for_lead().await?;
        }
        let mine = point.filter(|_| leads).map(|point| serde_json::to_vec(point.training()).unwrap_or_default());
        let followed = self.dense.call(|dense| dense.follow(0, mine.unwrap_or_default())).await??;
        if followed.is_empty() {
            return Ok(0);
        }
        let training = serde_json::from_slice(&followed);
        let odd =
            |error: serde_json::Error| WorkerError::Thread { thread: "training state", reason: error.to_string() };
        Ok(self.take_up(training.map_err(odd)?))
    }

    async fn lead_resume(&mut self, point: Option<&ResumePoint>) -> Result<(), WorkerError> {
        let Some(point) = point else { return self.pulse(false).await };
        let (dense, servers, folder) = (self.dense.clone(), self.client.servers(), point.folder().clone());
        let load = async move {
            let saved = SavedModel::open(&folder).await?;
            saved.load(&dense, &servers, Load::Replace).await?;
            let state = saved.read_file(OPTIMIZER).await?;
            dense.call(move |dense| dense.model.restore_optimizer(&state)).await?.map_err(WorkerError::from)
        };
        let mut load = load.boxed();
        loop {
            match tokio::time::timeout(PULSE, &mut load).await {
                Ok(loaded) => {
                    loaded?;
                    break;
                }
                Err(_) => self.pulse(true).await?,
            }
        }
        self.pulse(false).await?;
        self.observer.on(&Event::Resumed { step: point.step(), folder: point.folder().to_string() });
        Ok(())
    }

    /// Tells the others whether there is still something to wait for.
    async fn pulse(&self, busy: bool) -> Result<(), WorkerError> {
        if self.peers.is_some() {
            let turn = Turn { samples: u32::from(busy), ..Turn::default() };
            self.dense.call(move |dense| dense.agree(turn)).await??;
        }
        Ok(())
    }

    async fn wait_for_lead(&self) -> Result<(), WorkerError> {
        loop {
            let agreed = self.dense.call(|dense| dense.agree(Turn::default())).await??;
            if agreed.samples() == 0 {
                return Ok(());
            }
        }
    }

    fn take_up(&mut self, mut training: Training) -> u32 {
        let rank = self.peers.map_or(0, |peers| peers.rank as usize);
        self.next_seq = training.next_seq(rank);
        self.pushes.count_from(self.next_seq);
        let step = training.tracker.steps;
        self.cutter.resumed_at(step);
        self.membership.update_progress(|progress| progress.checkpoint_step = step);
        let epoch = training.epoch;
        let world = self.peers.map_or(1, |peers| peers.world as usize);
        let measures = training.measures(rank, world);
        if rank > 0 && self.is_apart() {
            // Steps add up: what was done before is the first worker's.
            training.tracker = training.tracker.of_another();
        }
        training.tracker = training.tracker.with_overall(measures);
        self.go_on_from(training);
        epoch
    }

    /// Counts, measures and choice are those of the run from now on.
    pub(crate) fn go_on_from(&mut self, training: Training) {
        self.tracker.take_up(training.tracker);
        self.completer.count_bad_rows_from(training.bad_rows);
        self.evaluated = training.evaluated;
        self.of_epochs = training.of_epochs;
        self.model.take_up(training.choice);
        // Embedding servers hear by the coordinator how far the run is, before they see a push that is.
        let (step, batch) = (self.tracker.steps_of_all(), self.next_seq);
        self.membership.update_progress(|progress| (progress.step, progress.batch) = (step, batch));
    }
}
