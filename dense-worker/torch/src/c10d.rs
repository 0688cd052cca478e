//! Groups across processes, by libtorch's c10d.

mod connector;
mod processes;
mod rendezvous;
mod roll;
pub(crate) mod shim;
mod sys;
mod within;

pub use connector::is_built;
pub(crate) use connector::{CUDA_HALF, open_cuda_half};
pub use rendezvous::StoreRendezvous;

#[cfg(test)]
#[path = "../../collective/src/testing.rs"]
mod testing;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use zagros_job::CollectiveKind;

    use super::StoreRendezvous;

    pub(super) fn end(backend: CollectiveKind) -> StoreRendezvous {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        StoreRendezvous::new(listener, address, backend).unwrap()
    }
}
