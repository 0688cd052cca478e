//! The weights of a network: in one piece of memory, with their gradients, as files, and taken over from other networks. Code that updates,
//! checks, keeps or sends them makes one loop over it.

mod saved;
mod start;
mod state;

use std::ops::Range;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use zagros_job::{DenseTiles, Initializer, Job, StreamedTensor};
use zagros_network::AlignedValues;
use zagros_table::init::RowSeed;
use zagros_zip::{ZipEq, number_from};

use crate::{ModelError, ModelResult};

pub use start::SameInputs;

/// Tensor after tensor, in the order of the job's list.
#[derive(Debug, Default)]
pub(crate) struct HeldWeights {
    /// By name.
    tensors: Vec<(TensorForm, Range<usize>)>,
    pub(crate) values: AlignedValues,
    pub(crate) gradients: AlignedValues,
}

/// A tensor of a network as it is saved, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorForm {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

impl HeldWeights {
    /// With first values by the job's seed.
    pub(crate) fn from_job(job: &Job) -> Self {
        let layers = job.dense_layers().unwrap_or_default();
        let count = layers.iter().flat_map(|layer| &layer.tensors).map(|tensor| tensor.segment.range.end).max();
        let count = count.unwrap_or(0);
        let (values, gradients) = (AlignedValues::zeros(count), AlignedValues::zeros(count));
        let mut held = Self { tensors: Vec::new(), values, gradients };
        for StreamedTensor { segment, table, .. } in layers.into_iter().flat_map(|layer| layer.tensors) {
            let first = first_values(job.train.seed, table, segment.initializer(), &segment.tensor.shape);
            held.values[segment.range.clone()].copy_from_slice(&first);
            let shape = segment.tensor.shape.iter().map(|size| *size as usize).collect();
            let form = TensorForm { name: segment.tensor.name, dtype: Dtype::F32, shape };
            held.tensors.push((form, segment.range));
        }
        held.tensors.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        held
    }

    /// In safetensors' format, little-endian, with these values in place of its own.
    pub(crate) fn encode(&self, values: Option<&[f32]>) -> ModelResult<Vec<u8>> {
        let values = values.unwrap_or(&self.values);
        let views = self.tensors.iter().map(|(TensorForm { name, dtype, shape }, range)| {
            // Read where they are: the file that this gives is the only copy.
            let bytes = bytemuck::cast_slice(&values[range.clone()]);
            TensorView::new(*dtype, shape.clone(), bytes).map(|view| (name.as_str(), view))
        });
        Ok(safetensors::serialize(views.collect::<Result<Vec<_>, _>>()?, None)?)
    }

    pub(crate) fn tensor_forms(&self) -> Vec<TensorForm> {
        self.tensors.iter().map(|(form, _)| form.clone()).collect()
    }

    /// Takes saved values in the order of the forms.
    pub(crate) fn take_tensors(&mut self, saved: &[Option<&[u8]>]) {
        for ((_, range), saved) in self.tensors.iter().zip_eq(saved) {
            saved.iter().for_each(|bytes| copy_words(bytes, &mut self.values[range.clone()]));
        }
    }
}

impl TensorForm {
    /// The values of the tensor of this name, type and shape.
    pub(crate) fn find_values<'a>(&self, stored: &SafeTensors<'a>) -> ModelResult<&'a [u8]> {
        let Self { name, dtype, shape } = self;
        let missing = |_| ModelError::Foreign { what: format!("{name} is missing") };
        let view = stored.tensor(name).map_err(missing)?;
        if view.dtype() != *dtype || view.shape() != shape {
            let (found_dtype, found) = (view.dtype(), view.shape());
            let what = format!("{name} is {found_dtype:?} {found:?}, not {dtype:?} {shape:?}");
            return Err(ModelError::Foreign { what });
        }
        Ok(view.data())
    }
}

fn copy_words(bytes: &[u8], values: &mut [f32]) {
    let words = bytes.as_chunks::<4>().0;
    values.iter_mut().zip_eq(words).for_each(|(value, word)| *value = f32::from_le_bytes(*word));
}

/// The first values of a tensor, tile by tile: a function of the seed, its number and its tiles, as an embedding server makes them that
/// holds the tiles. Streamed and resident weights begin with the same bits.
pub fn first_values(seed: u64, table: u32, first: Initializer, shape: &[u64]) -> Vec<f32> {
    let DenseTiles { dim, count, .. } = DenseTiles::new(shape);
    let weights = shape.iter().product::<u64>() as usize;
    let mut values = vec![0.0; dim * count];
    for (id, tile) in number_from(0, values.chunks_exact_mut(dim)) {
        first.fill(RowSeed { seed, table, id }, tile);
    }
    values.truncate(weights);
    values
}
