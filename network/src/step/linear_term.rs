//! A linear layer with one output: a term of a logit.

use zagros_zip::ZipEq;

use super::{BlockStep, BlockValues, ChunkContext, ReadValue};
use crate::StepError;

#[derive(Debug)]
pub(super) struct LinearTermStep {
    /// Numeric values, whose slopes are of no use.
    pub(super) input: ReadValue,
    pub(super) layer: usize,
}

impl BlockStep for LinearTermStep {
    fn forward(
        &mut self,
        before: &[BlockValues],
        own: &mut BlockValues,
        context: &mut ChunkContext<'_>,
    ) -> Result<(), StepError> {
        let input = self.input.view(before, context.rows);
        context.layers.begin_forward(self.layer)?;
        let (weight, bias) = context.layers.weights(self.layer).split_at(input.columns);
        let samples = own.output.values_mut(context.rows).iter_mut().zip_eq(input.values.chunks_exact(input.columns));
        for (term, numbers) in samples {
            *term = bias[0] + weight.iter().zip_eq(numbers).map(|(weight, number)| weight * number).sum::<f32>();
        }
        context.layers.end_forward(self.layer)
    }

    fn backward(
        &mut self,
        before: &mut [BlockValues],
        own: &mut BlockValues,
        context: &mut ChunkContext<'_>,
    ) -> Result<(), StepError> {
        let input = self.input.view(before, context.rows);
        context.layers.begin_backward(self.layer)?;
        let (_, gradients) = context.layers.gradients(self.layer);
        if !context.earlier {
            gradients.fill(0.0);
        }
        let (d_weight, d_bias) = gradients.split_at_mut(input.columns);
        let slopes = own.slopes.values(context.rows);
        for (slope, numbers) in slopes.iter().zip_eq(input.values.chunks_exact(input.columns)) {
            d_bias[0] += slope;
            d_weight.iter_mut().zip_eq(numbers).for_each(|(sum, number)| *sum += slope * number);
        }
        context.note_final(self.layer);
        context.layers.end_backward(self.layer)
    }
}
