//! The cells of a row, however it is written: the fields of a line, or the values of a JSON object. Performance-critical: no allocation
//! per row.
//!
//! The parts of an object have no order, so a value in the wrong place is a fault of the whole line: of its first field.

use memchr::memmem::Finder;

use crate::parse::bad::FieldFault;
use crate::parse::fields::LineFields;
use crate::parse::json::JsonFields;
use crate::parse::values::MissingTexts;

pub(super) trait RowCells {
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
        self.single_text(field).ok_or_else(|| FieldFault::new(0, expected(), "an array"))
    }

    fn truth(&self, field: usize) -> Option<bool> {
        self.truth_value(field)
    }

    /// The values of an array, or the parts of a text.
    fn values<'a>(
        &'a self,
        field: usize,
        _is_number: bool,
        separator: &'a Finder<'static>,
        missing: &'a MissingTexts,
    ) -> impl Iterator<Item = &'a [u8]> {
        let items = self.list_texts(field).map(move |text| missing.present_text(text));
        items.chain(missing.split_values(self.single_text(field).unwrap_or_default(), separator, false))
    }
}
