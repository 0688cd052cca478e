//! The networks against a reference: loops in f64, with finite differences as gradients. The reference shares no code and
//! no method with libtorch's autograd.

mod device;
mod fixtures;
mod layout;
mod loss_scale;
mod mlp_layers;
mod regularisation;
mod scoring;
mod start;
mod step;
mod streamed;
mod torchscript;

use std::collections::HashMap;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use safetensors::SafeTensors;
use zagros_job::{CrossStructure, DenseOptimizer, Job, Model};

use zagros_fakes::jobs::{assert_refused, job};
use zagros_model::{DenseModel, InputShape, ModelError, SequenceShape};

use super::*;

/// All weights of a network, which are here.
fn weights(model: &DenseModel) -> Vec<f32> {
    let mut all = vec![0.0; model.weight_count()];
    model.copy_weights(&mut all).unwrap();
    all
}

/// The values of its tensors by name, as they are saved.
fn tensors(model: &DenseModel) -> HashMap<String, Vec<f32>> {
    let single = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
    stored(model).into_iter().map(|(name, (_, values))| (name, single(values))).collect()
}

/// The gradient of a tensor, of the last backward.
fn gradient(model: &DenseModel, job: &Job, tensor: &str) -> Vec<f32> {
    let segments = job.dense_segments().unwrap();
    let segment = segments.into_iter().find(|segment| segment.tensor.name == tensor).unwrap();
    model.gradients()[segment.range].to_vec()
}

type StoredWeights = HashMap<String, (Vec<usize>, Vec<f64>)>;

fn dlrm() -> Model {
    Model::Dlrm { bottom: vec![5], top: vec![6, 4], dropout: 0.0 }
}

fn ffnn() -> Model {
    Model::Ffnn { hidden: vec![7, 3], dropout: 0.0 }
}

fn stored(model: &DenseModel) -> StoredWeights {
    let bytes = model.to_safetensors().unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|w| f64::from(f32::from_le_bytes(*w))).collect();
    tensors.iter().map(|(name, view)| (name.to_owned(), (view.shape().to_vec(), values(view.data())))).collect()
}

/// One sample through `name.0`, `name.1`, …, with ReLU between layers, and after the last if `activate_last`.
fn reference_mlp(weights: &StoredWeights, name: &str, input: &[f64], activate_last: bool) -> Vec<f64> {
    let mut x = input.to_vec();
    for index in 0.. {
        let Some((shape, weight)) = weights.get(&format!("{name}.{index}.weight")) else { break };
        let bias = &weights[&format!("{name}.{index}.bias")].1;
        let last = !weights.contains_key(&format!("{name}.{}.weight", index + 1));
        let row = |output: usize| (0..shape[1]).map(|i| weight[output * shape[1] + i] * x[i]).sum::<f64>();
        let unit = |value: f64| if last && !activate_last { value } else { value.max(0.0) };
        x = (0..shape[0]).map(|output| unit(row(output) + bias[output])).collect();
    }
    x
}

fn reference_logit(job: &Job, weights: &StoredWeights, numeric: &[f64], embeddings: &[f64]) -> f64 {
    if matches!(job.model, Model::Ffnn { .. }) {
        return reference_mlp(weights, "layers", &[numeric, embeddings].concat(), false)[0];
    }
    let mut vectors: Vec<Vec<f64>> = Vec::new();
    let mut input = Vec::new();
    if !numeric.is_empty() {
        input = reference_mlp(weights, "bottom", numeric, true);
        vectors.push(input.clone());
    }
    vectors.extend(embeddings.chunks(job.tables[0].dim).map(<[f64]>::to_vec));
    for row in 0..vectors.len() {
        for column in 0..row {
            input.push((0..vectors[row].len()).map(|d| vectors[row][d] * vectors[column][d]).sum());
        }
    }
    reference_mlp(weights, "top", &input, false)[0]
}

#[derive(Clone)]
struct TestSamples {
    numeric: Vec<f32>,
    embeddings: Vec<f32>,
    labels: Vec<f32>,
}

