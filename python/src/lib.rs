//! The native half of the Python package `zagros` (`python/zagros`): sessions whose waits release the interpreter's lock, saved
//! rows and folders, rows from elsewhere, and batches of data.
//!
//! Tensors cross as DLPack capsules, so nothing here knows torch. Everything that a user calls is in the Python half.

mod data;
mod row_writer;
mod saved;
mod session;
mod tensor;

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use zagros_session::SessionError;

/// Names of `zagros._native`; `_native.pyi` has their types.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::ZagrosError;
    #[pymodule_export]
    use crate::data::BatchReader;
    #[pymodule_export]
    use crate::row_writer::NativeRowWriter;
    #[pymodule_export]
    use crate::saved::NativeFolder;
    #[pymodule_export]
    use crate::saved::{Blocks, NativeTable, id_of, saved_tables};
    #[pymodule_export]
    use crate::session::{Batch, NativeSession, job_toml};
}

create_exception!(zagros, ZagrosError, PyRuntimeError, "What failed, where, why, and what to do next.");

/// The exception of an error. What ended a wait from the side of Python, such as `KeyboardInterrupt`, stays what it is.
pub(crate) fn raised(error: SessionError) -> PyErr {
    match error {
        SessionError::Interrupted(cause) => match cause.downcast::<PyErr>() {
            Ok(exception) => *exception,
            Err(cause) => ZagrosError::new_err(cause.to_string()),
        },
        SessionError::Job(_) | SessionError::JobText(_) | SessionError::Address { .. } => {
            PyValueError::new_err(error.to_string())
        }
        error => ZagrosError::new_err(error.to_string()),
    }
}

/// The exception of an error of another crate, whose message says what to do.
pub(crate) fn failed<E: std::error::Error>(error: E) -> PyErr {
    ZagrosError::new_err(error.to_string())
}

pub(crate) fn wrong_type(message: String) -> PyErr {
    PyTypeError::new_err(message)
}
