//! The cells of a row, however it is written: the fields of a line, or the values of a JSON object. Performance-critical: no allocation
//! per row.
//!
//! The parts of an object have no order, so a value in the wrong place is a fault of the whole line: of its first field.

use memchr::memmem::Finder;

use crate::parse::bad::FieldFault;
use crate::parse::fields::LineFields;
use crate::parse::json::{JsonFields, JsonList, JsonValue};
use crate::parse::values::MissingTexts;

pub(super) trait RowCells {
    /// The field at which a fault of a cell is.
    fn fault_field(&self, field: usize) -> usize;
    /// The text of a cell of one value, a number with a point. An array is a fault.
    fn single(
        &self,
        field: usize,
        is_number: bool,
        expected: impl FnOnce() -> String,
    ) -> Result<&[u8], Box<FieldFault>>;
    /// The value of a cell that is true or false by its type, not by its text.
    fn truth(&self, _field: usize) -> Option<bool> {
        None
    }
    /// The values of a cell of several, missing ones empty.
    fn values<'a>(
        &'a self,
        field: usize,
        is_number: bool,
        separator: &'a Finder<'static>,
        missing: &'a MissingTexts,
    ) -> impl Iterator<Item = &'a [u8]>;
}

/// A line that is divided into fields.
pub(super) struct LineCells<'l> {
    pub(super) fields: &'l LineFields,
    pub(super) line: &'l [u8],
    pub(super) trim: bool,
}

impl RowCells for LineCells<'_> {
    #[inline]
    fn fault_field(&self, field: usize) -> usize {
        field
    }

    #[inline]
    fn single(
        &self,
        field: usize,
        is_number: bool,
        _expected: impl FnOnce() -> String,
    ) -> Result<&[u8], Box<FieldFault>> {
        Ok(self.fields.cell(self.line, field, is_number))
    }

    #[inline]
    fn values<'a>(
        &'a self,
        field: usize,
        is_number: bool,
        separator: &'a Finder<'static>,
        missing: &'a MissingTexts,
    ) -> impl Iterator<Item = &'a [u8]> {
        missing.split_values(self.fields.cell(self.line, field, is_number), separator, self.trim)
    }
}

impl RowCells for JsonFields {
    fn fault_field(&self, _field: usize) -> usize {
        0
    }

    fn single(
        &self,
        field: usize,
        _is_number: bool,
        expected: impl FnOnce() -> String,
    ) -> Result<&[u8], Box<FieldFault>> {
        self.get(field).text().ok_or_else(|| FieldFault::new(0, expected(), "an array"))
    }

    fn truth(&self, field: usize) -> Option<bool> {
        if let JsonValue::Bool(truth) = self.get(field) { Some(truth) } else { None }
    }

    fn values<'a>(
        &'a self,
        field: usize,
        _is_number: bool,
        separator: &'a Finder<'static>,
        missing: &'a MissingTexts,
    ) -> impl Iterator<Item = &'a [u8]> {
        let (list, text) = match self.get(field) {
            JsonValue::List(list) => (Some(list), &b""[..]),
            other => (None, other.text().unwrap_or_default()),
        };
        let present = move |text: &'a [u8]| missing.present_text(text);
        list.into_iter().flat_map(JsonList::iter).map(present).chain(missing.split_values(text, separator, false))
    }
}
