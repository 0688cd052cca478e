//! What is scored while training, and which state becomes the model: what the evaluations of the validation part say of it.

use serde::{Deserialize, Serialize};
use zagros_eval::ColumnSlices;
use zagros_job::{EarlyStop, Job};
use zagros_store::Folder;
use zagros_worker_core::SearchState;

use super::scorer::HeldOutParts;
use crate::control::save::{BestStates, ModelCalibrators, StateInventory};
use crate::error::WorkerError;
use crate::event::{Evaluation, TargetMeasures};

#[derive(Debug, Default)]
pub(crate) struct ModelChoice {
    pub(crate) early_stop: Option<EarlyStop>,
    pub(crate) search: SearchState,
    pub(crate) best_states: Option<BestStates>,
    /// What the first worker keeps, as the others know it: each may take its place.
    pub(super) inventory_of_first: StateInventory,
    /// What each evaluated state was, in the order of steps.
    pub(crate) evaluated: Vec<EvaluatedState>,
    pub(crate) chosen: Option<EvaluatedState>,
    /// Why that one, in words.
    pub(crate) message: Option<String>,
    pub(super) tested: Option<Evaluation>,
}

/// What of a choice outlasts an interruption.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ChoiceState {
    search: SearchState,
    inventory: StateInventory,
    evaluated: Vec<EvaluatedState>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct EvaluatedState {
    pub(crate) step: u64,
    pub(crate) samples: u64,
    pub(crate) evaluation: Evaluation,
}

impl ModelChoice {
    /// States are kept below `folder`; without one the last state is the model.
    pub(crate) fn new(job: &Job, folder: Option<Folder>) -> Self {
        let kept = folder.filter(|_| job.output.keep_best > 0);
        let best_states = kept.map(|folder| BestStates::new(folder, job.output.keep_best as usize));
        Self { early_stop: job.train.early_stop, best_states, ..Self::default() }
    }

    pub(crate) fn choice_state(&self) -> ChoiceState {
        ChoiceState {
            search: self.search,
            inventory: self.best_states.as_ref().map_or_else(|| self.inventory_of_first.clone(), BestStates::inventory),
            evaluated: self.evaluated.clone(),
        }
    }

    pub(crate) fn restore(&mut self, state: ChoiceState) {
        let ChoiceState { search, inventory, evaluated } = state;
        self.search = search;
        if let Some(best_states) = &mut self.best_states {
            best_states.restore_inventory(inventory);
        } else {
            self.inventory_of_first = inventory;
        }
        self.evaluated = evaluated;
    }

    pub(crate) async fn delete_states(&mut self) -> Result<(), WorkerError> {
        match &mut self.best_states {
            Some(best_states) => best_states.delete_all().await,
            None => Ok(()),
        }
    }

    pub(crate) fn choice_message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}

/// An AUC that is less by no more than this may be so by chance.
const NOISE: f64 = 0.001;

/// What to say where an earlier state had a better validation AUC than the last.
pub(super) fn better_than_last(evaluated: &[EvaluatedState]) -> Option<String> {
    let auc = |state: &EvaluatedState| state.evaluation.auc.filter(|auc| auc.is_finite());
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

#[derive(Debug)]
pub(crate) struct ScoringState {
    pub(crate) held_out: HeldOutParts,
    /// The last evaluation while training, and after which step it was.
    pub(crate) evaluated: Option<(u64, Evaluation)>,
    pub(crate) of_epochs: Vec<Evaluation>,
    /// The slices and the targets of the part that was scored last.
    pub(crate) measured: MeasuredParts,
    pub(crate) calibrators: Option<ModelCalibrators>,
    /// Measures of the first target in the part that was scored last, after calibration.
    pub(crate) calibrated: Option<Evaluation>,
    pub(crate) model: ModelChoice,
}

#[derive(Debug, Default)]
pub(crate) struct MeasuredParts {
    /// Steps before that state.
    pub(crate) step: u64,
    pub(crate) slices: Vec<ColumnSlices>,
    pub(crate) targets: Vec<TargetMeasures>,
}

#[cfg(test)]
mod tests {
    use zagros_zip::number_from;

    use super::*;

    fn states(aucs: &[Option<f64>]) -> Vec<EvaluatedState> {
        let state = |(index, auc): (u64, &Option<f64>)| EvaluatedState {
            step: index * 100,
            samples: 0,
            evaluation: Evaluation { auc: *auc, ..Evaluation::default() },
        };
        number_from(1, aucs).map(state).collect()
    }

    #[test]
    fn a_better_state_than_the_last_is_reported_with_the_key_that_keeps_it() {
        let reported = |aucs: &[Option<f64>]| better_than_last(&states(aucs));
        assert_eq!(
            reported(&[Some(0.75), Some(0.7929), Some(0.6985)]).unwrap(),
            "the model is the last state, whose validation AUC is 0.6985; it was 0.7929 at step 200: \
             train.early_stop = { patience = 2 } ends training there and keeps the best state"
        );
        assert_eq!(reported(&[Some(0.7), Some(0.79)]), None);
        assert_eq!(reported(&[Some(0.7905), Some(0.79)]), None, "as good, but for chance");
        assert_eq!((reported(&[]), reported(&[Some(0.9), None])), (None, None));
    }
}
