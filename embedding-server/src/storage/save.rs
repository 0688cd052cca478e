//! Saves the rows of this server, in memory and in the cold tier, to one file: all of them, or those that have changed since
//! the checkpoint before. The rows are of one instant, while lookups and pushes continue.

use std::io::Write;
use std::time::Instant;

use tracing::info;
use zagros_protocol::Refusal;
use zagros_protocol::control::{FileDigest, SaveRequest, SaveResponse};
use zagros_snapshot::format::RUN_BYTES;
use zagros_snapshot::{SnapshotHeader, SnapshotTime, SnapshotWriter, WrittenFile};
use zagros_store::Folder;
use zagros_table::{FrequencyCounts, RowBatch, SnapshotKind, Table, TableError, TableSnapshot, TableSnapshotError};

use super::StorageError;
use super::checkpoint_files::SavePlan;
use super::describe::describe;
use crate::EmbeddingService;
use crate::datapath::OwnedBuckets;

/// Writes the file below the request's folder, whole or not at all (invariant CK-1). As soon as the snapshot is
/// captured, it reports how many seconds lookups and pushes waited.
pub(crate) fn save(
    service: &EmbeddingService,
    request: &SaveRequest,
    report_capture: impl FnOnce(f64),
) -> Result<SaveResponse, Refusal> {
    let placement = service.placement()?;
    service.check_whole()?;
    let _lock = service.storage.take()?;
    let started = Instant::now();
    let folder = Folder::open(&request.folder, service.timeout).map_err(StorageError::Folder)?;
    folder.make().map_err(StorageError::Folder)?;
    let plan = service.checkpoints.plan(service, request, &placement, &folder);
    let (plan, snapshot) = capture(service, plan)?;
    let pause_seconds = started.elapsed().as_secs_f64();
    report_capture(pause_seconds);
    let name = plan.file_name(service.index.0, service.servers);
    let WrittenFile { rows, bytes, sha256 } = write_file(service, &placement, (&plan, &snapshot), &folder, &name)?;
    let seconds = started.elapsed().as_secs_f64();
    info!(rows, bytes, seconds, %folder, name, "rows saved");
    let written = FileDigest { name, bytes, sha256: sha256.to_vec().into() };
    let files = [plan.files_before(), &[written]].concat();
    service.checkpoints.written(&plan, &placement, &folder, &files);
    let rows = if plan.files_before().is_empty() { rows } else { snapshot.rows() };
    Ok(SaveResponse { files, rows, bytes, seconds, pause_seconds })
}

/// Takes the snapshot. It has all rows if nobody knows what has changed.
fn capture(service: &EmbeddingService, plan: SavePlan) -> Result<(SavePlan, TableSnapshot<'_>), StorageError> {
    let captured = match service.tables.snapshot_of(plan.kind()) {
        Err(TableSnapshotError::ChangesUnknown) => {
            (SavePlan::Base, service.tables.snapshot_of(SnapshotKind::Base).map_err(StorageError::Capture)?)
        }
        captured => (plan, captured.map_err(StorageError::Capture)?),
    };
    Ok(captured)
}

fn write_file(
    service: &EmbeddingService,
    placement: &OwnedBuckets,
    (plan, snapshot): (&SavePlan, &TableSnapshot<'_>),
    folder: &Folder,
    name: &str,
) -> Result<WrittenFile, StorageError> {
    folder.write_unless(name, |file| match write_tables(service, placement, (plan, snapshot), file) {
        Err(StorageError::Write(error)) => Err(error),
        written => Ok(written),
    })?
}

fn write_tables(
    service: &EmbeddingService,
    placement: &OwnedBuckets,
    (plan, snapshot): (&SavePlan, &TableSnapshot<'_>),
    file: &mut dyn Write,
) -> Result<WrittenFile, StorageError> {
    let mut writer = SnapshotWriter::start(file, header(service, placement, plan))?;
    let moment = snapshot.moment();
    writer.clock(SnapshotTime { steps: moment.steps, seconds: moment.seconds })?;
    for (number, table) in service.tables.iter().enumerate() {
        let refused = |source| StorageError::Table { name: service.names[number].clone(), source };
        write_table(&mut writer, snapshot, number as u32, table, service.run_bytes, &refused)?;
        write_frequency_counts(&mut writer, snapshot, number as u32, table, &refused)?;
    }
    Ok(writer.finish()?)
}

/// Writes a table through a buffer of `run` bytes, in parts of a stripe. A save therefore needs little memory.
fn write_table<W: Write>(
    writer: &mut SnapshotWriter<W>,
    snapshot: &TableSnapshot<'_>,
    number: u32,
    table: &Table,
    run: usize,
    refused: &dyn Fn(TableError) -> StorageError,
) -> Result<(), StorageError> {
    let (mut rows, most) = (RowBatch::default(), run.div_ceil(table.stride() * size_of::<u32>()));
    let mut removed = Vec::new();
    for stripe in 0..table.stripes() {
        let mut parts = snapshot.stripe(number, stripe).map_err(refused)?;
        removed.extend(snapshot.removed(number, stripe).map_err(refused)?);
        while parts.read(most - rows.ids.len(), &mut rows).map_err(refused)? {
            write_run(writer, number, &mut rows)?;
        }
    }
    write_run(writer, number, &mut rows)?;
    Ok(writer.removed(number, &removed)?)
}

fn write_run<W: Write>(writer: &mut SnapshotWriter<W>, number: u32, rows: &mut RowBatch) -> Result<(), StorageError> {
    writer.rows(number, rows)?;
    rows.ids.clear();
    rows.slots.clear();
    rows.access.clear();
    Ok(())
}

/// Writes the frequency counts of a table. Writes nothing for a table that counts nothing.
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
            writer.sketch(number, stripe as u32, &counts.cells)?;
            counts.cells.clear();
        }
        if size_of_val(&counts.ids[..]) >= RUN_BYTES || stripe + 1 == table.stripes() {
            writer.counts(number, &counts.ids, &counts.counts)?;
            counts.ids.clear();
            counts.counts.clear();
        }
    }
    Ok(())
}

fn header(service: &EmbeddingService, placement: &OwnedBuckets, plan: &SavePlan) -> SnapshotHeader {
    SnapshotHeader {
        release: env!("CARGO_PKG_VERSION").to_owned(),
        server: service.index.0,
        servers: service.servers,
        buckets: placement.buckets(),
        owned: placement.ranges(),
        tables: (0..service.names.len()).map(|number| describe(service, number)).collect(),
        follows: plan.follows(),
    }
}
