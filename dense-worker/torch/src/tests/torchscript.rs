//! A user's module: it has the values of the equal built-in network, is trained and saved, and is refused if it must be.

use std::path::PathBuf;

use safetensors::SafeTensors;
use zagros_fakes::jobs::{assert_refused, ffnn, fixture, job, normed_net};
use zagros_job::{Job, Model, NonFinitePolicy};
use zagros_model::{DenseModel, ModelError, seed_of_rank};
use zagros_zip::ZipEq;

use super::TestSamples;
use crate::backend;

/// `torch.jit.script` of linear 5 → 4, ReLU, linear 4 → 1 over both inputs side by side; made by
/// `scripts/model_fixtures.py`, as are the others.
const NET: (&str, &str) = ("net.pt", "1c2c8204ed9984ec1e30da1e5d196eacbedb4fcf3da631e7754d04a023943741");
/// As `net.pt`, with logits of `[batch, 2]`.
const WIDE: (&str, &str) = ("wide_net.pt", "4851ef3ce63d1d5d9f43fca562f3f76f66e12ac860c1ac94bb87806fe88925e0");

/// As `net.pt`, with dropout of half of the logits.
const DROPOUT: (&str, &str) = ("dropout_net.pt", "ac89b3fb55c8944216fde9683bd470f8c7ddd45c762e778f3eb389c6cf2ef8cd");

fn script_job(file: PathBuf, sha256: &str) -> Job {
    job(2, &[2, 1], Model::TorchScript { file, sha256: sha256.to_owned(), trust: true })
}

/// The count in the normed net: more than f64 counts.
const SALT: i64 = (1 << 53) + 1;

fn normed() -> Job {
    job(1, &[2], normed_net())
}

fn bytes(saved: &[u8], name: &str) -> Vec<u8> {
    SafeTensors::deserialize(saved).unwrap().tensor(name).unwrap().data().to_vec()
}

