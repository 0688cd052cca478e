//! The outputs of experts, mixed by a gate (Ma et al. 2018, equations 5 and 6), forward and backward.
//!
//! ```text
//! forward    s = softmax(G·x)                    y = Σ_e s_e · y_e
//! backward   ds_e = ⟨dy, y_e⟩    dy_e += s_e · dy    d(G·x)_e = s_e · (ds_e − Σ_f s_f · ds_f)
//! ```

use tch::Tensor;
use zagros_table::run_wide;
use zagros_zip::ZipEq;

use super::ChunkProgress;
use super::blocks::SampleBlocks;
use super::layer::{LayerUse, StepParts};
use super::product::LayerProducts;
use super::stack::LayerStack;
use crate::model::ModelError;
use crate::model::weights::Matrix;

/// Has memory for one chunk.
#[derive(Debug)]
pub(super) struct ExpertMixture {
    present: LayerUse,
    gate: LayerProducts,
    d_gate: Tensor,
    /// s, `[chunk, experts]`.
    shares: Matrix,
    /// ds, then d(G·x).
    d_shares: Matrix,
    /// y, `[chunk, width]`.
    output: Matrix,
    d_output: Matrix,
}

impl ExpertMixture {
    /// `gate` is G, `[experts, inputs]`. Experts give `width` values. It is the next layer of `parts`.
    pub(super) fn new(gate: &Tensor, width: usize, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        let shape = [gate.size()[0], gate.size()[1]];
        let (present, [gate]) = parts.next_layer([gate])?;
        let products = LayerProducts::new(gate.value, shape, None, parts)?;
        let (experts, matrix) = (products.output_count(), |columns| Matrix::dense(parts.rows, columns));
        Ok(Self {
            present,
            gate: products,
            d_gate: gate.gradient,
            shares: matrix(experts)?,
            d_shares: matrix(experts)?,
            output: matrix(width)?,
            d_output: matrix(width)?,
        })
    }

    pub(super) fn output(&self) -> &Matrix {
        &self.output
    }

    /// The buffer of d loss / d y, to which its readers add.
    pub(super) fn d_output(&self) -> &Matrix {
        &self.d_output
    }

    /// The experts have been through their forward.
    pub(super) fn forward<'a>(
        &mut self,
        x: &Tensor,
        experts: impl Iterator<Item = &'a LayerStack>,
        rows: usize,
        by: SampleBlocks,
    ) -> Result<(), ModelError> {
        let (count, width) = (self.shares.columns, self.output.columns);
        self.present.forward()?;
        self.gate.forward(x, &mut self.shares.rows(rows)?, by)?;
        self.present.forward_done()?;
        self.shares.values_mut(rows).chunks_exact_mut(count).for_each(softmax);
        // The readers of the output add their slopes later.
        self.d_output.values_mut(rows).fill(0.0);
        let output = self.output.values_mut(rows);
        output.fill(0.0);
        let shares = self.shares.values(rows);
        for (expert, stack) in experts.enumerate() {
            let given = stack.output(rows);
            run_wide(
                #[inline(always)]
                || {
                    let samples = output.chunks_exact_mut(width).zip_eq(given.chunks_exact(width));
                    for ((sum, given), shares) in samples.zip_eq(shares.chunks_exact(count)) {
                        let share = shares[expert];
                        sum.iter_mut().zip_eq(given).for_each(|(sum, value)| *sum += share * value);
                    }
                },
            );
        }
        Ok(())
    }

    /// Backward from [`Self::d_output`]: adds to the slopes of the experts' outputs and to `d_x`, and the gate's gradient to that of
    /// earlier chunks.
    pub(super) fn backward<'a>(
        &mut self,
        (x, d_x): (&Tensor, &Tensor),
        experts: impl Iterator<Item = &'a mut LayerStack>,
        rows: usize,
        progress: &mut ChunkProgress<'_>,
    ) -> Result<(), ModelError> {
        let (count, width) = (self.shares.columns, self.output.columns);
        let (shares, d_output) = (self.shares.values(rows), self.d_output.values(rows));
        let d_shares = self.d_shares.values_mut(rows);
        for (expert, stack) in experts.enumerate() {
            let (given, d_given) = stack.output_and_slopes(rows);
            run_wide(
                #[inline(always)]
                || {
                    let of_expert = given.chunks_exact(width).zip_eq(d_given.chunks_exact_mut(width));
                    let of_gate = shares.chunks_exact(count).zip_eq(d_shares.chunks_exact_mut(count));
                    let samples = of_expert.zip_eq(of_gate).zip_eq(d_output.chunks_exact(width));
                    for (((given, d_given), (shares, d_shares)), slopes) in samples {
                        let share = shares[expert];
                        d_shares[expert] = given.iter().zip_eq(slopes).map(|(value, slope)| value * slope).sum();
                        d_given.iter_mut().zip_eq(slopes).for_each(|(sum, slope)| *sum += share * slope);
                    }
                },
            );
        }
        for (shares, d_shares) in shares.chunks_exact(count).zip_eq(d_shares.chunks_exact_mut(count)) {
            let mean: f32 = shares.iter().zip_eq(&*d_shares).map(|(share, slope)| share * slope).sum();
            d_shares.iter_mut().zip_eq(shares).for_each(|(slope, share)| *slope = share * (*slope - mean));
        }
        let slopes = self.d_shares.rows(rows)?;
        self.present.backward()?;
        self.gate.weight_gradient(&slopes, x, &mut self.d_gate, progress)?;
        progress.finished(self.d_gate.numel());
        self.gate.input_gradient(&slopes, d_x, progress.blocks, true)?;
        self.present.backward_done()
    }
}

fn softmax(logits: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|logit| *logit = (*logit - largest).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|share| *share /= sum);
}
