//! A chunk through DeepFM ([`crate::model::networks::deepfm`]) and back.

use tch::Tensor;
use zagros_table::run_wide;
use zagros_zip::ZipEq;

use super::layer::{LayerUse, StepParts};
use super::linear_term::LinearTerm;
use super::stack::LayerStack;
use super::{BatchShare, ChunkProgress, ChunkStep};
use crate::model::ModelError;
use crate::model::layers::LinearLayer;
use crate::model::networks::DeepFm;
use crate::model::weights::{Matrix, values, values_mut};

#[derive(Debug)]
pub(in crate::model) struct DeepFmForwardBackward {
    numeric: Option<NumericFactors>,
    /// NumericFactors columns, and categorical features.
    fields: (usize, usize),
    /// Values of a feature vector: its first-order weight, and K factors.
    dim: usize,
    /// The vector of each field, `[chunk, fields · K]`.
    input: Matrix,
    d_input: Matrix,
    /// Σ_i f_i of each sample, `[chunk, K]`.
    sums: Vec<f32>,
    /// The first-order and second-order terms of each logit, `[chunk]`.
    terms: Vec<f32>,
    deep: LayerStack,
}

#[derive(Debug)]
struct NumericFactors {
    first_order: LinearTerm,
    present: LayerUse,
    columns: usize,
    /// `[numeric, K]`, the variable itself without autograd.
    factors: Tensor,
    d_factors: Tensor,
}

impl DeepFmForwardBackward {
    pub(super) fn new(network: &DeepFm, numeric: usize, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        let of_numeric = match (&network.first_order, &network.factors) {
            (Some(first_order), Some(factors)) => Some(NumericFactors::new(first_order, factors, parts)?),
            _ => None,
        };
        let inputs = network.deep.input_count();
        Ok(Self {
            numeric: of_numeric,
            fields: (numeric, network.features),
            dim: network.dim,
            input: Matrix::aligned(parts.rows, inputs)?,
            d_input: Matrix::aligned(parts.rows, inputs)?,
            sums: Vec::new(),
            terms: Vec::new(),
            deep: LayerStack::new(&network.deep, true, parts)?,
        })
    }

    /// Writes the vector of each field, and the terms beside the deep MLP.
    fn forward(&mut self, share: &BatchShare<'_>) -> Result<(), ModelError> {
        let Self { numeric, fields, dim, input, sums, terms, .. } = self;
        numeric.as_mut().map_or(Ok(()), |numeric| numeric.present.forward())?;
        let (rows, stride, k, (columns, features)) = (share.samples, input.stride, *dim - 1, *fields);
        sums.clear();
        sums.resize(rows * k, 0.0);
        terms.clear();
        terms.resize(rows, 0.0);
        let factors = numeric.as_ref().map(|numeric| values(&numeric.factors));
        let input = input.values_mut(rows);
        run_wide(
            #[inline(always)]
            || {
                let samples = input.chunks_exact_mut(stride).zip_eq(sums.chunks_exact_mut(k));
                for (sample, ((into, sums), term)) in samples.zip_eq(terms.iter_mut()).enumerate() {
                    let (of_columns, of_features) = into[..(columns + features) * k].split_at_mut(columns * k);
                    if let Some(factors) = factors {
                        let numbers = &share.numeric[sample * columns..][..columns];
                        for (column, number) in numbers.iter().enumerate() {
                            let (field, factors) = (&mut of_columns[column * k..][..k], &factors[column * k..][..k]);
                            field.iter_mut().zip_eq(factors).for_each(|(value, factor)| *value = number * factor);
                        }
                    }
                    let vectors = share.embeddings[sample * features * *dim..][..features * *dim].chunks_exact(*dim);
                    for (field, vector) in of_features.chunks_exact_mut(k).zip_eq(vectors) {
                        *term += vector[0];
                        field.copy_from_slice(&vector[1..]);
                    }
                    *term += second_order(&into[..(columns + features) * k], sums);
                }
            },
        );
        if let Some(numeric) = numeric {
            numeric.present.forward_done()?;
            numeric.first_order.add_to(terms, share.numeric)?;
        }
        Ok(())
    }

