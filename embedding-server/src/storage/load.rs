//! Takes from saved files the rows whose buckets this server owns: a save of any number of servers loads into any.

use std::path::{Path, PathBuf};

use tracing::info;
use zagros_protocol::Refusal;
use zagros_protocol::control::{LoadRequest, LoadResponse};
use zagros_table::{Rows, Table};

use super::StorageError;
use super::format::TableHeader;
use super::reader::Reader;
use crate::EmbeddingService;
use crate::datapath::Owned;

/// Reads every file twice: once to verify all of them, once to take rows. A file that turns out damaged leaves
/// memory as it was.
pub(crate) fn load(service: &EmbeddingService, request: &LoadRequest) -> Result<LoadResponse, Refusal> {
    let placement = service.placement()?;
    let folder = Path::new(&request.folder);
    let paths = request.files.iter().map(|file| path_of(folder, file)).collect::<Result<Vec<_>, _>>()?;
    for path in &paths {
        verify(service, path)?;
    }
    let mut rows = 0;
    for path in &paths {
        rows += take_rows(service, &placement, path)?;
    }
    info!(rows, files = paths.len(), folder = request.folder, "rows loaded");
    Ok(LoadResponse { rows })
}

/// A file of the folder itself: a name that leads elsewhere is refused.
fn path_of(folder: &Path, file: &str) -> Result<PathBuf, StorageError> {
    if Path::new(file).file_name().is_none_or(|name| name != file) {
        return Err(StorageError::FileName { file: file.to_owned() });
    }
    Ok(folder.join(file))
}

fn verify(service: &EmbeddingService, path: &Path) -> Result<(), StorageError> {
    let mut reader = Reader::open(path)?;
    own_tables(service, &reader)?;
    while reader.next()?.is_some() {}
    Ok(())
}

fn take_rows(service: &EmbeddingService, placement: &Owned, path: &Path) -> Result<u64, Refusal> {
    let mut reader = Reader::open(path)?;
    let tables = own_tables(service, &reader)?;
    let mut taken = 0;
    while let Some(block) = reader.next()? {
        let (number, table) = tables[block.table];
        let rows = owned_rows(placement, number, table, block.rows);
        let inserted = service.with_scratch(|scratch| table.insert(&rows, scratch));
        inserted.map_err(|error| service.refuse(&error))?;
        taken += rows.ids.len() as u64;
    }
    Ok(taken)
}

fn owned_rows(placement: &Owned, number: u32, table: &Table, mut rows: Rows) -> Rows {
    let mut kept = 0;
    for row in 0..rows.ids.len() {
        if placement.owns(number, rows.ids[row]) {
            rows.ids[kept] = rows.ids[row];
            rows.slots.copy_within(row * table.stride()..(row + 1) * table.stride(), kept * table.stride());
            kept += 1;
        }
    }
    rows.ids.truncate(kept);
    rows.slots.truncate(kept * table.stride());
    rows
}

/// For each table of the file, ours of the same name. A model that has gained a table still loads.
fn own_tables<'a>(service: &'a EmbeddingService, reader: &Reader) -> Result<Vec<(u32, &'a Table)>, StorageError> {
    let other = |problem| StorageError::OtherModel { path: reader.path().to_owned(), problem };
    let tables = &reader.header().tables;
    tables.iter().map(|table| own_table(service, table).map_err(other)).collect()
}

fn own_table<'a>(service: &'a EmbeddingService, saved: &TableHeader) -> Result<(u32, &'a Table), String> {
    let name = &saved.name;
    let mut ours = service.names.iter().zip(service.tables.iter()).enumerate();
    let Some((number, (_, table))) = ours.find(|(_, (own, _))| *own == name) else {
        return Err(format!("this model has no table `{name}`"));
    };
    let here = (table.dim(), table.stride(), table.state_layout());
    if (saved.dim, saved.stride, saved.state.as_str()) == here {
        return Ok((number as u32, table));
    }
    let (dim, stride, state) = here;
    Err(format!(
        "table `{name}` has dim {} with {} values of {} a row there, and dim {dim} with {stride} of {state} here",
        saved.dim, saved.stride, saved.state
    ))
}
