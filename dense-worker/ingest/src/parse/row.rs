//! Parses lines into rows. Performance-critical: no allocation per row, and only work in memory.

use memchr::memmem::Finder;
use zagros_job::{Format, Job, TestPart, ValidationPart, Values};

use crate::DataPart;
use crate::hash::HashSplit;
use crate::parse::bad::{BadRows, FieldFault, shown};
use crate::parse::fields::{Fields, QuoteError, Syntax, trimmed};
use crate::parse::json::JsonFields;
use crate::parse::label::{LabelTexts, bytes, expected_weight, sample_weight};
use crate::parse::number::parse_number;
use crate::parse::sink::RowSink;
use crate::read::layout::{ColumnPositions, syntax};
use crate::read::names::{used_columns, usual_separators};

/// Parses the rows of a job. Each thread has its own parser.
#[derive(Clone, Debug)]
pub(crate) struct RowParser {
    syntax: Syntax,
    comment: Vec<u8>,
    missing: Vec<Vec<u8>>,
    max_line_bytes: usize,
    hold_out: Option<HoldOut>,
    pub(super) targets: Vec<LabelTexts>,
    /// Labels of the row that is read, one for each target.
    pub(super) labels: Vec<f32>,
    /// The column of sample weights, if they are wanted.
    pub(super) weight: Option<String>,
    pub(super) numeric: Vec<String>,
    pub(super) categorical: Vec<Cell>,
    /// Whether rows are read with their group.
    pub(super) groups: bool,
    fields: Fields,
    /// Where a line is a JSON object, its values.
    object: Option<JsonFields>,
}

/// The wanted part of a hash split.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldOut {
    pub(crate) split: HashSplit,
    pub(crate) wanted: DataPart,
}

/// A categorical column. With a separator it holds many values.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) separator: Option<Finder<'static>>,
}

/// The counts of a block's lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParseOutcome {
    /// Rows of the wanted part.
    pub(crate) rows: u64,
    /// Rows of other parts, which were not parsed.
    pub(crate) other_part: u64,
    /// Malformed rows of the wanted part.
    pub(crate) bad: BadRows,
}

impl RowParser {
    /// Parses the rows of `part`. Only a held-out *share* divides a file. Separate test and validation files are read whole
    /// ([`DataPart::All`]).
    pub(crate) fn new(job: &Job, part: DataPart) -> Self {
        let (comment, missing) = match &job.data.format {
            Format::Criteo | Format::Parquet(_) => (Vec::new(), Vec::new()),
            Format::Jsonl(format) => (Vec::new(), bytes(&format.missing)),
            Format::Delimited(format) => {
                (format.comment.clone().unwrap_or_default().into_bytes(), bytes(&format.missing))
            }
        };
        Self {
            syntax: syntax(&job.data.format),
            comment,
            targets: job.features.targets.iter().map(|target| LabelTexts::new(target, &missing)).collect(),
            labels: vec![0.0; job.features.targets.len()],
            weight: wants_weights(job, part).then(|| job.features.weight.clone()).flatten(),
            missing,
            max_line_bytes: job.data.max_line_bytes,
            hold_out: hold_out(job, part),
            numeric: job.features.numeric.iter().map(|feature| feature.column.clone()).collect(),
            categorical: job.features.categorical.iter().map(|feature| Cell::new(&feature.values)).collect(),
            groups: wants_groups(job, part),
            fields: Fields::default(),
            object: matches!(job.data.format, Format::Jsonl(_)).then(|| JsonFields::new(used_columns(job))),
        }
    }

    /// Parses whole lines.
    pub(crate) fn parse<S: RowSink>(
        &mut self,
        block: &[u8],
        positions: &ColumnPositions,
        sink: &mut S,
    ) -> ParseOutcome {
        let mut outcome = ParseOutcome::default();
        // Once per block, so that a usual block costs next to nothing.
        let is_clean = memchr::memchr(0, block).is_none() && std::str::from_utf8(block).is_ok();
        let mut start = 0;
        let ends = memchr::memchr_iter(b'\n', block).chain((!block.ends_with(b"\n")).then_some(block.len()));
        for (index, end) in ends.enumerate() {
            let line = &block[start..end];
            start = end + 1;
            if self.is_no_row(line) {
                continue;
            }
            if !self.is_wanted(line) {
                outcome.other_part += 1;
                continue;
            }
            match self.parse_line(line, is_clean, positions, sink) {
                Ok(()) => outcome.rows += 1,
                Err(fault) => {
                    sink.abandon();
                    outcome.bad.add(index as u64, *fault);
                }
            }
        }
        outcome
    }

