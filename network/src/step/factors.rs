//! The parts of a factorisation machine (Rendle 2010): the first-order weights of ids and numbers, a vector of each field, and the
//! products of all pairs of fields.

use zagros_table::run_wide;
use zagros_zip::ZipEq;

use super::{BlockStep, BlockValues, ReadValue, SlopeUse, StepChunk};
use crate::StepResult;

/// Σ of the first values of all vectors.
#[derive(Debug)]
pub(super) struct FirstValuesStep {
    pub(super) dims: Vec<usize>,
    pub(super) slopes: SlopeUse,
}

/// A field of each number, the number times its factors, and one of each vector, without its first value: all of dim − 1 values.
#[derive(Debug)]
pub(super) struct FactorFieldsStep {
    /// That of the numbers' factors, if there are numbers.
    pub(super) layer: Option<usize>,
    pub(super) numbers: usize,
    pub(super) features: usize,
    /// Values of a vector.
    pub(super) dim: usize,
    pub(super) slopes: SlopeUse,
}

/// Σ_{i<j} ⟨f_i, f_j⟩ of fields.
#[derive(Debug)]
pub(super) struct SecondOrderStep {
    fields: ReadValue,
    factors: usize,
    /// Σ_i f_i of each sample, `[rows, factors]`.
    sums: Vec<f32>,
}

impl BlockStep for FirstValuesStep {
    fn forward(&mut self, _: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let width = self.dims.iter().sum::<usize>();
        let samples = own.output.values_mut(chunk.rows).iter_mut().enumerate();
        for (sample, term) in samples {
            let mut vectors = &chunk.vectors[sample * width..][..width];
            *term = 0.0;
            for dim in &self.dims {
                *term += vectors[0];
                vectors = &vectors[*dim..];
            }
        }
        Ok(())
    }

    fn backward(&mut self, _: &mut [BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (width, adds) = (self.dims.iter().sum::<usize>(), self.slopes == SlopeUse::Added);
        for (sample, slope) in own.slopes.values(chunk.rows).iter().enumerate() {
            let mut d_vectors = &mut chunk.d_vectors[sample * width..][..width];
            for dim in &self.dims {
                d_vectors[0] = if adds { d_vectors[0] + slope } else { *slope };
                d_vectors = &mut d_vectors[*dim..];
            }
        }
        Ok(())
    }
}

impl BlockStep for FactorFieldsStep {
    fn forward(&mut self, _: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        self.layer.map_or(Ok(()), |layer| chunk.layers.begin_forward(layer))?;
        let (k, dim, columns, features) = (self.dim - 1, self.dim, self.numbers, self.features);
        let factors = self.layer.map(|layer| chunk.layers.weights(layer));
        let (stride, all_numbers, vectors) = (own.output.stride, chunk.numbers, chunk.vectors);
        let output = own.output.values_mut(chunk.rows);
        run_wide(
            #[inline(always)]
            || {
                for (sample, into) in output.chunks_exact_mut(stride).enumerate() {
                    let (of_columns, of_features) = into[..(columns + features) * k].split_at_mut(columns * k);
                    if let Some(factors) = factors {
                        let numbers = &all_numbers[sample * columns..][..columns];
                        for (column, number) in numbers.iter().enumerate() {
                            let (field, factors) = (&mut of_columns[column * k..][..k], &factors[column * k..][..k]);
                            field.iter_mut().zip_eq(factors).for_each(|(value, factor)| *value = number * factor);
                        }
                    }
                    let vectors = vectors[sample * features * dim..][..features * dim].chunks_exact(dim);
                    for (field, vector) in of_features.chunks_exact_mut(k).zip_eq(vectors) {
                        field.copy_from_slice(&vector[1..]);
                    }
                }
            },
        );
        self.layer.map_or(Ok(()), |layer| chunk.layers.end_forward(layer))
    }

