//! Weights as safetensors: f32, little-endian, named by layer.

use std::collections::BTreeMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tch::Tensor;
use tch::nn::VarStore;

use super::{ModelError, to_vec};

pub(super) fn encode(variables: &VarStore) -> Result<Vec<u8>, ModelError> {
    let mut stored = BTreeMap::new();
    for (name, tensor) in variables.variables() {
        let bytes: Vec<u8> = to_vec(&tensor.f_detach()?)?.iter().flat_map(|value| value.to_le_bytes()).collect();
        stored.insert(name, (shape(&tensor), bytes));
    }
    let views = stored.iter().map(|(name, (shape, bytes))| {
        TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>, _>>()?;
    Ok(safetensors::serialize(views, None)?)
}

/// Two passes: nothing is copied before everything fits.
pub(super) fn decode(bytes: &[u8], variables: &VarStore) -> Result<(), ModelError> {
    let stored = SafeTensors::deserialize(bytes)?;
    let variables: BTreeMap<String, Tensor> = variables.variables().into_iter().collect();
    if let Some(name) = stored.names().into_iter().filter(|name| !variables.contains_key(*name)).min() {
        return Err(ModelError::Foreign { what: format!("{name} is no tensor of it") });
    }
    let mut values = Vec::with_capacity(variables.len());
    for (name, variable) in &variables {
        values.push(read(&stored, name, variable)?);
    }
    for (mut variable, values) in variables.into_values().zip(values) {
        tch::no_grad(|| variable.f_copy_(&values))?;
    }
    Ok(())
}

fn read(stored: &SafeTensors, name: &str, variable: &Tensor) -> Result<Tensor, ModelError> {
    let missing = |_| ModelError::Foreign { what: format!("{name} is missing") };
    let view = stored.tensor(name).map_err(missing)?;
    if view.dtype() != Dtype::F32 || view.shape() != shape(variable) {
        let (expected, dtype, found) = (shape(variable), view.dtype(), view.shape());
        return Err(ModelError::Foreign { what: format!("{name} is {dtype:?} {found:?}, not F32 {expected:?}") });
    }
    let words = view.data().as_chunks::<4>().0;
    let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    Ok(Tensor::f_from_slice(&values)?.f_reshape(variable.size())?)
}

fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().into_iter().map(|size| usize::try_from(size).unwrap_or(0)).collect()
}