    /// Whether a line is blank or a comment.
    #[inline]
    fn is_no_row(&self, line: &[u8]) -> bool {
        line.is_empty() || line == b"\r" || (!self.comment.is_empty() && line.starts_with(&self.comment))
    }

    #[inline]
    fn is_wanted(&self, line: &[u8]) -> bool {
        self.hold_out.is_none_or(|hold_out| {
            // Of a line that is too long, at least as much as the reader keeps.
            let kept = &line[..line.len().min(self.max_line_bytes + 1)];
            hold_out.split.part(without_return(kept)) == hold_out.wanted
        })
    }

    #[inline]
    fn parse_line<S: RowSink>(
        &mut self,
        line: &[u8],
        is_clean: bool,
        positions: &ColumnPositions,
        sink: &mut S,
    ) -> Result<(), Box<FieldFault>> {
        if line.len() > self.max_line_bytes {
            return Err(self.too_long(line));
        }
        let line = without_return(line);
        if let Some(mut object) = self.object.take() {
            let read = object.read(line).and_then(|()| self.read_object(&object, positions, sink));
            self.object = Some(object);
            return read;
        }
        if !is_clean {
            self.check_text(line)?;
        }
        self.fields.tokenize(line, self.syntax).map_err(quote_fault)?;
        if self.fields.len() != positions.fields {
            return Err(self.wrong_count(line, positions.fields));
        }
        for field in &positions.keys {
            sink.key(self.fields.get(line, *field));
        }
        for (target, field) in positions.labels.iter().enumerate() {
            self.labels[target] = self.targets[target].read(self.fields.get(line, *field), *field)?;
        }
        let weight = self.read_weight(line, positions)?;
        self.read_numbers(line, positions, sink)?;
        self.read_categories(line, positions, sink);
        self.read_group(line, positions, sink);
        sink.commit(&self.labels, weight);
        Ok(())
    }

    #[inline]
    fn read_weight(&self, line: &[u8], positions: &ColumnPositions) -> Result<Option<f32>, Box<FieldFault>> {
        let (Some(column), Some(field)) = (&self.weight, positions.weight) else { return Ok(None) };
        let text = self.fields.get(line, field);
        let bad = || FieldFault { column: field + 1, expected: expected_weight(column), found: shown(text) };
        sample_weight(text).map(Some).ok_or_else(|| Box::new(bad()))
    }

    #[inline]
    fn read_numbers<S: RowSink>(
        &self,
        line: &[u8],
        positions: &ColumnPositions,
        sink: &mut S,
    ) -> Result<(), Box<FieldFault>> {
        for (feature, field) in positions.numeric.iter().enumerate() {
            let text = self.fields.get(line, *field);
            if self.is_missing(text) {
                sink.numeric(feature, None);
                continue;
            }
            match parse_number(text) {
                Some(value) => sink.numeric(feature, Some(value)),
                None => return Err(self.bad_number(feature, *field, text)),
            }
        }
        Ok(())
    }

    #[inline]
    fn read_categories<S: RowSink>(&self, line: &[u8], positions: &ColumnPositions, sink: &mut S) {
        for (feature, field) in positions.categorical.iter().enumerate() {
            let text = self.fields.get(line, *field);
            let text = if self.is_missing(text) { b"" } else { text };
            match &self.categorical[feature].separator {
                None => sink.value(feature, text),
                Some(separator) => {
                    self.read_bag(feature, text, separator, sink);
                    sink.end_bag(feature);
                }
            }
        }
    }

    /// The whole cell, even if its column is multi-valued. A missing value is a group of its own.
    #[inline]
    fn read_group<S: RowSink>(&self, line: &[u8], positions: &ColumnPositions, sink: &mut S) {
        if let Some(field) = positions.group.filter(|_| self.groups) {
            let text = self.fields.get(line, field);
            sink.group(if self.is_missing(text) { b"" } else { text });
        }
    }

