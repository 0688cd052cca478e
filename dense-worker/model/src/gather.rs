//! From the rows of ids to the input of the dense network: gather with pooling, and its transpose. Training and scoring use both.
//!
//! The input of a sample has its vectors, and after them its sequences:
//!
//! ```text
//! │ e₁ … e_F │ s₁ at position 1 … at position L₁, real positions │ s₂ … │
//! ```
//!
//! A sequence has a vector for each of its L positions and, as one more value, the number of positions that are real. The others
//! are padding: zeros whose gradients go nowhere. So a batch is one matrix of f32, whatever its features are.
//!
//! Hot path: no allocation per row, no I/O, no log.

use std::ops::Range;

use zagros_job::{Categorical, Job, Pooling, Sequence, Values};
use zagros_zip::ZipEq;

/// Where the vector of one feature is in a sample's row of `[batch, ΣD]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputColumn {
    pub table: usize,
    pub dim: usize,
    /// Index of its first value in the sample's row.
    pub offset: usize,
    pub form: VectorForm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorForm {
    /// One vector. The pooling is unused for single-valued features.
    Pooled(Pooling),
    /// A vector for each position, padding included, and after them the number of real positions.
    Sequence(Sequence),
}

impl InputColumn {
    pub const fn width(&self) -> usize {
        match self.form {
            VectorForm::Pooled(_) => self.dim,
            VectorForm::Sequence(sequence) => sequence.input_width(self.dim),
        }
    }
}

/// The columns of `[batch, ΣD]`: first the vectors, then the sequences, each in feature order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputColumns {
    pub features: Vec<InputColumn>,
    pub width: usize,
    /// The numeric inputs of each numeric feature, which lie side by side.
    pub numeric: Vec<Range<usize>>,
}

impl InputColumns {
    pub fn new(job: &Job) -> Self {
        let column = |feature: &Categorical| {
            let (table, dim) = (feature.table, job.tables[feature.table].dim);
            InputColumn { table, dim, offset: 0, form: vector_form(&feature.values) }
        };
        let mut features: Vec<InputColumn> = job.features.categorical.iter().map(column).collect();
        let mut width = 0;
        for sequences in [false, true] {
            for column in &mut features {
                if matches!(column.form, VectorForm::Sequence(_)) == sequences {
                    column.offset = width;
                    width += column.width();
                }
            }
        }
        let (mut numeric, mut end) = (Vec::new(), 0);
        for feature in &job.features.numeric {
            numeric.push(end..end + feature.input_count());
            end += feature.input_count();
        }
        Self { features, width, numeric }
    }

    /// Of each sequence the place of the number of its real positions, and how many positions it has.
    pub fn position_counts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.features.iter().filter_map(|column| match column.form {
            VectorForm::Pooled(_) => None,
            VectorForm::Sequence(sequence) => Some((column.offset + sequence.length * column.dim, sequence.length)),
        })
    }

    /// Inputs of all numeric features.
    pub fn numeric_inputs(&self) -> usize {
        self.numeric.last().map_or(0, |last| last.end)
    }
}

fn vector_form(values: &Values) -> VectorForm {
    match values {
        Values::One => VectorForm::Pooled(Pooling::Sum),
        Values::Many { pooling, .. } => VectorForm::Pooled(*pooling),
        Values::Sequence { sequence, .. } => VectorForm::Sequence(*sequence),
    }
}

/// The rows of one feature of a batch, as positions among the rows that were read for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowPositions<'a> {
    One(&'a [u32]),
    /// Any number of rows per sample, which are added up here.
    Bags {
        /// The row of each id.
        inverse: &'a [u32],
        /// Sample `i` has the ids from `offsets[i]` to `offsets[i + 1]`.
        offsets: &'a [u32],
    },
    /// Any number of rows per sample, which are added up here, each times its factor.
    Weighted {
        inverse: &'a [u32],
        /// As those of bags.
        offsets: &'a [u32],
        /// The factor of each id's row: the pooling is part of it.
        weights: &'a [f32],
    },
    /// One row per sample, which is the sum of the sample's rows.
    Sums {
        /// Position of the first sample's row. The rows of the others follow.
        first: u32,
        /// As those of bags: the number of rows in each sum.
        offsets: &'a [u32],
    },
}

impl<'a> RowPositions<'a> {
    /// Those of ids that are added up here: one per sample without offsets, weighted where there are weights.
    pub fn new(inverse: &'a [u32], offsets: Option<&'a [u32]>, weights: &'a [f32]) -> Self {
        match offsets {
            None => Self::One(inverse),
            Some(offsets) if weights.is_empty() => Self::Bags { inverse, offsets },
            Some(offsets) => Self::Weighted { inverse, offsets, weights },
        }
    }
}