impl TestSamples {
    fn random(job: &Job, batch: usize) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(5);
        let shape = InputShape::new(job);
        let mut values = |count: usize| (0..count).map(|_| random.random_range(-1.0..1.0)).collect::<Vec<f32>>();
        let (numeric, mut embeddings) = (values(batch * shape.numeric), values(batch * shape.width()));
        // Every number of real positions. What padding holds must change nothing.
        for (sample, row) in embeddings.chunks_mut(shape.width().max(1)).enumerate() {
            for SequenceShape { offset, dim, sequence } in &shape.sequences {
                row[offset + sequence.length * dim] = (sample % (sequence.length + 1)) as f32;
            }
        }
        Self { numeric, embeddings, labels: (0..batch).map(|i| (i % 2) as f32).collect() }
    }

    fn reference_logits(&self, job: &Job, weights: &StoredWeights) -> Vec<f64> {
        let batch = self.labels.len();
        let sample = |values: &[f32], index: usize| -> Vec<f64> {
            let columns = values.len() / batch;
            values[index * columns..(index + 1) * columns].iter().map(|v| f64::from(*v)).collect()
        };
        let logit =
            |index| reference_logit(job, weights, &sample(&self.numeric, index), &sample(&self.embeddings, index));
        (0..batch).map(logit).collect()
    }

    /// Mean over the batch of log(1 + e^z) − y·z.
    fn reference_loss(&self, job: &Job, weights: &StoredWeights) -> f64 {
        let logits = self.reference_logits(job, weights);
        let loss = |index: usize| logits[index].exp().ln_1p() - f64::from(self.labels[index]) * logits[index];
        (0..logits.len()).map(loss).sum::<f64>() / logits.len() as f64
    }
}

fn check_against_reference(job: &Job) {
    let mut samples = TestSamples::random(job, 4);
    let mut model = DenseModel::new(job, backend()).unwrap();
    let weights = stored(&model);
    let output = model.step(&samples.numeric, &samples.embeddings, &samples.labels).unwrap();
    assert_near("loss", f64::from(output.loss), samples.reference_loss(job, &weights));
    for (index, logit) in samples.reference_logits(job, &weights).into_iter().enumerate() {
        assert_near("logit", f64::from(output.logits[index]), logit);
    }
    for index in 0..samples.embeddings.len() {
        let old_value = samples.embeddings[index];
        let mut loss_at = |value: f32| {
            samples.embeddings[index] = value;
            samples.reference_loss(job, &weights)
        };
        // Divides by the difference that f32 really made.
        let (up, down) = (old_value + 1e-3, old_value - 1e-3);
        let slope = (loss_at(up) - loss_at(down)) / (f64::from(up) - f64::from(down));
        samples.embeddings[index] = old_value;
        assert_near("embedding gradient", f64::from(output.gradients[index]), slope);
    }
}

fn assert_near(what: &str, found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-5, "{what}: {found}, reference {expected}");
}

#[test]
fn networks_equal_the_reference() {
    for (numeric, dims, model) in [(3, &[4, 4, 4][..], dlrm()), (2, &[4, 3, 1], ffnn()), (0, &[2], ffnn())] {
        check_against_reference(&job(numeric, dims, model));
    }
}

#[test]
fn dlrm_without_numeric_values_equals_the_reference() {
    check_against_reference(&job(0, &[4, 4], dlrm()));
}

#[test]
fn sgd_follows_the_slope_of_the_reference() {
    let job = job(2, &[2, 2], ffnn());
    let samples = TestSamples::random(&job, 4);
    let mut model = DenseModel::new(&job, backend()).unwrap();
    let mut weights = stored(&model);
    model.step(&samples.numeric, &samples.embeddings, &samples.labels).unwrap();
    let stepped = stored(&model);
    for index in 0..weights["layers.0.weight"].1.len() {
        let weight = weights["layers.0.weight"].1[index];
        let mut loss_at = |value: f64| {
            weights.get_mut("layers.0.weight").unwrap().1[index] = value;
            samples.reference_loss(&job, &weights)
        };
        let slope = (loss_at(weight + 1e-6) - loss_at(weight - 1e-6)) / 2e-6;
        weights.get_mut("layers.0.weight").unwrap().1[index] = weight;
        assert_near("weight", stepped["layers.0.weight"].1[index], weight - 0.1 * slope);
    }
}

#[test]
fn training_lowers_the_loss_and_the_seed_fixes_it() {
    let mut job = job(3, &[4, 4], dlrm());
    job.model = Model::Dlrm { bottom: vec![5], top: vec![16], dropout: 0.2 };
    job.dense_optimizer = DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.0 };
    let samples = TestSamples::random(&job, 16);
    let losses = || -> Vec<f32> {
        let mut model = DenseModel::new(&job, backend()).unwrap();
        let mut step = || model.step(&samples.numeric, &samples.embeddings, &samples.labels).unwrap().loss;
        (0..200).map(|_| step()).collect()
    };
    let first = losses();
    assert!(first[199] < 0.8 * first[0], "{} became {}", first[0], first[199]);
    assert_eq!(first, losses());
}

