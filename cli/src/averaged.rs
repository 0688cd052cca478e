//! The average of several models' scores: all but one score the rows into files beside the output, and the last one's scores are
//! averaged with those on their way to the output.
//!
//! ```text
//! model 2 ──► out.csv.model-2 ──┐  a record for each row
//! model 3 ──► out.csv.model-3 ──┤
//! model 1 ──────────────────────┴──► mean ──► out.csv
//! ```
//!
//! A file of scores gets its name once it is complete. A command that was stopped goes on in it, as in the output.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use crate::predictions::{PredictionError, read_record};
use zagros_eval::TargetForm;
use zagros_ingest::InputRows;
use zagros_zip::{ZipEq, number_from};

const BUFFER: usize = 1 << 20;

pub(crate) struct ModelScoresReader {
    from: BufReader<File>,
    path: PathBuf,
    model: String,
    /// Of the sample that was read last, by column.
    scores: Vec<Vec<f64>>,
    /// Malformed rows since the last sample; `None` where that was read before.
    malformed: Option<u32>,
}

impl ModelScoresReader {
    /// Opens a finished file, after so many samples.
    pub(crate) fn open(path: &Path, model: String, columns: usize, done: u64) -> Result<Self, PredictionError> {
        let file = File::open(path).map_err(|error| failed(path, error))?;
        let (from, scores) = (BufReader::with_capacity(BUFFER, file), vec![Vec::new(); columns]);
        let mut reader = Self { from, path: path.to_owned(), model, scores, malformed: None };
        for _ in 0..done {
            reader.read_sample()?;
        }
        reader.malformed = (done == 0).then_some(0);
        Ok(reader)
    }

    /// Reads the scores of the next sample. Returns the number of malformed rows before it.
    fn read_sample(&mut self) -> Result<u32, PredictionError> {
        self.scores.iter_mut().for_each(Vec::clear);
        let mut malformed = 0_u32;
        while !read_record(&mut self.from, &mut [], &mut self.scores).map_err(|error| failed(&self.path, error))? {
            malformed = malformed.saturating_add(1);
        }
        Ok(malformed)
    }

    /// Adds the scores of the samples among `rows` to `sums`, `[samples * columns]`. Refuses a file with other malformed rows.
    pub(crate) fn add_to(&mut self, rows: &InputRows, sums: &mut [f64]) -> Result<(), PredictionError> {
        let mut sums = sums.chunks_mut(self.scores.len());
        for row in rows.iter() {
            if row.sample.is_none() {
                self.malformed = self.malformed.map(|rows| rows.saturating_add(1));
                continue;
            }
            let malformed = self.read_sample()?;
            if self.malformed.replace(0).is_some_and(|expected| expected != malformed) {
                // Their scores do not belong together.
                return Err(PredictionError::Refused(format!(
                    "other rows are malformed for {} than for the first model; their jobs read the data differently: score with each \
                     model by itself",
                    self.model
                )));
            }
            let own = sums.next().unwrap_or_default();
            own.iter_mut().zip_eq(&self.scores).for_each(|(sum, score)| *sum += score.iter().sum::<f64>());
        }
        Ok(())
    }
}

/// The models that an argument names: a path that exists, or several with commas between them.
pub(crate) fn models_of(named: &Path) -> Vec<PathBuf> {
    let text = named.to_string_lossy();
    if named.exists() || !text.contains(',') {
        return vec![named.to_owned()];
    }
    text.split(',').filter(|model| !model.is_empty()).map(PathBuf::from).collect()
}

/// Where the scores of each model but the first go. `identity` tells those of other rows and models apart.
pub(crate) fn score_files(output: &Path, models: usize, identity: &str) -> Vec<PathBuf> {
    let hash = zagros_store::hex_digits(&zagros_store::ContentDigest::compute(identity.as_bytes()).sha256);
    let name = output.file_name().map_or_else(|| "scores".into(), |name| name.to_string_lossy().into_owned());
    let place = |number| format!("{name}.model-{number}-{}", &hash[..12]);
    let numbers = number_from(2_usize, 1..models).map(|(number, _)| number);
    match output == Path::new("-") {
        true => {
            numbers.map(|number| std::env::temp_dir().join(format!("zagros-{}-{number}", std::process::id()))).collect()
        }
        false => numbers.map(|number| output.with_file_name(place(number))).collect(),
    }
}

