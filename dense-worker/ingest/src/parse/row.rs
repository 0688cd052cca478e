//! Parses lines into rows. Performance-critical: no allocation per row, and only work in memory.

use memchr::memmem::Finder;
use zagros_job::{Categorical, ColumnPart, Features, IdSource, Job};
use zagros_zip::ZipEq;

use crate::category::{CellReading, CrossId};
use crate::formats::TextSyntax;
use crate::parse::bad::{FieldFault, LostRecord, ParseOutcome, quoted_text};
use crate::parse::cells::{LineCells, RowCells};
use crate::parse::fields::{LineFields, QuoteError};
use crate::parse::hold_out::HoldOut;
use crate::parse::json::JsonFields;
use crate::parse::label::{LabelTexts, expected_weight, sample_weight};
use crate::parse::sink::RowSink;
use crate::parse::values::{MissingTexts, NumberCell, ValueWeights};
use crate::read::layout::ColumnPositions;
use crate::read::names::{used_columns, usual_separators};
use crate::read::records::{RecordScanner, RecordSyntax};
use crate::{DataPart, hash_value};

/// Parses the rows of a job. Each thread has its own parser.
#[derive(Clone, Debug)]
pub(crate) struct RowParser {
    syntax: TextSyntax,
    missing: MissingTexts,
    max_line_bytes: usize,
    hold_out: Option<HoldOut>,
    targets: Vec<LabelTexts>,
    /// Labels of the row that is read, one for each target.
    labels: Vec<f32>,
    weight: Option<String>,
    numeric: Vec<NumberCell>,
    categorical: Vec<CategoryReader>,
    groups: bool,
    fields: LineFields,
    /// Where a line is a JSON object, its values.
    object: Option<JsonFields>,
    /// Whether a malformed row has a line of its own among the scores.
    keeps_bad: bool,
}

