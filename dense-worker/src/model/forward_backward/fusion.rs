//! The end of FinalMLP (Mao et al. 2023, equation 8), forward and backward, head by head and output by output.
//!
//! ```text
//! forward    logit = b + w₁·o₁ + w₂·o₂ + Σ_h ⟨l_h, o₂ʰ⟩              l_h = W_hᵀ·o₁ʰ
//! backward   do₂ʰ += g·l_h    dl_h = g·o₂ʰ    dW_h += o₁ʰ·dl_hᵀ    do₁ʰ += W_h·dl_h
//! ```

use tch::Tensor;
use zagros_zip::ZipEq;

use super::ChunkProgress;
use super::blocks::SampleBlocks;
use super::layer::{LayerUse, LayerVariable, StepParts};
use super::product::LayerProducts;
use crate::model::networks::BilinearFusion;
use crate::model::weights::{Matrix, values, values_mut};
use crate::model::{ModelError, int};

#[derive(Debug)]
pub(super) struct FusionStep {
    of_first: FusionTerm,
    of_second: FusionTerm,
    /// `[outputs]`, the variable itself without autograd.
    bias: Tensor,
    d_bias: Tensor,
    present: LayerUse,
    /// W, `[outputs · heads, a/heads, b/heads]`, and its gradient.
    products: Tensor,
    d_products: Tensor,
    heads: usize,
    /// l of each output and head, `[chunk, b/heads]`.
    left: Vec<Matrix>,
    d_left: Matrix,
    logits: Matrix,
    d_logits: Matrix,
    term: Matrix,
}

#[derive(Debug)]
struct FusionTerm {
    present: LayerUse,
    products: LayerProducts,
    d_weight: Tensor,
}

impl FusionStep {
    /// Takes the next three layers of `parts`.
    pub(super) fn new(fusion: &BilinearFusion, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        let (weight, bias) = fusion.of_first.parts();
        let (outputs, heads) = (fusion.outputs, fusion.heads);
        let width = |weight: &Tensor| usize::try_from(weight.size()[1]).unwrap_or(0) / heads;
        let (a, b) = (width(weight), width(&fusion.of_second));
        let shape = [int(outputs * heads), int(a), int(b)];
        let (of_first, [weight, bias]) = parts.next_layer([weight, bias])?;
        let (of_second, [second]) = parts.next_layer([&fusion.of_second])?;
        let (present, [products]) = parts.layer_as([(&fusion.products, shape.to_vec())])?;
        let term = |present, LayerVariable { value, gradient }, width: usize| {
            let shape = [int(outputs), int(width * heads)];
            Ok::<_, ModelError>(FusionTerm {
                present,
                products: LayerProducts::new(value, shape, None, parts)?,
                d_weight: gradient,
            })
        };
        let matrix = |columns| Matrix::dense(parts.rows, columns);
        Ok(Self {
            of_first: term(of_first, weight, a)?,
            of_second: term(of_second, second, b)?,
            bias: bias.value,
            d_bias: bias.gradient,
            present,
            products: products.value,
            d_products: products.gradient,
            heads,
            left: (0..outputs * heads).map(|_| matrix(b)).collect::<Result<_, _>>()?,
            d_left: matrix(b)?,
            logits: matrix(outputs)?,
            d_logits: matrix(outputs)?,
            term: matrix(outputs)?,
        })
    }

    /// `[rows, outputs]`.
    pub(super) fn logits(&self, rows: usize) -> &[f32] {
        self.logits.values(rows)
    }

    pub(super) fn d_logits(&mut self, rows: usize) -> &mut [f32] {
        self.d_logits.values_mut(rows)
    }

    /// Forward of `[rows, a]` and `[rows, b]`, without space between rows.
    pub(super) fn forward(
        &mut self,
        [first, second]: [&Tensor; 2],
        rows: usize,
        by: SampleBlocks,
    ) -> Result<(), ModelError> {
        self.of_second.present.forward()?;
        self.of_second.products.forward(second, &mut self.term.rows(rows)?, by)?;
        self.of_second.present.forward_done()?;
        self.of_first.present.forward()?;
        self.of_first.products.forward(first, &mut self.logits.rows(rows)?, by)?;
        let (bias, outputs) = (values(&self.bias), self.logits.columns);
        let terms = self.term.values(rows).chunks_exact(outputs);
        for (logits, terms) in self.logits.values_mut(rows).chunks_exact_mut(outputs).zip_eq(terms) {
            let terms = terms.iter().zip_eq(bias);
            logits.iter_mut().zip_eq(terms).for_each(|(logit, (term, bias))| *logit += term + bias);
        }
        self.of_first.present.forward_done()?;
        self.present.forward()?;
        let (b, all) = (self.d_left.columns, values(second));
        for (place, left) in self.left.iter_mut().enumerate() {
            let (output, head) = (place / self.heads, place % self.heads);
            let matrix = self.products.f_select(0, int(place))?;
            by.for_each_block([&part(first, head, matrix.size()[0])?, &left.rows(rows)?], |[first, left], _| {
                let _ = first.f_mm_out(left, &matrix)?;
                Ok(())
            })?;
            let samples = left.values(rows).chunks_exact(b).zip_eq(all.chunks_exact(b * self.heads));
            for (logits, (left, second)) in self.logits.values_mut(rows).chunks_exact_mut(outputs).zip_eq(samples) {
                let second = &second[head * b..][..b];
                logits[output] += left.iter().zip_eq(second).map(|(a, b)| a * b).sum::<f32>();
            }
        }
        self.present.forward_done()
    }

