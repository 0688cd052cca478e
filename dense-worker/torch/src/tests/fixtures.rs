//! Every network against PyTorch's values: logits, loss, and the gradient of every weight and of the embeddings.
//! `scripts/model_fixtures.py` computed the values from the papers, in f64.

use std::collections::{BTreeMap, HashMap};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Deserialize;
use zagros_fakes::jobs::{ffnn, fixture, job, sequence};
use zagros_job::{
    AttentionActivation, AttentionPair, Categorical, CrossStructure, ExpertLayers, Job, Model, NumericEmbedding,
    PadSide, RegressionLoss, StreamGates, Target, TargetKind,
};
use zagros_model::{DenseModel, LabelledSamples};
use zagros_zip::ZipEq;

use super::{dlrm, gradient, stored};
use crate::backend;

#[derive(Deserialize)]
pub(super) struct NetworkFixture {
    pub(super) numeric: Vec<f32>,
    pub(super) embeddings: Vec<f32>,
    pub(super) labels: Vec<f32>,
    #[serde(default)]
    sample_weights: Vec<f32>,
    weights: BTreeMap<String, FixtureWeight>,
    pub(super) logits: Vec<f64>,
    pub(super) loss: f64,
    pub(super) gradients: HashMap<String, Vec<f64>>,
    /// Running averages after the step.
    #[serde(default)]
    pub(super) buffers: HashMap<String, Vec<f64>>,
    /// Logits by the running averages.
    #[serde(default)]
    pub(super) scored: Vec<f64>,
}

#[derive(Deserialize)]
pub(super) struct FixtureWeight {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl NetworkFixture {
    pub(super) fn safetensors(&self) -> Vec<u8> {
        let bytes =
            |weight: &FixtureWeight| weight.values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let stored: Vec<_> = self.weights.iter().map(|(name, weight)| (name, &weight.shape, bytes(weight))).collect();
        let view = |shape: &[usize], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap();
        safetensors::serialize(stored.iter().map(|(name, shape, bytes)| (name, view(shape, bytes))), None).unwrap()
    }
}

pub(super) fn assert_near(what: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip_eq(expected).enumerate() {
        let difference = (f64::from(*found) - expected).abs();
        assert!(difference < 2e-6 * (1.0 + expected.abs()), "{what}[{index}]: {found}, PyTorch {expected}");
    }
}

/// Loads the fixture's weights, makes its step and compares: the network after the step.
pub(super) fn check(name: &str, job: &Job, fixture: &NetworkFixture) -> DenseModel {
    let near = |what: &str, found: &[f32], expected: &[f64]| assert_near(&format!("{name}: {what}"), found, expected);
    let NetworkFixture { numeric, embeddings, labels, sample_weights: weights, buffers, gradients, .. } = fixture;
    let mut model = DenseModel::new(job, backend()).unwrap();
    model.load_safetensors(&fixture.safetensors()).unwrap();
    // Of networks without running averages: others have other logits in training.
    if fixture.scored.is_empty() {
        let samples = labels.len() / job.features.targets.len();
        near("predicted logits", &model.predict(numeric, embeddings, samples).unwrap(), &fixture.logits);
    }
    let output = model.step_on(LabelledSamples { numeric, embeddings, labels, weights }).unwrap();
    near("logits", &output.logits, &fixture.logits);
    near("loss", &[output.loss], &[fixture.loss]);
    near("gradient of embeddings", &output.gradients, &gradients["embeddings"]);
    let tensors = stored(&model);
    assert_eq!(tensors.len() + 1, gradients.len() + buffers.len(), "{name}");
    for (tensor, (_, values)) in tensors {
        match buffers.get(&tensor) {
            Some(expected) => near(&tensor, &values, expected),
            None => near(&format!("gradient of {tensor}"), &gradient(&model, job, &tensor), &gradients[&tensor]),
        }
    }
    model
}

fn dcnv2(cross_layers: usize, rank: Option<usize>, structure: CrossStructure, hidden: &[i64]) -> Model {
    Model::Dcnv2 { cross_layers, rank, structure, hidden: hidden.to_vec(), dropout: 0.0 }
}

fn a_wukong(layers: usize, (fmb, lcb): (usize, usize), fmb_hidden: &[i64]) -> Model {
    let (fmb_hidden, bottom, top) = (fmb_hidden.to_vec(), vec![5], vec![6, 4]);
    Model::Wukong { layers, fmb, lcb, rank: 2, fmb_hidden, bottom, top, dropout: 0.0 }
}

/// A job whose feature of each entry is a sequence with the length and the padding of the entry. It reads the table of its target,
/// the feature of the entry's second number.
pub(super) fn with_sequences(mut job: Job, sequences: &[(usize, usize, PadSide)]) -> Job {
    for (length, target, pad) in sequences {
        let index = job.features.categorical.len();
        let table = job.features.categorical[*target].table;
        job.features.categorical.push(Categorical::of_column(format!("S{index}"), table));
        sequence(&mut job, index, *length, *pad);
    }
    job
}

fn attention(pairs: &[(&str, &str)]) -> Vec<AttentionPair> {
    let pair =
        |(sequence, target): &(&str, &str)| AttentionPair { sequence: (*sequence).into(), target: (*target).into() };
    pairs.iter().map(pair).collect()
}

/// The network whose pairs are of the sequence and the target of these numbers of columns.
pub(super) fn a_din(
    pairs: &[(&str, &str)],
    attention_hidden: &[i64],
    activation: AttentionActivation,
    softmax: bool,
    hidden: &[i64],
) -> Model {
    let (attention, attention_hidden, hidden) = (attention(pairs), attention_hidden.to_vec(), hidden.to_vec());
    Model::Din { attention, attention_hidden, activation, softmax, hidden, dropout: 0.0 }
}

pub(super) fn a_bst(
    pairs: &[(&str, &str)],
    (layers, heads, ffn): (usize, usize, usize),
    causal: bool,
    hidden: &[i64],
) -> Model {
    let (attention, hidden) = (attention(pairs), hidden.to_vec());
    Model::Bst { attention, layers, heads, ffn, causal, hidden, dropout: 0.0 }
}

/// Hidden layers, numbers of the features that the first gate reads, and the same of the second.
type FixtureGates<'a> = (&'a [i64], &'a [&'a str], &'a [&'a str]);

