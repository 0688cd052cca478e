//! Rows that do not fit into `cluster.memory`: how many, and how many of them a sample reads.
//!
//! The rows of all tables are taken as one set whose popularity follows Zipf's law, with the exponent that gives as many distinct rows in
//! a batch as the data have. Servers keep the rows that were used last. The rows of a batch that are not among them follow from Che's
//! approximation: a row is in memory if it was drawn within the last T draws, where T is the time in which as many distinct rows are
//! drawn as memory has places.

use zagros_job::{Job, Table};

use crate::work::DataShape;

/// Bytes of the index in memory for each row on disk.
const INDEX_BYTES: f64 = 12.0;
/// The share of the memory that rows keep, however large the index is.
const LEAST_FOR_ROWS: f64 = 0.25;
/// Checksum and key of a record.
const RECORD_HEAD: f64 = 12.0;
/// Bytes that are written for each byte of rows that leave memory.
const WRITTEN: f64 = 1.4;
/// Ratio of the neighbouring ranks that are taken as equally popular, and the largest exponent.
const STEP: f64 = 1.05;
const LARGEST_EXPONENT: f64 = 4.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowsOnDisk {
    /// Rows in the memory of all servers together.
    pub in_memory: f64,
    /// Rows on the disks of all servers together.
    pub on_disk: f64,
    /// Bytes of a row in memory, the mean of all tables.
    pub row_bytes: f64,
    pub record_bytes: f64,
    pub exponent: f64,
    /// The share of a batch's distinct rows that are read from disk.
    pub share: f64,
    /// Rows that are read from disk, and as many that leave memory for them, a sample.
    pub reads: f64,
    /// Whether the index leaves rows less than a quarter of the memory, so that servers refuse new rows.
    pub is_refused: bool,
}

impl RowsOnDisk {
    /// Those of a job on so many servers; `None` if all rows are in memory, or their number is not known.
    pub fn estimate(job: &Job, data: &DataShape, servers: f64) -> Option<Self> {
        let rows = data.rows? as f64;
        let memory = job.cluster.memory? as f64 * servers.max(1.0);
        let (row_bytes, record_bytes) = (mean(job, Table::row_bytes), mean(job, record) + RECORD_HEAD);
        if !job.reads_disk() || rows * row_bytes <= memory {
            return None;
        }
        let beside_the_index = (memory - INDEX_BYTES * rows) / (row_bytes - INDEX_BYTES);
        let least = LEAST_FOR_ROWS * memory / row_bytes;
        let in_memory = beside_the_index.max(least);
        let batch = job.train.batch_size as f64;
        let (ids, distinct) = (data.ids.iter().sum::<f64>() * batch, data.distinct.iter().sum::<f64>());
        let law = ZipfLaw::with_distinct(rows, ids, distinct * batch);
        let share = law.missed(ids, in_memory);
        Some(Self {
            in_memory,
            on_disk: rows - in_memory,
            row_bytes,
            record_bytes,
            exponent: law.exponent,
            share,
            reads: share * distinct,
            is_refused: beside_the_index < least,
        })
    }

    /// Bytes of memory that the rows take, of all servers together.
    pub fn memory_bytes(&self) -> f64 {
        self.in_memory * self.row_bytes
    }

    /// Bytes of memory of the index, of all servers together.
    pub fn index_bytes(&self) -> f64 {
        self.on_disk * INDEX_BYTES
    }

    /// Bytes of the records on the disks, without those that are overwritten and not yet removed.
    pub fn disk_bytes(&self) -> f64 {
        self.on_disk * self.record_bytes
    }

    pub fn written_bytes(&self) -> f64 {
        self.reads * self.record_bytes * WRITTEN
    }
}

/// Bytes of the words of a record.
fn record(table: &Table) -> usize {
    table.table_config().cold_words() * size_of::<u32>()
}

/// Bytes of a mean row of all tables.
fn mean(job: &Job, bytes: fn(&Table) -> usize) -> f64 {
    job.tables.iter().map(|table| bytes(table) as f64).sum::<f64>() / job.tables.len().max(1) as f64
}

/// The popularity of rows: groups of neighbouring ranks.
#[derive(Debug)]
struct ZipfLaw {
    exponent: f64,
    /// Rows of a group, and the probability that a draw is one row of it.
    groups: Vec<(f64, f64)>,
}

impl ZipfLaw {
    fn new(rows: f64, exponent: f64) -> Self {
        let last = rows + 1.0;
        // The part of the draws whose rank is below this one.
        let below = |rank: f64| match 1.0 - exponent {
            flat if flat.abs() < 1e-9 => rank.ln() / last.ln(),
            power => (rank.powf(power) - 1.0) / (last.powf(power) - 1.0),
        };
        let (mut groups, mut rank) = (Vec::new(), 1.0);
        while rank < last {
            let next = (rank * STEP).max(rank + 1.0).min(last);
            groups.push((next - rank, (below(next) - below(rank)) / (next - rank)));
            rank = next;
        }
        Self { exponent, groups }
    }

