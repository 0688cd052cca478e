//! Writes all rows of this server, weights and optimiser state, as one file.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use tracing::info;
use zagros_plumbing::durable;
use zagros_protocol::Refusal;
use zagros_protocol::control::{SaveRequest, SaveResponse};
use zagros_table::{Rows, Table};

use super::StorageError;
use super::format::{BLOCK_BYTES, Header, TableHeader, file_name};
use super::writer::Writer;
use crate::EmbeddingService;

/// Writes the file below the request's folder, whole or not at all (invariant CK-1). Each stripe is read at a moment
/// of its own: pushes that arrive meanwhile are in the file or not.
pub(crate) fn save(service: &EmbeddingService, request: &SaveRequest) -> Result<SaveResponse, Refusal> {
    let folder = Path::new(&request.folder);
    let name = file_name(service.index.0, service.servers);
    let path = folder.join(&name);
    let mut rows = 0;
    make_folder(folder)
        .and_then(|()| {
            durable::write_with(&path, |file| {
                rows = write_rows(service, file)?;
                Ok(())
            })
        })
        .map_err(StorageError::Write)?;
    info!(rows, path = %path.display(), "rows saved");
    Ok(SaveResponse { files: vec![name], rows })
}

fn make_folder(folder: &Path) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot make {}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(named)
}

fn write_rows(service: &EmbeddingService, to: &mut impl Write) -> io::Result<u64> {
    let mut writer = Writer::start(to, &header(service))?;
    for (number, table) in service.tables.iter().enumerate() {
        write_table(&mut writer, number as u32, table)?;
    }
    writer.finish()
}

/// Stripe after stripe through a buffer of about a block, so that a save needs little memory besides the table.
fn write_table<W: Write>(writer: &mut Writer<'_, W>, number: u32, table: &Table) -> io::Result<()> {
    let mut rows = Rows::default();
    for stripe in 0..table.stripes() {
        table.read_stripe(stripe, &mut rows);
        if size_of_val(&rows.slots[..]) >= BLOCK_BYTES || stripe + 1 == table.stripes() {
            writer.rows(number, table.stride(), &rows)?;
            rows.ids.clear();
            rows.slots.clear();
        }
    }
    Ok(())
}

fn header(service: &EmbeddingService) -> Header {
    let table = |(name, table): (&String, &Table)| TableHeader {
        name: name.clone(),
        dim: table.dim(),
        stride: table.stride(),
        state: table.state_layout().to_owned(),
    };
    Header {
        release: env!("CARGO_PKG_VERSION").to_owned(),
        server: service.index.0,
        servers: service.servers,
        // One name per table, by construction of the service.
        tables: service.names.iter().zip(service.tables.iter()).map(table).collect(),
    }
}
