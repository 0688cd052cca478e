//! Cells of several values: which of them are missing, the weights of others, and vectors of numbers. Performance-critical: no allocation
//! per row.
//!
//! A cell is missing if it is null, if its text is empty, or if its text is one of `data.missing`. The text of a value with a
//! type is the one that a CSV file would have ([`crate::columnar::kind`]): −999.0 in a column of floats is `-999`. The rule
//! holds for a whole cell and for each value of a cell of several.

use std::sync::Arc;

use memchr::memmem::Finder;
use zagros_job::{Categorical, Format, IdSource, Numeric, Values};

use crate::formats::TextSyntax;
use crate::hash_value;
use crate::parse::bad::{FieldFault, quoted_text};
use crate::parse::fields::trimmed;
use crate::parse::number::parse_number;
use crate::parse::sink::RowSink;

/// The texts of a missing value, besides the empty one.
#[derive(Clone, Debug, Default)]
pub(crate) struct MissingTexts(Arc<[Vec<u8>]>);

impl MissingTexts {
    pub(crate) fn new(format: &Format) -> Self {
        let mut texts = to_bytes(format.missing_texts());
        // A cell of a number is read with a point in place of the comma.
        if TextSyntax::new(format).has_decimal_comma {
            let has_comma = |text: &&String| text.contains(',');
            texts.extend(
                format.missing_texts().iter().filter(has_comma).map(|text| text.replace(',', ".").into_bytes()),
            );
        }
        Self(texts.into())
    }

    #[inline]
    pub(crate) fn is_missing(&self, text: &[u8]) -> bool {
        text.is_empty() || self.0.iter().any(|missing| missing == text)
    }

    /// The text of a cell; empty if it has no value.
    #[inline]
    pub(crate) fn present_text<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        if self.is_missing(text) { b"" } else { text }
    }

    /// The values of a cell of several, missing ones empty: none of an empty text, and one of another missing text.
    #[inline]
    pub(crate) fn split_values<'a>(
        &'a self,
        text: &'a [u8],
        separator: &'a Finder<'static>,
        trim: bool,
    ) -> impl Iterator<Item = &'a [u8]> {
        let present = self.present_text(text);
        let missing = (present.len() < text.len()).then_some(present);
        missing.into_iter().chain(split_values(present, separator, trim).map(|piece| self.present_text(piece)))
    }

    pub(crate) fn texts(&self) -> &[Vec<u8>] {
        &self.0
    }
}

pub(crate) fn to_bytes(texts: &[String]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.clone().into_bytes()).collect()
}

#[cfg(test)]
impl From<&[&str]> for MissingTexts {
    fn from(texts: &[&str]) -> Self {
        Self(texts.iter().map(|text| text.as_bytes().to_vec()).collect())
    }
}

/// The values of a text, empty ones too; none of an empty text. With an empty separator, the text is one value.
#[inline]
pub(crate) fn split_values<'a>(
    text: &'a [u8],
    separator: &'a Finder<'static>,
    trim: bool,
) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let width = separator.needle().len();
    let borders = (width > 0).then(|| separator.find_iter(text)).into_iter().flatten();
    let mut start = 0;
    borders.chain((!text.is_empty()).then_some(text.len())).map(move |end| {
        let (from, to) = if trim { trimmed(text, start, end) } else { (start, end) };
        start = end + width;
        &text[from..to]
    })
}

#[derive(Clone, Debug)]
pub(crate) struct ValueWeights {
    of: String,
    column: String,
    least: f64,
}

impl ValueWeights {
    pub(crate) fn from_feature(feature: &Categorical) -> Option<Self> {
        let (Values::Many { pooling, weights: Some(column), .. }, IdSource::Column { column: of, .. }) =
            (&feature.values, &feature.source)
        else {
            return None;
        };
        Some(Self { of: of.clone(), column: column.clone(), least: pooling.least_weight() })
    }

    #[inline]
    pub(crate) fn accepted_weight(&self, number: f64) -> Option<f32> {
        (number.is_finite() && number >= self.least).then_some(number as f32)
    }

