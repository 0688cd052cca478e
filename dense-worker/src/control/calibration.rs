//! Calibration of a model (`eval.calibration`): fitted to the validation part at the end of training, saved with the model.
//!
//! ```text
//! the state that becomes the model ─► scores of the validation part, of all workers ─► calibrator ─► calibration.json
//!                                                                  test part: measures before and after
//! ```
//!
//! The validation part is scored once more for it: an earlier state than the last may be the model, and a worker that replaced
//! another one has not seen earlier scores. Every worker fits the same function to the same merged scores; the first one saves it.

use zagros_eval::{CalibrationMethod, Calibrator, Scores};
use zagros_job::CalibrationKind;

use super::blocking::blocking;
use super::trainer::Trainer;
use crate::error::WorkerError;
use crate::event::Evaluation;
use crate::report::files::to_json;

/// The file of a model's calibrator.
pub(super) const FILE: &str = "calibration.json";

/// Name and content of the file.
pub(super) fn file(calibrator: &Calibrator) -> (&'static str, Vec<u8>) {
    (FILE, to_json(calibrator))
}

/// The calibrator of a file.
///
/// # Errors
/// A message, when it holds none.
pub(super) fn parse(content: &[u8]) -> Result<Calibrator, String> {
    let parsed: Result<Calibrator, _> = serde_json::from_slice(content);
    let reason = match parsed {
        Ok(calibrator) if calibrator.is_valid() => return Ok(calibrator),
        Ok(_) => "its numbers do not increase".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(format!("{FILE} holds no calibration ({reason}); use another save, or --uncalibrated"))
}

impl Trainer {
    /// Fits the calibrator to the validation part, where the job wants one.
    ///
    /// # Errors
    /// When data, servers or libtorch fail, or training must stop.
    pub(super) async fn calibrate(&mut self) -> Result<(), WorkerError> {
        (self.scoring.calibrator, self.scoring.calibrated) = (None, None);
        let Some(kind) = self.run.job.eval.calibration else { return Ok(()) };
        let Some(validation) = self.scoring.held_out.during.clone() else { return Ok(()) };
        // The job has one label, a click.
        let Some(scores) = self.scores(&validation).await?.into_clicks() else { return Ok(()) };
        let Some((calibrator, calibrated)) = blocking("calibration", move || fit(kind, scores)).await? else {
            tracing::warn!(
                "the validation part has no sample of one class, or a score that is not finite: the model is saved without calibration"
            );
            return Ok(());
        };
        (self.scoring.calibrator, self.scoring.calibrated) = (Some(calibrator), Some(calibrated));
        Ok(())
    }
}

/// Fits, and measures the same samples afterwards.
fn fit(kind: CalibrationKind, mut scores: Scores) -> Option<(Calibrator, Evaluation)> {
    let method = match kind {
        CalibrationKind::Isotonic => CalibrationMethod::Isotonic,
        CalibrationKind::Temperature => CalibrationMethod::Temperature,
    };
    let calibrator = Calibrator::fit(method, &mut scores)?;
    let calibrated = scores.calibrated(&calibrator).report();
    Some((calibrator, calibrated))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scores(samples: &[(bool, f32)]) -> Scores {
        let mut scores = Scores::new();
        samples.iter().for_each(|(label, logit)| scores.push(f32::from(u8::from(*label)), *logit));
        scores
    }

    #[test]
    fn what_is_no_calibrator_is_refused() {
        for damaged in ["", "{}", r#"{"method":"platt"}"#, r#"{"method":"temperature","temperature":-1.0}"#] {
            assert!(parse(damaged.as_bytes()).unwrap_err().contains("calibration.json"), "{damaged}");
        }
        let falling =
            r#"{"method":"isotonic","knots":[{"logit":1.0,"calibrated":0.0},{"logit":0.0,"calibrated":0.0}]}"#;
        assert!(parse(falling.as_bytes()).unwrap_err().contains("do not increase"));
    }

    #[test]
    fn one_class_is_not_fitted() {
        assert_eq!(fit(CalibrationKind::Isotonic, scores(&[(true, 1.0)])), None);
    }

    proptest! {
        /// Predictions are those of the calibrator that was fitted, to the last bit.
        #[test]
        fn a_saved_calibrator_is_the_fitted_one(samples in prop::collection::vec((any::<bool>(), -9.0_f32..9.0), 2..80)) {
            for kind in [CalibrationKind::Isotonic, CalibrationKind::Temperature] {
                let Some((fitted, calibrated)) = fit(kind, scores(&samples)) else { continue };
                let (_, content) = file(&fitted);
                prop_assert_eq!(&parse(&content).unwrap(), &fitted);
                prop_assert_eq!(calibrated.samples, samples.len() as u64);
            }
        }
    }
}