fn failed(path: &Path, source: io::Error) -> PredictionError {
    let kept = "the scores of this model are computed again by the same command".to_owned();
    PredictionError::Write { path: path.to_owned(), source, kept }
}

#[derive(Clone, Debug)]
pub(crate) struct ScoreForm {
    /// The outputs themselves, and not what they predict.
    pub(crate) logits: bool,
    /// In the order of the network's outputs.
    pub(crate) targets: Vec<TargetForm>,
}

impl ScoreForm {
    pub(crate) fn columns(&self) -> usize {
        self.targets.iter().map(|target| target.output_count()).sum()
    }

    /// The scores of samples, `[samples * columns]`.
    pub(crate) fn scores(&self, outputs: &[f32]) -> Vec<f64> {
        if self.logits { outputs.iter().map(|logit| f64::from(*logit)).collect() } else { self.predictions(outputs) }
    }

    pub(crate) fn predictions(&self, outputs: &[f32]) -> Vec<f64> {
        let mut scores = Vec::with_capacity(outputs.len());
        let mut rest = outputs;
        while !rest.is_empty() {
            for target in &self.targets {
                let (own, others) = rest.split_at(target.output_count().min(rest.len()));
                target.predict(own, &mut scores);
                rest = others;
            }
        }
        scores
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predictions::{PredictionColumns, PredictionFile, PredictionFormat};

    #[test]
    fn scores_are_read_from_any_sample_on_and_other_malformed_rows_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.csv.model-2-abc");
        let row = || Some(vec![]);
        let rows = InputRows::from_rows(0, [row(), None, None, row(), row(), None]);
        let columns = (PredictionColumns::unnamed(1), PredictionFormat::Records);
        let mut file = PredictionFile::open(&path, columns, "models", 1000, false).unwrap();
        file.add_rows(&rows, &[1.0, 2.0, 4.0]).unwrap();
        assert!(!path.exists(), "it is not complete");
        file.finish().unwrap();
        let mut sums = [10.0, 20.0, 30.0];
        let open = |done| ModelScoresReader::open(&path, "b".to_owned(), 1, done).unwrap();
        open(0).add_to(&rows, &mut sums).unwrap();
        assert_eq!(sums, [11.0, 22.0, 34.0]);
        let mut last = [0.0];
        open(2).add_to(&InputRows::from_rows(0, [row(), None]), &mut last).unwrap();
        assert_eq!(last, [4.0]);
        let other = InputRows::from_rows(0, [row(), None, row(), row()]);
        let error = open(0).add_to(&other, &mut [0.0; 3]).unwrap_err().to_string();
        assert!(error.contains("other rows are malformed for b"), "{error}");
    }

    #[test]
    fn a_path_with_a_comma_that_exists_is_one_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a,b");
        assert_eq!(models_of(&path).len(), 2);
        std::fs::create_dir(&path).unwrap();
        assert_eq!(models_of(&path), [path]);
        assert_eq!(models_of(Path::new("a,b,")), [PathBuf::from("a"), PathBuf::from("b")]);
    }

    #[test]
    fn scores_of_other_rows_have_other_names() {
        let [one, other] = ["x", "y"].map(|identity| score_files(Path::new("to/out.csv"), 3, identity));
        assert_eq!(one.len(), 2);
        assert!(one[0].to_string_lossy().starts_with("to/out.csv.model-2-") && one[0] != other[0], "{one:?}");
    }

    #[test]
    fn each_target_has_its_own_outputs() {
        let form = ScoreForm { logits: false, targets: vec![TargetForm::Click, TargetForm::Regression] };
        assert_eq!((form.columns(), form.scores(&[0.0, 7.0, 0.0, 8.0])), (2, vec![0.5, 7.0, 0.5, 8.0]));
        let logits = ScoreForm { logits: true, ..form };
        assert_eq!(logits.scores(&[0.5, 7.0]), [0.5, 7.0]);
    }
}
