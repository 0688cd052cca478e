//! A chunk through Wide & Deep ([`crate::model::networks::wide_deep`]) and back.

use zagros_zip::ZipEq;

use super::layer::StepParts;
use super::linear_term::LinearTerm;
use super::stack::LayerStack;
use super::{BatchShare, ChunkProgress, ChunkStep};
use crate::model::networks::WideDeep;
use crate::model::weights::Matrix;
use crate::model::{InputShape, ModelError};

#[derive(Debug)]
pub(in crate::model) struct WideDeepForwardBackward {
    numeric: usize,
    /// Values of each feature vector.
    dims: Vec<usize>,
    wide: Option<LinearTerm>,
    /// `[chunk, numeric + Σ(D − 1)]`.
    input: Matrix,
    /// `[chunk, Σ(D − 1)]`; `None` if all tables have dim 1.
    d_input: Option<Matrix>,
    /// The wide part of each logit, `[chunk]`.
    wide_logits: Vec<f32>,
    deep: LayerStack,
}

impl WideDeepForwardBackward {
    pub(super) fn new(network: &WideDeep, shape: &InputShape, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        let (numeric, inputs) = (shape.numeric, network.deep.input_count());
        let wide = network.wide.as_ref().map(|wide| LinearTerm::new(wide, parts)).transpose()?;
        Ok(Self {
            numeric,
            dims: shape.embeddings.clone(),
            wide,
            input: Matrix::aligned(parts.rows, inputs)?,
            d_input: (inputs > numeric).then(|| Matrix::aligned(parts.rows, inputs - numeric)).transpose()?,
            wide_logits: Vec::new(),
            deep: LayerStack::new(&network.deep, true, parts)?,
        })
    }
}

impl ChunkStep for WideDeepForwardBackward {
    fn refresh(&mut self) -> Result<(), ModelError> {
        self.deep.refresh()
    }

    fn chunk(&mut self, mut share: BatchShare<'_>, progress: &mut ChunkProgress<'_>) -> Result<f64, ModelError> {
        let Self { numeric, dims, wide, input, d_input, wide_logits, deep } = self;
        let (rows, stride, numeric, width) = (share.samples, input.stride, *numeric, dims.iter().sum::<usize>());
        wide_logits.clear();
        wide_logits.resize(rows, 0.0);
        for (sample, (into, logit)) in
            input.values_mut(rows).chunks_exact_mut(stride).zip_eq(wide_logits.iter_mut()).enumerate()
        {
            into[..numeric].copy_from_slice(&share.numeric[sample * numeric..][..numeric]);
            let (mut vectors, mut end) = (&share.embeddings[sample * width..][..width], numeric);
            for dim in dims.iter() {
                let (vector, others) = vectors.split_at(*dim);
                *logit += vector[0];
                into[end..][..dim - 1].copy_from_slice(&vector[1..]);
                (vectors, end) = (others, end + dim - 1);
            }
        }
        if let Some(wide) = wide {
            wide.add_to(wide_logits, share.numeric)?;
        }
        let loss = deep.through_loss(wide_logits, (input, d_input.as_ref()), &mut share, progress)?;
        if progress.ends_at_outputs() {
            return Ok(loss);
        }
        let slopes = deep.d_logits(rows);
        if let Some(wide) = wide {
            wide.backward(slopes, share.numeric, progress)?;
        }
        let deep_slopes = d_input.as_ref().map(|d_input| (d_input.values(rows), d_input.stride));
        for (sample, slope) in slopes.iter().enumerate() {
            let (mut into, mut start) = (&mut share.gradients[sample * width..][..width], 0);
            for dim in dims.iter() {
                let (vector, others) = into.split_at_mut(*dim);
                vector[0] = *slope;
                if let Some((deep, stride)) = deep_slopes {
                    vector[1..].copy_from_slice(&deep[sample * stride + start..][..dim - 1]);
                }
                (into, start) = (others, start + dim - 1);
            }
        }
        Ok(loss)
    }
}
