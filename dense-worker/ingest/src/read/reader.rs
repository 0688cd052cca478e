//! Opens splits one after another, and returns their text in blocks.

use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use zagros_job::Job;

use crate::columnar::groups::{RowGroups, RowSlice};
use crate::read::layout::FileLayout;
use crate::read::line_blocks::{BlockLimits, LineBlocks};
use crate::read::text::{FileText, ReadReach};
use crate::{IngestError, SplitSource, SplitTask};

/// Assumed bytes of a row of columns, for the number of rows in a block.
const BYTES_OF_A_ROW: usize = 128;

#[derive(Debug)]
pub(crate) struct RowBlock {
    pub(crate) layout: Arc<FileLayout>,
    pub(crate) content: BlockBody,
    pub(crate) bytes: u64,
    pub(crate) place: RowPlace,
    /// The split that ends here. Only on the last block of a split, which has no rows.
    pub(crate) completes: Option<u64>,
    pub(crate) is_whole_file: bool,
}

#[derive(Debug)]
pub(crate) enum BlockBody {
    Lines(BlockLines),
    /// Rows of a row group, which the parser decodes.
    Slice(RowSlice),
}

#[derive(Debug, Default)]
pub(crate) struct BlockLines {
    pub(crate) text: Vec<u8>,
    /// The place of the first one in the text of the file, decompressed.
    pub(crate) offset: u64,
}

/// The position of a block, as far as it is known without reading the text before its split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowPlace {
    /// Offset in the text of the first line of the split.
    split_offset: u64,
    /// Lines of the split before the block; rows of the row group before it.
    lines_before: u64,
    pub(crate) row_group: Option<usize>,
}

impl RowPlace {
    /// The number in its file, from 1, of line `index` (from 0) of the block. If the split starts in the middle, this reads
    /// the file up to there. Only an error pays for that.
    pub(crate) fn line_number(self, layout: &FileLayout, index: u64) -> Result<u64, IngestError> {
        if self.split_offset == layout.data_start || self.row_group.is_some() {
            return Ok(layout.first_line + self.lines_before + index);
        }
        let reach = ReadReach::To(self.split_offset);
        let mut text = FileText::open(&layout.path, reach, &Arc::default())?.take(self.split_offset);
        let (mut buffer, mut lines) = (vec![0; 1 << 20], 0);
        loop {
            let read = text.read(&mut buffer).map_err(|error| text.get_ref().explain(error))?;
            if read == 0 {
                return Ok(lines + 1 + self.lines_before + index);
            }
            lines += count_lines(&buffer[..read]);
        }
    }
}

pub(crate) struct BlockReader {
    job: Arc<Job>,
    splits: Box<dyn SplitSource>,
    block_bytes: usize,
    cancel: Arc<AtomicBool>,
    layouts: HashMap<PathBuf, Arc<FileLayout>>,
    open: Option<OpenReader>,
}

enum OpenReader {
    Lines(OpenSplit),
    Slices(OpenSlices),
}

struct OpenSplit {
    id: u64,
    layout: Arc<FileLayout>,
    is_whole_file: bool,
    text: LineBlocks<FileText>,
    place: RowPlace,
    /// Bytes of the file that are accounted for, from its start.
    accounted: u64,
}

impl BlockReader {
    pub(crate) fn new(
        job: Arc<Job>,
        splits: Box<dyn SplitSource>,
        block_bytes: usize,
        cancel: Arc<AtomicBool>,
    ) -> Self {
        Self { job, splits, block_bytes, cancel, layouts: HashMap::new(), open: None }
    }

    /// The next block, which uses the memory of `text`; `None` if the source has no more splits.
    pub(crate) fn next_block(&mut self, mut text: Vec<u8>) -> Result<Option<RowBlock>, IngestError> {
        loop {
            if let Some(open) = &mut self.open {
                let block = match open {
                    OpenReader::Lines(open) => {
                        let offset = open.text.at;
                        let has_lines = open.text.next_block(&mut text);
                        let has_lines = has_lines.map_err(|error| open.text.source.explain(error))?;
                        let completes = (!has_lines).then_some(open.id);
                        open.take_block(BlockLines { text, offset }, completes)
                    }
                    OpenReader::Slices(open) => open.take_block(),
                };
                if block.completes.is_some() {
                    self.open = None;
                }
                return Ok(Some(block));
            }
            match self.splits.next().map_err(|reason| IngestError::Source { reason })? {
                Some(task) => self.open = Some(self.open_split(&task)?),
                None => return Ok(None),
            }
        }
    }

