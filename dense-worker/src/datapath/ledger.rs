//! Which splits are complete: those whose gradients are all acknowledged. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// Acknowledgements arrive in any order. A split is complete once its last batch and every batch before it are
/// acknowledged, because a split's rows may be in any of them (invariant SP-2).
#[derive(Clone, Debug, Default)]
pub(crate) struct BatchLedger {
    /// Every batch below is acknowledged.
    frontier: u64,
    /// Acknowledged batches beyond the frontier.
    early: BTreeSet<u64>,
    /// Splits by the batch that holds their last row.
    ends: BTreeMap<u64, Vec<u64>>,
}

impl BatchLedger {
    pub(crate) fn numbered_from(first: u64) -> Self {
        Self { frontier: first, ..Self::default() }
    }

    /// Notes that batch `seq` is acknowledged, and that it holds the last rows of the splits `ends`. Returns the splits
    /// that are now complete, in the order of their last rows.
    pub(crate) fn acknowledge(&mut self, seq: u64, ends: Vec<u64>) -> Vec<u64> {
        self.early.insert(seq);
        if !ends.is_empty() {
            self.ends.insert(seq, ends);
        }
        while self.early.remove(&self.frontier) {
            self.frontier += 1;
        }
        let open = self.ends.split_off(&self.frontier);
        std::mem::replace(&mut self.ends, open).into_values().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_split_waits_for_every_batch_before_its_end() {
        let mut ledger = BatchLedger::default();
        assert!(ledger.acknowledge(1, vec![10]).is_empty());
        assert!(ledger.acknowledge(2, vec![]).is_empty());
        assert_eq!(ledger.acknowledge(0, vec![9]), [9, 10]);
        assert_eq!(ledger.acknowledge(3, vec![11, 12]), [11, 12]);
    }

    proptest! {
        #[test]
        fn in_any_order_splits_complete_once_and_never_early(
            order in (1_usize..40).prop_flat_map(|count| Just((0..count as u64).collect::<Vec<_>>()).prop_shuffle()),
        ) {
            let mut ledger = BatchLedger::default();
            let mut acknowledged = BTreeSet::new();
            let mut complete = Vec::new();
            for seq in &order {
                acknowledged.insert(*seq);
                // Every third batch ends the split with its own number.
                let ends = if seq % 3 == 0 { vec![*seq] } else { vec![] };
                for split in ledger.acknowledge(*seq, ends) {
                    prop_assert!((0..=split).all(|before| acknowledged.contains(&before)));
                    complete.push(split);
                }
            }
            let expected: Vec<u64> = (0..order.len() as u64).filter(|seq| seq % 3 == 0).collect();
            prop_assert_eq!(complete, expected);
            prop_assert!(ledger.early.is_empty() && ledger.ends.is_empty());
        }
    }
}
