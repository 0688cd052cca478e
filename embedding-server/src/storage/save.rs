//! Saves the rows of this server, in memory and in the cold tier, to one file: all of them, or those that have changed since
//! the checkpoint before. The rows are of one instant, while lookups and pushes continue.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use tracing::info;
use zagros_protocol::Refusal;
use zagros_protocol::control::{FileDigest, SaveRequest, SaveResponse};
use zagros_rows::snapshot::format::RUN_BYTES;
use zagros_rows::snapshot::{SnapshotHeader, SnapshotWriter, WrittenFile};
use zagros_store::Folder;
use zagros_table::{FrequencyCounts, RowBatch, SnapshotKind, Table, TableError, TableSnapshot, TableSnapshotError};

use super::StorageError;
use super::checkpoint_files::SavePlan;
use super::load::describe_table;
use crate::EmbeddingService;
use crate::datapath::OwnedBuckets;

/// Writes the file below the request's folder, whole or not at all (invariant CK-1). As soon as the snapshot is
/// captured, it reports how many seconds lookups and pushes waited.
pub(crate) fn save(
    service: &EmbeddingService,
    request: &SaveRequest,
    report_capture: impl FnOnce(f64),
) -> Result<SaveResponse, Refusal> {
    service.check_whole()?;
    let _lock = service.storage.take_turn()?;
    let started = Instant::now();
    let folder = Folder::open(&request.folder, service.timeout).map_err(StorageError::Folder)?;
    folder.make().map_err(StorageError::Folder)?;
    let capture = CapturedSave::take(service, request, &folder)?;
    let pause_seconds = started.elapsed().as_secs_f64();
    report_capture(pause_seconds);
    let CapturedSave { plan, placement, .. } = &capture;
    plan.check_files_before(&folder)?;
    let name = plan.file_name(service.index.0, capture.server_count());
    let WrittenRows { file, foreign } = capture.write_file(&folder, &name)?;
    let WrittenFile { rows, bytes, sha256 } = file;
    let seconds = started.elapsed().as_secs_f64();
    info!(rows, bytes, seconds, %folder, name, "rows saved");
    let written = FileDigest { name, bytes, sha256: sha256.to_vec().into() };
    let files = [plan.files_before(), &[written]].concat();
    if foreign == 0 {
        service.checkpoints.note_written(plan, placement, &folder, &files);
    }
    // Rows of other buckets that came since the file before are among the changed ones.
    let rows = if plan.files_before().is_empty() { rows } else { capture.snapshot.row_count() - foreign };
    Ok(SaveResponse { files, rows, bytes, seconds, pause_seconds })
}

/// A written file, and how many rows of other servers' buckets are not in it. With such rows the server cannot say how many rows
/// a file and a delta have together, so no delta follows.
struct WrittenRows {
    file: WrittenFile,
    foreign: u64,
}

/// A snapshot, what it is for, and the buckets that the server owned at its instant (invariant CK-2).
struct CapturedSave<'a> {
    service: &'a EmbeddingService,
    plan: SavePlan,
    snapshot: TableSnapshot<'a>,
    placement: Arc<OwnedBuckets>,
}

impl<'a> CapturedSave<'a> {
    fn take(service: &'a EmbeddingService, request: &SaveRequest, folder: &Folder) -> Result<Self, Refusal> {
        loop {
            let placement = service.placement()?;
            if request.generation != 0 {
                placement.check_generation(request.generation)?;
            }
            let plan = service.checkpoints.plan_save(service.tables.can_note_changes(), request, &placement, folder);
            let (plan, snapshot) = take_snapshot(service, plan)?;
            // Buckets move while no request is under way, as the instant is. So they had one owner if they have it still.
            // What the snapshot knew of changes is lost with it: the next plan is one of all rows.
            if service.placement()?.generation() == placement.generation() {
                return Ok(Self { service, plan, snapshot, placement });
            }
        }
    }

    /// The number of servers that the files of a save name.
    fn server_count(&self) -> u32 {
        self.placement.server_count().max(self.service.index.0 + 1)
    }

    fn write_file(&self, folder: &Folder, name: &str) -> Result<WrittenRows, StorageError> {
        folder.write_unless(name, self.expected_bytes(), |file| match self.write_tables(file) {
            Err(StorageError::Write(error)) => Err(error),
            written => Ok(written),
        })?
    }

    /// About how many bytes the file will have: an object store must know before it gets the first ones. 0 for changes alone,
    /// which are few.
    fn expected_bytes(&self) -> u64 {
        if let SavePlan::Delta(_) = self.plan {
            return 0;
        }
        let of_row = |table: &Table| ((table.stride() + 1) * size_of::<u32>() + size_of::<u64>()) as u64;
        let tables = &self.service.tables;
        let in_memory: u64 = tables.iter().map(|table| table.row_count() as u64 * of_row(table)).sum();
        let widest = tables.iter().map(of_row).max().unwrap_or_default();
        in_memory.saturating_add(self.service.cold_rows().saturating_mul(widest))
    }

