//! The saved model that a new run starts from (`train.start_from`): yesterday's rows and dense network, today's data.
//!
//! | of the model | of this run |
//! |---|---|
//! | a table of the same name and shape | has its rows and their optimiser state |
//! | a table whose weights are in another number format | has its rows, rounded to the nearest numbers, with a word |
//! | a table that this job does not have | is dropped, with a word |
//! | a table that the model does not have | begins empty, with a word |
//! | a tensor of the same name and shape | has its values |
//! | a tensor of another shape, because features or layers were added or removed | begins anew, with a word |
//! | the dense optimiser's state | is taken if no tensor begins anew; of streamed weights each tile has its own |
//! | how a numeric column is standardised | stays, so that the network sees the same numbers |
//! | the table of a feature of the same name with other ids | begins empty, or stays (`train.start_changed`), with a word |
//! | the layers that read a number that is transformed otherwise | begin anew, or stay, with a word |

use std::collections::BTreeSet;

use zagros_embedding_client::EmbeddingClient;
use zagros_job::{
    Categorical, DENSE_TABLE, Job, Numeric, RegressionLoss, Sequence, StartChanged, StartSteps, Table, Target,
    TargetKind, WeightStore, is_dense_table,
};
use zagros_protocol::control::{LoadRequest, LoadResponse};
use zagros_scoring::{OPTIMIZER, SavedModel, damaged};
use zagros_store::Folder;

use crate::control::save::{MODEL, load_rows, on_all, read_file};
use crate::datapath::dense::{DenseStage, DenseThread};
use crate::error::WorkerError;
use crate::event::WorkerEvent;
use crate::report::run_blocking;
use zagros_model::{ModelError, SameInputs};

#[derive(Clone, Debug)]
pub(crate) struct StartModel {
    saved: SavedModel,
    /// As it was trained, standardisation fitted.
    job: Job,
    steps: StartSteps,
}

impl StartModel {
    /// The model that a job names: by its own folder or its run's.
    pub(crate) async fn open(job: &Job) -> Result<Option<Self>, WorkerError> {
        let Some(named) = job.train.start_from.clone() else { return Ok(None) };
        let (timeout, steps) = (job.cluster.timeout, job.train.start_steps);
        let find = move || -> Result<(SavedModel, Job), WorkerError> {
            let folder = Folder::open(&named, timeout)?;
            let of_run = folder.join(MODEL);
            let is_here = SavedModel::is_in(&folder)? || !SavedModel::is_in(&of_run)?;
            let saved = SavedModel::open(if is_here { &folder } else { &of_run })?;
            let job = saved.read_job()?;
            Ok((saved, job))
        };
        let (saved, of_model) = run_blocking("model files", find).await??;
        let wrong = |reason: String| WorkerError::from(damaged(&saved.folder, reason));
        if predicted(job) != predicted(&of_model) {
            let (ours, its) = (predicted(job).join(", "), predicted(&of_model).join(", "));
            return Err(wrong(format!(
                "it predicts {its}, and this job predicts {ours}: the outputs of the network would mean something else; start from \
                 a model of the same labels, or train from the beginning"
            )));
        }
        let weights_differ = job.dense_table() != of_model.dense_table()
            || (job.train.seed, &job.model, job.parametrization)
                != (of_model.train.seed, &of_model.model, of_model.parametrization)
            || same_inputs(&measured(job, &of_model), &of_model) != (SameInputs { numeric: true, categorical: true });
        if of_model.train.weights != job.train.weights {
            let (are, other) = match of_model.train.weights {
                WeightStore::Streamed => ("streamed: they are rows of its tables", "streamed"),
                WeightStore::Auto | WeightStore::Resident => ("in a file of their own", "resident"),
            };
            return Err(wrong(format!(
                "the weights of its dense network are {are}, and those of this job are not; set train.weights = \"{other}\""
            )));
        }
        if job.dense_table().is_some() && weights_differ {
            return Err(wrong(
                "mode `async` starts only from a model of mode `async` with the same seed, features and network, because its \
                 embedding servers hold the weights as differences from the first ones; train.mode = \"hybrid\" starts from this \
                 model"
                    .to_owned(),
            ));
        }
        Ok(Some(Self { saved, job: of_model, steps }))
    }

