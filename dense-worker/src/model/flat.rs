//! The weights of a network, and their gradients, each in one piece of memory: what updates, checks, keeps or sends
//! them walks it once.

use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};
use zagros_zip::ZipEq;

use super::forward_backward::{values, values_mut};
use super::{ModelError, int};

/// One buffer with a view for each variable, in the variables' order.
#[derive(Debug)]
pub(super) struct FlatParameters {
    all: Tensor,
    views: Vec<Tensor>,
    /// What everyone but libtorch reads and writes, where that is not the buffer itself: it is on a device.
    mirror: Option<Tensor>,
}

impl FlatParameters {
    /// Moves every variable into one piece of memory. Whoever holds a variable sees its new place; a copy without
    /// gradient made before does not.
    pub(super) fn weights(variables: &VarStore, mirrored: bool) -> Result<Self, ModelError> {
        let mut variables = variables.trainable_variables();
        let mut flat = Self::shaped_like(&variables, mirrored)?;
        for (variable, view) in variables.iter_mut().zip_eq(&flat.views) {
            view.shallow_clone().f_copy_(&variable.f_detach()?)?;
            variable.f_set_data(view)?;
        }
        flat.download()?;
        Ok(flat)
    }

    /// Makes every variable's gradient a view, which it stays: gradients are set to zero, never dropped.
    pub(super) fn gradients(variables: &VarStore, mirrored: bool) -> Result<Self, ModelError> {
        let variables = variables.trainable_variables();
        let gradients = Self::shaped_like(&variables, mirrored)?;
        for (variable, view) in variables.iter().zip_eq(&gradients.views) {
            // A gradient exists only after a backward; then it can be given other memory.
            variable.f_sum(Kind::Float)?.f_backward()?;
            variable.f_grad()?.f_set_data(view)?;
        }
        Ok(gradients)
    }

    /// Memory of the same form that no variable sees.
    pub(super) fn twin(&self) -> Result<Self, ModelError> {
        Self::shaped_like(&self.views, false)
    }

    fn shaped_like(tensors: &[Tensor], mirrored: bool) -> Result<Self, ModelError> {
        let count: usize = tensors.iter().map(Tensor::numel).sum();
        let zeros = |device| Tensor::f_zeros([int(count)], (Kind::Float, device));
        let all = zeros(tensors.first().map_or(Device::Cpu, Tensor::device))?;
        let mirror = mirrored.then(|| zeros(Device::Cpu)).transpose()?;
        let (mut views, mut start) = (Vec::new(), 0);
        for tensor in tensors {
            let length = int(tensor.numel());
            views.push(all.f_narrow(0, start, length)?.f_view_(tensor.size())?);
            start += length;
        }
        Ok(Self { all, views, mirror })
    }

    /// Of each variable, shaped like it.
    pub(super) fn views(&self) -> impl Iterator<Item = Tensor> {
        self.views.iter().map(Tensor::shallow_clone)
    }

    pub(super) fn zero(&mut self) -> Result<(), ModelError> {
        let _ = self.all.f_zero_()?;
        self.download()
    }

    /// Makes the buffer what the mirror is, where there is one.
    pub(super) fn upload(&self) -> Result<(), ModelError> {
        if let Some(mirror) = &self.mirror {
            self.all.shallow_clone().f_copy_(mirror)?;
        }
        Ok(())
    }

    /// Makes the mirror, where there is one, what the buffer is.
    pub(super) fn download(&mut self) -> Result<(), ModelError> {
        if let Some(mirror) = &mut self.mirror {
            mirror.f_copy_(&self.all)?;
        }
        Ok(())
    }

    /// All of them, variable after variable.
    pub(super) fn values(&self) -> &[f32] {
        values(self.mirror.as_ref().unwrap_or(&self.all))
    }

    /// As [`Self::values`], to be changed.
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        values_mut(self.mirror.as_mut().unwrap_or(&mut self.all))
    }
}
