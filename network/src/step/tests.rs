//! Each network's backward against differences of its forward, and in chunks of any size.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use zagros_zip::ZipEq;

use super::*;
use crate::networks;
use crate::settings::{CrossStructure, MlpSettings};
use crate::wiring::{Network, NetworkInputs, Wiring};
use crate::{RoundedProducts, StepError, StepResult};

/// Sums in f64, in the order of the columns.
#[derive(Debug)]
struct PlainKernel;

impl ProductKernel for PlainKernel {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn multiply(&self, a: View<'_>, b: View<'_>, out: ViewMut<'_>, adds: bool) -> StepResult {
        for row in 0..a.rows {
            for column in 0..b.columns {
                let of_a = |at: usize| f64::from(a.values[row * a.row_stride + at * a.column_stride]);
                let of_b = |at: usize| f64::from(b.values[at * b.row_stride + column * b.column_stride]);
                let sum: f64 = (0..a.columns).map(|at| of_a(at) * of_b(at)).sum();
                let into = &mut out.values[row * out.stride + column];
                *into = if adds { (f64::from(*into) + sum) as f32 } else { sum as f32 };
            }
        }
        Ok(())
    }

    fn rounded(&self, _: [usize; 2], _: usize) -> StepResult<Box<dyn RoundedProducts>> {
        Err(StepError::Kernel("no products in bf16".into()))
    }
}

/// Each output times a constant: a loss whose slopes are known.
struct LinearLoss(Vec<f32>);

impl OutputLoss for LinearLoss {
    fn target_count(&self) -> usize {
        1
    }

    fn output_count(&self) -> usize {
        self.0.len()
    }

    fn sum_losses(&self, outputs: &mut [f32], _: (&[f32], &[f32]), factor: f32, slopes: &mut [f32]) -> f64 {
        let mut sum = 0.0;
        let rows = outputs.chunks_exact(self.0.len()).zip_eq(slopes.chunks_exact_mut(self.0.len()));
        for (outputs, slopes) in rows {
            for (place, constant) in self.0.iter().enumerate() {
                sum += f64::from(outputs[place]) * f64::from(*constant);
                slopes[place] = factor * constant;
            }
        }
        sum
    }

    fn finish_outputs(&self, _: &mut [f32]) {}
}

fn inputs(numbers: usize, dims: &[usize], outputs: &[usize]) -> NetworkInputs {
    NetworkInputs { numbers, embedding: None, dims: dims.to_vec(), sequences: Vec::new(), outputs: outputs.to_vec() }
}

fn wired(inputs: NetworkInputs, wire: impl Fn(&mut Wiring) -> Value) -> Network {
    let mut wiring = Wiring::new(inputs, MlpSettings::default());
    let output = wire(&mut wiring);
    wiring.finish(output)
}

/// Every network with a backward of its own, with and without numbers.
fn all_networks() -> Vec<(&'static str, Network)> {
    let mut all = Vec::new();
    for numbers in [0, 3] {
        let (one, several) = (inputs(numbers, &[4, 4, 4], &[1]), inputs(numbers, &[4, 2], &[1, 3]));
        all.push(("dlrm", wired(one.clone(), |net| networks::dlrm(net, &[5], &[6, 3]))));
        all.push(("ffnn", wired(inputs(numbers, &[4, 3, 1], &[2]), |net| networks::ffnn(net, &[6, 5]))));
        for (rank, structure) in [(None, CrossStructure::Stacked), (Some(2), CrossStructure::Parallel)] {
            all.push(("dcnv2", wired(one.clone(), |net| networks::dcnv2(net, 2, rank, structure, &[5]))));
        }
        all.push(("deepfm", wired(one.clone(), |net| networks::deepfm(net, &[6]))));
        all.push(("wide_deep", wired(inputs(numbers, &[4, 1, 2], &[1]), |net| networks::wide_deep(net, &[6]))));
        all.push((
            "finalmlp",
            wired(inputs(numbers, &[4, 3], &[2]), |net| networks::finalmlp(net, [(&[6, 4], None), (&[5, 6], None)], 2)),
        ));
        all.push(("shared_bottom", wired(several.clone(), |net| networks::shared_bottom(net, &[6], &[4]))));
        all.push(("esmm", wired(several.clone(), |net| networks::shared_bottom(net, &[], &[4]))));
        all.push(("mmoe", wired(several.clone(), |net| networks::mmoe(net, 3, &[5], &[4]))));
        all.push(("ple", wired(several, |net| networks::ple(net, 2, 2, 1, &[4, 3], &[4]))));
    }
    all
}

fn held_layers(network: &Network) -> Vec<HeldLayer> {
    let (mut layers, mut start): (Vec<(String, HeldLayer)>, usize) = (Vec::new(), 0);
    for tensor in &network.layout.tensors {
        let length = usize::try_from(tensor.len()).unwrap();
        match layers.last_mut().filter(|(name, _)| *name == tensor.layer) {
            Some((_, layer)) => layer.range.end += length,
            None => layers.push((tensor.layer.clone(), HeldLayer { first: length, range: start..start + length })),
        }
        start += length;
    }
    layers.into_iter().map(|(_, layer)| layer).collect()
}

