//! The workload "crit-zipf-v1": Criteo-shaped samples with Zipf ids, for measuring any system. It is read from its files,
//! or made in memory by the same formulas. It stays in memory, because reading is not part of the measurement.
//!
//! Files (little-endian, sample-major): `dense.bin` f32 `[N, 13]`, `cat.bin` i32 `[N, 26]`,
//! `label.bin` u8 `[N]`.

use std::fs;
use std::ops::Range;
use std::path::Path;

use super::counter::ZipfDistribution;
use crate::synthetic::counter::RandomStream;
use crate::synthetic::planted::{CATEGORIES, INTEGERS};
use crate::{Batch, IngestError};

/// Part of the number of each random stream.
const SEED: u64 = 20_240_607;

const EXPONENT: f64 = 1.05;

/// Distinct values of Criteo-Kaggle's columns, 33,762,577 in all.
const FULL: [u32; CATEGORIES] = [
    1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194, 27, 14_992, 5_461_306,
    10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];

/// Largest vocabulary of [`IdVocabulary::Small`].
const SMALL_MOST: u32 = 122_780;

/// How many distinct ids there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdVocabulary {
    /// Criteo-Kaggle's 33,762,577.
    Full,
    /// The same, but at most 122,780 per column: 1,000,003.
    Small,
}

