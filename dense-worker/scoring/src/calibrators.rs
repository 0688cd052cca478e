//! The calibrators of a model, one for each label that has one, and their file.
//!
//! With one label the file is its calibrator: `{"method": "temperature", "temperature": 1.5}`. With several it is
//! `{"labels": {"click": {"method": …}, "level": {"method": …}}}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zagros_eval::Calibrator;
use zagros_job::{Target, TargetKind};
use zagros_zip::ZipEq;

use crate::manifest::to_json;

pub(crate) const FILE: &str = "calibration.json";

#[derive(Clone, Debug, PartialEq)]
pub struct ModelCalibrators(Vec<TargetCalibrator>);

#[derive(Clone, Debug, PartialEq)]
struct TargetCalibrator {
    target: String,
    outputs: usize,
    /// None of a regression, and of a label that could not be fitted.
    calibrator: Option<Calibrator>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabelsFile {
    labels: BTreeMap<String, Calibrator>,
}

impl ModelCalibrators {
    /// Those of targets, as many as there are; `None` if no target has one.
    pub fn from_targets(targets: &[Target], calibrators: Vec<Option<Calibrator>>) -> Option<Self> {
        let is_one = calibrators.iter().any(Option::is_some);
        let target_calibrator = |(target, calibrator): (&Target, Option<Calibrator>)| TargetCalibrator {
            target: target.name.clone(),
            outputs: target.output_count(),
            calibrator,
        };
        is_one.then(|| Self(targets.iter().zip_eq(calibrators).map(target_calibrator).collect()))
    }

    pub fn target_calibrators(&self) -> impl Iterator<Item = Option<&Calibrator>> {
        self.0.iter().map(|of| of.calibrator.as_ref())
    }

    /// Calibrates the outputs of samples, `[samples, outputs]`.
    pub fn calibrate_outputs(&self, outputs: &mut [f32]) {
        let every = self.0.iter().map(|of| of.outputs).sum();
        for row in outputs.chunks_exact_mut(every) {
            let mut rest = row;
            for of in &self.0 {
                let (own, others) = rest.split_at_mut(of.outputs);
                if let Some(calibrator) = &of.calibrator {
                    own.iter_mut().for_each(|output| *output = calibrator.apply(*output));
                }
                rest = others;
            }
        }
    }

    pub fn to_file(&self) -> (&'static str, Vec<u8>) {
        if let [TargetCalibrator { calibrator, .. }] = &self.0[..] {
            return (FILE, to_json(calibrator));
        }
        let named = |of: &TargetCalibrator| Some((of.target.clone(), of.calibrator.clone()?));
        (FILE, to_json(&LabelsFile { labels: self.0.iter().filter_map(named).collect() }))
    }

    /// Reads the content of [`Self::to_file`], of a model with these targets.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(targets: &[Target], content: &[u8]) -> Result<Self, String> {
        let wrong =
            |reason: String| format!("{FILE} holds no calibration ({reason}); use another save, or --uncalibrated");
        let mut found = match targets {
            [only] => BTreeMap::from([(only.name.clone(), read::<Calibrator>(content).map_err(wrong)?)]),
            _ => read::<LabelsFile>(content).map_err(wrong)?.labels,
        };
        let calibrators = targets.iter().map(|target| found.remove(&target.name)).collect::<Vec<_>>();
        if let Some(name) = found.keys().next() {
            return Err(wrong(format!("it has one of \"{name}\", which is no label of the model")));
        }
        for (target, calibrator) in targets.iter().zip_eq(&calibrators) {
            let Some(calibrator) = calibrator else { continue };
            let is_of_target = match target.kind {
                TargetKind::Click { .. } => true,
                TargetKind::Classes { .. } => matches!(calibrator, Calibrator::Temperature { .. }),
                TargetKind::Regression { .. } => false,
            };
            if !is_of_target {
                return Err(wrong(format!("its method is none for the label \"{}\"", target.name)));
            }
            if !calibrator.is_valid() {
                return Err(wrong("its numbers do not increase".to_owned()));
            }
        }
        Self::from_targets(targets, calibrators).ok_or_else(|| wrong("it is empty".to_owned()))
    }
}

fn read<T: for<'a> Deserialize<'a>>(content: &[u8]) -> Result<T, String> {
    serde_json::from_slice(content).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use zagros_eval::calibrator::IsotonicKnot;
    use zagros_fakes::jobs::{class_target, number_target};

    use super::*;

    fn temperature(temperature: f64) -> Option<Calibrator> {
        Some(Calibrator::Temperature { temperature })
    }

    fn targets() -> Vec<Target> {
        vec![Target::from("click"), number_target("price"), class_target("level")]
    }

    #[test]
    fn what_is_no_calibrator_is_refused() {
        let one = |content: &str| ModelCalibrators::parse(&targets()[..1], content.as_bytes());
        for damaged in ["", "{}", r#"{"method":"platt"}"#, r#"{"method":"temperature","temperature":-1.0}"#] {
            assert!(one(damaged).unwrap_err().contains("calibration.json"), "{damaged}");
        }
        let falling =
            r#"{"method":"isotonic","knots":[{"logit":1.0,"calibrated":0.0},{"logit":0.0,"calibrated":0.0}]}"#;
        assert!(one(falling).unwrap_err().contains("do not increase"));
        let several = |label: &str| {
            let one = r#"{"method":"isotonic","knots":[{"logit":1.0,"calibrated":0.0}]}"#;
            ModelCalibrators::parse(&targets(), format!("{{\"labels\":{{\"{label}\":{one}}}}}").as_bytes())
        };
        assert!(several("click").is_ok());
        assert!(several("level").unwrap_err().contains("its method is none for the label \"level\""));
        assert!(several("price").unwrap_err().contains("\"price\""));
        assert!(several("buy").unwrap_err().contains("\"buy\", which is no label"));
        assert!(ModelCalibrators::parse(&targets(), br#"{"labels":{}}"#).unwrap_err().contains("empty"));
    }

    #[test]
    fn each_label_has_its_own_and_a_number_stays() {
        let knots = vec![IsotonicKnot { logit: 0.0, calibrated: -1.0 }, IsotonicKnot { logit: 2.0, calibrated: 1.0 }];
        let isotonic = Some(Calibrator::Isotonic { knots });
        let calibrators = ModelCalibrators::from_targets(&targets(), vec![isotonic, None, temperature(2.0)]).unwrap();
        let mut outputs = [1.0, 7.0, 3.0, -4.0, 9.0, -7.0, 0.0, 1.0];
        calibrators.calibrate_outputs(&mut outputs);
        assert_eq!(outputs, [0.0, 7.0, 1.5, -2.0, 1.0, -7.0, 0.0, 0.5]);
        let (_, content) = calibrators.to_file();
        assert_eq!(ModelCalibrators::parse(&targets(), &content), Ok(calibrators));
        assert_eq!(ModelCalibrators::from_targets(&targets(), vec![None, None, None]), None);
    }

    /// Models of one label have had this file since there is calibration.
    #[test]
    fn the_file_of_one_label_is_its_calibrator() {
        let one = ModelCalibrators::from_targets(&targets()[..1], vec![temperature(1.5)]).unwrap();
        let (_, content) = one.to_file();
        assert_eq!(read::<Calibrator>(&content).ok(), temperature(1.5));
        assert_eq!(ModelCalibrators::parse(&targets()[..1], &content), Ok(one));
    }
}
