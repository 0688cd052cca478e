//! DLRM's interactions: the dot products of all pairs of vectors, forward and backward, as loops of this crate.
//!
//! V vectors have V(V−1)/2 pairs, the strict lower triangle row by row: (1,0), (2,0), (2,1), … With libtorch, all V²
//! products are computed, selected and scattered back. Here only the needed ones are computed, sample by sample, in buffers
//! that stay in cache. Every sum has one fixed order, whatever the width of the processor's vectors: each lane has its own
//! sum.

use pulp::{Arch, Simd, WithSimd};
use zagros_zip::ZipEq;

use super::join::put_rows;
use super::{BlockStep, BlockValues, ReadValue, SlopeUse, StepChunk, ViewMut};
use crate::StepResult;

/// Floats of the widest vectors. Rows of the buffers are multiples of it.
const LANES: usize = 16;

/// Has memory for one sample.
#[derive(Clone, Debug)]
struct PairProducts {
    vectors: usize,
    dim: usize,
    /// `[D, V]` transposed, V rounded up.
    transposed: Vec<f32>,
    /// The products, with space for the lanes beyond the last.
    products: Vec<f32>,
    /// `[V, D]`, D rounded up.
    values: Vec<f32>,
    /// `[V, V]`, symmetric, with a zero diagonal.
    slopes: Vec<f32>,
    /// As `values`.
    gradients: Vec<f32>,
}

#[derive(Clone, Copy, Debug)]
struct PairsPlace {
    /// Floats from one sample to the next.
    pub(super) stride: usize,
    /// Index of the first product of a sample.
    pub(super) offset: usize,
}

impl PairProducts {
    pub(super) fn new(vectors: usize, dim: usize) -> Self {
        let (columns, width) = (vectors.next_multiple_of(LANES), dim.next_multiple_of(LANES));
        Self {
            vectors,
            dim,
            transposed: vec![0.0; dim * columns],
            products: vec![0.0; vectors * vectors.saturating_sub(1) / 2 + LANES],
            values: vec![0.0; vectors * width],
            slopes: vec![0.0; vectors * vectors],
            gradients: vec![0.0; vectors * width],
        }
    }

    /// V(V−1)/2.
    pub(super) fn count(&self) -> usize {
        self.vectors * self.vectors.saturating_sub(1) / 2
    }

    /// Writes each sample's products. `dense` is `[batch, D]`, or empty if there is no such vector. `embeddings` is
    /// `[batch, (V or V−1)·D]`. `out` is `[batch, stride]`, and is written from the offset on.
    pub(super) fn forward(&mut self, dense: &[f32], embeddings: &[f32], out: &mut [f32], place: PairsPlace) {
        let samples = PairSamples::new(self, dense, embeddings);
        Arch::new().dispatch(PairsForward { pairs: self, samples, out, place });
    }

    /// The derivative of [`Self::forward`]. `out` of `[batch, stride]` is d loss / d products at the same positions. *Adds*
    /// d loss / d dense to `d_dense` and *writes* d loss / d embeddings to `d_embeddings`.
    pub(super) fn backward(
        &mut self,
        (dense, embeddings): (&[f32], &[f32]),
        (out, place): (&[f32], PairsPlace),
        d_dense: &mut [f32],
        d_embeddings: &mut [f32],
    ) {
        let samples = PairSamples::new(self, dense, embeddings);
        Arch::new().dispatch(PairsBackward { pairs: self, samples, out, place, d_dense, d_embeddings });
    }

    #[inline(always)]
    fn transpose(&mut self, dense: &[f32], embeddings: &[f32]) {
        let columns = self.vectors.next_multiple_of(LANES);
        let vectors = dense.chunks_exact(self.dim).chain(embeddings.chunks_exact(self.dim));
        for (vector, values) in vectors.enumerate() {
            let places = self.transposed[vector..].iter_mut().step_by(columns);
            values.iter().zip_eq(places).for_each(|(value, place)| *place = *value);
        }
    }

    /// Row after row of the triangle. Lanes beyond a row's end write into the next row, which is written later.
    #[inline(always)]
    fn multiply<S: Simd>(&mut self, simd: S, dense: &[f32], embeddings: &[f32]) {
        let columns = self.vectors.next_multiple_of(LANES);
        let vectors = dense.chunks_exact(self.dim).chain(embeddings.chunks_exact(self.dim));
        let mut first = 0;
        for (row, values) in vectors.enumerate() {
            for block in (0..row).step_by(S::F32_LANES) {
                let mut sum = simd.splat_f32s(0.0);
                for (value, others) in values.iter().zip_eq(self.transposed.chunks_exact(columns)) {
                    let others = S::as_simd_f32s(&others[block..][..S::F32_LANES]).0[0];
                    sum = simd.add_f32s(sum, simd.mul_f32s(simd.splat_f32s(*value), others));
                }
                S::as_mut_simd_f32s(&mut self.products[first + block..][..S::F32_LANES]).0[0] = sum;
            }
            first += row;
        }
    }

