//! A network whose weights are tiles of tables, against the same network with its weights.

use std::sync::{Arc, Mutex};

use zagros_fakes::jobs::{ffnn, job, networks_without_autograd};
use zagros_job::{
    CrossStructure, DenseOptimizer, DenseTiles, ExpertLayers, Job, Model, NonFinitePolicy, Parametrization,
    RateSchedule, StreamedLayer, StreamedTensor, WeightStore,
};
use zagros_model::{
    DenseModel, GradientLimit, LayerStore, LayerValues, LayerWindow, ModelError, PendingLayer, StepOutput,
    TargetLosses, TraversalPurpose,
};
use zagros_network::CHUNK;
use zagros_table::optimizer::dense::Staging;
use zagros_table::{LookupMode, PushStep, RequestBuffers, Table, TileUpdate};
use zagros_zip::{ZipEq, number_from};

use super::step::samples;
use super::{bits, weights};
use crate::backend;

mod autograd;

#[derive(Debug)]
pub(crate) struct TileTables {
    tables: Vec<Table>,
    layers: Vec<StreamedLayer>,
    /// Number of the first table.
    first: u32,
    limit: GradientLimit,
    update: TileUpdate,
    squares: Mutex<f64>,
    log: Mutex<Vec<String>>,
    /// A layer that does not come.
    lost: Option<usize>,
}

#[derive(Debug)]
struct FetchedLayer(Result<LayerValues, ModelError>);

impl PendingLayer for FetchedLayer {
    fn wait(self: Box<Self>) -> Result<LayerValues, ModelError> {
        self.0
    }
}

impl TileTables {
    pub(crate) fn new(job: &Job) -> Self {
        let tables = job.server_tables();
        let of_layers = tables.iter().enumerate().skip(job.tables.len());
        let tables = of_layers.map(|(id, table)| Table::new(job.train.seed, id as u32, &table.config).unwrap());
        let (layers, first) = (job.worker_layers(), job.tables.len() as u32);
        let update = if job.gradient_staging() == Staging::None { TileUpdate::AtOnce } else { TileUpdate::Stage };
        let (limit, squares, log) = (GradientLimit::new(job), Mutex::default(), Mutex::default());
        Self { tables: tables.collect(), layers, first, limit, update, squares, log, lost: None }
    }

    fn rows(&self, tensor: &StreamedTensor) -> (&Table, Vec<u64>) {
        let DenseTiles { first, count, .. } = tensor.tiles;
        let ids = (first..first + count).map(|tile| tile as u64);
        (&self.tables[(tensor.table - self.first) as usize], ids.collect())
    }

    fn read(&self, layer: usize) -> Vec<f32> {
        let tensors = self.layers[layer].tensors.iter();
        let values = tensors.flat_map(|tensor| {
            let (table, ids) = self.rows(tensor);
            let mut values = vec![0.0; ids.len() * table.dim()];
            table.lookup(&ids, LookupMode::Train, &mut values, &mut RequestBuffers::default()).unwrap();
            values.truncate(tensor.segment.range.len());
            values
        });
        values.collect()
    }

    /// All weights, layer after layer.
    fn all(&self) -> Vec<f32> {
        (0..self.layers.len()).flat_map(|layer| self.read(layer)).collect()
    }
}

impl LayerStore for TileTables {
    fn pull(&self, layer: usize, _: TraversalPurpose, mut into: LayerValues) -> Box<dyn PendingLayer> {
        self.log.lock().unwrap().push(format!("pull {layer}"));
        if self.lost == Some(layer) {
            let (layer, reason) = (self.layers[layer].name.clone(), "as the test wants".to_owned());
            return Box::new(FetchedLayer(Err(ModelError::Layer { layer, what: "fetch the weights", reason })));
        }
        into.copy_from_slice(&self.read(layer));
        Box::new(FetchedLayer(Ok(into)))
    }

    fn push(&self, layer: usize, step: u64, mut gradient: LayerValues) -> Result<(), ModelError> {
        if !self.limit.clip_gradients(&mut gradient) {
            return Err(ModelError::LayerNotFinite { layer: self.layers[layer].name.clone() });
        }
        self.log.lock().unwrap().push(format!("push {layer}"));
        *self.squares.lock().unwrap() += gradient.iter().map(|gradient| f64::from(*gradient).powi(2)).sum::<f64>();
        let mut left = &gradient[..];
        for tensor in &self.layers[layer].tensors {
            let (part, others) = left.split_at(tensor.segment.range.len());
            let (table, ids) = self.rows(tensor);
            let mut gradients = part.to_vec();
            gradients.resize(ids.len() * table.dim(), 0.0);
            let step = PushStep { tiles: self.update, ..step.into() };
            table.push(&ids, &gradients, step, &mut RequestBuffers::default()).unwrap();
            left = others;
        }
        Ok(())
    }

