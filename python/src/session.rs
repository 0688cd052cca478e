//! Sessions and batches as Python classes.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use zagros_embedding_client::BatchRows;
use zagros_session::{BatchAccess, FileDigest, LookupBatch, RunReach, Session, SessionError, parse_job};

use zagros_zip::ZipEq;

use crate::raised;
use crate::tensor::{capsule, values};

/// The gradients of a batch by table, `None` for a table whose rows get none.
type TableGradients<'py> = Vec<Option<Bound<'py, PyCapsule>>>;

/// A file of rows: name, bytes, SHA-256.
type FileTuple = (String, u64, Vec<u8>);

/// A worker's connection to coordinator and servers.
#[pyclass(module = "zagros._native", frozen)]
pub(crate) struct NativeSession {
    session: Session,
    /// Called ten times a second during a wait; what it raises ends the wait.
    watch: Option<Py<PyAny>>,
}

/// A batch between its lookup and its push.
#[pyclass(module = "zagros._native", frozen)]
pub(crate) struct Batch(Arc<LookupBatch>);

/// The resolved TOML of a job that is given as JSON, and its fingerprint.
#[pyfunction]
pub(crate) fn job_toml(json: &str, name: &str) -> PyResult<(String, String)> {
    let text = zagros_session::job_toml(json).map_err(raised)?;
    let job = parse_job(&text, name).map_err(raised)?;
    Ok((job.to_toml(), format!("{:016x}", job.fingerprint())))
}

