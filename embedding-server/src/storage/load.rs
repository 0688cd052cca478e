//! Loads the rows of this server's buckets from saved files. The files may come from any number of servers.
//!
//! The table that takes the rows of a saved table, and the description in which they must agree.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tracing::info;
use zagros_plumbing::Deadline;
use zagros_protocol::control::{FileDigest, LoadRequest, LoadResponse};
use zagros_protocol::{Refusal, RefusalKind};
use zagros_rows::snapshot::{
    BlockContent, BlockHeader, BlockKind, ChainLink, FileChain, FollowedFile, RowConversion, RowConversionError,
    SavedFile, SnapshotBlock, SnapshotHeader, StateConversion, TableHeader, group_links,
};
use zagros_store::{Folder, hex_digits};
use zagros_table::{ClearError, RowBatch, StepClock, Table, TableError, TableTime};
use zagros_zip::ZipEq;

use super::StorageError;
use crate::EmbeddingService;
use crate::datapath::OwnedBuckets;

/// How often the wait for the placement checks whether there is one.
const POLL: Duration = Duration::from_millis(20);

/// Replaces all rows. Reads the data of this server twice: first to verify it, then to load it. A damaged file therefore
/// leaves memory unchanged.
pub(crate) fn load(service: &EmbeddingService, request: &LoadRequest) -> Result<LoadResponse, Refusal> {
    if request.clear {
        return clear_rows(service, request);
    }
    if request.files.is_empty() {
        let nothing = "a load names no file, so it would only remove rows; name the files of the save";
        return Err(Refusal::invalid(nothing));
    }
    wait_for_placement(service)?;
    let _turn = service.storage.take_turn()?;
    // From here on no bucket moves.
    let _no_move = service.moves.begin_load(service.index)?;
    let placement = service.placement()?;
    if request.generation != 0 {
        placement.check_generation(request.generation)?;
    }
    let folder = Folder::open(&request.folder, service.timeout).map_err(StorageError::Folder)?;
    let open = |numbered: (usize, &FileDigest)| SavedTables::open(service, &placement, &folder, numbered, request);
    let mut sources = request.files.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
    let chains = chains_of(request, &sources)?;
    sources.iter_mut().try_for_each(SavedTables::verify_data)?;
    service.checkpoints.forget_newest();
    let clock = if request.restart_steps { StepClock::Restarts } else { StepClock::GoesOn };
    let rows = replace_rows(service, || put_all(service, &sources, &chains, clock))?;
    let dropped: BTreeSet<String> = sources.iter().flat_map(|source| source.dropped.iter().cloned()).collect();
    let dropped = Vec::from_iter(dropped);
    info!(rows, files = sources.len(), folder = request.folder, dropped = dropped.join(", "), "rows loaded");
    Ok(LoadResponse { rows, dropped })
}

/// Removes every row. Steps go on: the next push names its own.
fn clear_rows(service: &EmbeddingService, request: &LoadRequest) -> Result<LoadResponse, Refusal> {
    if !request.files.is_empty() {
        let both = "a request that removes all rows names files to load; name none, or ask for a load";
        return Err(Refusal::invalid(both));
    }
    if !service.resets_rows {
        let unwanted = "a request removes all rows, and the job of this server never does (`train.reset_embeddings` is false); no row is removed";
        return Err(Refusal::new(RefusalKind::Forbidden, unwanted));
    }
    wait_for_placement(service)?;
    let _turn = service.storage.take_turn()?;
    let _no_move = service.moves.begin_load(service.index)?;
    if request.generation != 0 {
        service.placement()?.check_generation(request.generation)?;
    }
    service.checkpoints.forget_newest();
    replace_rows(service, || Ok(0))?;
    info!("all rows are removed: an epoch begins with new ones");
    Ok(LoadResponse::default())
}

/// If the load fails half-way, or its process ends, the server refuses to use the part that is there.
fn replace_rows(service: &EmbeddingService, put: impl FnOnce() -> Result<u64, Refusal>) -> Result<u64, Refusal> {
    let (state, log) = (service.load_state(), service.log.as_ref());
    let before_load = match log {
        Some(log) => log.start_load()?,
        None => state.start_load(|| ()),
    };
    service.windows.steps.clear();
    if let Err(error) = service.tables.clear() {
        match (&error, log) {
            // Nothing is removed.
            (ClearError::Busy { .. }, Some(log)) => log.undo_load(before_load),
            (ClearError::Busy { .. }, None) => state.undo_load(before_load, || ()),
            _ => state.fail_load(),
        }
        return Err(StorageError::Clear(error).into());
    }
    // So are the rows that pushes had changed before they died.
    log.iter().for_each(|log| log.partial.clear());
    let rows = put().inspect_err(|_| state.fail_load())?;
    match log {
        Some(log) => log.end_load()?,
        None => state.complete_load(|| ()),
    }
    Ok(rows)
}

