//! libtorch's tensors, as far as the dense network needs them. The C++ of `shim/tensor.cpp` makes each call; nothing else
//! is compiled against libtorch's tensors, which takes seconds where bindings of all its functions take minutes
//! (docs/adr/0032).
//!
//! Each function that can fail answers with libtorch's own words. A [`Tensor`] is a handle: [`Tensor::shallow_clone`] and
//! views share its memory.

mod device;
mod error;
mod grad;
mod operators;
mod scalar_type;
mod sys;
mod tensor;

pub use device::{TensorDevice, cuda_is_available, set_num_threads};
pub use error::TorchError;
pub use grad::{NoGradGuard, manual_seed, no_grad, no_grad_guard};
pub use scalar_type::{Element, ScalarType};
pub use tensor::Tensor;
