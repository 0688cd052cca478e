//! Destinations of a row's values.

use std::sync::Arc;

use zagros_job::{Features, Job, Pooling, Sequence, Values};
use zagros_zip::ZipEq;

use crate::category::IdMap;
use crate::transform::{EncodedInput, NumericInput};
use crate::{Batch, DataPart, InputRows, hash_value};

/// Takes rows value by value: first [`Self::place`], then [`Self::key`] for each key column, then [`Self::numeric`] for each number of each numeric feature in order, then
/// the values of each feature that is read as a category ([`Features::categories`]) in order, then [`Self::group_id`] if there is one. Then comes [`Self::commit`], or [`Self::abandon`] if
/// the row is malformed.
pub(crate) trait RowSink: Send + 'static {
    /// The place of the row in its file, before any value: the byte of the text at which it starts, or the number of the row.
    fn place(&mut self, _place: u64) {}
    /// The text of a key column, where rows are predicted.
    fn key(&mut self, _text: &[u8]) {}
    /// A number, `None` when it is missing. Numbers are counted over all numeric features that read numbers ([`Features::numbers`]): a vector
    /// has several.
    fn numeric(&mut self, number: usize, value: Option<f64>);
    /// A value of a categorical feature: the only one, or one of its bag. A missing value is empty.
    fn value(&mut self, feature: usize, text: &[u8]) {
        self.id(feature, hash_value(text));
    }
    /// A value of a categorical feature by its id: [`hash_value`] of its text, or what its reading makes of it.
    fn id(&mut self, feature: usize, id: u64);
    /// The same with its weight.
    fn weighted_id(&mut self, feature: usize, id: u64, _weight: f32) {
        self.id(feature, id);
    }
    /// The bag of a multi-valued feature is complete.
    fn end_bag(&mut self, _feature: usize) {}
    /// The hash of the group's text.
    fn group_id(&mut self, _id: u64) {}
    /// The row is complete: a label of each target, and how much it counts if that is wanted.
    fn commit(&mut self, labels: &[f32], weight: Option<f32>);
    /// The row is malformed: drops its values.
    fn abandon(&mut self);
    fn clear(&mut self);
    /// The same sink, if it takes many rows at once, column by column.
    fn by_columns(&mut self) -> Option<&mut BatchSink> {
        None
    }
}

/// Ignores the rows: they only had to be parsed.
#[derive(Clone, Debug)]
pub(crate) struct NullSink;

impl RowSink for NullSink {
    fn numeric(&mut self, _feature: usize, _value: Option<f64>) {}
    fn value(&mut self, _feature: usize, _text: &[u8]) {}
    fn id(&mut self, _feature: usize, _id: u64) {}
    fn commit(&mut self, _labels: &[f32], _weight: Option<f32>) {}
    fn abandon(&mut self) {}
    fn clear(&mut self) {}
}

/// Whether the rows of a part are noted one by one: those that are predicted, and held-out ones if slices are wanted.
pub(crate) fn notes_rows(job: &Job, part: DataPart) -> bool {
    job.eval.predict.is_some() || (part != DataPart::Train && !job.eval.slices.is_empty())
}

/// Rows for training or scoring: transformed numbers and hashed categories, in columns.
#[derive(Clone, Debug)]
pub(crate) struct BatchSink {
    pub(crate) rows: Batch,
    numbers: Arc<[NumericInput]>,
    encoded: Arc<[EncodedInput]>,
    /// Of the row that is read, or of the first one of several columns.
    place: u64,
    width: usize,
    maps: Arc<[IdMap]>,
    /// Per categorical feature, how a cell's values become a bag.
    bags: Arc<[BagForm]>,
}

#[derive(Clone, Copy, Debug)]
enum BagForm {
    All,
    Sequence(Sequence),
    /// With the weights that the pooling makes of theirs.
    Weighted(Pooling),
}

impl BagForm {
    fn new(values: &Values) -> Self {
        match values {
            Values::Sequence { sequence, .. } => Self::Sequence(*sequence),
            Values::Many { pooling, weights: Some(_), .. } => Self::Weighted(*pooling),
            Values::One | Values::Many { .. } => Self::All,
        }
    }
}

impl BatchSink {
    pub(crate) fn new(features: &Features, part: DataPart) -> Self {
        let many = features.categorical.iter().map(|feature| feature.values.separator().is_some());
        Self {
            rows: Batch::empty(many),
            numbers: NumericInput::from_features(features).into(),
            encoded: EncodedInput::from_features(features, part).into(),
            place: 0,
            width: features.numeric_inputs(),
            maps: features.categorical.iter().map(IdMap::new).collect(),
            bags: features.categorical.iter().map(|feature| BagForm::new(&feature.values)).collect(),
        }
    }

    /// Notes which row of the input each sample is, with its keys, where that is wanted.
    pub(crate) fn with_input_rows(mut self, job: &Job, part: DataPart) -> Self {
        let keep_bad = job.eval.predict.as_ref().is_some_and(|rows| rows.keep_bad);
        self.rows.input = notes_rows(job, part).then(|| InputRows::new(job.eval.noted_columns().len(), keep_bad));
        self
    }
}

