//! The end of FinalMLP (Mao et al. 2023, equation 8), forward and backward, head by head and output by output.
//!
//! ```text
//! forward    logit = b + w₁·o₁ + w₂·o₂ + Σ_h ⟨l_h, o₂ʰ⟩              l_h = W_hᵀ·o₁ʰ
//! backward   do₂ʰ += g·l_h    dl_h = g·o₂ʰ    dW_h += o₁ʰ·dl_hᵀ    do₁ʰ += W_h·dl_h
//! ```

use zagros_zip::ZipEq;

use super::product::LayerProducts;
use super::{BlockStep, BlockValues, ReadValue, StepBuilder, StepChunk};
use crate::matrix::{Matrix, View, ViewMut};
use crate::{StepError, StepResult};

#[derive(Debug)]
pub(super) struct FusionStep {
    /// o₁ and o₂.
    streams: [ReadValue; 2],
    of_first: FusionTerm,
    of_second: FusionTerm,
    /// The layer of W, `[outputs · heads, a/heads, b/heads]`.
    products: usize,
    heads: usize,
    /// Values of a head: of o₁, and of o₂.
    parts: [usize; 2],
    /// l of each output and head, `[rows, b/heads]`.
    left: Vec<Matrix>,
    d_left: Matrix,
    term: Matrix,
}

#[derive(Debug)]
struct FusionTerm {
    layer: usize,
    products: LayerProducts,
}

impl FusionStep {
    /// Takes the next three layers.
    pub(super) fn new(
        streams: [ReadValue; 2],
        heads: usize,
        outputs: usize,
        builder: &mut StepBuilder<'_>,
    ) -> StepResult<Self> {
        let rows = builder.form.rows;
        let [a, b] = streams.map(|stream| stream.value.columns());
        let mut term = |inputs| {
            let layer = builder.next_layer();
            Ok::<_, StepError>(FusionTerm { layer, products: LayerProducts::new([outputs, inputs], false, builder)? })
        };
        let (of_first, of_second) = (term(a)?, term(b)?);
        let parts = [a / heads, b / heads];
        let matrix = |columns| Matrix::dense(rows, columns);
        Ok(Self {
            streams,
            of_first,
            of_second,
            products: builder.next_layer(),
            heads,
            parts,
            left: (0..outputs * heads).map(|_| matrix(parts[1])).collect(),
            d_left: matrix(parts[1]),
            term: matrix(outputs),
        })
    }

    /// W of an output and a head, `[a/heads, b/heads]`.
    fn head<'w>(&self, weights: &'w [f32], place: usize) -> View<'w> {
        let [a, b] = self.parts;
        View::dense(&weights[place * a * b..][..a * b], (a, b))
    }
}