/// Writes each sample's pooled vector, or its sequence, into its column of `out`, `[batch, width]` row-major.
/// `rows` are those read of the feature's table, `[rows, dim]`. An empty bag gives the zero vector, padding gives zeros.
pub fn gather(column: &InputColumn, width: usize, positions: RowPositions<'_>, rows: &[f32], out: &mut [f32]) {
    for (sample, slot) in out.chunks_exact_mut(width.max(1)).enumerate() {
        let into = &mut slot[column.offset..column.offset + column.width()];
        match (positions, column.form) {
            (RowPositions::One(inverse), _) => into.copy_from_slice(row(rows, inverse[sample], column.dim)),
            (RowPositions::Bags { inverse, offsets }, VectorForm::Pooled(pooling)) => {
                let bag = bag(inverse, offsets, sample);
                into.fill(0.0);
                bag.iter().for_each(|position| add(into, row(rows, *position, column.dim)));
                scale(into, share(bag.len(), pooling));
            }
            (RowPositions::Weighted { inverse, offsets, weights }, _) => {
                into.fill(0.0);
                for (position, weight) in weighted(inverse, offsets, weights, sample) {
                    add_scaled(into, row(rows, *position, column.dim), *weight);
                }
            }
            (RowPositions::Bags { inverse, offsets }, VectorForm::Sequence(sequence)) => {
                let bag = bag(inverse, offsets, sample);
                into.fill(0.0);
                let real = &mut into[real_values(&sequence, bag.len(), column.dim)];
                for (vector, position) in real.chunks_exact_mut(column.dim).zip_eq(bag) {
                    vector.copy_from_slice(row(rows, *position, column.dim));
                }
                into[sequence.length * column.dim] = bag.len() as f32;
            }
            (RowPositions::Sums { first, offsets }, _) => {
                into.copy_from_slice(row(rows, first + sample as u32, column.dim));
                scale(into, share_of(offsets, sample, column.form));
            }
        }
    }
}

/// The transpose of [`gather`]: adds each sample's gradient, `[batch, width]`, to the rows of its vector. `into` is
/// `[rows, dim]`. Samples are taken in order, so the sum is the same in every run. The gradients of padding go nowhere.
pub fn scatter_add(
    column: &InputColumn,
    width: usize,
    positions: RowPositions<'_>,
    gradients: &[f32],
    into: &mut [f32],
) {
    for (sample, slot) in gradients.chunks_exact(width.max(1)).enumerate() {
        let gradient = &slot[column.offset..column.offset + column.width()];
        match (positions, column.form) {
            (RowPositions::One(inverse), _) => add(row_mut(into, inverse[sample], column.dim), gradient),
            (RowPositions::Bags { inverse, offsets }, VectorForm::Pooled(pooling)) => {
                let bag = bag(inverse, offsets, sample);
                let share = share(bag.len(), pooling);
                for position in bag {
                    add_scaled(row_mut(into, *position, column.dim), gradient, share);
                }
            }
            (RowPositions::Weighted { inverse, offsets, weights }, _) => {
                for (position, weight) in weighted(inverse, offsets, weights, sample) {
                    add_scaled(row_mut(into, *position, column.dim), gradient, *weight);
                }
            }
            (RowPositions::Bags { inverse, offsets }, VectorForm::Sequence(sequence)) => {
                let bag = bag(inverse, offsets, sample);
                let real = &gradient[real_values(&sequence, bag.len(), column.dim)];
                for (vector, position) in real.chunks_exact(column.dim).zip_eq(bag) {
                    add(row_mut(into, *position, column.dim), vector);
                }
            }
            (RowPositions::Sums { first, offsets }, _) => {
                let share = share_of(offsets, sample, column.form);
                add_scaled(row_mut(into, first + sample as u32, column.dim), gradient, share);
            }
        }
    }
}

fn bag<'a>(inverse: &'a [u32], offsets: &[u32], sample: usize) -> &'a [u32] {
    &inverse[offsets[sample] as usize..offsets[sample + 1] as usize]
}

fn weighted<'a>(
    inverse: &'a [u32],
    offsets: &[u32],
    weights: &'a [f32],
    sample: usize,
) -> impl Iterator<Item = (&'a u32, &'a f32)> {
    bag(inverse, offsets, sample).iter().zip_eq(&weights[offsets[sample] as usize..offsets[sample + 1] as usize])
}

/// Where the vectors of `count` real positions are.
fn real_values(sequence: &Sequence, count: usize, dim: usize) -> Range<usize> {
    let start = sequence.first_position(count);
    start * dim..(start + count) * dim
}

fn share_of(offsets: &[u32], sample: usize, form: VectorForm) -> f32 {
    match form {
        VectorForm::Pooled(pooling) => share((offsets[sample + 1] - offsets[sample]) as usize, pooling),
        VectorForm::Sequence(_) => 1.0,
    }
}

