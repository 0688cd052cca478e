//! One chunk of a batch through a stack of linear layers, forward and backward.

use tch::{Kind, Tensor};
use zagros_job::Precision;
use zagros_table::run_wide;
use zagros_zip::ZipEq;

use super::blocks::SampleBlocks;
use super::layer::{LayerSlice, LayerUse, SlicedLayer, StepParts};
use super::product::LayerProducts;
use super::{BatchShare, ChunkProgress};
use crate::model::ModelError;
use crate::model::device::has_units;
use crate::model::layers::{Mlp, UnitDropout, apply_mask};
use crate::model::weights::{Matrix, values, values_mut};

/// Has memory for one chunk.
#[derive(Debug)]
pub(super) struct LayerStack {
    layers: Vec<StackLayer>,
    dropout: bool,
    /// Every layer of this number keeps its output until its backward, and so does the last one. The layers between have memory in
    /// common with those of other segments, and their outputs are computed again (Chen et al. 2016, "Training Deep Nets with Sublinear
    /// Memory Cost"). 1 if all are kept.
    segment: usize,
}

#[derive(Debug)]
struct StackLayer {
    /// Its number among the layers with dropout.
    number: usize,
    /// Its weight. All outputs are one slice, unless that is too large for the memory.
    slices: Vec<WeightSlice>,
    /// `[outputs]`, the variable itself without autograd. It is there with the last slice.
    bias: Tensor,
    /// View of its gradient.
    d_bias: Tensor,
    /// After ReLU and dropout, if the layer has them.
    output: Matrix,
    /// d loss / d output, then d loss / d product.
    d_output: Matrix,
    /// Dropout's factors; empty if nothing was dropped.
    mask: Vec<f32>,
    activate: bool,
}

#[derive(Debug)]
struct WeightSlice {
    present: LayerUse,
    products: LayerProducts,
    /// View of the gradient, with the shape of the weight.
    d_weight: Tensor,
    /// Its first output among those of the layer, and their number.
    start: i64,
    outputs: i64,
}

/// The kind of the products' copies in this precision; none in f32.
fn half(precision: Precision) -> Option<Kind> {
    let kind = if has_units(Kind::BFloat16) { Kind::BFloat16 } else { Kind::Float };
    (precision == Precision::Bf16).then_some(kind)
}

impl LayerStack {
    /// Takes the next layers of `parts`.
    pub(super) fn new(mlp: &Mlp, dropout: bool, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        Self::from_mlps([mlp], dropout, parts)
    }

