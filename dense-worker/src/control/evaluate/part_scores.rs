//! The scores of a held-out part, those of each target, and the measures that are computed of them: before and after calibration,
//! of slices, and the importance of features.

use std::sync::Arc;

use serde::Serialize;
use zagros_eval::importance::FeatureImportance;
use zagros_eval::{CalibrationMethod, Calibrator, ClickScores, ColumnSlices, SlicedScores, TargetForm, TargetScores};
use zagros_ingest::{Batch, InputRows};
use zagros_job::{Job, RegressionLoss, Target, TargetKind};
use zagros_model::InputColumns;
use zagros_scoring::{ModelCalibrators, TableLookups};
use zagros_zip::ZipEq;

use crate::event::{Evaluation, TargetMeasures};

/// Samples that are kept by group, 16 bytes each. Of more, whole groups are skipped by a hash of the group, half of them at a
/// time, and the report says what share was measured.
const GROUP_SAMPLES: usize = 10_000_000;

#[derive(Clone, Debug)]
pub(crate) struct PartScores {
    job: Arc<Job>,
    pub(super) targets: Vec<TargetScores>,
    /// Of the logistic regression of a run that has one.
    pub(super) logistic: ClickScores,
}

pub fn target_form(target: &Target) -> TargetForm {
    match &target.kind {
        TargetKind::Click { .. } => TargetForm::Click,
        TargetKind::Regression { loss: RegressionLoss::Poisson } => TargetForm::Counts,
        TargetKind::Regression { .. } => TargetForm::Regression,
        TargetKind::Classes { classes } => TargetForm::Classes(classes.len()),
    }
}

impl PartScores {
    /// Groups and slices are those of the first target.
    pub(crate) fn new(job: &Arc<Job>) -> Self {
        let mut targets: Vec<_> = job.features.targets.iter().map(|target| empty(job, target)).collect();
        if let Some(TargetScores::Click(scores)) = targets.first_mut() {
            let eval = &job.eval;
            let empty = if eval.group_by.is_some() { ClickScores::by_group(GROUP_SAMPLES) } else { ClickScores::new() };
            *scores = if eval.slices.is_empty() { empty } else { empty.by_slice(eval.slices.len()) };
        }
        Self { job: Arc::clone(job), targets, logistic: ClickScores::new() }
    }

    pub(crate) fn add(&mut self, batch: &Batch, outputs: &[f32]) -> Result<(), String> {
        match &mut self.targets[..] {
            [only] => only.extend(&batch.labels, outputs, &batch.groups)?,
            targets => {
                let columns = by_target(&self.job, &batch.labels, outputs);
                for (index, (scores, (labels, own))) in targets.iter_mut().zip_eq(columns).enumerate() {
                    scores.extend(&labels, &own, if index == 0 { &batch.groups } else { &[] })?;
                }
            }
        }
        if let (Some(TargetScores::Click(scores)), Some(input)) = (self.targets.first_mut(), &batch.input)
            && let Some(slices) = scores.sliced_scores_mut()
        {
            let every = (self.job.features.targets.len(), self.job.features.output_count());
            add_slices(slices, input, (&batch.labels, outputs), every);
        }
        Ok(())
    }

    /// Adds the scores of another worker, one for each target.
    pub(crate) fn merge(&mut self, targets: Vec<TargetScores>) {
        self.targets.iter_mut().zip_eq(targets).for_each(|(scores, other)| scores.merge(other));
    }

    /// Fits a calibrator to the samples of each target of clicks or classes; `None` if none could be fitted. Also returns the names of those
    /// that could not.
    pub(crate) fn fit_calibrators(&mut self, method: CalibrationMethod) -> (Option<ModelCalibrators>, Vec<String>) {
        let targets = &self.job.features.targets;
        let fitted: Vec<Option<Calibrator>> =
            self.targets.iter_mut().map(|scores| scores.fit_calibrator(method)).collect();
        let has_none = |(target, fitted): &(&Target, &Option<Calibrator>)| {
            fitted.is_none() && !matches!(target.kind, TargetKind::Regression { .. })
        };
        let uncalibrated =
            targets.iter().zip_eq(&fitted).filter(has_none).map(|(target, _)| target.name.clone()).collect();
        (ModelCalibrators::from_targets(targets, fitted), uncalibrated)
    }