fn share(bag: usize, pooling: Pooling) -> f32 {
    match pooling {
        Pooling::Sum => 1.0,
        Pooling::Mean => 1.0 / bag.max(1) as f32,
        Pooling::SqrtN => 1.0 / (bag.max(1) as f32).sqrt(),
    }
}

fn scale(values: &mut [f32], share: f32) {
    if share != 1.0 {
        values.iter_mut().for_each(|value| *value *= share);
    }
}

fn row(rows: &[f32], position: u32, dim: usize) -> &[f32] {
    let start = position as usize * dim;
    &rows[start..start + dim]
}

fn row_mut(rows: &mut [f32], position: u32, dim: usize) -> &mut [f32] {
    let start = position as usize * dim;
    &mut rows[start..start + dim]
}

/// Both slices have `dim` values, because the callers cut them so.
fn add(into: &mut [f32], values: &[f32]) {
    for (sum, value) in into.iter_mut().zip_eq(values) {
        *sum += value;
    }
}

fn add_scaled(into: &mut [f32], values: &[f32], scale: f32) {
    for (sum, value) in into.iter_mut().zip_eq(values) {
        *sum += value * scale;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_fakes::jobs::{ffnn, job, sequence};
    use zagros_job::PadSide;

    use super::*;

    /// The feature is between two others, so that a wrong offset shows.
    const OFFSET: usize = 2;

    #[derive(Clone, Debug)]
    struct KernelCase {
        column: InputColumn,
        pooling: Pooling,
        width: usize,
        bags: Vec<Vec<u32>>,
        rows: Vec<f32>,
    }

    impl KernelCase {
        /// Positions as in a batch. `single`: of a single-valued feature.
        fn positions(&self, single: bool) -> (Vec<u32>, Option<Vec<u32>>) {
            let lengths = self.bags.iter().scan(0, |end, bag| {
                *end += bag.len() as u32;
                Some(*end)
            });
            let offsets = std::iter::once(0).chain(lengths).collect();
            (self.bags.concat(), (!single).then_some(offsets))
        }

        fn share(&self, sample: usize) -> f32 {
            match self.pooling {
                Pooling::Sum => 1.0,
                Pooling::Mean => 1.0 / self.bags[sample].len() as f32,
                Pooling::SqrtN => 1.0 / (self.bags[sample].len() as f32).sqrt(),
            }
        }
    }

    fn case(bag: impl Strategy<Value = Vec<u32>> + Clone) -> impl Strategy<Value = KernelCase> {
        let pooling = prop_oneof![Just(Pooling::Sum), Just(Pooling::Mean), Just(Pooling::SqrtN)];
        let bags = prop::collection::vec(bag, 1..20);
        (1_usize..20, pooling, bags, prop::collection::vec(-4_i8..4, 8 * 20)).prop_map(
            |(dim, pooling, bags, values)| {
                let column = InputColumn { table: 0, dim, offset: OFFSET, form: VectorForm::Pooled(pooling) };
                let rows = values[..8 * dim].iter().map(|value| f32::from(*value)).collect();
                KernelCase { column, pooling, width: OFFSET + dim + 3, bags, rows }
            },
        )
    }

    fn check(case: &KernelCase, single: bool) -> Result<(), TestCaseError> {
        let (inverse, offsets) = case.positions(single);
        let positions = match &offsets {
            None => RowPositions::One(&inverse),
            Some(offsets) => RowPositions::Bags { inverse: &inverse, offsets },
        };
        let (dim, width) = (case.column.dim, case.width);
        let mut out = vec![f32::NAN; case.bags.len() * width];
        gather(&case.column, width, positions, &case.rows, &mut out);
        let mut scattered = vec![0.0; case.rows.len()];
        scatter_add(&case.column, width, positions, &out, &mut scattered);

        let mut naive = vec![0.0; case.rows.len()];
        for (sample, bag) in case.bags.iter().enumerate() {
            for d in 0..dim {
                let sum: f32 = bag.iter().map(|position| case.rows[*position as usize * dim + d]).sum();
                let pooled = out[sample * width + OFFSET + d];
                let expected = if bag.is_empty() { 0.0 } else { sum * case.share(sample) };
                prop_assert!((pooled - expected).abs() < 1e-4, "{} is not {}", pooled, expected);
                for position in bag {
                    naive[*position as usize * dim + d] += pooled * case.share(sample);
                }
            }
            prop_assert!(out[sample * width..sample * width + OFFSET].iter().all(|value| value.is_nan()));
            prop_assert!(out[sample * width + OFFSET + dim..(sample + 1) * width].iter().all(|value| value.is_nan()));
        }
        for index in 0..naive.len() {
            let (found, expected) = (scattered[index], naive[index]);
            prop_assert!((found - expected).abs() < 1e-3, "{} is not {}", found, expected);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn bags_equal_the_definition(case in case(prop::collection::vec(0_u32..8, 0..5))) {
            check(&case, false)?;
        }

        #[test]
        fn single_values_equal_the_definition(case in case((0_u32..8).prop_map(|position| vec![position]))) {
            check(&case, true)?;
        }
    }

    /// Values and gradients of PyTorch 2.11: `EmbeddingBag(mode="sum")` with `per_sample_weights`. It has no weighted mean, which is the
    /// sum over that of the weights.
    #[test]
    fn weighted_bags_equal_pytorchs() {
        let rows = [0.5, -1.0, 2.0, 0.25, -3.0, 1.5];
        let (inverse, offsets) = ([2, 0, 2, 1, 1], [0, 3, 3, 5]);
        let gradients = [1.0, 2.0, 5.0, 5.0, -1.0, 0.5];
        let cases = [
            (Pooling::Sum, [-0.5, -1.25, 0.0, 0.0, 6.0, 0.75], [2.0, 4.0, -3.0, 1.5, 0.5, 1.0]),
            (Pooling::Mean, [-0.2, -0.5, 0.0, 0.0, 2.0, 0.25], [0.8, 1.6, -1.0, 0.5, 0.2, 0.4]),
        ];
        for (pooling, vectors, row_gradients) in cases {
            let mut weights = [0.25, 2.0, 0.25, 1.0, 2.0];
            [0..3, 3..3, 3..5].into_iter().for_each(|bag| pooling.scale_weights(&mut weights[bag]));
            let column = InputColumn { table: 0, dim: 2, offset: 0, form: VectorForm::Pooled(pooling) };
            let positions = RowPositions::Weighted { inverse: &inverse, offsets: &offsets, weights: &weights };
            let (mut found, mut into) = ([9.0; 6], [0.0; 6]);
            gather(&column, 2, positions, &rows, &mut found);
            scatter_add(&column, 2, positions, &gradients, &mut into);
            for (found, expected) in [found, into].as_flattened().iter().zip_eq([vectors, row_gradients].as_flattened())
            {
                assert!((found - expected).abs() < 1e-6, "{pooling:?}: {found} is not {expected}");
            }
        }
    }

    #[test]
    fn sequences_lie_after_the_vectors_as_the_network_expects_them() {
        let mut job = job(1, &[4, 2, 3, 1], ffnn(&[]));
        sequence(&mut job, 1, 5, PadSide::Left);
        let columns = InputColumns::new(&job);
        assert_eq!(columns.features.iter().map(|column| column.offset).collect::<Vec<_>>(), [0, 8, 4, 7]);
        assert_eq!((columns.width, columns.features[1].width()), (8 + 5 * 2 + 1, 11));
        assert_eq!(columns.position_counts().collect::<Vec<_>>(), [(8 + 5 * 2, 5)]);
    }

    /// Two samples of a sequence of three positions between two other values: two real positions, and none.
    #[test]
    fn a_sequence_has_its_rows_in_order_and_zeros_elsewhere() {
        let rows = [1.0, 2.0, 3.0, 4.0];
        let positions = RowPositions::Bags { inverse: &[1, 0], offsets: &[0, 2, 2] };
        for (pad, real) in
            [(PadSide::Left, [0.0, 0.0, 3.0, 4.0, 1.0, 2.0]), (PadSide::Right, [3.0, 4.0, 1.0, 2.0, 0.0, 0.0])]
        {
            let sequence = Sequence { length: 3, keep: zagros_job::KeptEnd::Last, pad };
            let column = InputColumn { table: 0, dim: 2, offset: 1, form: VectorForm::Sequence(sequence) };
            let mut out = [9.0; 18];
            gather(&column, 9, positions, &rows, &mut out);
            let expected = [&[9.0][..], &real, &[2.0, 9.0], &[9.0], &[0.0; 7], &[9.0]].concat();
            assert_eq!(out[..], expected);
            let mut gradients: Vec<f32> = (0..18).map(|value| value as f32).collect();
            let mut into = [0.0; 4];
            scatter_add(&column, 9, positions, &gradients, &mut into);
            let first = if pad == PadSide::Left { 3.0 } else { 1.0 };
            assert_eq!(into, [first + 2.0, first + 3.0, first, first + 1.0]);
            // The gradients of padding, of the count and of other columns go nowhere.
            let start = first as usize;
            (0..18).filter(|index| !(start..start + 4).contains(index)).for_each(|index| gradients[index] = f32::NAN);
            let mut again = [0.0; 4];
            scatter_add(&column, 9, positions, &gradients, &mut again);
            assert_eq!(again, into);
        }
    }
}
