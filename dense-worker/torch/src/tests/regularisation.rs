//! Label smoothing, dropout of feature vectors, the penalty on feature vectors, and the average of the weights.

use zagros_fakes::jobs::{BATCH, ffnn, job, sequence};
use zagros_job::{AttentionActivation, DenseOptimizer, Job, Model, PadSide};
use zagros_model::DenseModel;
use zagros_zip::ZipEq;

use super::fixtures::a_din;
use super::weights;
use crate::backend;

fn networks() -> [Model; 2] {
    // Without autograd, and with it.
    [ffnn(&[3]), Model::DeepFm { hidden: vec![3], dropout: 0.0 }]
}

fn job_of(model: &Model, change: impl Fn(&mut Job)) -> Job {
    let mut job = job(1, &[2, 2], model.clone());
    job.dense_optimizer = DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.0 };
    change(&mut job);
    job
}

fn built(model: &Model, change: impl Fn(&mut Job)) -> DenseModel {
    DenseModel::new(&job_of(model, change), backend()).unwrap()
}

#[test]
fn smoothed_labels_give_the_loss_of_both_classes_in_parts() {
    for network in networks() {
        let mut smoothed = built(&network, |job| job.train.label_smoothing = 0.2);
        let found = smoothed.backward(BATCH.0, BATCH.1, BATCH.2).unwrap();
        // The loss is linear in the label: 0.9 of the label's own class and 0.1 of the other one.
        let loss = |labels: &[f32]| built(&network, |_| ()).backward(BATCH.0, BATCH.1, labels).unwrap();
        let (own, other) = (loss(&[0.0, 1.0]), loss(&[1.0, 0.0]));
        assert!((found.loss - (0.9 * own.loss + 0.1 * other.loss)).abs() < 1e-6, "{network:?}: {}", found.loss);
        assert_eq!(found.logits, own.logits);
        for (index, gradient) in found.gradients.iter().enumerate() {
            let expected = 0.9 * own.gradients[index] + 0.1 * other.gradients[index];
            assert!((gradient - expected).abs() < 1e-6, "{network:?} {index}: {gradient}, not {expected}");
        }
    }
}

#[test]
fn the_penalty_is_the_slope_of_the_mean_square_of_a_samples_vectors() {
    for network in networks() {
        let found = built(&network, |job| job.train.embedding_l2 = 0.5).backward(BATCH.0, BATCH.1, BATCH.2).unwrap();
        let plain = built(&network, |_| ()).backward(BATCH.0, BATCH.1, BATCH.2).unwrap();
        assert_eq!((found.loss, &found.logits), (plain.loss, &plain.logits));
        for ((found, plain), value) in found.gradients.iter().zip_eq(&plain.gradients).zip_eq(BATCH.1) {
            assert!((found - (plain + 0.5 * value / 2.0)).abs() < 1e-6, "{network:?}: {found}");
        }
    }
}

