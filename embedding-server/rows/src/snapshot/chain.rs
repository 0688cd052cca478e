//! A file of all rows and the deltas that follow it, read as one.
//!
//! ```text
//! rows-0-of-2.zrows ◄── rows-0-of-2.delta-1.zrows ◄── rows-0-of-2.delta-2.zrows
//! all rows              changed and removed since      changed and removed since      read from here to the left
//! ```
//!
//! The newest file is read first. A row of an earlier file counts only if no later file has the row or says that it is
//! gone. So only the ids of deltas are held in memory, some 20 bytes each, and each row comes once.
//!
//! Finds one row of a file by its id. Reads only the blocks that may contain it.

use std::cell::Cell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use zagros_protocol::{RowKey, TableId, bucket_of};

use crate::snapshot::format::{
    BlockContent, BlockHeader, BlockKind, FollowedFile, SnapshotBlock, SnapshotHeader, TableHeader,
};
use crate::snapshot::{SavedFile, SnapshotError, SnapshotReader};

/// A file of all rows, and its deltas in the order in which they were written.
#[derive(Clone, Debug)]
pub struct FileChain {
    files: Vec<SavedFile>,
}

impl FileChain {
    /// Each file follows the one before. A delta alone is read as it is, with its list of rows that are gone.
    pub fn new(files: Vec<SavedFile>) -> Self {
        Self { files }
    }

