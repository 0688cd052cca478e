//! What becomes of the values of a column: ids, bags of ids, numbers, labels.
//!
//! A column is decoded with one [`ColumnOutput`]. The entries of a dictionary are converted once, and the rows that name an entry
//! copy what it became.

use memchr::memmem::Finder;

use super::kind::{ColumnValue, ValueKind};
use crate::category::date::date_part;
use crate::category::reading::{CellReading, missing_id, range_index};
use crate::hash_value;
use crate::parse::bad::quoted_text;
use crate::parse::label::{LabelTexts, sample_weight};
use crate::parse::missing::MissingTexts;
use crate::parse::number::{MOST, parse_number};

/// The most different faulty values of a block that are shown in a message.
const SHOWN: usize = 100;

/// Ids of a slice of rows: a few bytes can name an entry of the dictionary that is a million ids.
pub(super) const MOST_IDS: usize = 1 << 26;

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

    /// The values of a cell of several, missing ones empty.
    fn split_values(&mut self, value: ColumnValue<'_>, separator: &Finder<'static>, put: impl FnMut(&[u8])) {
        let Self { kind, missing, buffer, .. } = self;
        missing.split_values(kind.text(value, buffer), separator, false).for_each(put);
    }

    /// The text of a value; empty if it is missing.
    #[inline]
    pub(super) fn present_text<'a>(&'a mut self, value: ColumnValue<'a>) -> &'a [u8] {
        self.missing.present_text(self.kind.text(value, &mut self.buffer))
    }
}

#[derive(Clone, Debug)]
pub(super) struct IdCells {
    pub(super) ids: Vec<u64>,
    dictionary: Vec<u64>,
    texts: ValueTexts,
}

impl IdCells {
    pub(super) fn new(texts: ValueTexts) -> Self {
        Self { ids: Vec::new(), dictionary: Vec::new(), texts }
    }
}

impl ColumnOutput for IdCells {
    #[inline]
    fn value(&mut self, value: ColumnValue<'_>) {
        self.ids.push(hash_value(self.texts.present_text(value)));
    }

    fn remember(&mut self, value: ColumnValue<'_>) {
        self.dictionary.push(hash_value(self.texts.present_text(value)));
    }

    fn forget(&mut self) {
        self.dictionary.clear();
    }

    #[inline]
    fn entry(&mut self, index: usize) -> Result<(), &'static str> {
        self.ids.push(*self.dictionary.get(index).ok_or(NO_ENTRY)?);
        Ok(())
    }

    fn entries(&mut self, indices: &[i32]) -> Result<(), &'static str> {
        extend(&mut self.ids, &self.dictionary, indices)
    }

    #[inline]
    fn null(&mut self) {
        self.ids.push(hash_value(b""));
    }

    fn clear_rows(&mut self) {
        self.ids.clear();
    }
}

/// Any number of ids a row: the values of a list, or the parts of a text.
#[derive(Clone, Debug)]
pub(super) struct BagCells {
    pub(super) ids: Vec<u64>,
    /// Where the ids of each row end.
    pub(super) ends: Vec<usize>,
    dictionary: Vec<u64>,
    dictionary_ends: Vec<usize>,
    texts: ValueTexts,
    form: BagForm,
}

/// How the values of a row are written, and which of them count.
#[derive(Clone, Debug)]
pub(super) struct BagForm {
    /// What separates the parts of a text; `None` for a list.
    separator: Option<Finder<'static>>,
    /// Whether a missing value keeps its place, with the id of a missing value.
    keeps_missing: bool,
}

impl BagForm {
    pub(super) fn new(separator: Option<&str>, keeps_missing: bool) -> Self {
        Self { separator: separator.map(|separator| Finder::new(separator).into_owned()), keeps_missing }
    }
}

impl BagCells {
    pub(super) fn new(texts: ValueTexts, form: BagForm) -> Self {
        let (ids, ends, dictionary, dictionary_ends) = Default::default();
        Self { ids, ends, dictionary, dictionary_ends, texts, form }
    }

