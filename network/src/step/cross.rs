//! Cross layers (Wang et al. 2021, equations 1 and 2), forward and backward.
//!
//! ```text
//! forward    z_l = W_l·x_l + b_l          x_{l+1} = x₀ ⊙ z_l + x_l
//! backward   dz_l = d_{l+1} ⊙ x₀          d_l = d_{l+1} + W_lᵀ·dz_l          dx₀ = d_0 + Σ_l d_{l+1} ⊙ z_l
//! ```

use zagros_table::run_wide;
use zagros_zip::ZipEq;

use super::join::put_rows;
use super::product::LayerProducts;
use super::{BlockStep, BlockValues, ReadValue, StepBuilder, StepChunk};
use crate::StepResult;
use crate::matrix::{Matrix, View};

/// The output of the last layer is that of the block, whose slopes become those of x_l on the way back.
#[derive(Debug)]
pub(super) struct CrossStep {
    /// x₀.
    input: ReadValue,
    layers: Vec<CrossLayer>,
    d_affine: Matrix,
    /// d loss / d x₀ without its way through the first layer.
    d_first: Matrix,
}

#[derive(Debug)]
struct CrossLayer {
    /// The layer of the matrix with the bias; of two matrices, the upper one.
    layer: usize,
    matrix: LayerProducts,
    /// Vᵀ below U, if the matrix is of low rank.
    down: Option<DownMap>,
    /// z_l, `[rows, width]`.
    affine: Matrix,
    /// x_{l+1}; none of the last layer.
    output: Option<Matrix>,
}

/// Vᵀ·x of U·(Vᵀ·x).
#[derive(Debug)]
struct DownMap {
    layer: usize,
    products: LayerProducts,
    hidden: Matrix,
    d_hidden: Matrix,
}

impl CrossStep {
    /// Takes the next layers.
    pub(super) fn new(
        input: ReadValue,
        (layers, rank): (usize, Option<usize>),
        width: usize,
        builder: &mut StepBuilder<'_>,
    ) -> StepResult<Self> {
        let rows = builder.form.rows;
        let mut made = Vec::with_capacity(layers);
        for index in 0..layers {
            let matrix = |columns| Matrix::aligned(rows, columns);
            let down = match rank {
                None => None,
                Some(rank) => Some(DownMap {
                    layer: builder.next_layer(),
                    products: LayerProducts::new([rank, width], false, builder)?,
                    hidden: matrix(rank),
                    d_hidden: matrix(rank),
                }),
            };
            let layer = builder.next_layer();
            let products = LayerProducts::new([width, rank.unwrap_or(width)], false, builder)?;
            let output = (index + 1 < layers).then(|| matrix(width));
            made.push(CrossLayer { layer, matrix: products, down, affine: matrix(width), output });
        }
        Ok(Self { input, layers: made, d_affine: Matrix::aligned(rows, width), d_first: Matrix::aligned(rows, width) })
    }
}

/// x_l.
fn layer_input<'v>(layers: &'v [CrossLayer], first: View<'v>, rows: usize) -> View<'v> {
    layers.last().and_then(|layer| layer.output.as_ref()).map_or(first, |output| output.view(rows))
}

impl BlockStep for CrossStep {
    fn forward(&mut self, before: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let first = self.input.view(before, chunk.rows);
        for index in 0..self.layers.len() {
            let (before, rest) = self.layers.split_at_mut(index);
            rest[0].forward(first, layer_input(before, first, chunk.rows), &mut own.output, chunk)?;
        }
        Ok(())
    }

    fn backward(&mut self, before: &mut [BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, Self { input, layers, d_affine, d_first }) = (chunk.rows, self);
        d_first.values_mut(rows).fill(0.0);
        let first = input.view(before, rows);
        for index in (0..layers.len()).rev() {
            let (before, rest) = layers.split_at_mut(index);
            let read = layer_input(before, first, rows);
            rest[0].backward((first, read), (&mut own.slopes, d_affine, d_first), chunk)?;
        }
        // Its way through all layers beside the products.
        let (sum, rest) = (d_first.values_mut(rows), own.slopes.values(rows));
        sum.iter_mut().zip_eq(rest).for_each(|(sum, slope)| *sum += slope);
        if let Some((into, adds)) = input.slopes(before, rows) {
            put_rows(d_first.view(rows), into, adds);
        }
        Ok(())
    }
}