impl IdVocabulary {
    /// Distinct ids of each column.
    #[must_use]
    pub fn column_sizes(self) -> [u32; CATEGORIES] {
        match self {
            Self::Full => FULL,
            Self::Small => FULL.map(|size| size.min(SMALL_MOST)),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct CritZipf {
    samples: usize,
    /// `[samples, 13]`
    dense: Vec<f32>,
    /// `[samples, 26]`
    ids: Vec<u32>,
    /// `[samples]`
    labels: Vec<u8>,
}

impl CritZipf {
    /// Makes the first `samples` samples. The full workload has 2,150,400.
    #[must_use]
    pub fn generate(vocabulary: IdVocabulary, samples: usize) -> Self {
        let mut made = Self {
            samples,
            dense: vec![0.0; samples * INTEGERS],
            ids: vec![0; samples * CATEGORIES],
            labels: Vec::new(),
        };
        let mut logits = vec![-1.3; samples];
        for column in 0..INTEGERS {
            made.make_dense(column, &mut logits);
        }
        for (column, size) in vocabulary.column_sizes().into_iter().enumerate() {
            made.make_ids(column, size, &mut logits);
        }
        let clicks = random_stream(200);
        let clicked = |(sample, logit): (usize, &f64)| clicks.uniform(sample as u64) < 1.0 / (1.0 + (-logit).exp());
        made.labels = logits.iter().enumerate().map(|sample| u8::from(clicked(sample))).collect();
        made
    }

    pub fn load(folder: &Path) -> Result<Self, IngestError> {
        let labels = read_bytes(folder, "label.bin")?;
        let samples = labels.len();
        let dense = read_words(folder, "dense.bin", samples * INTEGERS)?.into_iter().map(f32::from_le_bytes).collect();
        let ids = read_words(folder, "cat.bin", samples * CATEGORIES)?.into_iter().map(u32::from_le_bytes).collect();
        Ok(Self { samples, dense, ids, labels })
    }

    #[must_use]
    pub fn sample_count(&self) -> usize {
        self.samples
    }

    /// Samples of a range as a batch: 13 numeric features, and 26 features of one id each, without transforms. `None` past
    /// the end.
    #[must_use]
    pub fn make_batch(&self, samples: Range<usize>) -> Option<Batch> {
        let rows = self.ids.get(samples.start * CATEGORIES..samples.end * CATEGORIES)?;
        let mut batch = Batch::empty([false; CATEGORIES]);
        batch.size = samples.len();
        batch.labels = self.labels.get(samples.clone())?.iter().map(|label| f32::from(*label)).collect();
        batch.numeric = self.dense.get(samples.start * INTEGERS..samples.end * INTEGERS)?.to_vec();
        for (column, feature) in batch.categorical.iter_mut().enumerate() {
            feature.ids = rows.iter().skip(column).step_by(CATEGORIES).map(|id| u64::from(*id)).collect();
        }
        Some(batch)
    }

    fn make_dense(&mut self, column: usize, logits: &mut [f64]) {
        let (values, weight) =
            (random_stream(column as u64), 0.3 * (2.0 * random_stream(400).uniform(column as u64) - 1.0));
        for (sample, logit) in logits.iter_mut().enumerate() {
            let value = 12.0_f64.sqrt() * (values.uniform(sample as u64) - 0.5);
            self.dense[sample * INTEGERS + column] = value as f32;
            *logit += weight * value;
        }
    }

    fn make_ids(&mut self, column: usize, size: u32, logits: &mut [f64]) {
        let (zipf, number) = (ZipfDistribution::new(size, EXPONENT), column as u64);
        let (values, weights) = (random_stream(100 + number), random_stream(300 + number));
        for (sample, logit) in logits.iter_mut().enumerate() {
            let rank = u64::from(zipf.rank(values.uniform(sample as u64)));
            // Spreads the frequent ids over the vocabulary.
            let id = (rank * 2_654_435_761 + 1_013_904_223 * (number + 1)) % u64::from(size);
            self.ids[sample * CATEGORIES + column] = id as u32;
            *logit += 0.6 * (2.0 * weights.uniform(id) - 1.0);
        }
    }
}

fn random_stream(number: u64) -> RandomStream {
    RandomStream::new(SEED * 1_000_003 + number)
}

fn read_bytes(folder: &Path, name: &str) -> Result<Vec<u8>, IngestError> {
    let path = folder.join(name);
    fs::read(&path).map_err(|source| IngestError::Unreadable { path, source })
}

fn read_words(folder: &Path, name: &str, expected: usize) -> Result<Vec<[u8; 4]>, IngestError> {
    let bytes = read_bytes(folder, name)?;
    let (words, rest) = bytes.as_chunks::<4>();
    if words.len() != expected || !rest.is_empty() {
        let (found, expected) = (bytes.len(), 4 * expected);
        let reason = format!("{found} bytes where label.bin asks for {expected}; write the workload again");
        return Err(IngestError::bad_file(&folder.join(name), reason));
    }
    Ok(words.to_vec())
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// The first and the last of 256 samples, as the workload's own generator (Python, numpy) writes them.
    const FIRST_DENSE: &str = "-1.6379031 1.2920847 0.07549221 -0.6288008 -0.979331 1.1607441 -0.62751174 1.2974937 1.5224985 1.0332664 \
                               0.7977891 -0.9690776 0.39711076";
    const LAST_DENSE: [f32; 3] = [-0.450_295_63, -1.472_781_2, -0.733_095_94];
    const FIRST_SMALL: [u64; CATEGORIES] = [
        1_207, 356, 13_537, 111_132, 257, 2, 8_870, 566, 1, 36_710, 434, 61_120, 1_637, 7, 10_567, 35_609, 9, 2_404,
        679, 0, 82_085, 17, 14, 45_026, 47, 29_898,
    ];
    const LAST_SMALL: [u64; CATEGORIES] = [
        924, 356, 88_074, 48_265, 235, 6, 5_967, 269, 0, 90_154, 3_967, 21_517, 1_596, 6, 12_399, 31_088, 2, 1_210,
        679, 0, 27_144, 10, 1, 85_077, 40, 44_403,
    ];
    const SMALL_LABELS: [u8; 32] =
        [1, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1];

    fn ids_of(batch: &Batch, sample: usize) -> Vec<u64> {
        batch.categorical.iter().map(|feature| feature.ids[sample]).collect()
    }

    #[test]
    fn the_samples_are_those_of_the_specification() {
        let made = CritZipf::generate(IdVocabulary::Small, 256);
        let batch = made.make_batch(0..256).unwrap();
        let first: Vec<f32> = FIRST_DENSE.split(' ').map(|number| number.parse().unwrap()).collect();
        assert_eq!(batch.numeric[..INTEGERS], first);
        assert_eq!(batch.numeric[255 * INTEGERS..][..3], LAST_DENSE);
        assert_eq!(ids_of(&batch, 0), FIRST_SMALL);
        assert_eq!(ids_of(&batch, 255), LAST_SMALL);
        assert_eq!(made.labels[..32], SMALL_LABELS);
        assert_eq!(made.labels.iter().map(|label| u32::from(*label)).sum::<u32>(), 100);
        assert_eq!(made.ids.iter().map(|id| u64::from(*id)).sum::<u64>(), 125_987_816);
    }

    #[test]
    fn the_vocabularies_have_the_sizes_of_the_specification() {
        assert_eq!(IdVocabulary::Full.column_sizes().iter().sum::<u32>(), 33_762_577);
        assert_eq!(IdVocabulary::Small.column_sizes().iter().sum::<u32>(), 1_000_003);
    }

    #[test]
    fn files_hold_the_same_samples() {
        let (folder, made) = (TempDir::new().unwrap(), CritZipf::generate(IdVocabulary::Small, 40));
        let write = |name: &str, bytes: Vec<u8>| fs::write(folder.path().join(name), bytes).unwrap();
        write("dense.bin", made.dense.iter().flat_map(|value| value.to_le_bytes()).collect());
        write("cat.bin", made.ids.iter().flat_map(|id| id.to_le_bytes()).collect());
        write("label.bin", made.labels.clone());
        let loaded = CritZipf::load(folder.path()).unwrap();
        assert_eq!(loaded, made);
        assert_eq!(loaded.make_batch(8..16).unwrap().labels.len(), 8);
        assert_eq!(loaded.make_batch(36..44), None);
        write("cat.bin", vec![0; 12]);
        let error = CritZipf::load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("cat.bin: 12 bytes where label.bin asks for 4160"), "{error}");
    }
}
