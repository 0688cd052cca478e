//! Errors as Python exceptions.

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use zagros_session::SessionError;

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
