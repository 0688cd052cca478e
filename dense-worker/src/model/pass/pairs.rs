//! DLRM's dot products of pairs, forward and backward, as loops of our own.
//!
//! Of V vectors there are V(V−1)/2 pairs, the strict lower triangle row by row: (1,0), (2,0), (2,1), …
//! libtorch's way makes all V² products, selects, and scatters back; here only what is needed is computed,
//! sample by sample, in buffers that stay in cache. Every sum is taken in one fixed order, whatever the
//! processor's vectors are.

use super::wide::wide;

/// Floats that are computed side by side.
const LANES: usize = 8;

/// Shapes, and memory for one sample.
#[derive(Clone, Debug)]
pub(super) struct Pairs {
    /// V.
    vectors: usize,
    /// D.
    dim: usize,
    /// `[D, V]` transposed, V rounded up to whole lanes.
    transposed: Vec<[f32; LANES]>,
    /// `[V, D]`, D rounded up to whole lanes.
    values: Vec<[f32; LANES]>,
    /// As `values`.
    gradients: Vec<[f32; LANES]>,
}

/// Where each sample's products lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Floats from sample to sample.
    pub(super) stride: usize,
    /// Of the first product within a sample's.
    pub(super) offset: usize,
}

impl Pairs {
    /// For V vectors of D values.
    pub(super) fn new(vectors: usize, dim: usize) -> Self {
        let by_vector = vectors * dim.div_ceil(LANES);
        Self {
            vectors,
            dim,
            transposed: vec![[0.0; LANES]; dim * vectors.div_ceil(LANES)],
            values: vec![[0.0; LANES]; by_vector],
            gradients: vec![[0.0; LANES]; by_vector],
        }
    }

    /// V(V−1)/2.
    pub(super) fn count(&self) -> usize {
        self.vectors * self.vectors.saturating_sub(1) / 2
    }

    /// Writes each sample's products. `dense` is `[batch, D]`, or empty when there is no such vector, `embeddings`
    /// `[batch, (V or V−1)·D]`; `out` is `[batch, stride]`, written from the offset on.
    pub(super) fn forward(&mut self, dense: &[f32], embeddings: &[f32], out: &mut [f32], place: Place) {
        let count = self.count();
        let samples = Samples::new(self, dense, embeddings);
        wide(
            #[inline(always)]
            || {
                for (index, out) in out.chunks_exact_mut(place.stride).enumerate() {
                    let (dense, embeddings) = samples.at(index);
                    self.transpose(dense, embeddings);
                    self.products(dense, embeddings, &mut out[place.offset..][..count]);
                }
            },
        );
    }

    /// The derivative of [`Self::forward`]: with `out` of `[batch, stride]` being d loss / d products in the same
    /// places, *adds* d loss / d dense to `d_dense` and *writes* d loss / d embeddings to `d_embeddings`.
    pub(super) fn backward(
        &mut self,
        (dense, embeddings): (&[f32], &[f32]),
        (out, place): (&[f32], Place),
        d_dense: &mut [f32],
        d_embeddings: &mut [f32],
    ) {
        let count = self.count();
        let samples = Samples::new(self, dense, embeddings);
        wide(
            #[inline(always)]
            || {
                for (index, out) in out.chunks_exact(place.stride).enumerate() {
                    let (dense, embeddings) = samples.at(index);
                    self.pad(dense, embeddings);
                    self.derive(&out[place.offset..][..count]);
                    let (d_dense, d_embeddings) = samples.at_mut(d_dense, d_embeddings, index);
                    self.give(d_dense, d_embeddings);
                }
            },
        );
    }

    #[inline(always)]
    fn transpose(&mut self, dense: &[f32], embeddings: &[f32]) {
        let blocks = self.vectors.div_ceil(LANES);
        let vectors = dense.chunks_exact(self.dim).chain(embeddings.chunks_exact(self.dim));
        let flat = self.transposed.as_flattened_mut();
        for (vector, values) in vectors.enumerate() {
            for (d, value) in values.iter().enumerate() {
                flat[d * blocks * LANES + vector] = *value;
            }
        }
    }

