//! Cells of several values, with their weights. Performance-critical: no allocation per row.

use memchr::memmem::Finder;
use zagros_job::{Categorical, IdSource, Values};

use crate::hash_value;
use crate::parse::bad::{FieldFault, quoted_text};
use crate::parse::fields::trimmed;
use crate::parse::number::parse_number;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_job::{PoolAt, Pooling};

    use super::*;

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
}