pub(super) fn a_finalmlp(first: &[i64], second: &[i64], heads: usize, gates: Option<FixtureGates<'_>>) -> Model {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let gate = |(hidden, first, second): FixtureGates<'_>| StreamGates {
        hidden: hidden.to_vec(),
        first: names(first),
        second: names(second),
    };
    let (first, second) = (first.to_vec(), second.to_vec());
    Model::FinalMlp { first, second, heads, gate: gates.map(gate), dropout: 0.0 }
}

/// A network of three numbers, one of which has an indicator, and of a vector of two.
fn with_embedded_numbers(dims: &[usize], model: Model) -> Job {
    let mut job = job(4, dims, model);
    job.features.numeric[1].missing_indicator = true;
    job.features.numeric[2].width = Some(2);
    job.features.numeric_embedding = Some(NumericEmbedding { frequencies: 2, sigma: 0.5, dim: 3 });
    job
}

/// A target of a kind that the script knows by name, with the weight of its loss.
fn target(kind: &str, weight: f64) -> Target {
    let regression = |loss| TargetKind::Regression { loss };
    let plain = Target { name: kind.to_owned(), weight, ..Target::from(kind) };
    let kind = match kind {
        "given" => TargetKind::Click { positive: vec![], negative: vec![], given: Some(0) },
        "mse" => regression(RegressionLoss::Mse),
        "huber" => regression(RegressionLoss::Huber { delta: 1.5 }),
        "poisson" => regression(RegressionLoss::Poisson),
        "classes" => TargetKind::Classes { classes: ["a", "b", "c"].map(String::from).to_vec() },
        _ => return plain,
    };
    Target { kind, ..plain }
}

