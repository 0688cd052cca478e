//! The rows of one column of a row group, in portions of any size.
//!
//! Levels say where values are missing and where rows end. An entry is a value if its definition level is the column's
//! largest. An entry with repetition level 0 starts a row; the row ends before the next one, which may be in another page.

use std::fmt;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use ::parquet::basic::Encoding;
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::file::metadata::ColumnChunkMetaData;
use ::parquet::file::serialized_reader::SerializedPageReader;
use ::parquet::schema::types::ColumnDescPtr;

use super::decoder::{DecodedCounts, EntryLevels, PORTION, PageDecoder, PlaceDecoder};
use super::pages::{ChunkPlace, PageFile};
use crate::columnar::output::{ColumnOutput, SkippedRows};
use crate::columnar::{FileResult, catch_panics, fail};

/// Entries of a page of lists: the levels of one long row are decoded at once.
const MOST_ENTRIES: usize = 1 << 24;

pub(crate) struct ColumnReader {
    pages: SerializedPageReader<PageFile>,
    column: ColumnDescPtr,
    values: PageDecoder,
    /// Decodes pages with places in the dictionary, if there was one.
    places: Option<PlaceDecoder>,
    content: PageContent,
    /// Entries left in it.
    left: usize,
    levels: EntryLevels,
    /// How many of their entries a list column has done, and of the values.
    done: DecodedCounts,
    /// Whether the newest row of a list column may go on.
    in_row: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageContent {
    Values,
    Places,
}

impl fmt::Debug for ColumnReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { column, content, left, in_row, .. } = self;
        let mut text = f.debug_struct("ColumnReader");
        text.field("column", &column.path().string()).field("content", content).field("left", left);
        text.field("in_row", in_row).finish_non_exhaustive()
    }
}

impl ColumnReader {
    pub(crate) fn new(file: PageFile, place: ChunkPlace, column: &ColumnDescPtr) -> FileResult<Self> {
        let chunk = ColumnChunkMetaData::builder(Arc::clone(column)).set_compression_codec(place.codec);
        let chunk = chunk.set_data_page_offset(place.start.cast_signed());
        let chunk = chunk.set_total_compressed_size((place.end - place.start).cast_signed()).build()?;
        Ok(Self {
            pages: SerializedPageReader::new(Arc::new(file), &chunk, 0, None)?,
            column: Arc::clone(column),
            values: PageDecoder::new(column),
            places: None,
            content: PageContent::Values,
            left: 0,
            levels: EntryLevels::default(),
            done: DecodedCounts { values: 0, entries: 0 },
            in_row: false,
        })
    }

    /// Goes on behind the next `skipped` rows, and gives the `rows` rows after them to `out`.
    pub(crate) fn read_slice<O: ColumnOutput>(&mut self, skipped: usize, rows: usize, out: &mut O) -> FileResult<()> {
        catch_panics(|| {
            self.skip(skipped, out)?;
            self.read(rows, out)
        })
    }

    fn is_list(&self) -> bool {
        self.column.max_rep_level() > 0
    }

    fn read<O: ColumnOutput>(&mut self, rows: usize, out: &mut O) -> FileResult<()> {
        if self.is_list() { self.read_lists(rows, out) } else { self.read_flat(rows, out) }
    }

    /// Goes on behind the next `rows` rows. Pages without other rows are not decompressed.
    fn skip<O: ColumnOutput>(&mut self, mut rows: usize, out: &mut O) -> FileResult<()> {
        if self.is_list() {
            return self.read_lists(rows, &mut SkippedRows(out));
        }
        while rows > 0 {
            if self.left > 0 {
                let here = rows.min(self.left);
                match (self.content, &mut self.places) {
                    (PageContent::Places, Some(places)) => places.skip(here)?,
                    _ => self.values.skip(here)?,
                }
                self.left -= here;
                rows -= here;
                continue;
            }
            match self.pages.peek_next_page()? {
                Some(PageMetadata { is_dict: false, num_levels: Some(entries), .. }) if entries <= rows => {
                    self.pages.skip_next_page()?;
                    rows -= entries;
                }
                Some(_) if self.next_page(out)? => {}
                _ => return too_few_rows(),
            }
        }
        Ok(())
    }

