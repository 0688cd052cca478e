//! Calibration of a model (`eval.calibration`): fitted to the validation part at the end of training, saved with the model.
//!
//! ```text
//! the state that becomes the model ─► scores of the validation part, of all workers ─► calibrator ─► calibration.json
//!                                                                  test part: measures before and after
//! ```
//!
//! The validation part is scored once more for it: an earlier state than the last may be the model, and a worker that replaced
//! another one has not seen earlier scores. Every worker fits the same functions to the same merged scores, one for each label of clicks or
//! classes; the first one saves them.

use zagros_eval::CalibrationMethod;
use zagros_job::CalibrationKind;

use super::part_scores::{PartMeasures, PartScores};
use crate::control::save::ModelCalibrators;
use crate::control::trainer::Trainer;
use crate::error::WorkerError;
use crate::report::files::run_blocking;

impl Trainer {
    pub(crate) async fn calibrate(&mut self) -> Result<(), WorkerError> {
        (self.scoring.calibrators, self.scoring.calibrated) = (None, None);
        let Some(kind) = self.run.job.eval.calibration else { return Ok(()) };
        let Some(validation) = self.scoring.held_out.during.clone() else { return Ok(()) };
        let scores = self.merged_scores(&validation).await?;
        let FittedCalibrators { calibrators, measures, without } =
            run_blocking("calibration", move || fit(kind, scores)).await?;
        for label in without {
            tracing::warn!(
                "the validation part has no two classes of the label \"{label}\", or a score that is not finite: it is saved without calibration"
            );
        }
        if self.scoring.measured.step == self.model_age().0 {
            self.scoring.measured.targets = measures.targets;
        }
        (self.scoring.calibrators, self.scoring.calibrated) = (calibrators, measures.calibrated);
        Ok(())
    }
}

#[derive(Debug)]
struct FittedCalibrators {
    calibrators: Option<ModelCalibrators>,
    measures: PartMeasures,
    /// Names of the labels that could not be fitted.
    without: Vec<String>,
}

fn fit(kind: CalibrationKind, mut scores: PartScores) -> FittedCalibrators {
    let method = match kind {
        CalibrationKind::Isotonic => CalibrationMethod::Isotonic,
        CalibrationKind::Temperature => CalibrationMethod::Temperature,
    };
    let (calibrators, without) = scores.fit_calibrators(method);
    let measures = scores.into_measures(calibrators.as_ref());
    FittedCalibrators { calibrators, measures, without }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use zagros_job::{Model, Target};

    use super::*;
    use crate::testing::{batch, job};

    fn scores(samples: &[(bool, f32)]) -> (Vec<Target>, PartScores) {
        let mut job = job(1, &[2], Model::Ffnn { hidden: vec![], dropout: 0.0 });
        job.eval.calibration = Some(CalibrationKind::Isotonic);
        let mut scores = PartScores::new(&Arc::new(job.clone()));
        let mut batch = batch(samples.len(), &[&[]]);
        batch.labels = samples.iter().map(|(label, _)| f32::from(u8::from(*label))).collect();
        let outputs: Vec<f32> = samples.iter().map(|(_, logit)| *logit).collect();
        scores.add(&batch, &outputs).unwrap();
        (job.features.targets, scores)
    }

    #[test]
    fn one_class_is_not_fitted() {
        let (targets, scores) = scores(&[(true, 1.0)]);
        let fitted = fit(CalibrationKind::Isotonic, scores);
        assert_eq!((fitted.calibrators, fitted.measures.calibrated), (None, None));
        assert_eq!(fitted.without, [targets[0].name.clone()]);
    }

    proptest! {
        /// Predictions are those of the calibrator that was fitted, to the last bit.
        #[test]
        fn a_saved_calibrator_is_the_fitted_one(samples in prop::collection::vec((any::<bool>(), -9.0_f32..9.0), 2..80)) {
            for kind in [CalibrationKind::Isotonic, CalibrationKind::Temperature] {
                let (targets, scores) = scores(&samples);
                let fitted = fit(kind, scores);
                let Some(calibrators) = fitted.calibrators else { continue };
                let (_, content) = calibrators.to_file();
                prop_assert_eq!(&ModelCalibrators::parse(&targets, &content).unwrap(), &calibrators);
                prop_assert_eq!(fitted.measures.calibrated.unwrap().samples, samples.len() as u64);
            }
        }
    }
}
