//! The weights of a network as they are saved and taken: weights, and a module's buffers, as safetensors, little-endian, named by
//! layer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};
use zagros_model::TensorForm;
use zagros_zip::ZipEq;

use crate::error::TorchResult;
use crate::flat::values;

/// Reads the weights where they are: the file that this gives is the only copy.
pub(crate) fn encode(variables: &VarStore) -> TorchResult<Vec<u8>> {
    let tensors = named(variables);
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

/// The tensors that are saved, ascending by name.
pub(crate) fn tensor_forms(variables: &VarStore) -> TorchResult<Vec<TensorForm>> {
    let form =
        |(name, tensor): (String, Tensor)| Ok(TensorForm { dtype: stored_as(&tensor)?.1, shape: shape(&tensor), name });
    named(variables).into_iter().map(form).collect()
}

/// Takes saved values in the order of the forms; none stays as it is.
pub(crate) fn take_tensors(variables: &VarStore, saved: &[Option<&[u8]>]) -> TorchResult {
    for (mut variable, saved) in named(variables).into_values().zip_eq(saved) {
        if let Some(bytes) = saved {
            let values = Tensor::f_from_data_size(bytes, &variable.size(), stored_as(&variable)?.0)?;
            tch::no_grad(|| variable.f_copy_(&values))?;
        }
    }
    Ok(())
}

fn named(variables: &VarStore) -> BTreeMap<String, Tensor> {
    variables.variables().into_iter().collect()
}

fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().into_iter().map(|size| usize::try_from(size).unwrap_or(0)).collect()
}