    /// As [`Self::new`], of MLPs that follow each other.
    pub(super) fn from_mlps<'a>(
        mlps: impl IntoIterator<Item = &'a Mlp>,
        dropout: bool,
        parts: &mut StepParts<'_>,
    ) -> Result<Self, ModelError> {
        let mut layers = Vec::new();
        let of_mlp = |mlp: &'a Mlp| mlp.parts().map(move |(weight, bias, activate)| (mlp, weight, bias, activate));
        let all: Vec<_> = mlps.into_iter().flat_map(of_mlp).collect();
        let (last, segment) = (all.len().saturating_sub(1), parts.segment_length(all.len()));
        let widest = all.iter().map(|(_, weight, ..)| weight.size()[0]).max().unwrap_or(1);
        let inner = || Matrix::dense(parts.rows, usize::try_from(widest).unwrap_or(1));
        let inner: Vec<Matrix> = (1..segment).map(|_| inner()).collect::<Result<_, _>>()?;
        for (index, (mlp, weight, bias, activate)) in all.into_iter().enumerate() {
            let (rows, width) = (parts.rows, usize::try_from(weight.size()[0]).unwrap_or(0));
            let number = if activate && dropout { parts.next_dropout() } else { 0 };
            let SlicedLayer { slices, bias } = parts.sliced_layer(weight, bias)?;
            let slice = |slice| WeightSlice::new(slice, half(mlp.precision_of(activate)), parts);
            let slices = slices.into_iter().map(slice).collect::<Result<_, _>>()?;
            let output = match inner.get(index % segment) {
                Some(memory) if index < last => Matrix::within_memory(memory, rows, width)?,
                _ => Matrix::dense(rows, width)?,
            };
            let d_output =
                if index == last { Matrix::dense(rows, width)? } else { parts.inner_slopes(index, width)? };
            layers.push(StackLayer {
                number,
                slices,
                bias: bias.value,
                d_bias: bias.gradient,
                output,
                d_output,
                mask: Vec::new(),
                activate,
            });
        }
        Ok(Self { layers, dropout, segment })
    }

    /// Reads the changed weights. Call it before each batch.
    pub(super) fn refresh(&mut self) -> Result<(), ModelError> {
        let mut slices = self.layers.iter_mut().flat_map(|layer| &mut layer.slices);
        slices.try_for_each(|slice| slice.products.refresh())
    }

    /// The input is `[rows, inputs]`.
    pub(super) fn forward(
        &mut self,
        input: &Tensor,
        rows: usize,
        by: SampleBlocks,
        dropout: Option<&mut UnitDropout>,
    ) -> Result<(), ModelError> {
        let mut dropout = dropout.filter(|_| self.dropout);
        let mut input = input.shallow_clone();
        for layer in &mut self.layers {
            let output = layer.forward(&input, rows, by)?;
            layer.mask.clear();
            if let Some(dropout) = dropout.as_deref_mut().filter(|_| layer.activate) {
                dropout.draw_factors(layer.number, rows * layer.output.columns, &mut layer.mask);
                apply_mask(layer.output.values_mut(rows), &layer.mask);
            }
            input = output;
        }
        Ok(())
    }

    /// Computes the outputs of the layers before `end` in its segment again, as the forward did.
    fn recompute(&mut self, input: &Tensor, end: usize, rows: usize, by: SampleBlocks) -> Result<(), ModelError> {
        let (before, others) = self.layers.split_at_mut(end - end % self.segment);
        let mut input = before.last().map_or(Ok(input.shallow_clone()), |before| before.output.rows(rows))?;
        for layer in &mut others[..end % self.segment] {
            input = layer.forward(&input, rows, by)?;
            apply_mask(layer.output.values_mut(rows), &layer.mask);
        }
        Ok(())
    }

    /// From the network's last input to the loss, and back to `d_input`, which has a column for each of the last inputs.
    /// Writes the outputs of `share`. Returns the sum of its losses. A network may add `beside` to the logits: `[samples]`, or nothing.
    /// [`Self::d_logits`] holds its slopes then.
    pub(super) fn through_loss(
        &mut self,
        beside: &[f32],
        (input, d_input): (&Matrix, Option<&Matrix>),
        share: &mut BatchShare<'_>,
        progress: &mut ChunkProgress<'_>,
    ) -> Result<f64, ModelError> {
        let rows = share.samples;
        let input = input.rows(rows)?;
        self.forward(&input, rows, progress.blocks, Some(&mut *progress.dropout))?;
        share.logits.copy_from_slice(self.output(rows));
        if !beside.is_empty() {
            share.logits.iter_mut().zip_eq(beside).for_each(|(logit, term)| *logit += term);
        }
        let loss = progress.loss(share.logits, (share.labels, share.weights), self.d_output(rows));
        if progress.ends_at_outputs() {
            return Ok(0.0);
        }
        let d_input = d_input.map(|d_input| d_input.rows(rows)).transpose()?;
        self.backward(&input, rows, progress, d_input.as_ref().map_or(InputSlopes::Unread, InputSlopes::Written))?;
        Ok(loss)
    }

    /// `[rows, last width]`.
    pub(super) fn output(&self, rows: usize) -> &[f32] {
        self.layers.last().map_or(&[], |layer| layer.output.values(rows))
    }

    fn d_output(&mut self, rows: usize) -> &mut [f32] {
        self.layers.last_mut().map_or(&mut [], |layer| layer.d_output.values_mut(rows))
    }

    /// d loss / d logits after [`Self::through_loss`].
    pub(super) fn d_logits(&self, rows: usize) -> &[f32] {
        self.layers.last().map_or(&[], |layer| layer.d_output.values(rows))
    }

    pub(super) fn output_and_slopes(&mut self, rows: usize) -> (&[f32], &mut [f32]) {
        match self.layers.last_mut() {
            Some(StackLayer { output, d_output, .. }) => (output.values(rows), d_output.values_mut(rows)),
            None => (&[], &mut []),
        }
    }

    pub(super) fn output_width(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.output.columns)
    }

    pub(super) fn output_tensor(&self, rows: usize) -> Result<Tensor, ModelError> {
        self.last()?.output.rows(rows)
    }

    pub(super) fn d_output_tensor(&self, rows: usize) -> Result<Tensor, ModelError> {
        self.last()?.d_output.rows(rows)
    }

    fn last(&self) -> Result<&StackLayer, ModelError> {
        self.layers.last().ok_or(ModelError::Shape { what: "a stack has no layer" })
    }

    /// Call it after [`Self::forward`] on the same input. Adds the gradients of weights and biases to those of earlier
    /// chunks of the batch, and does with d loss / d input what is wanted.
    pub(super) fn backward(
        &mut self,
        input: &Tensor,
        rows: usize,
        progress: &mut ChunkProgress<'_>,
        d_input: InputSlopes<'_>,
    ) -> Result<(), ModelError> {
        for index in (0..self.layers.len()).rev() {
            // The inner outputs of the last segment are those of the forward.
            if index % self.segment == self.segment - 1 && index + 1 < self.layers.len() {
                self.recompute(input, index, rows, progress.blocks)?;
            }
            let (before, rest) = self.layers.split_at_mut(index);
            let input = before.last().map_or(Ok(input.shallow_clone()), |before| before.output.rows(rows))?;
            match before.last() {
                Some(before) => {
                    let slopes = before.d_output.rows(rows)?;
                    rest[0].backward(&input, rows, progress, InputSlopes::Written(&slopes))?;
                }
                None => rest[0].backward(&input, rows, progress, d_input)?,
            }
        }
        Ok(())
    }
}