struct Made {
    loss: f64,
    gradients: Vec<f32>,
    d_vectors: Vec<f32>,
    finals: Vec<usize>,
}

const SAMPLES: usize = 9;

/// A batch through the network and back, in chunks of so many samples.
fn run(network: &Network, (weights, numbers, vectors): (&[f32], &[f32], &[f32]), chunk: usize) -> Made {
    let layers = held_layers(network);
    let form = StepForm {
        rows: SAMPLES,
        layers: &layers,
        is_streamed: false,
        recomputes: false,
        rounds: false,
        kernel: &PlainKernel,
    };
    let mut step = Step::new(network, form).unwrap().unwrap();
    let outputs: usize = network.inputs.outputs.iter().sum();
    let loss = LinearLoss((0..outputs).map(|place| 1.0 - 0.5 * place as f32).collect());
    let (mut logits, mut d_vectors) = (vec![0.0; SAMPLES * outputs], vec![f32::NAN; vectors.len()]);
    let (mut gradients, mut finals) = (vec![f32::NAN; weights.len()], Vec::new());
    let share = BatchShare {
        samples: SAMPLES,
        numeric: numbers,
        embeddings: vectors,
        labels: &[0.0; SAMPLES],
        weights: &[],
        logits: &mut logits,
        gradients: &mut d_vectors,
    };
    let purpose = TraversalPurpose::Training;
    let traversal = Traversal { purpose, chunk, loss: &loss, factor: 1.0, kernel: &PlainKernel };
    let mut on_final = |from: usize, _: &[f32]| finals.push(from);
    let mut held = FlatLayers { layers: &layers, weights, gradients: &mut gradients, on_final: &mut on_final };
    let loss = step.run(share, &traversal, &mut UnitDropout::new(0.0, 0, 0), &mut held).unwrap();
    Made { loss, gradients, d_vectors, finals }
}

/// Weights, numbers and vectors.
fn random_values(network: &Network) -> [Vec<f32>; 3] {
    let mut random = Pcg64Mcg::seed_from_u64(7);
    let width: usize = network.inputs.dims.iter().sum();
    let weights = usize::try_from(network.layout.parameter_count()).unwrap();
    [weights, SAMPLES * network.inputs.numbers, SAMPLES * width]
        .map(|count| (0..count).map(|_| random.random_range(-0.8..0.8)).collect())
}

/// The slope at one value by differences of the loss.
fn difference(values: &mut [f32], place: usize, loss: impl Fn(&[f32]) -> f64) -> f64 {
    let (value, by) = (values[place], 1e-3);
    values[place] = value + by;
    let higher = loss(values);
    values[place] = value - by;
    let lower = loss(values);
    values[place] = value;
    (higher - lower) / (f64::from(value + by) - f64::from(value - by))
}

/// How many slopes are not the differences of the loss. A bend of a ReLU lies between the two points of a few.
fn count_bends(values: &mut [f32], slopes: &[f32], loss: impl Fn(&[f32]) -> f64) -> usize {
    let mut is_bend = |place: usize| {
        let expected = difference(values, place, &loss);
        (f64::from(slopes[place]) - expected).abs() > 2e-3 * expected.abs().max(1.0)
    };
    (0..slopes.len()).filter(|place| is_bend(*place)).count()
}

#[test]
fn gradients_are_the_differences_of_the_loss() {
    for (name, network) in all_networks() {
        let [mut weights, numbers, mut vectors] = random_values(&network);
        let made = run(&network, (&weights, &numbers, &vectors), SAMPLES);
        let mut off = count_bends(&mut weights, &made.gradients, |weights| {
            run(&network, (weights, &numbers, &vectors), SAMPLES).loss
        });
        off += count_bends(&mut vectors, &made.d_vectors, |vectors| {
            run(&network, (&weights, &numbers, vectors), SAMPLES).loss
        });
        let all = weights.len() + vectors.len();
        assert!(off * 20 <= all, "{name} with {} numbers: {off} of {all} slopes", network.inputs.numbers);
    }
}

#[test]
fn chunks_of_any_size_give_the_same_gradients() {
    for (name, network) in all_networks() {
        let [weights, numbers, vectors] = random_values(&network);
        let whole = run(&network, (&weights, &numbers, &vectors), SAMPLES);
        for chunk in [1, 2, 4] {
            let parts = run(&network, (&weights, &numbers, &vectors), chunk);
            let pairs =
                whole.gradients.iter().zip_eq(&parts.gradients).chain(whole.d_vectors.iter().zip_eq(&parts.d_vectors));
            for (a, b) in pairs {
                assert!((a - b).abs() <= 1e-6 * a.abs().max(4.0), "{name}, chunks of {chunk}: {a} and {b}");
            }
            assert!((whole.loss - parts.loss).abs() <= 1e-6 * whole.loss.abs().max(1.0), "{name}");
        }
    }
}

#[test]
fn layers_are_final_from_the_last_to_the_first() {
    for (name, network) in all_networks() {
        let [weights, numbers, vectors] = random_values(&network);
        let expected: Vec<usize> = held_layers(&network).iter().rev().map(|layer| layer.range.start).collect();
        assert_eq!(run(&network, (&weights, &numbers, &vectors), 4).finals, expected, "{name}");
    }
}