    /// Statistics that this job would measure keep the values that the model was trained with.
    pub(crate) fn fix_statistics(&self, job: &mut Job) {
        job.features.take_measured(&self.job.features);
    }

    /// Gives network and servers, which hold nothing yet or what an earlier process of this run had begun with, the model's state.
    pub(crate) async fn load(
        &self,
        job: &Job,
        dense: &DenseThread,
        servers: &EmbeddingClient,
    ) -> Result<WorkerEvent, WorkerError> {
        let changed = ChangedMeanings::compare(job, &self.job);
        let tensors = self.streamed_anew(job, dense).await?;
        let tiles = tensors.iter().map(|tensor| format!("{DENSE_TABLE} {tensor}"));
        let anew: Vec<String> = changed.tables_anew().into_iter().cloned().chain(tiles).collect();
        let restart_steps = self.steps == StartSteps::Restart;
        let how = LoadRequest { other_run: true, restart_steps, anew: anew.clone(), ..Default::default() };
        let (_, loaded) = on_all(servers, |_, server| load_rows(&self.saved, server, how.clone())).await?;
        let rows = loaded.iter().map(|loaded| loaded.rows).sum();
        let mut differences = self.tables(job, &loaded);
        if differences.is_empty() && anew.is_empty() && rows != self.saved.manifest.rows {
            let saved = self.saved.manifest.rows;
            let reason = format!("{saved} rows were saved, but the embedding servers took {rows}; is a file missing?");
            return Err(damaged(&self.saved.folder, reason).into());
        }
        differences.extend(self.converted(job, &anew));
        differences.extend(changed.lines());
        let mut layers: Vec<&str> =
            tensors.iter().map(|name| name.rsplit_once('.').map_or(&**name, |parts| parts.0)).collect();
        layers.dedup();
        differences.extend(layers.into_iter().map(begins_anew));
        differences.extend(self.load_dense(job, dense).await?);
        Ok(WorkerEvent::StartedFrom {
            folder: self.saved.folder.to_string(),
            step: self.first_step(),
            rows,
            differences,
        })
    }

    /// Steps from which this run counts on.
    pub(crate) fn first_step(&self) -> u64 {
        if self.steps == StartSteps::Restart { 0 } else { self.saved.manifest.steps }
    }

    /// The tensors of streamed weights that keep their first values: of another shape than the model's, or of a layer that reads other
    /// inputs.
    async fn streamed_anew(&self, job: &Job, dense: &DenseThread) -> Result<Vec<String>, WorkerError> {
        let tensors = |job: &Job| -> Vec<(String, Vec<u64>)> {
            let layers = job.streamed_layers().into_iter().flat_map(|layer| layer.tensors);
            layers.map(|tensor| (tensor.segment.tensor.name, tensor.segment.tensor.shape)).collect()
        };
        let (ours, its, same) = (tensors(job), tensors(&self.job), same_inputs(job, &self.job));
        let anew = move |dense: &mut DenseStage| {
            let begins_anew =
                |tensor: &(String, Vec<u64>)| !its.contains(tensor) || !dense.model.keeps_meaning(&tensor.0, same);
            ours.into_iter().filter(begins_anew).map(|(name, _)| name).collect()
        };
        dense.call(anew).await
    }

