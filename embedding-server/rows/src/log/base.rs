//! A base: the server's own snapshot, from which recovery starts. It stands for all records before its `start`.
//!
//! ```text
//! log       ──────────●───────────────────●────────────►
//!                   start      rows read meanwhile: some of them newer than `start`      (fuzzy)
//! base      all rows, each as it was at some moment after `start`
//! recovery  base, then every record from `start` on: images of rows, so that one which is in the base already does no harm
//! ```
//!
//! The files of a base hold records of the log's own format. The manifest is written last: a base without one is none. It names
//! `end`, the position of the log when the last row was read: the log must be durable up to there before the base counts, else a
//! row of it could be newer than the log.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zagros_table::{FrequencyCounts, PushOrigin, TableTime};

use crate::log::folder::{base_folders, base_path};
use crate::log::format::{PREAMBLE_BYTES, RecordHead, RecordKind, SegmentPreamble, u64_at};
use crate::log::record::RecordDraft;
use crate::log::segment_reader::SegmentReader;
use crate::log::small_files::{parse_json, sync_folder, write_json};
use crate::log::{LogError, WindowGroup};

const MANIFEST: &str = "manifest.json";
const GATHERED: usize = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseManifest {
    /// The lsn of the first record that the base does not stand for.
    pub start: u64,
    /// The position of the log when the last row was read.
    pub end: u64,
    /// Its files, by their number.
    pub parts: u32,
    pub rows: u64,
    /// Rows of each table, so that a reader can make room for them first.
    #[serde(default)]
    pub table_rows: Vec<u64>,
    pub bytes: u64,
    /// The time of the tables at `start`: steps and seconds.
    pub time: [u64; 2],
    /// The pushes of each writer that were applied before `start`, by window group.
    pub groups: Vec<WindowGroup>,
    /// Pushes of which some rows were applied before `start`, and that were not repeated yet.
    pub partial: Vec<PartialImage>,
    /// Whether a load of saved rows had started before `start` and was not complete: a part of a model.
    #[serde(default)]
    pub loading: bool,
}

/// A push of which some rows were applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialImage {
    #[serde(flatten)]
    pub origin: PushOrigin,
    /// Tables and ids of the rows that have it.
    pub rows: Vec<(u32, u64)>,
}

