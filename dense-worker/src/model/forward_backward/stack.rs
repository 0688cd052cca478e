//! One chunk of a batch through a stack of linear layers, forward and backward.

use tch::{Kind, Tensor};
use zagros_job::Precision;
use zagros_table::wide::wide;
use zagros_zip::ZipEq;

use super::matrix::{Matrix, values, values_mut};
use super::product::Products;
use super::{BatchShare, ChunkProgress};
use crate::model::ModelError;
use crate::model::device::has_units;
use crate::model::dropout::Dropout;
use crate::model::loss::MeanLoss;
use crate::model::mlp::Mlp;

/// A stack's layers, with memory for one chunk.
#[derive(Debug)]
pub(super) struct Stack {
    layers: Vec<Layer>,
    dropout: bool,
}

#[derive(Debug)]
struct Layer {
    products: Products,
    /// `[outputs]`, the variable itself without autograd.
    bias: Tensor,
    /// Views of the gradients, with the shapes of weight and bias.
    d_weight: Tensor,
    d_bias: Tensor,
    /// After ReLU and dropout, if the layer has them.
    output: Matrix,
    /// d loss / d output, then d loss / d product.
    d_output: Matrix,
    /// Dropout's factors; empty if nothing was dropped.
    mask: Vec<f32>,
    activate: bool,
}

/// The kind of the products' copies in this precision; none in f32.
fn half(precision: Precision) -> Option<Kind> {
    let kind = if has_units(Kind::BFloat16) { Kind::BFloat16 } else { Kind::Float };
    (precision == Precision::Bf16).then_some(kind)
}

impl Stack {
    /// For chunks of up to `rows` samples. The gradients of the variables go to `gradients`, in their order.
    pub(super) fn new(
        mlp: &Mlp,
        rows: usize,
        dropout: bool,
        gradients: &mut impl Iterator<Item = Tensor>,
    ) -> Result<Self, ModelError> {
        Self::of([mlp], rows, dropout, gradients)
    }

    /// As [`Self::new`], of MLPs that follow each other.
    pub(super) fn of<'a>(
        mlps: impl IntoIterator<Item = &'a Mlp>,
        rows: usize,
        dropout: bool,
        gradients: &mut impl Iterator<Item = Tensor>,
    ) -> Result<Self, ModelError> {
        let mut layers = Vec::new();
        let parts = |mlp: &'a Mlp| mlp.parts().map(move |(weight, bias, activate)| (mlp, weight, bias, activate));
        for (mlp, weight, bias, activate) in mlps.into_iter().flat_map(parts) {
            let width = usize::try_from(weight.size()[0]).unwrap_or(0);
            let (output, d_output) = (Matrix::dense(rows, width)?, Matrix::dense(rows, width)?);
            layers.push(Layer {
                products: Products::new(weight, rows, half(mlp.precision_of(activate)))?,
                bias: bias.f_detach()?,
                d_weight: next(gradients)?,
                d_bias: next(gradients)?,
                output,
                d_output,
                mask: Vec::new(),
                activate,
            });
        }
        Ok(Self { layers, dropout })
    }

    /// Reads the changed weights. Call it before each batch.
    pub(super) fn refresh(&mut self) -> Result<(), ModelError> {
        self.layers.iter_mut().try_for_each(|layer| layer.products.refresh())
    }

    /// Forward from `[rows, inputs]`. [`Self::output`] then holds the result.
    pub(super) fn forward(
        &mut self,
        input: &Tensor,
        rows: usize,
        dropout: Option<&mut Dropout>,
    ) -> Result<(), ModelError> {
        let mut dropout = dropout.filter(|_| self.dropout);
        let mut input = input.shallow_clone();
        for layer in &mut self.layers {
            let mut output = layer.output.rows(rows)?;
            layer.products.forward(&input, &mut output)?;
            add_bias(layer.output.values_mut(rows), values(&layer.bias), layer.activate);
            layer.mask.clear();
            if let Some(dropout) = dropout.as_deref_mut().filter(|_| layer.activate) {
                dropout.draw(rows * layer.output.columns(), &mut layer.mask);
                apply_mask(layer.output.values_mut(rows), &layer.mask);
            }
            input = output;
        }
        Ok(())
    }

    /// From the network's last input to the loss, and back to `d_input`, which has a column for each of the last inputs.
    /// Writes the outputs of `share`. Returns the sum of its losses.
    pub(super) fn through_loss(
        &mut self,
        (input, d_input): (&Matrix, Option<&Matrix>),
        share: &mut BatchShare<'_>,
        progress: &mut ChunkProgress<'_>,
        dropout: &mut Dropout,
    ) -> Result<f64, ModelError> {
        self.through_loss_beside(&[], (input, d_input), share, progress, dropout)
    }

    /// As [`Self::through_loss`], for a network that adds `beside` to the logits: `[samples]`, or nothing. [`Self::d_logits`] holds
    /// its slopes then.
    pub(super) fn through_loss_beside(
        &mut self,
        beside: &[f32],
        (input, d_input): (&Matrix, Option<&Matrix>),
        share: &mut BatchShare<'_>,
        progress: &mut ChunkProgress<'_>,
        dropout: &mut Dropout,
    ) -> Result<f64, ModelError> {
        let rows = share.samples;
        let input = input.rows(rows)?;
        self.forward(&input, rows, Some(dropout))?;
        share.logits.copy_from_slice(self.output(rows));
        if !beside.is_empty() {
            share.logits.iter_mut().zip_eq(beside).for_each(|(logit, term)| *logit += term);
        }
        let MeanLoss { losses, factor } = progress.mean;
        let loss = losses.sum(share.logits, (share.labels, share.weights), factor, self.d_output(rows));
        let d_input = d_input.map(|d_input| d_input.rows(rows)).transpose()?;
        self.backward(&input, rows, progress, d_input.as_ref())?;
        Ok(loss)
    }

    /// `[rows, last width]`.
    pub(super) fn output(&self, rows: usize) -> &[f32] {
        self.layers.last().map_or(&[], |layer| layer.output.values(rows))
    }

    /// The buffer of d loss / d output for [`Self::backward`].
    fn d_output(&mut self, rows: usize) -> &mut [f32] {
        self.layers.last_mut().map_or(&mut [], |layer| layer.d_output.values_mut(rows))
    }

    /// d loss / d logits after [`Self::through_loss_beside`].
    pub(super) fn d_logits(&self, rows: usize) -> &[f32] {
        self.layers.last().map_or(&[], |layer| layer.d_output.values(rows))
    }

    /// [`Self::output`] and the buffer of its slopes.
    pub(super) fn ends(&mut self, rows: usize) -> (&[f32], &mut [f32]) {
        match self.layers.last_mut() {
            Some(Layer { output, d_output, .. }) => (output.values(rows), d_output.values_mut(rows)),
            None => (&[], &mut []),
        }
    }

    /// Values of an output.
    pub(super) fn width(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.output.columns())
    }

    /// [`Self::output`], for libtorch.
    pub(super) fn output_tensor(&self, rows: usize) -> Result<Tensor, ModelError> {
        self.last()?.output.rows(rows)
    }

    /// d loss / d output, for libtorch.
    pub(super) fn d_output_tensor(&self, rows: usize) -> Result<Tensor, ModelError> {
        self.last()?.d_output.rows(rows)
    }

    fn last(&self) -> Result<&Layer, ModelError> {
        self.layers.last().ok_or(ModelError::Shape { what: "a stack has no layer" })
    }

    /// As [`Self::backward`], for an input that others read as well: adds to d loss / d input.
    pub(super) fn backward_adding(
        &mut self,
        input: &Tensor,
        rows: usize,
        progress: &mut ChunkProgress<'_>,
        d_input: &Tensor,
    ) -> Result<(), ModelError> {
        self.backward(input, rows, progress, None)?;
        let Some(first) = self.layers.first_mut() else { return Ok(()) };
        let slopes = first.d_output.rows(rows)?;
        first.products.add_input_gradient(&slopes, &mut d_input.shallow_clone())
    }

    /// Call it after [`Self::forward`] on the same input. Adds the gradients of weights and biases to those of earlier
    /// chunks of the batch. Writes d loss / d input if it is wanted.
    pub(super) fn backward(
        &mut self,
        input: &Tensor,
        rows: usize,
        progress: &mut ChunkProgress<'_>,
        d_input: Option<&Tensor>,
    ) -> Result<(), ModelError> {
        for index in (0..self.layers.len()).rev() {
            let (before, rest) = self.layers.split_at_mut(index);
            let layer = &mut rest[0];
            layer.undo_activation(rows, progress.earlier);
            let slopes = layer.d_output.rows(rows)?;
            let input = before.last().map_or(Ok(input.shallow_clone()), |before| before.output.rows(rows))?;
            let mut wanted = match before.last() {
                Some(before) => Some(before.d_output.rows(rows)?),
                None => d_input.map(Tensor::shallow_clone),
            };
            layer.products.weight_gradient(&slopes, &input, &mut layer.d_weight, progress)?;
            progress.finished(layer.d_weight.numel() + layer.d_bias.numel());
            if let Some(wanted) = &mut wanted {
                layer.products.input_gradient(&slopes, wanted)?;
            }
        }
        Ok(())
    }
}

