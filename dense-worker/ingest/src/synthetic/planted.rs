//! The planted model: the rows, and the probability of a click for each.
//!
//! logit = bias + Σⱼ wⱼ·xⱼ + w·x₁·x₂ + Σ_f w_f(category) + w(C9, C20). xⱼ is the logarithm of integer j, standardised. The
//! mean of each w_f over its column is 0. A missing integer counts as 0, as in a job with `missing = 0`. Nothing that
//! decides a click is therefore hidden from the network, and no model can score better than the planted probabilities, up
//! to chance.

use super::counter::ZipfDistribution;
use crate::synthetic::counter::{RandomStream, splitmix};
use crate::transform::symmetric_log;

pub(crate) const INTEGERS: usize = 13;

pub(crate) const CATEGORIES: usize = 26;

/// Largest integer written. Counts in logs are bounded too.
const MOST: f64 = 1e6;

/// Sizes in the proportions of Criteo's, but so small that an epoch of a few hundred thousand rows contains most values.
const VOCABULARIES: [u32; CATEGORIES] = [
    500, 400, 20_000, 12_000, 200, 24, 2_500, 300, 3, 5_000, 1_500, 18_000, 1_000, 27, 3_000, 15_000, 10, 1_500, 700,
    4, 16_000, 18, 15, 8_000, 100, 6_000,
];

/// Columns with more values than this have a long tail of rare values.
const LONG: u32 = 1_000;

/// Their effects are smaller by this factor, because a value that occurs in few rows cannot be learned well.
const LONG_WEIGHT: f64 = 0.4;

/// Number of points at which the mean of an integer column is computed.
const QUANTILES: u32 = 4_096;

/// Exponent of the frequencies of categories.
const ZIPF: f64 = 1.2;

/// Logit of a row without any effects: about one click in four.
const BIAS: f64 = -1.2;

/// Largest effect of an integer column, per standard deviation.
const INTEGER_EFFECT: f64 = 0.3;

const CATEGORY_EFFECT: f64 = 0.8;

/// The two small columns whose combination has an effect: C9 and C20, from 0.
const CROSSED: [usize; 2] = [8, 19];

#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticSpec {
    pub rows: u64,
    /// Rows of `test.txt`. They are the same for any number of training rows.
    pub test_rows: u64,
    pub seed: u64,
}

