//! A backend that this machine can use.

use std::time::Duration;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::c10d::roll::RankRoll;
use crate::c10d::sys::NativeGroup;
#[cfg(feature = "nccl")]
use crate::c10d::sys::nccl::NcclLibrary;
use zagros_collective::CollectiveError;
use zagros_job::CollectiveKind;

/// Checks that this program contains a backend. Says nothing about the machine.
///
/// # Errors
/// [`CollectiveError::Backend`] says how to build a program that contains it.
pub fn is_built(backend: CollectiveKind) -> Result<(), CollectiveError> {
    if backend == CollectiveKind::Nccl && !cfg!(feature = "nccl") {
        let reason = "this program was built without NCCL".to_owned();
        let next = "build it with `make setup-cuda && cargo build --release -p zagros --features nccl` (docs/nccl.md)";
        return Err(CollectiveError::Backend { reason, next });
    }
    Ok(())
}

/// A backend that this machine can use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BackendConnector {
    Gloo,
    #[cfg(feature = "nccl")]
    Nccl(NcclLibrary),
}

impl BackendConnector {
    pub(crate) fn open(backend: CollectiveKind) -> Result<Self, CollectiveError> {
        is_built(backend)?;
        match backend {
            CollectiveKind::Gloo => Ok(Self::Gloo),
            #[cfg(feature = "nccl")]
            CollectiveKind::Nccl => open_nccl(CUDA_HALF).map(Self::Nccl),
            #[cfg(not(feature = "nccl"))]
            CollectiveKind::Nccl => unreachable!("it is not built"),
        }
    }

    pub(crate) fn backend(self) -> CollectiveKind {
        match self {
            Self::Gloo => CollectiveKind::Gloo,
            #[cfg(feature = "nccl")]
            Self::Nccl(_) => CollectiveKind::Nccl,
        }
    }

    /// Connects to all other ranks of the roll. Gloo uses the network of `host`.
    pub(crate) fn form_group(self, roll: &RankRoll, host: &str, timeout: Duration) -> Result<NativeGroup, String> {
        let place = (roll.rank, roll.world);
        match self {
            Self::Gloo => NativeGroup::form(&roll.store, &roll.prefix, place, host, timeout),
            #[cfg(feature = "nccl")]
            Self::Nccl(nccl) => nccl.form_group(&roll.store, &roll.prefix, place, timeout),
        }
    }
}

/// Opens everything that NCCL groups need, or names what is missing.
#[cfg(feature = "nccl")]
fn open_nccl(cuda_half: &str) -> Result<NcclLibrary, CollectiveError> {
    const PATH: &str = "put the `lib` folders of the same libtorch release for CUDA, and of CUDA and NCCL, on \
                        LD_LIBRARY_PATH (docs/nccl.md)";
    const DEVICE: &str = "see whether `nvidia-smi` lists a device and, in a container, whether it is given to it \
                          (docs/nccl.md)";
    let missing =
        |what: &'static str, next| move |reason| CollectiveError::Backend { reason: format!("{what}: {reason}"), next };
    open_cuda_half(cuda_half).map_err(missing("libtorch's CUDA half cannot be opened", PATH))?;
    let nccl = NcclLibrary::open().map_err(missing("NCCL's part of this program cannot be opened", PATH))?;
    nccl.device_count().map_err(missing("CUDA shows no device to this program", DEVICE))?;
    Ok(nccl)
}

/// libtorch's CUDA libraries. The programs are not linked to them, and open them when a job asks for a device.
pub(crate) const CUDA_HALF: &str = "libtorch_cuda.so";

/// Opens a library for the whole process, so that libraries opened later find its symbols. Call this before anything asks
/// libtorch about CUDA.
#[expect(unsafe_code, reason = "a library that is opened runs code of its own")]
pub(crate) fn open_cuda_half(name: &str) -> Result<(), String> {
    // SAFETY: libtorch's library only registers what it knows when it is opened; it stays open as long as the process.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) };
    library.map(std::mem::forget).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gloo_is_in_every_program() {
        assert_eq!(BackendConnector::open(CollectiveKind::Gloo).unwrap().backend(), CollectiveKind::Gloo);
    }

    #[cfg(not(feature = "nccl"))]
    #[test]
    fn a_program_without_nccl_says_how_to_build_one_with_it() {
        let error = BackendConnector::open(CollectiveKind::Nccl).unwrap_err().to_string();
        let expected = "cluster.collective = \"nccl\": this program was built without NCCL; build it with";
        assert!(error.starts_with(expected) && error.contains("--features nccl"), "{error}");
        assert!(error.ends_with("or use cluster.collective = \"gloo\""), "{error}");
    }

    #[cfg(feature = "nccl")]
    #[test]
    fn a_machine_without_cuda_is_refused_with_what_to_install() {
        let error = open_nccl("libno_such_library.so").unwrap_err().to_string();
        let expected = "cluster.collective = \"nccl\": libtorch's CUDA half cannot be opened: libno_such_library.so";
        assert!(error.starts_with(expected) && error.contains("LD_LIBRARY_PATH"), "{error}");
    }

    /// With devices the whole test runs; without devices only the refusal.
    #[cfg(feature = "nccl")]
    #[test]
    fn nccl_sums_on_devices_and_refuses_a_machine_without() {
        use zagros_collective::Rendezvous;

        use crate::c10d::{testing, tests};

        match BackendConnector::open(CollectiveKind::Nccl) {
            Ok(BackendConnector::Nccl(nccl)) => {
                let devices = nccl.device_count().unwrap();
                let rendezvous = || |_| Box::new(tests::end(CollectiveKind::Nccl)) as Box<dyn Rendezvous>;
                testing::check_against_plain_sums(rendezvous, devices);
            }
            Ok(BackendConnector::Gloo) => panic!("it is another backend"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("cannot be opened: libtorch_cuda.so") || error.contains("no device"), "{error}");
                assert!(error.ends_with("or use cluster.collective = \"gloo\""), "{error}");
            }
        }
    }

    #[test]
    fn a_library_that_is_there_is_opened() {
        // Every process can open its C library.
        open_cuda_half("libc.so.6").unwrap();
    }
}
