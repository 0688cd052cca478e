//! The rows that the pushes of one training step have changed, so that a row takes the sum of its gradients of the step once.
//!
//! Each worker pushes the gradients of its own samples. A row that is in the batches of two workers gets two pushes in a step. Two
//! updates are not one update of the sum: the row would decay twice, Adam would move it twice as far, and Adagrad would add g₁² + g₂²
//! instead of (g₁ + g₂)². A stripe therefore keeps, for each row that the present step has changed, the row before the step and the
//! sum of its gradients so far. A later push of the same step goes back to the row before, and updates it with the new sum:
//!
//! ```text
//! push of worker 0, step 7, g₁    row ──► update(row, g₁)          kept: (row, g₁)
//! push of worker 1, step 7, g₂    row ──► update(row, g₁ + g₂)     kept: (row, g₁ + g₂)
//! push of worker 0, step 8, …     nothing of step 7 is kept any more
//! push of worker 2, step 7, g₃    late: an update of its own, with penalties by its share of the samples
//! ```
//!
//! So a row takes what it would take from one worker with all samples (invariant RK-1).
//!
//! Only pushes with a part of a step's samples come here. A run of one worker, and mode `async`, keep nothing.

use hashbrown::HashTable;

use crate::StepRowBatch;
use crate::key::id_of;
use crate::request::update::RowUpdate;

/// Rows of one stripe that the newest step has changed.
#[derive(Debug, Default)]
pub(crate) struct StepRows {
    /// The newest step of which a push was applied.
    step: u64,
    /// Positions in the vectors below, by key.
    rows: HashTable<u32>,
    keys: Vec<u64>,
    /// The row before the step, `[rows, stride]`.
    before: Vec<u32>,
    /// The sum of the row's gradients in the step, `[rows, dim]`.
    sums: Vec<f32>,
}

impl StepRows {
    /// Applies one gradient of a push that has a part of its step's samples.
    #[inline(always)]
    pub(crate) fn apply(&mut self, slot: &mut [u32], key: u64, update: &mut RowUpdate<'_>, gradient: &[f32]) {
        let step = update.step();
        if step > self.step {
            self.clear();
            self.step = step;
        } else if step < self.step {
            self.forget(key);
            return update.apply_late(slot, key, gradient);
        }
        let (stride, dim) = (slot.len(), gradient.len());
        if let Some(position) = self.find(key) {
            slot.copy_from_slice(&self.before[position * stride..][..stride]);
            let sum = &mut self.sums[position * dim..][..dim];
            update.add(sum, gradient);
            update.apply(slot, key, sum);
        } else {
            self.keep(key, slot, gradient);
            update.apply(slot, key, gradient);
        }
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        self.rows.find(hash_of(key), |position| self.keys[*position as usize] == key).map(|position| *position as usize)
    }

    #[inline]
    fn keep(&mut self, key: u64, slot: &[u32], gradient: &[f32]) {
        let keys = &self.keys;
        self.rows.insert_unique(hash_of(key), keys.len() as u32, |position| hash_of(keys[*position as usize]));
        self.keys.push(key);
        self.before.extend_from_slice(slot);
        self.sums.extend_from_slice(gradient);
    }

    /// Notes that something else than a push of the step changes or removes the row.
    #[inline]
    pub(crate) fn forget(&mut self, key: u64) {
        if self.rows.is_empty() {
            return;
        }
        if let Ok(entry) = self.rows.find_entry(hash_of(key), |position| self.keys[*position as usize] == key) {
            entry.remove();
        }
    }

    /// Forgets all rows. The memory is used again.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if !self.keys.is_empty() {
            self.rows.clear();
            self.keys.clear();
            self.before.clear();
            self.sums.clear();
        }
    }

    /// Forgets all rows and the step, for a table whose steps may count from 0 again.
    pub(crate) fn reset(&mut self) {
        self.clear();
        self.step = 0;
    }

    /// Appends what is kept of a row, unless `into` has rows of a newer step. Rows of an older one go.
    pub(crate) fn read(&self, key: u64, into: &mut StepRowBatch) {
        let Some(position) = self.find(key) else { return };
        if into.step != self.step {
            if into.step > self.step && !into.ids.is_empty() {
                return;
            }
            into.clear();
            into.step = self.step;
        }
        let (stride, dim) = (self.before.len() / self.keys.len(), self.sums.len() / self.keys.len());
        into.ids.push(id_of(key));
        into.before.extend_from_slice(&self.before[position * stride..][..stride]);
        into.sums.extend_from_slice(&self.sums[position * dim..][..dim]);
    }

    /// Keeps what another process kept of a row, unless a newer step has begun here.
    pub(crate) fn restore(&mut self, step: u64, key: u64, before: &[u32], sum: &[f32]) {
        if step > self.step {
            self.clear();
            self.step = step;
        }
        if step == self.step {
            self.forget(key);
            self.keep(key, before, sum);
        }
    }

    /// Keys of all rows.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> {
        self.rows.iter().map(|position| self.keys[*position as usize])
    }

    /// Bytes of memory, used or not.
    pub(crate) fn bytes(&self) -> usize {
        let words = self.rows.capacity() + self.before.capacity() + self.sums.capacity();
        words * size_of::<u32>() + self.keys.capacity() * size_of::<u64>()
    }
}

/// The low bits of a key are equal for all keys of a stripe, and the hash table begins with the low bits of a hash.
#[inline]
fn hash_of(key: u64) -> u64 {
    key.rotate_left(32)
}

#[cfg(test)]
mod tests;