    fn write_tables(&self, file: &mut dyn Write) -> Result<WrittenRows, StorageError> {
        let (service, snapshot) = (self.service, &self.snapshot);
        let mut writer = SnapshotWriter::start(file, self.header())?;
        writer.write_clock(snapshot.snapshot_time())?;
        let mut foreign = 0;
        for (number, table) in service.tables.iter().enumerate() {
            let refused = |source| StorageError::Table { name: service.names[number].clone(), source };
            let run = (service.run_bytes, &*self.placement);
            foreign += write_table(&mut writer, snapshot, number as u32, table, run, &refused)?;
            write_frequency_counts(&mut writer, snapshot, number as u32, table, &refused)?;
        }
        Ok(WrittenRows { file: writer.finish()?, foreign })
    }

    fn header(&self) -> SnapshotHeader {
        let Self { service, placement, plan, .. } = self;
        SnapshotHeader {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            server: service.index.0,
            servers: self.server_count(),
            buckets: placement.bucket_count(),
            owned: placement.owned_ranges(),
            tables: (0..service.names.len()).map(|number| describe_table(service, number)).collect(),
            follows: plan.followed_file(),
        }
    }
}

/// Takes the snapshot. It has all rows if the tables do not know what has changed.
fn take_snapshot(service: &EmbeddingService, plan: SavePlan) -> Result<(SavePlan, TableSnapshot<'_>), StorageError> {
    match service.tables.snapshot_of(plan.snapshot_kind()) {
        Err(TableSnapshotError::ChangesUnknown) => {
            Ok((SavePlan::Base, service.tables.snapshot_of(SnapshotKind::Base)?))
        }
        captured => Ok((plan, captured?)),
    }
}

/// Writes a table through a buffer of `run` bytes, in parts of a stripe. A save therefore needs little memory. Returns the
/// number of rows of other servers' buckets.
fn write_table<W: Write>(
    writer: &mut SnapshotWriter<W>,
    snapshot: &TableSnapshot<'_>,
    number: u32,
    table: &Table,
    (run, placement): (usize, &OwnedBuckets),
    refused: &dyn Fn(TableError) -> StorageError,
) -> Result<u64, StorageError> {
    let (mut rows, most) = (RowBatch::default(), run.div_ceil(table.stride() * size_of::<u32>()));
    let (mut removed, mut foreign) = (Vec::new(), 0);
    for stripe in 0..table.stripes() {
        let mut parts = snapshot.open_stripe(number, stripe).map_err(refused)?;
        removed.extend(snapshot.removed_ids(number, stripe).map_err(refused)?);
        while parts.read(most - rows.ids.len(), &mut rows).map_err(refused)? {
            foreign += write_run(writer, number, &mut rows, placement)?;
        }
    }
    foreign += write_run(writer, number, &mut rows, placement)?;
    writer.write_removed_ids(number, &removed)?;
    Ok(foreign)
}

/// Writes the rows of this server's buckets (invariant PL-3). Others are of an earlier owner, or of a move that is under way.
/// Returns how many.
fn write_run<W: Write>(
    writer: &mut SnapshotWriter<W>,
    number: u32,
    rows: &mut RowBatch,
    placement: &OwnedBuckets,
) -> Result<u64, StorageError> {
    let all = rows.ids.len();
    placement.keep_owned(number, rows);
    let foreign = (all - rows.ids.len()) as u64;
    writer.write_rows(number, rows)?;
    rows.clear();
    Ok(foreign)
}

fn write_frequency_counts<W: Write>(
    writer: &mut SnapshotWriter<W>,
    snapshot: &TableSnapshot<'_>,
    number: u32,
    table: &Table,
    refused: &dyn Fn(TableError) -> StorageError,
) -> Result<(), StorageError> {
    let mut counts = FrequencyCounts::default();
    for stripe in 0..table.stripes() {
        snapshot.read_frequency_counts(number, stripe, &mut counts).map_err(refused)?;
        if !counts.cells.is_empty() {
            writer.write_sketch(number, stripe as u32, &counts.cells)?;
            counts.cells.clear();
        }
        if size_of_val(&counts.ids[..]) >= RUN_BYTES || stripe + 1 == table.stripes() {
            writer.write_counts(number, &counts.ids, &counts.counts)?;
            counts.ids.clear();
            counts.counts.clear();
        }
    }
    Ok(())
}
