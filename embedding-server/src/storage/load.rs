//! Takes from saved files the rows whose buckets this server owns: a save of any number of servers loads into any.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tracing::info;
use zagros_plumbing::Deadline;
use zagros_protocol::Refusal;
use zagros_protocol::control::{FileDigest, LoadRequest, LoadResponse};
use zagros_snapshot::{Block, BlockHead, Clock, Content, Header, Kind, SavedFile, TableHeader};
use zagros_store::{Folder, hexadecimal};
use zagros_table::{RowBatch, Table, TableError, TableTime};
use zagros_zip::ZipEq;

use super::StorageError;
use super::describe::{describe, difference};
use crate::EmbeddingService;
use crate::datapath::OwnedBuckets;

/// How often it is looked whether the placement is there.
const POLL: Duration = Duration::from_millis(20);

/// Reads what concerns this server twice: once to verify all of it, once to take it. A file that turns out damaged
/// leaves memory as it was, also where what is there was to be replaced.
pub(crate) fn load(service: &EmbeddingService, request: &LoadRequest) -> Result<LoadResponse, Refusal> {
    if request.replace && request.files.is_empty() {
        return Err(StorageError::NothingInPlace.into());
    }
    let placement = wait_for_placement(service)?;
    let _turn = service.storage.take()?;
    let folder = Folder::open(&request.folder, service.timeout).map_err(StorageError::Folder)?;
    let open = |(number, file): (usize, &FileDigest)| SavedTables::open(service, &placement, &folder, number, file);
    let mut sources = request.files.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
    sources.iter_mut().try_for_each(SavedTables::verify)?;
    if request.replace {
        service.tables.clear().map_err(StorageError::Clear)?;
    }
    // Before any row is put in, and by the newest of the files: the servers that wrote them heard of the last step at
    // their own times.
    let steps = sources.iter().map(|source| source.saved_at.steps).max().unwrap_or(0);
    service.writers.reached(steps);
    service.tables.tick(steps, 0);
    let mut rows = 0;
    for source in &sources {
        rows += source.take()?;
    }
    info!(rows, files = sources.len(), folder = request.folder, "rows loaded");
    Ok(LoadResponse { rows })
}

/// The worker that asks has the placement already, and this server hears of it in its own time. Nothing was done yet, so
/// that waiting is safe where the same request again would not be.
fn wait_for_placement(service: &EmbeddingService) -> Result<Arc<OwnedBuckets>, Refusal> {
    let deadline = Deadline::after(service.timeout);
    loop {
        match service.placement() {
            Err(_) if !deadline.is_past() => std::thread::sleep(POLL),
            placement => return placement,
        }
    }
}

/// A file of the folder itself: a name that leads elsewhere is refused.
fn saved(folder: &Folder, file: &str) -> Result<SavedFile, StorageError> {
    if Path::new(file).file_name().is_none_or(|name| name != file) {
        return Err(StorageError::FileName { file: file.to_owned() });
    }
    let (path, folder, file) = (format!("{folder}/{file}"), folder.clone(), file.to_owned());
    Ok(SavedFile::new(path, move || folder.input(&file)))
}

/// Whether the server that wrote a file owned buckets of ours.
fn may_have_ours(header: &Header, placement: &OwnedBuckets) -> bool {
    let ours = |[first, end]: &[u32; 2]| placement.owns_any(*first..*end);
    header.owned.is_empty() || header.buckets != placement.buckets() || header.owned.iter().any(ours)
}

/// A file whose tables are ours.
struct SavedTables<'a> {
    service: &'a EmbeddingService,
    placement: &'a OwnedBuckets,
    saved: SavedFile,
    /// In the order of the file's tables.
    tables: Vec<TableTarget<'a>>,
    /// The file may have frequency counts of our ids.
    has_ours: bool,
    /// By what the whole file is known, where this server is to compare that.
    digest: Option<FileDigest>,
    /// When its rows were saved, by the clock of the server that saved them.
    saved_at: TableTime,
}

/// Where the rows of a saved table go.
struct TableTarget<'a> {
    number: u32,
    table: &'a Table,
    /// The file's buckets are this model's, so that a block may be passed by what its head says.
    same_buckets: bool,
    /// The file's marks are reported as ours are.
    same_access: bool,
    /// The file's sketches may be added to ours.
    same_counter: bool,
}

impl<'a> SavedTables<'a> {
    /// Finds for each table of the file ours of the same name. A model that has gained a table still loads.
    fn open(
        service: &'a EmbeddingService,
        placement: &'a OwnedBuckets,
        folder: &Folder,
        number: usize,
        file: &FileDigest,
    ) -> Result<Self, StorageError> {
        let saved = saved(folder, &file.name)?;
        let reader = saved.open()?;
        let header = reader.header();
        let target = |saved| TableTarget::of(service, placement, header, saved);
        let tables = header.tables.iter().map(target).collect::<Result<_, _>>();
        match tables {
            Ok(tables) => {
                let has_ours = may_have_ours(header, placement);
                // A header may lie too: of every file one server compares all of it, whatever that says.
                let compares = has_ours || number % service.servers.max(1) as usize == service.index.0 as usize;
                let digest = (compares && !file.sha256.is_empty()).then(|| file.clone());
                Ok(Self { service, placement, saved, tables, has_ours, digest, saved_at: TableTime::default() })
            }
            Err(problem) => Err(StorageError::OtherModel { path: saved.path().to_owned(), problem }),
        }
    }

