//! Which cells have no value: the one rule of every format.
//!
//! A cell is missing if it is null, if its text is empty, or if its text is one of `data.missing`. The text of a value with a
//! type is the one that a CSV file would have ([`crate::columnar::kind`]): −999.0 in a column of floats is `-999`. The rule
//! holds for a whole cell and for each value of a cell of several.

use std::sync::Arc;

use memchr::memmem::Finder;
use zagros_job::Format;

use crate::formats::TextSyntax;
use crate::parse::bags::split_values;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_of_a_cell_may_be_missing_and_so_may_the_cell() {
        let (missing, separator) = (MissingTexts::from(&["NA", "x|y"][..]), Finder::new("|").into_owned());
        let values = |text: &'static str| missing.split_values(text.as_bytes(), &separator, false).collect::<Vec<_>>();
        assert_eq!(values("a|NA||b"), [&b"a"[..], b"", b"", b"b"]);
        assert_eq!((values("NA"), values("x|y")), (vec![&b""[..]], vec![&b""[..]]));
        assert!(values("").is_empty());
    }
}
