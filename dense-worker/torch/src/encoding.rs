//! The weights of a network as they are saved and taken: weights, and a module's buffers, as safetensors, little-endian, named by
//! layer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};
use zagros_model::{ModelError, check_names, find_tensor};
use zagros_zip::ZipEq;

use crate::error::{TorchError, TorchResult};
use crate::flat::values;

/// Reads the weights where they are: the file that this gives is the only copy.
pub(crate) fn encode(variables: &VarStore) -> TorchResult<Vec<u8>> {
    let tensors: BTreeMap<String, Tensor> = variables.variables().into_iter().collect();
    let mut stored = Vec::with_capacity(tensors.len());
    for (name, tensor) in &tensors {
        let (kind, dtype) = stored_as(tensor)?;
        stored.push((name, dtype, shape(tensor), bytes_of(tensor, kind)?));
    }
    let views = stored.iter().map(|(name, dtype, shape, bytes)| {
        TensorView::new(*dtype, shape.clone(), bytes).map(|view| (name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>, _>>()?;
    Ok(safetensors::serialize(views, None)?)
}

/// Little-endian, in this kind; borrowed where the tensor has this form.
fn bytes_of(tensor: &Tensor, kind: Kind) -> TorchResult<Cow<'_, [u8]>> {
    let is_plain = kind == Kind::Float
        && tensor.f_kind()? == kind
        && tensor.device() == Device::Cpu
        && tensor.is_contiguous()
        && tensor.numel() > 0;
    if is_plain && cfg!(target_endian = "little") {
        return Ok(Cow::Borrowed(bytemuck::cast_slice(values(tensor))));
    }
    Ok(Cow::Owned(bytes(&tensor.f_detach()?.f_to_kind(kind)?)?))
}

/// Weights are f32. A module's buffers may have any kind; each is stored in a kind that holds all its values.
fn stored_as(tensor: &Tensor) -> TorchResult<(Kind, Dtype)> {
    Ok(match tensor.f_kind()? {
        Kind::Float | Kind::Half | Kind::BFloat16 => (Kind::Float, Dtype::F32),
        Kind::Double => (Kind::Double, Dtype::F64),
        _ => (Kind::Int64, Dtype::I64),
    })
}

fn bytes(tensor: &Tensor) -> TorchResult<Vec<u8>> {
    let tensor = tensor.f_to_device(Device::Cpu)?.f_contiguous()?;
    let mut bytes = vec![0; tensor.numel() * tensor.f_kind()?.elt_size_in_bytes()];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
    Ok(bytes)
}

/// Two loops, so that nothing is copied before everything fits.
pub(crate) fn decode(bytes: &[u8], variables: &VarStore) -> TorchResult {
    let stored = SafeTensors::deserialize(bytes)?;
    let variables: BTreeMap<String, Tensor> = variables.variables().into_iter().collect();
    check_names(&stored, |name| variables.contains_key(name))?;
    let values = variables.iter().map(|(name, variable)| read(&stored, name, variable));
    let values = values.collect::<Result<Vec<_>, _>>()?;
    for (mut variable, values) in variables.into_values().zip_eq(values) {
        tch::no_grad(|| variable.f_copy_(&values))?;
    }
    Ok(())
}

/// Takes the `wanted` tensors that have the same name, kind and shape here. Returns the names of the others of this network.
pub(crate) fn decode_fitting(
    bytes: &[u8],
    variables: &VarStore,
    wanted: impl Fn(&str) -> bool,
) -> TorchResult<Vec<String>> {
    let stored = SafeTensors::deserialize(bytes)?;
    let mut others = Vec::new();
    for (name, mut variable) in variables.variables() {
        let values = Some(&name).filter(|name| wanted(name)).map(|name| read(&stored, name, &variable));
        match values {
            Some(Ok(values)) => tch::no_grad(|| variable.f_copy_(&values))?,
            None | Some(Err(TorchError::Model(ModelError::Foreign { .. }))) => others.push(name),
            Some(Err(error)) => return Err(error),
        }
    }
    others.sort_unstable();
    Ok(others)
}

fn read(stored: &SafeTensors, name: &str, variable: &Tensor) -> TorchResult<Tensor> {
    let (kind, dtype) = stored_as(variable)?;
    let view = find_tensor(stored, name, dtype, &shape(variable))?;
    Ok(Tensor::f_from_data_size(view.data(), &variable.size(), kind)?)
}

fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().into_iter().map(|size| usize::try_from(size).unwrap_or(0)).collect()
}
