//! What becomes of the values of a column: ids, bags of ids, numbers, labels.
//!
//! A column is decoded with one [`ColumnOutput`]. The entries of a dictionary are converted once, and the rows that name an entry
//! copy what it became.

use std::fmt;

use memchr::memmem::Finder;

use super::kind::{ColumnValue, ValueKind};
use crate::category::date::date_part;
use crate::category::{CellReading, missing_id, range_index};
use crate::hash_value;
use crate::parse::bad::quoted_text;
use crate::parse::label::{LabelTexts, sample_weight};
use crate::parse::number::{MOST, parse_number};
use crate::parse::values::MissingTexts;

/// The most different faulty values of a block that are shown in a message.
const SHOWN: usize = 100;

/// Items of the lists of a slice of rows: a few bytes can name an entry of the dictionary that is a million of them.
const MOST_ITEMS: usize = 1 << 26;

pub(super) const NO_ENTRY: &str = "a value names an entry that the dictionary does not have";

pub(crate) trait ColumnOutput {
    fn value(&mut self, value: ColumnValue<'_>);
    fn remember(&mut self, value: ColumnValue<'_>);
    /// The dictionary is void.
    fn forget(&mut self);
    /// The next value of the row is this entry of the dictionary. An error says why it cannot be.
    fn entry(&mut self, index: usize) -> Result<(), &'static str>;
    /// So many rows have these entries, one each.
    fn entries(&mut self, indices: &[i32]) -> Result<(), &'static str> {
        indices.iter().try_for_each(|index| {
            self.entry(*index as usize)?;
            self.end_row();
            Ok(())
        })
    }
    /// The row has no value here.
    fn null(&mut self);
    /// The next value of the row's list is null.
    fn null_item(&mut self) {
        self.null();
    }
    fn end_row(&mut self) {}
    /// Drops the rows, and keeps the dictionary.
    fn clear_rows(&mut self) {}
}

/// Copies entries of a dictionary, whose places are checked all at once.
fn extend<T: Copy>(to: &mut Vec<T>, dictionary: &[T], indices: &[i32]) -> Result<(), &'static str> {
    // A negative place is a large one.
    let most = indices.iter().fold(0, |most, index| most.max(*index as u32));
    let used = dictionary.get(..=most as usize).ok_or(NO_ENTRY)?;
    to.extend(indices.iter().map(|index| used[*index as usize]));
    Ok(())
}

/// Takes nothing: the rows are skipped. The dictionary goes to the output that it is for.
pub(super) struct SkippedRows<'a, O>(pub(super) &'a mut O);

impl<O: ColumnOutput> ColumnOutput for SkippedRows<'_, O> {
    fn value(&mut self, _value: ColumnValue<'_>) {}

    fn remember(&mut self, value: ColumnValue<'_>) {
        self.0.remember(value);
    }

    fn forget(&mut self) {
        self.0.forget();
    }

    fn entry(&mut self, _index: usize) -> Result<(), &'static str> {
        Ok(())
    }

    fn null(&mut self) {}
}

#[derive(Clone, Debug)]
pub(super) struct ValueTexts {
    kind: ValueKind,
    pub(super) missing: MissingTexts,
    /// Numbers whose text may be one of a missing value; `None`: each number's may be.
    suspects: Option<Vec<f64>>,
    buffer: Vec<u8>,
}

impl ValueTexts {
    pub(super) fn new(kind: ValueKind, missing: MissingTexts) -> Self {
        // Of the kinds whose numbers are written as they are, those of the texts. No number is written to be compared otherwise.
        let number = |text: &Vec<u8>| {
            let text = std::str::from_utf8(text).ok()?;
            if kind == ValueKind::Single { text.parse::<f32>().ok().map(f64::from) } else { text.parse().ok() }
        };
        let suspects = match kind {
            _ if missing.texts().is_empty() => Some(Vec::new()),
            ValueKind::Integer | ValueKind::Unsigned(_) | ValueKind::Single | ValueKind::Double => {
                Some(missing.texts().iter().filter_map(number).collect())
            }
            _ => None,
        };
        Self { kind, missing, suspects, buffer: Vec::new() }
    }

