//! What memory allows: the same rows in one plain array, fetched ahead. Their places are known; or, which is the bound of
//! every index that is larger than the caches, each is known once a random cache line has been read.

use zagros_table::memory::{Arena, MemoryBlock, Pages};
use zagros_table::prefetch::prefetch;
use zagros_table::wide::wide;

/// Rows fetched ahead of the one at hand.
const AHEAD: usize = 16;
/// Settings of the Adagrad update.
pub(crate) const LR: f32 = 0.01;
pub(crate) const EPSILON: f32 = 1e-8;

/// Rows for each line of the index, as in the table's.
const ROWS_A_LINE: usize = 4;
/// Words of a cache line.
const LINE: usize = 16;

/// How a row's place is learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// It is known.
    Known,
    /// By reading a random line.
    Indexed,
}

/// Slots `[weights | accumulator]` one after the other.
pub(crate) struct Plain {
    slots: MemoryBlock,
    /// Lines of zeros, each of which must be read to know that it is zero.
    index: MemoryBlock,
    dim: usize,
}

impl Plain {
    pub(crate) fn new(rows: usize, dim: usize, pages: Pages) -> Self {
        let arena = Arena::new(pages);
        let zeros = |words: usize| {
            let mut memory = arena.take(words);
            memory.floats_mut().fill(0.0);
            memory
        };
        Self { slots: zeros(rows * 2 * dim), index: zeros((rows / ROWS_A_LINE + 1) * LINE), dim }
    }

    /// Random gather: the weights of each row, side by side.
    pub(crate) fn gather(&self, places: Places, rows: &[usize], out: &mut [f32]) {
        wide(
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

    /// Random read-modify-write: one Adagrad step of each row.
    pub(crate) fn update(&mut self, places: Places, rows: &[usize], gradients: &[f32]) {
        wide(
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
        let slots = self.slots.floats();
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
            let slots = self.slots.floats();
            self.ask_ahead::<INDEXED>(rows, position, |place| prefetch(&slots[place * 2 * DIM..][..2 * DIM]));
            let place = self.place::<INDEXED>(rows[position]);
            let (weights, sums) = self.slots.floats_mut()[place * 2 * DIM..][..2 * DIM].split_at_mut(DIM);
            adagrad::<DIM>(weights, sums, &gradients[position]);
        }
    }

    /// Asks for a row's memory some rows before it is needed; and for the line that tells its place, as many before that.
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

    /// First word of a row's line: anywhere.
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
