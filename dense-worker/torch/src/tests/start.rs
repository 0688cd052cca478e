//! What a network takes over from another one.

use zagros_fakes::jobs::{ffnn, job, sequence};
use zagros_job::{AttentionActivation, ExpertLayers, Job, Model, PadSide};
use zagros_model::{DenseModel, SameInputs};

use super::fixtures::{a_bst, a_din, a_finalmlp};
use crate::backend;

const ALL: SameInputs = SameInputs { numeric: true, categorical: true };

fn dlrm() -> Model {
    Model::Dlrm { bottom: vec![3], top: vec![8], dropout: 0.0 }
}

fn layers() -> ExpertLayers {
    ExpertLayers { hidden: vec![3, 3], tower: vec![2], dropout: 0.0 }
}

fn ple() -> Model {
    let (levels, shared_experts, task_experts) = (2, 1, 1);
    Model::Ple { levels, shared_experts, task_experts, layers: layers() }
}

fn wukong() -> Model {
    let (fmb_hidden, bottom, top) = (vec![3], vec![3], vec![3]);
    Model::Wukong { layers: 2, fmb: 2, lcb: 2, rank: 2, fmb_hidden, bottom, top, dropout: 0.0 }
}

fn seeded(mut job: Job, seed: u64) -> DenseModel {
    job.train.seed = seed;
    DenseModel::new(&job, backend()).unwrap()
}

fn model(dims: &[usize], model: Model, seed: u64) -> DenseModel {
    seeded(job(2, dims, model), seed)
}

#[test]
fn layers_that_read_other_inputs_or_have_another_shape_keep_their_first_weights() {
    let trained = model(&[4, 4], dlrm(), 1).to_safetensors().unwrap();
    let other_tables = SameInputs { categorical: false, ..ALL };
    assert_eq!(model(&[4, 4], dlrm(), 2).start_from(&trained, other_tables).unwrap(), ["top.0"]);
    let other_columns = SameInputs { numeric: false, ..ALL };
    assert_eq!(model(&[4, 4], dlrm(), 2).start_from(&trained, other_columns).unwrap(), ["bottom.0"]);
    // One more table: the first layer above the interactions is wider.
    assert_eq!(model(&[4, 4, 4], dlrm(), 2).start_from(&trained, other_tables).unwrap(), ["top.0"]);
    // Another network has nothing of it.
    assert_eq!(model(&[4, 4], ffnn(&[3]), 2).start_from(&trained, ALL).unwrap(), ["layers.0", "layers.1"]);
    assert!(model(&[4, 4], dlrm(), 2).start_from(b"damaged", ALL).is_err());
}

/// A layer that is not named here would be taken with the columns of other features.
#[test]
fn every_network_names_the_layers_that_read_inputs() {
    let finalmlp = a_finalmlp(&[3, 2], &[2], 2, Some((&[3], &["C0"], &[])));
    let networks = [
        (dlrm(), vec!["bottom.0", "top.0"]),
        (ffnn(&[3]), vec!["layers.0"]),
        (Model::DeepFm { hidden: vec![3], dropout: 0.0 }, vec!["deep.0", "factors", "first_order.0"]),
        (Model::WideDeep { hidden: vec![3], dropout: 0.0 }, vec!["deep.0", "wide.0"]),
        (Model::SharedBottom { bottom: vec![3], tower: vec![2], dropout: 0.0 }, vec!["bottom.0"]),
        (Model::SharedBottom { bottom: vec![], tower: vec![2], dropout: 0.0 }, vec!["tower_0.0"]),
        (Model::Mmoe { experts: 2, layers: layers() }, vec!["expert_0.0", "expert_1.0", "gate.0"]),
        (ple(), vec!["level_0_gate.0", "level_0_shared_0.0", "level_0_shared_gate.0", "level_0_target_0_0.0"]),
        (wukong(), vec!["bottom.0", "fmb_0.0", "fmb_norm.0", "fmb_projection.0", "lcb.0", "residual.0"]),
        (finalmlp, vec!["first.0", "gate_first.0", "gate_first.1", "gate_second", "second.0"]),
    ];
    let none = SameInputs { numeric: false, categorical: false };
    for (of, expected) in networks {
        let trained = model(&[4, 4], of.clone(), 1).to_safetensors().unwrap();
        assert_eq!(model(&[4, 4], of, 2).start_from(&trained, none).unwrap(), expected);
    }
}

#[test]
fn equal_inputs_take_every_weight_and_embedded_numbers_begin_anew_with_other_columns() {
    let model = |seed| {
        let mut job = job(2, &[4, 4], dlrm());
        job.features.numeric_embedding = Some(zagros_job::NumericEmbedding::default());
        seeded(job, seed)
    };
    let trained = model(1).to_safetensors().unwrap();
    let mut network = model(2);
    assert_ne!(network.to_safetensors().unwrap(), trained);
    assert_eq!(network.start_from(&trained, ALL).unwrap(), [""; 0]);
    assert_eq!(network.to_safetensors().unwrap(), trained);
    let other_columns = SameInputs { numeric: false, ..ALL };
    assert_eq!(model(2).start_from(&trained, other_columns).unwrap(), ["bottom.0", "numeric_embedding"]);
}

#[test]
fn networks_of_sequences_name_the_layers_that_read_them() {
    let pairs = [("C1", "C0")];
    let din = a_din(&pairs, &[3], AttentionActivation::Prelu, false, &[3]);
    let bst = a_bst(&pairs, (1, 2, 3), false, &[3]);
    let model = |model: &Model, seed| {
        let mut job = job(2, &[4, 4], model.clone());
        job.features.categorical[1].table = 0;
        sequence(&mut job, 1, 3, PadSide::Left);
        seeded(job, seed)
    };
    for (of, own) in [(din, "attention_0.0"), (bst, "query_0.0")] {
        let trained = model(&of, 1).to_safetensors().unwrap();
        assert_eq!(model(&of, 2).start_from(&trained, ALL).unwrap(), [""; 0]);
        let numbers = SameInputs { numeric: false, ..ALL };
        assert_eq!(model(&of, 2).start_from(&trained, numbers).unwrap(), ["layers.0"]);
        let tables = SameInputs { categorical: false, ..ALL };
        let kept = model(&of, 2).start_from(&trained, tables).unwrap();
        assert!(kept.contains(&"layers.0".into()) && kept.contains(&own.into()), "{kept:?}");
        assert!(!kept.contains(&"layers.1".into()), "{kept:?}");
    }
}
