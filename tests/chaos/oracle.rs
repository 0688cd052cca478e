//! Compares the rows of a finished run with its ledger: each row is minus the sum of its acknowledged gradients.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::doubt::{DoubtSolver, DoubtedRow};
use crate::ledger::{PushLedger, RowId};
use zagros_embedding_client::push_record::grid;

const SHOWN: usize = 5;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WrongRow {
    pub(crate) row: RowId,
    pub(crate) kind: WrongKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WrongKind {
    /// Its pushes were acknowledged, and the model does not have it.
    Missing,
    /// A value is not a sum of gradients at all.
    OffGrid(f32),
    /// A value, and what it should be, in grid units.
    Differs { found: i64, expected: i64 },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct RowVerdict {
    pub(crate) rows: u64,
    pub(crate) wrong: u64,
    pub(crate) examples: Vec<WrongRow>,
    /// Rows with a gradient that may or may not have been applied, because its worker was killed before it knew.
    pub(crate) in_doubt: u64,
    /// How many of these have it.
    pub(crate) applied: u64,
}

impl fmt::Display for WrongRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, id) = self.row;
        write!(f, "table {table}, id {id}: ")?;
        match self.kind {
            WrongKind::Missing => f.write_str("its pushes were acknowledged, and it is not in the model"),
            WrongKind::OffGrid(value) => write!(f, "{value} is no sum of gradients"),
            WrongKind::Differs { found, expected } => {
                write!(f, "{found} units, but its acknowledged pushes give {expected} (1 = {} units)", grid::UNITS)
            }
        }
    }
}

pub(crate) struct RowOracle<'a> {
    ledger: &'a PushLedger,
    doubts: DoubtSolver<'a>,
    seen: HashSet<RowId>,
    verdict: RowVerdict,
}

impl<'a> RowOracle<'a> {
    pub(crate) fn new(ledger: &'a PushLedger) -> Self {
        let doubts = DoubtSolver::new(ledger.in_doubt());
        Self { ledger, doubts, seen: HashSet::new(), verdict: RowVerdict::default() }
    }

    pub(crate) fn check(&mut self, row: RowId, weights: &[f32]) {
        self.verdict.rows += 1;
        self.seen.insert(row);
        let Some(found) = weights.iter().map(|value| grid::exact_units(*value)).collect::<Option<Vec<i64>>>() else {
            let value = weights.iter().copied().find(|value| grid::exact_units(*value).is_none());
            return self.wrong(row, WrongKind::OffGrid(value.unwrap_or(f32::NAN)));
        };
        let sum = self.ledger.sum(row).map_or_else(|| vec![0; found.len()], <[i64]>::to_vec);
        let expected: Vec<i64> = sum.iter().map(|sum| -sum).collect();
        // Values fall by what is applied.
        let missing = (0..found.len()).map(|at| expected.get(at).copied().unwrap_or_default() - found[at]).collect();
        let is_equal = found == expected;
        let is_explained = match self.doubts.has(row) {
            true => {
                self.verdict.in_doubt += 1;
                self.verdict.applied += u64::from(!is_equal);
                self.doubts.take(DoubtedRow { row, missing }) != Some(false)
            }
            false => is_equal,
        };
        if !is_explained {
            let position = (0..found.len()).find(|at| found.get(*at) != expected.get(*at)).unwrap_or(0);
            let (found, expected) = (found[position], expected.get(position).copied().unwrap_or_default());
            self.wrong(row, WrongKind::Differs { found, expected });
        }
    }

    pub(crate) fn finish(mut self) -> RowVerdict {
        let missing: Vec<RowId> = self.ledger.rows().filter(|row| !self.seen.contains(row)).collect();
        for row in missing {
            if self.ledger.sum(row).is_some_and(|sum| sum.iter().any(|sum| *sum != 0)) {
                self.wrong(row, WrongKind::Missing);
            }
        }
        let doubts = std::mem::replace(&mut self.doubts, DoubtSolver::new(HashMap::new()));
        for DoubtedRow { row, missing } in doubts.finish() {
            let expected = -self.ledger.sum(row).and_then(|sum| sum.first()).copied().unwrap_or_default();
            let found = expected - missing.first().copied().unwrap_or_default();
            self.wrong(row, WrongKind::Differs { found, expected });
        }
        self.verdict
    }

