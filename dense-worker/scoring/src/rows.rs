//! The rows of a saved model in this process, which are only read.
//!
//! ```text
//! rows-0-of-2.zrows ◄── deltas ─┐  each file compared with the manifest, then row by row, the newest of a chain first
//! rows-1-of-2.zrows ◄── deltas ─┴─► weights without the optimiser's state ─► tables ─► (memory is full) ─► cold tier
//! ```
//!
//! Time stands still: a row that had expired when it was saved has no row here, and none expires later.

use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;
use zagros_job::{Job, Optimizer, ServerTable, StreamedLayer, TiledTensor};
use zagros_model::{LayerStore, LayerValues, ModelError, PendingLayer, TraversalPurpose};
use zagros_rows::cold::{MemoryBudget, StoreContent};
use zagros_rows::snapshot::{BlockContent, BlockKind, FileChain, RowConversion, TableHeader};
use zagros_table::{
    ColdStore, EvictionPolicy, EvictionTarget, LookupMode, RequestBuffers, RowBatch, StepClock, Table, TableConfig,
    TableError, TableResources, TableSet, TableTime,
};
use zagros_zip::number_from;

use crate::error::ScoringError;
use crate::manifest::damaged;
use crate::saved_model::SavedModel;

/// Where a network's rows are read. Any number of threads may read at once.
pub trait RowSource: Debug + Send + Sync {
    /// Writes the rows of ids of a table into `into`, `[ids, dim]`. An id may come more than once. An id without a row has the first values
    /// of its row (invariant DP-1), or zeros where the table admits only some ids. Returns how many ids have no row.
    ///
    /// # Errors
    /// When there is no such table, a length is another one, or a row cannot be read.
    fn read_rows(&self, table: usize, ids: &[u64], into: &mut [f32]) -> Result<usize, ScoringError>;
}

/// The tables of a saved model. Beyond `cluster.memory` rows are on the disk.
#[derive(Debug)]
pub struct ModelRows {
    tables: TableSet,
    /// By number.
    headers: Vec<TableHeader>,
    scratches: Mutex<Vec<RequestBuffers>>,
}

/// The table that the rows of a saved table go to.
struct RowTarget {
    table: u32,
    conversion: RowConversion,
    /// Whether the file's access metadata has the table's format. Otherwise rows count as used when they were saved.
    keeps_access: bool,
}

impl ModelRows {
    /// # Errors
    /// When a file of rows is not the one that was saved, or its tables are not the job's.
    pub fn load_rows(saved: &SavedModel, job: &Job) -> Result<Self, ScoringError> {
        let rows = Self::empty(job)?;
        rows.fill(saved)?;
        Ok(rows)
    }

    /// Without any row yet.
    pub(crate) fn empty(job: &Job) -> Result<Self, ScoringError> {
        let (headers, mut configs): (Vec<_>, Vec<_>) = number_from(0, job.server_tables()).map(read_table).unzip();
        let memory = job.cluster.memory.map(MemoryBudget::new);
        let mut resources = TableResources::default();
        if let Some(memory) = memory {
            memory.limit_stripes(&mut configs);
            let (folder, timeout) = (job.cold_folder(0), job.cluster.timeout);
            let store = memory.open_store(StoreContent::Scratch, &folder, &configs, timeout)?;
            resources.cold = Some(Arc::new(store) as Arc<dyn ColdStore>);
            resources.budget = Some(memory.rows);
        }
        let tables = TableSet::new(job.train.seed, &configs, resources);
        let refused = |source: TableError| table_error(&headers, source.table_number().unwrap_or_default(), source);
        let tables = tables.map_err(refused)?;
        Ok(Self { tables, headers, scratches: Mutex::default() })
    }

