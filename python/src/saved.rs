//! Saved rows as Python classes: a table of a save, read block by block, and folders of saves, on a disk or in an object store, for the files
//! that Python writes itself.

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};
use zagros_rows::snapshot::{
    BlockContent, BlockHeader, BlockKind, FileChain, RowBatch, SavedFile, SlotPart, SnapshotError, TableHeader,
    decode_part, slot_parts,
};
use zagros_scoring::ExportSource;
use zagros_store::Folder;

use crate::failed;
use crate::tensor::capsule;

/// Blocks that are read before they are asked for.
const AHEAD: usize = 2;

type NamedTensor<'py> = (&'static str, Bound<'py, PyCapsule>);

/// One table across the files of a save.
#[pyclass(module = "zagros._native", frozen)]
pub(crate) struct NativeTable {
    chains: Vec<FileChain>,
    header: TableHeader,
}

/// The rows of a table, a block at a time.
#[pyclass(module = "zagros._native", frozen)]
pub(crate) struct Blocks {
    header: TableHeader,
    columns: Vec<SlotPart>,
    blocks: Mutex<Receiver<Result<RowBatch, SnapshotError>>>,
}

/// A table of a file: name, dim, type of weights, and the names of the parts of a row.
type TableTuple = (String, usize, String, Vec<&'static str>);

/// The tables in files of rows.
#[pyfunction]
pub(crate) fn saved_tables(files: Vec<PathBuf>) -> PyResult<Vec<TableTuple>> {
    let Some(first) = files.into_iter().next() else { return Ok(Vec::new()) };
    let reader = SavedFile::on_disk(first).open().map_err(failed)?;
    let table = |table: &TableHeader| {
        let parts = slot_parts(table).iter().map(|part| part.name).collect();
        (table.name.clone(), table.dim, table.element.clone(), parts)
    };
    Ok(reader.header().tables.iter().map(table).collect())
}

#[pymethods]
impl NativeTable {
    /// The table `name` of files, each with its SHA-256 in hexadecimal.
    #[new]
    fn new(files: Vec<(PathBuf, String)>, name: &str) -> PyResult<Self> {
        let saved: Vec<SavedFile> = files.iter().map(|(path, _)| SavedFile::on_disk(path)).collect();
        let is_named = |path: &PathBuf, name: &str| path.file_name().is_some_and(|own| own == name);
        let sha256_of =
            |name: &str| files.iter().find(|(path, _)| is_named(path, name)).map(|(_, sha256)| sha256.clone());
        let mut header = TableHeader::default();
        for file in &saved {
            header = file.open().map_err(failed)?.find_table(name).map_err(failed)?.1.clone();
        }
        Ok(Self { chains: FileChain::group_files(&saved, sha256_of).map_err(failed)?, header })
    }

    /// The parts of a row by its id, weights first; `None` if there is no such row.
    fn row<'py>(&self, py: Python<'py>, id: u64) -> PyResult<Option<Vec<NamedTensor<'py>>>> {
        let find = || {
            for chain in &self.chains {
                if let Some((found, _)) = chain.find_row(&self.header.name, id)? {
                    return Ok(Some(found.slot));
                }
            }
            Ok(None)
        };
        let Some(slot) = py.detach(find).map_err(failed::<SnapshotError>)? else { return Ok(None) };
        let mut values = Vec::new();
        let part = |part: &SlotPart| {
            decode_part(part, &slot, &mut values);
            Ok((part.name, capsule(py, values.clone(), &[part.values])?))
        };
        slot_parts(&self.header).iter().map(part).collect::<PyResult<Vec<_>>>().map(Some)
    }

    /// Writes the rows into a file, in the format of its name's ending, and returns how many there are. Signals end it.
    fn export(&self, py: Python<'_>, path: PathBuf, with_state: bool) -> PyResult<u64> {
        let files: Vec<SavedFile> = self.chains.iter().flat_map(FileChain::files).cloned().collect();
        let mut raised = None;
        let exported = py.detach(|| {
            let source = ExportSource::new(&files, &self.header.name, with_state)?;
            let asks = |_| {
                Python::attach(|py| py.check_signals()).map_err(|exception| {
                    raised = Some(exception);
                    io::Error::from(io::ErrorKind::Interrupted)
                })
            };
            zagros_scoring::export_table(&source, &path, true, asks)
        });
        match (raised, exported) {
            (Some(exception), _) => Err(exception),
            (None, exported) => exported.map(|exported| exported.rows).map_err(failed),
        }
    }

    /// All rows, in the order of the files: their weights, or all parts.
    fn blocks(&self, with_state: bool) -> Blocks {
        let (send, receive) = sync_channel(AHEAD);
        let (chains, name) = (self.chains.clone(), self.header.name.clone());
        std::thread::spawn(move || read(&chains, &name, &send));
        let mut columns = slot_parts(&self.header);
        columns.truncate(if with_state { columns.len() } else { 1 });
        Blocks { header: self.header.clone(), columns, blocks: Mutex::new(receive) }
    }
}

