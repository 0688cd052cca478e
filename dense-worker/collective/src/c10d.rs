//! Groups across processes, by libtorch's c10d.

mod connector;
mod processes;
mod rendezvous;
mod roll;
pub mod shim;
mod sys;
mod within;

pub use connector::{CUDA_HALF, open_cuda_half};
pub use rendezvous::StoreRendezvous;
pub(crate) use sys::NativeWork;
