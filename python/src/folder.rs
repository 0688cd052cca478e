//! Folders of saves, on a disk or in an object store, for the files that Python writes itself.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zagros_store::{Folder, StoreError};

use crate::errors::failed;

/// A folder of files.
#[pyclass(module = "zagros._native", frozen)]
pub(crate) struct NativeFolder(Folder);

#[pymethods]
impl NativeFolder {
    /// A path, `file:///path` or `s3://bucket/prefix`. A request to a store takes at most `timeout` seconds, with retries.
    #[new]
    fn new(place: &str, timeout: f64) -> PyResult<Self> {
        Ok(Self(Folder::open(place, Duration::from_secs_f64(timeout)).map_err(refused)?))
    }

    /// Makes it, if it is on a disk.
    fn make(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.make()).map(drop).map_err(refused)
    }

    /// Whether this file exists.
    fn has(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        py.detach(|| self.0.has_file(name)).map_err(refused)
    }

    /// The content of a file.
    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &py.detach(|| self.0.read(name)).map_err(refused)?))
    }

    /// Writes a file, whole or not at all (invariant CK-1).
    fn write(&self, py: Python<'_>, name: &str, content: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.write(name, content)).map_err(refused)
    }

    /// Deletes a file, if it is there.
    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        py.detach(|| self.0.delete_file(name)).map_err(refused)
    }
}

fn refused(error: StoreError) -> PyErr {
    failed(&error)
}
