//! A stack of linear layers, forward and backward.

use zagros_table::run_wide;
use zagros_zip::ZipEq;

use super::layers::LayerSlice;
use super::product::LayerProducts;
use super::{BlockStep, BlockValues, LayerAccess, ReadValue, StepBuilder, StepChunk};
use crate::matrix::{AlignedValues, View, ViewMut};
use crate::wiring::MlpBlock;
use crate::{StepResult, apply_mask};

/// The output and the slopes of the last layer are those of the block.
#[derive(Debug)]
pub(super) struct MlpStep {
    input: ReadValue,
    layers: Vec<StackLayer>,
    /// The outputs of the inner layers, after ReLU and dropout.
    inner: Vec<AlignedValues>,
    /// Every layer of this number keeps its output until its backward, and so does the last one. The layers between have memory in
    /// common with those of other segments, and their outputs are computed again (Chen et al. 2016, "Training Deep Nets with Sublinear
    /// Memory Cost"). 1 if all are kept.
    segment: usize,
}

#[derive(Debug)]
struct StackLayer {
    /// Its number among the layers with dropout.
    dropout: Option<usize>,
    /// Its weight. All outputs are one slice, unless that is too large for the memory.
    slices: Vec<WeightSlice>,
    width: usize,
    /// Dropout's factors; empty if nothing was dropped.
    mask: Vec<f32>,
    /// Whether ReLU follows.
    activate: bool,
    /// Which of the inner outputs is its own.
    memory: usize,
}

#[derive(Debug)]
struct WeightSlice {
    place: LayerSlice,
    products: LayerProducts,
}

impl MlpStep {
    /// Takes the next layers. The first one has `inputs`.
    pub(super) fn new(
        mlp: &MlpBlock,
        (input, inputs): (ReadValue, usize),
        builder: &mut StepBuilder<'_>,
    ) -> StepResult<Self> {
        let (rows, last) = (builder.form.rows, mlp.widths.len() - 1);
        let segment = builder.segment_length(mlp.widths.len());
        let widest = mlp.widths.iter().copied().max().unwrap_or(1);
        let mut inner: Vec<AlignedValues> = (1..segment).map(|_| AlignedValues::zeros(rows * widest)).collect();
        let (mut layers, mut inputs) = (Vec::with_capacity(mlp.widths.len()), inputs);
        for (index, width) in mlp.widths.iter().copied().enumerate() {
            let activate = index < mlp.hidden;
            let dropout = (activate && mlp.drops_units).then(|| builder.next_dropout());
            let rounds = activate && builder.form.rounds;
            let mut slices = Vec::new();
            for place in builder.next_slices(width, inputs) {
                let products = LayerProducts::new([place.outputs, inputs], rounds, builder)?;
                slices.push(WeightSlice { place, products });
            }
            let memory = if index % segment < segment - 1 { index % segment } else { inner.len() };
            if index < last && memory == inner.len() {
                inner.push(AlignedValues::zeros(rows * width));
            }
            layers.push(StackLayer { dropout, slices, width, mask: Vec::new(), activate, memory });
            inputs = width;
        }
        Ok(Self { input, layers, inner, segment })
    }

    /// Computes the outputs of the layers before `end` in its segment again, as the forward did.
    fn recompute(&mut self, input: View<'_>, end: usize, chunk: &mut StepChunk<'_>) -> StepResult {
        for index in end - end % self.segment..end {
            let Self { layers, inner, .. } = self;
            let (read, Some(written)) = layer_memory(layers, inner, index, chunk.rows) else { continue };
            let layer = &mut layers[index];
            layer.forward(read.unwrap_or(input), &mut *written, chunk)?;
            apply_mask(written, &layer.mask);
        }
        Ok(())
    }
}

/// What a layer reads and writes among the inner outputs: nothing at the ends of the stack.
fn layer_memory<'m>(
    layers: &[StackLayer],
    inner: &'m mut [AlignedValues],
    index: usize,
    rows: usize,
) -> (Option<View<'m>>, Option<&'m mut [f32]>) {
    let previous = index.checked_sub(1).map(|previous| &layers[previous]);
    let own = (index + 1 < layers.len()).then(|| &layers[index]);
    let view = |memory: &'m [f32], layer: &StackLayer| View::dense(&memory[..rows * layer.width], (rows, layer.width));
    match (previous, own) {
        (None, None) => (None, None),
        (Some(previous), None) => (Some(view(&inner[previous.memory], previous)), None),
        (None, Some(own)) => (None, Some(&mut inner[own.memory][..rows * own.width])),
        // Neighbours never have the same memory.
        (Some(previous), Some(own)) => match inner.get_disjoint_mut([previous.memory, own.memory]) {
            Ok([read, written]) => (Some(view(read, previous)), Some(&mut written[..rows * own.width])),
            Err(_) => (None, None),
        },
    }
}

impl BlockStep for MlpStep {
    fn refresh(&mut self, access: &dyn LayerAccess) -> StepResult {
        for slice in self.layers.iter_mut().flat_map(|layer| &mut layer.slices) {
            let weights = slice.products.weight_count();
            slice.products.refresh(&access.weights(slice.place.layer)[..weights])?;
        }
        Ok(())
    }