    /// The file that is being read, if there is one.
    pub(crate) fn current_path(&self) -> PathBuf {
        let layout = self.open.as_ref().map(|open| match open {
            OpenReader::Lines(open) => &open.layout,
            OpenReader::Slices(open) => &open.layout,
        });
        layout.map(|layout| layout.path.clone()).unwrap_or_default()
    }

    fn open_split(&mut self, task: &SplitTask) -> Result<OpenReader, IngestError> {
        let layout = self.file_layout(task)?;
        if let Some(row_groups) = &layout.row_groups {
            let rows = (self.block_bytes / BYTES_OF_A_ROW).max(1);
            return Ok(OpenReader::Slices(OpenSlices::new(&layout, row_groups, task, rows)));
        }
        self.open_lines(task, layout).map(OpenReader::Lines)
    }

    fn open_lines(&self, task: &SplitTask, layout: Arc<FileLayout>) -> Result<OpenSplit, IngestError> {
        if !layout.is_splittable() && task.start > 0 {
            let reason = format!("it cannot be read from byte {} on; give it as one split", task.start);
            return Err(IngestError::bad_file(&task.path, reason));
        }
        let limits = BlockLimits { block_bytes: self.block_bytes, max_line_bytes: self.job.data.max_line_bytes };
        let end = if layout.is_splittable() { task.end } else { u64::MAX };
        let starts_at_data = task.start <= layout.data_start;
        let offset = if starts_at_data { layout.data_start } else { task.start - 1 };
        let text = if layout.is_compressed {
            let mut text = FileText::open(&task.path, ReadReach::To(u64::MAX), &self.cancel)?;
            text.skip_to(offset)?;
            text
        } else {
            FileText::open_at(&task.path, offset, end, &self.cancel)?
        };
        let mut text = LineBlocks::new(text, offset, end, limits).with_records(layout.records.clone());
        if !starts_at_data {
            text.skip_line().map_err(|error| text.source.explain(error))?;
        }
        let split_offset = text.at;
        Ok(OpenSplit {
            id: task.id,
            is_whole_file: task.start == 0 && end >= layout.bytes,
            layout,
            text,
            place: RowPlace { split_offset, lines_before: 0, row_group: None },
            accounted: if task.start == 0 { 0 } else { split_offset },
        })
    }

    fn file_layout(&mut self, task: &SplitTask) -> Result<Arc<FileLayout>, IngestError> {
        if let Some(layout) = self.layouts.get(&task.path) {
            return Ok(Arc::clone(layout));
        }
        let layout = Arc::new(FileLayout::read(&self.job, &task.path, &self.cancel)?);
        self.layouts.insert(task.path.clone(), Arc::clone(&layout));
        Ok(layout)
    }
}

impl OpenSplit {
    fn take_block(&mut self, lines: BlockLines, completes: Option<u64>) -> RowBlock {
        let LineBlocks { source, at, .. } = &self.text;
        let position = if self.layout.is_compressed { source.compressed_bytes() } else { *at };
        let bytes = position.saturating_sub(self.accounted);
        self.accounted += bytes;
        let place = self.place;
        self.place.lines_before += count_lines(&lines.text);
        let (layout, is_whole_file) = (Arc::clone(&self.layout), self.is_whole_file);
        RowBlock { layout, content: BlockBody::Lines(lines), bytes, place, completes, is_whole_file }
    }
}

/// The row groups of a split, in slices of so many rows.
struct OpenSlices {
    id: u64,
    layout: Arc<FileLayout>,
    is_whole_file: bool,
    slices: Box<dyn Iterator<Item = RowSlice> + Send>,
    /// The row group after the last one.
    end: usize,
    /// Bytes and rows of the split that are not accounted for.
    bytes: u64,
    rows: u64,
}

impl OpenSlices {
    fn new(layout: &Arc<FileLayout>, row_groups: &RowGroups, task: &SplitTask, most: usize) -> Self {
        let end = task.end.min(layout.bytes);
        let owned = row_groups.owned_groups(task.start, end);
        let groups: Vec<_> = owned.clone().map(|group| (group, row_groups.groups[group].rows)).collect();
        Self {
            id: task.id,
            layout: Arc::clone(layout),
            is_whole_file: task.start == 0 && end == layout.bytes,
            bytes: end.saturating_sub(task.start),
            rows: groups.iter().fold(0, |sum, (_, rows)| rows.saturating_add(sum)),
            end: owned.end,
            slices: Box::new(groups.into_iter().flat_map(move |(group, rows)| row_slices(group, rows, most))),
        }
    }

