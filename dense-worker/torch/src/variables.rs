//! The variables of a network whose weights are elsewhere, for a step with autograd. A variable has values while its layer is in use.
//!
//! The network holds its variables, and this holds second handles of them: what is set here, is seen there.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};
use zagros_model::{LayerWindow, TraversalPurpose};
use zagros_network::{View, ViewMut};
use zagros_zip::ZipEq;

use crate::error::TorchResult;
use crate::kernel::{tensor, tensor_mut};

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
    pub(crate) fn new(window: Arc<LayerWindow>, layers: Vec<Vec<Tensor>>) -> TorchResult<Self> {
        let variable = |handle: Tensor| {
            // libtorch chooses between products of the same values by what requires a gradient.
            Ok(StreamedVariable { shape: handle.size(), handle: handle.f_set_requires_grad(true)? })
        };
        let of_layer = |layer: Vec<Tensor>| layer.into_iter().map(variable).collect();
        Ok(Self { window, layers: layers.into_iter().map(of_layer).collect::<TorchResult<_>>()? })
    }

    /// Calls `work` while a layer's variables have their values, for which it waits. `work` gives nothing that reads them afterwards.
    pub(crate) fn forward<T>(&self, layer: usize, work: impl FnOnce() -> TorchResult<T>) -> TorchResult<T> {
        let (number, values) = self.window.begin_use(THREAD, layer)?;
        let done = tensor(View::dense(&values, (1, values.len())))
            .and_then(|values| self.set(layer, &values))
            .and_then(|()| work());
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
        work: impl FnOnce(&[&Tensor]) -> TorchResult<Vec<Tensor>>,
    ) -> TorchResult<Vec<Tensor>> {
        let variables: Vec<&Tensor> = self.layers[layer].iter().map(|variable| &variable.handle).collect();
        let mut made = self.forward(layer, || work(&variables))?;
        let others = made.split_off(variables.len());
        let mut gradients = self.window.layer_memory(layer);
        let (rows, columns) = (1, gradients.len());
        let all = tensor_mut(ViewMut::dense(&mut gradients, (rows, columns)))?;
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

    fn set(&self, layer: usize, values: &Tensor) -> TorchResult {
        let variables = self.layers[layer].iter().zip_eq(self.parts(layer, values)?);
        variables.into_iter().try_for_each(|(variable, part)| Ok(variable.handle.shallow_clone().f_set_data(&part)?))
    }

    /// Leaves the variables without values, so that a use without the layer fails.
    fn take_away(&self, layer: usize) -> TorchResult {
        let nothing = Tensor::f_zeros([0], (Kind::Float, Device::Cpu))?;
        let mut variables = self.layers[layer].iter();
        variables.try_for_each(|variable| Ok(variable.handle.shallow_clone().f_set_data(&nothing)?))
    }

    /// Whether a layer's variables have no values.
    #[cfg(test)]
    pub(crate) fn is_away(&self, layer: usize) -> bool {
        self.layers[layer].iter().all(|variable| variable.handle.numel() == 0)
    }

    /// Views of `[1, weights]` with the shapes of the variables.
    fn parts(&self, layer: usize, all: &Tensor) -> TorchResult<Vec<Tensor>> {
        let (mut start, mut parts) = (0, Vec::with_capacity(self.layers[layer].len()));
        for StreamedVariable { shape, .. } in &self.layers[layer] {
            let count = shape.iter().product();
            parts.push(all.f_narrow(1, start, count)?.f_view_(shape.as_slice())?);
            start += count;
        }
        Ok(parts)
    }
}
