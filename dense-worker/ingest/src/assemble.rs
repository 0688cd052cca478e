//! Assembles rows into batches, and shuffles them within windows.

use std::collections::VecDeque;
use std::ops::Range;

use rand::RngCore;
use rand_pcg::Pcg64;

use crate::Batch;

/// Assembles rows into batches of one size, across the borders of blocks and splits.
#[derive(Debug)]
pub(crate) struct BatchAssembler {
    size: usize,
    current: Batch,
    full: VecDeque<Batch>,
    /// Number of rows that are still to be skipped.
    skip: u64,
}

impl BatchAssembler {
    /// Batches of `size` samples (at least 1) of the features of `empty`.
    pub(crate) fn new(size: usize, empty: Batch) -> Self {
        Self { size: size.max(1), current: empty, full: VecDeque::new(), skip: 0 }
    }

    pub(crate) fn with_skipped_rows(self, rows: u64) -> Self {
        Self { skip: rows, ..self }
    }

    /// Adds rows. Their bytes are spread evenly. Their completed splits go with the last row.
    pub(crate) fn feed(&mut self, rows: &Batch) {
        self.feed_by(rows, |batch, range| batch.append_samples(rows, range));
    }

    /// Adds rows in this order, which is a permutation of all of them.
    fn feed_permuted(&mut self, rows: &Batch, order: &[usize]) {
        self.feed_by(rows, |batch, range| batch.append_picked(rows, &order[range]));
    }

    /// Adds rows with `append`, which gets the batch and the positions of its rows.
    fn feed_by(&mut self, rows: &Batch, append: impl Fn(&mut Batch, Range<usize>)) {
        let mut start = self.skip.min(rows.size as u64) as usize;
        self.skip -= start as u64;
        while start < rows.size {
            let end = rows.size.min(start + self.size - self.current.size);
            append(&mut self.current, start..end);
            self.current.bytes +=
                share_of_bytes(rows.bytes, end, rows.size) - share_of_bytes(rows.bytes, start, rows.size);
            if self.current.size == self.size {
                let next = self.current.spacious_like();
                self.full.push_back(std::mem::replace(&mut self.current, next));
            }
            start = end;
        }
        if self.skip == 0 {
            self.current.append_rest(rows);
        }
        let last = self.last_touched();
        last.completes.extend_from_slice(&rows.completes);
        if rows.size == 0 {
            last.bytes += rows.bytes;
        }
    }

    pub(crate) fn row_count(&self) -> usize {
        self.full.len() * self.size + self.current.size
    }

    pub(crate) fn take_full(&mut self) -> Option<Batch> {
        self.full.pop_front()
    }

    /// A full batch to which nothing will be added. The newest full batch is held back, because a split may still end with
    /// it.
    pub(crate) fn take_final(&mut self) -> Option<Batch> {
        if self.full.len() > 1 { self.full.pop_front() } else { None }
    }

    /// The remaining batches when no more rows come: full ones and a short one. A batch of size 0 comes only if splits were
    /// completed without any row.
    pub(crate) fn finish(mut self) -> VecDeque<Batch> {
        if !self.current.is_void() {
            self.full.push_back(self.current);
        }
        self.full
    }

    fn last_touched(&mut self) -> &mut Batch {
        match self.full.back_mut() {
            Some(full) if self.current.size == 0 => full,
            _ => &mut self.current,
        }
    }
}

#[derive(Debug)]
pub(crate) struct WindowShuffler {
    windows: BatchAssembler,
    order: ShuffleOrder,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ShuffleOrder {
    pub(crate) seed: u64,
    pub(crate) epoch: u32,
    /// Number of windows before the first.
    pub(crate) windows: u64,
    /// Number of rows before the first window.
    pub(crate) skip: u64,
}

impl WindowShuffler {
    pub(crate) fn new(rows: usize, order: ShuffleOrder, empty: Batch) -> Self {
        Self { windows: BatchAssembler::new(rows, empty).with_skipped_rows(order.skip), order }
    }

    /// Adds rows. Full windows go to `out`.
    pub(crate) fn feed(&mut self, rows: &Batch, out: &mut BatchAssembler) {
        self.windows.feed(rows);
        while let Some(window) = self.windows.take_full() {
            self.order.windows += 1;
            out.feed_permuted(&window, &self.order.permutation(window.size));
        }
    }

    /// Whether so many rows are held, here or after the windows in `out`, that one may be delivered. Reading is therefore a
    /// window ahead of delivery, and no delivery waits for a whole window to be read.
    pub(crate) fn is_ahead(&self, out: &BatchAssembler) -> bool {
        self.windows.row_count() + out.row_count() >= self.windows.size
    }

