//! A teacher of higher-order terms over latent factors, with a power-law spectrum: data on which larger networks are better.
//!
//! A row has `factors` independent factors uᵢ, each uniform in [0, 1). Odd ones are numeric columns, even ones are categories, whose
//! factor is the place of the category among its column's. With ψⱼ(u) = √2·cos(π·j·u) and ψ₀ = 1,
//!
//! ```text
//!   logit(u) = bias + Σₖ cₖ · Πᵢ ψ_{jₖᵢ}(uᵢ)        cₖ = ± signal · k^(−(1 + decay)/2) / norm,   k = 1 … terms
//! ```
//!
//! The products are orthonormal, so Σₖ cₖ² = signal² is the variance of the logit, and the terms after the first K hold a share of it that
//! falls as K^(−decay). A term is a product of at most `order` factors. The terms are sorted by Σᵢ jₖᵢ², from smooth to rough, with ties by
//! the seed.
//!
//! A learner that has the first K terms is off by a log loss ∝ K^(−decay). If its size is ∝ K, that is L(N) = E + A/N^decay (Bahri et al.
//! 2021; Maloney et al. 2022). It tells term k from noise after about 1/cₖ² rows, so that L(D) = E + B/D^(decay/(1 + decay)). A network need
//! not reach these rates. A linear teacher has no such axis: its terms are of order one, and the smallest network has them all.

use zagros_zip::ZipEq;

use crate::IngestError;
use crate::synthetic::counter::RandomStream;
use crate::synthetic::planted::{StreamPurpose, random_stream};

/// Steps of a numeric factor, each written with six decimals.
const STEPS: u32 = 100_000;

/// Mean of the logit.
const BIAS: f64 = -1.0;

/// Most factors, and most terms, of a teacher.
const MOST_FACTORS: u32 = 64;
const MOST_TERMS: u32 = 1_000_000;

#[derive(Clone, Debug, PartialEq)]
pub struct FactorSpec {
    pub rows: u64,
    /// Rows of `test.csv`. They are the same for any number of training rows.
    pub test_rows: u64,
    pub seed: u64,
    /// Latent factors, each a column: 2 to 64.
    pub factors: u32,
    /// Categories of a column, at least 2, equally frequent.
    pub values: u32,
    pub terms: u32,
    /// Most factors of a term.
    pub order: u32,
    /// Exponent by which the variance of the terms after the first K falls, positive.
    pub decay: f64,
    /// Standard deviation of the logit.
    pub signal: f64,
}

impl Default for FactorSpec {
    fn default() -> Self {
        Self {
            rows: 400_000,
            test_rows: 100_000,
            seed: 1,
            factors: 8,
            values: 64,
            terms: 1_024,
            order: 4,
            decay: 0.5,
            signal: 2.0,
        }
    }
}