    fn summed(&self) -> Result<f64, ModelError> {
        Ok(std::mem::take(&mut *self.squares.lock().unwrap()))
    }

    fn commit(&self, step: u64, factor: f32) -> Result<(), ModelError> {
        let tensors = self.layers.iter().flat_map(|layer| &layer.tensors).filter(|_| self.update == TileUpdate::Stage);
        for tensor in tensors {
            let (table, ids) = self.rows(tensor);
            let step = PushStep { tiles: TileUpdate::Commit { factor }, ..step.into() };
            table.push(&ids, &vec![0.0; ids.len() * table.dim()], step, &mut RequestBuffers::default()).unwrap();
        }
        Ok(())
    }

    fn wait_for_pushes(&self) -> Result<(), ModelError> {
        Ok(())
    }
}

fn streamed(mut job: Job) -> Job {
    job.train.weights = WeightStore::Streamed;
    job
}

/// A network with streamed weights, and where they are.
fn far_model(job: &Job) -> (DenseModel, Arc<TileTables>) {
    let store = Arc::new(TileTables::new(job));
    (DenseModel::with_store(job, backend(), Some(store.clone())).unwrap(), store)
}

/// What the store is asked for in the last of so many steps.
fn requests_of_step(job: &Job, steps: u64) -> Vec<String> {
    let (mut model, store) = far_model(job);
    for seed in 1..=steps {
        let [numeric, embeddings, labels] = samples(job, 64, seed);
        store.log.lock().unwrap().clear();
        model.step(&numeric, &embeddings, &labels).unwrap();
    }
    let log = store.log.lock().unwrap();
    log.clone()
}

/// Steps of both, and that all they give and learn has the same bits.
fn check(job: Job, batch: usize) {
    let mut resident = DenseModel::new(&job, backend()).unwrap();
    let (mut far, store) = far_model(&streamed(job.clone()));
    for (seed, size) in [(1, batch), (2, batch.div_ceil(2)), (3, batch)] {
        let [numeric, embeddings, labels] = samples(&job, size, seed);
        assert!(bits(&store.all()) == bits(&weights(&resident)), "before step {seed} of {:?}", job.model);
        let expected = resident.step(&numeric, &embeddings, &labels).unwrap();
        let found = far.step(&numeric, &embeddings, &labels).unwrap();
        assert!(found == expected, "step {seed} of {:?}: {}", job.model, difference(&found, &expected));
        let scores = |model: &mut DenseModel| model.predict(&numeric, &embeddings, size).unwrap();
        assert_close(&scores(&mut far), &scores(&mut resident), &job.model);
    }
    assert!(bits(&store.all()) == bits(&weights(&resident)), "{:?}", job.model);
    assert_eq!(far.weight_count(), 0);
}

fn difference(found: &StepOutput, expected: &StepOutput) -> String {
    let largest = |found: &[f32], expected: &[f32]| {
        found.iter().zip_eq(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max)
    };
    let logits = largest(&found.logits, &expected.logits);
    let gradients = largest(&found.gradients, &expected.gradients);
    format!("loss {}, logits {logits}, gradients {gradients}", (found.loss - expected.loss).abs())
}

fn sized_job(numeric: usize, dims: &[usize], model: Model, batch: usize, threads: usize) -> Job {
    let mut job = job(numeric, dims, model);
    (job.train.threads, job.train.batch_size) = (threads, batch);
    job
}

#[test]
fn every_network_learns_the_same_bits_layer_by_layer() {
    for model in networks_without_autograd(0.3) {
        for (batch, threads) in [(300, 1), (2 * CHUNK + 5, 1), (2 * CHUNK + 5, 2)] {
            let mut job = sized_job(3, &[6, 6, 6], model.clone(), batch, threads);
            // Several learning rates.
            job.parametrization = Parametrization::Mup { base_width: 4 };
            check(job, batch);
        }
    }
}

/// Outputs that are computed again are the same.
#[test]
fn a_worker_that_keeps_few_outputs_learns_the_same_bits() {
    let deep = Model::Ffnn { hidden: vec![11, 6, 9, 12, 7, 8, 5], dropout: 0.3 };
    for model in networks_without_autograd(0.3).into_iter().chain([deep]) {
        for threads in [1, 2] {
            let mut job = sized_job(3, &[6, 6, 6], model.clone(), 300, threads);
            job.train.memory = Some(1);
            assert!(job.recomputes_outputs());
            check(job, 300);
        }
    }
}

