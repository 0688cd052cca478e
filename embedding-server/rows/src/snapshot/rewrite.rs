//! A saved file is copied block by block, and a change decides what the copy has of each block.
//!
//! ```text
//! a file with its deltas   each row once, as the newest file has it ─► change ─► one file of all rows
//! a delta alone            blocks as they are                       ─► change ─► a delta, which follows another copy
//! ```

use std::io::Write;

use crate::snapshot::format::{BlockContent, FollowedFile, SnapshotBlock, TableHeader};
use crate::snapshot::{
    FileChain, RewriteError, RowConversionError, SavedFile, SnapshotError, SnapshotWriter, WrittenFile,
};

/// What a copy has of saved rows.
pub trait RowChange {
    fn change_table(&self, saved: &TableHeader) -> TableHeader;

    /// Answers a block with one of its kind.
    fn change_content(&self, saved: &TableHeader, content: BlockContent) -> Result<BlockContent, RowConversionError>;

    /// Whether a finished copy has nothing that was to change.
    fn is_applied(&self, copy: &SavedFile) -> Result<bool, SnapshotError>;
}

/// Copies a file to one that follows `follows` if its own file follows another. Every block is read, so every checksum is checked. Needs
/// the memory of a block and its changed copy, and of the ids of deltas.
pub fn rewrite_rows(
    chain: &FileChain,
    change: &dyn RowChange,
    follows: Option<FollowedFile>,
    to: impl Write,
) -> Result<WrittenFile, RewriteError> {
    let (Some(oldest), Some(newest)) = (chain.files().first(), chain.files().last()) else {
        return Ok(WrittenFile::default());
    };
    let mut header = newest.open()?.header().clone();
    header.tables.iter_mut().for_each(|table| *table = change.change_table(table));
    env!("CARGO_PKG_VERSION").clone_into(&mut header.release);
    header.follows = oldest.open()?.header().follows.clone().map(|followed| follows.unwrap_or(followed));
    let mut writer = SnapshotWriter::start(to, header)?;
    chain.each_block(
        |_| true,
        |SnapshotBlock { table, content }, reader| -> Result<(), RewriteError> {
            let content = match reader.header().tables.get(table) {
                Some(saved) => change.change_content(saved, content)?,
                // The time belongs to no table, and a file may have none.
                None => content,
            };
            Ok(writer.write_content(table as u32, &content)?)
        },
    )?;
    Ok(writer.finish()?)
}
