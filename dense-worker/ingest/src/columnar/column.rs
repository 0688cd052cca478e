//! The rows of one column of a row group, in portions of any size.
//!
//! Levels say where values are missing and where rows end. An entry is a value if its definition level is the column's
//! largest. An entry with repetition level 0 starts a row; the row ends before the next one, which may be in another page.

use std::fs::File;
use std::sync::Arc;

use super::bits::{Runs, four_bytes};
use super::fault::{Result, fail};
use super::kind::Physical;
use super::output::{Output, Skipped};
use super::pages::{ChunkPlace, PageHeader, PageKind, PageReader};
use super::schema::Levels;
use super::thrift::ends_early;
use super::values::{PORTION, ValueDecoder, plain};

/// The number of the encoding of levels in runs.
const RUNS: i64 = 3;

/// Reads a column of a row group.
#[derive(Debug)]
pub(super) struct ColumnReader {
    pages: PageReader,
    physical: Physical,
    levels: Levels,
    /// The page that is being read.
    bytes: Vec<u8>,
    /// Entries left in it.
    left: usize,
    repetition: Runs,
    definition: Runs,
    values: ValueDecoder,
    /// Entries of a list column whose levels were decoded, and how many of them are done.
    decoded: Decoded,
    /// Whether the newest row of a list column may go on.
    in_row: bool,
}

#[derive(Debug, Default)]
struct Decoded {
    repetition: Vec<u32>,
    definition: Vec<u32>,
    next: usize,
}

impl ColumnReader {
    pub(super) fn new(file: Arc<File>, place: ChunkPlace, physical: Physical, levels: Levels) -> Self {
        Self {
            pages: PageReader::new(file, place),
            physical,
            levels,
            bytes: Vec::new(),
            left: 0,
            repetition: Runs::default(),
            definition: Runs::default(),
            values: ValueDecoder::Bits { next: 0 },
            decoded: Decoded::default(),
            in_row: false,
        }
    }

    /// Gives the next `rows` rows to `out`.
    pub(super) fn read<O: Output>(&mut self, rows: usize, out: &mut O) -> Result<()> {
        if self.levels.repetition > 0 { self.read_lists(rows, out) } else { self.read_flat(rows, out) }
    }

    /// Goes on behind the next `rows` rows. Pages without other rows are not decompressed.
    pub(super) fn skip<O: Output>(&mut self, mut rows: usize, out: &mut O) -> Result<()> {
        while self.levels.repetition == 0 && self.left == 0 && rows > 0 {
            match self.pages.header()? {
                Some(PageHeader { kind: PageKind::Data | PageKind::DataV2, values, .. }) if values <= rows => {
                    self.pages.skip();
                    rows -= values;
                }
                Some(_) => drop(self.next_page(out)?),
                None => return too_few_rows(),
            }
            if self.left > 0 {
                break;
            }
        }
        let in_page = rows.min(self.left);
        self.read(if self.levels.repetition == 0 { in_page } else { rows }, &mut Skipped(out))?;
        match rows - in_page {
            more if more > 0 && self.levels.repetition == 0 => self.skip(more, out),
            _ => Ok(()),
        }
    }

    fn read_flat<O: Output>(&mut self, rows: usize, out: &mut O) -> Result<()> {
        let mut missing = rows;
        while missing > 0 {
            if self.left == 0 && !self.next_page(out)? {
                return too_few_rows();
            }
            let here = missing.min(self.left);
            self.left -= here;
            missing -= here;
            if self.levels.definition == 0 {
                self.values.take(&self.bytes, here, true, out)?;
            } else {
                self.read_optional(here, out)?;
            }
        }
        Ok(())
    }

    /// Rows of this page, some of them null.
    fn read_optional<O: Output>(&mut self, mut rows: usize, out: &mut O) -> Result<()> {
        let full = self.levels.definition;
        while rows > 0 {
            let present = self.definition.take_repeated(&self.bytes, full, rows)?;
            if present > 0 {
                self.values.take(&self.bytes, present, true, out)?;
                rows -= present;
                continue;
            }
            self.decoded.definition.clear();
            self.definition.take(&self.bytes, rows.min(PORTION), &mut self.decoded.definition)?;
            rows -= self.decoded.definition.len();
            for run in self.decoded.definition.chunk_by(|a, b| (*a == full) == (*b == full)) {
                if run[0] == full {
                    self.values.take(&self.bytes, run.len(), true, out)?;
                    continue;
                }
                for _ in run {
                    out.null();
                    out.end_row();
                }
            }
        }
        Ok(())
    }