    /// Gives each value with its weight to `put`. An empty value is missing, and is skipped with its weight. A cell whose only value is
    /// missing may stand beside an empty one. The fault is at the first field.
    #[inline]
    pub(crate) fn read_pairs<'a>(
        &self,
        mut values: impl Iterator<Item = &'a [u8]>,
        mut weights: impl Iterator<Item = &'a [u8]>,
        mut put: impl FnMut(u64, f32),
    ) -> Result<(), Box<FieldFault>> {
        for pairs in 0.. {
            match (values.next(), weights.next()) {
                (None, None) => break,
                (Some(b""), Some(_)) => {}
                (Some(value), Some(text)) => {
                    let weight = parse_number(text).and_then(|number| self.accepted_weight(number));
                    put(hash_value(value), weight.ok_or_else(|| self.weight_fault(quoted_text(text)))?);
                }
                (value, weight) => {
                    let is_missing = pairs == 0 && value.or(weight) == Some(b"");
                    let [more_values, more_weights] = [usize::from(value.is_some()), usize::from(weight.is_some())];
                    let (values, weights) =
                        (pairs + more_values + values.count(), pairs + more_weights + weights.count());
                    if is_missing && values + weights == 1 {
                        break;
                    }
                    return Err(self.count_fault(values, weights));
                }
            }
        }
        Ok(())
    }

    #[cold]
    pub(crate) fn count_fault(&self, values: usize, weights: usize) -> Box<FieldFault> {
        let Self { of, column, .. } = self;
        let expected = format!("{values} weights in column \"{column}\", one for each value of column \"{of}\"");
        FieldFault::new(0, expected, weights.to_string())
    }

    #[cold]
    pub(crate) fn weight_fault(&self, found: String) -> Box<FieldFault> {
        let Self { of, column, least } = self;
        let number = if *least == 0.0 { "a number from 0" } else { "a number" };
        let expected = format!("{number} in column \"{column}\" for each value of column \"{of}\"");
        FieldFault::new(0, expected, found)
    }
}

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
    use zagros_job::{PoolAt, Pooling};

    use super::*;

    #[test]
    fn each_value_of_a_cell_may_be_missing_and_so_may_the_cell() {
        let (missing, separator) = (MissingTexts::from(&["NA", "x|y"][..]), Finder::new("|").into_owned());
        let values = |text: &'static str| missing.split_values(text.as_bytes(), &separator, false).collect::<Vec<_>>();
        assert_eq!(values("a|NA||b"), [&b"a"[..], b"", b"", b"b"]);
        assert_eq!((values("NA"), values("x|y")), (vec![&b""[..]], vec![&b""[..]]));
        assert!(values("").is_empty());
    }

    fn weights(pooling: Pooling) -> ValueWeights {
        let values =
            Values::Many { separator: "|".into(), pooling, pool_at: PoolAt::Worker, weights: Some("w".into()) };
        ValueWeights::from_feature(&Categorical { values, ..Categorical::of_column("tags", 0) }).unwrap()
    }

    fn read(pooling: Pooling, values: &str, of_values: &str) -> Result<Vec<(u64, f32)>, String> {
        let (separator, mut pairs) = (Finder::new("|").into_owned(), Vec::new());
        let split = |text| split_values(text, &separator, false);
        weights(pooling)
            .read_pairs(split(values.as_bytes()), split(of_values.as_bytes()), |id, weight| pairs.push((id, weight)))
            .map_err(|fault| format!("expected {}, found {}", fault.expected, fault.found))?;
        Ok(pairs)
    }

    #[test]
    fn a_missing_value_is_left_out_with_its_weight() {
        let [a, b] = [b"a", b"b"].map(|text| hash_value(text));
        assert_eq!(read(Pooling::Sum, "a|b", "0.5|-2"), Ok(vec![(a, 0.5), (b, -2.0)]));
        assert_eq!(read(Pooling::Sum, "a||b", "1||3"), Ok(vec![(a, 1.0), (b, 3.0)]));
        assert_eq!(read(Pooling::Mean, "", ""), Ok(vec![]));
        let (weights, missing) = (weights(Pooling::Sum), [&b""[..]]);
        let both = |values: &[&'static [u8]], of_values: &[&'static [u8]]| {
            weights.read_pairs(values.iter().copied(), of_values.iter().copied(), |_, _| panic!("no value is there"))
        };
        for (values, of_values) in [(&missing[..], &[][..]), (&[], &missing), (&missing, &missing), (&missing, &[b"7"])]
        {
            both(values, of_values).unwrap();
        }
        assert!(both(&[], &[b"7"]).is_err() && both(&[b"", b""], &[b"7"]).is_err());
    }

    #[test]
    fn a_row_whose_values_and_weights_do_not_fit_says_how_many_there_are() {
        let expected = "expected 3 weights in column \"w\", one for each value of column \"tags\", found";
        assert_eq!(read(Pooling::Sum, "a|b|c", "1|2").unwrap_err(), format!("{expected} 2"));
        assert_eq!(read(Pooling::Sum, "a|b|c", "1|2|3|4").unwrap_err(), format!("{expected} 4"));
        assert_eq!(read(Pooling::Sum, "a|b|c", "").unwrap_err(), format!("{expected} 0"));
        let expected = "in column \"w\" for each value of column \"tags\", found";
        for bad in ["", "x", "NaN", "inf", "1e39"] {
            let error = read(Pooling::Sum, "a|b", &format!("1|{bad}")).unwrap_err();
            assert_eq!(error, format!("expected a number {expected} \"{bad}\""));
        }
        assert_eq!(read(Pooling::Mean, "a", "-1").unwrap_err(), format!("expected a number from 0 {expected} \"-1\""));
    }

    proptest! {
        #[test]
        fn any_texts_are_pairs_or_a_fault(values in "[ab|]{0,12}", weights in "[0-9.|e-]{0,12}") {
            let count = |text: &str| if text.is_empty() { 0 } else { text.split('|').count() };
            let found = read(Pooling::Mean, &values, &weights);
            if count(&values) != count(&weights) {
                prop_assert!(found.is_err());
            } else if let Ok(pairs) = found {
                prop_assert_eq!(pairs.len(), values.split('|').filter(|value| !value.is_empty()).count());
                prop_assert!(pairs.iter().all(|(_, weight)| *weight >= 0.0 && weight.is_finite()));
            }
        }

        #[test]
        fn pieces_are_those_of_the_standard_library(text in "[ab;:]{0,20}", separator in prop_oneof![Just(";"), Just("::"), Just(";:")]) {
            let finder = Finder::new(separator).into_owned();
            let found: Vec<&[u8]> = split_values(text.as_bytes(), &finder, false).collect();
            let expected: Vec<&[u8]> = if text.is_empty() { vec![] } else { text.split(separator).map(str::as_bytes).collect() };
            prop_assert_eq!(found, expected);
        }
    }

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

    fn read_vector(text: &str) -> Result<Vec<Option<f64>>, String> {
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
        assert_eq!(read_vector("1;-2.5;3e2"), Ok(vec![Some(1.0), Some(-2.5), Some(300.0)]));
        assert_eq!(read_vector("1;;3"), Ok(vec![Some(1.0), None, Some(3.0)]));
        assert_eq!(
            (read_vector(""), read_vector("?"), read_vector("?;?;2")),
            (Ok(vec![None; 3]), Ok(vec![None; 3]), Ok(vec![None, None, Some(2.0)]))
        );
        assert_eq!(read_vector("1;2").unwrap_err(), "expected 3 numbers in column \"v\", found 2");
        assert_eq!(read_vector("1;2;3;4;5").unwrap_err(), "expected 3 numbers in column \"v\", found 5");
        assert_eq!(read_vector("1;x;3").unwrap_err(), "expected a number in column \"v\", found \"x\"");
    }

    proptest! {
        #[test]
        fn any_text_is_three_numbers_or_a_fault(text in "[0-9.;eN-]{0,16}") {
            if let Ok(numbers) = read_vector(&text) {
                prop_assert_eq!(numbers.len(), 3);
                prop_assert!(numbers.iter().flatten().all(|number| number.is_finite()));
                prop_assert!(text.is_empty() || text.split(';').count() == 3);
            }
        }
    }
}
