//! Streamed weights (`train.weights = "streamed"`): the layers of a network as rows of the tables of tiles, which are only read.

use std::sync::Arc;

use zagros_job::{Job, StreamedLayer, TiledTensor};
use zagros_model::{LayerStore, LayerValues, ModelError, PendingLayer, TraversalPurpose};

use crate::error::ScoringError;
use crate::rows::RowSource;

#[derive(Debug)]
pub(crate) struct SavedLayers {
    rows: Arc<dyn RowSource>,
    layers: Vec<StreamedLayer>,
}

impl SavedLayers {
    /// `None` if the job's weights are not streamed.
    pub(crate) fn from_job(job: &Job, rows: &Arc<dyn RowSource>) -> Option<Self> {
        let layers = job.worker_layers();
        (!layers.is_empty()).then(|| Self { rows: Arc::clone(rows), layers })
    }

    fn read(&self, layer: usize, mut into: LayerValues) -> Result<LayerValues, ModelError> {
        for tensor in self.layers[layer].tiled_tensors() {
            let values = &mut into[tensor.first..tensor.first + tensor.weights];
            read_tensor(&*self.rows, &tensor, values)
                .map_err(|error| self.failed(layer, "read the weights", error.to_string()))?;
        }
        Ok(into)
    }

    fn failed(&self, layer: usize, what: &'static str, reason: String) -> ModelError {
        ModelError::Layer { layer: self.layers[layer].name.clone(), what, reason }
    }

    fn refused(&self, layer: usize, what: &'static str) -> ModelError {
        self.failed(layer, what, "a saved model does not learn".to_owned())
    }
}

impl LayerStore for SavedLayers {
    fn pull(&self, layer: usize, _: TraversalPurpose, into: LayerValues) -> Box<dyn PendingLayer> {
        Box::new(ReadLayer(self.read(layer, into)))
    }

    fn push(&self, layer: usize, _: u64, _: LayerValues) -> Result<(), ModelError> {
        Err(self.refused(layer, "push the gradient"))
    }

    fn summed(&self) -> Result<f64, ModelError> {
        Err(self.refused(0, "sum the gradient"))
    }

    fn commit(&self, _: u64, _: f32) -> Result<(), ModelError> {
        Err(self.refused(0, "apply the gradient"))
    }

    fn wait_for_pushes(&self) -> Result<(), ModelError> {
        Ok(())
    }
}

#[derive(Debug)]
struct ReadLayer(Result<LayerValues, ModelError>);

impl PendingLayer for ReadLayer {
    fn wait(self: Box<Self>) -> Result<LayerValues, ModelError> {
        self.0
    }
}

/// Reads the tiles of a tensor. The last may be filled up with more values than the tensor has.
fn read_tensor(rows: &dyn RowSource, tensor: &TiledTensor, values: &mut [f32]) -> Result<(), ScoringError> {
    let (table, dim) = (tensor.table as usize, tensor.tiles.dim);
    let tiles: Vec<u64> = (tensor.tiles.first as u64..).take(tensor.tiles.count).collect();
    let (whole, last) = values.split_at_mut(values.len() / dim * dim);
    let (whole_tiles, last_tile) = tiles.split_at(whole.len() / dim);
    rows.read_rows(table, whole_tiles, whole)?;
    if !last.is_empty() {
        let mut tile = vec![0.0; dim];
        rows.read_rows(table, last_tile, &mut tile)?;
        last.copy_from_slice(&tile[..last.len()]);
    }
    Ok(())
}
