//! A chunk through FinalMLP ([`crate::model::networks::finalmlp`]) and back, without gates.

use super::fusion::FusionStep;
use super::layer::StepParts;
use super::stack::{InputSlopes, LayerStack};
use super::{BatchShare, ChunkProgress, ChunkStep};
use crate::model::networks::{FinalMlp, StreamGate};
use crate::model::weights::Matrix;
use crate::model::{InputShape, ModelError};

#[derive(Debug)]
pub(in crate::model) struct FinalMlpForwardBackward {
    numeric: usize,
    /// `[chunk, numeric + ΣD]`.
    input: Matrix,
    d_input: Matrix,
    first: LayerStack,
    second: LayerStack,
    fusion: FusionStep,
}

impl FinalMlpForwardBackward {
    /// `None` for a network with gates.
    pub(super) fn new(
        network: &FinalMlp,
        shape: &InputShape,
        parts: &mut StepParts<'_>,
    ) -> Result<Option<Self>, ModelError> {
        let FinalMlp { first, second, fusion } = network;
        if !matches!((&first.gate, &second.gate), (StreamGate::None, StreamGate::None)) {
            return Ok(None);
        }
        let inputs = shape.numeric + shape.vectors_width();
        Ok(Some(Self {
            numeric: shape.numeric,
            input: Matrix::aligned(parts.rows, inputs)?,
            d_input: Matrix::aligned(parts.rows, inputs)?,
            first: LayerStack::new(&first.layers, true, parts)?,
            second: LayerStack::new(&second.layers, true, parts)?,
            fusion: FusionStep::new(fusion, parts)?,
        }))
    }
}

impl ChunkStep for FinalMlpForwardBackward {
    fn refresh(&mut self) -> Result<(), ModelError> {
        // The fusion has no copy in another precision.
        self.first.refresh().and_then(|()| self.second.refresh())
    }

    fn chunk(&mut self, share: BatchShare<'_>, progress: &mut ChunkProgress<'_>) -> Result<f64, ModelError> {
        let Self { numeric, input, d_input, first, second, fusion } = self;
        let rows = share.samples;
        input.put_side_by_side(rows, (share.numeric, *numeric), share.embeddings);
        let x = input.rows(rows)?;
        first.forward(&x, rows, progress.blocks, Some(&mut *progress.dropout))?;
        second.forward(&x, rows, progress.blocks, Some(&mut *progress.dropout))?;
        fusion.forward([&first.output_tensor(rows)?, &second.output_tensor(rows)?], rows, progress.blocks)?;
        share.logits.copy_from_slice(fusion.logits(rows));
        let loss = progress.loss(share.logits, (share.labels, share.weights), fusion.d_logits(rows));
        if progress.ends_at_outputs() {
            return Ok(loss);
        }
        let outputs = [first.output_tensor(rows)?, second.output_tensor(rows)?];
        let slopes = [first.d_output_tensor(rows)?, second.d_output_tensor(rows)?];
        fusion.backward(&outputs, slopes, rows, progress)?;
        drop(outputs);
        let d_x = d_input.rows(rows)?;
        second.backward(&x, rows, progress, InputSlopes::Written(&d_x))?;
        first.backward(&x, rows, progress, InputSlopes::Added(&d_x))?;
        drop(d_x);
        d_input.copy_from_column(*numeric, rows, share.gradients);
        Ok(loss)
    }
}
