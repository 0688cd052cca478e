//! From the text of a label to its value: 1 or 0, a number, or the index of a class; and the number of a sample weight.

use zagros_job::{MissingLabel, RegressionLoss, Target, TargetKind};

use super::values::{MissingTexts, to_bytes};
use crate::parse::bad::{FieldFault, quoted_text};
use crate::parse::number::parse_number;

/// The values that a label column may hold.
#[derive(Clone, Debug)]
pub(crate) struct LabelTexts {
    values: LabelValues,
    missing: MissingTexts,
    /// Whether a row without a label is no malformed row.
    skips: bool,
    pub(crate) expected: String,
}

#[derive(Clone, Debug)]
enum LabelValues {
    /// One of these texts, in order, each with its value.
    Texts(Vec<(Vec<u8>, f32)>),
    Number(f64),
}

impl LabelTexts {
    pub(crate) fn new(target: &Target, missing: &MissingTexts) -> Self {
        let texts = |texts: &[String], value: f32| to_bytes(texts).into_iter().map(move |text| (text, value)).collect();
        let values = match &target.kind {
            TargetKind::Click { positive, negative, .. } => {
                let both: [Vec<_>; 2] = [texts(positive, 1.0), texts(negative, 0.0)];
                sorted_texts(both.concat())
            }
            TargetKind::Classes { classes } => sorted_texts(
                to_bytes(classes).into_iter().enumerate().map(|(index, text)| (text, index as f32)).collect(),
            ),
            TargetKind::Regression { loss: RegressionLoss::Poisson } => LabelValues::Number(0.0),
            TargetKind::Regression { .. } => LabelValues::Number(f64::NEG_INFINITY),
        };
        let skips = target.missing == MissingLabel::Skip;
        Self { values, missing: missing.clone(), skips, expected: expected_label(target) }
    }

    /// The value of a text. `field` (from 0) is its position.
    #[inline]
    pub(crate) fn read(&self, text: &[u8], field: usize) -> Result<f32, Box<FieldFault>> {
        let unknown = || FieldFault::new(field, self.expected.clone(), quoted_text(text));
        self.label_value(text).ok_or_else(unknown)
    }

    /// The value of a text: NaN where a label may be missing and is; `None` for a text that is none. A text that the target names is a
    /// label, whatever means missing elsewhere.
    #[inline]
    pub(crate) fn label_value(&self, text: &[u8]) -> Option<f32> {
        match &self.values {
            LabelValues::Texts(texts) => find_text(texts, text).or_else(|| match self.missing.is_missing(text) {
                true => self.missing_value(),
                false => find_text(texts, without_fraction(text)?),
            }),
            LabelValues::Number(_) if self.missing.is_missing(text) => self.missing_value(),
            LabelValues::Number(_) => parse_number(text).and_then(|number| self.number_value(number)),
        }
    }

    /// The value of true or false: that of its text, or else of 1 or 0.
    pub(crate) fn truth_value(&self, truth: bool) -> Option<f32> {
        let (text, number): (&[u8], &[u8]) = if truth { (b"true", b"1") } else { (b"false", b"0") };
        let or_number = || if self.missing.is_missing(text) { None } else { self.label_value(number) };
        self.label_value(text).or_else(or_number)
    }

    pub(crate) fn are_numbers(&self) -> bool {
        matches!(self.values, LabelValues::Number(_))
    }

    /// The value of a number; `None` if it is too small, or the values are texts.
    #[inline]
    pub(crate) fn number_value(&self, number: f64) -> Option<f32> {
        match self.values {
            LabelValues::Number(least) => Some(number as f32).filter(|value| number >= least && value.is_finite()),
            LabelValues::Texts(_) => None,
        }
    }

    pub(crate) fn missing_value(&self) -> Option<f32> {
        self.skips.then_some(f32::NAN)
    }
}

#[inline]
fn find_text(texts: &[(Vec<u8>, f32)], text: &[u8]) -> Option<f32> {
    texts.binary_search_by(|(known, _)| known.as_slice().cmp(text)).ok().map(|place| texts[place].1)
}

/// `1` of `1.0`, as tools write a column of whole numbers with missing ones; `None` of any other text.
#[cold]
fn without_fraction(text: &[u8]) -> Option<&[u8]> {
    let point = memchr::memchr(b'.', text)?;
    let (whole, zeros) = (&text[..point], &text[point + 1..]);
    let is_whole = whole.strip_prefix(b"-").unwrap_or(whole).iter().all(u8::is_ascii_digit);
    (is_whole && !zeros.is_empty() && zeros.iter().all(|digit| *digit == b'0')).then_some(whole)
}

#[inline]
pub(crate) fn sample_weight(text: &[u8]) -> Option<f32> {
    parse_number(text).map(|number| number as f32).filter(|weight| (0.0..f32::INFINITY).contains(weight))
}

pub(crate) fn expected_weight(column: &str) -> String {
    format!("a number from 0 in the weight column \"{column}\"")
}

fn sorted_texts(mut texts: Vec<(Vec<u8>, f32)>) -> LabelValues {
    texts.sort_by(|a, b| a.0.cmp(&b.0));
    LabelValues::Texts(texts)
}

