//! Weights, and a module's buffers, as safetensors: little-endian, named by layer.

use std::collections::BTreeMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use zagros_tensor::{ScalarType, Tensor, no_grad};
use zagros_zip::ZipEq;

use super::ModelError;
use super::variables::Variables;

pub(super) fn encode(variables: &Variables) -> Result<Vec<u8>, ModelError> {
    let mut stored = BTreeMap::new();
    for (name, tensor) in variables.named() {
        let (kind, dtype) = stored_as(tensor)?;
        // Little-endian, as the processor.
        let bytes = tensor.detach()?.to_kind(kind)?.to_bytes()?;
        stored.insert(name, (dtype, shape(tensor), bytes));
    }
    let views = stored
        .iter()
        .map(|(name, (dtype, shape, bytes))| TensorView::new(*dtype, shape.clone(), bytes).map(|view| (*name, view)));
    let views = views.collect::<Result<Vec<_>, _>>()?;
    Ok(safetensors::serialize(views, None)?)
}

/// Weights are f32. A module's buffers can be of any kind: each is kept as one that holds all its values.
fn stored_as(tensor: &Tensor) -> Result<(ScalarType, Dtype), ModelError> {
    Ok(match tensor.kind() {
        ScalarType::Float | ScalarType::Half | ScalarType::BFloat16 => (ScalarType::Float, Dtype::F32),
        ScalarType::Double => (ScalarType::Double, Dtype::F64),
        _ => (ScalarType::Int64, Dtype::I64),
    })
}

/// Two loops: nothing is copied before everything fits.
pub(super) fn decode(bytes: &[u8], variables: &Variables) -> Result<(), ModelError> {
    let stored = SafeTensors::deserialize(bytes)?;
    let variables: BTreeMap<&str, &Tensor> = variables.named().collect();
    if let Some(name) = stored.names().into_iter().filter(|name| !variables.contains_key(*name)).min() {
        return Err(ModelError::Foreign { what: format!("{name} is no tensor of it") });
    }
    let mut values = Vec::with_capacity(variables.len());
    for (name, variable) in &variables {
        values.push(read(&stored, name, variable)?);
    }
    for (variable, values) in variables.into_values().zip_eq(values) {
        no_grad(|| variable.shallow_clone().copy_(&values))?;
    }
    Ok(())
}

fn read(stored: &SafeTensors, name: &str, variable: &Tensor) -> Result<Tensor, ModelError> {
    let missing = |_| ModelError::Foreign { what: format!("{name} is missing") };
    let view = stored.tensor(name).map_err(missing)?;
    let (kind, dtype) = stored_as(variable)?;
    if view.dtype() != dtype || view.shape() != shape(variable) {
        let (expected, found_dtype, found) = (shape(variable), view.dtype(), view.shape());
        let what = format!("{name} is {found_dtype:?} {found:?}, not {dtype:?} {expected:?}");
        return Err(ModelError::Foreign { what });
    }
    Ok(Tensor::from_bytes(view.data(), &variable.size(), kind)?)
}

fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().into_iter().map(|size| usize::try_from(size).unwrap_or(0)).collect()
}