    #[inline]
    fn is_missing_number(&mut self, value: ColumnValue<'_>, number: f64) -> bool {
        let may_be = self.suspects.as_ref().is_none_or(|suspects| suspects.contains(&number));
        may_be && self.present_text(value).is_empty()
    }

    /// The text of a value; empty if it is missing.
    #[inline]
    pub(super) fn present_text<'a>(&'a mut self, value: ColumnValue<'a>) -> &'a [u8] {
        self.missing.present_text(self.kind.text(value, &mut self.buffer))
    }
}

/// Any number of cells a row: the values of a list, or the parts of a text.
#[derive(Clone, Debug)]
pub(super) struct ListCells<C: CellConverter> {
    pub(super) items: ConvertedCells<C>,
    pub(super) ends: Vec<usize>,
    dictionary_ends: Vec<usize>,
    /// What separates the parts of a text; `None` for a list.
    separator: Option<Finder<'static>>,
    missing: MissingTexts,
}

impl<C: CellConverter> ListCells<C> {
    pub(super) fn new(texts: ValueTexts, convert: C, separator: Option<&str>) -> Self {
        let separator = separator.map(|separator| Finder::new(separator).into_owned());
        let (ends, dictionary_ends, missing) = (Vec::new(), Vec::new(), texts.missing.clone());
        Self { items: ConvertedCells::new(texts, convert), ends, dictionary_ends, separator, missing }
    }

    #[inline]
    pub(super) fn row_items(&self, row: usize) -> &[C::Cell] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items.cells[start..self.ends[row]]
    }

    pub(super) fn row_count(&self) -> usize {
        self.ends.len()
    }

    /// Adds the cells of a value. Only texts have separators ([`super::groups::check_shapes`]).
    fn add_items(&mut self, value: ColumnValue<'_>, in_dictionary: bool) {
        let Self { items, separator, missing, .. } = self;
        let mut add = |value: ColumnValue<'_>| {
            let cell = items.cell(value);
            if !items.convert.is_dropped(cell) {
                if in_dictionary { items.dictionary.push(cell) } else { items.cells.push(cell) }
            }
        };
        match (separator, value) {
            (Some(separator), ColumnValue::Bytes(text)) => {
                missing.split_values(text, separator, false).for_each(|piece| add(ColumnValue::Bytes(piece)));
            }
            (Some(_), _) => {}
            (None, value) => add(value),
        }
    }
}

impl<C: CellConverter> ColumnOutput for ListCells<C> {
    fn value(&mut self, value: ColumnValue<'_>) {
        self.add_items(value, false);
    }

    fn remember(&mut self, value: ColumnValue<'_>) {
        self.add_items(value, true);
        self.dictionary_ends.push(self.items.dictionary.len());
    }

    fn forget(&mut self) {
        self.items.forget();
        self.dictionary_ends.clear();
    }

    #[inline]
    fn entry(&mut self, index: usize) -> Result<(), &'static str> {
        let end = self.dictionary_ends.get(index).ok_or(NO_ENTRY)?;
        let start = index.checked_sub(1).map_or(0, |before| self.dictionary_ends[before]);
        if self.items.cells.len() + (end - start) > MOST_ITEMS {
            return Err("its rows have too many values; write lists of fewer values");
        }
        self.items.cells.extend_from_slice(&self.items.dictionary[start..*end]);
        Ok(())
    }

    fn null(&mut self) {}

    fn null_item(&mut self) {
        if let Ok(cell) = self.items.convert.null()
            && !self.items.convert.is_dropped(cell)
        {
            self.items.cells.push(cell);
        }
    }

    fn end_row(&mut self) {
        self.ends.push(self.items.cells.len());
    }

    fn clear_rows(&mut self) {
        self.items.clear_rows();
        self.ends.clear();
    }
}