    /// That all that will be taken is whole, and the file the one that was saved; keeps the time of the save. A file that
    /// holds something of this server's is read to its end for that; of one that holds nothing a server reads the heads.
    fn verify(&mut self) -> Result<(), StorageError> {
        if let Some(digest) = &self.digest {
            let Clock { steps, seconds } = self.compare(digest)?;
            self.saved_at = TableTime { steps, seconds };
            return Ok(());
        }
        let mut reader = self.saved.open()?;
        while let Some(block) = reader.next(|head| self.concerns(head))? {
            if let Content::Clock(Clock { steps, seconds }) = block.content {
                self.saved_at = TableTime { steps, seconds };
            }
        }
        Ok(())
    }

    /// Answers the time of the save.
    fn compare(&self, digest: &FileDigest) -> Result<Clock, StorageError> {
        let checked = zagros_snapshot::verify(&self.saved, |_| ())?;
        if checked.sha256[..] == digest.sha256[..] {
            return Ok(checked.clock);
        }
        let (expected, found) = (hexadecimal(&digest.sha256), hexadecimal(&checked.sha256));
        Err(StorageError::OtherSave { path: self.saved.path().to_owned(), expected, found })
    }

    /// Puts in what is ours; answers how many rows.
    fn take(&self) -> Result<u64, StorageError> {
        let mut reader = self.saved.open()?;
        let mut rows = 0;
        while let Some(block) = reader.next(|head| self.concerns(head))? {
            rows += self.put(block)?;
        }
        Ok(rows)
    }

    /// Whether a block may hold something of this server's.
    fn concerns(&self, head: &BlockHead) -> bool {
        let target = self.tables.get(head.table as usize);
        match head.kind {
            Kind::Rows | Kind::Counts => {
                target.is_none_or(|target| !target.same_buckets || self.placement.owns_any(head.from..head.until))
            }
            // A sketch holds the ids of all buckets that its server owned.
            Kind::Sketch => self.has_ours || target.is_none_or(|target| !target.same_buckets),
            Kind::Clock | Kind::End => true,
        }
    }

    fn put(&self, block: Block) -> Result<u64, StorageError> {
        match block.content {
            Content::Rows(rows) => self.put_rows(&self.tables[block.table], rows),
            // Known since the file was verified.
            Content::Clock(_) => Ok(0),
            Content::Counts { ids, counts } => self.put_counts(&self.tables[block.table], &ids, &counts),
            Content::Sketch { stripe, cells } => self.put_sketch(&self.tables[block.table], stripe, &cells),
        }
    }

    fn put_counts(&self, target: &TableTarget<'_>, ids: &[u64], counts: &[u32]) -> Result<u64, StorageError> {
        let ours = ids.iter().zip_eq(counts).filter(|(id, _)| self.placement.owns(target.number, **id));
        let (ids, counts): (Vec<u64>, Vec<u32>) = ours.unzip();
        target.table.insert_frequency_counts(&ids, &counts).map_err(|error| self.refused(target, error))?;
        Ok(0)
    }

    /// Sketches of another size cannot be added: their ids are counts anew.
    fn put_sketch(&self, target: &TableTarget<'_>, stripe: u32, cells: &[u32]) -> Result<u64, StorageError> {
        if target.same_counter {
            let merged = target.table.merge_sketch(stripe as usize, cells);
            merged.map_err(|error| self.refused(target, error))?;
        }
        Ok(0)
    }

    fn put_rows(&self, target: &TableTarget<'_>, rows: RowBatch) -> Result<u64, StorageError> {
        let mut rows = target.owned(self.placement, rows);
        target.table.rebase_access(&mut rows, self.saved_at);
        let inserted = self.service.with_scratch(|scratch| target.table.insert(&rows, scratch));
        inserted.map_err(|error| self.refused(target, error))?;
        Ok(rows.ids.len() as u64)
    }

    fn refused(&self, target: &TableTarget<'_>, source: TableError) -> StorageError {
        StorageError::Table { name: self.service.names[target.number as usize].clone(), source }
    }
}

impl<'a> TableTarget<'a> {
    fn of(
        service: &'a EmbeddingService,
        placement: &OwnedBuckets,
        header: &Header,
        saved: &TableHeader,
    ) -> Result<Self, String> {
        let name = &saved.name;
        let Some(number) = service.names.iter().position(|own| own == name) else {
            return Err(format!("this model has no table `{name}`"));
        };
        let here = describe(service, number);
        if let Some(difference) = difference(saved, &here) {
            return Err(difference);
        }
        let table = service.tables.table(number as u32).map_err(|error| error.to_string())?;
        let same_buckets = header.buckets == placement.buckets() && saved.number == here.number;
        let (same_access, same_counter) = (saved.access == here.access, saved.counter == here.counter);
        Ok(Self { number: here.number, table, same_buckets, same_access, same_counter })
    }

    /// Only the rows that are this server's. Marks that mean something else are skipped: the rows count as used now.
    fn owned(&self, placement: &OwnedBuckets, mut rows: RowBatch) -> RowBatch {
        let (width, mut kept) = (self.table.stride(), 0);
        if !self.same_access {
            rows.access.clear();
        }
        for row in 0..rows.ids.len() {
            if placement.owns(self.number, rows.ids[row]) {
                rows.ids[kept] = rows.ids[row];
                rows.slots.copy_within(row * width..(row + 1) * width, kept * width);
                if let Some(access) = rows.access.get(row).copied() {
                    rows.access[kept] = access;
                }
                kept += 1;
            }
        }
        rows.ids.truncate(kept);
        rows.slots.truncate(kept * width);
        rows.access.truncate(kept);
        rows
    }
}
