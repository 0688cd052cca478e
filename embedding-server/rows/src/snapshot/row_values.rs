//! The Euclidean norms of rows, in one pass and constant memory.
//!
//! The parts of a slot: weights and named optimiser state, as numbers.

use std::ops::Range;

use zagros_table::WeightType;
use zagros_zip::ZipEq;

use crate::snapshot::format::TableHeader;

/// Histogram bins per doubling of the norm.
const STEPS: i32 = 4;
/// The range of the histogram in bins: 2⁻⁴⁰ to 2²⁴. Smaller and larger norms fall into the outermost bins.
const RANGE: std::ops::Range<i32> = -40 * STEPS..24 * STEPS;

/// Statistics of the norms of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct NormStatistics {
    pub rows: u64,
    /// Rows whose weights are all zero. They are in no bin.
    pub zero: u64,
    /// Rows with a weight that is not finite. They count in no other figure.
    pub not_finite: u64,
    /// Smallest norm. Infinite if there is none.
    pub min: f64,
    /// Largest norm. 0 if there is none.
    pub max: f64,
    sum: f64,
    /// By logarithm of the norm.
    bins: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormBin {
    pub from: f64,
    /// One past the largest norm of the bin.
    pub until: f64,
    pub rows: u64,
}

impl Default for NormStatistics {
    fn default() -> Self {
        Self { rows: 0, zero: 0, not_finite: 0, min: f64::INFINITY, max: 0.0, sum: 0.0, bins: vec![0; RANGE.len()] }
    }
}