#[test]
fn a_value_that_is_not_finite_is_refused_and_changes_nothing() {
    let job = job(1, &[2, 2], dlrm());
    let mut model = DenseModel::new(&job, backend()).unwrap();
    let first = stored(&model);
    for (numeric, embedding) in [(f32::NAN, 0.1), (f32::INFINITY, 0.1), (0.5, f32::NAN), (0.5, 1e30)] {
        let refused = model.step(&[numeric, 0.5], &[embedding; 8], &[0.0, 1.0]).unwrap_err();
        assert!(matches!(refused, ModelError::NotFinite { .. }), "{refused}");
    }
    assert_eq!(stored(&model), first);
    model.step(&[0.5, 0.5], &[0.1; 8], &[0.0, 1.0]).unwrap();
}

#[test]
fn lengths_that_disagree_are_refused() {
    let mut model = DenseModel::new(&job(1, &[2, 2], dlrm()), backend()).unwrap();
    let refused = model.step(&[0.5], &[0.1; 7], &[0.0]).unwrap_err();
    assert_eq!(refused.to_string(), "embedding values: the batch implies 4, found 7");
    assert!(model.predict(&[0.5, 0.5], &[0.1; 4], 1).is_err());
}

#[test]
fn weights_survive_saving_exactly() {
    let (mut first, mut second) = (job(2, &[4, 4], dlrm()), job(2, &[4, 4], dlrm()));
    (first.train.seed, second.train.seed) = (1, 2);
    let samples = TestSamples::random(&first, 6);
    let mut trained = DenseModel::new(&first, backend()).unwrap();
    trained.step(&samples.numeric, &samples.embeddings, &samples.labels).unwrap();
    let mut loaded = DenseModel::new(&second, backend()).unwrap();
    loaded.load_safetensors(&trained.to_safetensors().unwrap()).unwrap();
    assert_eq!(stored(&loaded), stored(&trained));
    let predict = |model: &DenseModel| model.predict(&samples.numeric, &samples.embeddings, 6).unwrap();
    assert_eq!(predict(&loaded), predict(&trained));
}

#[test]
fn weights_of_another_network_are_refused_by_name() {
    let saved = DenseModel::new(&job(2, &[4, 4], dlrm()), backend()).unwrap().to_safetensors().unwrap();
    let mut wider = DenseModel::new(&job(3, &[4, 4], dlrm()), backend()).unwrap();
    let first = stored(&wider);
    assert_refused(wider.load_safetensors(&saved), &["bottom.0.weight is F32 [5, 2], not F32 [5, 3]"]);
    assert_refused(
        DenseModel::new(&job(2, &[4], ffnn()), backend()).unwrap().load_safetensors(&saved),
        &["bottom.0.bias is not a tensor of this network"],
    );
    assert!(matches!(wider.load_safetensors(&saved[..saved.len() - 9]), Err(ModelError::Damaged(_))));
    assert_eq!(stored(&wider), first);
}

#[test]
fn shapes_that_leave_nothing_to_learn_from_are_refused() {
    assert!(matches!(DenseModel::new(&job(0, &[4], dlrm()), backend()), Err(ModelError::Shape { .. })));
    assert!(matches!(DenseModel::new(&job(0, &[], ffnn()), backend()), Err(ModelError::Shape { .. })));
    assert!(matches!(
        DenseModel::new(&job(1, &[4, 8], dlrm()), backend()),
        Err(ModelError::Dims { first: 4, other: 8, .. })
    ));
    let refused = |dims: &[usize], model| {
        matches!(DenseModel::new(&job(0, dims, model), backend()), Err(ModelError::Shape { .. }))
    };
    let (hidden, dropout, structure) = (vec![4], 0.0, CrossStructure::Stacked);
    assert!(refused(&[1, 1], Model::DeepFm { hidden: hidden.clone(), dropout }));
    assert!(refused(&[1, 1], Model::WideDeep { hidden: hidden.clone(), dropout }));
    assert!(refused(&[], Model::Dcnv2 { cross_layers: 1, rank: None, structure, hidden, dropout }));
}