    pub(crate) fn finish(mut self, out: &mut BatchAssembler) {
        self.order.windows += 1;
        for window in self.windows.finish() {
            out.feed_permuted(&window, &self.order.permutation(window.size));
        }
    }
}

impl ShuffleOrder {
    /// Fisher–Yates with a PCG whose state is the seed and whose stream is (epoch, window).
    fn permutation(self, length: usize) -> Vec<usize> {
        let mut random = Pcg64::new(u128::from(self.seed), (u128::from(self.epoch) << 64) | u128::from(self.windows));
        let mut order: Vec<usize> = (0..length).collect();
        for last in (1..length).rev() {
            let other = (u128::from(random.next_u64()) * (last as u128 + 1)) >> 64;
            order.swap(last, other as usize);
        }
        order
    }
}

/// The first `part` of `whole` equal shares of `bytes`.
fn share_of_bytes(bytes: u64, part: usize, whole: usize) -> u64 {
    (u128::from(bytes) * part as u128 / whole as u128) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::SplitEnd;

    /// Samples `start .. start + size` of one categorical feature whose id is the sample's number.
    fn rows(start: usize, size: usize, bytes: u64, completes: Vec<u64>) -> Batch {
        let mut rows = Batch::empty([false]);
        rows.size = size;
        rows.labels = vec![0.0; size];
        rows.categorical[0].ids = (start..start + size).map(|sample| sample as u64).collect();
        rows.bytes = bytes;
        rows.completes =
            completes.into_iter().map(|split| SplitEnd { split, rows: 0, bad_rows: 0, content: 0 }).collect();
        rows
    }

    fn completed(batch: &Batch) -> Vec<u64> {
        batch.completes.iter().map(|end| end.split).collect()
    }

    fn permutation(length: usize, seed: u64, epoch: u32, windows: u64) -> Vec<usize> {
        ShuffleOrder { seed, epoch, windows, skip: 0 }.permutation(length)
    }

    fn ids(batches: &[Batch]) -> Vec<u64> {
        batches.iter().flat_map(|batch| batch.categorical[0].ids.clone()).collect()
    }

    /// Feeds blocks of these sizes, each the end of its own split, through an assembler as a stream does.
    fn assemble(blocks: &[usize], size: usize, shuffle: Option<usize>) -> Vec<Batch> {
        let empty = Batch::empty([false]);
        let (mut assembler, mut batches, mut start) = (BatchAssembler::new(size, empty.clone()), Vec::new(), 0);
        let order = ShuffleOrder { seed: 7, epoch: 0, windows: 0, skip: 0 };
        let mut shuffler = shuffle.map(|window| WindowShuffler::new(window, order, empty));
        for (number, rows_here) in blocks.iter().enumerate() {
            let block = rows(start, *rows_here, 100, vec![number as u64]);
            start += rows_here;
            match &mut shuffler {
                Some(shuffler) => shuffler.feed(&block, &mut assembler),
                None => assembler.feed(&block),
            }
            batches.extend(std::iter::from_fn(|| assembler.take_final()));
        }
        if let Some(shuffler) = shuffler {
            shuffler.finish(&mut assembler);
        }
        batches.extend(assembler.finish());
        batches
    }

    #[test]
    fn a_split_completes_with_its_last_row_or_in_a_batch_without_samples() {
        let batches = assemble(&[4, 4, 0], 4, None);
        assert_eq!(batches.iter().map(completed).collect::<Vec<_>>(), [vec![0], vec![1, 2]]);
        let batches = assemble(&[0, 0], 4, None);
        assert_eq!((batches.len(), batches[0].size, completed(&batches[0])), (1, 0, vec![0, 1]));
    }

    #[test]
    fn windows_are_permuted_differently_in_each_epoch() {
        let first = permutation(50, 1, 0, 1);
        assert_eq!(first, permutation(50, 1, 0, 1));
        for (seed, epoch, window) in [(1, 1, 1), (2, 0, 1), (1, 0, 2)] {
            assert_ne!(first, permutation(50, seed, epoch, window), "{seed} {epoch} {window}");
        }
    }

    #[test]
    fn every_order_of_three_is_about_as_likely() {
        let mut counts = std::collections::HashMap::new();
        for window in 0..6_000 {
            *counts.entry(permutation(3, 1, 0, window)).or_insert(0) += 1;
        }
        assert!(counts.len() == 6 && counts.values().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }

    fn blocks() -> impl Strategy<Value = Vec<usize>> {
        prop::collection::vec(0_usize..30, 1..12)
    }

    proptest! {
        #[test]
        fn rows_keep_their_order_and_batches_their_size(blocks in blocks(), size in 1_usize..20) {
            let batches = assemble(&blocks, size, None);
            let total: usize = blocks.iter().sum();
            prop_assert_eq!(ids(&batches), (0..total as u64).collect::<Vec<_>>());
            let full = batches.iter().take_while(|batch| batch.size == size).count();
            prop_assert!(full + 1 >= batches.len());
        }

        #[test]
        fn a_split_completes_exactly_once_and_not_before_its_last_row(
            blocks in blocks(),
            size in 1_usize..20,
            window in prop::option::of(1_usize..40),
        ) {
            let batches = assemble(&blocks, size, window);
            let mut delivered = std::collections::HashSet::<u64>::new();
            let mut completed = Vec::new();
            for batch in &batches {
                delivered.extend(&batch.categorical[0].ids);
                for split in super::tests::completed(batch) {
                    let start: usize = blocks[..split as usize].iter().sum();
                    let rows = start..start + blocks[split as usize];
                    prop_assert!(rows.into_iter().all(|row| delivered.contains(&(row as u64))));
                    completed.push(split);
                }
            }
            prop_assert_eq!(completed, (0..blocks.len() as u64).collect::<Vec<_>>());
        }

        #[test]
        fn no_byte_is_lost(blocks in blocks(), size in 1_usize..20, window in prop::option::of(1_usize..40)) {
            let total: u64 = assemble(&blocks, size, window).iter().map(|batch| batch.bytes).sum();
            prop_assert_eq!(total, 100 * blocks.len() as u64);
        }

        #[test]
        fn shuffling_moves_rows_within_their_window_only(blocks in blocks(), window in 1_usize..40) {
            let shuffled = ids(&assemble(&blocks, 5, Some(window)));
            prop_assert_eq!(shuffled.len(), blocks.iter().sum::<usize>());
            for (number, part) in shuffled.chunks(window).enumerate() {
                let mut sorted = part.to_vec();
                sorted.sort_unstable();
                let start = (number * window) as u64;
                prop_assert_eq!(sorted, (start..start + part.len() as u64).collect::<Vec<_>>());
            }
        }
    }
}