    fn read_flat<O: ColumnOutput>(&mut self, rows: usize, out: &mut O) -> FileResult<()> {
        let mut missing = rows;
        while missing > 0 {
            if self.left == 0 && !self.next_page(out)? {
                return too_few_rows();
            }
            let here = missing.min(self.left).min(PORTION);
            let DecodedCounts { values, entries } = self.decode(here)?;
            if entries != here {
                return fail("a page has fewer values than its header says");
            }
            missing -= here;
            if values == entries {
                self.give(0..values, true, out)?;
            } else {
                self.give_optional(out)?;
            }
        }
        Ok(())
    }

    /// Gives the rows that were decoded, some of them null.
    fn give_optional<O: ColumnOutput>(&self, out: &mut O) -> FileResult<()> {
        let (full, mut at) = (self.column.max_def_level(), 0);
        for run in self.levels.definition.chunk_by(|a, b| (*a == full) == (*b == full)) {
            if run[0] == full {
                self.give(at..at + run.len(), true, out)?;
                at += run.len();
                continue;
            }
            for _ in run {
                out.null();
                out.end_row();
            }
        }
        Ok(())
    }

    fn read_lists<O: ColumnOutput>(&mut self, rows: usize, out: &mut O) -> FileResult<()> {
        let (mut complete, full) = (0, self.column.max_def_level());
        // From this level on, an entry is a place in a list. Below it, there is no list, or an empty one.
        let item = self.column.repeated_ancestor_def_level();
        while complete < rows {
            if self.done.entries == self.levels.repetition.len() && !self.decode_rows(out)? {
                if !self.in_row || complete + 1 < rows {
                    return too_few_rows();
                }
                self.in_row = false;
                out.end_row();
                return Ok(());
            }
            let next = self.done.entries;
            let EntryLevels { repetition, definition } = &self.levels;
            if repetition[next] == 0 && self.in_row {
                self.in_row = false;
                out.end_row();
                complete += 1;
                continue;
            }
            if repetition[next] > 0 && !self.in_row {
                return fail("a list that starts in the middle");
            }
            self.in_row = true;
            // The entries of this row that follow, as far as they are values.
            let rest = repetition[next + 1..].iter().take_while(|level| **level > 0).count() + 1;
            let present = definition[next..next + rest].iter().take_while(|level| **level == full).count();
            if present == 0 {
                if definition[next] >= item { out.null_item() } else { out.null() }
            } else {
                self.give(self.done.values..self.done.values + present, false, out)?;
                self.done.values += present;
            }
            self.done.entries += present.max(1);
        }
        Ok(())
    }

    /// Decodes some more rows of a list column; false at the end of the column.
    fn decode_rows<O: ColumnOutput>(&mut self, out: &mut O) -> FileResult<bool> {
        while self.left == 0 {
            if !self.next_page(out)? {
                return Ok(false);
            }
        }
        self.done = DecodedCounts { values: 0, entries: 0 };
        // The first call may find that the row of the page before is complete, and nothing more.
        if self.decode(PORTION)?.entries == 0 && self.decode(PORTION)?.entries == 0 {
            return fail("a page has fewer values than its header says");
        }
        Ok(true)
    }

    /// Decodes at most so many rows of the page.
    fn decode(&mut self, rows: usize) -> FileResult<DecodedCounts> {
        let mut levels = mem::take(&mut self.levels);
        let decoded = match (self.content, &mut self.places) {
            (PageContent::Places, Some(places)) => places.decode(rows, &mut levels),
            _ => self.values.decode(rows, &mut levels),
        };
        self.levels = levels;
        let decoded = decoded?;
        self.left = self.left.saturating_sub(decoded.entries);
        Ok(decoded)
    }