impl CrossLayer {
    /// From x₀ and x_l to z_l and x_{l+1}.
    fn forward(
        &mut self,
        first: View<'_>,
        input: View<'_>,
        last: &mut Matrix,
        chunk: &mut StepChunk<'_>,
    ) -> StepResult {
        let (rows, products, Self { layer, matrix, down, affine, output }) = (chunk.rows, chunk.products(), self);
        let read = match down {
            None => input,
            Some(DownMap { layer, products: down, hidden, .. }) => {
                chunk.layers.begin_forward(*layer)?;
                down.forward(chunk.layers.weights(*layer), input, hidden.view_mut(rows), products)?;
                chunk.layers.end_forward(*layer)?;
                hidden.view(rows)
            }
        };
        chunk.layers.begin_forward(*layer)?;
        let (weight, bias) = chunk.layers.weights(*layer).split_at(matrix.weight_count());
        matrix.forward(weight, read, affine.view_mut(rows), products)?;
        let stride = affine.stride;
        let (affine, output) = (affine.values_mut(rows), output.as_mut().unwrap_or(last).values_mut(rows));
        let (first, input) = ((first.values, first.row_stride), (input.values, input.row_stride));
        run_wide(
            #[inline(always)]
            || {
                let read = first.0.chunks(first.1).zip_eq(input.0.chunks(input.1));
                let made = affine.chunks_exact_mut(stride).zip_eq(output.chunks_exact_mut(stride));
                for ((first, input), (affine, output)) in read.zip_eq(made) {
                    let (first, input) = (&first[..bias.len()], &input[..bias.len()]);
                    let (affine, output) = (&mut affine[..bias.len()], &mut output[..bias.len()]);
                    for column in 0..bias.len() {
                        affine[column] += bias[column];
                        output[column] = first[column] * affine[column] + input[column];
                    }
                }
            },
        );
        chunk.layers.end_forward(*layer)
    }

    /// From d_{l+1} to d_l in its place. Adds to dx₀.
    fn backward(
        &mut self,
        (first, input): (View<'_>, View<'_>),
        (slopes, d_affine, d_first): (&mut Matrix, &mut Matrix, &mut Matrix),
        chunk: &mut StepChunk<'_>,
    ) -> StepResult {
        let (rows, products) = (chunk.rows, chunk.products());
        chunk.layers.begin_backward(self.layer)?;
        self.undo_product(first, (slopes, d_affine, d_first), chunk);
        let (d_affine, Self { layer, matrix, down, .. }) = (d_affine.view(rows), self);
        let (layer, weights) = (*layer, matrix.weight_count());
        let read = down.as_ref().map_or(input, |down| down.hidden.view(rows));
        let (_, gradients) = chunk.layers.gradients(layer);
        matrix.weight_gradient(d_affine, read, &mut gradients[..weights], products)?;
        chunk.note_final(layer);
        let weight = &chunk.layers.weights(layer)[..weights];
        let Some(DownMap { layer: down_layer, products: down, d_hidden, .. }) = down else {
            matrix.input_gradient(weight, d_affine, slopes.view_mut(rows), true, products)?;
            return chunk.layers.end_backward(layer);
        };
        matrix.input_gradient(weight, d_affine, d_hidden.view_mut(rows), false, products)?;
        chunk.layers.end_backward(layer)?;
        chunk.layers.begin_backward(*down_layer)?;
        let (_, d_down) = chunk.layers.gradients(*down_layer);
        down.weight_gradient(d_hidden.view(rows), input, d_down, products)?;
        chunk.note_final(*down_layer);
        let weight = chunk.layers.weights(*down_layer);
        down.input_gradient(weight, d_hidden.view(rows), slopes.view_mut(rows), true, products)?;
        chunk.layers.end_backward(*down_layer)
    }

    /// From d_{l+1} to dz_l, its part of dx₀, and the gradient of the bias.
    fn undo_product(
        &mut self,
        first: View<'_>,
        (slopes, d_affine, d_first): (&Matrix, &mut Matrix, &mut Matrix),
        chunk: &mut StepChunk<'_>,
    ) {
        let (rows, stride) = (chunk.rows, slopes.stride);
        let (_, gradients) = chunk.layers.gradients(self.layer);
        let d_bias = &mut gradients[self.matrix.weight_count()..];
        if !chunk.earlier {
            d_bias.fill(0.0);
        }
        let (affine, slopes) = (self.affine.values(rows), slopes.values(rows));
        let (d_affine, d_first) = (d_affine.values_mut(rows), d_first.values_mut(rows));
        run_wide(
            #[inline(always)]
            || {
                let read = first.values.chunks(first.row_stride).zip_eq(affine.chunks_exact(stride));
                let read = read.zip_eq(slopes.chunks_exact(stride));
                let made = d_affine.chunks_exact_mut(stride).zip_eq(d_first.chunks_exact_mut(stride));
                for (((first, affine), slopes), (d_affine, d_first)) in read.zip_eq(made) {
                    let width = d_bias.len();
                    let (first, affine, slopes) = (&first[..width], &affine[..width], &slopes[..width]);
                    let (d_affine, d_first) = (&mut d_affine[..width], &mut d_first[..width]);
                    for column in 0..width {
                        d_affine[column] = slopes[column] * first[column];
                        d_first[column] += slopes[column] * affine[column];
                        d_bias[column] += d_affine[column];
                    }
                }
            },
        );
    }
}