    /// Divides the files of a save into chains, in the order of their first files. A file of all rows alone is a chain.
    /// `sha256_of` tells the hash of a file by its name, hexadecimal, if the save states it.
    pub fn group_files(
        files: &[SavedFile],
        sha256_of: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Self>, SnapshotError> {
        let link = |file: &SavedFile| {
            let (path, sha256) = (file.path().to_owned(), sha256_of(name(file.path())));
            Ok(ChainLink { path, sha256, follows: file.open()?.header().follows.clone() })
        };
        let links = files.iter().map(link).collect::<Result<Vec<_>, SnapshotError>>()?;
        let chain = |chain: Vec<usize>| Self::new(chain.into_iter().map(|file| files[file].clone()).collect());
        Ok(group_links(&links)?.into_iter().map(chain).collect())
    }

    /// The files, that of all rows first.
    pub fn files(&self) -> &[SavedFile] {
        &self.files
    }

    /// The header of the newest file. The tables of all files are the same.
    pub fn newest_header(&self) -> Result<SnapshotHeader, SnapshotError> {
        let mut newest: Option<SnapshotHeader> = None;
        for file in &self.files {
            let header = file.open()?.header().clone();
            if newest.as_ref().is_some_and(|before| before.tables != header.tables) {
                let problem = "it has other tables than the file that it follows".to_owned();
                return Err(SnapshotError::Inconsistent { path: file.path().to_owned(), problem });
            }
            newest = Some(header);
        }
        Ok(newest.unwrap_or_default())
    }

    /// The row of a table by its id, and its file. `None` if the newest file that knows the id says that it is gone, or no
    /// file knows it.
    pub fn find_row(&self, table: &str, id: u64) -> Result<Option<(FoundRow, &SavedFile)>, SnapshotError> {
        for file in self.files.iter().rev() {
            match find_mention(file.open()?, table, id)? {
                Some(RowMention::Found(found)) => return Ok(Some((found, file))),
                Some(RowMention::Removed) => return Ok(None),
                None => {}
            }
        }
        Ok(None)
    }

    /// The number of rows in blocks that are `wanted`. Of a file without deltas only the heads of blocks are read.
    pub fn count_rows(&self, wanted: impl Fn(&BlockHeader) -> bool) -> Result<u64, SnapshotError> {
        let is_wanted = |head: &BlockHeader| head.kind == BlockKind::Rows && wanted(head);
        let counted = Cell::new(0);
        let count = |rows: u64| counted.set(counted.get() + rows);
        if let [file] = &*self.files {
            file.open()?.next_block(|head| {
                count(if is_wanted(head) { u64::from(head.entries) } else { 0 });
                false
            })?;
            return Ok(counted.get());
        }
        self.each_block(is_wanted, |block, _| {
            if let BlockContent::Rows(rows) = block.content {
                count(rows.ids.len() as u64);
            }
            Ok::<(), SnapshotError>(())
        })?;
        Ok(counted.get())
    }

    /// Calls `take` with each block that is `wanted`, and the reader of its file: each row as the newest file has it, and the
    /// counts, sketches and time of the newest file. `wanted` must not depend on the file.
    pub fn each_block<E: From<SnapshotError>>(
        &self,
        wanted: impl Fn(&BlockHeader) -> bool,
        mut take: impl FnMut(SnapshotBlock, &SnapshotReader) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut later = LaterRows::default();
        for (number, file) in self.files.iter().enumerate().rev() {
            let place = ChainPlace { is_oldest: number == 0, is_newest: number + 1 == self.files.len() };
            let mut reader = file.open()?;
            while let Some(block) = reader.next_block(|head| wanted(&as_rows(head)))? {
                let width = reader.header().tables.get(block.table).map_or(0, |table| table.width);
                if let Some(block) = later.filter_block(block, width, place) {
                    take(block, &reader)?;
                }
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub struct ChainLink {
    pub path: PathBuf,
    /// Its SHA-256, hexadecimal, if the save states it.
    pub sha256: Option<String>,
    pub follows: Option<FollowedFile>,
}

/// The positions of the files of each chain, that of all rows first.
/// Refuses a delta that follows a file that is not named before it, or another file of its name.
pub fn group_links(links: &[ChainLink]) -> Result<Vec<Vec<usize>>, SnapshotError> {
    let mut chains: Vec<Vec<usize>> = Vec::new();
    for (number, ChainLink { path, follows, .. }) in links.iter().enumerate() {
        let refused = |problem| Err(SnapshotError::Inconsistent { path: path.clone(), problem });
        let Some(FollowedFile { name: before, sha256 }) = follows else {
            chains.push(vec![number]);
            continue;
        };
        let last = |chain: &Vec<usize>| chain.last().map(|last| &links[*last]);
        let is_before = |chain: &&mut Vec<usize>| last(chain).is_some_and(|last| name(&last.path) == before);
        let Some(chain) = chains.iter_mut().find(is_before) else {
            return refused(format!("its changes follow {before}, which is not named before it"));
        };
        if last(chain).and_then(|last| last.sha256.as_ref()).is_some_and(|found| found != sha256) {
            return refused(format!("its changes follow a file {before} with another SHA-256"));
        }
        chain.push(number);
    }
    Ok(chains)
}

#[derive(Clone, Copy, Debug)]
struct ChainPlace {
    /// It is the file of all rows.
    is_oldest: bool,
    is_newest: bool,
}

/// The rows that the files read so far have or have removed, by table and id.
#[derive(Debug, Default)]
struct LaterRows(HashSet<(usize, u64)>);

impl LaterRows {
    /// What a block says that no later file says otherwise. `None` if that is nothing. A slot of the table has `width` words.
    fn filter_block(&mut self, block: SnapshotBlock, width: usize, place: ChainPlace) -> Option<SnapshotBlock> {
        let SnapshotBlock { table: number, content } = block;
        let content = match content {
            BlockContent::Rows(mut rows) => {
                if !self.0.is_empty() {
                    rows.retain(width, |id| !self.0.contains(&(number, id)));
                }
                if !place.is_oldest {
                    self.0.extend(rows.ids.iter().map(|id| (number, *id)));
                }
                BlockContent::Rows(rows)
            }
            BlockContent::Removed(ids) if !place.is_oldest => {
                self.0.extend(ids.into_iter().map(|id| (number, id)));
                return None;
            }
            BlockContent::Counts { .. } | BlockContent::Sketch { .. } | BlockContent::Clock(_) if !place.is_newest => {
                return None;
            }
            content => content,
        };
        Some(SnapshotBlock { table: number, content })
    }
}

/// Shows removed ids to a filter as rows: a reader that wants rows of some buckets wants to know which of them are gone.
fn as_rows(head: &BlockHeader) -> BlockHeader {
    let kind = if head.kind == BlockKind::Removed { BlockKind::Rows } else { head.kind };
    BlockHeader { kind, ..*head }
}

fn name(file: &Path) -> &str {
    file.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRow {
    pub slot: Vec<u32>,
    /// Access metadata of the row, if the table has it.
    pub access: Option<u32>,
    pub block: u64,
}

pub fn row_bucket(header: &SnapshotHeader, table: &TableHeader, id: u64) -> u32 {
    bucket_of(RowKey { table: TableId(table.number), id }, header.buckets)
}

/// Whether rows of a bucket can be in this file. `true` if the file does not state its buckets.
pub fn may_hold_bucket(header: &SnapshotHeader, bucket: u32) -> bool {
    header.owned.is_empty() || header.owned.iter().any(|[first, end]| (*first..*end).contains(&bucket))
}

pub(crate) enum RowMention {
    Found(FoundRow),
    Removed,
}

/// Finds a row of a table. `None` if the file does not mention it.
pub(crate) fn find_mention(
    mut reader: SnapshotReader,
    table: &str,
    id: u64,
) -> Result<Option<RowMention>, SnapshotError> {
    let (number, header) = reader.find_table(table)?;
    let (width, bucket) = (header.width, row_bucket(reader.header(), header, id));
    let may_mention = |head: &BlockHeader| {
        matches!(head.kind, BlockKind::Rows | BlockKind::Removed)
            && head.table as usize == number
            && head.has_bucket(bucket)
    };
    while let Some(block) = reader.next_block(may_mention)? {
        match block.content {
            BlockContent::Rows(rows) => {
                let Some(position) = rows.ids.iter().position(|other| *other == id) else { continue };
                let slot = rows.slots[position * width..][..width].to_vec();
                let access = rows.access.get(position).copied();
                return Ok(Some(RowMention::Found(FoundRow { slot, access, block: reader.blocks_read() - 1 })));
            }
            BlockContent::Removed(ids) if ids.contains(&id) => return Ok(Some(RowMention::Removed)),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;
    use crate::snapshot::testing::{Changes, find_row, found, header, rows_of, saves, write_changes, write_test_file};

    fn read(chain: &FileChain) -> (BTreeMap<u64, u32>, Vec<u32>) {
        let (mut found, mut counted) = (BTreeMap::new(), Vec::new());
        let all = chain.each_block(
            |head| matches!(head.kind, BlockKind::Rows | BlockKind::Counts),
            |block, _| {
                match block.content {
                    BlockContent::Rows(rows) => {
                        for (id, slot) in rows.ids.iter().zip_eq(rows.slots.chunks(4)) {
                            let is_first = found.insert(*id, slot[0]).is_none();
                            assert!(slot == [slot[0]; 4] && is_first, "row {id} twice or torn");
                        }
                    }
                    BlockContent::Counts { counts, .. } => counted.extend(counts),
                    other => panic!("{other:?}"),
                }
                Ok::<(), SnapshotError>(())
            },
        );
        all.unwrap();
        (found, counted)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Each prefix of a chain is the table as it was when its last file was written.
        #[test]
        fn each_prefix_of_a_chain_is_the_table_of_its_moment(saves in saves(1..5)) {
            let folder = tempfile::tempdir().unwrap();
            let (mut all, mut files, mut follows) = (Changes::new(), Vec::new(), None);
            for (number, changes) in saves.iter().enumerate() {
                let delta: Changes = changes.iter().copied().collect();
                all.extend(&delta);
                let now: BTreeMap<u64, u32> = all.iter().filter_map(|(id, value)| Some((*id, (*value)?))).collect();
                let path = folder.path().join(format!("f{number}.zrows"));
                follows = Some(write_changes(&path, follows.take(), &delta));
                files.push(SavedFile::on_disk(&path));
                let chains = FileChain::group_files(&files, |_| None).unwrap();
                prop_assert_eq!(chains.len(), 1);
                prop_assert_eq!(read(&chains[0]), (now.clone(), vec![delta.values().flatten().count() as u32]));
                prop_assert_eq!(found(&chains[0]), now);
            }
        }
    }

    fn two_files(folder: &Path) -> [PathBuf; 2] {
        let paths = ["a.zrows", "b.zrows"].map(|name| folder.join(name));
        let base = write_changes(&paths[0], None, &Changes::from([(1, Some(1))]));
        write_changes(&paths[1], Some(base), &Changes::from([(2, Some(2))]));
        paths
    }

    #[test]
    fn a_delta_without_its_file_or_with_another_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [base, delta] = two_files(folder.path()).map(SavedFile::on_disk);
        let alone = FileChain::group_files(std::slice::from_ref(&delta), |_| None).unwrap_err().to_string();
        assert!(alone.contains("b.zrows") && alone.contains("follow a.zrows, which is not named before"), "{alone}");
        let other =
            FileChain::group_files(&[base.clone(), delta.clone()], |_| Some("00".to_owned())).unwrap_err().to_string();
        assert!(other.contains("a file a.zrows with another SHA-256"), "{other}");
        assert_eq!(FileChain::group_files(&[base.clone(), base, delta], |_| None).unwrap().len(), 2);
    }

    /// A reader of files of all rows never takes a delta for one.
    #[test]
    fn a_delta_has_a_version_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let paths = two_files(folder.path());
        let version = |path: &Path| u32::from_le_bytes(fs::read(path).unwrap()[8..12].try_into().unwrap());
        assert_eq!(paths.each_ref().map(|path| version(path)), [2, 3]);
    }

    #[test]
    fn a_row_is_found_with_its_access_metadata_and_block() {
        let (_folder, path) = write_test_file(&header(64), |writer| {
            writer.write_rows(0, &rows_of(0..100, 4, false))?;
            writer.write_rows(1, &rows_of(50..90, 3, true))
        });
        let find = |table, id| find_row(SnapshotReader::open(&path).unwrap(), table, id).unwrap();
        let found = find("item", 60).unwrap();
        assert_eq!((found.slot, found.access), (vec![60, 61, 62], Some(1060)));
        assert_eq!(found.block, 1);
        assert_eq!(find("user", 60).unwrap().access, None);
        assert_eq!(find("item", 49), None);
    }

    #[test]
    fn blocks_of_other_buckets_are_not_read() {
        let (_folder, path) = write_test_file(&header(64), |writer| {
            (0..20).try_for_each(|id| writer.write_rows(0, &rows_of(id..id + 1, 4, false)))
        });
        let bucket_7 = row_bucket(&header(64), &header(64).tables[0], 7);
        let mut bytes = std::fs::read(&path).unwrap();
        // Damages every row in other buckets. The first word of a row follows its id.
        for id in (0..20_u64).filter(|id| row_bucket(&header(64), &header(64).tables[0], *id) != bucket_7) {
            let pattern = [&id.to_le_bytes()[..], &(id as u32).to_le_bytes()].concat();
            let position = bytes.windows(12).position(|window| window == pattern).unwrap();
            bytes[position + 8] ^= 0x80;
        }
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(find_row(SnapshotReader::open(&path).unwrap(), "user", 7).unwrap().unwrap().slot, [7, 8, 9, 10]);
        assert!(find_row(SnapshotReader::open(&path).unwrap(), "user", 8).is_err());
    }

    #[test]
    fn a_file_states_its_buckets() {
        let mut header = header(64);
        assert!(may_hold_bucket(&header, 3));
        header.owned = vec![[0, 3], [9, 12]];
        assert_eq!([2, 3, 9, 12].map(|bucket| may_hold_bucket(&header, bucket)), [true, false, true, false]);
    }
}
