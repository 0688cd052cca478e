//! A hash of the rows of a split as they are read, by which a later run knows whether they are still the same.
//!
//! Every label counts, and all values of every 16th row: labels that were corrected and a stretch of the file that was written anew
//! are both noticed, for a hundredth of the time that parsing takes. The hash depends on the order of the rows in the file alone:
//! not on blocks, threads or shuffling.

use crate::Batch;

/// The distance of rows all of whose values count.
const EVERY: u64 = 16;

/// The rows of a split so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SplitHash {
    rows: u64,
    labels: u64,
    values: u64,
}

impl SplitHash {
    /// Adds rows in the order of the file.
    pub(crate) fn add(&mut self, batch: &Batch) {
        for label in &batch.labels {
            mix(&mut self.labels, label.to_bits().into());
        }
        let first = (EVERY - self.rows % EVERY) % EVERY;
        for row in (first as usize..batch.size).step_by(EVERY as usize) {
            let width = batch.numeric.len() / batch.size;
            let numbers = &batch.numeric[row * width..(row + 1) * width];
            numbers
                .iter()
                .chain(batch.weights.get(row))
                .for_each(|number| mix(&mut self.values, number.to_bits().into()));
            for column in &batch.categorical {
                let (ids, range) = (column.sample_ids(row), column.sample_range(row));
                ids.iter().for_each(|id| mix(&mut self.values, *id));
                let weights = column.weights.get(range).unwrap_or_default();
                weights.iter().for_each(|weight| mix(&mut self.values, weight.to_bits().into()));
                mix(&mut self.values, ids.len() as u64);
            }
        }
        self.rows += batch.size as u64;
    }

    /// The hash, at the end of the split.
    pub(crate) fn finish(self) -> u64 {
        let mut hash = self.rows;
        mix(&mut hash, self.labels);
        mix(&mut hash, self.values);
        hash
    }
}

/// A step of FxHash: neither numbers nor hashed ids are chosen to collide.
#[inline]
fn mix(state: &mut u64, value: u64) {
    *state = (state.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::SplitHash;
    use crate::fixture;
    use crate::parse::row::RowParser;
    use crate::parse::sink::BatchSink;
    use crate::{DataPart, SplitEnd, StreamOptions};

    /// Rows of a text in two splits, and the hash of each.
    fn hashes(text: &str, threads: usize, shuffle_rows: usize) -> Vec<u64> {
        let (_folder, path) = fixture::file(text);
        let mut job = fixture::criteo();
        (job.data.threads, job.data.shuffle_rows) = (threads, shuffle_rows);
        let options = StreamOptions { epoch: 3, ..StreamOptions::new(DataPart::Train) };
        let stream = fixture::stream(&job, options, fixture::cut(&path, vec![9_000]));
        let mut ends: Vec<SplitEnd> = stream.flat_map(|batch| batch.unwrap().completes).collect();
        ends.sort_by_key(|end| end.split);
        ends.iter().map(|end| end.content).collect()
    }

    fn lines(change: impl Fn(u64, String) -> String) -> String {
        (0..300).map(|row| change(row, fixture::criteo_line(row)) + "\n").collect()
    }

    #[test]
    fn any_label_and_any_stretch_of_rows_changes_the_hash_of_its_split() {
        let original = hashes(&lines(|_, line| line), 2, 0);
        assert_eq!(original, hashes(&lines(|_, line| line), 1, 40), "whatever the order of training");
        let other = hashes(&lines(|row, line| if row == 251 { format!("1{}", &line[1..]) } else { line }), 2, 0);
        assert!(other[0] == original[0] && other[1] != original[1], "a label");
        let stretch = |row| (10..26).contains(&row);
        let swapped =
            hashes(&lines(|row, line| if stretch(row) { fixture::criteo_line(row + 18_018) } else { line }), 2, 0);
        assert!(swapped[0] != original[0] && swapped[1] == original[1], "rows of the same length");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn the_hash_does_not_depend_on_blocks(mut cuts in prop::collection::vec(0_usize..100, 0..6)) {
            let job = fixture::criteo();
            let sink = BatchSink::new(&job.features, DataPart::All);
            let text = lines(|_, line| line);
            let rows: Vec<&str> = text.split_inclusive('\n').take(100).collect();
            let positions = fixture::positions(&job);
            let hash = |cuts: &[usize]| {
                let (mut hash, mut from) = (SplitHash::default(), 0);
                for to in cuts.iter().copied().chain([100]) {
                    let mut sink = sink.clone();
                    let block = rows[from..to].concat();
                    RowParser::new(&job, DataPart::All).parse((block.as_bytes(), 0), &positions, &mut sink);
                    hash.add(&sink.rows);
                    from = to;
                }
                hash.finish()
            };
            cuts.sort_unstable();
            prop_assert_eq!(hash(&cuts), hash(&[]));
        }
    }
}