#[pymethods]
impl Blocks {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Ids `[rows]` of uint64, and each part `[rows, values]` of float32.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyCapsule>, Vec<NamedTensor<'py>>)>> {
        let decoded = py.detach(|| {
            let received = self.blocks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv();
            let Ok(block) = received else { return Ok(None) };
            let block = block?;
            let columns: Vec<Vec<f32>> =
                self.columns.iter().map(|part| column(part, self.header.width, &block)).collect();
            Ok(Some((block.ids, columns)))
        });
        let Some((ids, columns)) = decoded.map_err(failed::<SnapshotError>)? else { return Ok(None) };
        let rows = ids.len();
        let mut named = Vec::new();
        for (part, values) in zagros_zip::ZipEq::zip_eq(self.columns.iter(), columns) {
            named.push((part.name, capsule(py, values, &[rows, part.values])?));
        }
        Ok(Some((capsule(py, ids, &[rows])?, named)))
    }
}

fn column(part: &SlotPart, width: usize, block: &RowBatch) -> Vec<f32> {
    let mut values = Vec::with_capacity(block.ids.len() * part.values);
    let mut row = Vec::new();
    for slot in block.slots.chunks_exact(width) {
        decode_part(part, slot, &mut row);
        values.extend_from_slice(&row);
    }
    values
}

/// Sends every block of a table, or the error that ends the reading.
fn read(chains: &[FileChain], name: &str, send: &SyncSender<Result<RowBatch, SnapshotError>>) {
    for chain in chains {
        if let Err(Some(error)) = read_chain(chain, name, send) {
            // The receiver may be gone.
            let _ = send.send(Err(error));
            return;
        }
    }
}

/// The error is `None` when the caller does not want the rest.
fn read_chain(
    chain: &FileChain,
    name: &str,
    send: &SyncSender<Result<RowBatch, SnapshotError>>,
) -> Result<(), Option<SnapshotError>> {
    // The files of a chain have the same tables.
    let Some(first) = chain.files().first() else { return Ok(()) };
    let table = first.open()?.find_table(name)?.0;
    let wanted = |head: &BlockHeader| head.kind == BlockKind::Rows && head.table as usize == table;
    chain.each_block(wanted, |block, _| match block.content {
        BlockContent::Rows(rows) => send.send(Ok(rows)).map_err(|_| None),
        _ => Ok(()),
    })
}

/// The id of a value in the data: `zagros_ingest::hash_value`.
#[pyfunction]
pub(crate) fn id_of(value: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(value.as_bytes())
}

/// A folder of files.
#[pyclass(module = "zagros._native", frozen)]
pub(crate) struct NativeFolder(Folder);

#[pymethods]
impl NativeFolder {
    /// A path, `file:///path` or `s3://bucket/prefix`. A request to a store takes at most `timeout` seconds, with retries.
    #[new]
    fn new(place: &str, timeout: f64) -> PyResult<Self> {
        Ok(Self(Folder::open(place, Duration::from_secs_f64(timeout)).map_err(failed)?))
    }

    /// Makes it, if it is on a disk.
    fn make(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.make()).map(drop).map_err(failed)
    }

    /// Whether this file exists.
    fn has(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        py.detach(|| self.0.has_file(name)).map_err(failed)
    }

    /// The content of a file.
    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &py.detach(|| self.0.read(name)).map_err(failed)?))
    }

    /// Writes a file, whole or not at all (invariant CK-1).
    fn write(&self, py: Python<'_>, name: &str, content: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.write(name, content)).map_err(failed)
    }

    /// Deletes a file, if it is there.
    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        py.detach(|| self.0.delete_file(name)).map_err(failed)
    }
}
