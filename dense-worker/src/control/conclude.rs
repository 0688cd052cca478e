//! From the evaluations of the validation part to the model: when training ends, which state is saved, and the one
//! scoring of the test part.

use serde::{Deserialize, Serialize};
use zagros_job::Job;
use zagros_store::Folder;

use super::checkpoints::{Checkpoints, Inventory};
use super::choice::{Choice, Fate, Search};
use super::peers::Peers;
use super::saved_model::Trained;
use super::train::{Trainer, interrupted_or};
use crate::error::WorkerError;
use crate::event::{Evaluation, Event};
use crate::summary::Outcome;

/// Which state becomes the model.
#[derive(Debug, Default)]
pub(crate) struct ModelChoice {
    choice: Option<Choice>,
    checkpoints: Option<Checkpoints>,
    /// What the first worker keeps, as the others know it: each may come into its place.
    elsewhere: Inventory,
    /// What each evaluated state was, in the order of steps.
    evaluated: Vec<State>,
    /// The one that was chosen.
    chosen: Option<State>,
    /// Why that one, in words.
    message: Option<String>,
    /// Measures of the test part by the model.
    tested: Option<Evaluation>,
}

/// What of a choice outlasts an interruption.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ChoiceState {
    search: Search,
    inventory: Inventory,
    evaluated: Vec<State>,
}

/// A state of the model that was evaluated.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct State {
    step: u64,
    samples: u64,
    evaluation: Evaluation,
}

impl ModelChoice {
    /// As the job wants it; states are kept below `folder`, without one the last state is the model.
    pub(crate) fn new(job: &Job, folder: Option<Folder>) -> Self {
        let kept = folder.filter(|_| job.output.keep_best > 0);
        let checkpoints = kept.map(|folder| Checkpoints::new(folder, job.output.keep_best as usize));
        Self { choice: job.train.early_stop.map(Choice::new), checkpoints, ..Self::default() }
    }

    pub(crate) fn state(&self) -> ChoiceState {
        ChoiceState {
            search: self.choice.as_ref().map(Choice::search).unwrap_or_default(),
            inventory: self.checkpoints.as_ref().map_or_else(|| self.elsewhere.clone(), Checkpoints::inventory),
            evaluated: self.evaluated.clone(),
        }
    }

    /// Goes on from there.
    pub(crate) fn take_up(&mut self, state: ChoiceState) {
        let ChoiceState { search, inventory, evaluated } = state;
        if let Some(choice) = &mut self.choice {
            choice.take_up(search);
        }
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.take_up(inventory);
        } else {
            self.elsewhere = inventory;
        }
        self.evaluated = evaluated;
    }

    /// Whether training is to end, because no better state is to be expected.
    pub(crate) fn is_settled(&self) -> bool {
        self.choice.as_ref().is_some_and(Choice::is_over)
    }

    /// Deletes the states that were kept.
    ///
    /// # Errors
    /// When a folder cannot be deleted.
    pub(crate) async fn delete_states(&mut self) -> Result<(), WorkerError> {
        match &mut self.checkpoints {
            Some(checkpoints) => checkpoints.delete_all().await,
            None => Ok(()),
        }
    }

    /// Why training ended and which state is the model.
    pub(crate) fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}

impl Trainer {
    /// Trains from an epoch on, and makes the best state the model.
    ///
    /// # Errors
    /// The first cause of whatever went wrong.
    pub(crate) async fn train_and_conclude(&mut self, first_epoch: u32) -> Result<Outcome, WorkerError> {
        let outcome = self.epochs(first_epoch).await?;
        self.conclude(outcome).await
    }

