//! What was acknowledged at each step since the newest checkpoint.

use std::collections::BTreeMap;

use crate::row::RowId;

/// Gradients by step, so that a ledger can go back.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepHistory {
    pub(crate) is_kept: bool,
    acknowledged: BTreeMap<u64, Vec<(RowId, Vec<i32>)>>,
    pub(crate) settled: u64,
    /// The next push is the first after a return.
    pub(crate) is_going_back: bool,
    pub(crate) returns: u32,
}

impl StepHistory {
    pub(crate) fn kept() -> Self {
        Self { is_kept: true, ..Self::default() }
    }

    pub(crate) fn note(&mut self, step: u64, row: RowId, gradient: Vec<i32>) {
        if self.is_kept {
            self.acknowledged.entry(step).or_default().push((row, gradient));
        }
    }

    /// Forgets the steps before a checkpoint.
    pub(crate) fn settle(&mut self, step: u64) {
        if step > self.settled {
            self.settled = step;
            self.acknowledged = self.acknowledged.split_off(&step);
        }
    }

    pub(crate) fn take_from(&mut self, step: u64) -> impl Iterator<Item = (RowId, Vec<i32>)> {
        self.returns += 1;
        self.acknowledged.split_off(&step).into_values().flatten()
    }
}