    fn forward(&mut self, before: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, input) = (chunk.rows, self.input.view(before, chunk.rows));
        let Self { layers, inner, .. } = self;
        for index in 0..layers.len() {
            let (read, written) = layer_memory(layers, inner, index, rows);
            let written = written.unwrap_or_else(|| own.output.values_mut(rows));
            let layer = &mut layers[index];
            layer.forward(read.unwrap_or(input), &mut *written, chunk)?;
            layer.mask.clear();
            if let Some(number) = layer.dropout {
                chunk.dropout.draw_factors(number, rows * layer.width, &mut layer.mask);
                apply_mask(written, &layer.mask);
            }
        }
        Ok(())
    }

    fn backward(&mut self, before: &mut [BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, last) = (chunk.rows, self.layers.len() - 1);
        let widest = self.layers.iter().map(|layer| layer.width).max().unwrap_or(0);
        // Slopes of inner layers, which are gone when the layer before has its own.
        let mut scratch = std::mem::take(chunk.scratch);
        scratch.iter_mut().for_each(|memory| memory.grow(rows * widest));
        for index in (0..=last).rev() {
            // The inner outputs of the last segment are those of the forward.
            if index % self.segment == self.segment - 1 && index < last {
                let input = self.input.view(before, rows);
                self.recompute(input, index, chunk)?;
            }
            let Self { layers, inner, .. } = self;
            let width = layers[index].width;
            let [even, odd] = &mut scratch;
            let (slopes, d_read) = if index % 2 == 0 { (even, odd) } else { (odd, even) };
            let (output, slopes) = match index == last {
                true => (own.output.values(rows), own.slopes.values_mut(rows)),
                false => (&inner[layers[index].memory][..rows * width], &mut slopes[..rows * width]),
            };
            if let Some(read) = index.checked_sub(1) {
                let (input, inputs) = (&inner[layers[read].memory], layers[read].width);
                let input = View::dense(&input[..rows * inputs], (rows, inputs));
                let d_input = Some((ViewMut::dense(&mut d_read[..rows * inputs], (rows, inputs)), false));
                layers[index].backward((input, output), slopes, d_input, chunk)?;
            } else {
                self.input.with_slopes(before, rows, |input, d_input| {
                    layers[index].backward((input, output), slopes, d_input, chunk)
                })?;
            }
        }
        *chunk.scratch = scratch;
        Ok(())
    }
}

impl StackLayer {
    /// Writes its output, `[rows, width]`, without dropout.
    fn forward(&mut self, input: View<'_>, output: &mut [f32], chunk: &mut StepChunk<'_>) -> StepResult {
        let (last, rows, products) = (self.slices.len() - 1, chunk.rows, chunk.products());
        for (index, WeightSlice { place, products: slice }) in self.slices.iter_mut().enumerate() {
            chunk.layers.begin_forward(place.layer)?;
            let (weight, bias) = chunk.layers.weights(place.layer).split_at(slice.weight_count());
            let columns = ViewMut::dense(&mut *output, (rows, self.width)).narrow_columns(place.start, place.outputs);
            slice.forward(weight, input, columns, products)?;
            if index == last {
                add_bias(output, bias, self.activate);
            }
            chunk.layers.end_forward(place.layer)?;
        }
        Ok(())
    }

    /// Call it after [`Self::forward`] on the same input. `slopes` are d loss / d output, then d loss / d product. Adds the gradients of
    /// weight and bias to those of earlier chunks of the batch.
    fn backward(
        &mut self,
        (input, output): (View<'_>, &[f32]),
        slopes: &mut [f32],
        mut d_input: Option<(ViewMut<'_>, bool)>,
        chunk: &mut StepChunk<'_>,
    ) -> StepResult {
        let (last, rows, products) = (self.slices.len() - 1, chunk.rows, chunk.products());
        let output = if self.activate { output } else { &[] };
        for (index, WeightSlice { place, products: slice }) in self.slices.iter_mut().enumerate().rev() {
            chunk.layers.begin_backward(place.layer)?;
            let weights = slice.weight_count();
            let (_, gradients) = chunk.layers.gradients(place.layer);
            let (d_weight, d_bias) = gradients.split_at_mut(weights);
            if index == last {
                undo_activation((slopes, output), &self.mask, d_bias, chunk.earlier);
            }
            let slopes = View::dense(slopes, (rows, self.width)).narrow_columns(place.start, place.outputs);
            slice.weight_gradient(slopes, input, d_weight, products)?;
            chunk.note_final(place.layer);
            if let Some((d_input, adds)) = &mut d_input {
                let weight = &chunk.layers.weights(place.layer)[..weights];
                slice.input_gradient(weight, slopes, d_input.reborrow(), *adds || index < last, products)?;
            }
            chunk.layers.end_backward(place.layer)?;
        }
        Ok(())
    }
}

/// From d loss / d output to d loss / d product. The sum of its columns is the bias's gradient. `output` is that after ReLU; empty
/// without one.
fn undo_activation((slopes, output): (&mut [f32], &[f32]), mask: &[f32], d_bias: &mut [f32], earlier: bool) {
    let width = d_bias.len();
    apply_mask(slopes, mask);
    if !earlier {
        d_bias.fill(0.0);
    }
    run_wide(
        #[inline(always)]
        || {
            if output.is_empty() {
                for slopes in slopes.chunks_exact(width) {
                    slopes.iter().zip_eq(d_bias.iter_mut()).for_each(|(slope, sum)| *sum += slope);
                }
                return;
            }
            for (slopes, output) in slopes.chunks_exact_mut(width).zip_eq(output.chunks_exact(width)) {
                for ((slope, output), sum) in slopes.iter_mut().zip_eq(output).zip_eq(d_bias.iter_mut()) {
                    *slope = if *output <= 0.0 { 0.0 } else { *slope };
                    *sum += *slope;
                }
            }
        },
    );
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
