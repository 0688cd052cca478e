//! What memory allows: the same rows in one plain array, their places known, fetched ahead.

use zagros_table::memory::{Arena, Memory, Pages};
use zagros_table::prefetch::prefetch;
use zagros_table::wide::wide;

/// Rows fetched ahead of the one at hand.
const AHEAD: usize = 16;
/// Settings of the Adagrad update.
pub(crate) const LR: f32 = 0.01;
pub(crate) const EPSILON: f32 = 1e-8;

/// Slots `[weights | accumulator]` one after the other.
pub(crate) struct Plain {
    slots: Memory,
    dim: usize,
}

impl Plain {
    pub(crate) fn new(rows: usize, dim: usize, pages: Pages) -> Self {
        let mut slots = Arena::new(pages).take(rows * 2 * dim);
        slots.floats_mut().fill(0.0);
        Self { slots, dim }
    }

    /// Random gather: the weights of each row, side by side.
    pub(crate) fn gather(&self, rows: &[usize], out: &mut [f32]) {
        wide(
            #[inline(always)]
            || match self.dim {
                16 => self.gather_by::<16>(rows, out),
                64 => self.gather_by::<64>(rows, out),
                dim => panic!("no plain loop for dim {dim}"),
            },
        );
    }

    /// Random read-modify-write: one Adagrad step of each row.
    pub(crate) fn update(&mut self, rows: &[usize], gradients: &[f32]) {
        wide(
            #[inline(always)]
            || match self.dim {
                16 => self.update_by::<16>(rows, gradients),
                64 => self.update_by::<64>(rows, gradients),
                dim => panic!("no plain loop for dim {dim}"),
            },
        );
    }

    #[inline(always)]
    fn gather_by<const DIM: usize>(&self, rows: &[usize], out: &mut [f32]) {
        let slots = self.slots.floats();
        let (out, _) = out.as_chunks_mut::<DIM>();
        for (position, row) in rows.iter().enumerate() {
            if let Some(next) = rows.get(position + AHEAD) {
                prefetch(&slots[next * 2 * DIM..][..DIM]);
            }
            out[position].copy_from_slice(&slots[row * 2 * DIM..][..DIM]);
        }
    }

    #[inline(always)]
    fn update_by<const DIM: usize>(&mut self, rows: &[usize], gradients: &[f32]) {
        let slots = self.slots.floats_mut();
        let (gradients, _) = gradients.as_chunks::<DIM>();
        for (position, row) in rows.iter().enumerate() {
            if let Some(next) = rows.get(position + AHEAD) {
                prefetch(&slots[next * 2 * DIM..][..2 * DIM]);
            }
            let (weights, sums) = slots[row * 2 * DIM..][..2 * DIM].split_at_mut(DIM);
            adagrad::<DIM>(weights, sums, &gradients[position]);
        }
    }
}

#[inline(always)]
fn adagrad<const DIM: usize>(weights: &mut [f32], sums: &mut [f32], gradient: &[f32; DIM]) {
    let (Ok(weights), Ok(sums)) = (<&mut [f32; DIM]>::try_from(weights), <&mut [f32; DIM]>::try_from(sums)) else {
        return;
    };
    for index in 0..DIM {
        sums[index] += gradient[index] * gradient[index];
        weights[index] -= LR * gradient[index] / (sums[index].sqrt() + EPSILON);
    }
}