    /// Each file is compared with the manifest before any row is taken (invariant CK-4).
    pub(crate) fn fill(&self, saved: &SavedModel) -> Result<(), ScoringError> {
        let SavedModel { folder, manifest } = saved;
        let (mut chains, mut steps) = (Vec::new(), 0);
        for chain in manifest.row_chains(folder)? {
            let header = chain.newest_header()?;
            let targets = header.tables.iter().map(|table| self.find_target(table)).collect::<Result<Vec<_>, _>>();
            let targets = targets.map_err(|reason| damaged(folder, reason))?;
            let mut newest = TableTime::default();
            for file in chain.files() {
                newest = manifest.check_rows(folder, file, |_| ())?.clock;
                steps = steps.max(newest.steps);
            }
            chains.push((chain, targets, newest.seconds));
        }
        self.tables.advance_clock(steps, 0);
        let mut rows = 0;
        for (chain, targets, seconds) in &chains {
            rows += self.put_chain(saved, chain, targets, TableTime { steps, seconds: *seconds })?;
        }
        if rows == manifest.rows {
            return Ok(());
        }
        let reason = format!("{} rows were saved, but the files have {rows}; is a file missing?", manifest.rows);
        Err(damaged(folder, reason))
    }

    fn find_target(&self, saved: &TableHeader) -> Result<RowTarget, String> {
        let (name, conversion) = (&saved.name, RowConversion::without_state(saved));
        let Some(own) = self.headers.iter().find(|own| own.name == *name) else {
            return Err(format!("its rows were saved from another model: the job has no table `{name}`"));
        };
        if let Some(difference) = conversion.converted_header().find_difference(own) {
            return Err(format!("its rows were saved from another model: {difference}"));
        }
        let access = self.tables.table(own.number).ok().and_then(Table::access_layout);
        Ok(RowTarget { table: own.number, conversion, keeps_access: access == saved.access })
    }

    fn put_chain(
        &self,
        saved: &SavedModel,
        chain: &FileChain,
        targets: &[RowTarget],
        time: TableTime,
    ) -> Result<u64, ScoringError> {
        let mut count = 0;
        chain.each_block(
            |head| head.kind == BlockKind::Rows,
            |block, _| {
                let (BlockContent::Rows(rows), Some(target)) = (block.content, targets.get(block.table)) else {
                    return Ok(());
                };
                count += rows.ids.len() as u64;
                let rows = target.conversion.convert_rows(rows);
                self.put_rows(target, rows.map_err(|error| damaged(&saved.folder, error.to_string()))?, time)
            },
        )?;
        Ok(count)
    }

    fn put_rows(&self, target: &RowTarget, mut rows: RowBatch, time: TableTime) -> Result<(), ScoringError> {
        if !target.keeps_access {
            rows.access.clear();
        }
        let put = |scratch: &mut RequestBuffers| {
            let table = self.tables.table(target.table)?;
            table.rebase_access(&mut rows, time, StepClock::GoesOn);
            table.insert(&rows, scratch)
        };
        self.with_scratch(put).map(drop).map_err(|source| table_error(&self.headers, target.table, source))
    }

    fn with_scratch<T>(&self, work: impl FnOnce(&mut RequestBuffers) -> T) -> T {
        let mut scratch = self.scratches.lock().pop().unwrap_or_default();
        let done = work(&mut scratch);
        self.scratches.lock().push(scratch);
        done
    }
}

impl RowSource for ModelRows {
    fn read_rows(&self, table: usize, ids: &[u64], into: &mut [f32]) -> Result<usize, ScoringError> {
        let read = |scratch: &mut RequestBuffers| {
            self.tables.table(table as u32)?.lookup(ids, LookupMode::Read, into, scratch)
        };
        let report = self.with_scratch(read).map_err(|source| table_error(&self.headers, table as u32, source))?;
        Ok(report.missing as usize)
    }
}

/// A table that is only read. No row is dropped for want of memory or because its weights are small: what was saved is what scores.
fn read_table((number, table): (u32, ServerTable)) -> (TableHeader, TableConfig) {
    let ServerTable { name, config } = table;
    let eviction = EvictionPolicy { small_norm: 0.0, target: EvictionTarget::Cold, ..config.eviction };
    let config = TableConfig { optimizer: Optimizer::without_state(), eviction, ..config };
    (TableHeader::new(&name, number, &config), config)
}

