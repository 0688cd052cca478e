//! Cross layers (Wang et al. 2021, equations 1 and 2), forward and backward.
//!
//! ```text
//! forward    z_l = W_l·x_l + b_l          x_{l+1} = x₀ ⊙ z_l + x_l
//! backward   dz_l = d_{l+1} ⊙ x₀          d_l = d_{l+1} + W_lᵀ·dz_l          dx₀ = d_0 + Σ_l d_{l+1} ⊙ z_l
//! ```

use tch::Tensor;
use zagros_table::run_wide;
use zagros_zip::ZipEq;

use super::ChunkProgress;
use super::blocks::SampleBlocks;
use super::layer::{LayerUse, StepParts};
use super::product::LayerProducts;
use crate::model::ModelError;
use crate::model::networks::CrossMatrix;
use crate::model::weights::{Matrix, values, values_mut};

#[derive(Debug)]
pub(super) struct CrossLayers {
    /// x₀, `[chunk, width]`, which the caller writes before [`Self::forward`].
    pub(super) first: Matrix,
    layers: Vec<CrossLayer>,
    d_affine: Matrix,
    /// d loss / d x₀ after [`Self::backward`]; within it, without its way through the first layer.
    pub(super) d_first: Matrix,
}

#[derive(Debug)]
struct CrossLayer {
    /// The matrix with the bias; of two matrices, the upper one.
    present: LayerUse,
    map: CrossMap,
    /// `[width]`, the variable itself without autograd.
    bias: Tensor,
    d_bias: Tensor,
    affine: Matrix,
    output: Matrix,
}

/// The products of a layer, and views of their gradients.
#[derive(Debug)]
enum CrossMap {
    Full { matrix: LayerProducts, d_matrix: Tensor },
    LowRank(Box<LowRank>),
}

/// The products of U·(Vᵀ·x), with V below and U above.
#[derive(Debug)]
struct LowRank {
    down_present: LayerUse,
    down: LayerProducts,
    d_down: Tensor,
    up: LayerProducts,
    d_up: Tensor,
    hidden: Matrix,
    d_hidden: Matrix,
}

impl CrossLayers {
    /// Takes the next layers of `parts`.
    pub(super) fn new(layers: &[CrossMatrix], width: usize, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        let layers = layers.iter().map(|layer| CrossLayer::new(layer, width, parts)).collect::<Result<_, _>>()?;
        let matrix = || Matrix::aligned(parts.rows, width);
        Ok(Self { first: matrix()?, layers, d_affine: matrix()?, d_first: matrix()? })
    }

    /// Reads the changed weights. Call it before each batch.
    pub(super) fn refresh(&mut self) -> Result<(), ModelError> {
        self.layers.iter_mut().try_for_each(|layer| match &mut layer.map {
            CrossMap::Full { matrix, .. } => matrix.refresh(),
            CrossMap::LowRank(maps) => maps.down.refresh().and_then(|()| maps.up.refresh()),
        })
    }

    pub(super) fn output(&self) -> &Matrix {
        self.layers.last().map_or(&self.first, |layer| &layer.output)
    }

    pub(super) fn forward(&mut self, rows: usize, by: SampleBlocks) -> Result<(), ModelError> {
        let Self { first, layers, .. } = self;
        for index in 0..layers.len() {
            let (before, rest) = layers.split_at_mut(index);
            let input = before.last().map_or(&*first, |before| &before.output);
            rest[0].forward(first, input, rows, by)?;
        }
        Ok(())
    }

    /// Backward from d loss / d output, which is overwritten. Adds the gradients of the variables to those of earlier chunks.
    pub(super) fn backward(
        &mut self,
        d_output: &mut Matrix,
        rows: usize,
        progress: &mut ChunkProgress<'_>,
    ) -> Result<(), ModelError> {
        let Self { first, layers, d_affine, d_first } = self;
        d_first.values_mut(rows).fill(0.0);
        for index in (0..layers.len()).rev() {
            let (before, rest) = layers.split_at_mut(index);
            let (layer, input) = (&mut rest[0], before.last().map_or(&*first, |before| &before.output));
            layer.present.backward()?;
            layer.undo_product(first, (d_output, d_affine, d_first), rows, progress.earlier);
            layer.map_backward(&d_affine.rows(rows)?, &input.rows(rows)?, &d_output.rows(rows)?, progress)?;
        }
        let (sum, rest) = (d_first.values_mut(rows), d_output.values(rows));
        sum.iter_mut().zip_eq(rest).for_each(|(sum, slope)| *sum += slope);
        Ok(())
    }
}