    /// The measures, before and after calibration. Sorts all scores.
    pub(crate) fn into_measures(mut self, calibrators: Option<&ModelCalibrators>) -> PartMeasures {
        let eval = &self.job.eval;
        let slices = match self.targets.first() {
            Some(TargetScores::Click(scores)) => scores.sliced_scores(),
            _ => None,
        };
        let slices = slices.map_or_else(Vec::new, |slices| slices.measure_slices(&eval.slices, eval.slice_values));
        let evaluations: Vec<Evaluation> = self.targets.iter_mut().map(TargetScores::compute_measures).collect();
        let calibrated: Vec<Option<Evaluation>> = match calibrators {
            Some(calibrators) => {
                let measure =
                    |(scores, calibrator): (&TargetScores, Option<&Calibrator>)| scores.measure_calibrated(calibrator?);
                self.targets.iter().zip_eq(calibrators.target_calibrators().collect::<Vec<_>>()).map(measure).collect()
            }
            None => vec![None; evaluations.len()],
        };
        let measured = evaluations.iter().zip_eq(&calibrated);
        let named = self.job.features.targets.iter().zip_eq(measured).map(|(target, (evaluation, calibrated))| {
            TargetMeasures { target: target.name.clone(), evaluation: *evaluation, calibrated: *calibrated }
        });
        let targets = if evaluations.len() > 1 { named.collect() } else { Vec::new() };
        let evaluation = evaluations.first().copied().unwrap_or_default();
        let calibrated = calibrated.first().copied().flatten();
        let logistic = Some(self.logistic.compute_measures()).filter(|measures| measures.samples > 0);
        PartMeasures { evaluation, targets, calibrated, importance: None, slices, tables: Vec::new(), logistic }
    }
}

/// Outputs of classes are kept where they are calibrated.
fn empty(job: &Job, target: &Target) -> TargetScores {
    let form = target_form(target);
    if job.eval.calibration.is_some() { TargetScores::to_calibrate(form) } else { TargetScores::new(form) }
}

pub(super) fn by_target(job: &Job, labels: &[f32], outputs: &[f32]) -> Vec<(Vec<f32>, Vec<f32>)> {
    let (targets, of_sample, mut first) = (&job.features.targets, job.features.output_count(), 0);
    let own = |(index, target): (usize, &Target)| {
        let form = target_form(target);
        let own = (column(labels, targets.len(), index, 1), column(outputs, of_sample, first, form.output_count()));
        first += form.output_count();
        own
    };
    targets.iter().enumerate().map(own).collect()
}

/// `width` values from `first` on of each row of `every` values.
fn column(values: &[f32], every: usize, first: usize, width: usize) -> Vec<f32> {
    values.chunks_exact(every).flat_map(|row| &row[first..first + width]).copied().collect()
}

/// Adds the samples among the rows, each with the texts of its columns. A sample has `every` labels and outputs, the first
/// of which are measured.
fn add_slices(slices: &mut SlicedScores, rows: &InputRows, (labels, outputs): (&[f32], &[f32]), every: (usize, usize)) {
    for row in rows.iter() {
        let Some(sample) = row.sample else { continue };
        let (label, output) = (labels[sample * every.0], outputs[sample * every.1]);
        for column in (0..slices.column_count()).filter(|_| !label.is_nan()) {
            slices.push(column, row.key(column), label, output);
        }
    }
}

