//! Cells of numbers: one, or a vector of always as many. Performance-critical: no allocation per row.

use memchr::memmem::Finder;
use zagros_job::Numeric;

use super::missing::MissingTexts;
use crate::parse::bad::{FieldFault, quoted_text};
use crate::parse::number::parse_number;
use crate::parse::sink::RowSink;

#[derive(Clone, Debug)]
pub(crate) struct NumberCell {
    column: String,
    /// How a cell has several numbers; `None` if it has one.
    pub(super) form: Option<VectorForm>,
}

#[derive(Clone, Debug)]
pub(super) struct VectorForm {
    pub(super) width: usize,
    /// Text between two numbers; empty for lists.
    pub(super) separator: Box<Finder<'static>>,
}

impl NumberCell {
    pub(crate) fn new(feature: &Numeric) -> Self {
        let separator = feature.separator.as_deref().unwrap_or_default();
        let form = |width| VectorForm { width, separator: Box::new(Finder::new(separator).into_owned()) };
        Self { column: feature.column.clone(), form: feature.width.map(form) }
    }

    #[cold]
    pub(crate) fn expected(&self) -> String {
        format!("a number in column \"{}\"", self.column)
    }

    /// A cell of another number of numbers. The fault is at the first field.
    #[cold]
    pub(crate) fn width_fault(&self, width: usize, found: usize) -> Box<FieldFault> {
        let expected = format!("{width} numbers in column \"{}\"", self.column);
        FieldFault::new(0, expected, found.to_string())
    }

    /// The number of a text; `None` if it is missing. The fault is at the first field.
    #[inline]
    pub(crate) fn parse_number(&self, text: &[u8], missing: &MissingTexts) -> Result<Option<f64>, Box<FieldFault>> {
        if missing.is_missing(text) {
            return Ok(None);
        }
        parse_number(text).map(Some).ok_or_else(|| FieldFault::new(0, self.expected(), quoted_text(text)))
    }

    /// Gives the numbers of a vector, the first of which is number `first`, to `sink`. Of no values, or of one that is missing, each number
    /// is missing. Returns the number after them. The fault is at the first field.
    #[inline]
    pub(crate) fn put_vector<'a, S: RowSink>(
        &self,
        width: usize,
        mut values: impl Iterator<Item = &'a [u8]>,
        missing: &MissingTexts,
        (first, sink): (usize, &mut S),
    ) -> Result<usize, Box<FieldFault>> {
        let (mut count, mut all_missing) = (0, true);
        for text in values.by_ref().take(width) {
            let number = self.parse_number(text, missing)?;
            all_missing &= number.is_none();
            sink.numeric(first + count, number);
            count += 1;
        }
        match count + values.count() {
            found @ (0 | 1) if all_missing => (found..width).for_each(|index| sink.numeric(first + index, None)),
            found if found == width => {}
            found => return Err(self.width_fault(width, found)),
        }
        Ok(first + width)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::bags::split_values;

    #[derive(Clone, Debug, Default)]
    struct Numbers(Vec<Option<f64>>);

    impl RowSink for Numbers {
        fn numeric(&mut self, number: usize, value: Option<f64>) {
            assert_eq!(number, self.0.len() + 5, "in order, from the first one");
            self.0.push(value);
        }
        fn id(&mut self, _feature: usize, _id: u64) {}
        fn commit(&mut self, _labels: &[f32], _weight: Option<f32>) {}
        fn abandon(&mut self) {}
        fn clear(&mut self) {}
    }

    fn read(text: &str) -> Result<Vec<Option<f64>>, String> {
        let feature = Numeric { width: Some(3), separator: Some(";".into()), ..Numeric::from("v".to_owned()) };
        let (cell, mut sink) = (NumberCell::new(&feature), Numbers::default());
        let form = cell.form.as_ref().unwrap();
        let values = split_values(text.as_bytes(), &form.separator, false);
        let next = cell.put_vector(form.width, values, &MissingTexts::from(&["?"][..]), (5, &mut sink));
        let next = next.map_err(|fault| format!("expected {}, found {}", fault.expected, fault.found))?;
        assert_eq!(next, 8);
        Ok(sink.0)
    }

    #[test]
    fn a_vector_has_its_numbers_or_none() {
        assert_eq!(read("1;-2.5;3e2"), Ok(vec![Some(1.0), Some(-2.5), Some(300.0)]));
        assert_eq!(read("1;;3"), Ok(vec![Some(1.0), None, Some(3.0)]));
        assert_eq!(
            (read(""), read("?"), read("?;?;2")),
            (Ok(vec![None; 3]), Ok(vec![None; 3]), Ok(vec![None, None, Some(2.0)]))
        );
        assert_eq!(read("1;2").unwrap_err(), "expected 3 numbers in column \"v\", found 2");
        assert_eq!(read("1;2;3;4;5").unwrap_err(), "expected 3 numbers in column \"v\", found 5");
        assert_eq!(read("1;x;3").unwrap_err(), "expected a number in column \"v\", found \"x\"");
    }

    proptest! {
        #[test]
        fn any_text_is_three_numbers_or_a_fault(text in "[0-9.;eN-]{0,16}") {
            if let Ok(numbers) = read(&text) {
                prop_assert_eq!(numbers.len(), 3);
                prop_assert!(numbers.iter().flatten().all(|number| number.is_finite()));
                prop_assert!(text.is_empty() || text.split(';').count() == 3);
            }
        }
    }
}
