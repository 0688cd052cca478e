//! The input of a training step: the columns of one batch.

use std::ops::Range;

use zagros_job::{Categorical, Features, Pooling, Sequence};
use zagros_zip::ZipEq;

use crate::InputRows;

/// Samples in columns. Features are in the job's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Number of samples. 0 only in a batch that completes splits without any sample.
    pub size: usize,
    /// Row-major `[size, targets]`: 0 or 1, a number, or the index of a class; NaN where a label is missing and may be.
    pub labels: Vec<f32>,
    /// How much each sample counts, `[size]`; empty if each counts once.
    pub weights: Vec<f32>,
    /// Transformed values, row-major `[size, numeric features]`.
    pub numeric: Vec<f32>,
    pub categorical: Vec<CategoryIds>,
    /// Hashed value of the column that groups samples (`eval.group_by`), `[size]`; empty if groups are not wanted, as in
    /// training.
    pub groups: Vec<u64>,
    /// The rows of the input that the samples were made of, and malformed ones between them; only where rows are predicted.
    pub input: Option<InputRows>,
    /// Splits whose last sample is in this batch. They are complete once its gradients are acknowledged.
    pub completes: Vec<SplitEnd>,
    /// Bytes of input that this batch consumed, for progress.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitEnd {
    pub split: u64,
    /// Rows of the stream up to the split's last one, in the order of the files, counted from the first row of the first
    /// split.
    pub rows: u64,
    pub bad_rows: u64,
    /// Hash of its rows: another one if they are others when the split is read again.
    pub content: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct CategoryIds {
    /// Hashed values, sample after sample.
    pub ids: Vec<u64>,
    /// `None`: exactly one id per sample. Otherwise sample `i` has `ids[offsets[i]..offsets[i + 1]]`, `[size + 1]`.
    pub offsets: Option<Vec<u32>>,
    /// The factor of each id's row in its sample's vector, where the feature has weights; otherwise empty.
    pub weights: Vec<f32>,
}

impl Batch {
    /// An empty batch of features that hold one value (`false`) or many (`true`) each.
    pub fn empty(multi_valued: impl IntoIterator<Item = bool>) -> Self {
        let column = |many| CategoryIds { offsets: if many { Some(vec![0]) } else { None }, ..CategoryIds::default() };
        Self { categorical: multi_valued.into_iter().map(column).collect(), ..Self::default() }
    }

    pub fn empty_like(&self) -> Self {
        let empty = Self::empty(self.categorical.iter().map(|column| column.offsets.is_some()));
        Self { input: self.input.as_ref().map(InputRows::empty_like), ..empty }
    }

    pub fn clear(&mut self) {
        self.size = 0;
        self.labels.clear();
        self.weights.clear();
        self.numeric.clear();
        self.categorical.iter_mut().for_each(|column| column.truncate(0));
        self.groups.clear();
        self.input.iter_mut().for_each(InputRows::clear);
        self.completes.clear();
        self.bytes = 0;
    }

    /// Drops the samples, and keeps what is known of splits and bytes.
    pub(crate) fn drop_samples(&mut self) {
        let (completes, bytes) = (std::mem::take(&mut self.completes), self.bytes);
        self.clear();
        (self.completes, self.bytes) = (completes, bytes);
    }

    /// Adds samples of a batch with the same features, without its bytes and completed splits.
    pub fn append_samples(&mut self, other: &Self, samples: Range<usize>) {
        let (width, targets) = (other.numeric_width(), other.target_count());
        self.size += samples.len();
        self.labels.extend_from_slice(&other.labels[samples.start * targets..samples.end * targets]);
        self.weights.extend_from_slice(other.weights.get(samples.clone()).unwrap_or_default());
        self.numeric.extend_from_slice(&other.numeric[samples.start * width..samples.end * width]);
        self.groups.extend_from_slice(other.groups.get(samples.clone()).unwrap_or_default());
        if let (Some(input), Some(others)) = (&mut self.input, &other.input) {
            input.append(others, samples.clone());
        }
        assert_eq!(self.categorical.len(), other.categorical.len(), "batches of one stream have the same features");
        for (column, from) in self.categorical.iter_mut().zip_eq(&other.categorical) {
            column.append(from, samples.clone());
        }
    }

    pub(crate) fn append_rest(&mut self, other: &Self) {
        if let (Some(input), Some(others)) = (&mut self.input, &other.input) {
            input.append_rest(others);
        }
    }

    /// Whether it has neither a sample, nor the end of a split, nor a malformed row that is kept.
    pub(crate) fn is_void(&self) -> bool {
        self.size == 0 && self.completes.is_empty() && self.input.as_ref().is_none_or(InputRows::is_empty)
    }

