//! The outputs of experts, mixed by a gate (Ma et al. 2018, equations 5 and 6), forward and backward.
//!
//! ```text
//! forward    s = softmax(G·x)                    y = Σ_e s_e · y_e
//! backward   ds_e = ⟨dy, y_e⟩    dy_e += s_e · dy    d(G·x)_e = s_e · (ds_e − Σ_f s_f · ds_f)
//! ```

use zagros_table::run_wide;
use zagros_zip::ZipEq;

use super::product::LayerProducts;
use super::{BlockStep, BlockValues, ReadValue, StepBuilder, StepChunk};
use crate::StepResult;
use crate::matrix::Matrix;

#[derive(Debug)]
pub(super) struct MixtureStep {
    /// x.
    input: ReadValue,
    /// y_e.
    experts: Vec<ReadValue>,
    layer: usize,
    /// G, `[experts, inputs]`.
    gate: LayerProducts,
    /// s, `[rows, experts]`.
    shares: Matrix,
    /// ds, then d(G·x).
    d_shares: Matrix,
    width: usize,
}

impl MixtureStep {
    /// Takes the next layer. Experts give `width` values.
    pub(super) fn new(
        input: ReadValue,
        experts: Vec<ReadValue>,
        width: usize,
        builder: &mut StepBuilder<'_>,
    ) -> StepResult<Self> {
        let layer = builder.next_layer();
        let gate = LayerProducts::new([experts.len(), input.value.columns()], false, builder)?;
        let matrix = || Matrix::dense(builder.form.rows, experts.len());
        Ok(Self { shares: matrix(), d_shares: matrix(), input, experts, layer, gate, width })
    }
}

impl BlockStep for MixtureStep {
    fn forward(&mut self, before: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, count, width) = (chunk.rows, self.experts.len(), self.width);
        chunk.layers.begin_forward(self.layer)?;
        let (weight, input) = (chunk.layers.weights(self.layer), self.input.view(before, rows));
        self.gate.forward(weight, input, self.shares.view_mut(rows), chunk.products())?;
        chunk.layers.end_forward(self.layer)?;
        self.shares.values_mut(rows).chunks_exact_mut(count).for_each(softmax);
        let (output, shares) = (own.output.values_mut(rows), self.shares.values(rows));
        output.fill(0.0);
        for (expert, read) in self.experts.iter().enumerate() {
            let given = read.view(before, rows);
            run_wide(
                #[inline(always)]
                || {
                    let samples = output.chunks_exact_mut(width).zip_eq(given.values.chunks(given.row_stride));
                    for ((sum, given), shares) in samples.zip_eq(shares.chunks_exact(count)) {
                        let share = shares[expert];
                        sum.iter_mut().zip_eq(&given[..width]).for_each(|(sum, value)| *sum += share * value);
                    }
                },
            );
        }
        Ok(())
    }

    fn backward(&mut self, before: &mut [BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, count, width) = (chunk.rows, self.experts.len(), self.width);
        let (shares, slopes) = (self.shares.values(rows), own.slopes.values(rows));
        let d_shares = self.d_shares.values_mut(rows);
        for (expert, read) in self.experts.iter().enumerate() {
            read.with_slopes(before, rows, |given, d_given| {
                let Some((d_given, adds)) = d_given else { return };
                let stride = d_given.stride;
                let given = (given.values, given.row_stride);
                run_wide(
                    #[inline(always)]
                    || {
                        let of_expert = given.0.chunks(given.1).zip_eq(d_given.values.chunks_mut(stride));
                        let of_gate = shares.chunks_exact(count).zip_eq(d_shares.chunks_exact_mut(count));
                        let samples = of_expert.zip_eq(of_gate).zip_eq(slopes.chunks_exact(width));
                        for (((given, d_given), (shares, d_shares)), slopes) in samples {
                            let (given, d_given, share) = (&given[..width], &mut d_given[..width], shares[expert]);
                            d_shares[expert] = given.iter().zip_eq(slopes).map(|(value, slope)| value * slope).sum();
                            if !adds {
                                d_given.fill(0.0);
                            }
                            d_given.iter_mut().zip_eq(slopes).for_each(|(sum, slope)| *sum += share * slope);
                        }
                    },
                );
            });
        }
        for (shares, d_shares) in shares.chunks_exact(count).zip_eq(d_shares.chunks_exact_mut(count)) {
            let mean: f32 = shares.iter().zip_eq(&*d_shares).map(|(share, slope)| share * slope).sum();
            d_shares.iter_mut().zip_eq(shares).for_each(|(slope, share)| *slope = share * (*slope - mean));
        }
        let (slopes, products, layer, gate) = (self.d_shares.view(rows), chunk.products(), self.layer, &mut self.gate);
        chunk.layers.begin_backward(layer)?;
        gate.weight_gradient(slopes, self.input.view(before, rows), chunk.layers.gradients(layer).1, products)?;
        chunk.note_final(layer);
        if let Some((d_input, adds)) = self.input.slopes(before, rows) {
            gate.input_gradient(chunk.layers.weights(layer), slopes, d_input, adds, products)?;
        }
        chunk.layers.end_backward(layer)
    }
}

fn softmax(logits: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|logit| *logit = (*logit - largest).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|share| *share /= sum);
}