    /// The law by which `draws` are of so many distinct rows: the nearest one there is.
    fn with_distinct(rows: f64, draws: f64, distinct: f64) -> Self {
        let (mut flat, mut steep) = (0.0, LARGEST_EXPONENT);
        for _ in 0..40 {
            let middle = 0.5 * (flat + steep);
            if Self::new(rows, middle).distinct(draws) > distinct { flat = middle } else { steep = middle }
        }
        Self::new(rows, 0.5 * (flat + steep))
    }

    /// Distinct rows of so many draws.
    fn distinct(&self, draws: f64) -> f64 {
        self.groups.iter().map(|(rows, chance)| rows * -(-chance * draws).exp_m1()).sum()
    }

    /// The share of the distinct rows of a batch of `draws` that are not among the `places` rows that were used last.
    fn missed(&self, draws: f64, places: f64) -> f64 {
        let (mut short, mut long) = (1.0_f64, 1e18_f64);
        for _ in 0..80 {
            let middle = (short * long).sqrt();
            if self.distinct(middle) < places { short = middle } else { long = middle }
        }
        let read = |(rows, chance): &(f64, f64)| rows * -(-chance * draws).exp_m1() * (-chance * short).exp();
        self.groups.iter().map(read).sum::<f64>() / self.distinct(draws).max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use zagros_job::Overrides;

    use super::*;

    fn on_disk(sets: &[&str], rows: Option<u64>, servers: f64) -> Option<RowsOnDisk> {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 16\n[model]\nkind = 'ffnn'\n\
                    [train]\nbatch_size = 4096\n[cluster]\nmemory = '1000MB'\n";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap();
        RowsOnDisk::estimate(&job, &DataShape { rows, ..DataShape::from_job(&job) }, servers)
    }

    #[test]
    fn memory_is_shared_by_rows_and_the_index_of_those_on_disk() {
        // A row takes 16 weights, as much state, and 24 bytes of index; its record those values, a word of its use, checksum and key.
        let some = on_disk(&[], Some(20_000_000), 1.0).unwrap();
        assert_eq!((some.row_bytes, some.record_bytes), (152.0, 144.0));
        let expected = (1e9 - 12.0 * 2e7) / 140.0;
        assert_eq!((some.in_memory, some.on_disk), (expected, 2e7 - expected));
        assert!((some.memory_bytes() + some.index_bytes() - 1e9).abs() < 1.0 && !some.is_refused);
        assert_eq!(some.disk_bytes(), 144.0 * some.on_disk);
        assert_eq!(some.written_bytes(), some.reads * 144.0 * 1.4);
        // Two servers have twice the memory.
        assert_eq!(on_disk(&[], Some(20_000_000), 2.0).unwrap().in_memory, (2e9 - 12.0 * 2e7) / 140.0);
        // Past three quarters, the index has no more of it.
        let most = on_disk(&[], Some(100_000_000), 1.0).unwrap();
        assert_eq!((most.in_memory, most.is_refused), (0.25e9 / 152.0, true));
    }

    #[test]
    fn rows_that_fit_and_rows_of_an_unknown_number_are_not_on_disk() {
        assert_eq!(on_disk(&[], Some(6_578_947), 1.0), None);
        assert!(on_disk(&[], Some(6_578_948), 1.0).is_some());
        assert_eq!(on_disk(&[], Some(6_578_948), 2.0), None);
        assert_eq!(on_disk(&[], None, 1.0), None);
    }

    /// The law of `zagros-bench capacity` at 3·10⁶ rows, of which it had 297,154 in memory: it had 37,528 distinct rows a batch, and brought
    /// 17,119 of them in (docs/how-to/plan.md).
    #[test]
    fn a_benchmark_reads_as_many_rows_as_the_law_says() {
        let (law, draws) = (ZipfLaw::new(3e6, 1.05), 4096.0 * 26.0);
        let distinct = law.distinct(draws);
        assert_eq!((distinct.round(), (law.missed(draws, 297_154.0) * distinct).round()), (37_534.0, 16_230.0));
        let found = ZipfLaw::with_distinct(3e6, draws, distinct);
        assert!((found.exponent - 1.05).abs() < 1e-6, "{}", found.exponent);
    }

    #[test]
    fn equally_popular_rows_are_missed_by_the_part_that_is_on_disk() {
        // The batch is small beside the table, so its rows are distinct. Least recently used rows of equal popularity are arbitrary rows.
        let law = ZipfLaw::new(1e6, 0.0);
        assert!((law.missed(100.0, 250_000.0) - 0.75).abs() < 1e-3);
        assert!((law.distinct(100.0) - 100.0).abs() < 0.01);
    }

    proptest! {
        #[test]
        fn more_memory_never_reads_more(rows in 1e3..1e10_f64, exponent in 0.0..3.0_f64, draws in 1.0..1e6_f64, part in 0.01..0.9_f64) {
            let law = ZipfLaw::new(rows, exponent);
            let (few, many) = (law.missed(draws, part * rows), law.missed(draws, (part + 0.05) * rows));
            prop_assert!((0.0..=1.0).contains(&few) && many <= few + 1e-9, "{few} {many}");
        }
    }
}
