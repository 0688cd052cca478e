//! The workload "crit-zipf-v1": Criteo-shaped samples with Zipf ids, for measuring any system. It is made in memory and stays there, because
//! reading is not part of the measurement.

use super::counter::ZipfDistribution;
use crate::Batch;
use crate::synthetic::counter::RandomStream;
use crate::synthetic::planted::{CATEGORIES, INTEGERS};

/// Part of the number of each random stream.
const SEED: u64 = 20_240_607;

const EXPONENT: f64 = 1.05;

/// Distinct values of Criteo-Kaggle's columns, 33,762,577 in all.
const FULL: [u32; CATEGORIES] = [
    1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194, 27, 14_992, 5_461_306,
    10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];

/// Most distinct values of a column here: 1,000,003 in all.
const MOST: u32 = 122_780;

/// Makes the first `samples` samples: 13 numeric features, and 26 features of one id each, without transforms.
pub fn make_crit_zipf(samples: usize) -> Batch {
    let mut batch = Batch::empty([false; CATEGORIES]);
    batch.size = samples;
    batch.numeric = vec![0.0; samples * INTEGERS];
    let mut logits = vec![-1.3; samples];
    for column in 0..INTEGERS {
        make_numbers(column, &mut batch.numeric, &mut logits);
    }
    for (column, feature) in batch.categorical.iter_mut().enumerate() {
        feature.ids = make_ids(column, &mut logits);
    }
    let clicks = random_stream(200);
    let clicked = |(sample, logit): (usize, &f64)| clicks.uniform(sample as u64) < 1.0 / (1.0 + (-logit).exp());
    batch.labels = logits.iter().enumerate().map(|sample| f32::from(u8::from(clicked(sample)))).collect();
    batch
}

fn make_numbers(column: usize, numbers: &mut [f32], logits: &mut [f64]) {
    let (values, weight) =
        (random_stream(column as u64), 0.3 * (2.0 * random_stream(400).uniform(column as u64) - 1.0));
    for (sample, logit) in logits.iter_mut().enumerate() {
        let value = 12.0_f64.sqrt() * (values.uniform(sample as u64) - 0.5);
        numbers[sample * INTEGERS + column] = value as f32;
        *logit += weight * value;
    }
}

fn make_ids(column: usize, logits: &mut [f64]) -> Vec<u64> {
    let (size, number) = (FULL[column].min(MOST), column as u64);
    let zipf = ZipfDistribution::new(size, EXPONENT);
    let (values, weights) = (random_stream(100 + number), random_stream(300 + number));
    let make_id = |(sample, logit): (usize, &mut f64)| {
        let rank = u64::from(zipf.rank(values.uniform(sample as u64)));
        // Spreads the frequent ids over the vocabulary.
        let id = (rank * 2_654_435_761 + 1_013_904_223 * (number + 1)) % u64::from(size);
        *logit += 0.6 * (2.0 * weights.uniform(id) - 1.0);
        id
    };
    logits.iter_mut().enumerate().map(make_id).collect()
}

fn random_stream(number: u64) -> RandomStream {
    RandomStream::new(SEED * 1_000_003 + number)
}

#[cfg(test)]
mod tests {
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
    const SMALL_LABELS: &str = "11010101000001001010010111000001";

    #[test]
    fn the_samples_are_those_of_the_specification() {
        let made = make_crit_zipf(256);
        let ids = |sample: usize| made.categorical.iter().map(|feature| feature.ids[sample]).collect::<Vec<_>>();
        let first: Vec<f32> = FIRST_DENSE.split(' ').map(|number| number.parse().unwrap()).collect();
        assert_eq!(made.numeric[..INTEGERS], first);
        assert_eq!(made.numeric[255 * INTEGERS..][..3], LAST_DENSE);
        assert_eq!((ids(0), ids(255)), (FIRST_SMALL.to_vec(), LAST_SMALL.to_vec()));
        let labels: String = made.labels[..32].iter().map(f32::to_string).collect();
        assert_eq!((labels.as_str(), made.labels.iter().sum::<f32>()), (SMALL_LABELS, 100.0));
        assert_eq!(made.categorical.iter().flat_map(|feature| &feature.ids).sum::<u64>(), 125_987_816);
        assert_eq!(FULL.map(|size| size.min(MOST)).iter().sum::<u32>(), 1_000_003);
    }
}