    pub(super) fn read_bag<S: RowSink>(&self, feature: usize, text: &[u8], separator: &Finder<'static>, sink: &mut S) {
        let width = separator.needle().len();
        let ends = separator.find_iter(text).chain(std::iter::once(text.len()));
        let mut start = 0;
        for end in ends {
            let (from, to) = if self.syntax.trim { trimmed(text, start, end) } else { (start, end) };
            if from < to {
                sink.value(feature, &text[from..to]);
            }
            start = end + width;
        }
    }

    #[inline]
    pub(super) fn is_missing(&self, text: &[u8]) -> bool {
        text.is_empty() || self.missing.iter().any(|missing| missing == text)
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
        let start = memchr::memrchr(self.syntax.delimiter, &line[..at]).map_or(0, |delimiter| delimiter + 1);
        let end = memchr::memchr(self.syntax.delimiter, &line[at..]).map_or(line.len(), |delimiter| at + delimiter);
        let column = memchr::memchr_iter(self.syntax.delimiter, &line[..at]).count() + 1;
        fault(column, expected.into(), shown(&line[start..end]))
    }

    #[cold]
    fn too_long(&self, line: &[u8]) -> Box<FieldFault> {
        let limit = self.max_line_bytes;
        let expected = format!("a line of at most {limit} bytes (data.max_line_bytes)");
        Box::new(FieldFault { column: 1, expected, found: format!("a longer one that starts with {}", shown(line)) })
    }

    #[cold]
    fn wrong_count(&self, line: &[u8], expected: usize) -> Box<FieldFault> {
        let found = self.fields.len();
        let delimiter = shown(&[self.syntax.delimiter]);
        let expected_text = format!("{expected} fields separated by {delimiter}");
        let other = usual_separators(self.syntax.delimiter)
            .find(|separator| found == 1 && memchr::memchr_iter(*separator, line).count() + 1 == expected);
        let hint = other.map(|separator| format!(" (is the separator {}?)", shown(&[separator])));
        let found_text = format!("{found}{}", hint.unwrap_or_default());
        Box::new(FieldFault { column: found.min(expected) + 1, expected: expected_text, found: found_text })
    }

    #[cold]
    fn bad_number(&self, feature: usize, field: usize, text: &[u8]) -> Box<FieldFault> {
        let expected = format!("a number in column \"{}\"", self.numeric[feature]);
        Box::new(FieldFault { column: field + 1, expected, found: shown(text) })
    }
}

impl Cell {
    fn new(values: &Values) -> Self {
        let separator = match values {
            Values::One => None,
            Values::Many { separator, .. } => Some(Finder::new(separator).into_owned()),
        };
        Self { separator }
    }
}