#[derive(Clone, Debug)]
enum CategoryReader {
    One(PartReader),
    /// A value in each of several columns, whose combination is the category.
    Cross(Vec<PartReader>),
    Many(Box<Finder<'static>>),
    /// Any number of values in one column, with their weights in another.
    Weighted(Box<Finder<'static>>, ValueWeights),
}

#[derive(Clone, Debug)]
struct PartReader {
    column: String,
    reading: CellReading,
}

#[derive(Clone, Copy, Debug)]
struct RowInBlock {
    /// Lines of the block before it.
    index: u64,
    /// The byte of the text at which it starts.
    offset: u64,
    lines: u64,
}

impl RowParser {
    /// Parses the rows of `part`. Only a held-out *share* divides a file. Separate test and validation files are read whole
    /// ([`DataPart::All`]).
    pub(crate) fn new(job: &Job, part: DataPart) -> Self {
        let (syntax, missing) = (TextSyntax::new(&job.data.format), MissingTexts::new(&job.data.format));
        let categories = job.features.category_features();
        Self {
            targets: job.features.targets.iter().map(|target| LabelTexts::new(target, &missing)).collect(),
            labels: vec![0.0; job.features.targets.len()],
            weight: wants_weights(job, part).then(|| job.features.weight.clone()).flatten(),
            missing,
            max_line_bytes: job.data.max_line_bytes,
            hold_out: HoldOut::from_job(job, part),
            numeric: job.features.number_features().map(NumberCell::new).collect(),
            categorical: categories.iter().map(|feature| CategoryReader::new(&job.features, feature)).collect(),
            groups: wants_groups(job, part),
            fields: LineFields::new(syntax.has_decimal_comma),
            object: syntax.has_objects().then(|| JsonFields::new(used_columns(job))),
            syntax,
            keeps_bad: job.eval.predict.as_ref().is_some_and(|rows| rows.keep_bad),
        }
    }

    /// Parses whole lines, of which the first is at byte `offset` of the text.
    pub(crate) fn parse<S: RowSink>(
        &mut self,
        (block, offset): (&[u8], u64),
        positions: &ColumnPositions,
        sink: &mut S,
    ) -> ParseOutcome {
        let mut outcome = ParseOutcome::default();
        // Once per block, so that a usual block costs next to nothing.
        let is_clean = memchr::memchr(0, block).is_none() && std::str::from_utf8(block).is_ok();
        // Without a quote, records are lines.
        if let Some(records) = self.syntax.records.clone().filter(|_| memchr::memchr(b'"', block).is_some()) {
            self.parse_records(records, (block, offset), is_clean, positions, sink, &mut outcome);
            return outcome;
        }
        let mut start = 0;
        let ends = memchr::memchr_iter(b'\n', block).chain((!block.ends_with(b"\n")).then_some(block.len()));
        for (index, end) in ends.enumerate() {
            let place = RowInBlock { index: index as u64, offset: offset + start as u64, lines: 1 };
            self.take_row(place, &block[start..end], is_clean, positions, sink, &mut outcome);
            start = end + 1;
        }
        outcome
    }

    /// Parses records whose quoted fields may hold line breaks.
    fn parse_records<S: RowSink>(
        &mut self,
        records: RecordSyntax,
        (block, offset): (&[u8], u64),
        is_clean: bool,
        positions: &ColumnPositions,
        sink: &mut S,
        outcome: &mut ParseOutcome,
    ) {
        let (mut scanner, mut start, mut line) = (RecordScanner::new(records), 0, 0);
        while start < block.len() {
            let end = scanner.next_end(block, start);
            let record = &block[start..end.unwrap_or(block.len())];
            let row = record.strip_suffix(b"\n").unwrap_or(record);
            let lines = memchr::memchr_iter(b'\n', row).count() as u64 + 1;
            let place = RowInBlock { index: line, offset: offset + start as u64, lines };
            let is_open = end.is_none() && scanner.is_quoted();
            if lines > 1 && (is_open || row.len() > self.max_line_bytes) {
                self.lose(place, row, outcome);
            } else {
                self.take_row(place, row, is_clean, positions, sink, outcome);
            }
            line += lines;
            start += record.len();
        }
    }

    /// Notes a record that a stray quote has probably made of many rows.
    #[cold]
    fn lose(&mut self, place: RowInBlock, record: &[u8], outcome: &mut ParseOutcome) {
        let unclosed = match self.fields.tokenize(record, self.syntax.fields) {
            Err(error) if record.len() <= self.max_line_bytes => quote_fault(error, true),
            _ => self.too_long(record),
        };
        outcome.bad.add(place.index, place.lines, (*unclosed).clone());
        let reason = "no number of malformed rows allows it";
        let lost = LostRecord { line: place.index, lines: place.lines, fault: *unclosed, reason };
        outcome.bad.lost.get_or_insert(lost);
    }

    /// Parses a row, unless it is none, or of another part.
    #[inline]
    fn take_row<S: RowSink>(
        &mut self,
        place: RowInBlock,
        line: &[u8],
        is_clean: bool,
        positions: &ColumnPositions,
        sink: &mut S,
        outcome: &mut ParseOutcome,
    ) {
        if self.syntax.is_no_row(line) {
            return;
        }
        match self.parse_line((line, place.offset), is_clean, positions, sink) {
            Ok(true) => outcome.rows += 1,
            Ok(false) => outcome.other_part += 1,
            Err(fault) => {
                sink.abandon();
                if self.keeps_bad && place.lines > 1 {
                    let reason = "no empty score can stand for it (`--bad-rows skip` leaves it out)";
                    let (line, lines, fault) = (place.index, place.lines, (*fault).clone());
                    outcome.bad.lost.get_or_insert(LostRecord { line, lines, fault, reason });
                }
                outcome.bad.add(place.index, place.lines, *fault);
            }
        }
    }

    /// Gives a line of the wanted part to `sink`; false for a line of another part.
    #[inline]
    fn parse_line<S: RowSink>(
        &mut self,
        (line, offset): (&[u8], u64),
        is_clean: bool,
        positions: &ColumnPositions,
        sink: &mut S,
    ) -> Result<bool, Box<FieldFault>> {
        let by_time = self.hold_out.as_ref().is_some_and(HoldOut::divides_by_time);
        // What a hash decides alone needs no fields.
        if !by_time && !self.is_wanted((line, offset), b"")? {
            return Ok(false);
        }
        let divided = self.divide_line(line, is_clean, positions);
        if let Some(hold_out) = self.hold_out.as_ref().filter(|_| by_time) {
            let is_wanted = match divided.and_then(|()| self.row_time(line, positions)) {
                Ok(time) => self.is_wanted((line, offset), time)?,
                Err(fault) => hold_out.wants_unplaced(fault)?,
            };
            if !is_wanted {
                return Ok(false);
            }
        } else {
            divided?;
        }
        let line = without_return(line);
        sink.place(offset);
        let mut labels = std::mem::take(&mut self.labels);
        let read = match &self.object {
            Some(object) => self.read_row(object, positions, &mut labels, sink),
            None => {
                let cells = LineCells { fields: &self.fields, line, trim: self.syntax.fields.trim };
                self.read_row(&cells, positions, &mut labels, sink)
            }
        };
        self.labels = labels;
        read.map(|()| true)
    }

    #[inline]
    fn is_wanted(&self, (line, offset): (&[u8], u64), time: &[u8]) -> Result<bool, Box<FieldFault>> {
        let Some(hold_out) = &self.hold_out else { return Ok(true) };
        // Of a line that is too long, at least as much as the reader keeps.
        let kept = &line[..line.len().min(self.max_line_bytes + 1)];
        hold_out.wants_row(time, |split| split.row_part(without_return(kept), offset))
    }

    #[inline]
    fn divide_line(&mut self, line: &[u8], is_clean: bool, positions: &ColumnPositions) -> Result<(), Box<FieldFault>> {
        if line.len() > self.max_line_bytes {
            return Err(self.too_long(line));
        }
        let line = without_return(line);
        if let Some(object) = &mut self.object {
            return object.read(line);
        }
        if !is_clean {
            self.check_text(line)?;
        }
        self.fields
            .tokenize(line, self.syntax.fields)
            .map_err(|error| quote_fault(error, self.syntax.records.is_some()))?;
        if self.fields.len() != positions.fields {
            return Err(self.wrong_count(line, positions.fields));
        }
        Ok(())
    }

    fn row_time<'a>(&'a self, line: &'a [u8], positions: &ColumnPositions) -> Result<&'a [u8], Box<FieldFault>> {
        let Some(field) = positions.time else { return Ok(b"") };
        let Some(object) = &self.object else { return Ok(self.fields.get(without_return(line), field)) };
        object.single(field, false, || "a single value in the column of data.time_column".to_owned())
    }

    #[inline]
    fn read_row<C: RowCells, S: RowSink>(
        &self,
        cells: &C,
        positions: &ColumnPositions,
        labels: &mut [f32],
        sink: &mut S,
    ) -> Result<(), Box<FieldFault>> {
        for field in &positions.keys {
            sink.key(cells.single(*field, false, || "a single value in each key column".to_owned())?);
        }
        for (target, field) in positions.labels.iter().enumerate() {
            labels[target] = read_label(&self.targets[target], cells, *field)?;
        }
        let weight = self.read_weight(cells, positions)?;
        self.read_numbers(cells, positions, sink)?;
        self.read_categories(cells, positions, sink)?;
        if let Some(field) = positions.group.filter(|_| self.groups) {
            // The whole cell, even if its column is multi-valued. A missing value is a group of its own.
            let text = cells.single(field, false, || "a single value in the column of eval.group_by".to_owned())?;
            sink.group_id(hash_value(self.missing.present_text(text)));
        }
        sink.commit(labels, weight);
        Ok(())
    }

    #[inline]
    fn read_weight<C: RowCells>(&self, cells: &C, positions: &ColumnPositions) -> Result<Option<f32>, Box<FieldFault>> {
        let (Some(column), Some(field)) = (&self.weight, positions.weight) else { return Ok(None) };
        let text = cells.single(field, true, || expected_weight(column))?;
        let bad = || FieldFault::new(cells.fault_field(field), expected_weight(column), quoted_text(text));
        sample_weight(self.missing.present_text(text)).map(Some).ok_or_else(bad)
    }

    #[inline]
    fn read_numbers<C: RowCells, S: RowSink>(
        &self,
        cells: &C,
        positions: &ColumnPositions,
        sink: &mut S,
    ) -> Result<(), Box<FieldFault>> {
        let mut number = 0;
        for (cell, field) in self.numeric.iter().zip_eq(&positions.numeric) {
            let at_field = |fault: Box<FieldFault>| fault.locate_field(cells.fault_field(*field));
            if let Some(form) = &cell.form {
                let values = cells.values(*field, true, &form.separator, &self.missing);
                number = cell.put_vector(form.width, values, &self.missing, (number, &mut *sink)).map_err(at_field)?;
                continue;
            }
            let text = cells.single(*field, true, || cell.expected() + "; give the feature `width` to use arrays")?;
            let value = match cells.truth(*field) {
                Some(truth) if !self.missing.is_missing(text) => Some(f64::from(u8::from(truth))),
                _ => cell.parse_number(text, &self.missing).map_err(at_field)?,
            };
            sink.numeric(number, value);
            number += 1;
        }
        Ok(())
    }

    #[inline]
    fn read_categories<C: RowCells, S: RowSink>(
        &self,
        cells: &C,
        positions: &ColumnPositions,
        sink: &mut S,
    ) -> Result<(), Box<FieldFault>> {
        let mut fields = positions.categorical.iter();
        // A part has a field.
        let mut next = || fields.next().copied().unwrap_or_default();
        for (feature, cell) in self.categorical.iter().enumerate() {
            match cell {
                CategoryReader::One(part) => sink.id(feature, self.part_id(part, cells, next())?),
                CategoryReader::Cross(parts) => {
                    let mut cross = CrossId::default();
                    for part in parts {
                        cross.add(self.part_id(part, cells, next())?);
                    }
                    sink.id(feature, cross.finish());
                }
                CategoryReader::Many(separator) => {
                    let values = cells.values(next(), false, separator, &self.missing);
                    values.filter(|value| !value.is_empty()).for_each(|value| sink.value(feature, value));
                    sink.end_bag(feature);
                }
                CategoryReader::Weighted(separator, weights) => {
                    let (of_ids, of_weights) = (next(), next());
                    let ids = cells.values(of_ids, false, separator, &self.missing);
                    let values = cells.values(of_weights, true, separator, &self.missing);
                    let pairs = weights.read_pairs(ids, values, |id, weight| sink.weighted_id(feature, id, weight));
                    pairs.map_err(|fault| fault.locate_field(cells.fault_field(of_weights)))?;
                    sink.end_bag(feature);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn part_id<C: RowCells>(&self, part: &PartReader, cells: &C, field: usize) -> Result<u64, Box<FieldFault>> {
        let array = || "a single value; give the feature `pooling` to use arrays".to_owned();
        let text = cells.single(field, part.reading.is_number(), array)?;
        let expected = || part.reading.expected_text(&part.column);
        let fault = || FieldFault::new(cells.fault_field(field), expected(), quoted_text(text));
        part.reading.id(self.missing.present_text(text)).ok_or_else(fault)
    }

    /// Checks a line of a block that contains a NUL or an invalid character.
    #[cold]
    fn check_text(&self, line: &[u8]) -> Result<(), Box<FieldFault>> {
        let nul = memchr::memchr(0, line);
        let broken = std::str::from_utf8(line).err().map(|error| error.valid_up_to());
        let (at, expected) = match (nul, broken) {
            (Some(at), _) => (at, "text without NUL bytes"),
            (None, Some(at)) => (at, "UTF-8"),
            (None, None) => return Ok(()),
        };
        let start = memchr::memrchr(self.syntax.fields.delimiter, &line[..at]).map_or(0, |delimiter| delimiter + 1);
        let end =
            memchr::memchr(self.syntax.fields.delimiter, &line[at..]).map_or(line.len(), |delimiter| at + delimiter);
        let field = memchr::memchr_iter(self.syntax.fields.delimiter, &line[..at]).count();
        Err(FieldFault::new(field, expected, quoted_text(&line[start..end])))
    }

    #[cold]
    fn too_long(&self, line: &[u8]) -> Box<FieldFault> {
        let limit = self.max_line_bytes;
        let expected = format!("a line of at most {limit} bytes (data.max_line_bytes)");
        FieldFault::new(0, expected, format!("a longer one that starts with {}", quoted_text(line)))
    }

    #[cold]
    fn wrong_count(&self, line: &[u8], expected: usize) -> Box<FieldFault> {
        let found = self.fields.len();
        let delimiter = quoted_text(&[self.syntax.fields.delimiter]);
        let expected_text = format!("{expected} fields separated by {delimiter}");
        let other = usual_separators(self.syntax.fields.delimiter)
            .find(|separator| found == 1 && memchr::memchr_iter(*separator, line).count() + 1 == expected);
        let hint = other.map(|separator| format!(" (is the separator {}?)", quoted_text(&[separator])));
        let found_text = format!("{found}{}", hint.unwrap_or_default());
        FieldFault::new(found.min(expected), expected_text, found_text)
    }
}

impl CategoryReader {
    fn new(features: &Features, feature: &Categorical) -> Self {
        let parts = || features.column_parts(feature).iter().map(PartReader::new).collect();
        let finder = |separator| Box::new(Finder::new(separator).into_owned());
        match (feature.values.separator(), &feature.source) {
            (Some(separator), _) => match ValueWeights::from_feature(feature) {
                Some(weights) => Self::Weighted(finder(separator), weights),
                None => Self::Many(finder(separator)),
            },
            (None, IdSource::Cross(_)) => Self::Cross(parts()),
            (None, IdSource::Column { column, reading }) => Self::One(PartReader::new(&ColumnPart { column, reading })),
        }
    }
}

impl PartReader {
    fn new(part: &ColumnPart<'_>) -> Self {
        Self { column: part.column.to_owned(), reading: CellReading::new(part.reading) }
    }
}

/// The value of a label. `true` is also 1, and `false` 0.
#[inline]
fn read_label<C: RowCells>(target: &LabelTexts, cells: &C, field: usize) -> Result<f32, Box<FieldFault>> {
    let text = cells.single(field, target.are_numbers(), || target.expected.clone())?;
    let of_truth = cells.truth(field).and_then(|truth| target.truth_value(truth));
    of_truth.map_or_else(|| target.read(text, cells.fault_field(field)), Ok)
}

/// Whether rows of a part have a group. Training does not use groups.
pub(crate) fn wants_groups(job: &Job, part: DataPart) -> bool {
    part != DataPart::Train && job.eval.group_by.is_some()
}

/// Whether rows of a part have a sample weight. Measures count every sample once.
pub(crate) fn wants_weights(job: &Job, part: DataPart) -> bool {
    part == DataPart::Train && job.features.weight.is_some()
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cold]
fn quote_fault(error: QuoteError, breaks: bool) -> Box<FieldFault> {
    let (field, expected, found) = match error {
        QuoteError::Unclosed(field) if breaks => (field, "a closing quote", "the end of the file"),
        QuoteError::Unclosed(field) => {
            let expected =
                "a closing quote on the same line (set data.quoted_breaks = true if quoted fields hold line breaks)";
            (field, expected, "the end of the line")
        }
        QuoteError::TextAfterQuote(field) => (field, "the delimiter after the closing quote", "other text"),
    };
    FieldFault::new(field, expected, found)
}

#[cfg(test)]
mod tests;