impl NormStatistics {
    pub fn add_row(&mut self, weights: &[f32]) {
        self.rows += 1;
        let norm = weights.iter().map(|weight| f64::from(*weight).powi(2)).sum::<f64>().sqrt();
        if !norm.is_finite() {
            self.not_finite += 1;
            return;
        }
        self.sum += norm;
        self.min = self.min.min(norm);
        self.max = self.max.max(norm);
        if norm == 0.0 {
            self.zero += 1;
        } else {
            self.bins[bin_of(norm)] += 1;
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.rows += other.rows;
        self.zero += other.zero;
        self.not_finite += other.not_finite;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        // Both have the bins of `RANGE`.
        self.bins.iter_mut().zip_eq(&other.bins).for_each(|(bin, other)| *bin += other);
    }

    /// Mean of the finite norms. `None` if there is none.
    pub fn mean(&self) -> Option<f64> {
        let finite = self.rows - self.not_finite;
        (finite > 0).then(|| self.sum / finite as f64)
    }

    /// The histogram from the smallest norm to the largest, with at most `most` bins of equal ratio.
    pub fn histogram(&self, most: usize) -> Vec<NormBin> {
        let filled = |bin: &&usize| self.bins[**bin] > 0;
        let all: Vec<usize> = (0..self.bins.len()).collect();
        let (Some(first), Some(last)) = (all.iter().find(filled), all.iter().rfind(filled)) else { return Vec::new() };
        let size = (last - first + 1).div_ceil(most.max(1));
        let bin = |bins: &[usize]| {
            let (from, until) = (lower_end(bins[0]), lower_end(bins[0] + size));
            NormBin { from, until, rows: bins.iter().map(|bin| self.bins[*bin]).sum() }
        };
        all[*first..=*last].chunks(size).map(bin).collect()
    }
}

fn bin_of(norm: f64) -> usize {
    let step = (norm.log2() * f64::from(STEPS)).floor().clamp(f64::from(RANGE.start), f64::from(RANGE.end - 1));
    (step as i32 - RANGE.start) as usize
}

/// The smallest norm of a bin.
fn lower_end(bin: usize) -> f64 {
    (f64::from(RANGE.start + bin as i32) / f64::from(STEPS)).exp2()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotPart {
    /// `weights`, or the optimiser's name of the state.
    pub name: &'static str,
    pub element: WeightType,
    pub values: usize,
    pub words: Range<usize>,
}

/// The parts of a table's slots, weights first. The state of an unknown layout is one part, `state`.
pub fn slot_parts(table: &TableHeader) -> Vec<SlotPart> {
    // The reader refuses a header with an unknown number format.
    let element = table.weight_type().unwrap_or_default();
    let weights =
        SlotPart { name: "weights", element, values: table.dim, words: 0..element.words(table.dim).min(table.width) };
    let mut start = weights.words.end;
    let mut parts = vec![weights];
    for (name, values) in state_parts(&table.state, table.dim, table.width - start) {
        parts.push(SlotPart { name, element: WeightType::F32, values, words: start..start + values });
        start += values;
    }
    parts
}

/// The values of one part of one slot. Narrow values are exact in f32.
pub fn decode_part(part: &SlotPart, slot: &[u32], into: &mut Vec<f32>) {
    into.resize(part.values, 0.0);
    part.element.decode(&slot[part.words.clone()], into);
}

/// The parts of the state in each layout of `zagros_table::optimizer`. Empty if the size does not match the layout.
fn state_parts(layout: &str, dim: usize, words: usize) -> Vec<(&'static str, usize)> {
    let known: &[(&'static str, usize)] = match layout {
        "sgd" => &[],
        "momentum" => &[("velocity", dim)],
        "adagrad" => &[("sum_of_squares", dim)],
        "adagrad-row" => &[("sum_of_squares", 1)],
        "adam" => &[("first_moment", dim), ("second_moment", dim), ("beta_powers", 2)],
        "ftrl" => &[("z", dim), ("n", dim)],
        "dense-sgd" => &[("updates", 2)],
        "dense-momentum" => &[("velocity", dim), ("updates", 2)],
        "dense-adagrad" => &[("squares", dim), ("updates", 2)],
        "dense-adam" => &[("first_moment", dim), ("second_moment", dim), ("updates", 2)],
        _ => &[("state", words)],
    };
    if known.iter().map(|part| part.1).sum::<usize>() == words { known.to_vec() } else { vec![("state", words)] }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use proptest::prelude::*;
    use zagros_table::{Optimizer, TableConfig};

    use super::*;

    fn norms(rows: &[Vec<f32>]) -> NormStatistics {
        let mut norms = NormStatistics::default();
        rows.iter().for_each(|row| norms.add_row(row));
        norms
    }

    #[test]
    fn measures_are_those_of_the_weights() {
        let norms = norms(&[vec![3.0, 4.0], vec![0.0, 0.0], vec![0.0, 1.0], vec![f32::NAN, 1.0]]);
        assert_eq!((norms.rows, norms.zero, norms.not_finite), (4, 1, 1));
        assert_eq!((norms.min, norms.mean(), norms.max), (0.0, Some(2.0), 5.0));
    }

    #[test]
    fn nothing_has_no_mean_and_no_bins() {
        assert_eq!((NormStatistics::default().mean(), NormStatistics::default().histogram(8)), (None, vec![]));
        assert_eq!(norms(&[vec![0.0]]).histogram(8), vec![]);
    }

    #[test]
    fn the_smallest_and_the_largest_numbers_have_a_bin() {
        let norms = norms(&[vec![f32::from_bits(1)], vec![f32::MAX, f32::MAX]]);
        assert_eq!(norms.histogram(1000).iter().map(|bin| bin.rows).sum::<u64>(), 2);
    }

    proptest! {
        #[test]
        fn each_row_is_in_its_bin_and_merged_statistics_have_the_rows_of_both(
            rows in prop::collection::vec(prop::collection::vec(1e-6_f32..1e6, 3), 1..60),
            most in 1_usize..20,
            half in 0_usize..60,
        ) {
            let all = norms(&rows);
            let bins = all.histogram(most);
            prop_assert!(bins.len() <= most);
            prop_assert_eq!(bins.iter().map(|bin| bin.rows).sum::<u64>(), rows.len() as u64);
            let slack = 1.0 + 1e-9;
            prop_assert!(bins[0].from <= all.min * slack && all.max <= bins[bins.len() - 1].until * slack);
            for pair in bins.windows(2) {
                prop_assert_eq!(pair[0].until, pair[1].from);
            }
            let (left, right) = rows.split_at(half.min(rows.len()));
            let mut merged = norms(left);
            merged.merge(&norms(right));
            prop_assert_eq!((merged.rows, merged.min, merged.max), (all.rows, all.min, all.max));
            prop_assert_eq!(merged.histogram(most), bins);
        }
    }

    fn header(element: &str, dim: usize, width: usize, state: &str) -> TableHeader {
        let (element, state) = (element.to_owned(), state.to_owned());
        TableHeader { dim, element, width, state, ..TableHeader::default() }
    }

    fn numbers(table: &TableHeader, slot: &[u32]) -> Vec<(&'static str, Vec<f32>)> {
        let mut values = Vec::new();
        let mut number = |part: &SlotPart| {
            decode_part(part, slot, &mut values);
            (part.name, values.clone())
        };
        slot_parts(table).iter().map(&mut number).collect()
    }

    #[test]
    fn narrow_weights_are_unpacked_and_their_padding_is_not_shown() {
        let half = |value: f32| u32::from(f16::from_f32(value).to_bits());
        let slot = [half(1.5) | half(-2.0) << 16, half(0.25) | 0xffff_0000, 4.0_f32.to_bits()];
        let expected = vec![("weights", vec![1.5, -2.0, 0.25]), ("sum_of_squares", vec![4.0])];
        assert_eq!(numbers(&header("f16", 3, 3, "adagrad-row"), &slot), expected);
        let brain = |value: f32| value.to_bits() >> 16;
        let slot = [brain(1.5) | brain(-2.0) << 16];
        assert_eq!(numbers(&header("bf16", 2, 1, "sgd"), &slot), [("weights", vec![1.5, -2.0])]);
        let slot = [0.5_f32.to_bits(), 0x7f02_ff81, 0xffff_ff04, 4.0_f32.to_bits()];
        let expected = vec![("weights", vec![-63.5, -0.5, 1.0, 63.5, 2.0]), ("sum_of_squares", vec![4.0])];
        assert_eq!(numbers(&header("int8", 5, 4, "adagrad-row"), &slot), expected);
    }

    #[test]
    fn every_layout_of_the_table_is_known() {
        let (lr, l2, epsilon) = (0.1, 0.0, 1e-8);
        let optimizers = [
            Optimizer::Sgd { lr, momentum: 0.0, l2 },
            Optimizer::Sgd { lr, momentum: 0.9, l2 },
            Optimizer::Adagrad { lr, epsilon, initial_accumulator: 0.0, l2 },
            Optimizer::RowAdagrad { lr, epsilon, initial_accumulator: 0.0, l2 },
            Optimizer::Adam { lr, beta1: 0.9, beta2: 0.99, epsilon, l2 },
            Optimizer::Ftrl { lr, beta: 1.0, l1: 0.0, l2 },
        ];
        for optimizer in optimizers {
            let width = TableConfig { dim: 5, optimizer, ..TableConfig::default() }.stride();
            let parts = slot_parts(&header("f32", 5, width, optimizer.state_layout()));
            assert!(parts.iter().all(|part| part.name != "state"), "{parts:?}");
            assert_eq!(parts.last().map(|part| part.words.end), Some(width));
        }
    }

    #[test]
    fn a_layout_of_a_later_release_is_one_part() {
        assert_eq!(numbers(&header("f32", 1, 3, "lion"), &[0; 3])[1], ("state", vec![0.0; 2]));
        assert_eq!(numbers(&header("f32", 1, 4, "adagrad"), &[0; 4])[1].0, "state");
    }
}