    /// Adds the slopes of the second-order term to those of the deep MLP: d f_ik = slope · (Σ_j f_jk − f_ik).
    fn second_order_backward(&mut self, rows: usize) {
        let (k, stride) = (self.dim - 1, self.input.stride);
        let width = self.input.columns;
        let (slopes, sums, fields) = (self.deep.d_logits(rows), &self.sums, self.input.values(rows));
        let d_fields = self.d_input.values_mut(rows);
        run_wide(
            #[inline(always)]
            || {
                let samples = fields.chunks_exact(stride).zip_eq(d_fields.chunks_exact_mut(stride));
                let samples = samples.zip_eq(slopes.iter().zip_eq(sums.chunks_exact(k)));
                for ((fields, d_fields), (slope, sums)) in samples {
                    let each = fields[..width].chunks_exact(k).zip_eq(d_fields[..width].chunks_exact_mut(k));
                    for (field, d_field) in each {
                        for index in 0..k {
                            d_field[index] += slope * (sums[index] - field[index]);
                        }
                    }
                }
            },
        );
    }
}

impl ChunkStep for DeepFmForwardBackward {
    fn refresh(&mut self) -> Result<(), ModelError> {
        self.deep.refresh()
    }

    fn chunk(&mut self, mut share: BatchShare<'_>, progress: &mut ChunkProgress<'_>) -> Result<f64, ModelError> {
        self.forward(&share)?;
        let rows = share.samples;
        let ends = (&self.input, Some(&self.d_input));
        let loss = self.deep.through_loss(&self.terms, ends, &mut share, progress)?;
        if progress.ends_at_outputs() {
            return Ok(loss);
        }
        self.second_order_backward(rows);
        let Self { numeric, fields, dim, d_input, deep, .. } = self;
        let (k, stride, (columns, features), slopes) = (*dim - 1, d_input.stride, *fields, deep.d_logits(rows));
        let d_fields = d_input.values(rows).chunks_exact(stride);
        if let Some(numeric) = numeric {
            numeric.backward(slopes, share.numeric, d_fields.clone(), progress)?;
        }
        let samples = share.gradients.chunks_exact_mut(features * *dim).zip_eq(slopes);
        for ((gradients, slope), d_fields) in samples.zip_eq(d_fields) {
            let d_fields = d_fields[columns * k..][..features * k].chunks_exact(k);
            for (vector, d_field) in gradients.chunks_exact_mut(*dim).zip_eq(d_fields) {
                vector[0] = *slope;
                vector[1..].copy_from_slice(d_field);
            }
        }
        Ok(loss)
    }
}

impl NumericFactors {
    /// The next two layers of `parts`.
    fn new(first_order: &LinearLayer, factors: &Tensor, parts: &mut StepParts<'_>) -> Result<Self, ModelError> {
        let first_order = LinearTerm::new(first_order, parts)?;
        let columns = usize::try_from(factors.size()[0]).unwrap_or(0);
        let (present, [factors]) = parts.next_layer([factors])?;
        Ok(Self { first_order, present, columns, factors: factors.value, d_factors: factors.gradient })
    }

    /// Adds the gradients to those of earlier chunks of the batch. `d_fields` are the slopes of each sample's fields.
    fn backward<'a>(
        &mut self,
        slopes: &[f32],
        numeric: &[f32],
        d_fields: impl ExactSizeIterator<Item = &'a [f32]>,
        progress: &mut ChunkProgress<'_>,
    ) -> Result<(), ModelError> {
        self.present.backward()?;
        let columns = self.columns;
        let d_factors = values_mut(&mut self.d_factors);
        if !progress.earlier {
            d_factors.fill(0.0);
        }
        let k = d_factors.len() / columns;
        for (numbers, d_fields) in numeric.chunks_exact(columns).zip_eq(d_fields) {
            let of_columns = d_factors.chunks_exact_mut(k).zip_eq(d_fields[..columns * k].chunks_exact(k));
            for (number, (sums, d_field)) in numbers.iter().zip_eq(of_columns) {
                sums.iter_mut().zip_eq(d_field).for_each(|(sum, slope)| *sum += number * slope);
            }
        }
        progress.finished(columns * k);
        self.present.backward_done()?;
        self.first_order.backward(slopes, numeric, progress)
    }
}

/// ½ Σ_k ((Σ_i f_ik)² − Σ_i f_ik²) (Rendle 2010, lemma 3.1). Writes Σ_i f_ik to `sums`, which are zeros, `[K]`.
#[inline(always)]
fn second_order(fields: &[f32], sums: &mut [f32]) -> f32 {
    let (k, mut squares) = (sums.len(), 0.0);
    for field in fields.chunks_exact(k) {
        for (sum, value) in sums.iter_mut().zip_eq(field) {
            *sum += value;
            squares += value * value;
        }
    }
    0.5 * (sums.iter().map(|sum| sum * sum).sum::<f32>() - squares)
}
