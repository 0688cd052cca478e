//! The native half of the Python package `zagros` (`python/zagros`): sessions whose waits release the interpreter's lock, saved
//! rows and folders, rows from elsewhere, and batches of data.
//!
//! Tensors cross as DLPack capsules, so nothing here knows torch. Everything that a user calls is in the Python half.

mod data;
mod errors;
mod row_writer;
mod saved;
mod session;
mod tensor;

use pyo3::prelude::*;

/// Names of `zagros._native`; `_native.pyi` has their types.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::data::BatchReader;
    #[pymodule_export]
    use crate::errors::ZagrosError;
    #[pymodule_export]
    use crate::row_writer::NativeRowWriter;
    #[pymodule_export]
    use crate::saved::NativeFolder;
    #[pymodule_export]
    use crate::saved::{Blocks, NativeTable, id_of, saved_tables};
    #[pymodule_export]
    use crate::session::{Batch, NativeSession, job_toml};
}