/// Which rows are wanted, if a share of the rows is held out.
pub(crate) fn hold_out(job: &Job, wanted: DataPart) -> Option<HoldOut> {
    let test = if let TestPart::Fraction(share) = job.data.test { share } else { 0.0 };
    let validation = if let ValidationPart::Share(share) = job.data.validation { share } else { 0.0 };
    let divides = wanted != DataPart::All && test + validation > 0.0;
    divides.then(|| HoldOut { split: HashSplit::new(test, validation), wanted })
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

fn fault(column: usize, expected: String, found: String) -> Result<(), Box<FieldFault>> {
    Err(Box::new(FieldFault { column, expected, found }))
}

#[cold]
fn quote_fault(error: QuoteError) -> Box<FieldFault> {
    let (field, expected, found) = match error {
        QuoteError::Unclosed(field) => {
            (field, "a closing quote on the same line (line breaks in quotes are not supported)", "the end of the line")
        }
        QuoteError::TextAfterQuote(field) => (field, "the delimiter after the closing quote", "other text"),
    };
    Box::new(FieldFault { column: field + 1, expected: expected.into(), found: found.into() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::sink::BatchSink;
    use crate::{Batch, fixture, hash_value};

    fn positions(job: &Job) -> ColumnPositions {
        let fields = if job.data.format == Format::Criteo { 40 } else { 4 };
        let numeric = job.features.numeric.len();
        let categorical = (1 + numeric..fields).collect();
        ColumnPositions {
            fields,
            labels: vec![0],
            weight: None,
            numeric: (1..=numeric).collect(),
            categorical,
            group: Some(fields - 1),
            keys: vec![],
        }
    }

    fn parse(job: &Job, part: DataPart, text: &[u8]) -> (Batch, ParseOutcome) {
        let mut sink = BatchSink::new(&job.features);
        let outcome = RowParser::new(job, part).parse(text, &positions(job), &mut sink);
        (sink.rows, outcome)
    }

    /// The single malformed row of a text, as a message without its position.
    fn fault(job: &Job, text: &[u8]) -> String {
        let (rows, outcome) = parse(job, DataPart::All, text);
        assert_eq!((rows.size, outcome.bad.count), (0, 1), "{outcome:?}");
        outcome.bad.to_string()
    }

    #[test]
    fn a_criteo_row_in_full() {
        let text = b"1\t0\t-3\t\t7\t\t\t\t\t\t\t\t\t1000000\t68fd1e64\t\tx\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\tffffffff\r\n";
        let (rows, outcome) = parse(&fixture::criteo(), DataPart::All, text);
        assert_eq!((outcome.rows, rows.labels.as_slice()), (1, &[1.0][..]));
        let expected = [0.0, -(4.0_f32.ln()), 0.0, 8.0_f32.ln(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 13.815_512];
        assert_eq!(rows.numeric, expected);
        assert_eq!(rows.categorical[0].ids, [hash_value(b"68fd1e64")]);
        assert_eq!(rows.categorical[1].ids, [hash_value(b"")]);
        assert_eq!(rows.categorical[25].ids, [hash_value(b"ffffffff")]);
    }

    #[test]
    fn missing_texts_and_bags_of_a_csv() {
        let job = fixture::delimited(|_| ());
        let (rows, _) = parse(&job, DataPart::All, b"0,?,?,a||b|a\n1,2.5,Basel,\n0,3,\"a,b\",?\n\n\r\n");
        assert_eq!((rows.labels.as_slice(), rows.numeric.as_slice()), (&[0.0, 1.0, 0.0][..], &[-1.0, 2.5, 3.0][..]));
        assert_eq!(rows.categorical[0].ids, [b"".as_slice(), b"Basel", b"a,b"].map(hash_value));
        assert_eq!(rows.categorical[1].of(0), [b"a", b"b", b"a"].map(|text| hash_value(text)));
        assert!(rows.categorical[1].of(1).is_empty() && rows.categorical[1].of(2).is_empty());
    }

    #[test]
    fn comments_are_skipped_and_blanks_removed() {
        let job = fixture::delimited(|format| (format.comment, format.trim) = (Some("|".into()), true));
        let (rows, outcome) = parse(&job, DataPart::All, b"|1x3 Cross validator\n 1 , 7,  Basel ,a | b\n");
        assert_eq!((outcome.rows, outcome.bad.count), (1, 0));
        assert_eq!(rows.categorical[0].ids, [hash_value(b"Basel")]);
        assert_eq!(rows.categorical[1].ids, [hash_value(b"a"), hash_value(b"b")]);
    }

    #[test]
    fn bad_rows_say_what_was_expected() {
        let job = fixture::delimited(|_| ());
        let bad = |text: &[u8]| fault(&job, text);
        assert_eq!(bad(b"1,2,x\n"), "0:4: expected 4 fields separated by \",\", found 3");
        assert_eq!(bad(b"1,2,x,y,z\n"), "0:5: expected 4 fields separated by \",\", found 5");
        assert_eq!(bad(b"1;2;x;y\n"), "0:2: expected 4 fields separated by \",\", found 1 (is the separator \";\"?)");
        assert_eq!(bad(b"1;2;x\n"), "0:2: expected 4 fields separated by \",\", found 1");
        assert_eq!(bad(b"1,old,x,y\n"), "0:2: expected a number in column \"age\", found \"old\"");
        assert_eq!(bad(b"1,nan,x,y\n"), "0:2: expected a number in column \"age\", found \"nan\"");
        assert_eq!(bad(b"1,2,a\xffb,y\n"), "0:3: expected UTF-8, found \"a\u{fffd}b\"");
        assert_eq!(bad(b"1,2,x,a\0\n"), "0:4: expected text without NUL bytes, found \"a\\u{0}\"");
        let quote = "expected a closing quote on the same line (line breaks in quotes are not supported), found the end of the line";
        assert_eq!(bad(b"1,2,\"x,y\n"), format!("0:3: {quote}"));
    }

    #[test]
    fn a_long_line_is_refused_by_its_length() {
        let mut job = fixture::delimited(|_| ());
        job.data.max_line_bytes = 10;
        let text = [b"1,2,".to_vec(), b"x".repeat(7), b"\n1,2,x,y\n".to_vec()].concat();
        let (rows, outcome) = parse(&job, DataPart::All, &text);
        assert_eq!(rows.size, 1);
        let message = "0:1: expected a line of at most 10 bytes (data.max_line_bytes), found a longer one that starts with \"1,2,xxxxxxx\"";
        assert_eq!(outcome.bad.to_string(), message);
    }

    #[test]
    fn a_bad_row_does_not_disturb_its_neighbours() {
        let job = fixture::delimited(|_| ());
        let good = b"1,2,x,a|b\n0,3,y,c\n";
        let mixed = b"1,2,x,a|b\n1,2,x\n\xff\n0,4,z,d|e\0\n0,3,y,c\n";
        let (rows, outcome) = parse(&job, DataPart::All, mixed);
        assert_eq!((rows, outcome.bad.count), (parse(&job, DataPart::All, good).0, 3));
    }

    #[test]
    fn held_out_rows_have_a_group_and_training_rows_have_none() {
        let mut job = fixture::delimited(|_| ());
        job.eval.group_by = Some("tags".into());
        let text = b"1,2,x,a|b\n1,bad,x,c\n0,3,y,?\n";
        let (rows, _) = parse(&job, DataPart::All, text);
        assert_eq!(rows.groups, [hash_value(b"a|b"), hash_value(b"")]);
        assert!(parse(&job, DataPart::Train, text).0.groups.is_empty());
        job.eval.group_by = None;
        assert!(parse(&job, DataPart::All, text).0.groups.is_empty());
    }

    #[test]
    fn the_parts_of_a_hash_split_partition_the_rows() {
        let mut job = fixture::criteo();
        job.data.test = TestPart::Fraction(0.3);
        job.data.validation = ValidationPart::Share(0.2);
        let text: String = (0..500).map(|n| fixture::criteo_line(n) + "\n").collect();
        let (train, seen) = parse(&job, DataPart::Train, text.as_bytes());
        let (test, _) = parse(&job, DataPart::Test, text.replace('\n', "\r\n").as_bytes());
        let (validation, _) = parse(&job, DataPart::Validation, text.as_bytes());
        assert_eq!(train.size + test.size + validation.size, 500);
        assert_eq!(seen.other_part as usize, test.size + validation.size);
        assert!((60..140).contains(&validation.size), "{}", validation.size);
        job.data.validation = ValidationPart::None;
        assert_eq!(parse(&job, DataPart::Test, text.as_bytes()).0, test, "a validation part changes no test part");
        assert!((100..200).contains(&test.size), "{}", test.size);
    }

    proptest! {
        #[test]
        fn any_bytes_are_rows_or_bad_rows(text in prop::collection::vec(prop_oneof![Just(b'\t'), Just(b','), Just(b'\n'), Just(b'"'), Just(b'1'), any::<u8>()], 0..300)) {
            for mut job in [fixture::criteo(), fixture::delimited(|format| format.trim = true)] {
                job.data.max_line_bytes = 50;
                let (rows, outcome) = parse(&job, DataPart::All, &text);
                let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && *line != b"\r").count();
                prop_assert_eq!(rows.size as u64, outcome.rows);
                prop_assert_eq!(outcome.rows + outcome.bad.count, lines as u64);
                prop_assert_eq!(rows.numeric.len(), rows.size * job.features.numeric.len());
            }
        }

        #[test]
        fn damaged_rows_do_not_break_the_columns(line in 0_usize..5, at in 0_usize..100, byte: u8) {
            let job = fixture::criteo();
            let mut lines: Vec<Vec<u8>> = (0..5).map(|n| (fixture::criteo_line(n) + "\n").into_bytes()).collect();
            let at = at % lines[line].len();
            lines[line][at] = byte;
            let (rows, _) = parse(&job, DataPart::All, &lines.concat());
            prop_assert!(rows.categorical.iter().all(|column| column.ids.len() == rows.size));
            prop_assert_eq!(rows.labels.len(), rows.size);
        }
    }
}