fn expected_label(target: &Target) -> String {
    let list =
        |texts: &[String]| texts.iter().map(|text| quoted_text(text.as_bytes())).collect::<Vec<_>>().join(" or ");
    let column = &target.column;
    match &target.kind {
        TargetKind::Click { positive, negative, .. } => {
            let (positive, negative) = (list(positive), list(negative));
            format!("{positive} (positive) or {negative} (negative) in label column \"{column}\"")
        }
        TargetKind::Classes { classes } => format!("one of the classes {} in label column \"{column}\"", list(classes)),
        TargetKind::Regression { loss: RegressionLoss::Poisson } => {
            format!("a number from 0 in label column \"{column}\"")
        }
        TargetKind::Regression { .. } => format!("a number in label column \"{column}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(kind: TargetKind) -> Target {
        Target { kind, ..Target::from("income") }
    }

    fn regression(loss: RegressionLoss) -> Target {
        target(TargetKind::Regression { loss })
    }

    fn values<const N: usize>(target: &Target, missing: &[&str], texts: [&str; N]) -> [Option<f32>; N] {
        let labels = LabelTexts::new(target, &missing.into());
        texts.map(|text| labels.label_value(text.as_bytes()))
    }

    fn adult() -> Target {
        let (positive, negative) = (vec![">50K".into(), ">50K.".into()], vec!["<=50K".into()]);
        target(TargetKind::Click { positive, negative, given: None })
    }

    #[test]
    fn each_of_the_texts_and_numbers_is_accepted() {
        assert_eq!(values(&adult(), &[], ["<=50K", ">50K", ">50K."]), [0.0, 1.0, 1.0].map(Some));
        // A whole number may have a fraction of zero, unless such a text is named.
        let found = values(&Target::from("y"), &[], ["1.0", "0.00", "1", "1.5", "2.0", "1."]);
        assert_eq!(found, [Some(1.0), Some(0.0), Some(1.0), None, None, None]);
        let texts = |text: &str| vec![text.to_owned()];
        let exact = TargetKind::Click { positive: texts("1.0"), negative: texts("1"), given: None };
        assert_eq!(values(&target(exact), &[], ["1.0", "1"]), [Some(1.0), Some(0.0)]);
        // A count is not negative.
        assert_eq!(values(&regression(RegressionLoss::Mse), &[], ["-2.5"]), [Some(-2.5)]);
        let found = values(&regression(RegressionLoss::Poisson), &[], ["3", "-1", "nan", "", "1e39"]);
        assert_eq!(found, [Some(3.0), None, None, None, None]);
    }

    #[test]
    fn another_text_is_refused_with_the_accepted_ones() {
        let labels = LabelTexts::new(&adult(), &["?"][..].into());
        let fault = *labels.read(b"50K", 14).unwrap_err();
        assert_eq!((fault.column, fault.found.as_str()), (15, "\"50K\""));
        assert_eq!(fault.expected, r#"">50K" or ">50K." (positive) or "<=50K" (negative) in label column "income""#);
        assert!(labels.read(b"", 14).is_err() && labels.read(b"?", 14).is_err() && labels.missing_value().is_none());
    }

    #[test]
    fn a_class_is_its_place_in_the_list() {
        let classes = ["low", "middle", "high"].map(String::from).to_vec();
        let labels = LabelTexts::new(&target(TargetKind::Classes { classes }), &MissingTexts::default());
        let found = ["low", "middle", "high"].map(|text| labels.label_value(text.as_bytes()));
        assert_eq!(found, [0.0, 1.0, 2.0].map(Some));
        let fault = *labels.read(b"highest", 0).unwrap_err();
        assert_eq!(fault.expected, r#"one of the classes "low" or "middle" or "high" in label column "income""#);
    }

    #[test]
    fn a_label_that_may_be_missing_is_no_number() {
        let skip = Target { missing: MissingLabel::Skip, ..adult() };
        let labels = LabelTexts::new(&skip, &["?"][..].into());
        for text in [&b""[..], b"?"] {
            assert!(labels.label_value(text).unwrap().is_nan());
        }
        assert!(labels.missing_value().unwrap().is_nan());
        assert_eq!((labels.label_value(b">50K"), labels.label_value(b"50K")), (Some(1.0), None));
    }

    #[test]
    fn a_missing_number_is_no_label_and_a_named_text_is_one() {
        let refused = regression(RegressionLoss::Mse);
        let skipped = Target { missing: MissingLabel::Skip, ..refused.clone() };
        assert_eq!(values(&refused, &["-1", "0"], ["-1", "0", "", "1"]), [None, None, None, Some(1.0)]);
        assert!(values(&skipped, &["-1", "0"], ["-1", "0", ""]).iter().all(|value| value.unwrap().is_nan()));
        assert_eq!(values(&Target::from("y"), &["-1", "0"], ["1", "0", "-1"]), [Some(1.0), Some(0.0), None]);
    }

    #[test]
    fn true_is_its_text_or_one_unless_its_text_means_missing() {
        let clicks = LabelTexts::new(&Target::from("y"), &MissingTexts::default());
        assert_eq!([true, false].map(|truth| clicks.truth_value(truth)), [Some(1.0), Some(0.0)]);
        let missing = MissingTexts::from(&["true"][..]);
        let numbers = LabelTexts::new(&regression(RegressionLoss::Mse), &missing);
        assert_eq!([true, false].map(|truth| numbers.truth_value(truth)), [None, Some(0.0)]);
    }

    #[test]
    fn a_weight_is_a_number_from_zero() {
        assert_eq!((sample_weight(b"0"), sample_weight(b"2.5")), (Some(0.0), Some(2.5)));
        for text in [&b"-1"[..], b"", b"nan", b"1e39", b"x"] {
            assert_eq!(sample_weight(text), None);
        }
    }
}
