//! A file of rows that Python fills: rows from elsewhere as those of a job's tables.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use zagros_job::Job;
use zagros_rows::snapshot::{RowBatch, SlotPart, SnapshotHeader, SnapshotWriter, TableHeader, TableTime, slot_parts};
use zagros_session::parse_job;
use zagros_table::TableConfig;
use zagros_zip::ZipEq;

use crate::tensor::values;
use crate::{ZagrosError, raised};

/// A table: its name and its parts, each with the number of its values in a row.
type TableWithParts = (String, String, Vec<(&'static str, usize)>);

/// A file of all tables of a job, as one server would save it.
#[pyclass(module = "zagros._native", frozen)]
pub(crate) struct NativeRowWriter {
    job: Job,
    path: PathBuf,
    tables: Vec<TableConfig>,
    headers: Vec<TableHeader>,
    open: Mutex<Option<UnfinishedRows>>,
}

struct UnfinishedRows {
    writer: SnapshotWriter<BufWriter<File>>,
    ids: Vec<Vec<u64>>,
}

fn failed(error: std::io::Error, path: &std::path::Path) -> PyErr {
    ZagrosError::new_err(format!("cannot write {}: {error}; nothing was imported", path.display()))
}

#[pymethods]
impl NativeRowWriter {
    /// Starts a file `path` for the tables of a job that is given as TOML.
    #[new]
    fn new(job: &str, name: &str, path: PathBuf) -> PyResult<Self> {
        let job = parse_job(job, name).map_err(raised)?;
        let tables: Vec<TableConfig> = job.tables.iter().map(|table| table.table_config()).collect();
        let names = job.tables.iter().map(|table| table.name.clone());
        let headers: Vec<TableHeader> =
            names.zip_eq(&tables).enumerate().map(|(number, (name, table))| header(number, name, table)).collect();
        let buckets = job.cluster.buckets;
        let head = SnapshotHeader {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            servers: 1,
            buckets,
            owned: vec![[0, buckets]],
            tables: headers.clone(),
            ..SnapshotHeader::default()
        };
        let file = File::create(&path).map_err(|error| failed(error, &path))?;
        let writer = SnapshotWriter::start(BufWriter::new(file), head).map_err(|error| failed(error, &path))?;
        let ids = vec![Vec::new(); headers.len()];
        Ok(Self { job, path, tables, headers, open: Mutex::new(Some(UnfinishedRows { writer, ids })) })
    }

    /// The resolved TOML of the job, and its fingerprint.
    fn job(&self) -> (String, String) {
        (self.job.to_toml(), format!("{:016x}", self.job.fingerprint()))
    }

    /// The tables of the job: name, type of weights, and parts of a row.
    fn tables(&self) -> Vec<TableWithParts> {
        let sizes = |table: &TableHeader| slot_parts(table).iter().map(|part| (part.name, part.values)).collect();
        self.headers.iter().map(|table| (table.name.clone(), table.element.clone(), sizes(table))).collect()
    }

    /// Adds rows to a table: ids `[rows]`, and their parts `[rows, values]`, weights first. Without the other parts, the optimiser's
    /// state is that of a new row.
    fn add(
        &self,
        py: Python<'_>,
        table: usize,
        ids: &Bound<'_, PyCapsule>,
        columns: Vec<Bound<'_, PyCapsule>>,
    ) -> PyResult<()> {
        let ids = values::<u64>(ids)?;
        let columns = columns.iter().map(values::<f32>).collect::<PyResult<Vec<_>>>()?;
        let (Some(config), Some(header)) = (self.tables.get(table), self.headers.get(table)) else {
            return Err(PyValueError::new_err(format!("there is no table {table}")));
        };
        let wanted = slot_parts(header);
        let is_whole = columns.len() == wanted.len() || columns.len() == 1;
        let fit = || {
            wanted
                .iter()
                .take(columns.len())
                .zip_eq(&columns)
                .all(|(part, column)| column.len() == ids.len() * part.values)
        };
        if !is_whole || !fit() {
            return Err(PyValueError::new_err(format!(
                "the parts do not fit {} rows of table `{}`",
                ids.len(),
                header.name
            )));
        }
        py.detach(|| {
            let slots = slots(config, header, &wanted, ids.len(), &columns);
            let rows = RowBatch { ids: ids.to_vec(), slots, access: Vec::new() };
            let mut open = self.open();
            let open = open.as_mut().ok_or_else(|| PyValueError::new_err("the file is finished"))?;
            open.writer.write_rows(table as u32, &rows).map_err(|error| failed(error, &self.path))?;
            open.ids[table].extend(rows.ids);
            Ok(())
        })
    }

    /// Finishes the file, so that it survives a crash: its bytes, its SHA-256, and its rows. It is refused if an id occurs twice.
    fn finish(&self, py: Python<'_>) -> PyResult<(u64, Vec<u8>, u64)> {
        let open = self.open().take().ok_or_else(|| PyValueError::new_err("the file is finished"))?;
        py.detach(|| {
            for (header, ids) in self.headers.iter().zip_eq(open.ids) {
                refuse_repeated(&header.name, ids)?;
            }
            let finish = || {
                let mut writer = open.writer;
                writer.write_clock(TableTime::default())?;
                let (written, to) = writer.finish_into()?;
                to.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
                Ok(written)
            };
            let written = finish().map_err(|error| failed(error, &self.path))?;
            Ok((written.bytes, written.sha256.to_vec(), written.rows))
        })
    }
}

impl NativeRowWriter {
    fn open(&self) -> MutexGuard<'_, Option<UnfinishedRows>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn header(number: usize, name: String, table: &TableConfig) -> TableHeader {
    TableHeader {
        name,
        number: number as u32,
        dim: table.dim,
        element: table.element.name().to_owned(),
        width: table.stride(),
        state: table.optimizer.state_layout().to_owned(),
        access: None,
        counter: None,
    }
}

/// Slots of rows: `[weights | optimiser state]`.
fn slots(config: &TableConfig, header: &TableHeader, parts: &[SlotPart], rows: usize, columns: &[&[f32]]) -> Vec<u32> {
    let mut slots = vec![0; rows * header.width];
    let (dim, words) = (config.dim, config.element.words(config.dim));
    let (mut weights, mut state) = (vec![0.0; dim], vec![0.0; header.width - words]);
    for (row, slot) in slots.chunks_exact_mut(header.width).enumerate() {
        config.element.encode(&columns[0][row * dim..][..dim], &mut slot[..words]);
        if columns.len() == 1 {
            config.element.decode(&slot[..words], &mut weights);
            config.optimizer.init_state(&weights, &mut state);
            put(&state, &mut slot[words..]);
        }
        for (part, column) in parts.iter().take(columns.len()).zip_eq(columns).skip(1) {
            put(&column[row * part.values..][..part.values], &mut slot[part.words.clone()]);
        }
    }
    slots
}

fn put(values: &[f32], words: &mut [u32]) {
    for (word, value) in words.iter_mut().zip_eq(values) {
        *word = value.to_bits();
    }
}

fn refuse_repeated(table: &str, mut ids: Vec<u64>) -> PyResult<()> {
    ids.sort_unstable();
    match ids.array_windows().find(|[id, next]| id == next) {
        None => Ok(()),
        Some([id, _]) => Err(PyValueError::new_err(format!(
            "the id {id} (as a signed number {}) occurs twice in the rows of table `{table}`; give each id once",
            id.cast_signed()
        ))),
    }
}