/// Layers of segments that are not the last come a third time.
#[test]
fn a_step_that_computes_outputs_again_pulls_their_layers_again() {
    let mut job = streamed(sized_job(2, &[4], ffnn(&[8, 8, 8]), 64, 1));
    job.train.memory = Some(1);
    let log = requests_of_step(&job, 1);
    let pulls: Vec<&str> = log.iter().filter_map(|entry| entry.strip_prefix("pull ")).collect();
    // Forward 0 to 3, which stays for its backward; backward 2; 0 for its outputs; backward 1 and 0.
    assert_eq!(pulls, ["0", "1", "2", "3", "2", "0", "1", "0"]);
}

/// The gradients of a tower of 62 layers, of which few keep their outputs. A rate of 10²⁰ makes them seen in the weights of the first
/// layers, where they are 10²⁰ times smaller than in the last.
#[test]
fn a_deep_tower_has_the_gradients_of_resident_weights_in_every_layer() {
    let mut job = sized_job(3, &[6, 6, 6], ffnn(&[128; 62]), 4096, 2);
    job.dense_optimizer = DenseOptimizer::Sgd { lr: 1e20, momentum: 0.0, weight_decay: 0.0 };
    job.train.memory = Some(1);
    let mut resident = DenseModel::new(&job, backend()).unwrap();
    let (mut far, store) = far_model(&streamed(job.clone()));
    let first: Vec<Vec<f32>> = (0..63).map(|layer| store.read(layer)).collect();
    let [numeric, embeddings, labels] = samples(&job, 4096, 1);
    let expected = resident.step(&numeric, &embeddings, &labels).unwrap();
    assert!(far.step(&numeric, &embeddings, &labels).unwrap() == expected);
    assert!(bits(&store.all()) == bits(&weights(&resident)));
    for (layer, before) in number_from(0, &first) {
        assert!(store.read(layer) != *before, "layer {layer} has learned");
    }
}

/// A layer of which a worker holds a slice at a time learns what the whole one does, but for the order of sums.
#[test]
fn a_layer_in_slices_learns_the_same() {
    let hidden = || vec![512, 256, 4];
    let layers = || ExpertLayers { hidden: hidden(), tower: vec![5], dropout: 0.3 };
    let structure = CrossStructure::Parallel;
    let models = [
        Model::Dlrm { bottom: vec![512, 256], top: hidden(), dropout: 0.3 },
        Model::Dcnv2 { cross_layers: 1, rank: None, structure, hidden: hidden(), dropout: 0.3 },
        Model::WideDeep { hidden: hidden(), dropout: 0.3 },
        Model::FinalMlp { first: hidden(), second: vec![4], heads: 2, gate: None, dropout: 0.3 },
        Model::Ple { levels: 1, shared_experts: 1, task_experts: 1, layers: layers() },
    ];
    for (model, threads) in models.into_iter().flat_map(|model| [(model.clone(), 1), (model, 2)]) {
        let mut job = sized_job(3, &[6, 6, 6], model, 300, threads);
        job.dense_optimizer = DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.0 };
        let mut tiles = streamed(job.clone());
        tiles.train.memory = Some(1);
        let names: Vec<String> = tiles.worker_layers().into_iter().map(|layer| layer.name).collect();
        assert!(names.windows(2).any(|pair| pair[0] == pair[1]), "a layer is cut: {names:?}");
        let mut resident = DenseModel::new(&job, backend()).unwrap();
        let (mut far, store) = far_model(&tiles);
        for seed in 1..4 {
            let [numeric, embeddings, labels] = samples(&job, 300, seed);
            let expected = resident.step(&numeric, &embeddings, &labels).unwrap();
            let found = far.step(&numeric, &embeddings, &labels).unwrap();
            assert_close(&[found.loss], &[expected.loss], &job.model);
            assert_close(&found.logits, &expected.logits, &job.model);
            assert_close(&found.gradients, &expected.gradients, &job.model);
        }
        assert_close(&store.all(), &weights(&resident), &job.model);
    }
}

fn assert_close(found: &[f32], expected: &[f32], model: &Model) {
    for (found, expected) in found.iter().zip_eq(expected) {
        assert!((found - expected).abs() < 1e-5 * expected.abs().max(1.0), "{found}, not {expected}, of {model:?}");
    }
}

#[test]
fn a_worker_has_one_slice_after_another() {
    let mut job = streamed(sized_job(2, &[4], ffnn(&[512, 256]), 64, 1));
    job.train.memory = Some(1);
    let log = requests_of_step(&job, 1).join(", ");
    // Layer 0, then the two slices of layer 1, then layer 2, which stays for its backward.
    assert_eq!(log, "pull 0, pull 1, pull 2, pull 3, pull 2, pull 1, push 3, pull 0, push 2, push 1, push 0");
}

