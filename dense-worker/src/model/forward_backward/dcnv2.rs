//! A chunk through DCN-V2 ([`crate::model::networks::dcnv2`]) and back.

use zagros_job::CrossStructure;
use zagros_zip::ZipEq;

use super::cross::CrossLayers;
use super::layer::StepParts;
use super::stack::{InputSlopes, LayerStack};
use super::{BatchShare, ChunkProgress, ChunkStep};
use crate::model::networks::Dcnv2;
use crate::model::weights::Matrix;
use crate::model::{InputShape, ModelError};

#[derive(Debug)]
pub(in crate::model) struct Dcnv2ForwardBackward {
    numeric: usize,
    cross: CrossLayers,
    /// d loss / d output of the cross layers, `[chunk, width]`.
    d_crossed: Matrix,
    after: AfterCross,
}

#[derive(Debug)]
enum AfterCross {
    /// The deep MLP, if there is one, and the output layer.
    Stacked(LayerStack),
    Parallel(Box<ParallelDeep>),
}

/// The deep MLP beside the cross layers, and the output layer over both.
#[derive(Debug)]
struct ParallelDeep {
    deep: LayerStack,
    /// d loss / d x₀ through the deep MLP, `[chunk, width]`.
    d_first: Matrix,
    /// `[chunk, width + last]`: the outputs of the cross layers and of the deep MLP.
    both: Matrix,
    d_both: Matrix,
    output: LayerStack,
}

impl Dcnv2ForwardBackward {
    pub(super) fn new(dcnv2: &Dcnv2, shape: &InputShape, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        let width = shape.numeric + shape.width();
        let cross = CrossLayers::new(&dcnv2.cross, width, parts)?;
        let after_cross = match (&dcnv2.deep, dcnv2.structure) {
            (Some(deep), CrossStructure::Parallel) => AfterCross::Parallel(Box::new(ParallelDeep {
                deep: LayerStack::new(deep, true, parts)?,
                d_first: Matrix::aligned(parts.rows, width)?,
                both: Matrix::aligned(parts.rows, dcnv2.output.input_count())?,
                d_both: Matrix::aligned(parts.rows, dcnv2.output.input_count())?,
                output: LayerStack::new(&dcnv2.output, true, parts)?,
            })),
            (deep, _) => AfterCross::Stacked(LayerStack::from_mlps(deep.iter().chain([&dcnv2.output]), true, parts)?),
        };
        Ok(Self { numeric: shape.numeric, cross, d_crossed: Matrix::aligned(parts.rows, width)?, after: after_cross })
    }
}

impl ChunkStep for Dcnv2ForwardBackward {
    fn refresh(&mut self) -> Result<(), ModelError> {
        self.cross.refresh()?;
        match &mut self.after {
            AfterCross::Stacked(stack) => stack.refresh(),
            AfterCross::Parallel(parallel) => parallel.deep.refresh().and_then(|()| parallel.output.refresh()),
        }
    }

    fn chunk(&mut self, mut share: BatchShare<'_>, progress: &mut ChunkProgress<'_>) -> Result<f64, ModelError> {
        let Self { numeric, cross, d_crossed, after } = self;
        let (rows, share_of) = (share.samples, &mut share);
        cross.first.put_side_by_side(rows, (share_of.numeric, *numeric), share_of.embeddings);
        cross.forward(rows, progress.blocks)?;
        let loss = match after {
            AfterCross::Stacked(stack) => {
                stack.through_loss(&[], (cross.output(), Some(d_crossed)), share_of, progress)?
            }
            AfterCross::Parallel(parallel) => parallel.through_loss(cross, d_crossed, share_of, progress)?,
        };
        if progress.ends_at_outputs() {
            return Ok(loss);
        }
        cross.backward(d_crossed, rows, progress)?;
        let d_first = &mut cross.d_first;
        if let AfterCross::Parallel(parallel) = after {
            let deep_slopes = parallel.d_first.values(rows);
            d_first.values_mut(rows).iter_mut().zip_eq(deep_slopes).for_each(|(sum, slope)| *sum += slope);
        }
        d_first.copy_from_column(*numeric, rows, share.gradients);
        Ok(loss)
    }
}

impl ParallelDeep {
    /// Forward of the deep MLP and of the output layer, and both back. `d_crossed` is written.
    fn through_loss(
        &mut self,
        cross: &CrossLayers,
        d_crossed: &mut Matrix,
        share: &mut BatchShare<'_>,
        progress: &mut ChunkProgress<'_>,
    ) -> Result<f64, ModelError> {
        let Self { deep, d_first, both, d_both, output } = self;
        let (rows, width, stride) = (share.samples, d_crossed.columns, d_crossed.stride);
        let first = cross.first.rows(rows)?;
        deep.forward(&first, rows, progress.blocks, Some(&mut *progress.dropout))?;
        let (of_both, last) = (both.stride, both.columns - width);
        let crossed = cross.output().values(rows).chunks_exact(stride);
        let read = crossed.zip_eq(deep.output(rows).chunks_exact(last));
        for (into, (crossed, deep)) in both.values_mut(rows).chunks_exact_mut(of_both).zip_eq(read) {
            into[..width].copy_from_slice(&crossed[..width]);
            into[width..][..last].copy_from_slice(deep);
        }
        let loss = output.through_loss(&[], (both, Some(d_both)), share, progress)?;
        if progress.ends_at_outputs() {
            return Ok(loss);
        }
        let (_, d_deep) = deep.output_and_slopes(rows);
        let made = d_crossed.values_mut(rows).chunks_exact_mut(stride).zip_eq(d_deep.chunks_exact_mut(last));
        for (slopes, (d_crossed, d_deep)) in d_both.values(rows).chunks_exact(of_both).zip_eq(made) {
            d_crossed[..width].copy_from_slice(&slopes[..width]);
            d_deep.copy_from_slice(&slopes[width..][..last]);
        }
        deep.backward(&first, rows, progress, InputSlopes::Written(&d_first.rows(rows)?))?;
        Ok(loss)
    }
}