    fn wrong(&mut self, row: RowId, kind: WrongKind) {
        self.verdict.wrong += 1;
        if self.verdict.examples.len() < SHOWN {
            self.verdict.examples.push(WrongRow { row, kind });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::PushKey;

    const DIM: usize = 2;

    fn key(seq: u64) -> PushKey {
        PushKey { writer: 1, incarnation: 1, seq }
    }

    /// A table of a server, made for the test.
    #[derive(Default)]
    struct Model(HashMap<RowId, [f32; DIM]>);

    impl Model {
        fn apply(&mut self, rows: &[(RowId, Vec<i32>)]) {
            for (row, gradient) in rows {
                let weights = self.0.entry(*row).or_default();
                (0..DIM).for_each(|at| weights[at] -= grid::units_to_value(gradient[at]));
            }
        }

        fn verdict(&self, ledger: &PushLedger) -> RowVerdict {
            let mut oracle = RowOracle::new(ledger);
            self.0.iter().for_each(|(row, weights)| oracle.check(*row, weights));
            oracle.finish()
        }
    }

    fn push(seq: u64) -> Vec<(RowId, Vec<i32>)> {
        (0..4_u64).map(|id| ((0, (id * 3 + seq) % 7), vec![seq as i32 * 5 - 40, id as i32 + 1])).collect()
    }

    /// Twenty pushes that are acknowledged, and applied so often.
    fn run(times: impl Fn(u64) -> usize) -> RowVerdict {
        let (mut ledger, mut model) = (PushLedger::default(), Model::default());
        for seq in 0..20 {
            let rows = push(seq);
            ledger.sent(key(seq), 0, rows.clone());
            (0..times(seq)).for_each(|_| model.apply(&rows));
            ledger.acknowledged(key(seq), &rows.iter().map(|(row, _)| *row).collect::<Vec<_>>());
        }
        model.verdict(&ledger)
    }

    #[test]
    fn a_push_that_is_lost_or_applied_twice_is_found() {
        let exact = run(|_| 1);
        assert_eq!((exact.rows, exact.wrong, exact.in_doubt), (7, 0, 0));
        let lost = run(|seq| if seq == 11 { 0 } else { 1 });
        assert_eq!(lost.wrong, 4, "the rows of one push: {:?}", lost.examples);
        let doubled = run(|seq| if seq == 3 { 2 } else { 1 });
        assert_eq!(doubled.wrong, 4, "{:?}", doubled.examples);
        let text = doubled.examples[0].to_string();
        assert!(text.contains("but its acknowledged pushes give"), "{text}");
    }

    #[test]
    fn rows_that_are_missing_or_no_sum_at_all_are_found() {
        let mut ledger = PushLedger::default();
        ledger.sent(key(1), 0, push(1));
        ledger.acknowledged(key(1), &push(1).iter().map(|(row, _)| *row).collect::<Vec<_>>());
        assert_eq!(Model::default().verdict(&ledger).wrong, 4);
        let mut model = Model::default();
        model.apply(&push(1));
        model.0.entry((0, 1)).or_default()[0] = 0.3;
        let verdict = model.verdict(&ledger);
        assert_eq!((verdict.wrong, verdict.examples[0].kind.clone()), (1, WrongKind::OffGrid(0.3)));
    }

    #[test]
    fn a_push_of_a_killed_worker_may_be_applied_or_not_but_never_twice() {
        let mut ledger = PushLedger::default();
        ledger.sent(key(1), 0, push(1));
        for (times, is_exact) in [(0, true), (1, true), (2, false)] {
            let mut model = Model::default();
            (0..times).for_each(|_| model.apply(&push(1)));
            let verdict = model.verdict(&ledger);
            assert_eq!(verdict.wrong == 0, is_exact, "applied {times} times: {:?}", verdict.examples);
        }
    }
}
