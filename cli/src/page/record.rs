//! Reads the files in a run folder.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use zagros_dense_worker::{Evaluation, RunFolder, RunSummary};
use zagros_shell::{Exit, Failure};

#[derive(Debug, Default)]
pub(crate) struct RunRecord {
    pub(crate) name: String,
    pub(crate) steps: Vec<TrainingStep>,
    pub(crate) evaluations: Vec<ScoredPart>,
    pub(crate) epochs: Vec<EpochMeasures>,
    /// Step of the state that became the model, if one was chosen.
    pub(crate) chosen: Option<u64>,
    /// `None` if the run did not finish.
    pub(crate) summary: Option<RunSummary>,
    /// The resolved job, as text.
    pub(crate) job: String,
    /// Existing files and folders of the run, relative to its folder.
    pub(crate) files: Vec<String>,
    /// Lines of `metrics.jsonl` that could not be read.
    pub(crate) unread: usize,
}

/// A line of `metrics.jsonl`, with the fields that the page shows.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum MetricsLine {
    Step(TrainingStep),
    Evaluation(ScoredPart),
    Epoch(EpochMeasures),
    Choice { step: u64 },
    Resumed { step: u64 },
    Checkpoint {},
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct TrainingStep {
    pub(crate) step: u64,
    pub(crate) samples_per_second: f64,
    pub(crate) loss_smoothed: f64,
    pub(crate) auc_so_far: Option<f64>,
    #[serde(default)]
    pub(crate) calibration: Option<f64>,
    pub(crate) staleness: u32,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct ScoredPart {
    pub(crate) step: u64,
    /// `validation` or `test`.
    pub(crate) part: String,
    #[serde(flatten)]
    pub(crate) evaluation: Evaluation,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct EpochMeasures {
    pub(crate) epoch: u32,
    pub(crate) step: u64,
    #[serde(flatten)]
    pub(crate) training: Evaluation,
}

impl RunRecord {
    /// A failed run has no summary. The last line of a running one may be incomplete. Without `metrics.jsonl` there is no record.
    pub(crate) fn read(folder: &RunFolder) -> Result<Self, Failure> {
        let path = folder.metrics_file();
        let metrics = fs::read_to_string(&path).map_err(|error| {
            let what = format!("{} holds no run: {}: {error}", folder.path().display(), path.display());
            Failure::with_help(Exit::Data, what, "name the folder of a run, such as runs/quickstart-…")
        })?;
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let whole = fs::canonicalize(folder.path()).unwrap_or_else(|_| folder.path().to_owned());
        let mut record = Self {
            name: whole.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            summary: serde_json::from_str(&text(&folder.summary_file())).ok(),
            job: text(&folder.job_file()),
            files: files(folder),
            ..Self::default()
        };
        metrics.lines().for_each(|line| record.add(line));
        Ok(record)
    }

    fn add(&mut self, line: &str) {
        match serde_json::from_str(line) {
            Ok(MetricsLine::Step(step)) => self.steps.push(step),
            Ok(MetricsLine::Evaluation(scored)) => self.evaluations.push(scored),
            Ok(MetricsLine::Epoch(epoch)) => self.epochs.push(epoch),
            Ok(MetricsLine::Choice { step }) => self.chosen = Some(step),
            Ok(MetricsLine::Resumed { step }) => self.forget_after(step),
            Ok(MetricsLine::Checkpoint {}) => {}
            Err(_) => self.unread += 1,
        }
    }

    /// Removes everything after this step, to which the run went back.
    fn forget_after(&mut self, step: u64) {
        self.steps.retain(|later| later.step <= step);
        self.evaluations.retain(|later| later.step <= step);
        self.epochs.retain(|later| later.step <= step);
    }

    pub(crate) fn of_part(&self, part: &str) -> impl Iterator<Item = &ScoredPart> {
        self.evaluations.iter().filter(move |scored| scored.part == part)
    }
}

fn files(folder: &RunFolder) -> Vec<String> {
    let names =
        ["job.toml", "summary.json", "metrics.jsonl", "model", "model/manifest.json", "checkpoints", "tensorboard"];
    names.into_iter().filter(|name| folder.path().join(name).exists()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_by_their_type_and_unknown_ones_are_counted() {
        let mut record = RunRecord::default();
        for line in [
            r#"{"type":"step","time":1.0,"step":3,"epoch":0,"samples_per_second":5.0,"loss":0.7,"loss_smoothed":0.6,"auc_so_far":null,"staleness":2}"#,
            r#"{"type":"evaluation","time":1.0,"step":3,"part":"test","epoch":0,"samples":9,"auc":0.75,"positive_rate":0.5,"logloss":null,"normalised_entropy":null,"calibration":null}"#,
            r#"{"type":"evaluation","time":1.0,"step":4,"part":"validation","epoch":0,"samples":9,"auc":0.8,"gauc":0.7}"#,
            r#"{"type":"epoch","time":1.0,"step":4,"epoch":1,"samples":100,"auc":0.9}"#,
            r#"{"type":"choice","time":1.0,"step":4,"message":"best"}"#,
            r#"{"type":"something later"}"#,
            r#"{"type":"step","tim"#,
        ] {
            record.add(line);
        }
        assert_eq!((record.steps.len(), record.steps[0].staleness, record.unread), (1, 2, 2));
        assert_eq!(record.of_part("test").map(|scored| scored.evaluation.auc).collect::<Vec<_>>(), [Some(0.75)]);
        assert_eq!(record.of_part("validation").next().and_then(|scored| scored.evaluation.gauc), Some(0.7));
        assert_eq!((record.epochs[0].epoch, record.chosen), (1, Some(4)));
    }

    #[test]
    fn steps_after_the_one_that_a_run_went_back_to_are_void() {
        let mut record = RunRecord::default();
        let measured = r#""samples_per_second":5.0,"loss_smoothed":0.6,"auc_so_far":null,"staleness":2"#;
        let step = |step: u64| format!(r#"{{"type":"step","step":{step},{measured}}}"#);
        let resumed = r#"{"type":"resumed","time":1.0,"step":2}"#.to_owned();
        let lines = [step(1), step(2), step(3), resumed, step(3), step(4)];
        lines.iter().for_each(|line| record.add(line));
        assert_eq!(record.steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    #[test]
    fn a_folder_without_measures_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = RunRecord::read(&RunFolder::open(folder.path()).unwrap()).unwrap_err();
        assert!(format!("{refused:?}").contains("holds no run"), "{refused:?}");
    }
}