    /// Backward from [`Self::d_logits`]: writes the slopes of both outputs.
    pub(super) fn backward(
        &mut self,
        [first, second]: &[Tensor; 2],
        [d_first, mut d_second]: [Tensor; 2],
        rows: usize,
        progress: &mut ChunkProgress<'_>,
    ) -> Result<(), ModelError> {
        let slopes = self.d_logits.rows(rows)?;
        self.of_first.present.backward()?;
        self.of_first.products.input_gradient(&slopes, &d_first, progress.blocks, false)?;
        self.of_second.present.backward()?;
        self.of_second.products.input_gradient(&slopes, &d_second, progress.blocks, false)?;
        self.present.backward()?;
        for place in 0..self.left.len() {
            self.head_backward(place, ([first, second], (&d_first, &mut d_second)), rows, progress)?;
        }
        progress.finished(self.d_products.numel());
        self.present.backward_done()?;
        let second_term = &mut self.of_second;
        second_term.products.weight_gradient(&slopes, second, &mut second_term.d_weight, progress)?;
        progress.finished(second_term.d_weight.numel());
        second_term.present.backward_done()?;
        let first_term = &mut self.of_first;
        first_term.products.weight_gradient(&slopes, first, &mut first_term.d_weight, progress)?;
        let d_bias = values_mut(&mut self.d_bias);
        if !progress.earlier {
            d_bias.fill(0.0);
        }
        for slopes in self.d_logits.values(rows).chunks_exact(d_bias.len()) {
            d_bias.iter_mut().zip_eq(slopes).for_each(|(sum, slope)| *sum += slope);
        }
        progress.finished(self.of_first.d_weight.numel() + self.d_bias.numel());
        self.of_first.present.backward_done()
    }

    fn head_backward(
        &mut self,
        place: usize,
        ([first, second], (d_first, d_second)): ([&Tensor; 2], (&Tensor, &mut Tensor)),
        rows: usize,
        progress: &ChunkProgress<'_>,
    ) -> Result<(), ModelError> {
        let (output, head, b, heads) = (place / self.heads, place % self.heads, self.d_left.columns, self.heads);
        let outputs = self.d_logits.columns;
        let slopes = self.d_logits.values(rows).chunks_exact(outputs).map(|slopes| slopes[output]);
        let read = values(second).chunks_exact(b * heads).zip_eq(self.left[place].values(rows).chunks_exact(b));
        let made = self.d_left.values_mut(rows).chunks_exact_mut(b);
        let made = made.zip_eq(values_mut(d_second).chunks_exact_mut(b * heads));
        for (slope, ((second, left), (d_left, d_second))) in slopes.zip_eq(read.zip_eq(made)) {
            let (second, d_second) = (&second[head * b..][..b], &mut d_second[head * b..][..b]);
            d_left.iter_mut().zip_eq(second).for_each(|(to, value)| *to = slope * value);
            d_second.iter_mut().zip_eq(left).for_each(|(sum, value)| *sum += slope * value);
        }
        let matrix = self.products.f_select(0, int(place))?;
        let (first, a) = (part(first, head, matrix.size()[0])?, matrix.size()[0]);
        let (d_left, mut d_matrix) = (self.d_left.rows(rows)?, self.d_products.f_select(0, int(place))?);
        let transposed = matrix.f_tr()?;
        progress.blocks.for_each_block(
            [&first, &d_left, &part(d_first, head, a)?],
            |[first, d_left, d_first], block| {
                let _ = match progress.earlier || block > 0 {
                    true => d_matrix.f_addmm_(&first.f_tr()?, d_left)?,
                    false => first.f_tr()?.f_mm_out(&d_matrix, d_left)?,
                };
                let _ = d_first.f_addmm_(d_left, &transposed)?;
                Ok(())
            },
        )
    }
}

fn part(of: &Tensor, head: usize, width: i64) -> Result<Tensor, ModelError> {
    Ok(of.f_narrow(1, int(head) * width, width)?)
}