    #[inline(always)]
    fn pad(&mut self, dense: &[f32], embeddings: &[f32]) {
        let width = self.dim.next_multiple_of(LANES);
        let (of_dense, of_embeddings) = self.values.split_at_mut(dense.len() / self.dim * width);
        for (vectors, rows) in [(dense, of_dense), (embeddings, of_embeddings)] {
            for (values, into) in vectors.chunks_exact(self.dim).zip_eq(rows.chunks_exact_mut(width)) {
                into[..self.dim].copy_from_slice(values);
            }
        }
    }

    #[inline(always)]
    fn mirror(&mut self, slopes: &[f32]) {
        let (mut next, vectors) = (0, self.vectors);
        for row in 0..vectors {
            for (column, slope) in slopes[next..][..row].iter().enumerate() {
                self.slopes[row * vectors + column] = *slope;
                self.slopes[column * vectors + row] = *slope;
            }
            next += row;
        }
    }

    /// `gradients` of every vector: each pair's slope times the other vector.
    #[inline(always)]
    fn derive<S: Simd>(&mut self, simd: S) {
        let width = self.dim.next_multiple_of(LANES);
        let rows = self.slopes.chunks_exact(self.vectors).zip_eq(self.gradients.chunks_exact_mut(width));
        for (slopes, gradient) in rows {
            for block in (0..width).step_by(LANES) {
                // As many sums as fill the widest vector, so that narrower vectors work on several at once.
                let (gradient, _) = S::as_mut_simd_f32s(&mut gradient[block..][..LANES]);
                gradient.fill(simd.splat_f32s(0.0));
                let mut sums = [simd.splat_f32s(0.0); LANES];
                let sums = &mut sums[..LANES / S::F32_LANES];
                for (slope, other) in slopes.iter().zip_eq(self.values.chunks_exact(width)) {
                    let slope = simd.splat_f32s(*slope);
                    let (other, _) = S::as_simd_f32s(&other[block..][..LANES]);
                    for (sum, other) in sums.iter_mut().zip_eq(other) {
                        *sum = simd.add_f32s(*sum, simd.mul_f32s(slope, *other));
                    }
                }
                gradient.copy_from_slice(sums);
            }
        }
    }

    #[inline(always)]
    fn give(&self, d_dense: &mut [f32], d_embeddings: &mut [f32]) {
        let mut gradients = self.gradients.chunks_exact(self.dim.next_multiple_of(LANES));
        if !d_dense.is_empty() {
            let gradient = gradients.next().unwrap_or_default();
            d_dense.iter_mut().zip_eq(&gradient[..self.dim]).for_each(|(sum, gradient)| *sum += gradient);
        }
        for (into, gradient) in d_embeddings.chunks_exact_mut(self.dim).zip_eq(gradients) {
            into.copy_from_slice(&gradient[..self.dim]);
        }
    }
}

struct PairsForward<'a> {
    pairs: &'a mut PairProducts,
    samples: PairSamples<'a>,
    out: &'a mut [f32],
    place: PairsPlace,
}

impl WithSimd for PairsForward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { pairs, samples, out, place } = self;
        let count = pairs.count();
        for (index, out) in out.chunks_exact_mut(place.stride).enumerate() {
            let (dense, embeddings) = samples.rows_at(index);
            pairs.transpose(dense, embeddings);
            pairs.multiply(simd, dense, embeddings);
            out[place.offset..][..count].copy_from_slice(&pairs.products[..count]);
        }
    }
}

struct PairsBackward<'a> {
    pairs: &'a mut PairProducts,
    samples: PairSamples<'a>,
    out: &'a [f32],
    place: PairsPlace,
    d_dense: &'a mut [f32],
    d_embeddings: &'a mut [f32],
}

impl WithSimd for PairsBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { pairs, samples, out, place, d_dense, d_embeddings } = self;
        let count = pairs.count();
        for (index, out) in out.chunks_exact(place.stride).enumerate() {
            let (dense, embeddings) = samples.rows_at(index);
            pairs.pad(dense, embeddings);
            pairs.mirror(&out[place.offset..][..count]);
            pairs.derive(simd);
            let (d_dense, d_embeddings) = samples.rows_at_mut(d_dense, d_embeddings, index);
            pairs.give(d_dense, d_embeddings);
        }
    }
}

/// Splits the two inputs of a batch into samples. The first input may be empty.
#[derive(Clone, Copy)]
struct PairSamples<'a> {
    dense: &'a [f32],
    embeddings: &'a [f32],
    /// Values of a sample in each.
    widths: (usize, usize),
}

impl<'a> PairSamples<'a> {
    fn new(pairs: &PairProducts, dense: &'a [f32], embeddings: &'a [f32]) -> Self {
        let of_dense = if dense.is_empty() { 0 } else { pairs.dim };
        Self { dense, embeddings, widths: (of_dense, pairs.vectors * pairs.dim - of_dense) }
    }

    #[inline(always)]
    fn rows_at(&self, index: usize) -> (&'a [f32], &'a [f32]) {
        let (dense, embeddings) = self.widths;
        (&self.dense[index * dense..][..dense], &self.embeddings[index * embeddings..][..embeddings])
    }

