//! A chunk through DCN-V2 ([`crate::model::dcnv2`]) and back.

use tch::Tensor;
use zagros_job::Structure;
use zagros_zip::ZipEq;

use super::cross::CrossLayers;
use super::matrix::Matrix;
use super::stack::Stack;
use super::{BatchShare, CHUNK, ChunkProgress, ChunkStep};
use crate::model::dcnv2::Dcnv2;
use crate::model::dropout::Dropout;
use crate::model::{InputShape, ModelError};

#[derive(Debug)]
pub(in crate::model) struct Dcnv2ForwardBackward {
    numeric: usize,
    cross: CrossLayers,
    /// d loss / d output of the cross layers, `[chunk, width]`.
    d_crossed: Matrix,
    after: AfterCross,
}

/// What reads the output of the cross layers.
#[derive(Debug)]
enum AfterCross {
    /// The deep MLP, if there is one, and the output layer.
    Stacked(Stack),
    Parallel(Box<Parallel>),
}

/// The deep MLP beside the cross layers, and the output layer over both.
#[derive(Debug)]
struct Parallel {
    deep: Stack,
    /// d loss / d x₀ through the deep MLP, `[chunk, width]`.
    d_first: Matrix,
    /// `[chunk, width + last]`: the outputs of the cross layers and of the deep MLP.
    both: Matrix,
    d_both: Matrix,
    output: Stack,
}

impl Dcnv2ForwardBackward {
    /// `gradients` are those of the variables, in their order.
    pub(super) fn new(
        dcnv2: &Dcnv2,
        shape: &InputShape,
        gradients: &mut impl Iterator<Item = Tensor>,
    ) -> Result<Self, ModelError> {
        let width = shape.numeric + shape.width();
        let cross = CrossLayers::new(&dcnv2.cross, width, gradients)?;
        let after = match (&dcnv2.deep, dcnv2.structure) {
            (Some(deep), Structure::Parallel) => AfterCross::Parallel(Box::new(Parallel {
                deep: Stack::new(deep, CHUNK, true, gradients)?,
                d_first: Matrix::aligned(CHUNK, width)?,
                both: Matrix::aligned(CHUNK, dcnv2.output.inputs())?,
                d_both: Matrix::aligned(CHUNK, dcnv2.output.inputs())?,
                output: Stack::new(&dcnv2.output, CHUNK, true, gradients)?,
            })),
            (deep, _) => AfterCross::Stacked(Stack::of(deep.iter().chain([&dcnv2.output]), CHUNK, true, gradients)?),
        };
        Ok(Self { numeric: shape.numeric, cross, d_crossed: Matrix::aligned(CHUNK, width)?, after })
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

    fn chunk(
        &mut self,
        mut share: BatchShare<'_>,
        progress: &mut ChunkProgress<'_>,
        dropout: &mut Dropout,
    ) -> Result<f64, ModelError> {
        let Self { numeric, cross, d_crossed, after } = self;
        let (rows, share_of) = (share.samples, &mut share);
        cross.first_mut().put_side_by_side(rows, (share_of.numeric, *numeric), share_of.embeddings);
        cross.forward(rows)?;
        let loss = match after {
            AfterCross::Stacked(stack) => {
                stack.through_loss((cross.output(), Some(d_crossed)), share_of, progress, dropout)?
            }
            AfterCross::Parallel(parallel) => parallel.through_loss(cross, d_crossed, share_of, progress, dropout)?,
        };
        cross.backward(d_crossed, rows, progress)?;
        let d_first = cross.d_first_mut();
        if let AfterCross::Parallel(parallel) = after {
            let beside = parallel.d_first.values(rows);
            d_first.values_mut(rows).iter_mut().zip_eq(beside).for_each(|(sum, slope)| *sum += slope);
        }
        d_first.copy_from_column(*numeric, rows, share.gradients);
        Ok(loss)
    }
}

impl Parallel {
    /// Forward of the deep MLP and of the output layer, and both back. `d_crossed` is written.
    fn through_loss(
        &mut self,
        cross: &CrossLayers,
        d_crossed: &mut Matrix,
        share: &mut BatchShare<'_>,
        progress: &mut ChunkProgress<'_>,
        dropout: &mut Dropout,
    ) -> Result<f64, ModelError> {
        let Self { deep, d_first, both, d_both, output } = self;
        let (rows, width, stride) = (share.samples, d_crossed.columns(), d_crossed.stride());
        let first = cross.first().rows(rows)?;
        deep.forward(&first, rows, Some(dropout))?;
        let (of_both, last) = (both.stride(), both.columns() - width);
        let crossed = cross.output().values(rows).chunks_exact(stride);
        let read = crossed.zip_eq(deep.output(rows).chunks_exact(last));
        for (into, (crossed, deep)) in both.values_mut(rows).chunks_exact_mut(of_both).zip_eq(read) {
            into[..width].copy_from_slice(&crossed[..width]);
            into[width..][..last].copy_from_slice(deep);
        }
        let loss = output.through_loss((both, Some(d_both)), share, progress, dropout)?;
        let (_, d_deep) = deep.ends(rows);
        let made = d_crossed.values_mut(rows).chunks_exact_mut(stride).zip_eq(d_deep.chunks_exact_mut(last));
        for (slopes, (d_crossed, d_deep)) in d_both.values(rows).chunks_exact(of_both).zip_eq(made) {
            d_crossed[..width].copy_from_slice(&slopes[..width]);
            d_deep.copy_from_slice(&slopes[width..][..last]);
        }
        deep.backward(&first, rows, progress, Some(&d_first.rows(rows)?))?;
        Ok(loss)
    }
}