    fn give<O: ColumnOutput>(&self, values: Range<usize>, rows: bool, out: &mut O) -> FileResult<()> {
        match (self.content, &self.places) {
            (PageContent::Places, Some(places)) => places.give(values, rows, out),
            _ => {
                self.values.give(values, rows, out);
                Ok(())
            }
        }
    }

    /// Loads pages up to one with entries; false at the end of the column.
    fn next_page<O: ColumnOutput>(&mut self, out: &mut O) -> FileResult<bool> {
        while let Some(page) = self.pages.get_next_page()? {
            if page.is_dictionary_page() {
                let entries = PageDecoder::decode_dictionary(&self.column, page, out)?;
                self.places = Some(PlaceDecoder::new_for_dictionary(&self.column, entries)?);
                continue;
            }
            let entries = page.num_values() as usize;
            if entries == 0 {
                continue;
            }
            if self.is_list() && entries > MOST_ENTRIES {
                let most = "a page of lists of";
                return fail(format!(
                    "{most} {entries} values, the most is {MOST_ENTRIES}; write the file with smaller pages"
                ));
            }
            self.start_page(page)?;
            self.left = entries;
            return Ok(true);
        }
        Ok(false)
    }

    fn start_page(&mut self, page: Page) -> FileResult<()> {
        if !matches!(page.encoding(), Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY) {
            self.content = PageContent::Values;
            self.values.push(page);
            return Ok(());
        }
        let Some(places) = &self.places else { return fail("a page names entries of a dictionary that is not there") };
        self.content = PageContent::Places;
        places.push(page);
        Ok(())
    }
}

fn too_few_rows<T>() -> FileResult<T> {
    fail("it has fewer rows than its row group")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use ::parquet::data_type::Int32Type;
    use ::parquet::file::properties::WriterProperties;
    use ::parquet::file::writer::SerializedFileWriter;
    use ::parquet::schema::parser::parse_message_type;

    use super::*;
    use crate::columnar::groups::ColumnDescription;
    use crate::columnar::kind::ValueKind;
    use crate::columnar::parquet::file::ParquetFooter;
    use crate::columnar::texts::TextCells;

    /// Reads rows 1 and 2 of a file of three, whose bytes `change` has changed.
    fn read(change: impl FnOnce(&mut Vec<u8>)) -> FileResult<[Vec<u8>; 2]> {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("numbers.parquet");
        let schema = Arc::new(parse_message_type("message rows { required int32 number; }").unwrap());
        let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
        let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, Arc::new(properties)).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&[7, 8, 9], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let row_groups = ParquetFooter::open(&path).unwrap().row_groups(&path, [0]).unwrap();
        let file = Arc::new(File::open(&path).unwrap());
        let ColumnDescription::Parquet(column) = &row_groups.columns[0].description else { panic!("no Parquet") };
        let mut reader = ColumnReader::new(PageFile::Disk(file), row_groups.groups[0].chunks[0], column)?;
        let mut texts = TextCells::new(ValueKind::Integer);
        reader.read_slice(1, 2, &mut texts).map(|()| [0, 1].map(|row| texts.text(row).to_vec()))
    }

    #[test]
    fn rows_are_skipped_and_read() {
        assert_eq!(read(|_| ()).unwrap(), [b"8", b"9"]);
    }

    /// The header says that a data page of one byte follows, and nothing of its values.
    #[test]
    fn a_page_at_which_the_decoder_panics_is_a_fault() {
        let fault = read(|bytes| bytes[4..11].copy_from_slice(&[0x15, 0, 0x15, 2, 0x15, 2, 0])).unwrap_err();
        assert!(fault.to_string().starts_with("its bytes make no sense: "), "{fault}");
    }
}
