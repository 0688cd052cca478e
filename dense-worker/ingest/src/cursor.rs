//! The position of a stream, from which another stream can continue.
//!
//! A stream reads splits in the order in which they were dealt out. Its rows pass through shuffle windows and are then
//! assembled into batches. The delivered part is a number of rows after the windows. It identifies a row of a split: the
//! first row of the window that is being delivered. A resumed stream reads from the start of that split.

use serde::{Deserialize, Serialize};

use crate::{Batch, SplitEnd};

/// Where in the rows of its splits a stream starts. The default is their beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStart {
    /// Rows of the first splits that are before the first window, in the order of the files.
    pub drop: u64,
    /// Shuffle windows before it in the epoch. Their number is part of the seed.
    pub windows: u64,
    /// Rows of the first window, in shuffled order, that were delivered.
    pub skip: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRemainder {
    /// Splits that were dealt to the stream and are still needed, in their order.
    pub splits: Vec<u64>,
    pub start: StreamStart,
}

#[derive(Clone, Debug)]
pub struct StreamCursor {
    start: StreamStart,
    /// Rows of a shuffle window; `None` if rows keep their order.
    window: Option<u64>,
    delivered: u64,
    ends: Vec<SplitEnd>,
}

impl StreamCursor {
    /// The cursor of a stream that starts there and shuffles within windows of so many rows (0: not at all).
    pub fn new(start: StreamStart, shuffle_rows: usize) -> Self {
        let window = (shuffle_rows > 0).then_some(shuffle_rows as u64);
        Self { start, window, delivered: 0, ends: Vec::new() }
    }

    /// Notes that the stream's next batch is delivered.
    pub fn record_delivery(&mut self, batch: &Batch) {
        self.delivered += batch.size as u64;
        self.ends.extend_from_slice(&batch.completes);
    }

    /// The remainder of a stream that was dealt these splits: everything after the delivered batches, whether it was read
    /// or not.
    pub fn remainder(&self, dealt: &[u64]) -> StreamRemainder {
        let behind_windows = self.start.skip + self.delivered;
        let window = self.window.unwrap_or(1);
        let (windows, skip) = (behind_windows / window, behind_windows % window);
        let first_row = self.start.drop + windows * window;
        let end_of = |split: &u64| self.ends.iter().find(|end| end.split == *split && end.rows <= first_row);
        let ended = dealt.iter().map_while(end_of);
        // The number of splits that are not needed any more, and their rows.
        let (ended, before) = ended.fold((0, 0), |(count, _), end| (count + 1, end.rows));
        let windows = if self.window.is_some() { self.start.windows + windows } else { 0 };
        let start = StreamStart { drop: first_row - before, windows, skip };
        StreamRemainder { splits: dealt[ended..].to_vec(), start }
    }
}

#[cfg(test)]
mod tests {

    use proptest::prelude::*;
    use zagros_job::Job;

    use super::*;
    use crate::fixture;
    use crate::{DataPart, SplitTask, StreamOptions};

    fn stream(job: &Job, start: StreamStart, tasks: Vec<SplitTask>) -> Vec<Batch> {
        let options = StreamOptions { epoch: 3, start, ..StreamOptions::new(DataPart::Train) };
        fixture::stream(job, options, tasks).collect::<Result<_, _>>().unwrap()
    }

    /// Batches without the fields that depend on where reading started.
    fn samples(batches: &[Batch]) -> Vec<Batch> {
        let rows = batches.iter().filter(|batch| batch.size > 0);
        rows.map(|batch| Batch { completes: Vec::new(), bytes: 0, ..batch.clone() }).collect()
    }

    #[test]
    fn a_split_that_was_delivered_whole_is_not_read_again() {
        let mut cursor = StreamCursor::new(StreamStart::default(), 0);
        let all = StreamRemainder { splits: vec![4, 5, 6], start: StreamStart::default() };
        assert_eq!(cursor.remainder(&[4, 5, 6]), all);
        let mut deliver = |split, rows| {
            let completes = vec![SplitEnd { split, rows, bad_rows: 0, content: 0 }];
            cursor.record_delivery(&Batch { size: 8, completes, ..Batch::default() });
            cursor.remainder(&[4, 5, 6])
        };
        let start = StreamStart { drop: 1, windows: 0, skip: 0 };
        assert_eq!(deliver(4, 7), StreamRemainder { splits: vec![5, 6], start });
        assert_eq!(deliver(5, 16), StreamRemainder { splits: vec![6], start: StreamStart::default() });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Interrupted anywhere, and interrupted again: the batches are those of one stream (invariant CK-3).
        #[test]
        fn delivered_batches_and_the_remainder_are_the_whole_stream(
            rows in 1_u64..120,
            borders in prop::collection::vec(1_u64..12_000, 0..5),
            shuffle_rows in prop_oneof![Just(0_usize), 1_usize..50],
            leave in prop::collection::vec(0_usize..8, 1..4),
        ) {
            let (_folder, path) = fixture::file(fixture::criteo_text(rows));
            let mut job = fixture::criteo();
            job.data.shuffle_rows = shuffle_rows;
            let tasks = fixture::cut(&path, borders);
            let expected = samples(&stream(&job, StreamStart::default(), tasks.clone()));
            let mut remainder = StreamRemainder { splits: tasks.iter().map(|task| task.id).collect(), start: StreamStart::default() };
            let mut found = Vec::new();
            for batches in leave.into_iter().chain([usize::MAX]) {
                let needed = remainder.splits.iter().map(|split| tasks[*split as usize].clone()).collect();
                let read = stream(&job, remainder.start, needed);
                let delivered = &read[..batches.min(read.len())];
                let mut cursor = StreamCursor::new(remainder.start, shuffle_rows);
                delivered.iter().for_each(|batch| cursor.record_delivery(batch));
                found.extend(samples(delivered));
                remainder = cursor.remainder(&remainder.splits);
            }
            prop_assert_eq!(found, expected);
        }
    }
}
