//! The variables of a network whose weights are elsewhere, for a step with autograd. A variable has values while its layer is in use.
//!
//! The network holds its variables, and this holds second handles of them: what is set here, is seen there.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};
use zagros_model::{LayerValues, LayerWindow, TraversalPurpose};
use zagros_zip::ZipEq;

use crate::error::TorchError;
use crate::int;

/// The thread of a step with autograd among those of the window: libtorch has threads of its own.
const THREAD: usize = 0;

#[derive(Debug)]
pub(crate) struct StreamedVariables {
    window: Arc<LayerWindow>,
    layers: Vec<Vec<StreamedVariable>>,
}

#[derive(Debug)]
struct StreamedVariable {
    handle: Tensor,
    shape: Vec<i64>,
}

impl StreamedVariables {
    /// Of each layer its variables, in the order of its tensors. They have their shapes.
    pub(crate) fn new(window: Arc<LayerWindow>, layers: Vec<Vec<Tensor>>) -> Result<Self, TorchError> {
        let variable = |handle: Tensor| {
            // libtorch chooses between products of the same values by what requires a gradient.
            Ok(StreamedVariable { shape: handle.size(), handle: handle.f_set_requires_grad(true)? })
        };
        let of_layer = |layer: Vec<Tensor>| layer.into_iter().map(variable).collect();
        Ok(Self { window, layers: layers.into_iter().map(of_layer).collect::<Result<_, TorchError>>()? })
    }

    /// Calls `work` while a layer's variables have their values, for which it waits. `work` gives nothing that reads them afterwards.
    pub(crate) fn forward<T>(
        &self,
        layer: usize,
        work: impl FnOnce() -> Result<T, TorchError>,
    ) -> Result<T, TorchError> {
        let (number, values) = self.window.begin_use(THREAD, layer)?;
        let done = as_tensor(&values).and_then(|values| self.set(layer, &values)).and_then(|()| work());
        self.take_away(layer)?;
        drop(values);
        self.window.end_use(number)?;
        done
    }

    /// As [`Self::forward`]. `work` gets the variables, and gives the gradient of each first. An undefined one is zero. Returns what else
    /// `work` gives.
    pub(crate) fn backward(
        &self,
        layer: usize,
        work: impl FnOnce(&[&Tensor]) -> Result<Vec<Tensor>, TorchError>,
    ) -> Result<Vec<Tensor>, TorchError> {
        let variables: Vec<&Tensor> = self.layers[layer].iter().map(|variable| &variable.handle).collect();
        let mut made = self.forward(layer, || work(&variables))?;
        let others = made.split_off(variables.len());
        let mut gradients = self.window.layer_memory(layer);
        let all = as_tensor_mut(&mut gradients)?;
        for (mut into, gradient) in self.parts(layer, &all)?.into_iter().zip_eq(made) {
            if gradient.defined() {
                into.f_copy_(&gradient)?;
            } else {
                let _ = into.f_zero_()?;
            }
        }
        drop(all);
        self.window.give_gradients(THREAD, layer, gradients)?;
        Ok(others)
    }

    /// Before a forward that scores.
    pub(crate) fn start_scoring(&self) {
        self.window.start(TraversalPurpose::Scoring, (0, 0.0), 1);
    }

    fn set(&self, layer: usize, values: &Tensor) -> Result<(), TorchError> {
        let variables = self.layers[layer].iter().zip_eq(self.parts(layer, values)?);
        variables.into_iter().try_for_each(|(variable, part)| Ok(variable.handle.shallow_clone().f_set_data(&part)?))
    }

    /// Leaves the variables without values, so that a use without the layer fails.
    fn take_away(&self, layer: usize) -> Result<(), TorchError> {
        let nothing = Tensor::f_zeros([0], (Kind::Float, Device::Cpu))?;
        let mut variables = self.layers[layer].iter();
        variables.try_for_each(|variable| Ok(variable.handle.shallow_clone().f_set_data(&nothing)?))
    }

    /// Whether a layer's variables have no values.
    #[cfg(test)]
    pub(crate) fn is_away(&self, layer: usize) -> bool {
        self.layers[layer].iter().all(|variable| variable.handle.numel() == 0)
    }

    /// Views of `[weights]` with the shapes of the variables.
    fn parts(&self, layer: usize, all: &Tensor) -> Result<Vec<Tensor>, TorchError> {
        let (mut start, mut parts) = (0, Vec::with_capacity(self.layers[layer].len()));
        for StreamedVariable { shape, .. } in &self.layers[layer] {
            let count = shape.iter().product();
            parts.push(all.f_narrow(0, start, count)?.f_view_(shape.as_slice())?);
            start += count;
        }
        Ok(parts)
    }
}

/// `[length]`, for libtorch to read while these values live.
fn as_tensor(values: &LayerValues) -> Result<Tensor, TorchError> {
    let (data, size) = (values.as_ptr().cast::<u8>(), [int(values.len())]);
    #[expect(unsafe_code, reason = "a copy of every layer that comes costs as much as its way here")]
    // SAFETY: the memory has so many values of f32, is aligned for them, and stays where it is while these values live. All
    // holders of the tensor are variables of a layer in use: the layer takes it from them before it gives the values back.
    // libtorch only reads it.
    let tensor = unsafe { Tensor::f_from_blob(data, &size, &[1], Kind::Float, Device::Cpu) };
    Ok(tensor?)
}

/// As [`as_tensor`], to be written too.
fn as_tensor_mut(values: &mut LayerValues) -> Result<Tensor, TorchError> {
    let (data, size) = (values.as_mut_ptr().cast::<u8>(), [int(values.len())]);
    #[expect(unsafe_code, reason = "as above")]
    // SAFETY: as above. No code reads or writes the slice while libtorch uses the tensor.
    let tensor = unsafe { Tensor::f_from_blob(data, &size, &[1], Kind::Float, Device::Cpu) };
    Ok(tensor?)
}