/// A file of all rows and its deltas.
struct LoadedChain {
    files: FileChain,
    /// Position of its newest file, whose tables are those of all of them.
    newest: usize,
}

fn chains_of(request: &LoadRequest, sources: &[SavedTables<'_>]) -> Result<Vec<LoadedChain>, StorageError> {
    let link = |(file, source): (&FileDigest, &SavedTables<'_>)| ChainLink {
        path: source.saved.path().to_owned(),
        sha256: (!file.sha256.is_empty()).then(|| hex_digits(&file.sha256)),
        follows: source.follows.clone(),
    };
    let links: Vec<ChainLink> = request.files.iter().zip_eq(sources).map(link).collect();
    let chain = |positions: Vec<usize>| {
        let files = FileChain::new(positions.iter().map(|file| sources[*file].saved.clone()).collect());
        files.newest_header()?;
        Ok(LoadedChain { files, newest: positions.last().copied().unwrap_or_default() })
    };
    group_links(&links)?.into_iter().map(chain).collect()
}

fn put_all(
    service: &EmbeddingService,
    sources: &[SavedTables<'_>],
    chains: &[LoadedChain],
    clock: StepClock,
) -> Result<u64, Refusal> {
    // Set before any row is inserted, to the largest step of all files. The servers that wrote the files knew the last
    // step at different times.
    let steps = sources.iter().map(|source| source.saved_at.steps).max().unwrap_or(0);
    if clock == StepClock::GoesOn {
        service.writers.note_reached(steps);
        service.tables.advance_clock(steps, 0);
    }
    let mut rows = 0;
    for chain in chains {
        let newest = &sources[chain.newest];
        // Access metadata in all files of a chain is by the clock of one process, which went on.
        let saved = SaveClock { time: TableTime { steps, ..newest.saved_at }, steps: clock };
        chain.files.each_block(
            |head| newest.may_concern(head),
            |block, _| -> Result<(), StorageError> {
                rows += newest.put_block(block, saved)?;
                Ok(())
            },
        )?;
    }
    Ok(rows)
}

/// The worker that asks for the load has the placement already. This server may get it a little later. Waiting here is
/// safe, because nothing has been loaded yet. A retry of the request would not be safe.
fn wait_for_placement(service: &EmbeddingService) -> Result<Arc<OwnedBuckets>, Refusal> {
    let deadline = Deadline::from_now(service.timeout);
    loop {
        match service.placement() {
            Err(_) if !deadline.is_past() => std::thread::sleep(POLL),
            placement => return placement,
        }
    }
}

/// The clock of a save, and how steps count from now on.
#[derive(Clone, Copy)]
struct SaveClock {
    time: TableTime,
    steps: StepClock,
}

/// A file in the folder, or in a folder beside it. A name with another path is refused.
fn saved_file(folder: &Folder, file: &str) -> Result<SavedFile, StorageError> {
    let Some((folder, name)) = folder.locate_file(file) else {
        return Err(StorageError::FileName { file: file.to_owned() });
    };
    let (path, file) = (format!("{folder}/{name}"), name.to_owned());
    Ok(SavedFile::new(path, move || folder.open_file(&file)))
}

/// Whether the server that wrote a file owned some of this server's buckets.
fn may_have_ours(header: &SnapshotHeader, placement: &OwnedBuckets) -> bool {
    let ours = |[first, end]: &[u32; 2]| placement.owns_any(*first..*end);
    header.owned.is_empty() || header.buckets != placement.bucket_count() || header.owned.iter().any(ours)
}

/// A file whose tables match the tables of this server.
struct SavedTables<'a> {
    service: &'a EmbeddingService,
    placement: &'a OwnedBuckets,
    saved: SavedFile,
    /// One target per table of the file, in the order of the file; `None` for a table that is dropped.
    tables: Vec<Option<TableTarget<'a>>>,
    dropped: Vec<String>,
    /// The file may have frequency counts of this server's ids.
    has_ours: bool,
    /// Size and hash of the file, if this server has to compare them.
    digest: Option<FileDigest>,
    /// The time of the save, by the clock of the server that saved the file.
    saved_at: TableTime,
    follows: Option<FollowedFile>,
}

impl<'a> SavedTables<'a> {
    /// Matches each table of the file with this server's table of the same name. A model that has gained a table still
    /// loads. Of a model of another run, tables that this server does not have, or that begin anew, are dropped.
    fn open(
        service: &'a EmbeddingService,
        placement: &'a OwnedBuckets,
        folder: &Folder,
        (number, file): (usize, &FileDigest),
        request: &LoadRequest,
    ) -> Result<Self, StorageError> {
        let saved = saved_file(folder, &file.name)?;
        let reader = saved.open()?;
        let header = reader.header();
        let is_taken = |name: &String| service.names.contains(name) && !request.anew.contains(name);
        let is_dropped = |saved: &TableHeader| request.other_run && !is_taken(&saved.name);
        let target = |saved: &TableHeader| match is_dropped(saved) {
            true => Ok(None),
            // A checkpoint is of this very job.
            false => TableTarget::find_table(service, placement, (header, saved), request.other_run).map(Some),
        };
        let dropped = header.tables.iter().filter(|saved| is_dropped(saved)).map(|saved| saved.name.clone()).collect();
        let tables = header.tables.iter().map(target).collect::<Result<_, _>>();
        match tables {
            Ok(tables) => {
                let has_ours = may_have_ours(header, placement);
                // A damaged header may hide what the file contains. One server therefore compares the whole of each
                // file, whatever its header says.
                let compares =
                    has_ours || number % placement.server_count().max(1) as usize == service.index.0 as usize;
                let digest = (compares && !file.sha256.is_empty()).then(|| file.clone());
                let (saved_at, follows) = (TableTime::default(), header.follows.clone());
                Ok(Self { service, placement, saved, tables, dropped, has_ours, digest, saved_at, follows })
            }
            Err(problem) => {
                let path = saved.path().display();
                Err(Refusal::invalid(format!("{path} was saved from another model: {problem}")).into())
            }
        }
    }

    /// Verifies that the file is the saved one and that all data for this server is whole. Records the time of the
    /// save. If this server compares the file, it reads the whole file. Otherwise it reads its own blocks and the
    /// headers of the others.
    fn verify_data(&mut self) -> Result<(), StorageError> {
        if let Some(digest) = &self.digest {
            self.saved_at = self.compare_hash(digest)?;
            return Ok(());
        }
        let mut reader = self.saved.open()?;
        while let Some(block) = reader.next_block(|head| self.may_concern(head))? {
            if let BlockContent::Clock(clock) = block.content {
                self.saved_at = clock;
            }
        }
        Ok(())
    }

    /// Compares the whole file with its hash. Returns the time of the save.
    fn compare_hash(&self, digest: &FileDigest) -> Result<TableTime, StorageError> {
        let checked = zagros_rows::snapshot::verify_file(&self.saved, |_| ())?;
        if checked.sha256[..] == digest.sha256[..] {
            return Ok(checked.clock);
        }
        let (expected, found) = (hex_digits(&digest.sha256), hex_digits(&checked.sha256));
        Err(Refusal::invalid(format!(
            "{} is not the file that was saved: its SHA-256 is {found}, but the manifest says {expected}; the file is \
             damaged or belongs to another save; use another checkpoint or model",
            self.saved.path().display()
        ))
        .into())
    }

    /// Whether a block may contain data of this server.
    fn may_concern(&self, head: &BlockHeader) -> bool {
        let number = head.table as usize;
        let target = self.target(number);
        if target.is_none() && number < self.tables.len() {
            return matches!(head.kind, BlockKind::Clock | BlockKind::End);
        }
        match head.kind {
            BlockKind::Rows | BlockKind::Counts | BlockKind::Removed => {
                target.is_none_or(|target| !target.same_buckets || self.placement.owns_any(head.from..head.until))
            }
            // A sketch counts the ids of all buckets of its server.
            BlockKind::Sketch => self.has_ours || target.is_none_or(|target| !target.same_buckets),
            BlockKind::Clock | BlockKind::End => true,
        }
    }

    /// The target of a table of the file; `None` if it is dropped.
    fn target(&self, number: usize) -> Option<&TableTarget<'a>> {
        self.tables.get(number)?.as_ref()
    }

    fn put_block(&self, block: SnapshotBlock, saved: SaveClock) -> Result<u64, StorageError> {
        let Some(target) = self.target(block.table) else { return Ok(0) };
        match block.content {
            BlockContent::Rows(rows) => self.put_rows(target, rows, saved),
            // The time was recorded when the file was verified. A row that is gone is not put in at all.
            BlockContent::Clock(_) | BlockContent::Removed(_) => Ok(0),
            BlockContent::Counts { ids, counts } => self.put_counts(target, &ids, &counts),
            BlockContent::Sketch { stripe, cells } => self.put_sketch(target, stripe, &cells),
        }
    }

    fn put_counts(&self, target: &TableTarget<'_>, ids: &[u64], counts: &[u32]) -> Result<u64, StorageError> {
        let ours = ids.iter().zip_eq(counts).filter(|(id, _)| self.placement.owns_row(target.number, **id));
        let (ids, counts): (Vec<u64>, Vec<u32>) = ours.unzip();
        target.table.insert_frequency_counts(&ids, &counts).map_err(|error| self.table_error(target, error))?;
        Ok(0)
    }

    /// Adds a sketch. A sketch of another size cannot be added, so its ids count from zero.
    fn put_sketch(&self, target: &TableTarget<'_>, stripe: u32, cells: &[u32]) -> Result<u64, StorageError> {
        if target.same_counter {
            let merged = target.table.merge_sketch(stripe as usize, cells);
            merged.map_err(|error| self.table_error(target, error))?;
        }
        Ok(0)
    }

    fn put_rows(&self, target: &TableTarget<'_>, rows: RowBatch, saved: SaveClock) -> Result<u64, StorageError> {
        let mut rows = target.keep_owned(self.placement, rows)?;
        target.table.rebase_access(&mut rows, saved.time, saved.steps);
        let inserted = self.service.with_scratch(|scratch| target.table.insert(&rows, scratch));
        inserted.map_err(|error| self.table_error(target, error))?;
        // Block by block, so that the log holds no more than one of them in memory.
        self.service.log.as_ref().map_or(Ok(()), |log| log.flush())?;
        Ok(rows.ids.len() as u64)
    }

    fn table_error(&self, target: &TableTarget<'_>, source: TableError) -> StorageError {
        StorageError::Table { name: self.service.names[target.number as usize].clone(), source }
    }
}