/// A sequence is behind the vectors, and the number of its real positions has no penalty.
#[test]
fn features_have_penalties_of_their_own() {
    let network = a_din(&[("C1", "C0")], &[3], AttentionActivation::Relu, false, &[3]);
    let made = |embedding_l2: f64, of: &[(&str, f64)]| {
        let mut job = job(1, &[2, 2, 1], network.clone());
        job.features.categorical[1].table = 0;
        sequence(&mut job, 1, 2, PadSide::Right);
        job.train.embedding_l2 = embedding_l2;
        job.train.feature_l2 = of.iter().map(|(name, l2)| ((*name).to_owned(), *l2)).collect();
        // C0, C2, two positions of C1 and their number.
        let embeddings = [0.1, 0.2, -0.3, 0.4, 0.5, 0.6, 0.7, 2.0];
        (DenseModel::new(&job, backend()).unwrap().backward(&[0.5], &embeddings, &[1.0]).unwrap().gradients, embeddings)
    };
    let (plain, values) = made(0.0, &[]);
    for (general, of, expected) in [
        (0.5, &[("C1", 2.0), ("C2", 0.0)][..], [0.5, 0.5, 0.0, 2.0, 2.0, 2.0, 2.0, 0.0]),
        (0.0, &[("C0", 3.0)], [3.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ] {
        let (found, _) = made(general, of);
        for (((found, plain), value), l2) in found.iter().zip_eq(&plain).zip_eq(&values).zip_eq(expected) {
            assert!((found - (plain + l2 * value)).abs() < 1e-6, "{found}, not {plain} + {l2} · {value}");
        }
    }
}

#[test]
fn dropped_values_are_zeros_to_the_network_and_get_no_gradient() {
    for network in networks() {
        let dropping = |job: &mut Job| job.train.embedding_dropout = 0.5;
        let mut model = built(&network, dropping);
        let mut dropped = Vec::new();
        for _ in 0..20 {
            let output = model.backward(BATCH.0, BATCH.1, BATCH.2).unwrap();
            // The same in a network that sees the values that are left, doubled.
            let kept: Vec<f32> = output.gradients.iter().map(|gradient| f32::from(*gradient != 0.0)).collect();
            let seen: Vec<f32> = BATCH.1.iter().zip_eq(&kept).map(|(value, kept)| 2.0 * value * kept).collect();
            let mut plain = built(&network, |_| ());
            plain.load_safetensors(&model.to_safetensors().unwrap()).unwrap();
            let expected = plain.backward(BATCH.0, &seen, BATCH.2).unwrap();
            // A unit that ReLU cuts off has no gradient either, so a kept value may look dropped.
            if expected.logits == output.logits {
                for (index, kept) in kept.iter().enumerate() {
                    let doubled = 2.0 * kept * expected.gradients[index];
                    assert!((output.gradients[index] - doubled).abs() < 1e-6, "{network:?} {index}");
                }
                dropped.push(kept);
            }
            model.step(BATCH.0, BATCH.1, BATCH.2).unwrap();
        }
        assert!(dropped.len() > 5 && dropped.iter().any(|kept| *kept != dropped[0]), "{network:?}: {dropped:?}");
        // Scores see all values, and a draw is a function of seed and step.
        let predicted = model.predict(BATCH.0, BATCH.1, 2).unwrap();
        let mut plain = built(&network, |_| ());
        plain.load_safetensors(&model.to_safetensors().unwrap()).unwrap();
        assert_eq!(plain.predict(BATCH.0, BATCH.1, 2).unwrap(), predicted);
        let first = |mut model: DenseModel| model.backward(BATCH.0, BATCH.1, BATCH.2).unwrap();
        assert_eq!(first(built(&network, dropping)), first(built(&network, dropping)));
    }
}

#[test]
fn samples_are_scored_with_the_average_and_steps_are_made_with_the_weights() {
    for network in networks() {
        let averaging = |job: &mut Job| job.train.ema = Some(0.75);
        let (mut model, mut plain) = (built(&network, averaging), built(&network, |_| ()));
        let mut average = weights(&plain);
        for _ in 0..5 {
            let [found, expected] =
                [&mut model, &mut plain].map(|model| model.step(BATCH.0, BATCH.1, BATCH.2).unwrap());
            assert_eq!(found, expected);
            for (average, weight) in average.iter_mut().zip_eq(weights(&plain)) {
                *average += 0.25 * (weight - *average);
            }
        }
        assert_eq!(weights(&model), weights(&plain));
        let mut averaged = built(&network, |_| ());
        averaged.set_weights(&average).unwrap();
        let scores = model.predict(BATCH.0, BATCH.1, 2).unwrap();
        assert_eq!(scores, averaged.predict(BATCH.0, BATCH.1, 2).unwrap());
        assert_ne!(scores, plain.predict(BATCH.0, BATCH.1, 2).unwrap());
        assert_eq!(model.scoring_safetensors().unwrap(), averaged.to_safetensors().unwrap());
        // A checkpoint holds both (invariant CK-2), and a run without an average can go on from it.
        let (raw, state) = (model.to_safetensors().unwrap(), model.optimizer_state().unwrap());
        assert_eq!(raw, plain.to_safetensors().unwrap());
        let mut restored = built(&network, averaging);
        restored.load_safetensors(&raw).unwrap();
        restored.restore_optimizer(&state).unwrap();
        assert_eq!(restored.predict(BATCH.0, BATCH.1, 2).unwrap(), scores);
        restored.step(BATCH.0, BATCH.1, BATCH.2).unwrap();
        model.step(BATCH.0, BATCH.1, BATCH.2).unwrap();
        assert_eq!(restored.scoring_safetensors().unwrap(), model.scoring_safetensors().unwrap());
        plain.restore_optimizer(&state).unwrap();
        // A saved model has the average as its weights, and a run that starts from it averages from there.
        let mut started = built(&network, averaging);
        started.load_safetensors(&averaged.to_safetensors().unwrap()).unwrap();
        assert_eq!(started.predict(BATCH.0, BATCH.1, 2).unwrap(), scores);
    }
}
