//! The texts that say whether a sample is positive.

use zagros_job::Label;

use crate::parse::bad::{FieldFault, shown};

/// The texts that the label column may hold.
#[derive(Clone, Debug)]
pub(crate) struct LabelTexts {
    column: String,
    positive: Vec<Vec<u8>>,
    negative: Vec<Vec<u8>>,
}

impl LabelTexts {
    /// The texts of the job.
    pub(crate) fn new(label: &Label) -> Self {
        Self { column: label.column.clone(), positive: bytes(&label.positive), negative: bytes(&label.negative) }
    }

    /// 1 or 0. `field` (from 0) is the position of the text.
    #[inline]
    pub(crate) fn read(&self, text: &[u8], field: usize) -> Result<f32, Box<FieldFault>> {
        self.class(text).ok_or_else(|| self.unknown(text, field))
    }

    /// 1 or 0; `None` for any other text.
    #[inline]
    pub(crate) fn class(&self, text: &[u8]) -> Option<f32> {
        if self.positive.iter().any(|positive| positive == text) {
            Some(1.0)
        } else {
            self.negative.iter().any(|negative| negative == text).then_some(0.0)
        }
    }

    #[cold]
    fn unknown(&self, text: &[u8], field: usize) -> Box<FieldFault> {
        Box::new(FieldFault { column: field + 1, expected: self.expected(), found: shown(text) })
    }

    /// What a message says is expected.
    pub(crate) fn expected(&self) -> String {
        let list = |texts: &[Vec<u8>]| texts.iter().map(|text| shown(text)).collect::<Vec<_>>().join(" or ");
        let (positive, negative) = (list(&self.positive), list(&self.negative));
        format!("{positive} (positive) or {negative} (negative) in label column \"{}\"", self.column)
    }
}

/// Texts as bytes.
pub(crate) fn bytes(texts: &[String]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.clone().into_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adult() -> LabelTexts {
        LabelTexts::new(&Label {
            column: "income".into(),
            positive: vec![">50K".into(), ">50K.".into()],
            negative: vec!["<=50K".into()],
        })
    }

    #[test]
    fn each_of_the_texts_is_accepted() {
        let found = ["<=50K", ">50K", ">50K."].map(|text| adult().read(text.as_bytes(), 0).unwrap());
        assert_eq!(found, [0.0, 1.0, 1.0]);
    }

    #[test]
    fn another_text_is_refused_with_the_accepted_ones() {
        let fault = *adult().read(b"50K", 14).unwrap_err();
        assert_eq!((fault.column, fault.found.as_str()), (15, "\"50K\""));
        assert_eq!(fault.expected, r#"">50K" or ">50K." (positive) or "<=50K" (negative) in label column "income""#);
        assert!(adult().read(b"", 14).is_err());
    }
}