    /// Takes an evaluation of the present state into account, and keeps the state.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) async fn consider(&mut self, evaluation: Evaluation) -> Result<(), WorkerError> {
        let (step, samples) = (self.tracker.steps_of_all(), self.tracker.samples_of_all());
        self.model.evaluated.push(State { step, samples, evaluation });
        let Some(choice) = &mut self.model.choice else { return Ok(()) };
        choice.note(step, &evaluation);
        let merit = choice.merit(&evaluation);
        let Some(checkpoints) = &mut self.model.checkpoints else {
            self.model.elsewhere.note(step, merit, self.job.output.keep_best as usize);
            return Ok(());
        };
        // A server writes one save at a time.
        self.cutter.settle().await;
        let (job, outcome, validation) = (&*self.job, Outcome::Interrupted, Some(evaluation));
        let trained = Trained { job, outcome, steps: step, samples, evaluation: None, validation };
        checkpoints.keep(merit, trained, &self.dense, &self.client.servers()).await
    }

    /// Goes back to the best state, where one is kept, and scores the test part, where that was left for the end. An
    /// interrupted run is not scored.
    ///
    /// # Errors
    /// When the state cannot be read, or data or servers fail.
    async fn conclude(&mut self, outcome: Outcome) -> Result<Outcome, WorkerError> {
        self.cutter.settle().await;
        self.restore_best().await?;
        if self.peers.is_some() && self.job.train.early_stop.is_some() && outcome == Outcome::Finished {
            // Only the worker that leads keeps states.
            self.dense.call(|dense| dense.follow(0, Vec::new())).await??;
        }
        let Some(test) = self.held_out.at_end.clone().filter(|_| outcome == Outcome::Finished) else {
            return self.with_sense(outcome);
        };
        let epoch = u32::try_from(self.of_epochs.len().saturating_sub(1)).unwrap_or(u32::MAX);
        match self.score(&test, epoch).await {
            Ok(evaluation) => {
                self.model.tested = Some(evaluation);
                self.with_sense(outcome)
            }
            Err(error) => interrupted_or(error),
        }
    }

    /// A run that came to its end with a model that makes no sense has not finished.
    fn with_sense(&self, outcome: Outcome) -> Result<Outcome, WorkerError> {
        if outcome == Outcome::Finished {
            let (test, validation) = self.measures();
            self.check_sense(test.or(validation))?;
        }
        Ok(outcome)
    }

    async fn restore_best(&mut self) -> Result<(), WorkerError> {
        if self.model.chosen.is_some() {
            // By an earlier group, in which a worker was lost after that.
            return Ok(());
        }
        if self.model.choice.is_none() {
            self.tell_of_a_better_state();
            return Ok(());
        }
        let ModelChoice { choice: Some(choice), checkpoints, evaluated, .. } = &mut self.model else { return Ok(()) };
        let best = checkpoints.as_ref().and_then(Checkpoints::best);
        let message = choice.explain(match (best, self.job.output.save_model) {
            (None, _) => Fate::Lost,
            (Some(_), true) => Fate::Saved,
            (Some(_), false) => Fate::Scored,
        });
        let state = evaluated.iter().find(|state| Some(state.step) == best).copied();
        if let (Some(state), Some(checkpoints)) = (state, checkpoints)
            && state.step != self.tracker.steps_of_all()
        {
            checkpoints.restore(state.step, &self.dense, &self.client.servers()).await?;
        }
        let step = state.map_or(self.tracker.steps_of_all(), |state| state.step);
        self.observer.on(&Event::Chosen { step, message: message.clone() });
        (self.model.chosen, self.model.message) = (state, Some(message));
        Ok(())
    }

    /// Without early stopping the last state is the model, also where an earlier one was better: that is said.
    fn tell_of_a_better_state(&mut self) {
        let may_tell = self.model.message.is_none() && self.peers.is_none_or(Peers::leads);
        if !may_tell || !self.job.data.has_validation() {
            return;
        }
        let Some(message) = better_than_last(&self.model.evaluated) else { return };
        tracing::warn!("{message}");
        self.observer.on(&Event::Chosen { step: self.tracker.steps_of_all(), message: message.clone() });
        self.model.message = Some(message);
    }

    /// Steps and samples after which the model was what it is now.
    pub(crate) fn model_age(&self) -> (u64, u64) {
        let last = (self.tracker.steps_of_all(), self.tracker.samples_of_all());
        self.model.chosen.map_or(last, |state| (state.step, state.samples))
    }

    /// Measures of the model on the part that it is judged by, and on the validation part.
    pub(crate) fn measures(&self) -> (Option<Evaluation>, Option<Evaluation>) {
        let last = self.evaluated.map(|(_, evaluation)| evaluation);
        if !self.job.data.has_validation() {
            return (last, None);
        }
        (self.model.tested, self.model.chosen.map(|state| state.evaluation).or(last))
    }
}

/// An AUC that is less by no more than this may be so by chance.
const NOISE: f64 = 0.001;

/// What to say where an earlier state had a better validation AUC than the last.
fn better_than_last(evaluated: &[State]) -> Option<String> {
    let auc = |state: &State| state.evaluation.auc.filter(|auc| auc.is_finite());
    let last = evaluated.last().and_then(auc)?;
    let aucs = evaluated.iter().filter_map(|state| Some((state.step, auc(state)?)));
    let (step, best) = aucs.reduce(|best, other| if other.1 > best.1 { other } else { best })?;
    (best - last > NOISE).then(|| {
        format!(
            "the model is the last state, whose validation AUC is {last:.4}; it was {best:.4} at step {step}: \
             train.early_stop = {{ patience = 2 }} ends training there and keeps the best state"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(aucs: &[Option<f64>]) -> Vec<State> {
        let state = |(index, auc): (u64, &Option<f64>)| State {
            step: index * 100,
            samples: 0,
            evaluation: Evaluation { auc: *auc, ..Evaluation::default() },
        };
        (1..).zip(aucs).map(state).collect()
    }

    #[test]
    fn a_better_state_than_the_last_is_told_with_the_key_that_keeps_it() {
        let told = |aucs: &[Option<f64>]| better_than_last(&states(aucs));
        assert_eq!(
            told(&[Some(0.75), Some(0.7929), Some(0.6985)]).unwrap(),
            "the model is the last state, whose validation AUC is 0.6985; it was 0.7929 at step 200: \
             train.early_stop = { patience = 2 } ends training there and keeps the best state"
        );
        assert_eq!(told(&[Some(0.7), Some(0.79)]), None);
        assert_eq!(told(&[Some(0.7905), Some(0.79)]), None, "as good, but for chance");
        assert_eq!((told(&[]), told(&[Some(0.9), None])), (None, None));
    }
}
