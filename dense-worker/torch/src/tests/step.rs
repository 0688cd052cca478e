//! The step without autograd against the same network's step with autograd.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use zagros_fakes::jobs::{job, networks_without_autograd};
use zagros_job::{DenseOptimizer, Job, Model, Precision};
use zagros_model::{Backend, DenseModel, InputColumns, ModelError, StepOutput};
use zagros_network::CHUNK;
use zagros_zip::ZipEq;

use super::{relative_difference, set_sequence_lengths};
use crate::backend;

fn dlrm(dropout: f64) -> Model {
    Model::Dlrm { bottom: vec![12, 7], top: vec![9, 5], dropout }
}

fn ffnn(dropout: f64) -> Model {
    Model::Ffnn { hidden: vec![11, 6], dropout }
}

/// Numeric values, embeddings and labels of a batch. Its sequences have every number of real positions.
pub(super) fn samples(job: &Job, batch: usize, seed: u64) -> [Vec<f32>; 3] {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let columns = InputColumns::new(job);
    let mut values = |count: usize| (0..count).map(|_| random.random_range(-1.0..1.0)).collect::<Vec<f32>>();
    let (numeric, mut embeddings) = (values(batch * columns.numeric_inputs()), values(batch * columns.width));
    let labels = values(batch * job.features.targets.len()).into_iter().map(|value| f32::from(value > 0.3)).collect();
    set_sequence_lengths(&columns, &mut embeddings);
    [numeric, embeddings, labels]
}

/// A step of the job's network, and the gradients of its weights.
fn step(job: &Job, by_autograd: bool, steps: &[[Vec<f32>; 3]]) -> (StepOutput, Vec<f32>) {
    assert!(!job.is_by_autograd());
    let kernels: &'static [_] = if by_autograd { &[] } else { backend().kernels };
    let mut model = DenseModel::new(job, Backend { kernels, ..backend() }).unwrap();
    let run = |[numeric, embeddings, labels]: &[Vec<f32>; 3]| model.step(numeric, embeddings, labels).unwrap();
    let output = steps.iter().map(run).last().unwrap();
    (output, model.gradients().to_vec())
}

/// The sums have another order, so rounding differs.
fn assert_near(what: &str, found: &[f32], expected: &[f32]) {
    let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip_eq(expected).enumerate() {
        let off = (found - expected).abs();
        assert!(off <= 2e-5 * largest, "{what} {index}: {found}, by autograd {expected}, largest {largest}");
    }
}

fn check(job: &mut Job, batch: usize, threads: usize) {
    // Not Adam: its first step depends on the sign of a gradient, which rounding decides if the gradient is nearly zero.
    job.dense_optimizer = DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.0 };
    // The second step reuses memory of the first one, with a smaller batch.
    let steps = [samples(job, batch, 1), samples(job, batch.div_ceil(2), 2)];
    for count in 1..=steps.len() {
        job.train.threads = 1;
        let (expected, expected_weights) = step(job, true, &steps[..count]);
        job.train.threads = threads;
        let (found, found_weights) = step(job, false, &steps[..count]);
        assert_near("loss", &[found.loss], &[expected.loss]);
        assert_near("logit", &found.logits, &expected.logits);
        assert_near("embedding gradient", &found.gradients, &expected.gradients);
        assert_near("weight gradient", &found_weights, &expected_weights);
        assert!(found_weights.iter().any(|gradient| *gradient != 0.0));
    }
}

#[test]
fn dlrm_equals_autograd_for_any_batch_and_threads() {
    for (batch, threads) in
        [(1, 1), (3, 4), (CHUNK - 1, 1), (2 * CHUNK + 1, 1), (2 * CHUNK + 1, 3), (3 * CHUNK, 4), (CHUNK, 2)]
    {
        check(&mut job(3, &[5, 5, 5, 5, 5, 5, 5, 5, 5], dlrm(0.0)), batch, threads);
    }
}