fn job_of_several(model: Model, targets: &[(&str, f64)]) -> Job {
    let mut job = job(2, &[3, 2], model);
    job.features.targets = targets.iter().map(|(kind, weight)| target(kind, *weight)).collect();
    job
}

fn towers_over(bottom: &[i64], tower: &[i64]) -> Model {
    Model::SharedBottom { bottom: bottom.to_vec(), tower: tower.to_vec(), dropout: 0.0 }
}

/// Each fixture of networks of one label, and the network.
fn networks() -> [(&'static str, Job); 15] {
    let (stacked, parallel) = (CrossStructure::Stacked, CrossStructure::Parallel);
    let deepfm = |hidden: &[i64]| Model::DeepFm { hidden: hidden.to_vec(), dropout: 0.0 };
    let wide_deep = |hidden: &[i64]| Model::WideDeep { hidden: hidden.to_vec(), dropout: 0.0 };
    [
        ("dlrm", job(3, &[4, 4, 4], dlrm())),
        ("dlrm_without_numbers", job(0, &[4, 4, 4], dlrm())),
        ("ffnn", job(2, &[4, 3, 1], ffnn(&[7, 3]))),
        ("dcnv2_stacked", job(2, &[3, 2], dcnv2(2, None, stacked, &[6, 4]))),
        ("dcnv2_parallel_low_rank", job(2, &[3, 2], dcnv2(3, Some(2), parallel, &[6, 4]))),
        ("dcnv2_cross_alone", job(2, &[3, 2], dcnv2(2, None, parallel, &[]))),
        ("deepfm", job(3, &[4, 4, 4], deepfm(&[6, 4]))),
        ("deepfm_without_numbers", job(0, &[3, 3], deepfm(&[5]))),
        ("wide_deep", job(2, &[4, 1, 3], wide_deep(&[6, 4]))),
        ("wide_deep_without_numbers", job(0, &[4, 1, 3], wide_deep(&[5]))),
        // The second layer takes as many vectors as it gives.
        ("wukong", job(3, &[4, 4, 4], a_wukong(2, (3, 2), &[7]))),
        ("wukong_without_numbers", job(0, &[4, 4, 4], a_wukong(1, (2, 1), &[]))),
        ("finalmlp", job(2, &[4, 3], a_finalmlp(&[6, 4], &[6], 1, None))),
        ("finalmlp_gates", job(2, &[4, 3], a_finalmlp(&[4], &[5, 6], 2, Some((&[5], &["I1", "C1"], &[]))))),
        ("finalmlp_without_numbers", job(0, &[3, 2], a_finalmlp(&[6], &[3], 3, Some((&[], &["C1"], &["C0"]))))),
    ]
}

/// Each fixture of networks of sequences, or of numbers that are embedded.
fn networks_of_sequences() -> [(&'static str, Job); 7] {
    let (one, two) = ([("S2", "C1")], [("S2", "C0"), ("S3", "C1")]);
    let (prelu, sigmoid) = (AttentionActivation::Prelu, AttentionActivation::Sigmoid);
    let (left, right) = (PadSide::Left, PadSide::Right);
    let plain = |dims: &[usize], network| with_sequences(job(2, dims, network), &[(3, 1, left)]);
    let both =
        |numeric, network, second| with_sequences(job(numeric, &[3, 2], network), &[(3, 0, right), (second, 1, left)]);
    [
        ("din", plain(&[3, 4], a_din(&one, &[5, 3], prelu, false, &[6, 4]))),
        ("din_softmax", both(0, a_din(&two, &[5], sigmoid, true, &[6]), 2)),
        ("bst", plain(&[3, 4], a_bst(&one, (2, 2, 5), false, &[6, 4]))),
        ("bst_two", both(0, a_bst(&two, (1, 1, 3), false, &[6]), 2)),
        // Each position attends to itself and earlier ones.
        ("bst_causal", both(1, a_bst(&two, (2, 1, 3), true, &[6]), 3)),
        ("dlrm_plr", with_embedded_numbers(&[4, 4, 4], dlrm())),
        ("dcnv2_plr", with_embedded_numbers(&[3, 2], dcnv2(2, None, CrossStructure::Stacked, &[6, 4]))),
    ]
}

/// Each fixture of networks of several labels.
fn networks_of_several() -> [(&'static str, Job); 6] {
    let layers = |hidden: &[i64], tower| ExpertLayers { hidden: hidden.to_vec(), tower: vec![tower], dropout: 0.0 };
    let mmoe = Model::Mmoe { experts: 3, layers: layers(&[5, 4], 4) };
    let ple = Model::Ple { levels: 2, shared_experts: 1, task_experts: 2, layers: layers(&[4], 3) };
    let losses = [("huber", 1.0), ("poisson", 0.5), ("classes", 1.0), ("mse", 0.125)];
    let click_and_classes = [("click", 1.0), ("classes", 0.5)];
    [
        ("shared_bottom", job_of_several(towers_over(&[6], &[4]), &[("mse", 0.5), ("click", 2.0)])),
        ("esmm", job_of_several(towers_over(&[], &[5]), &[("click", 1.0), ("given", 1.0)])),
        ("mmoe", job_of_several(mmoe, &[("click", 1.0), ("poisson", 0.25)])),
        ("finalmlp_of_several", job_of_several(a_finalmlp(&[4], &[6], 2, None), &click_and_classes)),
        ("ple", job_of_several(ple, &click_and_classes)),
        // Through the step without autograd, with samples that have weights.
        ("losses", job_of_several(ffnn(&[6]), &losses)),
    ]
}

#[test]
fn every_network_has_the_values_of_pytorch() {
    for (name, job) in networks().into_iter().chain(networks_of_sequences()).chain(networks_of_several()) {
        let text = std::fs::read_to_string(fixture(&format!("{name}.json"))).unwrap();
        check(name, &job, &serde_json::from_str(&text).unwrap());
    }
}

#[test]
fn first_frequencies_are_those_of_the_seed_and_sigma() {
    let frequencies = |seed, sigma| {
        let mut job = job(40, &[4], ffnn(&[4]));
        job.features.numeric_embedding = Some(NumericEmbedding { frequencies: 50, sigma, dim: 1 });
        job.train.seed = seed;
        let model = DenseModel::new(&job, backend()).unwrap();
        stored(&model)["numeric_embedding.frequencies"].1.clone()
    };
    let first = frequencies(1, 0.5);
    assert_eq!(frequencies(1, 0.5), first);
    assert_ne!(frequencies(2, 0.5), first);
    let mean = |values: &mut dyn Iterator<Item = f32>| values.sum::<f32>() / 2_000.0;
    let (average, squares) = (mean(&mut first.iter().copied()), mean(&mut first.iter().map(|value| value * value)));
    assert!(average.abs() < 0.04 && (squares.sqrt() - 0.5).abs() < 0.03, "{average} {squares}");
}

/// The units of attention have one output, whatever the labels need.
#[test]
fn networks_of_sequences_have_outputs_for_several_labels() {
    let pairs = [("S2", "C0")];
    let networks =
        [a_din(&pairs, &[3], AttentionActivation::Prelu, false, &[4]), a_bst(&pairs, (1, 1, 3), false, &[4])];
    for network in networks {
        let mut job = with_sequences(job(2, &[3, 2], network), &[(3, 0, PadSide::Left)]);
        job.features.targets = [("click", 1.0), ("classes", 0.5)].map(|(kind, weight)| target(kind, weight)).to_vec();
        let mut model = DenseModel::new(&job, backend()).unwrap();
        assert_eq!(job.dense_parameters(), Some(model.weight_count() as u64));
        let output = model.step(&[0.5; 4], &[1.0; 2 * (5 + 10)], &[1.0, 2.0, 0.0, 1.0]).unwrap();
        assert_eq!((output.logits.len(), output.loss.is_finite()), (8, true));
    }
}
