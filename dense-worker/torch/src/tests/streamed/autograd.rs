//! Networks whose step is autograd's, layer by layer, against the same network with its weights.

use zagros_job::{
    AttentionActivation, AttentionPair, MlpActivation, MlpNorm, MlpSettings, NumericEmbedding, PadSide, StreamGates,
};

use super::*;
use crate::device::DevicePlacement;
use crate::network::TorchNetwork;
use zagros_fakes::jobs::sequence;

const SIZE: usize = 300;

fn wukong(layers: usize, lcb: usize) -> Model {
    let (fmb_hidden, bottom, top) = (vec![7], vec![5], vec![9]);
    Model::Wukong { layers, fmb: 2, lcb, rank: 3, fmb_hidden, bottom, top, dropout: 0.3 }
}

fn gated(hidden: Vec<i64>, first: Vec<String>) -> Model {
    let gate = Some(StreamGates { hidden, first, second: vec![] });
    Model::FinalMlp { first: vec![8, 6], second: vec![4], heads: 2, gate, dropout: 0.3 }
}

fn plain(model: Model) -> Job {
    sized_job(3, &[6, 6, 6], model, SIZE, 1)
}

/// Sequences of features 1, and 2, with feature 0 as their target.
fn with_sequences(count: usize, model: Model) -> Job {
    let mut job = plain(model);
    for feature in 1..=count {
        job.features.categorical[feature].table = 0;
        sequence(&mut job, feature, 3, if feature == 1 { PadSide::Left } else { PadSide::Right });
    }
    job
}

fn attention(count: usize) -> Vec<AttentionPair> {
    (1..=count).map(|feature| AttentionPair { sequence: format!("C{feature}"), target: "C0".into() }).collect()
}

fn din(count: usize, activation: AttentionActivation, softmax: bool) -> Job {
    let (attention, attention_hidden, hidden) = (attention(count), vec![5, 4], vec![7]);
    with_sequences(count, Model::Din { attention, attention_hidden, activation, softmax, hidden, dropout: 0.3 })
}

fn bst(count: usize, causal: bool) -> Job {
    let (attention, hidden) = (attention(count), vec![7]);
    with_sequences(count, Model::Bst { attention, layers: 2, heads: 2, ffn: 5, causal, hidden, dropout: 0.3 })
}

#[test]
fn networks_with_autograd_alone_learn_the_same_bits_layer_by_layer() {
    let mut jobs = vec![
        plain(wukong(2, 2)),
        // As many vectors as features: no residual matrix.
        plain(wukong(1, 2)),
        sized_job(0, &[6, 6, 6], wukong(3, 2), SIZE, 2),
        plain(gated(vec![], vec![])),
        plain(gated(vec![5], vec!["C1".into(), "I0".into()])),
        plain(wukong(1, 3)),
    ];
    for count in [1, 2] {
        jobs.push(din(count, AttentionActivation::Prelu, false));
        jobs.push(din(count, AttentionActivation::Dice, true));
        jobs.extend([false, true].map(|causal| bst(count, causal)));
    }
    for job in jobs {
        check(job, SIZE);
    }
}

#[test]
fn norms_and_other_activations_learn_the_same_bits_layer_by_layer() {
    for model in networks_without_autograd(0.3) {
        for (norm, activation) in [
            (MlpNorm::Layer, MlpActivation::Relu),
            (MlpNorm::None, MlpActivation::Gelu),
            (MlpNorm::Layer, MlpActivation::Dice),
            (MlpNorm::Batch, MlpActivation::Silu),
        ] {
            let mut job = plain(model.clone());
            job.mlp = MlpSettings { norm, activation };
            job.parametrization = Parametrization::Mup { base_width: 4 };
            check(job, SIZE);
        }
    }
}

#[test]
fn embedded_numbers_learn_the_same_bits_layer_by_layer() {
    for model in networks_without_autograd(0.3).into_iter().chain([wukong(1, 3)]) {
        let mut job = plain(model);
        job.features.numeric_embedding = Some(NumericEmbedding { dim: 4, ..NumericEmbedding::default() });
        check(job, SIZE);
    }
}

/// Experts without layers are all the input itself, whose slopes are then added in another order.
#[test]
fn experts_without_layers_learn_the_same_up_to_rounding() {
    let experts = Model::Mmoe { experts: 3, layers: ExpertLayers { hidden: vec![], tower: vec![5], dropout: 0.0 } };
    let job = plain(experts);
    let mut resident = DenseModel::new(&job, backend()).unwrap();
    let (mut far, _) = far_model(&streamed(job.clone()));
    for seed in 0..100 {
        let [numeric, embeddings, labels] = samples(&job, 64, seed);
        let expected = resident.step(&numeric, &embeddings, &labels).unwrap();
        let found = far.step(&numeric, &embeddings, &labels).unwrap();
        assert!((found.loss - expected.loss).abs() < 1e-5, "step {seed}: {}", difference(&found, &expected));
    }
}

/// The last layer stays for its backward, and no layer is there twice otherwise.
#[test]
fn a_step_by_autograd_pulls_each_layer_twice_but_the_last_once() {
    let job = streamed(plain(wukong(1, 2)));
    let names: Vec<String> = job.streamed_layers().into_iter().map(|layer| layer.name).collect();
    assert_eq!(names, ["bottom.0", "bottom.1", "fmb_projection.0", "fmb_0.0", "fmb_0.1", "lcb.0", "top.0", "top.1"]);
    let log = requests_of_step(&job, 2);
    let entries = |kind: &str| log.iter().filter_map(|entry| entry.strip_prefix(kind)).collect::<Vec<_>>().join(" ");
    assert_eq!(entries("pull "), "0 1 2 3 4 5 6 7 6 5 4 3 2 1 0");
    assert_eq!(entries("push "), "7 6 5 4 3 2 1 0");
}

#[test]
fn a_step_by_autograd_is_skipped_as_a_whole() {
    check_skipped(din(1, AttentionActivation::Dice, false), &[None, Some(f32::NAN), None]);
}

/// A variable has no values outside of its layer's use, so nothing can read what another layer left.
#[test]
fn weights_that_are_not_in_use_are_not_there() {
    let job = streamed(plain(wukong(1, 2)));
    let window = Arc::new(LayerWindow::new(&job, Arc::new(TileTables::new(&job))));
    let losses = TargetLosses::new(&job.features.targets);
    let place = DevicePlacement::new(&job).unwrap();
    let network = TorchNetwork::new(&job, &losses, Some(&window), place).unwrap();
    let used = || network.streamed.as_ref().unwrap();
    // Before the first use they have their shapes alone.
    window.learn_order(|| {
        window.start(TraversalPurpose::Training, (0, 1.0), 1);
        assert!(!used().forward(0, || Ok(used().is_away(0))).unwrap());
    });
    assert!(used().is_away(0));
    assert!(network.weights.values().is_empty());
}

#[test]
fn a_layer_that_does_not_come_ends_a_step_by_autograd() {
    check_lost_layer(&streamed(plain(wukong(1, 2))), 64);
}