fn table_error(headers: &[TableHeader], number: u32, source: TableError) -> ScoringError {
    let name = headers.get(number as usize).map(|table| table.name.clone());
    ScoringError::Table { name: name.unwrap_or_else(|| number.to_string()), source }
}

/// Streamed weights (`train.weights = "streamed"`): the layers of a network as rows of the tables of tiles, which are only read.
#[derive(Debug)]
pub(crate) struct SavedLayers {
    rows: Arc<dyn RowSource>,
    layers: Vec<StreamedLayer>,
}

impl SavedLayers {
    /// `None` if the job's weights are not streamed.
    pub(crate) fn from_job(job: &Job, rows: &Arc<dyn RowSource>) -> Option<Self> {
        let layers = job.worker_layers();
        (!layers.is_empty()).then(|| Self { rows: Arc::clone(rows), layers })
    }

    fn read(&self, layer: usize, mut into: LayerValues) -> Result<LayerValues, ModelError> {
        for tensor in self.layers[layer].tiled_tensors() {
            let values = &mut into[tensor.first..tensor.first + tensor.weights];
            read_tensor(&*self.rows, &tensor, values)
                .map_err(|error| self.failed(layer, "read the weights", error.to_string()))?;
        }
        Ok(into)
    }

    fn failed(&self, layer: usize, what: &'static str, reason: String) -> ModelError {
        ModelError::Layer { layer: self.layers[layer].name.clone(), what, reason }
    }

    fn refused(&self, layer: usize, what: &'static str) -> ModelError {
        self.failed(layer, what, "a saved model does not learn".to_owned())
    }
}

impl LayerStore for SavedLayers {
    fn pull(&self, layer: usize, _: TraversalPurpose, into: LayerValues) -> Box<dyn PendingLayer> {
        Box::new(ReadLayer(self.read(layer, into)))
    }

    fn push(&self, layer: usize, _: u64, _: LayerValues) -> Result<(), ModelError> {
        Err(self.refused(layer, "push the gradient"))
    }

    fn summed(&self) -> Result<f64, ModelError> {
        Err(self.refused(0, "sum the gradient"))
    }

    fn commit(&self, _: u64, _: f32) -> Result<(), ModelError> {
        Err(self.refused(0, "apply the gradient"))
    }

    fn wait_for_pushes(&self) -> Result<(), ModelError> {
        Ok(())
    }
}

#[derive(Debug)]
struct ReadLayer(Result<LayerValues, ModelError>);

impl PendingLayer for ReadLayer {
    fn wait(self: Box<Self>) -> Result<LayerValues, ModelError> {
        self.0
    }
}

