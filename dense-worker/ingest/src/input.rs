//! Rows of the input beside the samples that they became, so that a row gets its own score.
//!
//! ```text
//! rows of the input   good  good  malformed  good  malformed
//! samples             0     1                2
//! ```
//!
//! A malformed row belongs to the sample after it. Malformed rows after the last sample of a block go to the batch that is
//! filled next. So a batch has the rows after as many samples as the batches before it have, wherever reading started.

use std::ops::Range;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputRows {
    columns: usize,
    keep_malformed: bool,
    /// Texts of the key columns, row after row.
    text: Vec<u8>,
    /// Where each text ends, `[rows * columns]`.
    ends: Vec<usize>,
    samples: Vec<usize>,
    rows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputRow<'a> {
    /// Its sample; `None` for a malformed row.
    pub sample: Option<usize>,
    rows: &'a InputRows,
    row: usize,
}

impl InputRow<'_> {
    /// The text of key column `column`. That of a malformed row is empty if its fields could not be divided.
    pub fn key(&self, column: usize) -> &[u8] {
        assert!(column < self.rows.columns, "a key column of the job");
        let field = self.row * self.rows.columns + column;
        &self.rows.text[self.rows.start(field)..self.rows.ends[field]]
    }
}

impl InputRows {
    /// No rows, with so many key columns. Malformed rows are kept, or skipped.
    pub fn new(columns: usize, keep_malformed: bool) -> Self {
        Self { columns, keep_malformed, ..Self::default() }
    }

