//! A sample's logit has the same bits in every batch.

use std::collections::HashSet;

use zagros_fakes::jobs::{job, normed_net};
use zagros_job::{AttentionActivation, Job, Model, PadSide, Precision};
use zagros_model::{DenseModel, InputColumn, VectorForm, batch_of_blocks};

use super::fixtures::{a_bst, a_din, a_finalmlp, with_sequences};
use super::{TestSamples, bits, with_first_seed};
use crate::backend;

/// Samples that are compared: two blocks and a part.
const SAMPLES: usize = 600;

/// The logits of the samples from `start` on, in batches of `size`.
fn in_batches(model: &DenseModel, samples: &TestSamples, start: usize, size: usize) -> Vec<u32> {
    let (numeric, width) = (model.input_columns().numeric_inputs(), model.input_columns().width);
    let mut logits = Vec::new();
    for from in (start..SAMPLES).step_by(size) {
        let end = SAMPLES.min(from + size);
        let (numbers, rows) =
            (&samples.numeric[from * numeric..end * numeric], &samples.embeddings[from * width..end * width]);
        logits.extend(bits(&model.predict(numbers, rows, end - from).unwrap()));
    }
    logits
}

fn check(job: &Job) {
    let samples = TestSamples::random(job, SAMPLES);
    let model = DenseModel::new(job, backend()).unwrap();
    let expected = in_batches(&model, &samples, 0, SAMPLES);
    for size in [1, 256, 300, 512].map(batch_of_blocks) {
        assert_eq!(in_batches(&model, &samples, 0, size), expected, "{:?} in batches of {size}", job.model);
    }
    for start in [256, 512] {
        assert_eq!(in_batches(&model, &samples, start, SAMPLES), expected[start..], "{:?} from {start}", job.model);
    }
    // The other samples of a block, or their lack, change nothing.
    for count in [1, 7, 100, 255] {
        let few = &in_batches(&model, &samples, SAMPLES - count, count)[..];
        let (mut shifted, width) = (samples.clone(), model.input_columns().width);
        shifted.embeddings[..count * width].copy_from_slice(&samples.embeddings[(SAMPLES - count) * width..]);
        let numeric = model.input_columns().numeric_inputs();
        shifted.numeric[..count * numeric].copy_from_slice(&samples.numeric[(SAMPLES - count) * numeric..]);
        assert_eq!(in_batches(&model, &shifted, 0, SAMPLES)[..count], *few, "{:?}, {count} samples", job.model);
    }
    let distinct = expected.iter().collect::<HashSet<_>>().len();
    assert!(distinct > 20, "the logits differ between samples: {distinct}");
}

/// The job with the first seed with which its few units are on for some samples.
fn with_live_units(job: &Job) -> Job {
    with_first_seed(job, |job| {
        let (model, samples) = (DenseModel::new(job, backend()).unwrap(), TestSamples::random(job, SAMPLES));
        in_batches(&model, &samples, 0, SAMPLES).into_iter().collect::<HashSet<_>>().len() > 20
    })
}

/// Networks by autograd. Those with a step of their own are scored by the code of the crate model, which tests them all.
#[test]
fn a_logit_has_the_same_bits_in_every_batch() {
    let (fmb_hidden, bottom, top) = (vec![17], vec![9], vec![33, 5]);
    let wukong = Model::Wukong { layers: 2, fmb: 3, lcb: 4, rank: 3, fmb_hidden, bottom, top, dropout: 0.0 };
    for network in [wukong, a_finalmlp(&[33, 16], &[24], 8, Some((&[17], &["C0"], &[])))] {
        for (numeric, dims) in [(0, vec![5, 5]), (1, vec![2]), (13, vec![16; 26])] {
            for precision in [Precision::F32, Precision::Bf16] {
                let mut job = job(numeric, &dims, network.clone());
                job.train.precision = precision;
                check(&with_live_units(&job));
            }
        }
    }
    check(&job(1, &[2], normed_net()));
}

/// Networks over two sequences of up to 7 and 3 positions.
fn over_sequences() -> [Job; 5] {
    let pairs = [("S2", "C0"), ("S3", "C1")];
    let networks = [
        a_din(&pairs, &[33, 5], AttentionActivation::Prelu, false, &[64, 19]),
        a_din(&pairs, &[], AttentionActivation::Sigmoid, true, &[5]),
        a_din(&pairs, &[9, 5], AttentionActivation::Dice, false, &[64, 19]),
        a_bst(&pairs, (2, 2, 9), false, &[33, 5]),
        a_bst(&pairs, (2, 2, 9), true, &[33, 5]),
    ];
    networks.map(|network| with_sequences(job(2, &[8, 6], network), &[(7, 0, PadSide::Left), (3, 1, PadSide::Right)]))
}

#[test]
fn a_logit_over_sequences_has_the_same_bits_in_every_batch() {
    for mut job in over_sequences() {
        for precision in [Precision::F32, Precision::Bf16] {
            job.train.precision = precision;
            check(&job);
        }
    }
}

#[test]
fn what_padding_holds_changes_no_logit_and_has_no_gradient() {
    for job in over_sequences() {
        let (model, samples) = (DenseModel::new(&job, backend()).unwrap(), TestSamples::random(&job, 24));
        let (columns, mut other) = (model.input_columns(), samples.clone());
        let width = columns.width;
        let mut padding = Vec::new();
        for sample in 0..24 {
            for InputColumn { dim, offset, form, .. } in columns.features.iter().copied() {
                let VectorForm::Sequence(sequence) = form else { continue };
                let (length, first) = (sequence.length, sequence.first_position(sample % (sequence.length + 1)));
                let real = first..first + sample % (length + 1);
                let padded = (0..length * dim).filter(|value| !real.contains(&(value / dim)));
                padding.extend(padded.map(|value| sample * width + offset + value));
            }
        }
        padding.iter().for_each(|index| other.embeddings[*index] += 1.0);
        assert_eq!(samples.predict(&model), other.predict(&model), "{:?}", job.model);
        let output = samples.step(&mut DenseModel::new(&job, backend()).unwrap());
        assert!(padding.iter().all(|index| output.gradients[*index] == 0.0), "{:?}", job.model);
        assert!(output.gradients.iter().filter(|gradient| **gradient != 0.0).count() > 24 * 14);
    }
}