    fn read_lists<O: Output>(&mut self, rows: usize, out: &mut O) -> Result<()> {
        let (mut complete, full) = (0, self.levels.definition);
        while complete < rows {
            if self.decoded.next == self.decoded.repetition.len() && !self.decode_levels(out)? {
                if !self.in_row || complete + 1 < rows {
                    return too_few_rows();
                }
                self.in_row = false;
                out.end_row();
                return Ok(());
            }
            let Decoded { repetition, definition, next } = &mut self.decoded;
            if repetition[*next] == 0 && self.in_row {
                self.in_row = false;
                out.end_row();
                complete += 1;
                continue;
            }
            if repetition[*next] > 0 && !self.in_row {
                return fail("a list that starts in the middle");
            }
            self.in_row = true;
            // The entries of this row that follow, as far as they are values.
            let rest = repetition[*next + 1..].iter().take_while(|level| **level > 0).count() + 1;
            let present = definition[*next..*next + rest].iter().take_while(|level| **level == full).count();
            if present == 0 {
                out.null();
            } else {
                self.values.take(&self.bytes, present, false, out)?;
            }
            *next += present.max(1);
        }
        Ok(())
    }

    /// Decodes levels of some more entries; false at the end of the column.
    fn decode_levels<O: Output>(&mut self, out: &mut O) -> Result<bool> {
        while self.left == 0 {
            if !self.next_page(out)? {
                return Ok(false);
            }
        }
        let here = self.left.min(PORTION);
        self.left -= here;
        let Decoded { repetition, definition, next } = &mut self.decoded;
        repetition.clear();
        definition.clear();
        *next = 0;
        self.repetition.take(&self.bytes, here, repetition)?;
        self.definition.take(&self.bytes, here, definition)?;
        Ok(true)
    }

    /// Loads pages up to one with entries; false at the end of the column.
    fn next_page<O: Output>(&mut self, out: &mut O) -> Result<bool> {
        while let Some(header) = self.pages.header()? {
            match header.kind {
                PageKind::Other => self.pages.skip(),
                PageKind::Dictionary => {
                    self.pages.load(&mut self.bytes)?;
                    out.forget();
                    if !matches!(header.encoding, 0 | 2) {
                        return fail(format!("a dictionary with the encoding {}", header.encoding));
                    }
                    plain(self.physical, &self.bytes, &mut 0, header.values, |value| out.remember(value))?;
                }
                PageKind::Data | PageKind::DataV2 => {
                    self.pages.load(&mut self.bytes)?;
                    self.start_page(&header)?;
                    if self.left > 0 {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    fn start_page(&mut self, header: &PageHeader) -> Result<()> {
        let mut at = 0;
        let is_v2 = header.kind == PageKind::DataV2;
        let most = [self.levels.repetition, self.levels.definition];
        let [repetition, definition] = [0, 1].map(|which| {
            if most[which] == 0 {
                at += if is_v2 { header.level_bytes[which] } else { 0 };
                return Ok(Runs::default());
            }
            let length = match is_v2 {
                true => header.level_bytes[which],
                false if header.level_encodings[which] == RUNS => four_bytes(&self.bytes, &mut at)? as usize,
                false => return fail(format!("levels with the encoding {}", header.level_encodings[which])),
            };
            let start = at;
            at = at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or_else(ends_early)?;
            Runs::new(u32::BITS - most[which].leading_zeros(), start, at)
        });
        (self.repetition, self.definition) = (repetition?, definition?);
        self.values = ValueDecoder::new(header.encoding, self.physical, &self.bytes, at, header.values)?;
        self.left = header.values;
        Ok(())
    }
}

fn too_few_rows<T>() -> Result<T> {
    fail("it has fewer rows than its row group")
}