impl Default for SyntheticSpec {
    fn default() -> Self {
        Self { rows: 400_000, test_rows: 100_000, seed: 1 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlantedRow {
    pub(crate) clicked: bool,
    /// Log-odds of a click.
    pub(crate) logit: f64,
    /// `None` if missing.
    pub(crate) integers: [Option<i64>; INTEGERS],
    /// Written as 8 hex digits; `None` if missing.
    pub(crate) categories: [Option<u32>; CATEGORIES],
}

#[derive(Clone, Debug)]
pub(crate) struct PlantedModel {
    integers: Vec<IntegerColumn>,
    categories: Vec<CategoryColumn>,
    crossed_categories: RandomStream,
    clicks: RandomStream,
}

#[derive(Clone, Debug)]
struct IntegerColumn {
    /// Mean and deviation of the logarithm before rounding. It has an exponential distribution.
    scale: f64,
    /// Mean of the logarithm as written, with missing values as 0.
    mean: f64,
    missing_rate: f64,
    /// Subtracted from the count, because Criteo's I2 has negative values.
    shift: i64,
    effect: f64,
    values: RandomStream,
    missing: RandomStream,
}

#[derive(Clone, Debug)]
struct CategoryColumn {
    zipf: ZipfDistribution,
    missing_rate: f64,
    values: RandomStream,
    missing: RandomStream,
    effects: RandomStream,
    /// Largest effect, relative to that of all columns.
    weight: f64,
    /// Subtracted from each effect, so that no seed makes clicks rare or common.
    mean_effect: f64,
    texts: u32,
}

impl PlantedModel {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            integers: (0..INTEGERS).map(|column| IntegerColumn::new(column, seed)).collect(),
            categories: (0..CATEGORIES).map(|column| CategoryColumn::new(column, seed)).collect(),
            crossed_categories: random_stream(seed, StreamPurpose::Cross, 0),
            clicks: random_stream(seed, StreamPurpose::Click, 0),
        }
    }

    /// Row `number`. It depends only on the planted model and the number.
    pub(crate) fn make_row(&self, number: u64) -> PlantedRow {
        let (mut integers, mut categories) = ([None; INTEGERS], [None; CATEGORIES]);
        let (mut logit, mut standard) = (BIAS, [0.0; INTEGERS]);
        for (j, column) in self.integers.iter().enumerate() {
            integers[j] = column.draw(number);
            standard[j] = column.standard(integers[j]);
            logit += column.effect * standard[j];
        }
        logit += INTEGER_EFFECT / 2.0 * standard[0] * standard[1];
        let mut ranks = [0; CATEGORIES];
        for (f, column) in self.categories.iter().enumerate() {
            // Rank 0 is "missing", so that a missing value has an effect too.
            ranks[f] = column.draw(number);
            categories[f] = ranks[f].checked_sub(1).map(|rank| column.text(rank));
            logit += CATEGORY_EFFECT * (column.effect(ranks[f]) - column.mean_effect);
        }
        let crossed = CROSSED.map(|f| u64::from(ranks[f]));
        logit += CATEGORY_EFFECT / 2.0 * to_signed(self.crossed_categories.uniform((crossed[0] << 32) | crossed[1]));
        let clicked = self.clicks.uniform(number) < 1.0 / (1.0 + (-logit).exp());
        PlantedRow { clicked, logit, integers, categories }
    }
}

impl IntegerColumn {
    fn new(column: usize, seed: u64) -> Self {
        let number = column as u64;
        let choice = |at| random_stream(seed, StreamPurpose::IntegerShape, number).uniform(at);
        let mut made = Self {
            scale: 0.6 + 1.2 * choice(0),
            mean: 0.0,
            // A few columns are nearly complete and a few often missing, as in Criteo's logs.
            missing_rate: 0.45 * choice(1).powi(3),
            shift: if column == 1 { 2 } else { 0 },
            effect: INTEGER_EFFECT * to_signed(choice(2)),
            values: random_stream(seed, StreamPurpose::Integer, number),
            missing: random_stream(seed, StreamPurpose::IntegerMissing, number),
        };
        let quantile = |n: u32| (f64::from(n) + 0.5) / f64::from(QUANTILES);
        let total: f64 = (0..QUANTILES).map(|n| symmetric_log(made.quantile(quantile(n)) as f64)).sum();
        made.mean = (1.0 - made.missing_rate) * total / f64::from(QUANTILES);
        made
    }

    fn draw(&self, row: u64) -> Option<i64> {
        if self.missing.uniform(row) < self.missing_rate {
            return None;
        }
        Some(self.quantile(self.values.uniform(row)))
    }

    /// The value that has this share of the column's values below it.
    fn quantile(&self, share: f64) -> i64 {
        let count = (1.0 - share).powf(-self.scale) - 1.0;
        count.min(MOST) as i64 - self.shift
    }

    /// The network's input for a value, about standardised.
    fn standard(&self, value: Option<i64>) -> f64 {
        (symmetric_log(value.unwrap_or(0) as f64) - self.mean) / self.scale
    }
}

impl CategoryColumn {
    fn new(column: usize, seed: u64) -> Self {
        let (vocabulary, number) = (VOCABULARIES[column], column as u64);
        let choice = random_stream(seed, StreamPurpose::CategoryShape, number);
        let mut column = Self {
            zipf: ZipfDistribution::new(vocabulary, ZIPF),
            missing_rate: 0.1 * choice.uniform(0).powi(3),
            values: random_stream(seed, StreamPurpose::Category, number),
            missing: random_stream(seed, StreamPurpose::CategoryMissing, number),
            effects: random_stream(seed, StreamPurpose::CategoryEffect, number),
            weight: if vocabulary > LONG { LONG_WEIGHT } else { 1.0 },
            mean_effect: 0.0,
            texts: choice.bits(1) as u32,
        };
        let present: f64 = (0..vocabulary).map(|rank| column.zipf.probability(rank) * column.effect(rank + 1)).sum();
        column.mean_effect = column.missing_rate * column.effect(0) + (1.0 - column.missing_rate) * present;
        column
    }