#[test]
fn every_optimiser_gives_the_same_bits_at_the_tiles() {
    let schedule = RateSchedule::Linear { warmup: 2.into(), decay: 5.into(), floor: 0.0 };
    for optimizer in [
        DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.01 },
        DenseOptimizer::Sgd { lr: 0.1, momentum: 0.9, weight_decay: 0.0 },
        DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.01 },
        DenseOptimizer::AdamW { lr: 0.01, weight_decay: 0.1 },
        DenseOptimizer::Adagrad { lr: 0.1, epsilon: 1e-8, initial_accumulator: 0.1, weight_decay: 0.01 },
    ] {
        let mut job = sized_job(2, &[4, 4], ffnn(&[40, 8]), 64, 1);
        (job.dense_optimizer, job.train.updates.schedule) = (optimizer, schedule);
        check(job, 64);
    }
}

/// Gradients that are clipped by the norm of all wait in their tiles, and so do those of a batch that may be skipped.
#[test]
fn a_step_is_clipped_by_its_norm_or_skipped_as_a_whole() {
    let mut job = sized_job(2, &[4, 4], ffnn(&[40, 8]), 64, 2);
    job.dense_optimizer = DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.01 };
    job.train.updates.clip_norm = Some(0.05);
    check(job.clone(), 64);
    check_skipped(job, &[None, Some(f32::NAN), Some(f32::INFINITY), None]);
}

/// Steps of both, of which one with a number that is not finite changes nothing.
fn check_skipped(mut job: Job, numbers: &[Option<f32>]) {
    job.train.updates.non_finite = NonFinitePolicy::Skip;
    let mut resident = DenseModel::new(&job, backend()).unwrap();
    let (mut far, store) = far_model(&streamed(job.clone()));
    for (seed, bad) in number_from(1, numbers) {
        let [mut numeric, embeddings, labels] = samples(&job, 64, seed);
        numeric[5] = bad.unwrap_or(numeric[5]);
        let old_weights = store.all();
        let expected = resident.step(&numeric, &embeddings, &labels).map_err(|error| error.to_string());
        let found = far.step(&numeric, &embeddings, &labels).map_err(|error| error.to_string());
        assert_eq!(expected.is_err(), bad.is_some());
        assert_eq!(found.is_err(), bad.is_some(), "{found:?}");
        assert_eq!(store.all() == old_weights, bad.is_some(), "a batch that is skipped changes nothing");
        assert!(bits(&store.all()) == bits(&weights(&resident)), "after step {seed}");
    }
}

/// A layer of several tiles, of which the last is not full.
#[test]
fn a_layer_larger_than_a_tile_is_joined_from_its_tiles() {
    let job = sized_job(0, &[16; 26], ffnn(&[401]), 64, 1);
    assert_eq!(streamed(job.clone()).streamed_layers()[0].tensors[0].tiles.count, 3);
    check(job, 64);
}

#[test]
fn a_step_pulls_each_layer_twice_but_the_last_once_and_the_next_one_early() {
    let job = streamed(sized_job(2, &[4], ffnn(&[8, 8]), 64, 1));
    let log = requests_of_step(&job, 2).join(", ");
    assert_eq!(log, "pull 0, pull 1, pull 2, pull 1, pull 0, push 2, push 1, push 0");
}

#[test]
fn a_layer_whose_gradient_is_not_finite_is_named_and_not_pushed() {
    let job = streamed(sized_job(2, &[4], ffnn(&[8, 8]), 64, 2));
    let (mut model, store) = far_model(&job);
    let [mut numeric, embeddings, labels] = samples(&job, 64, 1);
    let old_weights = store.all();
    numeric[5] = f32::INFINITY;
    let error = model.step(&numeric, &embeddings, &labels).unwrap_err();
    assert!(error.to_string().starts_with("a gradient of layer layers."), "{error}");
    assert_eq!(store.all(), old_weights);
}

/// A step of which one layer does not come.
fn check_lost_layer(job: &Job, batch: usize) {
    let store = TileTables { lost: Some(1), ..TileTables::new(job) };
    let name = store.layers[1].name.clone();
    let mut model = DenseModel::with_store(job, backend(), Some(Arc::new(store))).unwrap();
    let [numeric, embeddings, labels] = samples(job, batch, 1);
    let error = model.step(&numeric, &embeddings, &labels).unwrap_err().to_string();
    let expected = format!("cannot fetch the weights of layer {name} of the dense network: as the test wants");
    assert_eq!(error, expected);
}

#[test]
fn all_threads_end_when_a_layer_does_not_come() {
    check_lost_layer(&streamed(sized_job(2, &[4], ffnn(&[8, 8]), 256, 3)), 256);
}