/// The table that the rows of a saved table go to.
pub(super) struct TableTarget<'a> {
    pub(super) number: u32,
    pub(super) table: &'a Table,
    /// The file has the same number of buckets, so a block can be skipped by its header.
    pub(super) same_buckets: bool,
    /// The file has access metadata of the same format.
    pub(super) same_access: bool,
    /// The file's sketches have the same layout and can be added.
    pub(super) same_counter: bool,
    /// `None` if the table keeps every bit of the file's slots.
    conversion: Option<RowConversion>,
}

impl<'a> TableTarget<'a> {
    /// `converts` says whether weights in another number format are rounded to the nearest numbers of the table's.
    fn find_table(
        service: &'a EmbeddingService,
        placement: &OwnedBuckets,
        (header, saved): (&SnapshotHeader, &TableHeader),
        converts: bool,
    ) -> Result<Self, String> {
        let name = &saved.name;
        let Some(number) = service.names.iter().position(|own| own == name) else {
            return Err(format!("this model has no table `{name}`"));
        };
        let here = describe_table(service, number);
        let conversion = converts
            .then(|| RowConversion::new(saved, service.configs[number].element, StateConversion::Keep))
            .filter(RowConversion::changes_rows);
        let taken = conversion.as_ref().map_or(saved, RowConversion::converted_header);
        if taken.find_difference(&here).is_some() {
            return Err(saved.find_difference(&here).unwrap_or_default());
        }
        let table = service.tables.table(number as u32).map_err(|error| error.to_string())?;
        let same_buckets = header.buckets == placement.bucket_count() && saved.number == here.number;
        let (same_access, same_counter) = (saved.access == here.access, saved.counter == here.counter);
        Ok(Self { number: here.number, table, same_buckets, same_access, same_counter, conversion })
    }

    /// Keeps the rows of this server, in the table's format. Drops access metadata of another format: the rows then count as used now.
    pub(super) fn keep_owned(
        &self,
        placement: &OwnedBuckets,
        mut rows: RowBatch,
    ) -> Result<RowBatch, RowConversionError> {
        if !self.same_access {
            rows.access.clear();
        }
        placement.keep_owned(self.number, &mut rows);
        match &self.conversion {
            Some(conversion) => conversion.convert_rows(rows),
            None => Ok(rows),
        }
    }
}

/// Describes table `number` of the service.
pub(super) fn describe_table(service: &EmbeddingService, number: usize) -> TableHeader {
    let config = &service.configs[number];
    let table = service.tables.iter().nth(number);
    TableHeader {
        access: table.and_then(Table::access_layout),
        counter: table.and_then(Table::counter_layout),
        ..TableHeader::new(&service.names[number], number as u32, config)
    }
}