/// Their forms are compared with PyTorch's in `fixtures`.
#[test]
fn every_network_equals_autograd_with_and_without_numbers() {
    for model in networks_without_autograd(0.0) {
        for (numeric, dims) in [(2, &[4, 4, 4][..]), (0, &[8, 8])] {
            check(&mut job(numeric, dims, model.clone()), CHUNK + 5, 2);
        }
    }
    for (numeric, dims) in [(2, &[4, 3, 1][..]), (4, &[])] {
        check(&mut job(numeric, dims, ffnn(0.0)), 2 * CHUNK + 1, 1);
    }
}

#[test]
fn dropout_equals_that_of_autograd_within_one_chunk() {
    for model in networks_without_autograd(0.4) {
        check(&mut job(2, &[4, 4], model), CHUNK, 1);
    }
}

/// bf16 keeps 8 digits of 24: far from f32, but close enough for the same direction.
#[test]
fn bf16_is_near_f32_and_not_equal_in_steps_and_predictions() {
    for model in [dlrm(0.0), ffnn(0.0), Model::DeepFm { hidden: vec![11, 6], dropout: 0.0 }] {
        let mut job = job(3, &[8, 8, 8], model);
        let steps = [samples(&job, CHUNK + 9, 1)];
        let (exact, exact_weights) = step(&job, false, &steps);
        let logits = |job: &Job| {
            DenseModel::new(job, backend()).unwrap().predict(&steps[0][0], &steps[0][1], CHUNK + 9).unwrap()
        };
        let exact_logits = logits(&job);
        job.train.precision = Precision::Bf16;
        let (found, found_weights) = step(&job, false, &steps);
        let (by_autograd, _) = step(&job, true, &steps);
        for (found, exact) in [
            (&found.logits, &exact.logits),
            (&found.gradients, &exact.gradients),
            (&found_weights, &exact_weights),
            (&logits(&job), &exact_logits),
            (&by_autograd.logits, &exact.logits),
        ] {
            let share = relative_difference(found, exact);
            assert!(share > 1e-6 && share < 0.2, "{share}");
        }
    }
}

/// With a score of eight bits, many samples would have the same score.
#[test]
fn logits_in_bf16_have_more_bits_than_bf16() {
    let mut job = job(3, &[8, 8, 8], ffnn(0.0));
    job.train.precision = Precision::Bf16;
    let [numeric, embeddings, labels] = samples(&job, 1024, 1);
    let mut model = DenseModel::new(&job, backend()).unwrap();
    let predicted = model.predict(&numeric, &embeddings, 1024).unwrap();
    let trained = model.step(&numeric, &embeddings, &labels).unwrap().logits;
    for logits in [predicted, trained] {
        let bits: std::collections::HashSet<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
        assert!(bits.len() > 1000, "{} values among 1024 logits", bits.len());
    }
}

#[test]
fn a_step_is_the_same_bit_for_bit_in_every_run() {
    let mut job = job(3, &[8, 8], dlrm(0.2));
    job.train.threads = 3;
    let steps = [samples(&job, 3 * CHUNK, 1), samples(&job, 3 * CHUNK, 2)];
    assert_eq!(step(&job, false, &steps), step(&job, false, &steps));
}

#[test]
fn a_value_that_is_not_finite_is_seen_in_every_share() {
    let mut job = job(1, &[2, 2], dlrm(0.0));
    job.train.threads = 2;
    let mut model = DenseModel::new(&job, backend()).unwrap();
    for place in [0, 2 * CHUNK - 1] {
        let [mut numeric, embeddings, labels] = samples(&job, 2 * CHUNK, 1);
        numeric[place] = f32::NAN;
        let refused = model.step(&numeric, &embeddings, &labels).unwrap_err();
        assert!(matches!(refused, ModelError::NotFinite { what: "the loss" }), "{refused}");
    }
}