/// What a backward does with d loss / d input.
#[derive(Clone, Copy, Debug)]
pub(super) enum InputSlopes<'a> {
    /// The caller does not need it.
    Unread,
    /// It is written here. The matrix has a column for each of the last inputs.
    Written(&'a Tensor),
    /// It is added to this, as others read the input as well.
    Added(&'a Tensor),
}

impl WeightSlice {
    fn new(slice: LayerSlice, half: Option<Kind>, parts: &StepParts<'_>) -> Result<Self, ModelError> {
        let LayerSlice { present, weight, shape, start } = slice;
        let products = LayerProducts::new(weight.value, shape, half, parts)?;
        Ok(Self { present, products, d_weight: weight.gradient, start, outputs: shape[0] })
    }

    /// Its columns of `[rows, outputs of the layer]`.
    fn columns(&self, all: &Tensor) -> Result<Tensor, ModelError> {
        Ok(all.f_narrow(1, self.start, self.outputs)?)
    }
}

impl StackLayer {
    /// Writes its output, without dropout.
    fn forward(&mut self, input: &Tensor, rows: usize, by: SampleBlocks) -> Result<Tensor, ModelError> {
        let output = self.output.rows(rows)?;
        let last = self.slices.len() - 1;
        for (index, slice) in self.slices.iter_mut().enumerate() {
            slice.present.forward()?;
            slice.products.forward(input, &mut slice.columns(&output)?, by)?;
            if index == last {
                add_bias(self.output.values_mut(rows), values(&self.bias), self.activate);
            }
            slice.present.forward_done()?;
        }
        Ok(output)
    }

    /// Call it after [`Self::forward`] on the same input, with d loss / d output in its place.
    fn backward(
        &mut self,
        input: &Tensor,
        rows: usize,
        progress: &mut ChunkProgress<'_>,
        d_input: InputSlopes<'_>,
    ) -> Result<(), ModelError> {
        let last = self.slices.len() - 1;
        for index in (0..=last).rev() {
            self.slices[index].present.backward()?;
            if index == last {
                self.undo_activation(rows, progress.earlier);
            }
            let slice = &mut self.slices[index];
            let slopes = slice.columns(&self.d_output.rows(rows)?)?;
            slice.products.weight_gradient(&slopes, input, &mut slice.d_weight, progress)?;
            progress.finished(slice.d_weight.numel() + if index == last { self.d_bias.numel() } else { 0 });
            if let InputSlopes::Written(to) | InputSlopes::Added(to) = d_input {
                let adds = index < last || matches!(d_input, InputSlopes::Added(_));
                slice.products.input_gradient(&slopes, to, progress.blocks, adds)?;
            }
            slice.present.backward_done()?;
        }
        Ok(())
    }

    /// From d loss / d output to d loss / d product. The sum of its columns is the bias's gradient.
    fn undo_activation(&mut self, rows: usize, earlier: bool) {
        let width = self.output.columns;
        let slopes = self.d_output.values_mut(rows);
        apply_mask(slopes, &self.mask);
        let d_bias = values_mut(&mut self.d_bias);
        if !earlier {
            d_bias.fill(0.0);
        }
        let output = self.activate.then(|| self.output.values(rows));
        run_wide(
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
    run_wide(
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
