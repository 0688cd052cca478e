//! What libtorch does: networks by autograd, on the processor or a CUDA device, TorchScript modules, products, and groups of workers across
//! processes by its c10d.
//!
//! A network runs on one thread: libtorch keeps its thread count per calling thread.

mod c10d;
mod device;
mod encoding;
mod error;
mod flat;
mod kernel;
mod layers;
mod network;
mod networks;
mod script;
mod variables;

use tch::kind::Element;
use tch::{Device, Tensor};
use zagros_model::Backend;
use zagros_network::GemmKernel;

pub use c10d::{StoreRendezvous, is_built};
use error::TorchResult;
pub use kernel::TorchKernel;
pub use network::TorchLibrary;

/// Products and autograd by libtorch.
pub fn backend() -> Backend {
    Backend { kernels: &[&TorchKernel, &GemmKernel], autograd: Some(&TorchLibrary) }
}

/// Products by what is fastest on this processor, a function of its maker: libtorch's library of products is Intel's, and on processors of AMD
/// the crate gemm outruns it at nearly every shape of a network's layers ([`docs/perf.md`](../../../docs/perf.md)). Autograd by libtorch.
pub fn fastest_backend() -> Backend {
    if is_made_by_amd() { Backend { kernels: &[&GemmKernel, &TorchKernel], ..backend() } } else { backend() }
}

fn is_made_by_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let leaf = std::arch::x86_64::__cpuid(0);
        [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// This thread's share of libtorch. The other pool of libtorch (inter-op) serves TorchScript only and is never started.
fn use_threads(threads: usize) {
    tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
}

/// Empty for an undefined gradient, which is what an input of no columns has.
fn to_vec<T: Element + Clone + Default>(tensor: &Tensor) -> TorchResult<Vec<T>> {
    let count = if tensor.defined() { tensor.numel() } else { 0 };
    let mut values = vec![T::default(); count];
    if count > 0 {
        tensor.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data(&mut values, count)?;
    }
    Ok(values)
}

fn int(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