    /// Row after row of the triangle, as many columns at a time as there are lanes.
    #[inline(always)]
    fn products(&self, dense: &[f32], embeddings: &[f32], out: &mut [f32]) {
        let blocks = self.vectors.div_ceil(LANES);
        let vectors = dense.chunks_exact(self.dim).chain(embeddings.chunks_exact(self.dim));
        let mut out = out;
        for (row, values) in vectors.enumerate() {
            let (now, later) = out.split_at_mut(row);
            for (block, now) in now.chunks_mut(LANES).enumerate() {
                let mut sums = [0.0; LANES];
                for (d, value) in values.iter().enumerate() {
                    let others = &self.transposed[d * blocks + block];
                    for lane in 0..LANES {
                        sums[lane] += value * others[lane];
                    }
                }
                now.copy_from_slice(&sums[..now.len()]);
            }
            out = later;
        }
    }

    #[inline(always)]
    fn pad(&mut self, dense: &[f32], embeddings: &[f32]) {
        let blocks = self.dim.div_ceil(LANES);
        let vectors = dense.chunks_exact(self.dim).chain(embeddings.chunks_exact(self.dim));
        for (values, into) in vectors.zip(self.values.chunks_exact_mut(blocks)) {
            into.as_flattened_mut()[..self.dim].copy_from_slice(values);
        }
    }

    /// `gradients` of every vector: each pair's slope times the other vector.
    #[inline(always)]
    fn derive(&mut self, slopes: &[f32]) {
        let blocks = self.dim.div_ceil(LANES);
        self.gradients.fill([0.0; LANES]);
        let mut slopes = slopes;
        for row in 0..self.vectors {
            let (now, later) = slopes.split_at(row);
            let (before, own) = self.gradients.split_at_mut(row * blocks);
            for block in 0..blocks {
                let value = self.values[row * blocks + block];
                let mut sums = [0.0; LANES];
                for (column, slope) in now.iter().enumerate() {
                    let other = &self.values[column * blocks + block];
                    let gradient = &mut before[column * blocks + block];
                    for lane in 0..LANES {
                        sums[lane] += slope * other[lane];
                        gradient[lane] += slope * value[lane];
                    }
                }
                own[block] = sums;
            }
            slopes = later;
        }
    }

    #[inline(always)]
    fn give(&self, d_dense: &mut [f32], d_embeddings: &mut [f32]) {
        let mut gradients = self.gradients.chunks_exact(self.dim.div_ceil(LANES)).map(<[_]>::as_flattened);
        if !d_dense.is_empty() {
            let gradient = gradients.next().unwrap_or_default();
            d_dense.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
        }
        for (into, gradient) in d_embeddings.chunks_exact_mut(self.dim).zip(gradients) {
            into.copy_from_slice(&gradient[..self.dim]);
        }
    }
}

/// Cuts the two inputs of a batch, of which the first may be empty, into samples.
#[derive(Clone, Copy)]
struct Samples<'a> {
    dense: &'a [f32],
    embeddings: &'a [f32],
    /// Values of a sample in each.
    widths: (usize, usize),
}

impl<'a> Samples<'a> {
    fn new(pairs: &Pairs, dense: &'a [f32], embeddings: &'a [f32]) -> Self {
        let of_dense = if dense.is_empty() { 0 } else { pairs.dim };
        Self { dense, embeddings, widths: (of_dense, pairs.vectors * pairs.dim - of_dense) }
    }

    #[inline(always)]
    fn at(&self, index: usize) -> (&'a [f32], &'a [f32]) {
        let (dense, embeddings) = self.widths;
        (&self.dense[index * dense..][..dense], &self.embeddings[index * embeddings..][..embeddings])
    }

    #[inline(always)]
    fn at_mut<'b>(&self, dense: &'b mut [f32], embeddings: &'b mut [f32], at: usize) -> (&'b mut [f32], &'b mut [f32]) {
        let widths = self.widths;
        (&mut dense[at * widths.0..][..widths.0], &mut embeddings[at * widths.1..][..widths.1])
    }
}
