//! What an Arrow file holds: its columns, and where its record batches and dictionaries are.

use std::collections::BTreeSet;
use std::sync::Arc;

use ::arrow_ipc::convert::try_fb_to_schema;
use ::arrow_ipc::{Block, MetadataVersion, Schema};
use ::arrow_schema::SchemaRef;

use super::batches::arrow_fault;
use super::schema::collect_dictionaries;
use crate::columnar::fault::{Result, fail};

#[derive(Debug)]
pub(super) struct FileContent {
    pub(super) schema: SchemaRef,
    pub(super) version: MetadataVersion,
    pub(super) dictionaries: Vec<Block>,
    pub(super) batches: Vec<Block>,
    /// For each field of the schema, the dictionaries that it names.
    pub(super) named: Vec<BTreeSet<i64>>,
}

impl FileContent {
    /// The content of a file with these columns, without rows.
    pub(super) fn new(written: Schema<'_>, version: MetadataVersion) -> Result<Self> {
        if !written.endianness().equals_to_target_endianness() {
            return fail(
                "its numbers have their most significant byte first; write it on a machine with the other order",
            );
        }
        let schema = Arc::new(try_fb_to_schema(written).map_err(arrow_fault)?);
        let mut named = vec![BTreeSet::new(); schema.fields().len()];
        for (index, field) in written.fields().into_iter().flatten().enumerate() {
            collect_dictionaries(field, 0, &mut named[index]);
        }
        Ok(Self { schema, version, dictionaries: Vec::new(), batches: Vec::new(), named })
    }
}
