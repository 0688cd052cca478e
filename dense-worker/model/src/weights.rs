//! The weights of a network: in one piece of memory, with their gradients, as files, and taken over from other networks. Code that updates,
//! checks, keeps or sends them makes one loop over it.

mod saved;
mod start;
mod state;

use std::collections::BTreeMap;
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
    tensors: BTreeMap<String, HeldTensor>,
    pub(crate) values: AlignedValues,
    pub(crate) gradients: AlignedValues,
}

#[derive(Debug)]
struct HeldTensor {
    shape: Vec<usize>,
    range: Range<usize>,
}

impl HeldWeights {
    /// With first values by the job's seed.
    pub(crate) fn from_job(job: &Job) -> Self {
        let layers = job.dense_layers().unwrap_or_default();
        let count = layers.iter().flat_map(|layer| &layer.tensors).map(|tensor| tensor.segment.range.end).max();
        let count = count.unwrap_or(0);
        let (values, gradients) = (AlignedValues::zeros(count), AlignedValues::zeros(count));
        let mut held = Self { tensors: BTreeMap::new(), values, gradients };
        for StreamedTensor { segment, table, .. } in layers.into_iter().flat_map(|layer| layer.tensors) {
            let first = first_values(job.train.seed, table, segment.initializer(), &segment.tensor.shape);
            held.values[segment.range.clone()].copy_from_slice(&first);
            let shape = segment.tensor.shape.iter().map(|size| *size as usize).collect();
            held.tensors.insert(segment.tensor.name, HeldTensor { shape, range: segment.range });
        }
        held
    }

    /// In safetensors' format, little-endian, with these values in place of its own.
    pub(crate) fn encode(&self, values: Option<&[f32]>) -> ModelResult<Vec<u8>> {
        let values = values.unwrap_or(&self.values);
        let views = self.tensors.iter().map(|(name, HeldTensor { shape, range })| {
            // Read where they are: the file that this gives is the only copy.
            let bytes = bytemuck::cast_slice(&values[range.clone()]);
            TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name.as_str(), view))
        });
        Ok(safetensors::serialize(views.collect::<Result<Vec<_>, _>>()?, None)?)
    }

    /// Two loops, so that nothing is copied before everything fits.
    pub(crate) fn decode(&mut self, bytes: &[u8]) -> ModelResult {
        let stored = SafeTensors::deserialize(bytes)?;
        check_names(&stored, |name| self.tensors.contains_key(name))?;
        for (name, tensor) in &self.tensors {
            tensor.find(&stored, name)?;
        }
        for (name, tensor) in &self.tensors {
            copy_words(tensor.find(&stored, name)?.data(), &mut self.values[tensor.range.clone()]);
        }
        Ok(())
    }

    /// Takes the `wanted` tensors that have the same name and shape here. Returns the names of the others of this network.
    pub(crate) fn decode_fitting(&mut self, bytes: &[u8], wanted: impl Fn(&str) -> bool) -> ModelResult<Vec<String>> {
        let stored = SafeTensors::deserialize(bytes)?;
        let mut others = Vec::new();
        for (name, tensor) in &self.tensors {
            match tensor.find(&stored, name) {
                Ok(view) if wanted(name) => copy_words(view.data(), &mut self.values[tensor.range.clone()]),
                _ => others.push(name.clone()),
            }
        }
        Ok(others)
    }
}

impl HeldTensor {
    fn find<'a>(&self, stored: &SafeTensors<'a>, name: &str) -> ModelResult<TensorView<'a>> {
        find_tensor(stored, name, Dtype::F32, &self.shape)
    }
}

/// A saved tensor of this name, type and shape.
///
/// # Errors
/// When it is missing, or has another type or shape.
pub fn find_tensor<'a>(
    stored: &SafeTensors<'a>,
    name: &str,
    dtype: Dtype,
    shape: &[usize],
) -> ModelResult<TensorView<'a>> {
    let missing = |_| ModelError::Foreign { what: format!("{name} is missing") };
    let view = stored.tensor(name).map_err(missing)?;
    if view.dtype() != dtype || view.shape() != shape {
        let (found_dtype, found) = (view.dtype(), view.shape());
        let what = format!("{name} is {found_dtype:?} {found:?}, not {dtype:?} {shape:?}");
        return Err(ModelError::Foreign { what });
    }
    Ok(view)
}

/// Looks for a saved tensor that a network does not know.
///
/// # Errors
/// When there is one.
pub fn check_names(stored: &SafeTensors<'_>, is_known: impl Fn(&str) -> bool) -> ModelResult {
    match stored.names().into_iter().filter(|name| !is_known(name)).min() {
        Some(name) => Err(ModelError::Foreign { what: format!("{name} is not a tensor of this network") }),
        None => Ok(()),
    }
}

fn copy_words(bytes: &[u8], values: &mut [f32]) {
    let words = bytes.as_chunks::<4>().0;
    values.iter_mut().zip_eq(words).for_each(|(value, word)| *value = f32::from_le_bytes(*word));
}

/// The first values of a tensor, tile by tile: a function of the seed, its number and its tiles, as an embedding server makes them that
/// holds the tiles. Streamed and resident weights begin with the same bits.
#[must_use]
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
