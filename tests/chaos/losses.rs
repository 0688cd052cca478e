//! The loss curve of a run, and what is counted in its summary.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use zagros_shell::{Exit, Failure};

/// The unit is the deviation of a step's loss: a run that lost nothing was 1.4 away, first weights in place of learned
/// ones 11 to 13 (mode hybrid, the quickstart's job).
const FARTHEST: f64 = 4.0;

pub(crate) type Curve = Vec<(u64, f64)>;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunFacts {
    /// Step and loss, in nats: of the first steps all, later of some, whichever are written.
    pub(crate) losses: Curve,
    /// Those of steps that the run went back behind, and made again.
    pub(crate) void: Curve,
    /// SHA-256 of the files with rows and with the dense network, by name.
    pub(crate) files: Vec<(String, String)>,
    pub(crate) samples: u64,
    pub(crate) steps: u64,
    /// AUC of the last evaluation.
    pub(crate) auc: Option<f64>,
}

impl RunFacts {
    /// What worker 0 wrote into the run folder.
    pub(crate) fn read(run: &Path) -> Result<Self, Failure> {
        let failed = |path: &Path, error: &dyn std::fmt::Display| {
            let help = "the run did not write it; its log lines are in the folder logs";
            Failure::with_help(Exit::Storage, format!("{}: {error}", path.display()), help)
        };
        let (metrics, summary) = (run.join("metrics.jsonl"), run.join("summary.json"));
        let text = fs::read_to_string(&metrics).map_err(|error| failed(&metrics, &error))?;
        let (losses, void) = losses(&text);
        let text = fs::read(&summary).map_err(|error| failed(&summary, &error))?;
        let summary: Value = serde_json::from_slice(&text).map_err(|error| failed(&summary, &error))?;
        let count = |key: &str| summary.get(key).and_then(Value::as_u64).unwrap_or(0);
        let auc = summary.get("evaluation").and_then(|evaluation| evaluation.get("auc")?.as_f64());
        let manifest = run.join("model").join("manifest.json");
        let text = fs::read(&manifest).map_err(|error| failed(&manifest, &error))?;
        let files = hashes(&serde_json::from_slice(&text).map_err(|error| failed(&manifest, &error))?);
        Ok(Self { losses, void, files, samples: count("samples"), steps: count("steps"), auc })
    }

    /// The first step that both runs have written with different losses.
    pub(crate) fn first_difference(&self, other: &Self) -> Option<u64> {
        let others: HashMap<u64, f64> = other.losses.iter().copied().collect();
        let differs =
            |(step, loss): &&(u64, f64)| others.get(step).is_some_and(|other| other.to_bits() != loss.to_bits());
        self.losses.iter().chain(&self.void).find(differs).map(|(step, _)| *step)
    }

    pub(crate) fn first_loss(&self) -> f64 {
        let tenth = self.losses.len().div_ceil(10);
        mean(&self.losses[..tenth])
    }

    pub(crate) fn last_loss(&self) -> f64 {
        mean(self.last_part(10))
    }

    /// [`FARTHEST`] deviations of a step's loss in the second half, which has enough steps that chance hardly makes
    /// them small.
    pub(crate) fn farthest(&self) -> f64 {
        let half = self.last_part(2);
        let mean = mean(half);
        let squares: f64 = half.iter().map(|(_, loss)| (loss - mean).powi(2)).sum();
        FARTHEST * (squares / half.len().max(1) as f64).sqrt()
    }

    fn last_part(&self, parts: usize) -> &[(u64, f64)] {
        let last = self.losses.len().div_ceil(parts);
        &self.losses[self.losses.len() - last..]
    }

    pub(crate) fn curve(&self, points: usize) -> Vec<f64> {
        let size = self.losses.len().div_ceil(points).max(1);
        self.losses.chunks(size).map(mean).collect()
    }
}

/// The losses that count, and those of steps that were made again: a line says that the run went back to a step.
fn losses(text: &str) -> (Curve, Curve) {
    let (mut losses, mut void) = (Vec::new(), Vec::new());
    for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let Some(step) = line.get("step").and_then(Value::as_u64) else { continue };
        if line.get("type").and_then(Value::as_str) == Some("resumed") {
            let later: Curve;
            (losses, later) = losses.into_iter().partition(|(of, _)| *of <= step);
            void.extend(later);
        }
        losses.extend(line.get("loss").and_then(Value::as_f64).map(|loss| (step, loss)));
    }
    (losses, void)
}

fn hashes(manifest: &Value) -> Vec<(String, String)> {
    let files = manifest.get("files").and_then(Value::as_array).cloned().unwrap_or_default();
    let hash = |file: &Value| Some((file.get("name")?.as_str()?.to_owned(), file.get("sha256")?.as_str()?.to_owned()));
    files.iter().filter_map(hash).filter(|(name, _)| name != "job.toml").collect()
}

fn mean(curve: &[(u64, f64)]) -> f64 {
    curve.iter().map(|(_, loss)| loss).sum::<f64>() / curve.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_steps_that_were_made_again_count_once_and_are_compared_twice() {
        let line = |step: u64, loss: f64| format!("{{\"type\":\"step\",\"step\":{step},\"loss\":{loss}}}\n");
        let text =
            [line(1, 0.7), line(2, 0.6), line(3, 0.5), "{\"type\":\"resumed\",\"step\":1}\n".into(), line(2, 0.6)];
        let (losses, void) = losses(&text.concat());
        assert_eq!((losses.clone(), void.clone()), (vec![(1, 0.7), (2, 0.6)], vec![(2, 0.6), (3, 0.5)]));
        let undisturbed = RunFacts { losses: vec![(1, 0.7), (2, 0.6), (3, 0.51)], ..RunFacts::default() };
        let went_back = RunFacts { losses, void, ..RunFacts::default() };
        assert_eq!(went_back.first_difference(&undisturbed), Some(3));
    }

    #[test]
    fn a_runs_files_are_read() {
        let run = tempfile::tempdir().unwrap();
        assert!(RunFacts::read(run.path()).is_err());
        let lines: String =
            (0..20).map(|step| format!("{{\"step\":{step},\"loss\":{}}}\n", 1.0 - f64::from(step) / 40.0)).collect();
        fs::write(run.path().join("metrics.jsonl"), format!("{lines}{{\"event\":\"evaluation\"}}\n")).unwrap();
        fs::write(run.path().join("summary.json"), r#"{"samples":40,"steps":20,"evaluation":{"auc":0.75}}"#).unwrap();
        fs::create_dir(run.path().join("model")).unwrap();
        let manifest = r#"{"files":[{"name":"rows","sha256":"ab"},{"name":"job.toml","sha256":"cd"}]}"#;
        fs::write(run.path().join("model/manifest.json"), manifest).unwrap();
        let facts = RunFacts::read(run.path()).unwrap();
        assert_eq!(facts.files, [("rows".to_owned(), "ab".to_owned())]);
        assert_eq!((facts.losses.len(), facts.samples, facts.steps, facts.auc), (20, 40, 20, Some(0.75)));
        assert_eq!(facts.last_loss(), (1.0 - 18.0 / 40.0 + 1.0 - 19.0 / 40.0) / 2.0);
        assert_eq!(facts.curve(4).len(), 4);
    }
}