    #[inline(always)]
    fn rows_at_mut<'b>(
        &self,
        dense: &'b mut [f32],
        embeddings: &'b mut [f32],
        at: usize,
    ) -> (&'b mut [f32], &'b mut [f32]) {
        let widths = self.widths;
        (&mut dense[at * widths.0..][..widths.0], &mut embeddings[at * widths.1..][..widths.1])
    }
}

/// The dot products of all pairs of vectors, and the vector of the numeric values itself.
#[derive(Debug)]
pub(super) struct InteractionsStep {
    dense: Option<ReadValue>,
    pairs: PairProducts,
    dim: usize,
    vectors: SlopeUse,
}

impl InteractionsStep {
    /// So many vectors, with the dense one, of `dim` values.
    pub(super) fn new(dense: Option<ReadValue>, (count, dim): (usize, usize), vectors: SlopeUse) -> Self {
        Self { dense, pairs: PairProducts::new(count, dim), dim, vectors }
    }

    fn place(&self, own: &BlockValues) -> PairsPlace {
        PairsPlace { stride: own.output.stride, offset: own.output.columns - self.pairs.count() }
    }
}

impl BlockStep for InteractionsStep {
    fn forward(&mut self, before: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, place) = (chunk.rows, self.place(own));
        let dense = match &self.dense {
            Some(dense) => {
                let dense = dense.view(before, rows);
                put_rows(dense, own.output.view_mut(rows), false);
                dense.values
            }
            None => &[],
        };
        self.pairs.forward(dense, chunk.vectors, own.output.values_mut(rows), place);
        Ok(())
    }

    fn backward(&mut self, before: &mut [BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, place) = (chunk.rows, self.place(own));
        let slopes = own.slopes.values(rows);
        debug_assert!(self.vectors != SlopeUse::Added, "the pairs alone read whole vectors");
        let Some(dense) = &self.dense else {
            self.pairs.backward((&[], chunk.vectors), (slopes, place), &mut [], chunk.d_vectors);
            return Ok(());
        };
        let (dim, pairs) = (self.dim, &mut self.pairs);
        dense.with_slopes(before, rows, |dense, d_dense| {
            let Some((d_dense, adds)) = d_dense else { return };
            let d_dense = d_dense.values;
            put_rows(own.slopes.view(rows).narrow_columns(0, dim), ViewMut::dense(d_dense, (rows, dim)), adds);
            pairs.backward((dense.values, chunk.vectors), (slopes, place), d_dense, chunk.d_vectors);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg64Mcg;
    use zagros_zip::number_from;

    use super::*;

    proptest! {
        #[test]
        fn pairs_and_their_slopes_equal_the_definition(
            batch in 1_usize..4, vectors in 1_usize..20, dim in 1_usize..20, bottom: bool, extra in 0_usize..5, seed: u64,
        ) {
            let mut random = Pcg64Mcg::seed_from_u64(seed);
            let mut values = |count: usize| (0..count).map(|_| random.random_range(-1.0..1.0)).collect::<Vec<f32>>();
            let mut pairs = PairProducts::new(vectors, dim);
            let place = PairsPlace { stride: (pairs.count() + 2 * extra).max(1), offset: extra };
            let stride = place.stride;
            let of_dense = if bottom { dim } else { 0 };
            let (dense, embeddings) = (values(batch * of_dense), values(batch * (vectors * dim - of_dense)));
            let (mut out, slopes, before) = (vec![9.0; batch * stride], values(batch * stride), values(batch * of_dense));
            pairs.forward(&dense, &embeddings, &mut out, place);
            let (mut d_dense, mut d_embeddings) = (before.clone(), vec![f32::NAN; embeddings.len()]);
            pairs.backward((&dense, &embeddings), (&slopes, place), &mut d_dense, &mut d_embeddings);
            for sample in 0..batch {
                let of_sample = |values: &[f32]| values[sample * values.len() / batch..(sample + 1) * values.len() / batch].to_vec();
                let all = [of_sample(&dense), of_sample(&embeddings)].concat();
                let mut expected: Vec<f64> = [of_sample(&before), vec![0.0; vectors * dim - of_dense]].concat().into_iter().map(f64::from).collect();
                let first = sample * stride + extra;
                prop_assert!(out[sample * stride..first].iter().all(|value| *value == 9.0));
                let all_pairs = (0..vectors).flat_map(|row| (0..row).map(move |column| (row, column)));
                for (place, (row, column)) in number_from(first, all_pairs) {
                    let (a, b) = (&all[row * dim..][..dim], &all[column * dim..][..dim]);
                    let product: f64 = a.iter().zip_eq(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    prop_assert!((f64::from(out[place]) - product).abs() < 1e-5);
                    for d in 0..dim {
                        expected[row * dim + d] += f64::from(slopes[place]) * f64::from(b[d]);
                        expected[column * dim + d] += f64::from(slopes[place]) * f64::from(a[d]);
                    }
                }
                for (found, expected) in [of_sample(&d_dense), of_sample(&d_embeddings)].concat().into_iter().zip_eq(expected) {
                    prop_assert!((f64::from(found) - expected).abs() < 1e-5, "{} is not {}", found, expected);
                }
            }
        }
    }
}