    fn put_ids(texts: &mut ValueTexts, form: &BagForm, value: ColumnValue<'_>, ids: &mut Vec<u64>) {
        let mut put = |text: &[u8]| ids.extend((form.keeps_missing || !text.is_empty()).then(|| hash_value(text)));
        match &form.separator {
            None => put(texts.present_text(value)),
            Some(separator) => texts.split_values(value, separator, put),
        }
    }
}

impl ColumnOutput for BagCells {
    fn value(&mut self, value: ColumnValue<'_>) {
        Self::put_ids(&mut self.texts, &self.form, value, &mut self.ids);
    }

    fn remember(&mut self, value: ColumnValue<'_>) {
        Self::put_ids(&mut self.texts, &self.form, value, &mut self.dictionary);
        self.dictionary_ends.push(self.dictionary.len());
    }

    fn forget(&mut self) {
        self.dictionary.clear();
        self.dictionary_ends.clear();
    }

    #[inline]
    fn entry(&mut self, index: usize) -> Result<(), &'static str> {
        let end = self.dictionary_ends.get(index).ok_or(NO_ENTRY)?;
        let start = index.checked_sub(1).map_or(0, |before| self.dictionary_ends[before]);
        if self.ids.len() + (end - start) > MOST_IDS {
            return Err("its rows have too many values; write lists of fewer values");
        }
        self.ids.extend_from_slice(&self.dictionary[start..*end]);
        Ok(())
    }

    fn null(&mut self) {}

    fn null_item(&mut self) {
        self.ids.extend(self.form.keeps_missing.then(missing_id));
    }

    fn end_row(&mut self) {
        self.ends.push(self.ids.len());
    }

    fn clear_rows(&mut self) {
        self.ids.clear();
        self.ends.clear();
    }
}

/// A number or a class of a row, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ConvertedCell {
    Missing,
    Number(f64),
    /// Index of the text that was found.
    Faulty(u32),
}

impl ConvertedCell {
    #[inline]
    pub(super) fn as_number(self) -> Option<f64> {
        if let Self::Number(number) = self { Some(number) } else { None }
    }
}

pub(super) trait CellConverter {
    /// The cell of a value; `Err` if it cannot be one.
    fn cell(&self, texts: &mut ValueTexts, value: ColumnValue<'_>) -> Result<ConvertedCell, ()>;
    /// The cell of a row without a value; `Err` if each row needs one.
    fn null(&self) -> Result<ConvertedCell, ()> {
        Ok(ConvertedCell::Missing)
    }
}

#[derive(Clone, Debug)]
pub(super) struct ConvertedCells<C> {
    pub(super) cells: Vec<ConvertedCell>,
    pub(super) dictionary: Vec<ConvertedCell>,
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
    fn cell(&mut self, value: ColumnValue<'_>) -> ConvertedCell {
        match self.convert.cell(&mut self.texts, value) {
            Ok(cell) => cell,
            Err(()) => self.fault(quoted_text(self.texts.kind.text(value, &mut Vec::new()))),
        }
    }

    #[cold]
    fn fault(&mut self, text: String) -> ConvertedCell {
        if let Some(index) = self.faulty.iter().position(|found| *found == text) {
            return ConvertedCell::Faulty(index as u32);
        }
        if self.faulty.len() < SHOWN {
            self.faulty.push(text);
            return ConvertedCell::Faulty(self.faulty.len() as u32 - 1);
        }
        ConvertedCell::Faulty(u32::MAX)
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

#[derive(Clone, Debug)]
pub(super) struct ToNumber;

impl CellConverter for ToNumber {
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
    fn cell(&self, texts: &mut ValueTexts, value: ColumnValue<'_>) -> Result<ConvertedCell, ()> {
        let weight = sample_weight(texts.present_text(value));
        weight.map(|weight| ConvertedCell::Number(f64::from(weight))).ok_or(())
    }

    fn null(&self) -> Result<ConvertedCell, ()> {
        Err(())
    }
}