const MOST_ROWS: usize = 65_536;
/// Most values of the network's input in a block: 64 MiB.
const MOST_VALUES: usize = 16 << 20;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImportanceReport {
    pub repeats: u32,
    /// Rows of a block; values are exchanged between them.
    pub block_rows: usize,
    /// For the first target, the most important feature first.
    pub features: Vec<FeatureImportance>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetImportance>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetImportance {
    pub target: String,
    /// The most important feature first.
    pub features: Vec<FeatureImportance>,
}

pub(super) fn block_rows(job: &Job) -> usize {
    let values = InputColumns::new(job).width + job.features.numeric_inputs();
    (MOST_VALUES / values.max(1)).clamp(1024, MOST_ROWS)
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartMeasures {
    /// Of all its rows, by what the network says; with several targets, of the first.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Of each target, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetMeasures>,
    /// After calibration, where the model has it: the measures of what `zagros predict` writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Evaluation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub importance: Option<ImportanceReport>,
    /// By the columns of `eval.slices`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<ColumnSlices>,
    /// Of a saved model: what was found of the ids of each table.
    #[serde(skip)]
    pub tables: Vec<TableLookups>,
    /// Of a logistic regression that has learned beside the network.
    #[serde(skip)]
    pub logistic: Option<Evaluation>,
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::testing::{batch, class_target, ffnn, job, number_target, small_job};

    fn job_of_three() -> Arc<Job> {
        let mut job = small_job();
        job.features.targets = vec![Target::from("click"), class_target("level"), number_target("price")];
        Arc::new(job)
    }

    /// Labels, and the outputs of a click, two classes and a number.
    fn scored(job: &Arc<Job>, samples: &[([f32; 3], [f32; 4])]) -> PartScores {
        let mut scores = PartScores::new(job);
        let mut batch = batch(samples.len(), &[&[]]);
        batch.labels = samples.iter().flat_map(|sample| sample.0).collect();
        let outputs: Vec<f32> = samples.iter().flat_map(|sample| sample.1).collect();
        scores.add(&batch, &outputs).unwrap();
        scores
    }

    const SAMPLES: [([f32; 3], [f32; 4]); 2] =
        [([1.0, 0.0, 5.0], [0.5, 3.0, 1.0, 6.0]), ([0.0, 1.0, f32::NAN], [-0.5, 2.0, 0.0, 0.0])];

    #[test]
    fn each_target_is_measured_by_its_own_columns() {
        let measures = scored(&job_of_three(), &SAMPLES).into_measures(None);
        let names: Vec<&str> = measures.targets.iter().map(|target| target.target.as_str()).collect();
        assert_eq!(names, ["click", "level", "price"]);
        let [click, level, price] = [0, 1, 2].map(|index| measures.targets[index].evaluation);
        assert_eq!((click.auc, level.accuracy, price.mse, price.samples), (Some(1.0), Some(0.5), Some(1.0), 1));
        assert_eq!(measures.evaluation, click);
    }

    #[test]
    fn workers_measure_what_one_measures() {
        let job = job_of_three();
        let mut merged = PartScores::new(&job);
        for sample in SAMPLES {
            let sent = postcard::to_allocvec(&scored(&job, &[sample]).targets).unwrap();
            merged.merge(postcard::from_bytes(&sent).unwrap());
        }
        assert_eq!(merged.into_measures(None), scored(&job, &SAMPLES).into_measures(None));
    }

    /// What is measured after calibration are the outputs that predictions have.
    #[test]
    fn each_target_is_calibrated_by_its_own() {
        let mut job = Job::clone(&job_of_three());
        job.eval.calibration = Some(zagros_job::CalibrationKind::Isotonic);
        let job = Arc::new(job);
        let samples =
            [SAMPLES[0], SAMPLES[1], ([1.0, 1.0, 2.0], [-1.0, 0.5, 0.0, 3.0]), ([0.0, 0.0, 1.0], [2.0, 0.5, 0.0, 3.0])];
        let mut scores = scored(&job, &samples);
        let (calibrators, without) = scores.fit_calibrators(CalibrationMethod::Isotonic);
        let calibrators = calibrators.unwrap();
        assert_eq!(without, [""; 0]);
        let measures = scores.into_measures(Some(&calibrators));
        let applied = samples.map(|(labels, mut outputs)| {
            calibrators.calibrate_outputs(&mut outputs);
            (labels, outputs)
        });
        let report = scored(&job, &applied).into_measures(None);
        let calibrated: Vec<_> = measures.targets.iter().map(|target| target.calibrated).collect();
        let [click, level, price] = [0, 1, 2].map(|index| report.targets[index].evaluation);
        assert_eq!(calibrated, [Some(click), Some(level), None]);
        assert_eq!((measures.calibrated, price), (Some(click), measures.targets[2].evaluation));
    }

    #[test]
    fn blocks_are_bounded_by_rows_and_by_memory() {
        let rows = |dims: &[usize]| block_rows(&job(1, dims, ffnn(&[])));
        assert_eq!(rows(&[2]), 65_536);
        assert_eq!(rows(&[1023]), 16_384);
        assert_eq!(rows(&[1 << 20]), 1024);
    }
}