/// The gradient of the next variable.
pub(super) fn next(gradients: &mut impl Iterator<Item = Tensor>) -> Result<Tensor, ModelError> {
    gradients.next().ok_or(ModelError::Shape { what: "a layer has no gradient" })
}

impl Layer {
    /// From d loss / d output to d loss / d product. The sum of its columns is the bias's gradient.
    fn undo_activation(&mut self, rows: usize, earlier: bool) {
        let width = self.output.columns();
        let slopes = self.d_output.values_mut(rows);
        apply_mask(slopes, &self.mask);
        let d_bias = values_mut(&mut self.d_bias);
        if !earlier {
            d_bias.fill(0.0);
        }
        let output = self.activate.then(|| self.output.values(rows));
        wide(
            #[inline(always)]
            || match output {
                Some(output) => {
                    for (slopes, output) in slopes.chunks_exact_mut(width).zip_eq(output.chunks_exact(width)) {
                        for ((slope, output), sum) in slopes.iter_mut().zip_eq(output).zip_eq(d_bias.iter_mut()) {
                            *slope = if *output <= 0.0 { 0.0 } else { *slope };
                            *sum += *slope;
                        }
                    }
                }
                None => {
                    for slopes in slopes.chunks_exact(width) {
                        slopes.iter().zip_eq(d_bias.iter_mut()).for_each(|(slope, sum)| *sum += slope);
                    }
                }
            },
        );
    }
}

/// Adds the bias to every row; with `activate`, ReLU follows. A NaN stays one.
fn add_bias(values: &mut [f32], bias: &[f32], activate: bool) {
    wide(
        #[inline(always)]
        || {
            for row in values.chunks_exact_mut(bias.len()) {
                for (value, bias) in row.iter_mut().zip_eq(bias) {
                    let sum = *value + bias;
                    *value = if activate && sum <= 0.0 { 0.0 } else { sum };
                }
            }
        },
    );
}

/// Multiplies by what dropout drew. An empty mask drops nothing.
fn apply_mask(values: &mut [f32], mask: &[f32]) {
    if !mask.is_empty() {
        values.iter_mut().zip_eq(mask).for_each(|(value, factor)| *value *= factor);
    }
}