    /// Adds samples of a batch with the same features in the given order, without its bytes and completed splits.
    pub(crate) fn append_picked(&mut self, other: &Self, order: &[usize]) {
        let (width, targets) = (other.numeric_width(), other.target_count());
        self.size += order.len();
        for sample in order {
            self.labels.extend_from_slice(&other.labels[sample * targets..(sample + 1) * targets]);
        }
        self.weights.extend(order.iter().filter_map(|sample| other.weights.get(*sample)));
        for sample in order {
            self.numeric.extend_from_slice(&other.numeric[sample * width..(sample + 1) * width]);
        }
        self.groups.extend(order.iter().filter_map(|sample| other.groups.get(*sample)));
        assert_eq!(self.categorical.len(), other.categorical.len(), "batches of one stream have the same features");
        for (column, from) in self.categorical.iter_mut().zip_eq(&other.categorical) {
            column.append_picked(from, order);
        }
    }

    /// An empty batch of the same features, with memory for as many samples.
    pub(crate) fn spacious_like(&self) -> Self {
        let mut empty = self.empty_like();
        empty.labels.reserve(self.labels.len());
        empty.weights.reserve(self.weights.len());
        empty.numeric.reserve(self.numeric.len());
        for (column, full) in empty.categorical.iter_mut().zip_eq(&self.categorical) {
            column.ids.reserve(full.ids.len());
            column.weights.reserve(full.weights.len());
        }
        empty
    }

    /// How much its samples count together.
    pub fn total_weight(&self) -> f64 {
        if self.weights.is_empty() {
            self.size as f64
        } else {
            self.weights.iter().map(|weight| f64::from(*weight)).sum()
        }
    }

    /// Whether every length is that of a batch of these features.
    ///
    /// # Errors
    /// Which one is not, in words.
    pub fn check_shape(&self, features: &Features) -> Result<(), String> {
        expect_count("labels", self.size * features.targets.len(), self.labels.len())?;
        if !self.weights.is_empty() {
            expect_count("sample weights", self.size, self.weights.len())?;
        }
        if !self.groups.is_empty() {
            expect_count("groups", self.size, self.groups.len())?;
        }
        expect_count("numeric values", self.size * features.numeric_inputs(), self.numeric.len())?;
        expect_count("categorical features", features.categorical.len(), self.categorical.len())?;
        let mut columns = features.categorical.iter().zip_eq(&self.categorical);
        columns.try_for_each(|(feature, ids)| ids.check_shape(feature, self.size))
    }

    fn target_count(&self) -> usize {
        self.labels.len().checked_div(self.size).unwrap_or(0)
    }

    fn numeric_width(&self) -> usize {
        self.numeric.len().checked_div(self.size).unwrap_or(0)
    }
}

impl CategoryIds {
    pub fn sample_ids(&self, sample: usize) -> &[u64] {
        &self.ids[self.sample_range(sample)]
    }

    /// Whether the offsets divide the ids among `size` samples, and no sequence has more ids than positions.
    fn check_shape(&self, feature: &Categorical, size: usize) -> Result<(), String> {
        if !self.weights.is_empty() {
            expect_count("weights of a feature's values", self.ids.len(), self.weights.len())?;
        }
        let sequence = feature.values.sequence();
        let Some(offsets) = &self.offsets else {
            return match sequence {
                Some(_) => Err("a sequence has no offsets".to_owned()),
                None => expect_count("ids of a feature", size, self.ids.len()),
            };
        };
        expect_count("offsets of a feature", size + 1, offsets.len())?;
        let ends = (offsets.first(), offsets.last().map(|last| *last as usize));
        if ends != (Some(&0), Some(self.ids.len())) || !offsets.is_sorted() {
            return Err("the offsets of a feature do not divide its ids".to_owned());
        }
        let most = sequence.map_or(usize::MAX, |sequence| sequence.length);
        match offsets.windows(2).map(|ends| (ends[1] - ends[0]) as usize).find(|count| *count > most) {
            Some(count) => Err(format!("a sequence of {most} positions has {count} ids")),
            None => Ok(()),
        }
    }

    pub(crate) fn sample_range(&self, sample: usize) -> Range<usize> {
        match &self.offsets {
            None => sample..sample + 1,
            Some(offsets) => offsets[sample] as usize..offsets[sample + 1] as usize,
        }
    }

    #[inline]
    pub(crate) fn end_bag(&mut self) {
        let end = self.ids.len() as u32;
        if let Some(offsets) = &mut self.offsets {
            offsets.push(end);
        }
    }

    pub(crate) fn end_weighted(&mut self, pooling: Pooling) {
        let start = self.offsets.as_ref().and_then(|offsets| offsets.last()).map_or(0, |end| *end as usize);
        pooling.scale_weights(&mut self.weights[start..]);
        self.end_bag();
    }