fn floats(saved: &[u8], name: &str) -> Vec<f32> {
    bytes(saved, name).as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn refusal(job: &Job) -> String {
    let error = DenseModel::new(job, backend()).unwrap_err();
    assert!(matches!(error, ModelError::Script { .. } | ModelError::Shape { .. }), "{error}");
    error.to_string()
}

/// The built network with the module's weights.
fn twin(module: &DenseModel) -> DenseModel {
    let mut twin = DenseModel::new(&job(2, &[2, 1], ffnn(&[4])), backend()).unwrap();
    let saved = module.to_safetensors().unwrap();
    let stored = SafeTensors::deserialize(&saved).unwrap();
    // In the module, the ReLU between them counts as a layer.
    let named = |name: &str| name.replace("layers_0_", "layers.0.").replace("layers_2_", "layers.1.");
    let renamed = safetensors::serialize(stored.iter().map(|(name, view)| (named(name), view)), None).unwrap();
    twin.load_safetensors(&renamed).unwrap();
    twin
}

#[test]
fn a_module_trains_like_the_equal_built_in_network() {
    let job = script_job(fixture(NET.0), NET.1);
    let samples = TestSamples::random(&job, 6);
    let mut module = DenseModel::new(&job, backend()).unwrap();
    let mut built = twin(&module);
    for step in 0..5 {
        let [mine, its] = [&mut module, &mut built].map(|model| samples.step(model));
        assert!((mine.loss - its.loss).abs() < 1e-6, "step {step}: {} {}", mine.loss, its.loss);
        for (mine, its) in mine.gradients.iter().zip_eq(&its.gradients) {
            assert!((mine - its).abs() < 1e-6, "step {step}: {mine} {its}");
        }
    }
    let mut fresh = DenseModel::new(&job, backend()).unwrap();
    assert_ne!(samples.predict(&fresh), samples.predict(&module), "five steps changed something");
    fresh.load_safetensors(&module.to_safetensors().unwrap()).unwrap();
    assert_eq!(samples.predict(&fresh), samples.predict(&module));
}

/// Which of 64 logits are dropped in each of three steps.
fn dropped(model: &mut DenseModel, samples: &TestSamples) -> Vec<Vec<bool>> {
    (0..3).map(|_| samples.step(model).logits.into_iter().map(|logit| logit == 0.0).collect()).collect()
}

#[test]
fn each_rank_drops_its_own_units_and_the_same_ones_in_every_run() {
    let job = script_job(fixture(DROPOUT.0), DROPOUT.1);
    let samples = TestSamples::random(&job, 64);
    let of_rank = |rank| {
        let mut model = DenseModel::new(&job, backend()).unwrap();
        model.drop_by(seed_of_rank(job.train.seed, rank));
        dropped(&mut model, &samples)
    };
    let ranks = [0, 1, 2].map(of_rank);
    let alone = dropped(&mut DenseModel::new(&job, backend()).unwrap(), &samples);
    assert_eq!(alone, ranks[0], "a lone worker draws as rank 0 does");
    assert_eq!(of_rank(1), ranks[1]);
    let all: std::collections::HashSet<_> = ranks.iter().flatten().collect();
    assert_eq!(all.len(), 9, "two ranks or steps drop the same units");
    // If half of the units are dropped, two independent ranks differ in half of the positions.
    let differ = |one: &[bool], other: &[bool]| one.iter().zip_eq(other).filter(|(one, other)| one != other).count();
    assert!((12..=52).contains(&differ(&ranks[0][0], &ranks[1][0])), "{ranks:?}");
}

#[test]
fn a_file_that_is_absent_another_or_no_module_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let no_module = folder.path().join("net.pt");
    std::fs::write(&no_module, "no module").unwrap();
    let (zeros, another) = ("0".repeat(64), format!("has the SHA-256 {}, model.sha256 says 000", NET.1));
    // The output of sha256sum for these nine bytes.
    let of_text = "a4a2ad0d3faa1604410f2e4f0b7c91c3b488d59e27a59bc39de57241464a899f";
    for (file, sha256, expected) in [
        (fixture(NET.0), zeros.as_str(), another.as_str()),
        (fixture("absent.pt"), NET.1, "absent.pt cannot be read"),
        (no_module, of_text, "is not a TorchScript module"),
    ] {
        let refused = refusal(&script_job(file, sha256));
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn a_module_that_gives_no_logits_or_takes_other_inputs_is_refused() {
    let job = script_job(fixture(WIDE.0), WIDE.1);
    let samples = TestSamples::random(&job, 6);
    let step = |job: &Job, samples: &TestSamples| {
        let mut model = DenseModel::new(job, backend()).unwrap();
        model.step(&samples.numeric, &samples.embeddings, &samples.labels).unwrap_err()
    };
    let shape =
        "the TorchScript module gives Float [6, 2] for a batch of 6; expected f32 logits of [batch] or [batch, 1]";
    assert_eq!(step(&job, &samples).to_string(), shape);
    let mut wider = script_job(fixture(NET.0), NET.1);
    wider.tables[0].dim = 7;
    let refused = step(&wider, &TestSamples::random(&wider, 6));
    assert!(matches!(refused, ModelError::ScriptFailed { .. }), "{refused}");
}

/// Ioffe and Szegedy 2015, section 3.1, as in PyTorch: the running variance is that of samples, divided by n − 1.
#[test]
fn buffers_of_a_module_are_saved_with_its_weights() {
    let job = normed();
    let samples = TestSamples::random(&job, 4);
    let mut model = DenseModel::new(&job, backend()).unwrap();
    for _ in 0..3 {
        samples.step(&mut model);
        // Scoring changes no buffer.
        samples.predict(&model);
    }
    let saved = model.to_safetensors().unwrap();
    let mean = samples.numeric.iter().sum::<f32>() / 4.0;
    let variance = samples.numeric.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / 3.0;
    // Three equal batches: (1 − 0.9³) of their values, and 0.9³ of the first values, 0 and 1.
    let (found_mean, found_variance) = (floats(&saved, "norm_running_mean")[0], floats(&saved, "norm_running_var")[0]);
    assert!((found_mean - 0.271 * mean).abs() < 1e-6, "{found_mean}");
    assert!((found_variance - 0.729 - 0.271 * variance).abs() < 1e-6, "{found_variance}");
    for (name, count) in [("norm_num_batches_tracked", 3), ("seen", 3), ("scored", 0), ("salt", SALT)] {
        assert_eq!(bytes(&saved, name), i64::to_le_bytes(count), "{name}");
    }
    assert_eq!(floats(&saved, "mask")[..2], [0.0, f32::NEG_INFINITY]);
    assert!(floats(&saved, "mask")[2].is_nan());

    let mut restored = DenseModel::new(&job, backend()).unwrap();
    restored.load_safetensors(&saved).unwrap();
    restored.restore_optimizer(&model.optimizer_state().unwrap()).unwrap();
    assert_eq!(restored.to_safetensors().unwrap(), saved);
    for _ in 0..2 {
        let [mine, its] = [&mut model, &mut restored].map(|model| (samples.predict(model), samples.step(model)));
        assert_eq!(mine, its);
    }
}

#[test]
fn a_skipped_or_failed_batch_changes_no_buffer() {
    let mut job = normed();
    job.train.updates.non_finite = NonFinitePolicy::Skip;
    let samples = TestSamples::random(&job, 4);
    let mut model = DenseModel::new(&job, backend()).unwrap();
    let saved = model.to_safetensors().unwrap();
    let skipped = model.step(&[f32::NAN; 4], &samples.embeddings, &samples.labels).unwrap_err();
    assert!(matches!(skipped, ModelError::Skipped { .. }), "{skipped}");
    assert_eq!(model.to_safetensors().unwrap(), saved);
    // A batch norm refuses a single sample.
    let refused = model.step(&samples.numeric[..1], &samples.embeddings[..2], &samples.labels[..1]);
    assert_refused(refused, &["Expected more than 1 value per channel"]);
    assert_eq!(model.to_safetensors().unwrap(), saved);
    samples.step(&mut model);
    assert_ne!(model.to_safetensors().unwrap(), saved);
}