/// During its waits, `work` takes the interpreter's lock ten times a second, for signals and for `watch`.
fn waiting<T: Send>(
    py: Python<'_>,
    watch: Option<&Py<PyAny>>,
    work: impl FnOnce(zagros_session::Look<'_>) -> Result<T, SessionError> + Send,
) -> PyResult<T> {
    let look = || {
        let asked = Python::attach(|py| {
            py.check_signals()?;
            watch.map_or(Ok(()), |watch| watch.call0(py).map(drop))
        });
        asked.map_err(|exception| SessionError::Interrupted(Box::new(exception)))
    };
    py.detach(|| work(&look)).map_err(raised)
}

fn gradients<'a>(table: &'a Option<Bound<'_, PyCapsule>>) -> PyResult<&'a [f32]> {
    table.as_ref().map_or(Ok(&[]), values)
}

#[pymethods]
impl NativeSession {
    /// Joins the run of the coordinator at `coordinator`, as the dense worker at position `rank`.
    #[new]
    #[pyo3(signature = (job, rank, coordinator, secret=None, watch=None))]
    fn new(
        py: Python<'_>,
        job: &str,
        rank: u32,
        coordinator: &str,
        secret: Option<&str>,
        watch: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let job = parse_job(job, "job.toml").map_err(raised)?;
        let session = waiting(py, watch.as_ref(), |look| {
            Session::start(&job, rank, || RunReach::over_grpc(coordinator, secret, job.cluster.timeout), look)
        })?;
        Ok(Self { session, watch })
    }

    /// Names and dims of the tables.
    fn tables(&self) -> Vec<(String, usize)> {
        self.session.tables().iter().map(|table| (table.name.clone(), table.dim)).collect()
    }

    /// Begins a lookup: pairs of a table's position and a tensor of ids. Distinct ids are found without the interpreter's lock.
    fn look_up(&self, py: Python<'_>, features: Vec<(usize, Bound<'_, PyCapsule>)>, access: &str) -> PyResult<Batch> {
        let ids: PyResult<Vec<(usize, &[u64])>> =
            features.iter().map(|(table, ids)| Ok((*table, values::<u64>(ids)?))).collect();
        let access = match access {
            "train" => BatchAccess::Train,
            "accumulate" => BatchAccess::Accumulate,
            _ => BatchAccess::Read,
        };
        let ids = ids?;
        let batch = py.detach(|| self.session.look_up(&ids, access)).map_err(raised)?;
        Ok(Batch(Arc::new(batch)))
    }

    /// Waits for the rows of a batch: for each table of the batch its position and a tensor `[ids, dim]`.
    fn rows<'py>(&self, py: Python<'py>, batch: &Batch) -> PyResult<Vec<(usize, Bound<'py, PyCapsule>)>> {
        let rows = waiting(py, self.watch.as_ref(), |look| self.session.wait_for_rows(&batch.0, look))?;
        let mut tables = Vec::new();
        for (table, rows) in batch.0.unique_ids().tables.iter().zip_eq(rows.tables) {
            let shape = [table.result_rows(), table.dim as usize];
            tables.push((table.table.0 as usize, capsule(py, rows, &shape)?));
        }
        Ok(tables)
    }

    /// Pushes in the background, as one push of a step: batches, each with the gradients of its tables in the order of its rows,
    /// `None` for a table whose rows get none.
    fn push(&self, py: Python<'_>, batches: Vec<(Bound<'_, Batch>, TableGradients<'_>)>, step: u64) -> PyResult<()> {
        let mut parts = Vec::new();
        for (batch, tables) in &batches {
            let tables: PyResult<Vec<&[f32]>> = tables.iter().map(gradients).collect();
            parts.push((&*batch.get().0, tables?));
        }
        py.detach(|| {
            let copy = |tables: Vec<&[f32]>| BatchRows { tables: tables.into_iter().map(<[f32]>::to_vec).collect() };
            self.session.push(parts.into_iter().map(|(batch, tables)| (batch, copy(tables))).collect(), step)
        })
        .map_err(raised)
    }

    /// The step that is being accumulated is over.
    fn end_step(&self) {
        self.session.end_step();
    }

    /// Batches in the window, and pushes on their way.
    fn in_flight(&self) -> (usize, usize) {
        self.session.in_flight()
    }

    /// Waits until every push is acknowledged.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, self.watch.as_ref(), |look| self.session.flush(look))
    }

    /// Waits until every push is acknowledged or has failed; the reason of a failure is not raised.
    fn wait_for_pushes(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, self.watch.as_ref(), |look| self.session.wait_for_pushes(look))
    }

    /// Forgets that a server has refused a push: the rows were loaded anew.
    fn reopen(&self) {
        self.session.forget_refused_push();
    }

    /// Raises when the session cannot be used any more.
    fn check(&self) -> PyResult<()> {
        self.session.check_usable().map_err(raised)
    }

    /// Flushes and leaves the run; with a failure, leaves at once and says why.
    #[pyo3(signature = (failure=None))]
    fn close(&self, py: Python<'_>, failure: Option<&str>) -> PyResult<()> {
        waiting(py, self.watch.as_ref(), |look| self.session.close(failure, look))
    }

    /// Waits until no other worker of the run is there.
    fn wait_for_other_workers(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, self.watch.as_ref(), |look| self.session.wait_for_other_workers(look))
    }

    /// Has all servers save their rows; the files, and how many rows.
    fn save(&self, py: Python<'_>, folder: &str) -> PyResult<(Vec<FileTuple>, u64)> {
        let (files, rows) = waiting(py, self.watch.as_ref(), |look| self.session.save_rows(folder, look))?;
        Ok((files.into_iter().map(|file| (file.name, file.bytes, file.sha256.to_vec())).collect(), rows))
    }

    /// Has all servers load rows; how many.
    fn load(&self, py: Python<'_>, folder: &str, files: Vec<FileTuple>) -> PyResult<u64> {
        let file = |(name, bytes, sha256): FileTuple| FileDigest { name, bytes, sha256: sha256.into() };
        let files = files.into_iter().map(file).collect();
        waiting(py, self.watch.as_ref(), |look| self.session.load_rows(folder, files, look))
    }

    /// Tables with their rows and bytes on all servers.
    fn describe(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, u64)>> {
        let tables = waiting(py, self.watch.as_ref(), |look| self.session.describe_tables(look))?;
        Ok(tables.into_iter().map(|table| (table.name, table.rows, table.bytes)).collect())
    }
}

#[pymethods]
impl Batch {
    /// For each feature, the positions of its ids in the rows of its table: tensors of int64.
    fn inverse<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        let widened = |positions: &Vec<u32>| positions.iter().map(|position| i64::from(*position)).collect();
        let features: Vec<Vec<i64>> = py.detach(|| self.0.id_positions().iter().map(widened).collect());
        for positions in features {
            let length = positions.len();
            list.append(capsule(py, positions, &[length])?)?;
        }
        Ok(list)
    }

    /// Gives the batch up.
    fn release(&self) {
        self.0.give_up();
    }
}