impl BlockStep for FusionStep {
    fn forward(&mut self, before: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, products) = (chunk.rows, chunk.products());
        let [first, second] = self.streams.map(|stream| stream.view(before, rows));
        let (layer, outputs) = (self.of_second.layer, own.output.columns);
        chunk.layers.begin_forward(layer)?;
        self.of_second.products.forward(chunk.layers.weights(layer), second, self.term.view_mut(rows), products)?;
        chunk.layers.end_forward(layer)?;
        let layer = self.of_first.layer;
        chunk.layers.begin_forward(layer)?;
        let (weight, bias) = chunk.layers.weights(layer).split_at(self.of_first.products.weight_count());
        self.of_first.products.forward(weight, first, own.output.view_mut(rows), products)?;
        let terms = self.term.values(rows).chunks_exact(outputs);
        for (logits, terms) in own.output.values_mut(rows).chunks_exact_mut(outputs).zip_eq(terms) {
            let terms = terms.iter().zip_eq(bias);
            logits.iter_mut().zip_eq(terms).for_each(|(logit, (term, bias))| *logit += term + bias);
        }
        chunk.layers.end_forward(layer)?;
        chunk.layers.begin_forward(self.products)?;
        let [a, b] = self.parts;
        for place in 0..self.left.len() {
            let (output, head) = (place / self.heads, place % self.heads);
            let matrix = self.head(chunk.layers.weights(self.products), place);
            let left = &mut self.left[place];
            products.multiply_rows(first.narrow_columns(head * a, a), matrix, left.view_mut(rows), false)?;
            let samples = left.values(rows).chunks_exact(b).zip_eq(second.values.chunks_exact(b * self.heads));
            for (logits, (left, second)) in own.output.values_mut(rows).chunks_exact_mut(outputs).zip_eq(samples) {
                let second = &second[head * b..][..b];
                logits[output] += left.iter().zip_eq(second).map(|(a, b)| a * b).sum::<f32>();
            }
        }
        chunk.layers.end_forward(self.products)
    }

    fn backward(&mut self, before: &mut [BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, products) = (chunk.rows, chunk.products());
        let slopes = own.slopes.view(rows);
        for (stream, term) in self.streams.iter().zip_eq([&mut self.of_first, &mut self.of_second]) {
            chunk.layers.begin_backward(term.layer)?;
            let weight = &chunk.layers.weights(term.layer)[..term.products.weight_count()];
            if let Some((d_stream, adds)) = stream.slopes(before, rows) {
                term.products.input_gradient(weight, slopes, d_stream, adds, products)?;
            }
        }
        chunk.layers.begin_backward(self.products)?;
        for place in 0..self.left.len() {
            self.head_backward(place, before, own, chunk)?;
        }
        chunk.note_final(self.products);
        chunk.layers.end_backward(self.products)?;
        let [first, second] = self.streams.map(|stream| stream.view(before, rows));
        let FusionTerm { layer, products: term } = &mut self.of_second;
        term.weight_gradient(slopes, second, chunk.layers.gradients(*layer).1, products)?;
        chunk.note_final(*layer);
        chunk.layers.end_backward(*layer)?;
        let FusionTerm { layer, products: term } = &mut self.of_first;
        let (d_weight, d_bias) = chunk.layers.gradients(*layer).1.split_at_mut(term.weight_count());
        term.weight_gradient(slopes, first, d_weight, products)?;
        if !chunk.earlier {
            d_bias.fill(0.0);
        }
        for slopes in own.slopes.values(rows).chunks_exact(d_bias.len()) {
            d_bias.iter_mut().zip_eq(slopes).for_each(|(sum, slope)| *sum += slope);
        }
        chunk.note_final(*layer);
        chunk.layers.end_backward(*layer)
    }
}

impl FusionStep {
    fn head_backward(
        &mut self,
        place: usize,
        before: &mut [BlockValues],
        own: &BlockValues,
        chunk: &mut StepChunk<'_>,
    ) -> StepResult {
        let (rows, products, heads, [a, b]) = (chunk.rows, chunk.products(), self.heads, self.parts);
        let (output, head, outputs) = (place / heads, place % heads, own.slopes.columns);
        let (left, d_left) = (self.left[place].values(rows), self.d_left.values_mut(rows));
        let slopes = own.slopes.values(rows).chunks_exact(outputs).map(|slopes| slopes[output]);
        self.streams[1].with_slopes(before, rows, |second, d_second| {
            let Some((d_second, _)) = d_second else { return };
            let read = second.values.chunks_exact(b * heads).zip_eq(left.chunks_exact(b));
            let made = d_left.chunks_exact_mut(b).zip_eq(d_second.values.chunks_exact_mut(b * heads));
            for (slope, ((second, left), (d_left, d_second))) in slopes.zip_eq(read.zip_eq(made)) {
                let (second, d_second) = (&second[head * b..][..b], &mut d_second[head * b..][..b]);
                d_left.iter_mut().zip_eq(second).for_each(|(to, value)| *to = slope * value);
                d_second.iter_mut().zip_eq(left).for_each(|(sum, value)| *sum += slope * value);
            }
        });
        let d_left = self.d_left.view(rows);
        let first = self.streams[0].view(before, rows).narrow_columns(head * a, a);
        let d_matrix = &mut chunk.layers.gradients(self.products).1[place * a * b..][..a * b];
        products.add_gradient(first, d_left, ViewMut::dense(d_matrix, (a, b)))?;
        let transposed = self.head(chunk.layers.weights(self.products), place).transposed();
        match self.streams[0].slopes(before, rows) {
            Some((d_first, _)) => products.multiply_rows(d_left, transposed, d_first.narrow_columns(head * a, a), true),
            None => Ok(()),
        }
    }
}