/// Many rows at once: each column, and last the labels.
impl BatchSink {
    /// The values of a number, counted as for [`RowSink::numeric`].
    pub(crate) fn number_column(&mut self, number: usize, values: impl ExactSizeIterator<Item = Option<f64>>) {
        let (width, input, size) = (self.width, &self.numbers[number], self.rows.size);
        self.rows.numeric.resize((size + values.len()) * width, 0.0);
        let inputs = self.rows.numeric[size * width..].chunks_exact_mut(width);
        inputs.zip_eq(values).for_each(|(row, value)| input.write_input(value, row));
    }

    pub(crate) fn id_column(&mut self, feature: usize, ids: impl ExactSizeIterator<Item = u64>) {
        let Some(encoded) = feature.checked_sub(self.maps.len()) else {
            return extend(&mut self.rows.categorical[feature].ids, &self.maps[feature], ids);
        };
        let (width, input, size) = (self.width, &self.encoded[encoded], self.rows.size);
        self.rows.numeric.resize((size + ids.len()) * width, 0.0);
        let inputs = self.rows.numeric[size * width..].chunks_exact_mut(width);
        let rows = inputs.zip_eq(ids).enumerate();
        rows.for_each(|(index, (row, id))| input.write_input(id, self.place.saturating_add(index as u64), row));
    }

    /// The ids of a multi-valued feature without weights, and where those of each row end.
    pub(crate) fn bag_column(&mut self, feature: usize, ids: &[u64], ends: &[usize]) {
        let column = &mut self.rows.categorical[feature];
        if let BagForm::Sequence(sequence) = &self.bags[feature] {
            let mut start = 0;
            for end in ends {
                extend(&mut column.ids, &self.maps[feature], ids[start..*end].iter().copied());
                column.end_sequence(sequence);
                start = *end;
            }
            return;
        }
        let old_len = column.ids.len();
        extend(&mut column.ids, &self.maps[feature], ids.iter().copied());
        if let Some(offsets) = &mut column.offsets {
            offsets.extend(ends.iter().map(|end| (old_len + end) as u32));
        }
    }

    pub(crate) fn group_column(&mut self, ids: &[u64]) {
        self.rows.groups.extend_from_slice(ids);
    }

    pub(crate) fn weight_column(&mut self, weights: impl ExactSizeIterator<Item = f32>) {
        self.rows.weights.extend(weights);
    }

    pub(crate) fn label_column(
        &mut self,
        (target, targets): (usize, usize),
        labels: impl ExactSizeIterator<Item = f32>,
    ) {
        let size = self.rows.size;
        self.rows.labels.resize((size + labels.len()) * targets, 0.0);
        let rows = self.rows.labels[size * targets..].chunks_exact_mut(targets);
        rows.zip_eq(labels).for_each(|(row, label)| row[target] = label);
    }

    pub(crate) fn commit_columns(&mut self, rows: usize) {
        self.rows.size += rows;
    }
}

impl RowSink for BatchSink {
    fn by_columns(&mut self) -> Option<&mut BatchSink> {
        // Rows whose texts are noted go one by one.
        Some(self).filter(|sink| sink.rows.input.is_none())
    }

    #[inline]
    fn place(&mut self, place: u64) {
        self.place = place;
    }

    #[inline]
    fn key(&mut self, text: &[u8]) {
        if let Some(input) = &mut self.rows.input {
            input.push_key(text);
        }
    }

    #[inline]
    fn numeric(&mut self, number: usize, value: Option<f64>) {
        let start = self.rows.size * self.width;
        if number == 0 {
            self.rows.numeric.resize(start + self.width, 0.0);
        }
        self.numbers[number].write_input(value, &mut self.rows.numeric[start..]);
    }

    #[inline]
    fn id(&mut self, feature: usize, id: u64) {
        let Some(encoded) = feature.checked_sub(self.maps.len()) else {
            return self.rows.categorical[feature].ids.push(self.maps[feature].apply(id));
        };
        let start = self.rows.size * self.width;
        self.rows.numeric.resize(start + self.width, 0.0);
        self.encoded[encoded].write_input(id, self.place, &mut self.rows.numeric[start..]);
    }

    #[inline]
    fn weighted_id(&mut self, feature: usize, id: u64, weight: f32) {
        self.id(feature, id);
        self.rows.categorical[feature].weights.push(weight);
    }

    #[inline]
    fn end_bag(&mut self, feature: usize) {
        let column = &mut self.rows.categorical[feature];
        match &self.bags[feature] {
            BagForm::All => column.end_bag(),
            BagForm::Sequence(sequence) => column.end_sequence(sequence),
            BagForm::Weighted(pooling) => column.end_weighted(*pooling),
        }
    }

    #[inline]
    fn group_id(&mut self, id: u64) {
        self.rows.groups.push(id);
    }

    #[inline]
    fn commit(&mut self, labels: &[f32], weight: Option<f32>) {
        self.rows.labels.extend_from_slice(labels);
        self.rows.weights.extend(weight);
        self.rows.size += 1;
        if let Some(input) = &mut self.rows.input {
            input.end_sample();
        }
    }