    /// Rows with so many keys each; `None` is a malformed row.
    pub fn from_rows<'a>(columns: usize, rows: impl IntoIterator<Item = Option<Vec<&'a [u8]>>>) -> Self {
        let mut all = Self::new(columns, true);
        for row in rows {
            row.iter().flatten().for_each(|key| all.push_key(key));
            if row.is_some() { all.end_sample() } else { all.end_malformed() }
        }
        all
    }

    pub fn len(&self) -> usize {
        self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = InputRow<'_>> {
        let mut next = 0;
        (0..self.rows).map(move |row| {
            let is_sample = self.samples.get(next) == Some(&row);
            let sample = is_sample.then_some(next);
            next += usize::from(is_sample);
            InputRow { sample, rows: self, row }
        })
    }

    pub fn samples_only(&self) -> Self {
        let mut all = Self::new(self.columns, false);
        for row in self.iter().filter(|row| row.sample.is_some()) {
            (0..self.columns).for_each(|column| all.push_key(row.key(column)));
            all.end_sample();
        }
        all
    }

    pub(crate) fn empty_like(&self) -> Self {
        Self::new(self.columns, self.keep_malformed)
    }

    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.samples.clear();
        self.rows = 0;
    }

    /// The next key of the newest row.
    pub(crate) fn push_key(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
        self.ends.push(self.text.len());
    }

    /// The newest row is a sample.
    pub(crate) fn end_sample(&mut self) {
        self.samples.push(self.rows);
        self.rows += 1;
    }

    /// The newest row is malformed. It may lack keys.
    pub(crate) fn end_malformed(&mut self) {
        if self.keep_malformed {
            self.rows += 1;
            self.ends.resize(self.rows * self.columns, self.text.len());
            return;
        }
        self.ends.truncate(self.rows * self.columns);
        self.text.truncate(self.ends.last().copied().unwrap_or(0));
    }

    /// Adds the rows of these samples, each with the malformed ones before it.
    pub(crate) fn append(&mut self, other: &Self, samples: Range<usize>) {
        if !samples.is_empty() {
            let end = other.samples[samples.end - 1] + 1;
            self.append_rows(other, other.first_row(samples.start)..end);
            let rows = self.rows;
            self.samples.extend(other.samples[samples].iter().map(|row| row + rows - end));
        }
    }

    pub(crate) fn append_rest(&mut self, other: &Self) {
        self.append_rows(other, other.first_row(other.samples.len())..other.rows);
    }

    /// The first row that is not before sample `sample`, without the sample before it.
    fn first_row(&self, sample: usize) -> usize {
        sample.checked_sub(1).map_or(0, |before| self.samples[before] + 1)
    }

    fn append_rows(&mut self, other: &Self, rows: Range<usize>) {
        let fields = rows.start * self.columns..rows.end * self.columns;
        let (from, to) = (other.start(fields.start), other.start(fields.end));
        let text_len = self.text.len();
        self.text.extend_from_slice(&other.text[from..to]);
        self.ends.extend(other.ends[fields].iter().map(|end| end - from + text_len));
        self.rows += rows.len();
    }

    /// Where the text of a field starts, which is where the one before it ends.
    fn start(&self, field: usize) -> usize {
        field.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use zagros_job::{Job, PredictRows};

    use super::*;
    use crate::fixture;
    use crate::{Batch, DataPart, StreamOptions, StreamStart};

    fn predicting(mut job: Job, keys: &[&str], keep_bad: bool) -> Job {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        job.eval.predict = Some(PredictRows { keys, keep_bad });
        job.data.max_bad_rows = 100;
        job
    }

    fn read(job: &Job, text: &str, drop: u64) -> Vec<Batch> {
        let (_folder, path) = fixture::file(text);
        let start = StreamStart { drop, ..StreamStart::default() };
        let options = StreamOptions { start, ..StreamOptions::new(DataPart::All) };
        fixture::stream(job, options, fixture::whole(&path)).collect::<Result<_, _>>().unwrap()
    }

    /// Whether each row is a sample, and its keys.
    fn shown(batches: &[Batch], columns: usize) -> Vec<(bool, String)> {
        let rows = batches.iter().flat_map(|batch| batch.input.as_ref().unwrap().iter());
        let keys = |row: InputRow<'_>| {
            (0..columns).map(|c| String::from_utf8_lossy(row.key(c)).into_owned()).collect::<Vec<_>>()
        };
        rows.map(|row| (row.sample.is_some(), keys(row).join(" "))).collect()
    }

    #[test]
    fn rows_without_a_label_are_read_with_their_keys() {
        let job = predicting(fixture::delimited(|_| ()), &["city", "id"], true);
        let text = "id,age,city,tags\nr1,3,Basel,\nr2,x,Bern,\nr3\nr4,5,\"a \"\"b\"\"\",\n";
        let batches = read(&job, text, 0);
        let expected = [(true, "Basel r1"), (false, "Bern r2"), (false, " "), (true, "a \"b\" r4")];
        assert_eq!(shown(&batches, 2), expected.map(|(sample, keys)| (sample, keys.to_owned())));
        let job = predicting(fixture::delimited(|_| ()), &["id"], false);
        assert_eq!(shown(&read(&job, text, 0), 1), [(true, "r1".to_owned()), (true, "r4".to_owned())]);
    }

    #[test]
    fn a_stream_that_starts_later_has_the_same_later_batches() {
        let line = |n: u64| match n {
            30..34 | 58.. => format!("{n},bad,c,t\n"),
            _ if n % 5 == 3 => format!("{n},bad,c,t\n"),
            _ => format!("{n},{n},c,t\n"),
        };
        let text = "id,age,city,tags\n".to_owned() + &(0..60).map(line).collect::<String>();
        let job = predicting(fixture::delimited(|_| ()), &["id"], true);
        let all = read(&job, &text, 0);
        assert_eq!(shown(&all, 1).len(), 60);
        let inputs = |batches: &[Batch]| {
            batches.iter().map(|batch| (batch.numeric.clone(), batch.input.clone())).collect::<Vec<_>>()
        };
        for from in 0..all.len() {
            let first_row = all[..from].iter().map(|batch| batch.size as u64).sum();
            assert_eq!(inputs(&read(&job, &text, first_row)), inputs(&all[from..]), "from batch {from}");
        }
    }

    fn rows(good: &[bool], columns: usize) -> InputRows {
        let mut rows = InputRows::new(columns, true);
        for (row, good) in good.iter().enumerate() {
            (0..columns).for_each(|column| rows.push_key(format!("{row}.{column}").as_bytes()));
            if *good { rows.end_sample() } else { rows.end_malformed() }
        }
        rows
    }

    proptest! {
        #[test]
        fn pieces_put_together_are_the_whole(
            good in prop::collection::vec(any::<bool>(), 0..30), columns in 0_usize..3, ends in prop::collection::vec(0_usize..30, 0..5),
        ) {
            let whole = rows(&good, columns);
            let samples = whole.samples.len();
            let mut ends: Vec<usize> = ends.into_iter().map(|end| end.min(samples)).chain([samples]).collect();
            ends.sort_unstable();
            let (mut joined, mut start) = (whole.empty_like(), 0);
            for end in ends {
                joined.append(&whole, start..end);
                start = end;
            }
            joined.append_rest(&whole);
            prop_assert_eq!(&joined, &whole);
            let found: Vec<bool> = joined.iter().map(|row| row.sample.is_some()).collect();
            prop_assert_eq!(found, good);
        }
    }
}
