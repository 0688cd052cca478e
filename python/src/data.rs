//! The batches of a job's data, from the parsers of the trainer.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use zagros_ingest::{Batch, BatchStream, DataPart, StreamOptions, StreamStart, WholeFiles, find_files, fit_features};
use zagros_job::{HeldOutRows, Job, Overrides};

use crate::failed;
use crate::tensor::capsule;

/// Names of the labels, the numeric inputs and the categorical features.
type Names = (Vec<String>, Vec<String>, Vec<String>);
/// Ids, and their offsets if a sample has any number of them.
type IdTensors<'py> = (Bound<'py, PyCapsule>, Option<Bound<'py, PyCapsule>>);
/// Samples, labels, weights if samples have them, numbers, ids by feature.
type BatchTensors<'py> =
    (usize, Bound<'py, PyCapsule>, Option<Bound<'py, PyCapsule>>, Bound<'py, PyCapsule>, Vec<IdTensors<'py>>);

/// The rows of one part of a job's data, a batch at a time.
#[pyclass(module = "zagros._native", frozen)]
pub(crate) struct BatchReader {
    stream: Mutex<BatchStream>,
    cancel: Arc<AtomicBool>,
    names: Names,
    /// What is read, with its features measured.
    job: Arc<Job>,
    paths: Vec<PathBuf>,
    part: DataPart,
}

fn job_of(text: Option<&str>, path: &str, sets: Vec<String>) -> PyResult<Job> {
    let overrides = Overrides::new(sets, []);
    let job = match text {
        Some(text) => Job::parse(text, Path::new(path), &overrides),
        None => Job::load(Path::new(path), &overrides),
    };
    job.map_err(|errors| PyValueError::new_err(errors.plain_text()))
}

fn part_of(job: &Job, part: &str) -> PyResult<(Vec<PathBuf>, DataPart)> {
    let of_train = |part| Ok((job.data.train.clone(), part));
    match (part, &job.data.test, &job.data.validation) {
        ("train", ..) => of_train(DataPart::Train),
        ("test", HeldOutRows::Files(paths), _) | ("validation", _, HeldOutRows::Files(paths)) => {
            Ok((paths.clone(), DataPart::All))
        }
        ("test", HeldOutRows::Share(_) | HeldOutRows::Newest(_), _) => of_train(DataPart::Test),
        ("validation", _, HeldOutRows::Share(_) | HeldOutRows::Newest(_)) => of_train(DataPart::Validation),
        ("test" | "validation", ..) => Err(PyValueError::new_err(format!(
            "the job has no {part} part; give `data.{part}`, a share or a time of it (docs/job-file.md)"
        ))),
        _ => Err(PyValueError::new_err(format!("part is {part:?}; it is \"train\", \"test\" or \"validation\""))),
    }
}

impl BatchReader {
    fn open(py: Python<'_>, job: Arc<Job>, paths: Vec<PathBuf>, part: DataPart, epoch: u32) -> PyResult<Self> {
        let cancel = Arc::new(AtomicBool::new(false));
        let start = StreamStart::default();
        let options = StreamOptions { part, epoch, start, bad_rows: 0, cancel: Arc::clone(&cancel) };
        let opened =
            py.detach(|| BatchStream::open(&job, options, Box::new(WholeFiles::new(&find_files(&job, &paths)?))));
        let labels = job.features.targets.iter().map(|target| target.name.clone()).collect();
        let inputs = job.features.numeric.iter().flat_map(|feature| {
            let (inputs, own) = (feature.input_count(), feature.name());
            let name = move |index| if inputs == 1 { own.to_owned() } else { format!("{own}_{index}") };
            (0..inputs).map(name)
        });
        let names =
            (labels, inputs.collect(), job.features.categorical.iter().map(|feature| feature.name.clone()).collect());
        Ok(Self { stream: Mutex::new(opened.map_err(failed)?), cancel, names, job, paths, part })
    }
}

#[pymethods]
impl BatchReader {
    /// Opens a part of a job's data. What its features leave to be measured is measured over the training rows first.
    #[new]
    #[pyo3(signature = (text, path, sets, part, epoch))]
    fn new(
        py: Python<'_>,
        text: Option<&str>,
        path: &str,
        sets: Vec<String>,
        part: &str,
        epoch: u32,
    ) -> PyResult<Self> {
        let mut job = job_of(text, path, sets)?;
        let (paths, part) = part_of(&job, part)?;
        py.detach(|| {
            find_files(&job, &paths)?;
            fit_features(&mut job, &AtomicU64::new(0), &Arc::default())
        })
        .map_err(failed)?;
        Self::open(py, Arc::new(job), paths, part, epoch)
    }

    /// The same part in another epoch. Nothing is measured again.
    fn reopen(&self, py: Python<'_>, epoch: u32) -> PyResult<Self> {
        Self::open(py, Arc::clone(&self.job), self.paths.clone(), self.part, epoch)
    }

    /// Names of the labels, the numeric inputs and the categorical features, in the order of a batch's columns.
    fn names(&self) -> Names {
        self.names.clone()
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Samples, labels float32 `[samples, labels]`, weights float32 `[samples]` or none, numbers float32 `[samples, inputs]`, and
    /// for each categorical feature its ids uint64 `[ids]` with offsets int64 `[samples + 1]`, or none if each sample has one.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<BatchTensors<'py>>> {
        loop {
            let next = py.detach(|| self.stream.lock().unwrap_or_else(PoisonError::into_inner).next());
            py.check_signals()?;
            match next {
                None => return Ok(None),
                // It only completes splits.
                Some(Ok(Batch { size: 0, .. })) => {}
                Some(batch) => return tensors(py, batch.map_err(failed)?).map(Some),
            }
        }
    }
}

impl Drop for BatchReader {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

fn tensors(py: Python<'_>, batch: Batch) -> PyResult<BatchTensors<'_>> {
    let Batch { size, labels, weights, numeric, categorical, .. } = batch;
    let (label_columns, inputs) = (labels.len() / size, numeric.len() / size);
    let weights = if weights.is_empty() { None } else { Some(capsule(py, weights, &[size])?) };
    let mut features = Vec::new();
    for ids in categorical {
        let offsets = ids.offsets.map(|offsets| {
            let offsets: Vec<i64> = offsets.into_iter().map(i64::from).collect();
            let length = offsets.len();
            capsule(py, offsets, &[length])
        });
        let length = ids.ids.len();
        features.push((capsule(py, ids.ids, &[length])?, offsets.transpose()?));
    }
    Ok((size, capsule(py, labels, &[size, label_columns])?, weights, capsule(py, numeric, &[size, inputs])?, features))
}
