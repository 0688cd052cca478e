//! The gradients of all weights, in one piece of memory.

use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

use super::pass::{values, values_mut};
use super::{ModelError, int};

/// Told, as a pass goes back, from which weight on all gradients are final, and these gradients. They come sooner or
/// later, in steps of any size; what is not told of is final when the pass is over.
pub type Final<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// One buffer that every variable's gradient is a view of, in the variables' order: what checks it or sends it
/// elsewhere walks it once. It stays where it is: gradients are set to zero, never dropped.
#[derive(Debug)]
pub(super) struct Gradients {
    flat: Tensor,
    views: Vec<Tensor>,
}

impl Gradients {
    pub(super) fn attach(variables: &VarStore) -> Result<Self, ModelError> {
        let variables = variables.trainable_variables();
        let gradients = Self::shaped_like(&variables)?;
        for (variable, view) in variables.iter().zip(&gradients.views) {
            // A gradient comes to be by a backward pass only; then it can be given other memory.
            variable.f_sum(Kind::Float)?.f_backward()?;
            variable.f_grad()?.f_set_data(view)?;
        }
        Ok(gradients)
    }

    /// Memory of the same form that no variable sees.
    pub(super) fn twin(&self) -> Result<Self, ModelError> {
        Self::shaped_like(&self.views)
    }

    fn shaped_like(tensors: &[Tensor]) -> Result<Self, ModelError> {
        let count: usize = tensors.iter().map(Tensor::numel).sum();
        let flat = Tensor::f_zeros([int(count)], (Kind::Float, Device::Cpu))?;
        let (mut views, mut start) = (Vec::new(), 0);
        for tensor in tensors {
            let length = int(tensor.numel());
            views.push(flat.f_narrow(0, start, length)?.f_view_(tensor.size())?);
            start += length;
        }
        Ok(Self { flat, views })
    }

    /// Of each variable, shaped like it.
    pub(super) fn views(&self) -> impl Iterator<Item = Tensor> {
        self.views.iter().map(Tensor::shallow_clone)
    }

    pub(super) fn zero(&mut self) -> Result<(), ModelError> {
        let _ = self.flat.f_zero_()?;
        Ok(())
    }

    /// All of them, variable after variable.
    pub(super) fn values(&self) -> &[f32] {
        values(&self.flat)
    }

    /// As [`Self::values`], to be changed.
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        values_mut(&mut self.flat)
    }
}