impl FactorSpec {
    fn check(&self) -> Result<(), IngestError> {
        let bad = |reason: String| Err(IngestError::BadSpec { reason });
        if !(2..=MOST_FACTORS).contains(&self.factors) {
            return bad(format!("{} factors are not 2 to {MOST_FACTORS}", self.factors));
        }
        if self.values < 2 {
            return bad("a category column must have at least 2 values".to_owned());
        }
        if !(1..=MOST_TERMS).contains(&self.terms) {
            return bad(format!("{} terms are not 1 to {MOST_TERMS}", self.terms));
        }
        if !(1..=self.factors).contains(&self.order) {
            return bad(format!("the order {} is not 1 to the number of factors, {}", self.order, self.factors));
        }
        if !(self.decay.is_finite() && self.signal.is_finite() && self.decay > 0.0) {
            return bad("the decay must be positive, and it and the signal finite".to_owned());
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FactorRow {
    pub(crate) clicked: bool,
    /// Log-odds of a click.
    pub(crate) logit: f64,
    /// What is written of each factor: a step of `STEPS` or a category.
    pub(crate) cells: Vec<u32>,
}

/// A term: its coefficient, and factor and frequency j of each of its functions ψⱼ.
#[derive(Clone, Debug, PartialEq)]
struct TeacherTerm {
    coefficient: f64,
    functions: Vec<(usize, usize)>,
}

#[derive(Clone, Debug)]
pub(crate) struct FactorTeacher {
    steps: Vec<u32>,
    cells: Vec<RandomStream>,
    clicks: RandomStream,
    terms: Vec<TeacherTerm>,
    /// One more than the largest frequency.
    frequencies: usize,
}

impl FactorTeacher {
    pub(crate) fn new(spec: &FactorSpec) -> Result<Self, IngestError> {
        spec.check()?;
        let terms = choose_terms(spec)?;
        let frequencies = 1 + terms.iter().flat_map(|term| term.functions.iter().map(|(_, j)| *j)).max().unwrap_or(0);
        let factors = 0..spec.factors;
        Ok(Self {
            steps: factors
                .clone()
                .map(|factor| if is_numeric(factor as usize) { STEPS } else { spec.values })
                .collect(),
            cells: factors
                .map(|factor| random_stream(spec.seed, StreamPurpose::FactorCell, u64::from(factor)))
                .collect(),
            clicks: random_stream(spec.seed, StreamPurpose::FactorClick, 0),
            terms,
            frequencies,
        })
    }

    /// Row `number`. It depends only on the teacher and the number.
    pub(crate) fn make_row(&self, number: u64) -> FactorRow {
        let draw = |(stream, steps): (&RandomStream, &u32)| (stream.uniform(number) * f64::from(*steps)) as u32;
        let cells: Vec<u32> = self.cells.iter().zip_eq(&self.steps).map(draw).collect();
        let logit = self.logit(&cells);
        let clicked = self.clicks.uniform(number) < 1.0 / (1.0 + (-logit).exp());
        FactorRow { clicked, logit, cells }
    }

    fn logit(&self, cells: &[u32]) -> f64 {
        let values = self.functions(cells);
        let value = |(factor, j): &(usize, usize)| values[factor * self.frequencies + j];
        let term = |term: &TeacherTerm| term.coefficient * term.functions.iter().map(value).product::<f64>();
        BIAS + self.terms.iter().map(term).sum::<f64>()
    }

    /// `[factors, frequencies]`: ψⱼ of each factor.
    fn functions(&self, cells: &[u32]) -> Vec<f64> {
        let mut values = Vec::with_capacity(cells.len() * self.frequencies);
        for (cell, steps) in cells.iter().zip_eq(&self.steps) {
            // The middle of the step: the functions are then exactly orthonormal over the steps, as in a discrete cosine transform.
            let u = (f64::from(*cell) + 0.5) / f64::from(*steps);
            values.push(1.0);
            let angle = std::f64::consts::PI * u;
            values.extend((1..self.frequencies).map(|j| std::f64::consts::SQRT_2 * (angle * j as f64).cos()));
        }
        values
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactorColumns {
    pub numeric: Vec<String>,
    pub categories: Vec<String>,
}

pub fn factor_columns(spec: &FactorSpec) -> FactorColumns {
    let (numeric, categories) = (0..spec.factors as usize).partition::<Vec<_>, _>(|factor| is_numeric(*factor));
    let named = |factors: Vec<usize>| factors.into_iter().map(column_name).collect();
    FactorColumns { numeric: named(numeric), categories: named(categories) }
}

fn is_numeric(factor: usize) -> bool {
    factor.is_multiple_of(2)
}

pub(crate) fn column_name(factor: usize) -> String {
    let letter = if is_numeric(factor) { 'x' } else { 'c' };
    format!("{letter}{}", factor / 2 + 1)
}

/// Writes the cells of a row after its label.
pub(crate) fn write_row(row: &FactorRow, text: &mut Vec<u8>) {
    text.push(if row.clicked { b'1' } else { b'0' });
    for (factor, cell) in row.cells.iter().enumerate() {
        text.push(b',');
        if is_numeric(factor) {
            // The middle of the step.
            text.extend(format!("0.{cell:05}5").bytes());
        } else {
            text.extend(format!("v{cell}").bytes());
        }
    }
    text.push(b'\n');
}

fn choose_terms(spec: &FactorSpec) -> Result<Vec<TeacherTerm>, IngestError> {
    let wanted = spec.terms as usize;
    let mut bound = 1;
    let mut found = Vec::new();
    // Frequencies of a category are below the number of its values, where the functions repeat.
    let most = (spec.values - 1).min(64);
    while found.len() < wanted {
        let old_count = found.len();
        found.clear();
        let mut chosen = Vec::new();
        collect_products(spec, most, 0, bound, &mut chosen, &mut found);
        if found.len() == old_count && bound > spec.order * most * most {
            let reason = format!("there are only {old_count} terms of these factors, not {wanted}");
            return Err(IngestError::BadSpec { reason });
        }
        bound += 1;
    }
    let ties = random_stream(spec.seed, StreamPurpose::FactorOrder, 0);
    let rank = |functions: &Vec<(usize, usize)>| {
        let roughness: usize = functions.iter().map(|(_, j)| j * j).sum();
        let name = functions.iter().fold(0_u64, |name, (factor, j)| name * 8_209 + (factor * 128 + j) as u64 + 1);
        (roughness, ties.bits(name))
    };
    found.sort_by_cached_key(rank);
    found.truncate(wanted);
    let exponent = -(1.0 + spec.decay) / 2.0;
    let sizes: Vec<f64> = (1..=wanted).map(|k| (k as f64).powf(exponent)).collect();
    let norm = sizes.iter().map(|size| size * size).sum::<f64>().sqrt();
    let signs = random_stream(spec.seed, StreamPurpose::FactorSign, 0);
    let term = |(k, functions): (usize, Vec<(usize, usize)>)| {
        let sign = if signs.bits(k as u64) & 1 == 0 { 1.0 } else { -1.0 };
        TeacherTerm { coefficient: sign * spec.signal * sizes[k] / norm, functions }
    };
    Ok(found.into_iter().enumerate().map(term).collect())
}

/// All products over the factors from `first` on, added to those `chosen`, whose Σ j² is at most `room`.
fn collect_products(
    spec: &FactorSpec,
    most: u32,
    first: u32,
    room: u32,
    chosen: &mut Vec<(usize, usize)>,
    found: &mut Vec<Vec<(usize, usize)>>,
) {
    if chosen.len() == spec.order as usize {
        return;
    }
    for factor in first..spec.factors {
        for j in (1..=most).take_while(|j| j * j <= room) {
            chosen.push((factor as usize, j as usize));
            found.push(chosen.clone());
            collect_products(spec, most, factor + 1, room - j * j, chosen, found);
            chosen.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> FactorSpec {
        FactorSpec { factors: 3, values: 5, terms: 40, order: 3, ..FactorSpec::default() }
    }

    #[test]
    fn a_row_depends_on_seed_and_number_alone() {
        let planted = |seed| FactorTeacher::new(&FactorSpec { seed, ..small() }).unwrap();
        assert_eq!(planted(1).make_row(5), planted(1).make_row(5));
        assert_ne!(planted(1).make_row(5), planted(1).make_row(6));
        assert_ne!(planted(1).make_row(5), planted(2).make_row(5));
    }

    /// Over all cells of categories, and numeric factors of as few steps: the mean of each product of two terms is 1 or 0.
    #[test]
    fn the_terms_are_orthonormal() {
        let spec = small();
        let mut teacher = FactorTeacher::new(&spec).unwrap();
        teacher.steps = vec![5; 3];
        let terms = &teacher.terms[..12];
        let mut sums = vec![0.0; terms.len() * terms.len()];
        for number in 0..125 {
            let values = teacher.functions(&[number % 5, number / 5 % 5, number / 25]);
            let term_value = |term: &TeacherTerm| -> f64 {
                term.functions.iter().map(|(factor, j)| values[factor * teacher.frequencies + j]).product()
            };
            for (place, sum) in sums.iter_mut().enumerate() {
                *sum += term_value(&terms[place / terms.len()]) * term_value(&terms[place % terms.len()]) / 125.0;
            }
        }
        for (place, sum) in sums.iter().enumerate() {
            let expected = f64::from(u8::from(place / terms.len() == place % terms.len()));
            assert!((sum - expected).abs() < 1e-9, "{place}: {sum}");
        }
    }

    #[test]
    fn the_variance_of_the_terms_after_the_first_falls_by_the_planted_exponent() {
        for decay in [0.3, 0.5, 1.0] {
            let spec = FactorSpec { decay, terms: 30_000, ..FactorSpec::default() };
            let teacher = FactorTeacher::new(&spec).unwrap();
            let tail = |first: usize| teacher.terms[first..].iter().map(|term| term.coefficient.powi(2)).sum::<f64>();
            assert!((tail(0) - 4.0).abs() < 1e-9);
            // The terms that the teacher does not have are part of the tail of the power law.
            let tail_sum = |k: f64| k.powf(-decay) / decay;
            let missing = tail_sum(30_000.5) * teacher.terms[0].coefficient.powi(2);
            let slope = ((tail(640) + missing) / (tail(40) + missing)).ln() / 16_f64.ln();
            assert!((slope + decay).abs() < 0.01, "decay {decay}: {slope}");
        }
    }

    #[test]
    fn terms_are_of_several_orders_and_smooth_ones_come_first() {
        let teacher = FactorTeacher::new(&FactorSpec::default()).unwrap();
        let orders: Vec<usize> =
            (1..=4).map(|order| teacher.terms.iter().filter(|term| term.functions.len() == order).count()).collect();
        assert!(orders.iter().all(|count| *count > 10), "{orders:?}");
        assert!(teacher.terms[..8].iter().all(|term| term.functions.len() == 1 && term.functions[0].1 == 1));
        let mut names: Vec<_> = teacher.terms.iter().map(|term| term.functions.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 1_024);
    }

    #[test]
    fn impossible_specs_are_refused() {
        let default = FactorSpec::default;
        let few_values = FactorSpec { factors: 2, values: 2, order: 1, terms: 10_000, ..default() };
        let [no_terms, high_order] = [FactorSpec { terms: 0, ..default() }, FactorSpec { order: 9, ..default() }];
        let [one_factor, no_decay] = [FactorSpec { factors: 1, ..default() }, FactorSpec { decay: 0.0, ..default() }];
        for spec in [few_values, no_terms, high_order, one_factor, no_decay] {
            assert!(matches!(FactorTeacher::new(&spec), Err(IngestError::BadSpec { .. })), "{spec:?}");
        }
    }
}