    /// The next slice. The bytes of the split are spread evenly over its rows.
    fn take_block(&mut self) -> RowBlock {
        let slice = self.slices.next();
        if let (Some(slice), Some(row_groups)) = (slice.filter(|slice| slice.start == 0), &self.layout.row_groups) {
            (slice.group..self.end.min(slice.group + 2)).for_each(|group| row_groups.prefetch(group));
        }
        let taken = slice.map_or(self.rows, |slice| slice.rows as u64);
        // u128: a product with a byte count.
        let bytes = match self.rows {
            0 => self.bytes,
            rows => (u128::from(self.bytes) * u128::from(taken) / u128::from(rows)) as u64,
        };
        self.bytes -= bytes;
        self.rows -= taken;
        let place = slice.map_or((0, None), |slice| (slice.start, Some(slice.group)));
        RowBlock {
            layout: Arc::clone(&self.layout),
            content: slice.map_or_else(|| BlockBody::Lines(BlockLines::default()), BlockBody::Slice),
            bytes,
            place: RowPlace { split_offset: 0, lines_before: place.0, row_group: place.1 },
            completes: slice.is_none().then_some(self.id),
            is_whole_file: self.is_whole_file,
        }
    }
}

fn row_slices(group: usize, rows: u64, most: usize) -> impl Iterator<Item = RowSlice> + Send {
    let most = most as u64;
    (0..rows.div_ceil(most)).map(move |slice| {
        let start = slice * most;
        RowSlice { group, start, rows: (rows - start).min(most) as usize }
    })
}

fn count_lines(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture;

    fn blocks(job: Job, tasks: Vec<SplitTask>, block_bytes: usize) -> Result<Vec<RowBlock>, IngestError> {
        let mut reader = BlockReader::new(Arc::new(job), fixture::deal_splits(tasks), block_bytes, Arc::default());
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block(Vec::new())? {
            blocks.push(block);
        }
        Ok(blocks)
    }

    fn lines(block: &RowBlock) -> &[u8] {
        let BlockBody::Lines(lines) = &block.content else { panic!("no lines") };
        &lines.text
    }

    fn task(id: u64, path: &std::path::Path, start: u64, end: u64) -> SplitTask {
        SplitTask { id, path: path.into(), start, end }
    }

    #[test]
    fn a_source_that_fails_is_quoted() {
        let broken = fixture::make_splits(|| Err("the coordinator at 10.0.0.1:7700 did not answer for 30s".into()));
        let mut reader = BlockReader::new(Arc::new(fixture::criteo()), broken, 64, Arc::default());
        let expected = "cannot get the next split of the data: the coordinator at 10.0.0.1:7700 did not answer for 30s";
        assert_eq!(reader.next_block(Vec::new()).unwrap_err().to_string(), expected);
    }

    proptest! {
        #[test]
        fn bytes_add_up_and_lines_know_their_number(
            lengths in prop::collection::vec(0_usize..20, 1..20),
            mut borders in prop::collection::vec(1_u64..200, 0..4),
            block_bytes in 1_usize..60,
        ) {
            let text: String = lengths.iter().map(|length| "x".repeat(*length) + "\n").collect();
            let header = "click,age,city,tags\n";
            let (_folder, path) = fixture::file(header.to_owned() + &text);
            let size = (header.len() + text.len()) as u64;
            borders.extend([0, size]);
            borders.retain(|border| *border <= size);
            borders.sort_unstable();
            let tasks = borders.windows(2).map(|pair| task(0, &path, pair[0], pair[1])).collect();
            let blocks = blocks(fixture::delimited(|_| ()), tasks, block_bytes).unwrap();
            prop_assert_eq!(blocks.iter().map(|block| block.bytes).sum::<u64>(), size);
            let mut line = 2;
            for block in &blocks {
                for index in 0..count_lines(lines(block)) {
                    prop_assert_eq!(block.place.line_number(&block.layout, index).unwrap(), line);
                    line += 1;
                }
            }
            prop_assert_eq!(line, 2 + lengths.len() as u64);
        }
    }
}