    /// Completes the sequence of a sample: drops the values that it does not keep.
    pub(crate) fn end_sequence(&mut self, sequence: &Sequence) {
        let start = self.offsets.as_ref().and_then(|offsets| offsets.last()).map_or(0, |end| *end as usize);
        let kept = sequence.kept_range(self.ids.len() - start);
        self.ids.copy_within(start + kept.start..start + kept.end, start);
        self.ids.truncate(start + kept.len());
        self.end_bag();
    }

    fn append_picked(&mut self, other: &Self, order: &[usize]) {
        let Some(offsets) = &mut self.offsets else {
            self.ids.extend(order.iter().map(|sample| other.ids[*sample]));
            return;
        };
        for sample in order {
            let range = other.sample_range(*sample);
            self.weights.extend_from_slice(other.weights.get(range.clone()).unwrap_or_default());
            self.ids.extend_from_slice(&other.ids[range]);
            offsets.push(self.ids.len() as u32);
        }
    }

    pub(crate) fn truncate(&mut self, samples: usize) {
        match &mut self.offsets {
            None => self.ids.truncate(samples),
            Some(offsets) => {
                offsets.truncate(samples + 1);
                self.ids.truncate(offsets.last().map_or(0, |end| *end as usize));
                self.weights.truncate(self.ids.len());
            }
        }
    }

    fn append(&mut self, other: &Self, samples: Range<usize>) {
        match (&mut self.offsets, &other.offsets) {
            (Some(offsets), Some(from)) => {
                let (start, end) = (from[samples.start], from[samples.end]);
                let (shift, range) = (self.ids.len() as u32, start as usize..end as usize);
                self.weights.extend_from_slice(other.weights.get(range.clone()).unwrap_or_default());
                self.ids.extend_from_slice(&other.ids[range]);
                offsets.extend(from[samples.start + 1..=samples.end].iter().map(|offset| offset - start + shift));
            }
            _ => self.ids.extend_from_slice(&other.ids[samples]),
        }
    }
}

fn expect_count(what: &str, expected: usize, found: usize) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("{what}: expected {expected}, found {found}")) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One numeric, one single-valued and one multi-valued feature with weights; sample `i` has `i % 4` values in its bag.
    fn numbered(samples: Range<u64>) -> Batch {
        let mut batch = Batch::empty([false, true]);
        for sample in samples {
            batch.size += 1;
            batch.labels.extend([(sample % 2) as f32, sample as f32 / 2.0]);
            batch.weights.push(1.0 + sample as f32);
            batch.numeric.push(sample as f32);
            batch.groups.push(sample / 3);
            batch.categorical[0].ids.push(sample);
            batch.categorical[1].ids.extend((0..sample % 4).map(|value| 100 * sample + value));
            batch.categorical[1].weights.extend((0..sample % 4).map(|value| sample as f32 + value as f32 / 4.0));
            batch.categorical[1].end_weighted(Pooling::Sum);
        }
        batch
    }

    #[test]
    fn samples_count_once_unless_they_have_weights() {
        assert_eq!(numbered(0..3).total_weight(), 6.0);
        assert_eq!(Batch { weights: Vec::new(), ..numbered(0..3) }.total_weight(), 3.0);
    }

    #[test]
    fn clearing_keeps_the_features() {
        let mut batch = numbered(0..9);
        batch.clear();
        assert_eq!(batch, numbered(0..0));
        assert_eq!(batch, numbered(0..9).empty_like());
    }

    proptest! {
        #[test]
        fn picking_takes_whole_samples(order in prop::collection::vec(0_usize..30, 0..50)) {
            let (batch, mut expected, mut found) = (numbered(0..30), numbered(0..2), numbered(0..2));
            order.iter().for_each(|sample| expected.append_samples(&batch, *sample..sample + 1));
            found.append_picked(&batch, &order);
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn pieces_put_together_are_the_whole(ends_of_pieces in prop::collection::vec(0_usize..40, 0..6)) {
            let whole = numbered(0..40);
            let mut ends = [ends_of_pieces, vec![40]].concat();
            ends.sort_unstable();
            let (mut joined, mut start) = (whole.empty_like(), 0);
            for end in ends {
                joined.append_samples(&whole, start..end);
                start = end;
            }
            prop_assert_eq!(joined, whole);
        }

        #[test]
        fn a_truncated_column_equals_one_that_was_never_longer(samples in 0_usize..20) {
            let mut column = numbered(0..20).categorical.remove(1);
            column.truncate(samples);
            prop_assert_eq!(&column, &numbered(0..samples as u64).categorical[1]);
        }
    }
}