    /// The effect of a rank that [`Self::draw`] returned, relative to the specification's largest.
    fn effect(&self, drawn: u32) -> f64 {
        self.weight * to_signed(self.effects.uniform(u64::from(drawn)))
    }

    /// 0 if missing, otherwise one more than the rank.
    fn draw(&self, row: u64) -> u32 {
        if self.missing.uniform(row) < self.missing_rate {
            return 0;
        }
        self.zipf.rank(self.values.uniform(row)) + 1
    }

    /// The text of a rank in the file: a permutation of 32-bit numbers (the finaliser of MurmurHash3), so that no two ranks
    /// share a text.
    fn text(&self, rank: u32) -> u32 {
        let mut text = rank ^ self.texts;
        text = (text ^ (text >> 16)).wrapping_mul(0x85eb_ca6b);
        text = (text ^ (text >> 13)).wrapping_mul(0xc2b2_ae35);
        text ^ (text >> 16)
    }
}

/// The purpose of a random stream. New ones are appended and never reordered, because the order determines the data.
#[derive(Clone, Copy, Debug)]
pub(super) enum StreamPurpose {
    Integer,
    IntegerMissing,
    IntegerShape,
    Category,
    CategoryMissing,
    CategoryShape,
    CategoryEffect,
    Cross,
    Click,
    FactorCell,
    FactorOrder,
    FactorSign,
    FactorClick,
}

pub(super) fn random_stream(seed: u64, purpose: StreamPurpose, column: u64) -> RandomStream {
    RandomStream::new(splitmix(seed).wrapping_add(((purpose as u64) << 32) | column))
}

/// Maps uniform in [0, 1) to uniform in [−1, 1).
fn to_signed(uniform: f64) -> f64 {
    2.0 * uniform - 1.0
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_row_depends_on_seed_and_number_alone() {
        assert_eq!(PlantedModel::new(1).make_row(5), PlantedModel::new(1).make_row(5));
        assert_ne!(PlantedModel::new(1).make_row(5), PlantedModel::new(1).make_row(6));
        assert_ne!(PlantedModel::new(1).make_row(5), PlantedModel::new(2).make_row(5));
    }

    #[test]
    fn no_two_categories_share_a_text() {
        let planted = PlantedModel::new(1);
        let column = &planted.categories[2];
        let texts: HashSet<u32> = (0..20_000).map(|rank| column.text(rank)).collect();
        assert_eq!(texts.len(), 20_000);
    }

    #[test]
    fn no_seed_makes_clicks_rare_or_common() {
        for seed in 0..20 {
            let planted = PlantedModel::new(seed);
            let clicks = (0..2_000).filter(|number| planted.make_row(*number).clicked).count();
            assert!((300..900).contains(&clicks), "seed {seed}: {clicks} of 2000");
        }
    }

    #[test]
    fn rows_look_like_criteos() {
        let planted = PlantedModel::new(1);
        let rows: Vec<PlantedRow> = (0..5_000).map(|number| planted.make_row(number)).collect();
        let is_missing = |row: &PlantedRow| row.integers.contains(&None) && row.categories.contains(&None);
        assert!(rows.iter().any(is_missing));
        let integers = || rows.iter().flat_map(|row| row.integers.into_iter().flatten());
        assert!(integers().any(|value| value < 0) && integers().any(|value| value > 1_000));
        let small: HashSet<_> = rows.iter().map(|row| row.categories[8]).collect();
        assert!((3..=4).contains(&small.len()), "{small:?}");
    }
}