    fn tables(&self, job: &Job, loaded: &[LoadResponse]) -> Vec<String> {
        let mut dropped: Vec<&String> = loaded.iter().flat_map(|loaded| &loaded.dropped).collect();
        dropped.sort_unstable();
        dropped.dedup();
        // Of those that begin anew the features, or the layers, say it.
        let is_tile = |name: &str| job.train.weights == WeightStore::Streamed && is_dense_table(name);
        dropped.retain(|name| job.tables.iter().all(|table| table.name != **name) && !is_tile(name));
        let gone = dropped.into_iter().map(|name| format!("table `{name}` of the model is dropped: this job has none"));
        let is_new = |name: &&String| self.job.tables.iter().all(|table| table.name != **name);
        let new = job.tables.iter().map(|table| &table.name).filter(is_new);
        gone.chain(new.map(|name| format!("table `{name}` begins empty: the model has none"))).collect()
    }

    /// A line for each table whose rows the servers have converted. Tables that begin anew take none.
    fn converted(&self, job: &Job, anew: &[String]) -> Vec<String> {
        let line = |table: &Table| {
            let saved = self.job.tables.iter().find(|saved| saved.name == table.name)?;
            let (from, to) = (saved.element, table.element);
            let is_taken = from != to && !anew.contains(&table.name);
            is_taken.then(|| format!("table `{}`: {} rows became {}", table.name, from.name(), to.name()))
        };
        job.tables.iter().filter_map(line).collect()
    }

    async fn load_dense(&self, job: &Job, dense: &DenseThread) -> Result<Vec<String>, WorkerError> {
        let (weights, state) = (read_file(&self.saved, &self.saved.manifest.dense).await?, self.optimizer().await?);
        let (same, steps) = (same_inputs(job, &self.job), self.steps);
        let load = move |dense: &mut DenseStage| -> Result<Vec<String>, ModelError> {
            let anew = dense.model.start_from(&weights, same)?;
            let taken = match state.filter(|_| anew.is_empty()) {
                Some(state) if steps == StartSteps::Restart => dense.model.restore_optimizer_at_step_0(&state),
                Some(state) => dense.model.restore_optimizer(&state),
                None => Ok(()),
            };
            let layers = anew.iter().map(|layer| begins_anew(layer));
            let optimizer = taken.err().map(|error| format!("the dense network's optimiser begins anew: {error}"));
            Ok(layers.chain(optimizer).collect())
        };
        let loaded = dense.call(load).await?;
        let SavedModel { folder, manifest } = &self.saved;
        loaded.map_err(|error| damaged(folder, format!("{}: {error}", manifest.dense)).into())
    }

    /// `None` in a model of a release that did not save it.
    async fn optimizer(&self) -> Result<Option<Vec<u8>>, WorkerError> {
        match self.saved.manifest.has_file(OPTIMIZER) {
            true => read_file(&self.saved, OPTIMIZER).await.map(Some),
            false => Ok(None),
        }
    }
}

fn begins_anew(layer: &str) -> String {
    format!("layer `{layer}` of the dense network begins anew")
}

/// What each output of the network of a job is for, in words. The name of a single label does not matter.
fn predicted(job: &Job) -> Vec<String> {
    let targets = &job.features.targets;
    let describe = |target: &Target| {
        let kind = match &target.kind {
            TargetKind::Click { given: None, .. } => "a click".to_owned(),
            TargetKind::Click { given: Some(index), .. } => format!("a click after \"{}\"", targets[*index].name),
            TargetKind::Regression { loss: RegressionLoss::Poisson } => "a count".to_owned(),
            TargetKind::Regression { .. } => "a number".to_owned(),
            TargetKind::Classes { classes } => format!("one of {}", classes.join(" or ")),
        };
        if targets.len() > 1 { format!("\"{}\" ({kind})", target.name) } else { kind }
    };
    targets.iter().map(describe).collect()
}

/// A job with what of the model's statistics is of use to it.
fn measured(job: &Job, of_model: &Job) -> Job {
    let mut job = job.clone();
    job.features.take_measured(&of_model.features);
    job
}

