//! The weights of a network, and their gradients, each in one piece of memory. Code that updates, checks, keeps or sends
//! them makes one loop over it. All weights are sent and received one after another, in the order of the gradients.

use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};
use zagros_zip::ZipEq;

use crate::error::TorchResult;
use crate::int;

/// One buffer with a view for each variable, in the variables' order.
#[derive(Debug)]
pub(crate) struct FlatParameters {
    all: Tensor,
    views: Vec<Tensor>,
    /// A copy in the machine's memory, if the buffer is on a device. All code but libtorch reads and writes the copy.
    mirror: Option<Tensor>,
}

impl FlatParameters {
    /// Moves all variables into one piece of memory. Holders of a variable see the new memory. A copy without gradient that
    /// was made before does not.
    pub(crate) fn from_weights(variables: &VarStore, mirrored: bool) -> TorchResult<Self> {
        let mut variables = variables.trainable_variables();
        let mut flat = Self::shaped_like(&variables, mirrored)?;
        for (variable, view) in variables.iter_mut().zip_eq(&flat.views) {
            view.shallow_clone().f_copy_(&variable.f_detach()?)?;
            variable.f_set_data(view)?;
        }
        flat.download()?;
        Ok(flat)
    }

    /// Makes every variable's gradient a view of one buffer. It stays one: gradients are set to zero, never dropped.
    pub(crate) fn from_gradients(variables: &VarStore, mirrored: bool) -> TorchResult<Self> {
        let variables = variables.trainable_variables();
        let gradients = Self::shaped_like(&variables, mirrored)?;
        for (variable, view) in variables.iter().zip_eq(&gradients.views) {
            // A gradient exists only after a backward. Then it can get other memory.
            variable.f_sum(Kind::Float)?.f_backward()?;
            variable.f_grad()?.f_set_data(view)?;
        }
        Ok(gradients)
    }

    fn shaped_like(tensors: &[Tensor], mirrored: bool) -> TorchResult<Self> {
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

    pub(crate) fn set_to_zero(&mut self) -> TorchResult {
        let _ = self.all.f_zero_()?;
        self.download()
    }

    /// Copies the mirror, if there is one, to the buffer.
    pub(crate) fn upload(&self) -> TorchResult {
        if let Some(mirror) = &self.mirror {
            self.all.shallow_clone().f_copy_(mirror)?;
        }
        Ok(())
    }

    /// Runs `work` while the variables have these values, or their own without any.
    pub(crate) fn with_values<T>(
        &self,
        values: Option<&[f32]>,
        work: impl FnOnce() -> TorchResult<T>,
    ) -> TorchResult<T> {
        self.upload()?;
        let Some(values) = values else { return work() };
        let own = Tensor::f_from_slice(self.values())?;
        self.all.shallow_clone().f_copy_(&Tensor::f_from_slice(values)?)?;
        let done = work();
        self.all.shallow_clone().f_copy_(&own)?;
        done
    }

    /// Copies the buffer to the mirror, if there is one.
    pub(crate) fn download(&mut self) -> TorchResult {
        if let Some(mirror) = &mut self.mirror {
            mirror.f_copy_(&self.all)?;
        }
        Ok(())
    }

    /// Variable after variable.
    pub(crate) fn values(&self) -> &[f32] {
        // Streamed weights are elsewhere.
        if self.views.is_empty() { &[] } else { values(self.mirror.as_ref().unwrap_or(&self.all)) }
    }

    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        if self.views.is_empty() { &mut [] } else { values_mut(self.mirror.as_mut().unwrap_or(&mut self.all)) }
    }
}

/// The values of a contiguous f32 tensor in this process's memory.
pub(crate) fn values(tensor: &Tensor) -> &[f32] {
    check(tensor);
    #[expect(
        unsafe_code,
        reason = "tch lends no slice of a tensor, and a copy of every activation costs a tenth of a step"
    )]
    // SAFETY: the tensor is defined, contiguous, of f32 and in this process's memory, so its numel() values follow its
    // data pointer, which is aligned for f32; they live as long as the handle, which the slice borrows. Nothing
    // writes to them meanwhile: all users are in this module, on one thread, and ask libtorch for nothing while they hold it.
    unsafe {
        std::slice::from_raw_parts(tensor.data_ptr().cast::<f32>(), tensor.numel())
    }
}

pub(crate) fn values_mut(tensor: &mut Tensor) -> &mut [f32] {
    check(tensor);
    #[expect(unsafe_code, reason = "as above")]
    // SAFETY: as above; and nothing else reads them meanwhile.
    unsafe {
        std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<f32>(), tensor.numel())
    }
}

fn check(tensor: &Tensor) {
    let plain = tensor.is_contiguous() && tensor.kind() == Kind::Float && tensor.device() == Device::Cpu;
    assert!(plain && tensor.numel() > 0, "not a plain f32 tensor: {tensor:?}");
}
