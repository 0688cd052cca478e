//! Reads files of version 1.
//!
//! ```text
//! header's JSON  release, server, servers, tables of {name, dim, stride, state}
//! block          table u32 · 0 · 0 · rows u32 · stride u32 · ids u64 [rows] · slots f32 [rows × stride] · crc u32
//! end            0xffffffff · blocks u64 · rows u64 · crc u32
//! ```

use serde::Deserialize;

use super::source::{FilePlace, FileSource, word};
use crate::SnapshotError;
use crate::format::{BlockHeader, BlockKind, SnapshotHeader, TableHeader};

const END: u32 = u32::MAX;

#[derive(Deserialize)]
struct OldHeader {
    release: String,
    server: u32,
    servers: u32,
    tables: Vec<OldTable>,
}

#[derive(Deserialize)]
struct OldTable {
    name: String,
    dim: usize,
    stride: usize,
    state: String,
}

/// The header in today's form. Blocks of version 1 state no buckets.
pub(super) fn header(json: &[u8]) -> Result<SnapshotHeader, serde_json::Error> {
    let OldHeader { release, server, servers, tables } = serde_json::from_slice(json)?;
    let table = |(number, table): (usize, OldTable)| {
        let OldTable { name, dim, stride, state } = table;
        let element = "f32".to_owned();
        TableHeader { name, number: number as u32, dim, element, width: stride, state, access: None, counter: None }
    };
    let tables = tables.into_iter().enumerate().map(table).collect();
    Ok(SnapshotHeader { release, server, servers, buckets: 0, owned: Vec::new(), tables, follows: None })
}

/// Reads the head of a block or the end, with its bytes.
pub(super) fn read_head(from: &mut FileSource, place: &FilePlace) -> Result<(BlockHeader, Vec<u8>), SnapshotError> {
    let marker = from.take(place, 4)?;
    let table = word(&marker, 0);
    if table == END {
        return Ok((BlockHeader { kind: BlockKind::End, table: 0, from: 0, until: 0, entries: 1, words: 4 }, marker));
    }
    let rest = from.take(place, 16)?;
    let (entries, words) = (word(&rest, 2), word(&rest, 3));
    let head = BlockHeader { kind: BlockKind::Rows, table, from: 0, until: u32::MAX, entries, words };
    Ok((head, [marker, rest].concat()))
}