    fn backward(&mut self, _: &mut [BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (k, dim, columns, features) = (self.dim - 1, self.dim, self.numbers, self.features);
        let (stride, adds) = (own.slopes.stride, self.slopes == SlopeUse::Added);
        let d_fields = own.slopes.values(chunk.rows).chunks_exact(stride);
        if let Some(layer) = self.layer {
            chunk.layers.begin_backward(layer)?;
            let (_, d_factors) = chunk.layers.gradients(layer);
            if !chunk.earlier {
                d_factors.fill(0.0);
            }
            for (numbers, d_fields) in chunk.numbers.chunks_exact(columns).zip_eq(d_fields.clone()) {
                let of_columns = d_factors.chunks_exact_mut(k).zip_eq(d_fields[..columns * k].chunks_exact(k));
                for (number, (sums, d_field)) in numbers.iter().zip_eq(of_columns) {
                    sums.iter_mut().zip_eq(d_field).for_each(|(sum, slope)| *sum += number * slope);
                }
            }
            chunk.note_final(layer);
            chunk.layers.end_backward(layer)?;
        }
        for (d_vectors, d_fields) in chunk.d_vectors.chunks_exact_mut(features * dim).zip_eq(d_fields) {
            let d_fields = d_fields[columns * k..][..features * k].chunks_exact(k);
            for (vector, d_field) in d_vectors.chunks_exact_mut(dim).zip_eq(d_fields) {
                if adds {
                    vector[1..].iter_mut().zip_eq(d_field).for_each(|(sum, slope)| *sum += slope);
                } else {
                    vector[1..].copy_from_slice(d_field);
                }
            }
        }
        Ok(())
    }
}

impl SecondOrderStep {
    pub(super) fn new(fields: ReadValue, factors: usize) -> Self {
        Self { fields, factors, sums: Vec::new() }
    }
}

impl BlockStep for SecondOrderStep {
    fn forward(&mut self, before: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, k, fields) = (chunk.rows, self.factors, self.fields.view(before, chunk.rows));
        self.sums.clear();
        self.sums.resize(rows * k, 0.0);
        let (sums, terms) = (&mut self.sums, own.output.values_mut(rows));
        run_wide(
            #[inline(always)]
            || {
                let samples = fields.values.chunks_exact(fields.row_stride).zip_eq(sums.chunks_exact_mut(k));
                for ((fields_of_sample, sums), term) in samples.zip_eq(terms.iter_mut()) {
                    *term = second_order(&fields_of_sample[..fields.columns], sums);
                }
            },
        );
        Ok(())
    }

    /// d f_ik = slope · (Σ_j f_jk − f_ik).
    fn backward(&mut self, before: &mut [BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, k, sums) = (chunk.rows, self.factors, &self.sums);
        let slopes = own.slopes.values(rows);
        self.fields.with_slopes(before, rows, |fields, d_fields| {
            let Some((d_fields, adds)) = d_fields else { return };
            let (width, d_fields) = (fields.columns, (d_fields.values, d_fields.stride));
            if !adds {
                d_fields.0.fill(0.0);
            }
            run_wide(
                #[inline(always)]
                || {
                    let samples = fields.values.chunks_exact(fields.row_stride);
                    let samples = samples.zip_eq(d_fields.0.chunks_exact_mut(d_fields.1));
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
        });
        Ok(())
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

/// A linear layer with one output: a term of a logit.
#[derive(Debug)]
pub(super) struct LinearTermStep {
    /// Numeric values, whose slopes are of no use.
    pub(super) input: ReadValue,
    pub(super) layer: usize,
}

impl BlockStep for LinearTermStep {
    fn forward(&mut self, before: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let input = self.input.view(before, chunk.rows);
        chunk.layers.begin_forward(self.layer)?;
        let (weight, bias) = chunk.layers.weights(self.layer).split_at(input.columns);
        let samples = own.output.values_mut(chunk.rows).iter_mut().zip_eq(input.values.chunks_exact(input.columns));
        for (term, numbers) in samples {
            *term = bias[0] + weight.iter().zip_eq(numbers).map(|(weight, number)| weight * number).sum::<f32>();
        }
        chunk.layers.end_forward(self.layer)
    }

    fn backward(&mut self, before: &mut [BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let input = self.input.view(before, chunk.rows);
        chunk.layers.begin_backward(self.layer)?;
        let (_, gradients) = chunk.layers.gradients(self.layer);
        if !chunk.earlier {
            gradients.fill(0.0);
        }
        let (d_weight, d_bias) = gradients.split_at_mut(input.columns);
        let slopes = own.slopes.values(chunk.rows);
        for (slope, numbers) in slopes.iter().zip_eq(input.values.chunks_exact(input.columns)) {
            d_bias[0] += slope;
            d_weight.iter_mut().zip_eq(numbers).for_each(|(sum, number)| *sum += slope * number);
        }
        chunk.note_final(self.layer);
        chunk.layers.end_backward(self.layer)
    }
}
