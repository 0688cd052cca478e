//! Each activation with each norm, and an attention unit with Dice, against PyTorch's modules, by the fixtures of `scripts/model_fixtures.py`: values in training, every
//! gradient, the running averages after a step, and scores by them.

use serde::Deserialize;
use zagros_fakes::jobs::{ffnn, job};
use zagros_job::{AttentionActivation, DenseOptimizer, Job, MlpActivation, MlpNorm, MlpSettings, PadSide};
use zagros_model::{DenseModel, ModelError};
use zagros_zip::ZipEq;

use super::fixtures::{NetworkFixture, a_din, assert_near, with_sequences};
use super::{TestSamples, fixtures, stored};
use crate::backend;

/// A fixture of `mlp_layers.json`.
#[derive(Deserialize)]
struct LayersFixture {
    activation: MlpActivation,
    norm: MlpNorm,
    #[serde(flatten)]
    values: NetworkFixture,
}

fn all_fixtures() -> Vec<LayersFixture> {
    serde_json::from_str(include_str!("../fixtures/mlp_layers.json")).unwrap()
}

const STILL: DenseOptimizer = DenseOptimizer::Sgd { lr: 0.0, momentum: 0.0, weight_decay: 0.0 };

/// A step changes the buffers and no weight.
fn still_job(activation: MlpActivation, norm: MlpNorm) -> Job {
    let mut job = job(1, &[2, 1], ffnn(&[3, 2]));
    job.dense_optimizer = STILL;
    job.mlp = MlpSettings { activation, norm };
    job
}

#[test]
fn every_activation_with_every_norm_has_the_values_of_pytorch() {
    let fixtures = all_fixtures();
    assert_eq!(fixtures.len(), 20);
    for LayersFixture { activation, norm, values } in fixtures {
        check(&format!("{activation:?}, {norm:?}"), &still_job(activation, norm), &values);
    }
    // An attention unit with Dice.
    check("DIN", &din_with_dice(), &serde_json::from_str(include_str!("../fixtures/din_dice.json")).unwrap());
}

fn check(case: &str, job: &Job, fixture: &NetworkFixture) {
    let model = fixtures::check(case, job, fixture);
    assert_eq!(job.dense_parameters(), Some(model.weight_count() as u64), "{case}: parameters");
    let NetworkFixture { numeric, embeddings, labels, scored, .. } = fixture;
    let predict = |model: &DenseModel| model.predict(numeric, embeddings, labels.len()).unwrap();
    let predicted = predict(&model);
    assert_near(&format!("{case}: scores"), &predicted, scored);
    // Buffers are part of the weights, so a network that is loaded scores the same bits.
    let mut again = DenseModel::new(job, backend()).unwrap();
    again.load_safetensors(&model.to_safetensors().unwrap()).unwrap();
    assert_eq!(predict(&again), predicted);
}

fn din_with_dice() -> Job {
    let network = a_din(&[("S2", "C1")], &[5, 3], AttentionActivation::Dice, false, &[6]);
    let job = with_sequences(job(2, &[3, 4], network), &[(3, 1, PadSide::Left)]);
    Job { dense_optimizer: STILL, ..job }
}

#[test]
fn dice_counts_no_padding_and_a_batch_of_padding_leaves_its_averages() {
    let job = din_with_dice();
    let mut model = DenseModel::new(&job, backend()).unwrap();
    let samples = TestSamples::random(&job, 4);
    // The last value of a sample is the number of its real positions.
    let width = samples.embeddings.len() / 4;
    let mut padding = samples.embeddings.clone();
    padding.chunks_mut(width).for_each(|sample| sample[width - 1] = 0.0);
    let saved = model.to_safetensors().unwrap();
    assert!(model.step(&samples.numeric, &padding, &samples.labels).unwrap().loss.is_finite());
    assert_eq!(model.to_safetensors().unwrap(), saved);
    samples.step(&mut model);
    let averages = model.to_safetensors().unwrap();
    assert_ne!(averages, saved);
    let mut other = DenseModel::new(&job, backend()).unwrap();
    let mut filled = samples.embeddings.clone();
    // Sample 0 has padding alone.
    filled[7..width - 1].iter_mut().for_each(|value| *value += 1.0);
    other.step(&samples.numeric, &filled, &samples.labels).unwrap();
    assert_eq!(other.to_safetensors().unwrap(), averages);
}

#[test]
fn running_averages_count_once_the_step_is_made_and_add_up_over_workers() {
    let LayersFixture { activation, norm, values } =
        all_fixtures().into_iter().find(|fixture| fixture.norm == MlpNorm::Batch).unwrap();
    let model = || {
        let mut model = DenseModel::new(&still_job(activation, norm), backend()).unwrap();
        model.load_safetensors(&values.safetensors()).unwrap();
        model
    };
    let (mut skipping, mut first) = (model(), model().to_safetensors().unwrap());
    let mut huge = values.embeddings.clone();
    huge[0] = f32::INFINITY;
    let failed = skipping.step(&values.numeric, &huge, &values.labels).unwrap_err();
    assert!(matches!(failed, ModelError::NotFinite { .. }), "{failed}");
    assert_eq!(skipping.to_safetensors().unwrap(), std::mem::take(&mut first));
    // Two workers with the same samples and shares of 1/4 and 3/4 change them as one worker does.
    let mut busy = model();
    busy.backward(&values.numeric, &values.embeddings, &values.labels).unwrap();
    let changes = busy.buffer_changes().unwrap();
    assert_eq!(changes.len(), 2 * (3 + 2));
    let of_both: Vec<f32> = changes.iter().zip_eq(&changes).map(|(one, other)| 0.25 * one + 0.75 * other).collect();
    busy.replace_buffer_changes(&of_both).unwrap();
    busy.apply_gradients().unwrap();
    for (name, expected) in &values.buffers {
        assert_near(name, &stored(&busy)[name].1, expected);
    }
}

#[test]
fn a_batch_of_one_sample_uses_the_running_averages() {
    let mut model = DenseModel::new(&still_job(MlpActivation::Relu, MlpNorm::Batch), backend()).unwrap();
    let saved = model.to_safetensors().unwrap();
    let output = model.step(&[0.5], &[0.25, -0.5, 1.0], &[1.0]).unwrap();
    assert!(output.loss.is_finite());
    assert_eq!(model.to_safetensors().unwrap(), saved);
}