/// What of the inputs of a job's network is that of the model's, and is to be taken as such.
fn same_inputs(job: &Job, of_model: &Job) -> SameInputs {
    let numeric = |job: &Job| -> Vec<(String, usize)> {
        job.features.numeric.iter().map(|feature| (feature.name().to_owned(), feature.input_count())).collect()
    };
    let categorical = |job: &Job| -> Vec<(String, usize, Option<Sequence>)> {
        let features = job.features.categorical.iter();
        let input = |feature: &Categorical| {
            (feature.name.clone(), job.tables[feature.table].dim, feature.values.sequence().copied())
        };
        features.map(input).collect()
    };
    let keeps_numbers = ChangedMeanings::compare(job, of_model).keep_numbers();
    SameInputs {
        numeric: numeric(job) == numeric(of_model) && keeps_numbers,
        categorical: categorical(job) == categorical(of_model),
    }
}

/// The features of a job that are made otherwise than in the model, by name, and what becomes of what the model has learned of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChangedMeanings {
    choice: StartChanged,
    numbers: Vec<String>,
    /// Of a feature and its table.
    ids: Vec<[String; 2]>,
}

impl ChangedMeanings {
    /// Between a job and that of the model that it starts from.
    pub(crate) fn compare(job: &Job, of_model: &Job) -> Self {
        let (ours, its) = (&job.features, &of_model.features);
        let number_changed =
            |one: &&Numeric| its.numeric.iter().any(|other| other.name() == one.name() && !other.makes_inputs_of(one));
        let ids_changed = |one: &&Categorical| {
            its.categorical.iter().any(|other| other.name == one.name && !ours.makes_ids_of(one, its, other))
        };
        let numbers = ours.numeric.iter().filter(number_changed).map(|feature| feature.name().to_owned());
        let ids = ours.categorical.iter().filter(ids_changed);
        Self {
            choice: job.train.start_changed,
            numbers: numbers.collect(),
            ids: ids.map(|feature| [feature.name.clone(), job.tables[feature.table].name.clone()]).collect(),
        }
    }

    pub(super) fn keep_numbers(&self) -> bool {
        self.choice == StartChanged::Keep || self.numbers.is_empty()
    }

    pub(super) fn tables_anew(&self) -> BTreeSet<&String> {
        let is_anew = self.choice == StartChanged::Anew;
        self.ids.iter().filter(|_| is_anew).map(|[_, table]| table).collect()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let otherwise = "otherwise than in the model";
        let numbers = self.numbers.iter().map(|name| match self.choice {
            StartChanged::Anew => format!(
                "feature `{name}` transforms its number {otherwise}: the layers that read numbers begin anew \
                 (train.start_changed = \"keep\" keeps their weights)"
            ),
            StartChanged::Keep => {
                format!("feature `{name}` transforms its number {otherwise}, and the network's weights stay")
            }
        });
        let ids = self.ids.iter().map(|[name, table]| match self.choice {
            StartChanged::Anew => format!(
                "table `{table}` begins empty: feature `{name}` makes its ids {otherwise} (train.start_changed = \"keep\" keeps the rows)"
            ),
            StartChanged::Keep => {
                format!("feature `{name}` makes its ids {otherwise}, and the rows of table `{table}` stay: they now belong to other values")
            }
        });
        numbers.chain(ids).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::small_job;

    #[test]
    fn outputs_are_compared_by_what_they_are_for() {
        let outputs_of = |targets: &[Target]| {
            let mut job = small_job();
            job.features.targets = targets.to_vec();
            predicted(&job)
        };
        let weighted = Target { weight: 2.0, ..Target::from("click") };
        assert_eq!(outputs_of(&[Target::from("clicked")]), outputs_of(&[weighted]));
        let count = TargetKind::Regression { loss: RegressionLoss::Poisson };
        assert_eq!(outputs_of(&[Target { kind: count.clone(), ..Target::from("n") }]), ["a count"]);
        let both = [Target::from("click"), Target { kind: count, ..Target::from("n") }];
        assert_eq!(outputs_of(&both), ["\"click\" (a click)", "\"n\" (a count)"]);
    }
}