/// A number or a class of a row, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ConvertedCell {
    Missing,
    Number(f64),
    Faulty(u32),
}

impl ConvertedCell {
    #[inline]
    pub(super) fn as_number(self) -> Option<f64> {
        if let Self::Number(number) = self { Some(number) } else { None }
    }
}

pub(super) trait CellValue: Copy + fmt::Debug {
    fn missing() -> Self;
    /// That of a value that cannot become one. `text` is the place of its text.
    fn faulty(text: u32) -> Self;
}

impl CellValue for ConvertedCell {
    fn missing() -> Self {
        Self::Missing
    }

    fn faulty(text: u32) -> Self {
        Self::Faulty(text)
    }
}

/// Each text has an id.
impl CellValue for u64 {
    fn missing() -> Self {
        missing_id()
    }

    fn faulty(_text: u32) -> Self {
        missing_id()
    }
}

pub(super) trait CellConverter {
    type Cell: CellValue;
    /// The cell of a value; `Err` if it cannot be one.
    fn cell(&self, texts: &mut ValueTexts, value: ColumnValue<'_>) -> Result<Self::Cell, ()>;
    /// The cell of a row without a value; `Err` if each row needs one.
    fn null(&self) -> Result<Self::Cell, ()> {
        Ok(Self::Cell::missing())
    }

    /// Whether a cell has no place in a list.
    fn is_dropped(&self, _cell: Self::Cell) -> bool {
        false
    }
}

#[derive(Clone, Debug)]
pub(super) struct ConvertedCells<C: CellConverter> {
    pub(super) cells: Vec<C::Cell>,
    dictionary: Vec<C::Cell>,
    texts: ValueTexts,
    convert: C,
    faulty: Vec<String>,
}

impl<C: CellConverter> ConvertedCells<C> {
    pub(super) fn new(texts: ValueTexts, convert: C) -> Self {
        Self { cells: Vec::new(), dictionary: Vec::new(), texts, convert, faulty: Vec::new() }
    }

    pub(super) fn faulty_text(&self, index: u32) -> &str {
        self.faulty.get(index as usize).map_or("another value", String::as_str)
    }

    #[inline]
    fn cell(&mut self, value: ColumnValue<'_>) -> C::Cell {
        match self.convert.cell(&mut self.texts, value) {
            Ok(cell) => cell,
            Err(()) => self.fault(quoted_text(self.texts.kind.text(value, &mut Vec::new()))),
        }
    }

    #[cold]
    fn fault(&mut self, text: String) -> C::Cell {
        if let Some(index) = self.faulty.iter().position(|found| *found == text) {
            return C::Cell::faulty(index as u32);
        }
        if self.faulty.len() < SHOWN {
            self.faulty.push(text);
            return C::Cell::faulty(self.faulty.len() as u32 - 1);
        }
        C::Cell::faulty(u32::MAX)
    }
}

impl<C: CellConverter> ColumnOutput for ConvertedCells<C> {
    #[inline]
    fn value(&mut self, value: ColumnValue<'_>) {
        let cell = self.cell(value);
        self.cells.push(cell);
    }

    fn remember(&mut self, value: ColumnValue<'_>) {
        let cell = self.cell(value);
        self.dictionary.push(cell);
    }

    fn forget(&mut self) {
        self.dictionary.clear();
    }

    #[inline]
    fn entry(&mut self, index: usize) -> Result<(), &'static str> {
        self.cells.push(*self.dictionary.get(index).ok_or(NO_ENTRY)?);
        Ok(())
    }

