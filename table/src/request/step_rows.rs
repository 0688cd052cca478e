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
//! push of worker 0, step 8, h₁    row'──► update(row', h₁)         kept: (row, g₁ + g₂) of step 7, (row', h₁) of step 8
//! push of worker 2, step 7, g₃    back to step 7, then step 8 again: row' = update(row, g₁ + g₂ + g₃), update(row', h₁)
//! push of worker 0, step 9, …     nothing of step 7 is kept any more
//! push of worker 1, step 7, g₄    late: an update of its own, with penalties by its share of the samples
//! ```
//!
//! So a row takes what it would take from one worker with all samples (invariant RK-1), in whatever order the pushes of two steps come.
//! Where workers may be further apart, with a staleness of 2 or more, pushes may be late. They are counted. A late push changes the row as
//! it was before the steps that are kept, so these steps go on.
//!
//! Only pushes with a part of a step's samples come here. A run of one worker, and mode `async`, keep nothing.

use hashbrown::HashTable;

use crate::StepRowBatch;
use crate::key::id_of;
use crate::request::update::RowUpdate;

/// Rows of one stripe that the two newest steps have changed.
#[derive(Debug, Default)]
pub(crate) struct StepRows {
    newest: OpenStep,
    /// Rarely used, so that a stripe stays small.
    before: Box<OpenStep>,
    /// Whether one of them may have rows.
    is_used: bool,
}

/// Rows of one stripe that one step has changed.
#[derive(Debug, Default)]
struct OpenStep {
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
    /// Applies one gradient of a push that has a part of its step's samples. Returns whether it was late.
    #[inline(always)]
    pub(crate) fn apply(&mut self, slot: &mut [u32], key: u64, update: &mut RowUpdate<'_>, gradient: &[f32]) -> bool {
        let step = update.step.number;
        self.is_used = true;
        if step < self.newest.step {
            return self.apply_earlier(slot, key, update, gradient);
        }
        self.begin(step);
        self.newest.apply(slot, key, update, gradient);
        false
    }

    /// Applies a gradient of a step before the newest, and then what the row took since.
    #[cold]
    #[inline(never)]
    fn apply_earlier(&mut self, slot: &mut [u32], key: u64, update: &mut RowUpdate<'_>, gradient: &[f32]) -> bool {
        let Self { newest, before, .. } = self;
        if update.step.number > before.step {
            // No push of this step came before.
            before.clear();
            before.step = update.step.number;
        }
        let is_late = update.step.number < before.step;
        let later = newest.find(key);
        if let Some(position) = later {
            newest.go_back(position, slot);
        }
        if !is_late {
            before.apply(slot, key, update, gradient);
        } else if let Some(position) = before.find(key) {
            before.go_back(position, slot);
            update.apply_late(slot, key, gradient);
            before.apply_again(position, slot, update);
        } else {
            update.apply_late(slot, key, gradient);
        }
        if let Some(position) = later {
            newest.apply_again(position, slot, update);
        }
        is_late
    }

    #[inline]
    fn begin(&mut self, step: u64) {
        if step > self.newest.step {
            std::mem::swap(&mut self.newest, &mut *self.before);
            self.newest.clear();
            self.newest.step = step;
        }
    }

    /// Notes that something else than a push of the steps changes or removes the row.
    #[inline]
    pub(crate) fn forget(&mut self, key: u64) {
        self.newest.forget(key);
        self.before.forget(key);
    }

    /// Forgets all rows. The memory is used again.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.is_used {
            self.newest.clear();
            self.before.clear();
            self.is_used = false;
        }
    }

    /// Forgets all rows and the steps, for a table whose steps may count from 0 again.
    pub(crate) fn reset(&mut self) {
        self.clear();
        (self.newest.step, self.before.step) = (0, 0);
    }

    /// Appends what is kept of a row for the newest step, unless `into` has rows of a newer step. Rows of an older one go.
    pub(crate) fn read(&self, key: u64, into: &mut StepRowBatch) {
        self.newest.read(key, into);
    }

    /// Keeps what another process kept of a row, unless a newer step has begun here.
    pub(crate) fn restore(&mut self, step: u64, key: u64, before: &[u32], sum: &[f32]) {
        self.begin(step);
        self.is_used = true;
        if step == self.newest.step {
            self.newest.forget(key);
            self.newest.keep(key, before, sum);
        }
    }

    /// Keys of all rows of the newest step.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> {
        self.newest.rows.iter().map(|position| self.newest.keys[*position as usize])
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.newest.memory_bytes() + self.before.memory_bytes()
    }
}

impl OpenStep {
    /// Applies one gradient of the step to a row that no later step has changed.
    #[inline(always)]
    fn apply(&mut self, slot: &mut [u32], key: u64, update: &mut RowUpdate<'_>, gradient: &[f32]) {
        let dim = gradient.len();
        if let Some(position) = self.find(key) {
            self.go_back(position, slot);
            let sum = &mut self.sums[position * dim..][..dim];
            update.add_gradient(sum, gradient);
            update.apply(slot, key, sum);
        } else {
            self.keep(key, slot, gradient);
            update.apply(slot, key, gradient);
        }
    }

    #[inline(always)]
    fn go_back(&self, position: usize, slot: &mut [u32]) {
        slot.copy_from_slice(&self.before[position * slot.len()..][..slot.len()]);
    }

    /// The row before the step is another one now: the slot's. Applies the gradients of the step to it.
    fn apply_again(&mut self, position: usize, slot: &mut [u32], update: &mut RowUpdate<'_>) {
        self.before[position * slot.len()..][..slot.len()].copy_from_slice(slot);
        let dim = self.sums.len() / self.keys.len();
        update.at_step(self.step).apply(slot, self.keys[position], &self.sums[position * dim..][..dim]);
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

    #[inline]
    fn forget(&mut self, key: u64) {
        if self.rows.is_empty() {
            return;
        }
        if let Ok(entry) = self.rows.find_entry(hash_of(key), |position| self.keys[*position as usize] == key) {
            entry.remove();
        }
    }

    #[inline]
    fn clear(&mut self) {
        self.rows.clear();
        self.keys.clear();
        self.before.clear();
        self.sums.clear();
    }

    fn read(&self, key: u64, into: &mut StepRowBatch) {
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

    fn memory_bytes(&self) -> usize {
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