/// Reads the tiles of a tensor. The last may be filled up with more values than the tensor has.
fn read_tensor(rows: &dyn RowSource, tensor: &TiledTensor, values: &mut [f32]) -> Result<(), ScoringError> {
    let (table, dim) = (tensor.table as usize, tensor.tiles.dim);
    let tiles: Vec<u64> = (tensor.tiles.first as u64..).take(tensor.tiles.count).collect();
    let (whole, last) = values.split_at_mut(values.len() / dim * dim);
    let (whole_tiles, last_tile) = tiles.split_at(whole.len() / dim);
    rows.read_rows(table, whole_tiles, whole)?;
    if !last.is_empty() {
        let mut tile = vec![0.0; dim];
        rows.read_rows(table, last_tile, &mut tile)?;
        last.copy_from_slice(&tile[..last.len()]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use zagros_fakes::jobs::{assert_refused, ffnn, job};

    use super::*;
    use crate::testing::{SavedFixture, save_model, saved_value};

    fn adagrad_job() -> Job {
        let mut job = job(1, &[3, 2], ffnn(&[]));
        job.tables[0].optimizer = Optimizer::Adagrad { lr: 0.1, epsilon: 1e-8, initial_accumulator: 0.0, l2: 0.0 };
        job
    }

    fn read(rows: &ModelRows, table: usize, ids: &[u64], dim: usize) -> (Vec<f32>, usize) {
        let mut values = vec![f32::NAN; ids.len() * dim];
        let missing = rows.read_rows(table, ids, &mut values).unwrap();
        (values, missing)
    }

    #[test]
    fn rows_are_those_of_the_files_without_their_state() {
        let SavedFixture { folder: _folder, saved, job } = save_model(adagrad_job(), &[(0, 7), (0, 9), (1, 7)]);
        let rows = ModelRows::load_rows(&saved, &job).unwrap();
        let expected = |table, id, dim| (0..dim).map(|place| saved_value(table, id, place)).collect::<Vec<_>>();
        assert_eq!(read(&rows, 0, &[9, 7, 9], 3).0, [expected(0, 9, 3), expected(0, 7, 3), expected(0, 9, 3)].concat());
        assert_eq!(read(&rows, 1, &[7], 2), (expected(1, 7, 2), 0));
        assert_eq!(rows.headers[0].width, 3);
    }

    /// Invariant DP-1: of what a table without any row answers.
    #[test]
    fn ids_without_a_row_have_its_first_values_and_are_counted() {
        let SavedFixture { folder: _folder, saved, job } = save_model(adagrad_job(), &[(0, 7)]);
        let (rows, empty) = (ModelRows::load_rows(&saved, &job).unwrap(), ModelRows::empty(&job).unwrap());
        let ids: Vec<u64> = (100..200).collect();
        let (found, missing) = read(&rows, 0, &ids, 3);
        assert_eq!((found, missing), (read(&empty, 0, &ids, 3).0, 100));
        assert_eq!(read(&rows, 0, &[7, 8], 3).1, 1);
        assert!(rows.read_rows(0, &[1], &mut [0.0; 2]).is_err() && rows.read_rows(2, &[], &mut []).is_err());
    }

    #[test]
    fn rows_beyond_memory_are_read_from_the_disk() {
        let ids: Vec<(usize, u64)> = (0..20_000).map(|id| (0, id)).collect();
        let SavedFixture { folder, saved, mut job } = save_model(adagrad_job(), &ids);
        let whole = ModelRows::load_rows(&saved, &job).unwrap();
        job.cluster.memory = Some(128 << 10);
        job.cluster.cold_folder = Some(folder.path().join("cold"));
        // A job that would drop them, had it trained.
        job.tables[0].eviction.target = EvictionTarget::Drop;
        let limited = ModelRows::load_rows(&saved, &job).unwrap();
        assert!(folder.path().join("cold/server-0").is_dir());
        let ids: Vec<u64> = (0..20_100).rev().collect();
        assert_eq!(read(&limited, 0, &ids, 3), read(&whole, 0, &ids, 3));
        assert_eq!(read(&limited, 0, &ids, 3).1, 100);
    }

    /// Invariant CK-4.
    #[test]
    fn files_that_are_not_the_saved_ones_are_refused() {
        let SavedFixture { folder, saved, job } = save_model(adagrad_job(), &[(0, 7)]);
        let path = folder.path().join(&saved.manifest.row_files[0]);
        let good = fs::read(&path).unwrap();
        let mut flipped = good.clone();
        flipped[good.len() / 2] ^= 1;
        fs::write(&path, flipped).unwrap();
        assert_refused(ModelRows::load_rows(&saved, &job).map(drop), &["is damaged"]);
        let other = save_model(adagrad_job(), &[(0, 8)]);
        fs::copy(other.folder.path().join(&saved.manifest.row_files[0]), &path).unwrap();
        assert_refused(ModelRows::load_rows(&saved, &job).map(drop), &["is not the file that was saved"]);
        fs::write(&path, good).unwrap();
        let mut wider = job.clone();
        wider.tables[0].dim = 4;
        let refused = ModelRows::load_rows(&saved, &wider).map(drop);
        assert_refused(refused, &["from another model", "table `t0` has dim 3 of f32", "dim 4 of f32"]);
        wider.tables[0].name = "other".to_owned();
        assert_refused(ModelRows::load_rows(&saved, &wider).map(drop), &["the job has no table `t0`"]);
        fs::remove_file(&path).unwrap();
        assert_refused(ModelRows::load_rows(&saved, &job).map(drop), &["cannot read", "rows-0-of-1.zrows"]);
    }
}