    fn entries(&mut self, indices: &[i32]) -> Result<(), &'static str> {
        extend(&mut self.cells, &self.dictionary, indices)
    }

    fn null(&mut self) {
        let cell = self.convert.null().unwrap_or_else(|()| self.fault("null".into()));
        self.cells.push(cell);
    }

    fn clear_rows(&mut self) {
        self.cells.clear();
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct ToId {
    /// The id of a missing value, where it has no place in a list.
    pub(super) dropped: Option<u64>,
}

pub(super) type IdCells = ConvertedCells<ToId>;

impl CellConverter for ToId {
    type Cell = u64;

    #[inline]
    fn cell(&self, texts: &mut ValueTexts, value: ColumnValue<'_>) -> Result<u64, ()> {
        Ok(hash_value(texts.present_text(value)))
    }

    #[inline]
    fn is_dropped(&self, id: u64) -> bool {
        self.dropped == Some(id)
    }
}

#[derive(Clone, Debug)]
pub(super) struct ToNumber;

impl CellConverter for ToNumber {
    type Cell = ConvertedCell;

    #[inline]
    fn cell(&self, texts: &mut ValueTexts, value: ColumnValue<'_>) -> Result<ConvertedCell, ()> {
        match texts.kind.number(value) {
            Some(number) if number.abs() <= MOST && !texts.is_missing_number(value, number) => {
                Ok(ConvertedCell::Number(number))
            }
            // NaN and what is too large are faulty, unless the job says that their text means missing, as that of another
            // number may.
            Some(_) if texts.present_text(value).is_empty() => Ok(ConvertedCell::Missing),
            Some(_) => Err(()),
            None => match texts.present_text(value) {
                b"" => Ok(ConvertedCell::Missing),
                text => parse_number(text).map(ConvertedCell::Number).ok_or(()),
            },
        }
    }
}

/// The range of a number, or a part of a date: a small number.
#[derive(Clone, Debug)]
pub(super) struct ToPart(pub(super) CellReading);

impl CellConverter for ToPart {
    type Cell = ConvertedCell;

    fn cell(&self, texts: &mut ValueTexts, value: ColumnValue<'_>) -> Result<ConvertedCell, ()> {
        match &self.0 {
            CellReading::Buckets(edges) => Ok(match ToNumber.cell(texts, value)? {
                ConvertedCell::Number(number) => ConvertedCell::Number(f64::from(range_index(edges, number))),
                other => other,
            }),
            CellReading::Date(part) => match texts.present_text(value) {
                b"" => Ok(ConvertedCell::Missing),
                text => date_part(text, *part).map(|part| ConvertedCell::Number(f64::from(part))).ok_or(()),
            },
            CellReading::Text => Err(()),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct ToLabel(pub(super) LabelTexts);

impl CellConverter for ToLabel {
    type Cell = ConvertedCell;

    fn cell(&self, texts: &mut ValueTexts, value: ColumnValue<'_>) -> Result<ConvertedCell, ()> {
        let Self(label) = self;
        let number = texts.kind.number(value).filter(|number| {
            // Other labels are known by their texts.
            texts.kind != ValueKind::Bool && label.are_numbers() && !texts.is_missing_number(value, *number)
        });
        let label = match value {
            // A job that names no texts means 1 and 0.
            ColumnValue::Int(truth) if texts.kind == ValueKind::Bool => label.truth_value(truth != 0),
            _ => number
                .and_then(|number| label.number_value(number))
                .or_else(|| label.label_value(texts.kind.text(value, &mut texts.buffer))),
        };
        label.map(|label| ConvertedCell::Number(f64::from(label))).ok_or(())
    }

    fn null(&self) -> Result<ConvertedCell, ()> {
        self.0.missing_value().map(|label| ConvertedCell::Number(f64::from(label))).ok_or(())
    }
}

#[derive(Clone, Debug)]
pub(super) struct ToWeight;

impl CellConverter for ToWeight {
    type Cell = ConvertedCell;

    fn cell(&self, texts: &mut ValueTexts, value: ColumnValue<'_>) -> Result<ConvertedCell, ()> {
        let weight = sample_weight(texts.present_text(value));
        weight.map(|weight| ConvertedCell::Number(f64::from(weight))).ok_or(())
    }

    fn null(&self) -> Result<ConvertedCell, ()> {
        Err(())
    }
}
