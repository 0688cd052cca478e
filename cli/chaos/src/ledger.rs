//! Sums of the gradients that servers acknowledged, and the pushes whose answer is unknown.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A row of a table.
pub type RowId = (u32, u64);

/// Pushes of a writer that are remembered behind its newest one. A client never repeats an older one.
const REMEMBERED: u64 = 64;

/// What a push is identified by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PushKey {
    pub writer: u64,
    pub incarnation: u32,
    pub seq: u64,
}

/// The rows of a push. Parts of a push go to several servers, and a part may be sent again: each row counts once.
#[derive(Clone, Debug, Default)]
struct LedgerPush {
    /// Sent, and not known to be applied.
    open: HashMap<RowId, Vec<i32>>,
    acknowledged: HashSet<RowId>,
}

/// The ledger of a run.
#[derive(Clone, Debug, Default)]
pub struct PushLedger {
    /// Sums of acknowledged gradients in grid units, by row.
    sums: HashMap<RowId, Vec<i64>>,
    pushes: BTreeMap<PushKey, LedgerPush>,
    acknowledged: u64,
    problems: BTreeSet<String>,
}

impl PushLedger {
    /// A worker is about to send these rows of a push to a server.
    pub fn sent(&mut self, key: PushKey, rows: Vec<(RowId, Vec<i32>)>) {
        self.forget_before(key);
        let push = self.pushes.entry(key).or_default();
        for (row, gradient) in rows {
            if push.acknowledged.contains(&row) {
                continue;
            }
            if let Some(before) = push.open.insert(row, gradient.clone())
                && before != gradient
            {
                let problem = format!("push {} of writer {} was repeated with other gradients", key.seq, key.writer);
                self.problems.insert(problem);
            }
        }
    }

    /// A server has acknowledged these rows of a push.
    pub fn acknowledged(&mut self, key: PushKey, rows: &[RowId]) {
        let Some(push) = self.pushes.get_mut(&key) else {
            self.problems.insert(format!("push {} of writer {} was acknowledged and never sent", key.seq, key.writer));
            return;
        };
        self.acknowledged += 1;
        for row in rows {
            let Some(gradient) = push.open.remove(row) else { continue };
            push.acknowledged.insert(*row);
            let sum = self.sums.entry(*row).or_insert_with(|| vec![0; gradient.len()]);
            sum.iter_mut().enumerate().for_each(|(at, sum)| *sum += i64::from(gradient.get(at).copied().unwrap_or(0)));
        }
    }

    /// Drops the pushes that are acknowledged and so old that none is repeated.
    fn forget_before(&mut self, newest: PushKey) {
        let first = PushKey { seq: 0, ..newest };
        let until = PushKey { seq: newest.seq.saturating_sub(REMEMBERED), ..newest };
        let done = |push: &LedgerPush| push.open.is_empty();
        let old: Vec<PushKey> =
            self.pushes.range(first..until).filter(|(_, push)| done(push)).map(|(key, _)| *key).collect();
        old.iter().for_each(|key| drop(self.pushes.remove(key)));
    }

    /// Parts of pushes that servers acknowledged.
    pub fn parts(&self) -> u64 {
        self.acknowledged
    }

    /// The sum of a row's acknowledged gradients.
    pub fn sum(&self, row: RowId) -> Option<&[i64]> {
        self.sums.get(&row).map(Vec::as_slice)
    }

    /// Rows with acknowledged gradients.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = RowId> {
        self.sums.keys().copied()
    }

    /// The sums, to compare them with those of another run.
    pub fn sums(&self) -> &HashMap<RowId, Vec<i64>> {
        &self.sums
    }

    /// The gradients of a row that may or may not be applied, because their writer did not live to see the answer.
    pub fn in_doubt(&self) -> HashMap<RowId, Vec<&[i32]>> {
        let mut rows: HashMap<RowId, Vec<&[i32]>> = HashMap::new();
        for push in self.pushes.values() {
            push.open.iter().for_each(|(row, gradient)| rows.entry(*row).or_default().push(gradient));
        }
        rows
    }

    /// Pushes without an acknowledgement, by writer.
    pub fn unanswered(&self) -> Vec<PushKey> {
        self.pushes.iter().filter(|(_, push)| !push.open.is_empty()).map(|(key, _)| *key).collect()
    }

    /// What contradicts itself.
    pub fn problems(&self) -> impl Iterator<Item = &String> {
        self.problems.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: PushKey = PushKey { writer: 1, incarnation: 1, seq: 5 };

    fn rows(ids: &[u64], gradient: i32) -> Vec<(RowId, Vec<i32>)> {
        ids.iter().map(|id| ((0, *id), vec![gradient; 2])).collect()
    }

    #[test]
    fn a_row_of_a_push_counts_once_however_often_it_is_sent_and_acknowledged() {
        let mut ledger = PushLedger::default();
        ledger.sent(KEY, rows(&[1, 2], 3));
        ledger.sent(KEY, rows(&[7], 3));
        ledger.acknowledged(KEY, &[(0, 1), (0, 2)]);
        // The worker did not hear the answer and asks again.
        ledger.sent(KEY, rows(&[1, 2], 3));
        ledger.acknowledged(KEY, &[(0, 1), (0, 2)]);
        assert_eq!(ledger.sum((0, 1)), Some(&[3, 3][..]));
        assert_eq!(ledger.sum((0, 7)), None);
        assert_eq!(ledger.unanswered(), [KEY]);
        assert_eq!(ledger.in_doubt(), HashMap::from([((0, 7), vec![&[3, 3][..]])]));
        ledger.acknowledged(KEY, &[(0, 7)]);
        assert!(ledger.unanswered().is_empty() && ledger.problems().next().is_none());
    }

    #[test]
    fn a_repeated_push_with_other_gradients_is_a_problem() {
        let mut ledger = PushLedger::default();
        ledger.sent(KEY, rows(&[1], 3));
        ledger.sent(KEY, rows(&[1], 4));
        assert!(ledger.problems().next().is_some_and(|problem| problem.contains("other gradients")));
        ledger.acknowledged(PushKey { seq: 6, ..KEY }, &[(0, 1)]);
        assert_eq!(ledger.problems().count(), 2);
    }

    #[test]
    fn only_answered_pushes_are_forgotten() {
        let mut ledger = PushLedger::default();
        for seq in 0..300 {
            ledger.sent(PushKey { seq, ..KEY }, rows(&[seq], 1));
            if seq != 10 {
                ledger.acknowledged(PushKey { seq, ..KEY }, &[(0, seq)]);
            }
        }
        assert!(ledger.pushes.len() as u64 <= REMEMBERED + 2, "{}", ledger.pushes.len());
        assert_eq!((ledger.unanswered().len(), ledger.rows().len(), ledger.parts()), (1, 299, 299));
    }
}
