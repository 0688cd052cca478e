//! Values that are read as they are, side by side, or added.

use zagros_zip::ZipEq;

use super::{BlockStep, BlockValues, ReadValue, SlopeUse, StepChunk};
use crate::StepResult;
use crate::matrix::{View, ViewMut};

/// The numeric values, copied to memory where products read rows fast.
#[derive(Debug)]
pub(super) struct NumbersStep;

/// Values side by side.
#[derive(Debug)]
pub(super) struct JoinStep {
    pub(super) parts: Vec<JoinedColumns>,
    /// Values of each vector.
    pub(super) dims: Vec<usize>,
    /// The first columns, of whose slopes nothing is kept.
    pub(super) unread: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum JoinedColumns {
    Value(ReadValue),
    Vectors {
        slopes: SlopeUse,
    },
    /// Of the vectors, all but the first value of each.
    WithoutFirst {
        slopes: SlopeUse,
    },
}

/// The sum of values.
#[derive(Debug)]
pub(super) struct SumStep {
    pub(super) reads: Vec<ReadValue>,
}

impl BlockStep for NumbersStep {
    fn forward(&mut self, _: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        own.output.values_mut(chunk.rows).copy_from_slice(chunk.numbers);
        Ok(())
    }

    fn backward(&mut self, _: &mut [BlockValues], _: &mut BlockValues, _: &mut StepChunk<'_>) -> StepResult {
        Ok(())
    }
}

impl JoinStep {
    fn width_of(&self, part: JoinedColumns) -> usize {
        let all = self.dims.iter().sum::<usize>();
        match part {
            JoinedColumns::Value(read) => read.value.columns(),
            JoinedColumns::Vectors { .. } => all,
            JoinedColumns::WithoutFirst { .. } => all - self.dims.len(),
        }
    }
}

impl BlockStep for JoinStep {
    fn forward(&mut self, before: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, vectors) = (chunk.rows, self.dims.iter().sum::<usize>());
        let mut start = 0;
        for part in self.parts.iter().copied() {
            let width = self.width_of(part);
            if width == 0 {
                continue;
            }
            let into = own.output.view_mut(rows).narrow_columns(start, width);
            match part {
                JoinedColumns::Value(read) => put_rows(read.view(before, rows), into, false),
                JoinedColumns::Vectors { .. } => put_rows(View::dense(chunk.vectors, (rows, vectors)), into, false),
                JoinedColumns::WithoutFirst { .. } => {
                    let samples = into.values.chunks_mut(into.stride).zip_eq(chunk.vectors.chunks_exact(vectors));
                    for (into, vectors) in samples {
                        copy_without_first(&self.dims, vectors, into);
                    }
                }
            }
            start += width;
        }
        Ok(())
    }

    fn backward(&mut self, before: &mut [BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        let (rows, vectors) = (chunk.rows, self.dims.iter().sum::<usize>());
        let mut start = 0;
        for part in self.parts.iter().copied() {
            let width = self.width_of(part);
            let from = start;
            start += width;
            let Some(from) = from.checked_sub(self.unread).filter(|_| width > 0) else { continue };
            let slopes = own.slopes.view(rows).narrow_columns(from, width);
            match part {
                JoinedColumns::Value(read) => {
                    if let Some((into, adds)) = read.slopes(before, rows) {
                        put_rows(slopes, into, adds);
                    }
                }
                JoinedColumns::Vectors { slopes: SlopeUse::Unread }
                | JoinedColumns::WithoutFirst { slopes: SlopeUse::Unread } => {}
                JoinedColumns::Vectors { slopes: vector_slopes } => {
                    let into = ViewMut::dense(&mut *chunk.d_vectors, (rows, vectors));
                    put_rows(slopes, into, vector_slopes == SlopeUse::Added);
                }
                JoinedColumns::WithoutFirst { slopes: vector_slopes } => {
                    let adds = vector_slopes == SlopeUse::Added;
                    let samples =
                        slopes.values.chunks(slopes.row_stride).zip_eq(chunk.d_vectors.chunks_exact_mut(vectors));
                    for (slopes, d_vectors) in samples {
                        give_without_first(&self.dims, slopes, d_vectors, adds);
                    }
                }
            }
        }
        Ok(())
    }
}

pub(super) fn put_rows(from: View<'_>, into: ViewMut<'_>, adds: bool) {
    let width = from.columns;
    if width == 0 {
        return;
    }
    let rows = into.values.chunks_mut(into.stride).zip_eq(from.values.chunks(from.row_stride));
    for (into, from) in rows {
        let (into, from) = (&mut into[..width], &from[..width]);
        if adds {
            into.iter_mut().zip_eq(from).for_each(|(sum, value)| *sum += value);
        } else {
            into.copy_from_slice(from);
        }
    }
}

fn copy_without_first(dims: &[usize], mut vectors: &[f32], into: &mut [f32]) {
    let mut end = 0;
    for dim in dims {
        let (vector, others) = vectors.split_at(*dim);
        into[end..][..dim - 1].copy_from_slice(&vector[1..]);
        (vectors, end) = (others, end + dim - 1);
    }
}

fn give_without_first(dims: &[usize], slopes: &[f32], mut d_vectors: &mut [f32], adds: bool) {
    let mut start = 0;
    for dim in dims {
        let (vector, others) = d_vectors.split_at_mut(*dim);
        let slopes = &slopes[start..][..dim - 1];
        if adds {
            vector[1..].iter_mut().zip_eq(slopes).for_each(|(sum, slope)| *sum += slope);
        } else {
            vector[1..].copy_from_slice(slopes);
        }
        (d_vectors, start) = (others, start + dim - 1);
    }
}

impl BlockStep for SumStep {
    fn forward(&mut self, before: &[BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        for (index, read) in self.reads.iter().enumerate() {
            put_rows(read.view(before, chunk.rows), own.output.view_mut(chunk.rows), index > 0);
        }
        Ok(())
    }

    fn backward(&mut self, before: &mut [BlockValues], own: &mut BlockValues, chunk: &mut StepChunk<'_>) -> StepResult {
        for read in &self.reads {
            if let Some((into, adds)) = read.slopes(before, chunk.rows) {
                put_rows(own.slopes.view(chunk.rows), into, adds);
            }
        }
        Ok(())
    }
}