impl BaseManifest {
    pub fn table_time(&self) -> TableTime {
        TableTime { steps: self.time[0], seconds: self.time[1] }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBase {
    folder: PathBuf,
    pub manifest: BaseManifest,
}

impl LogBase {
    /// The newest base of a log. A folder without a manifest is none.
    pub fn find_newest(log: &Path) -> Result<Option<Self>, LogError> {
        for (_, folder) in base_folders(log)?.into_iter().rev() {
            let path = folder.join(MANIFEST);
            if path.exists() {
                let text = fs::read(&path).map_err(LogError::io("read", &path))?;
                return Ok(Some(Self { manifest: parse_json(&path, &text)?, folder }));
            }
        }
        Ok(None)
    }

    /// Deletes all bases of a log but `kept`, and what is left of unfinished ones. Only after the log was read: the rest may be
    /// what a damaged log is repaired from.
    pub fn delete_others(kept: Option<&Self>, log: &Path) -> Result<(), LogError> {
        base_folders(log)?
            .into_iter()
            .filter(|(_, folder)| kept.is_none_or(|kept| *folder != kept.folder))
            .try_for_each(|(_, path)| delete(&path))
    }

    pub fn part_path(&self, part: u32) -> PathBuf {
        part_path(&self.folder, part)
    }

    /// Bytes of its files, as they are now.
    pub fn file_bytes(&self) -> Result<u64, LogError> {
        let bytes = |path: PathBuf| fs::metadata(&path).map(|data| data.len()).map_err(LogError::io("read", &path));
        (0..self.manifest.parts).map(|part| bytes(self.part_path(part))).sum()
    }

    /// Reads one of its parts, each record checked. The payload of a record is `visit`'s until it returns. Its error ends the
    /// reading.
    pub fn read_part<E: From<LogError>>(
        &self,
        part: u32,
        mut visit: impl FnMut(&RecordHead, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = self.part_path(part);
        let mut reader = SegmentReader::open(&path)?;
        match SegmentPreamble::from_bytes(reader.peek(PREAMBLE_BYTES)?) {
            Ok(preamble) if preamble.first == self.manifest.start => {}
            Ok(_) => return Err(LogError::damaged(&path, 0, "it is a part of another base").into()),
            Err(problem) => return Err(LogError::damaged(&path, 0, problem).into()),
        }
        reader.skip(PREAMBLE_BYTES as u64);
        let (mut offset, mut records) = (PREAMBLE_BYTES as u64, 0);
        loop {
            let damaged = |problem: String| LogError::damaged(&path, offset, problem);
            // A record of a base has its place in the file as its lsn.
            let head = reader.read_head(offset)?.map_err(damaged)?;
            let payload = reader.read_payload(&head)?.map_err(damaged)?;
            if head.kind == RecordKind::End {
                let expected = (payload.len() == 8).then(|| u64_at(payload, 0));
                if expected == Some(records) {
                    return Ok(());
                }
                let expected = expected.unwrap_or_default();
                return Err(damaged(format!("it has {records} records and should have {expected}")).into());
            }
            visit(&head, payload)?;
            reader.skip(head.record_bytes());
            offset += head.record_bytes();
            records += 1;
        }
    }
}

/// The manifest goes first: without it the rest is no base.
fn delete(folder: &Path) -> Result<(), LogError> {
    let manifest = folder.join(MANIFEST);
    if manifest.exists() {
        crate::log::folder::remove_file(&manifest)?;
    }
    fs::remove_dir_all(folder).map_err(LogError::io("delete", folder))
}

fn part_path(folder: &Path, part: u32) -> PathBuf {
    folder.join(format!("part-{part}.log"))
}

/// A base in the making.
#[derive(Debug)]
pub struct BaseDraft {
    log: PathBuf,
    folder: PathBuf,
    start: u64,
    lineage: u64,
}

#[derive(Debug)]
pub struct BasePartDraft {
    path: PathBuf,
    file: BufWriter<File>,
    offset: u64,
    records: u64,
    rows: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartSize {
    pub rows: u64,
    pub bytes: u64,
}

impl BaseDraft {
    /// Starts a base of the log in `log` that stands for all records before `start`.
    pub fn new(log: &Path, start: u64, lineage: u64) -> Result<Self, LogError> {
        let folder = base_path(log, start);
        if folder.exists() {
            delete(&folder)?;
        }
        fs::create_dir(&folder).map_err(LogError::io("make", &folder))?;
        Ok(Self { log: log.to_owned(), folder, start, lineage })
    }

    pub fn create_part(&self, number: u32) -> Result<BasePartDraft, LogError> {
        let path = part_path(&self.folder, number);
        let file = File::create(&path).map_err(LogError::io("make", &path))?;
        let file = BufWriter::with_capacity(GATHERED, file);
        let bytes = SegmentPreamble { lineage: self.lineage, first: self.start, next: None }.to_bytes().to_vec();
        let mut part = BasePartDraft { path, file, offset: 0, records: 0, rows: 0, bytes };
        part.write_out()?;
        Ok(part)
    }

    /// Completes it. From now on it is the newest base of the log.
    pub fn finish(self, manifest: BaseManifest) -> Result<LogBase, LogError> {
        write_json(&self.folder.join(MANIFEST), serde_json::to_vec(&manifest).unwrap_or_default())?;
        sync_folder(&self.log).map_err(LogError::io("sync", &self.log))?;
        Ok(LogBase { folder: self.folder, manifest })
    }

    pub fn discard(self) {
        // The next start deletes what is left.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl BasePartDraft {
    pub fn append_rows(&mut self, place: [u32; 2], ids: &[u64], slots: &[u32], access: &[u32]) -> Result<(), LogError> {
        self.rows += ids.len() as u64;
        self.append(&RecordDraft::rows(place, None, ids, slots, access))
    }

    /// The counts of a stripe, and the position of the log when they were read.
    pub fn append_stripe_counts(
        &mut self,
        place: [u32; 2],
        lsn: u64,
        counts: &FrequencyCounts,
    ) -> Result<(), LogError> {
        self.append(&RecordDraft::stripe_counts(place, lsn, counts))
    }

    /// Ends it, on the disk.
    pub fn finish(mut self) -> Result<PartSize, LogError> {
        self.append(&RecordDraft::end(self.records))?;
        let failed = |error| LogError::io("write", &self.path)(error);
        self.file.flush().map_err(failed)?;
        self.file.get_ref().sync_all().map_err(LogError::io("sync", &self.path))?;
        Ok(PartSize { rows: self.rows, bytes: self.offset })
    }

    fn append(&mut self, draft: &RecordDraft<'_>) -> Result<(), LogError> {
        // Its place in the file stands for an lsn, which a record of a base has none of.
        draft.append_to(&mut self.bytes, self.offset, 0);
        self.records += 1;
        self.write_out()
    }

    fn write_out(&mut self) -> Result<(), LogError> {
        self.file.write_all(&self.bytes).map_err(LogError::io("write", &self.path))?;
        self.offset += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }
}