impl CrossLayer {
    fn new(layer: &CrossMatrix, width: usize, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        let below = match layer {
            CrossMatrix::Full(_) => None,
            CrossMatrix::LowRank { down, .. } => {
                let shape = [down.size()[0], down.size()[1]];
                let (present, [down]) = parts.next_layer([down])?;
                Some((present, LayerProducts::new(down.value, shape, None, parts)?, down.gradient))
            }
        };
        let (CrossMatrix::Full(linear) | CrossMatrix::LowRank { up: linear, .. }) = layer;
        let (weight, bias) = linear.parts();
        let shape = [weight.size()[0], weight.size()[1]];
        let (present, [weight, bias]) = parts.next_layer([weight, bias])?;
        let products = LayerProducts::new(weight.value, shape, None, parts)?;
        let matrix = |columns: usize| Matrix::aligned(parts.rows, columns);
        let map = match below {
            None => CrossMap::Full { matrix: products, d_matrix: weight.gradient },
            Some((down_present, down, d_down)) => {
                let (hidden, d_hidden) = (matrix(down.output_count())?, matrix(down.output_count())?);
                let (up, d_up) = (products, weight.gradient);
                CrossMap::LowRank(Box::new(LowRank { down_present, down, d_down, up, d_up, hidden, d_hidden }))
            }
        };
        let (affine, output) = (matrix(width)?, matrix(width)?);
        Ok(Self { present, map, bias: bias.value, d_bias: bias.gradient, affine, output })
    }

    /// From x₀ and x_l to z_l and x_{l+1}.
    fn forward(&mut self, first: &Matrix, input: &Matrix, rows: usize, by: SampleBlocks) -> Result<(), ModelError> {
        let (x, mut affine) = (input.rows(rows)?, self.affine.rows(rows)?);
        match &mut self.map {
            CrossMap::Full { matrix, .. } => {
                self.present.forward()?;
                matrix.forward(&x, &mut affine, by)?;
            }
            CrossMap::LowRank(maps) => {
                let mut hidden = maps.hidden.rows(rows)?;
                maps.down_present.forward()?;
                maps.down.forward(&x, &mut hidden, by)?;
                maps.down_present.forward_done()?;
                self.present.forward()?;
                maps.up.forward(&hidden, &mut affine, by)?;
            }
        }
        let (stride, bias) = (first.stride, values(&self.bias));
        let (affine, output) = (self.affine.values_mut(rows), self.output.values_mut(rows));
        let (first, input) = (first.values(rows), input.values(rows));
        run_wide(
            #[inline(always)]
            || {
                let read = first.chunks_exact(stride).zip_eq(input.chunks_exact(stride));
                let made = affine.chunks_exact_mut(stride).zip_eq(output.chunks_exact_mut(stride));
                for ((first, input), (affine, output)) in read.zip_eq(made) {
                    for column in 0..bias.len() {
                        affine[column] += bias[column];
                        output[column] = first[column] * affine[column] + input[column];
                    }
                }
            },
        );
        self.present.forward_done()
    }

    /// From d_{l+1} to dz_l, its part of dx₀, and the gradient of the bias.
    fn undo_product(
        &mut self,
        first: &Matrix,
        (d_output, d_affine, d_first): (&Matrix, &mut Matrix, &mut Matrix),
        rows: usize,
        earlier: bool,
    ) {
        let stride = first.stride;
        let d_bias = values_mut(&mut self.d_bias);
        if !earlier {
            d_bias.fill(0.0);
        }
        let (first, affine, slopes) = (first.values(rows), self.affine.values(rows), d_output.values(rows));
        let (d_affine, d_first) = (d_affine.values_mut(rows), d_first.values_mut(rows));
        run_wide(
            #[inline(always)]
            || {
                let read = first.chunks_exact(stride).zip_eq(affine.chunks_exact(stride));
                let read = read.zip_eq(slopes.chunks_exact(stride));
                let made = d_affine.chunks_exact_mut(stride).zip_eq(d_first.chunks_exact_mut(stride));
                for (((first, affine), slopes), (d_affine, d_first)) in read.zip_eq(made) {
                    for column in 0..d_bias.len() {
                        d_affine[column] = slopes[column] * first[column];
                        d_first[column] += slopes[column] * affine[column];
                        d_bias[column] += d_affine[column];
                    }
                }
            },
        );
    }

    /// Adds Wᵀ·dz to `slopes`.
    fn map_backward(
        &mut self,
        d_affine: &Tensor,
        input: &Tensor,
        slopes: &Tensor,
        progress: &mut ChunkProgress<'_>,
    ) -> Result<(), ModelError> {
        let rows = usize::try_from(d_affine.size()[0]).unwrap_or(0);
        match &mut self.map {
            CrossMap::Full { matrix, d_matrix } => {
                matrix.weight_gradient(d_affine, input, d_matrix, progress)?;
                progress.finished(d_matrix.numel() + self.d_bias.numel());
                matrix.input_gradient(d_affine, slopes, progress.blocks, true)?;
                self.present.backward_done()
            }
            CrossMap::LowRank(maps) => {
                let LowRank { down_present, down, d_down, up, d_up, hidden, d_hidden } = &mut **maps;
                up.weight_gradient(d_affine, &hidden.rows(rows)?, d_up, progress)?;
                progress.finished(d_up.numel() + self.d_bias.numel());
                let d_hidden = d_hidden.rows(rows)?;
                up.input_gradient(d_affine, &d_hidden, progress.blocks, false)?;
                self.present.backward_done()?;
                down_present.backward()?;
                down.weight_gradient(&d_hidden, input, d_down, progress)?;
                progress.finished(d_down.numel());
                down.input_gradient(&d_hidden, slopes, progress.blocks, true)?;
                down_present.backward_done()
            }
        }
    }
}
