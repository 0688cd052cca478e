//! The weights of a network, and their gradients, each in one piece of memory: what updates, checks, keeps or sends
//! them walks it once.

use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

use super::pass::{values, values_mut};
use super::{ModelError, int};

/// One buffer with a view for each variable, in the variables' order.
#[derive(Debug)]
pub(super) struct Flat {
    all: Tensor,
    views: Vec<Tensor>,
}

impl Flat {
    /// Moves every variable into one piece of memory. Whoever holds a variable sees its new place; a copy without
    /// gradient made before does not.
    pub(super) fn weights(variables: &VarStore) -> Result<Self, ModelError> {
        let mut variables = variables.trainable_variables();
        let flat = Self::shaped_like(&variables)?;
        for (variable, view) in variables.iter_mut().zip(&flat.views) {
            let _ = view.shallow_clone().f_copy_(&variable.f_detach()?)?;
            variable.f_set_data(view)?;
        }
        Ok(flat)
    }

    /// Makes every variable's gradient a view, which it stays: gradients are set to zero, never dropped.
    pub(super) fn gradients(variables: &VarStore) -> Result<Self, ModelError> {
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
        let all = Tensor::f_zeros([int(count)], (Kind::Float, Device::Cpu))?;
        let (mut views, mut start) = (Vec::new(), 0);
        for tensor in tensors {
            let length = int(tensor.numel());
            views.push(all.f_narrow(0, start, length)?.f_view_(tensor.size())?);
            start += length;
        }
        Ok(Self { all, views })
    }

    /// Of each variable, shaped like it.
    pub(super) fn views(&self) -> impl Iterator<Item = Tensor> {
        self.views.iter().map(Tensor::shallow_clone)
    }

    pub(super) fn zero(&mut self) -> Result<(), ModelError> {
        let _ = self.all.f_zero_()?;
        Ok(())
    }

    /// All of them, variable after variable.
    pub(super) fn values(&self) -> &[f32] {
        values(&self.all)
    }

    /// As [`Self::values`], to be changed.
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        values_mut(&mut self.all)
    }
}