    fn abandon(&mut self) {
        let size = self.rows.size;
        self.rows.numeric.truncate(size * self.width);
        self.rows.categorical.iter_mut().for_each(|column| column.truncate(size));
        self.rows.groups.truncate(size);
        if let Some(input) = &mut self.rows.input {
            input.end_malformed();
        }
    }

    fn clear(&mut self) {
        self.rows.clear();
    }
}

/// Adds ids as their feature's map makes them.
fn extend(to: &mut Vec<u64>, map: &IdMap, ids: impl Iterator<Item = u64>) {
    if map.is_same() { to.extend(ids) } else { to.extend(ids.map(|id| map.apply(id))) }
}

#[cfg(test)]
mod tests {
    use zagros_job::{EncodingTable, KeptEnd, Numeric, PadSide, Values};

    use super::*;
    use crate::fixture;

    fn tags_as_sequence(length: usize, keep: KeptEnd) -> BatchSink {
        let mut job = fixture::delimited(|_| ());
        let sequence = Sequence { length, keep, pad: PadSide::Left };
        job.features.categorical[1].values = Values::Sequence { separator: "|".into(), sequence };
        BatchSink::new(&job.features, DataPart::All)
    }

    #[test]
    fn a_sequence_keeps_one_end_of_each_cell_row_by_row_and_by_columns() {
        let cells: [&[u64]; 5] = [&[], &[1], &[2, 3, 4, 5, 6], &[7, 8], &[9, 10, 11]];
        for (keep, expected) in [(KeptEnd::Last, [5, 6, 10, 11]), (KeptEnd::First, [2, 3, 9, 10])] {
            let (mut rows, mut columns) = (tags_as_sequence(2, keep), tags_as_sequence(2, keep));
            for cell in cells {
                cell.iter().for_each(|id| rows.id(1, *id));
                rows.end_bag(1);
            }
            columns.bag_column(1, &cells.concat(), &[0, 1, 6, 8, 11]);
            let [found, by_columns] = [rows, columns].map(|sink| sink.rows.categorical[1].clone());
            assert_eq!(found, by_columns);
            assert_eq!([0, 1, 2, 3, 4].map(|row| found.sample_ids(row).len()), [0, 1, 2, 2, 2]);
            assert_eq!([found.sample_ids(2), found.sample_ids(4)].concat(), expected);
            assert_eq!(found.sample_ids(3), [7, 8]);
        }
    }

    #[test]
    fn encoded_categories_are_the_same_row_by_row_and_by_columns() {
        let mut job = fixture::delimited(|_| ());
        let fitted = EncodingTable {
            mean: 0.0,
            deviation: 1.0,
            rare: vec![0.1, 0.2, 0.3],
            ids: vec![4, 5],
            values: vec![4.1, 4.2, 4.3, 5.1, 5.2, 5.3],
        };
        let feature = Numeric { encode: Some(fixture::encoding(Some(fitted))), ..Numeric::from("city".to_owned()) };
        job.features.numeric.insert(0, feature);
        let (mut rows, ids) = (BatchSink::new(&job.features, DataPart::Train), [4, 5, 6, 5, 4, 4, 9, 5]);
        let mut columns = rows.clone();
        for (row, id) in ids.into_iter().enumerate() {
            rows.place(70 + row as u64);
            rows.numeric(0, Some(row as f64));
            rows.id(2, id);
            rows.commit(&[1.0], None);
        }
        columns.place(70);
        columns.number_column(0, (0..8).map(|row| Some(f64::from(row))));
        columns.id_column(2, ids.into_iter());
        columns.commit_columns(8);
        assert_eq!(rows.rows.numeric, columns.rows.numeric);
        let encoded: Vec<f32> = rows.rows.numeric.iter().copied().step_by(2).collect();
        assert!(encoded.contains(&4.1) && encoded.contains(&5.2) && !encoded.contains(&4.3), "{encoded:?}");
    }

    #[test]
    fn an_abandoned_row_leaves_no_values() {
        let job = fixture::delimited(|_| ());
        let mut sink = BatchSink::new(&job.features, DataPart::All);
        let row = |sink: &mut BatchSink, bag: &[&[u8]]| {
            sink.numeric(0, Some(4.0));
            sink.value(0, b"Basel");
            bag.iter().for_each(|text| sink.value(1, text));
            sink.end_bag(1);
        };
        row(&mut sink, &[b"a", b"b"]);
        sink.commit(&[1.0], Some(2.0));
        let kept_rows = sink.rows.clone();
        row(&mut sink, &[b"c"]);
        sink.abandon();
        assert_eq!(sink.rows, kept_rows);
        sink.numeric(0, None);
        sink.abandon();
        assert_eq!(sink.rows, kept_rows);
        assert_eq!(kept_rows.categorical[1].sample_ids(0), [hash_value(b"a"), hash_value(b"b")]);
        sink.clear();
        assert_eq!(sink.rows, BatchSink::new(&job.features, DataPart::All).rows);
    }
}
