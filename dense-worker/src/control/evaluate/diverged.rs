//! What is left of training that has diverged: the best state before, in the error and in the summary.

use zagros_job::EvalMetric;

use super::early_stopping::{group_thousands, measured_state, name_of};
use super::model_choice::EvaluatedState;
use crate::control::save::BestStates;
use crate::control::trainer::Trainer;
use crate::error::{ExitClass, WorkerError};
use crate::summary::TrainingOutcome;

impl Trainer {
    /// Adds the best state to an error that says that training has diverged, and writes the summary. Other errors stay as they are.
    pub(crate) async fn with_best_state(&mut self, error: WorkerError) -> WorkerError {
        if error.exit_class() != ExitClass::Diverged || self.run.folder.is_none() {
            return error;
        }
        let choice = &self.scoring.model;
        let folder = choice.best_states.as_ref().and_then(BestStates::best_folder).map(|folder| folder.to_string());
        let kept = choice.best_states.as_ref().and_then(BestStates::best_step).zip(folder);
        let metric = choice.early_stop.map_or(EvalMetric::Auc, |early_stop| early_stop.metric);
        let Some(best) = best_before(metric, &choice.evaluated, kept.as_ref()) else { return error };
        self.scoring.model.message = Some(format!("training has diverged; {best}"));
        // The error counts, whether or not the servers can still be asked.
        if let Ok(summary) = self.summary(TrainingOutcome::Diverged, &Ok(None)).await {
            let _ = self.write(&summary).await;
        }
        WorkerError::DivergedFrom { source: Box::new(error), best }
    }
}

/// The best of the evaluated states in words: the one that was kept, by step and folder, or that none was kept. `None` before the first
/// evaluation.
fn best_before(metric: EvalMetric, evaluated: &[EvaluatedState], kept: Option<&(u64, String)>) -> Option<String> {
    let measured = |state: &EvaluatedState| Some((state.step, measured_state(metric, &state.evaluation)?));
    let best = match kept {
        Some((step, _)) => evaluated.iter().filter(|state| state.step == *step).find_map(measured),
        None => evaluated.iter().filter_map(measured).reduce(|a, b| if b.1.merit > a.1.merit { b } else { a }),
    };
    let (step, best) = best?;
    let what = format!(
        "the best state before had a validation {} of {:.4} at step {}",
        name_of(metric),
        best.value,
        group_thousands(step)
    );
    Some(match kept {
        Some((_, folder)) => format!(
            "{what} and is in {folder}: `zagros eval {folder}` scores it, and `zagros train JOB --fresh --from {folder}` goes on from it \
             with lower rates"
        ),
        None => format!("{what}, and was not kept: train.early_stop = {{ patience = 2 }} keeps it"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Evaluation;

    fn states(aucs: &[(u64, Option<f64>)]) -> Vec<EvaluatedState> {
        let state = |(step, auc): &(u64, Option<f64>)| EvaluatedState {
            step: *step,
            samples: 0,
            evaluation: Evaluation { auc: *auc, ..Evaluation::default() },
        };
        aucs.iter().map(state).collect()
    }

    #[test]
    fn the_kept_state_is_named_with_its_measure_and_what_can_be_done_with_it() {
        let evaluated = states(&[(100, Some(0.7)), (1200, Some(0.81234)), (1300, Some(0.5))]);
        let kept = (1200, "runs/ads/checkpoints/step-000001200".to_owned());
        let best = best_before(EvalMetric::Auc, &evaluated, Some(&kept)).unwrap();
        assert!(
            best.contains("a validation AUC of 0.8123 at step 1,200 and is in runs/ads/checkpoints/step-000001200"),
            "{best}"
        );
        assert!(best.contains("`zagros eval runs/ads") && best.contains("--from runs/ads"), "{best}");
        let lost = best_before(EvalMetric::Auc, &evaluated, None).unwrap();
        assert!(lost.contains("0.8123 at step 1,200, and was not kept: train.early_stop"), "{lost}");
    }

    #[test]
    fn nothing_is_said_where_nothing_was_measured() {
        assert_eq!(best_before(EvalMetric::Auc, &[], None), None);
        assert_eq!(best_before(EvalMetric::Auc, &states(&[(100, None)]), None), None);
    }
}
