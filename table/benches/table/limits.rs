//! The limit of the memory: the same rows in one plain array, with prefetching. In one variant the position of a row is
//! known. In the other a random cache line must be read first, as in every index that is larger than the caches.

use zagros_table::memory::{Arena, MemoryBlock};
use zagros_table::{prefetch, run_wide};

/// A row is prefetched this many rows before its use.
const AHEAD: usize = 16;
/// Settings of the Adagrad update.
pub(crate) const LR: f32 = 0.01;
pub(crate) const EPSILON: f32 = 1e-8;

/// Rows per cache line of the index, as in the table's index.
const ROWS_A_LINE: usize = 4;
/// Words of a cache line.
const LINE: usize = 16;

/// How the position of a row is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    Known,
    /// A random cache line must be read first.
    Indexed,
}

/// Slots `[weights | accumulator]` in one array.
pub(crate) struct Plain {
    slots: MemoryBlock,
    /// Cache lines of zeros. Each must be read to know that it is zero.
    index: MemoryBlock,
    dim: usize,
}

impl Plain {
    pub(crate) fn new(rows: usize, dim: usize) -> Self {
        let arena = Arena::new();
        let zeros = |words: usize| {
            let mut memory = arena.take_block(words);
            memory.as_floats_mut().fill(0.0);
            memory
        };
        Self { slots: zeros(rows * 2 * dim), index: zeros((rows / ROWS_A_LINE + 1) * LINE), dim }
    }

    /// Random gather: copies the weights of each row to consecutive memory.
    pub(crate) fn gather(&self, places: Places, rows: &[usize], out: &mut [f32]) {
        run_wide(
            #[inline(always)]
            || match (self.dim, places) {
                (16, Places::Known) => self.gather_by::<16, false>(rows, out),
                (64, Places::Known) => self.gather_by::<64, false>(rows, out),
                (16, Places::Indexed) => self.gather_by::<16, true>(rows, out),
                (64, Places::Indexed) => self.gather_by::<64, true>(rows, out),
                (dim, _) => panic!("no plain loop for dim {dim}"),
            },
        );
    }

    /// Random read-modify-write: one Adagrad update of each row.
    pub(crate) fn update(&mut self, places: Places, rows: &[usize], gradients: &[f32]) {
        run_wide(
            #[inline(always)]
            || match (self.dim, places) {
                (16, Places::Known) => self.update_by::<16, false>(rows, gradients),
                (64, Places::Known) => self.update_by::<64, false>(rows, gradients),
                (16, Places::Indexed) => self.update_by::<16, true>(rows, gradients),
                (64, Places::Indexed) => self.update_by::<64, true>(rows, gradients),
                (dim, _) => panic!("no plain loop for dim {dim}"),
            },
        );
    }

    #[inline(always)]
    fn gather_by<const DIM: usize, const INDEXED: bool>(&self, rows: &[usize], out: &mut [f32]) {
        let slots = self.slots.as_floats();
        let (out, _) = out.as_chunks_mut::<DIM>();
        for position in 0..rows.len() {
            self.ask_ahead::<INDEXED>(rows, position, |place| prefetch(&slots[place * 2 * DIM..][..DIM]));
            let place = self.place::<INDEXED>(rows[position]);
            out[position].copy_from_slice(&slots[place * 2 * DIM..][..DIM]);
        }
    }

    #[inline(always)]
    fn update_by<const DIM: usize, const INDEXED: bool>(&mut self, rows: &[usize], gradients: &[f32]) {
        let (gradients, _) = gradients.as_chunks::<DIM>();
        for position in 0..rows.len() {
            let slots = self.slots.as_floats();
            self.ask_ahead::<INDEXED>(rows, position, |place| prefetch(&slots[place * 2 * DIM..][..2 * DIM]));
            let place = self.place::<INDEXED>(rows[position]);
            let (weights, sums) = self.slots.as_floats_mut()[place * 2 * DIM..][..2 * DIM].split_at_mut(DIM);
            adagrad::<DIM>(weights, sums, &gradients[position]);
        }
    }

    /// Prefetches a row some rows before its use, and its index line as many rows earlier.
    #[inline(always)]
    fn ask_ahead<const INDEXED: bool>(&self, rows: &[usize], position: usize, ask: impl Fn(usize)) {
        if INDEXED && let Some(row) = rows.get(position + 2 * AHEAD) {
            prefetch(&self.index.words()[self.line(*row)..][..LINE]);
        }
        if let Some(row) = rows.get(position + AHEAD) {
            ask(self.place::<INDEXED>(*row));
        }
    }

    #[inline(always)]
    fn place<const INDEXED: bool>(&self, row: usize) -> usize {
        if INDEXED { row + self.index.words()[self.line(row)] as usize } else { row }
    }

    /// The first word of the index line of a row. The line is random.
    #[inline(always)]
    fn line(&self, row: usize) -> usize {
        let random = (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let lines = self.index.words().len() / LINE;
        ((u128::from(random) * lines as u128) >> 64) as usize * LINE
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
