//! Sums of the gradients that servers acknowledged, and the pushes whose answer is unknown.
//!
//! A run of mode `sync` that loses a worker goes back to its newest checkpoint. Its rows are then those of that step, and the ledger
//! goes back with them:
//!
//! ```text
//! step      40        41        42        43     the worker is lost; the newest checkpoint is of step 41
//! pushes  ──┼────●────┼────●────┼────●────┼──✗
//!                     ▲    └──── taken back ────┘    the next push is of step 41 again
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Pushes of a writer that are remembered behind its newest one. A client never repeats an older one.
const REMEMBERED: u64 = 64;
const MOST_PROBLEMS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PushKey {
    pub(crate) writer: u64,
    pub(crate) incarnation: u32,
    pub(crate) seq: u64,
}

/// The rows of a push. Parts of a push go to several servers, and a part may be sent again: each row counts once.
#[derive(Clone, Debug, Default)]
struct LedgerPush {
    /// Training steps before the one that it is of.
    step: u64,
    unsent: HashSet<RowId>,
    /// Sent, and not known to be applied: with which part, and the gradient.
    open: HashMap<RowId, (u64, Vec<i32>)>,
    acknowledged: HashSet<RowId>,
}

impl LedgerPush {
    fn is_answered(&self) -> bool {
        self.unsent.is_empty() && self.open.is_empty()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PushLedger {
    /// Sums of acknowledged gradients in grid units, by row.
    sums: HashMap<RowId, Vec<i64>>,
    pushes: BTreeMap<PushKey, LedgerPush>,
    /// Acknowledged parts of pushes.
    pub(crate) parts: u64,
    parts_sent: u64,
    pub(crate) problems: BTreeSet<String>,
    pub(crate) history: StepHistory,
}

/// A gradient of a row that may be applied or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DoubtedGradient<'a> {
    /// The part of the push that it was sent with. A server applies a part as a whole, unless it is killed in the middle.
    pub(crate) part: u64,
    pub(crate) gradient: &'a [i32],
}

impl PushLedger {
    /// The ledger of a run that goes back to its newest checkpoint when it loses a worker.
    pub(crate) fn of_a_run_that_goes_back() -> Self {
        Self { history: StepHistory { is_kept: true, ..StepHistory::default() }, ..Self::default() }
    }

    /// How far it goes back says its next push: what came at that step or later is not in the rows of the checkpoint.
    pub(crate) fn go_back(&mut self) {
        self.pushes.clear();
        self.history.is_going_back = true;
    }

    /// The client of a worker is about to route a push of these rows.
    pub(crate) fn started(&mut self, key: PushKey, step: u64, rows: HashSet<RowId>) {
        self.pushes.insert(key, LedgerPush { step, unsent: rows, ..LedgerPush::default() });
    }

    /// A worker takes a push as acknowledged. Whatever of it was not is lost.
    pub(crate) fn finished(&mut self, key: PushKey) {
        let Some(LedgerPush { unsent, open, .. }) = self.pushes.get(&key) else { return };
        if (unsent.len(), open.len()) != (0, 0) && self.problems.len() < MOST_PROBLEMS {
            let (PushKey { writer, incarnation, seq }, never, no_answer) = (key, unsent.len(), open.len());
            self.problems.insert(format!(
                "push {seq} of writer {writer}, incarnation {incarnation}, counts as acknowledged, though {never} of its rows were \
                 never sent and {no_answer} never acknowledged"
            ));
        }
    }

    /// A worker is about to send these rows of a push to a server. `step` steps were made before that of the push.
    pub(crate) fn sent(&mut self, key: PushKey, step: u64, rows: Vec<(RowId, Vec<i32>)>) {
        if std::mem::take(&mut self.history.is_going_back) {
            self.return_to(step);
        }
        self.forget_before(key);
        self.parts_sent += 1;
        let part = self.parts_sent;
        let push = self.pushes.entry(key).or_insert_with(|| LedgerPush { step, ..LedgerPush::default() });
        for (row, gradient) in rows {
            push.unsent.remove(&row);
            if push.acknowledged.contains(&row) {
                continue;
            }
            if let Some((_, before)) = push.open.insert(row, (part, gradient.clone()))
                && before != gradient
            {
                let problem = format!("push {} of writer {} was repeated with other gradients", key.seq, key.writer);
                self.problems.insert(problem);
            }
        }
    }

    /// A server has acknowledged these rows of a push.
    pub(crate) fn acknowledged(&mut self, key: PushKey, rows: &[RowId]) {
        let Some(push) = self.pushes.get_mut(&key) else {
            self.problems.insert(format!("push {} of writer {} was acknowledged and never sent", key.seq, key.writer));
            return;
        };
        self.parts += 1;
        for row in rows {
            let Some((_, gradient)) = push.open.remove(row) else { continue };
            push.acknowledged.insert(*row);
            add(&mut self.sums, *row, &gradient, 1);
            self.history.note(push.step, *row, gradient);
        }
    }

    /// Takes back what was acknowledged at this step or later.
    fn return_to(&mut self, step: u64) {
        if step < self.history.settled {
            let settled = self.history.settled;
            let problem = format!("the run went back to step {step}, although it had a checkpoint of step {settled}");
            self.problems.insert(problem);
        }
        for (row, gradient) in self.history.take_from(step) {
            add(&mut self.sums, row, &gradient, -1);
        }
    }

    /// Drops the pushes that are acknowledged and so old that none is repeated.
    fn forget_before(&mut self, newest: PushKey) {
        let first = PushKey { seq: 0, ..newest };
        let until = PushKey { seq: newest.seq.saturating_sub(REMEMBERED), ..newest };
        let done = |push: &LedgerPush| push.is_answered();
        let old: Vec<PushKey> =
            self.pushes.range(first..until).filter(|(_, push)| done(push)).map(|(key, _)| *key).collect();
        old.iter().for_each(|key| drop(self.pushes.remove(key)));
    }

    /// The sum of a row's acknowledged gradients.
    pub(crate) fn sum(&self, row: RowId) -> Option<&[i64]> {
        self.sums.get(&row).map(Vec::as_slice)
    }

    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = RowId> {
        self.sums.keys().copied()
    }

    /// Whether each row has the same sum as in another run. A row whose pushes were all taken back is as one without pushes.
    pub(crate) fn has_sums_of(&self, other: &Self) -> bool {
        let are_in = |mine: &Self, others: &Self| {
            let is_in = |(row, sum): (&RowId, &Vec<i64>)| {
                others.sums.get(row).map_or_else(|| sum.iter().all(|sum| *sum == 0), |other| other == sum)
            };
            mine.sums.iter().all(is_in)
        };
        are_in(self, other) && are_in(other, self)
    }

    /// The gradients of a row that may or may not be applied, because their writer did not live to see the answer.
    pub(crate) fn in_doubt(&self) -> HashMap<RowId, Vec<DoubtedGradient<'_>>> {
        let mut rows: HashMap<RowId, Vec<DoubtedGradient<'_>>> = HashMap::new();
        for (row, (part, gradient)) in self.pushes.values().flat_map(|push| &push.open) {
            rows.entry(*row).or_default().push(DoubtedGradient { part: *part, gradient });
        }
        rows
    }

    /// Pushes without an acknowledgement of all their rows, by writer.
    pub(crate) fn unanswered(&self) -> Vec<PushKey> {
        self.pushes.iter().filter(|(_, push)| !push.is_answered()).map(|(key, _)| *key).collect()
    }
}

fn add(sums: &mut HashMap<RowId, Vec<i64>>, row: RowId, gradient: &[i32], sign: i64) {
    let sum = sums.entry(row).or_insert_with(|| vec![0; gradient.len()]);
    sum.iter_mut().enumerate().for_each(|(at, sum)| *sum += sign * i64::from(gradient.get(at).copied().unwrap_or(0)));
}

/// How a row is named: by its table's place in the job, and its id.
pub(crate) type RowId = (u32, u64);

/// What was acknowledged at each step since the newest checkpoint: gradients by step, so that a ledger can go back.
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
    pub(crate) fn note(&mut self, step: u64, row: RowId, gradient: Vec<i32>) {
        if self.is_kept {
            self.acknowledged.entry(step).or_default().push((row, gradient));
        }
    }

    /// There is a whole checkpoint of this step: the run goes back no further, and the steps before it are forgotten.
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
        ledger.sent(KEY, 0, rows(&[1, 2], 3));
        ledger.sent(KEY, 0, rows(&[7], 3));
        ledger.acknowledged(KEY, &[(0, 1), (0, 2)]);
        // The worker did not hear the answer and asks again.
        ledger.sent(KEY, 0, rows(&[1, 2], 3));
        ledger.acknowledged(KEY, &[(0, 1), (0, 2)]);
        assert_eq!(ledger.sum((0, 1)), Some(&[3, 3][..]));
        assert_eq!(ledger.sum((0, 7)), None);
        assert_eq!(ledger.unanswered(), [KEY]);
        assert_eq!(ledger.in_doubt(), HashMap::from([((0, 7), vec![DoubtedGradient { part: 2, gradient: &[3, 3] }])]));
        ledger.acknowledged(KEY, &[(0, 7)]);
        assert!(ledger.unanswered().is_empty() && ledger.problems.is_empty());
    }

    #[test]
    fn a_repeated_push_with_other_gradients_is_a_problem() {
        let mut ledger = PushLedger::default();
        ledger.sent(KEY, 0, rows(&[1], 3));
        ledger.sent(KEY, 0, rows(&[1], 4));
        assert!(ledger.problems.first().is_some_and(|problem| problem.contains("other gradients")));
        ledger.acknowledged(PushKey { seq: 6, ..KEY }, &[(0, 1)]);
        assert_eq!(ledger.problems.len(), 2);
    }

    /// A part that routing drops is in no shard's sight. It is found at once, also where its worker is killed later.
    #[test]
    fn a_part_of_a_push_that_is_never_sent_is_found() {
        let ids = |ids: &[u64]| ids.iter().map(|id| (0, *id)).collect::<Vec<RowId>>();
        let mut ledger = PushLedger::default();
        ledger.started(KEY, 0, ids(&[1, 2, 3]).into_iter().collect());
        ledger.sent(KEY, 0, rows(&[1, 2], 3));
        ledger.acknowledged(KEY, &ids(&[1, 2]));
        assert_eq!(ledger.unanswered(), [KEY], "row 3 was not sent yet");
        let mut whole = ledger.clone();
        whole.sent(KEY, 0, rows(&[3], 3));
        whole.acknowledged(KEY, &ids(&[3]));
        whole.finished(KEY);
        assert!(whole.unanswered().is_empty() && whole.problems.is_empty());
        ledger.finished(KEY);
        let problem = ledger.problems.first().unwrap();
        assert!(problem.ends_with("though 1 of its rows were never sent and 0 never acknowledged"), "{problem}");
    }

    #[test]
    fn only_answered_pushes_are_forgotten() {
        let mut ledger = PushLedger::default();
        for seq in 0..300 {
            ledger.sent(PushKey { seq, ..KEY }, 0, rows(&[seq], 1));
            if seq != 10 {
                ledger.acknowledged(PushKey { seq, ..KEY }, &[(0, seq)]);
            }
        }
        assert!(ledger.pushes.len() as u64 <= REMEMBERED + 2, "{}", ledger.pushes.len());
        assert_eq!((ledger.unanswered().len(), ledger.rows().len(), ledger.parts), (1, 299, 299));
    }

    /// Pushes one row at each step.
    fn push_steps(ledger: &mut PushLedger, steps: std::ops::Range<u64>, gradient: i32) {
        for step in steps {
            let key = PushKey { seq: step, ..KEY };
            ledger.sent(key, step, rows(&[1, 100 + step], gradient));
            ledger.acknowledged(key, &[(0, 1), (0, 100 + step)]);
        }
    }

    #[test]
    fn a_ledger_that_goes_back_is_as_if_the_later_steps_had_not_been() {
        let mut ledger = PushLedger::of_a_run_that_goes_back();
        push_steps(&mut ledger, 0..8, 3);
        ledger.sent(PushKey { seq: 8, ..KEY }, 8, rows(&[1], 3));
        ledger.history.settle(5);
        ledger.go_back();
        assert!(ledger.unanswered().is_empty(), "what was on the way is in no checkpoint");
        push_steps(&mut ledger, 5..6, 4);
        assert_eq!(ledger.sum((0, 1)), Some(&[19, 19][..]), "five steps of 3, one of 4");
        assert_eq!((ledger.sum((0, 105)), ledger.sum((0, 106))), (Some(&[4, 4][..]), Some(&[0, 0][..])));
        // Once more, before another checkpoint.
        ledger.go_back();
        push_steps(&mut ledger, 5..7, 3);
        assert_eq!((ledger.sum((0, 1)), ledger.history.returns), (Some(&[21, 21][..]), 2));
        let mut undisturbed = PushLedger::default();
        push_steps(&mut undisturbed, 0..7, 3);
        assert!(ledger.has_sums_of(&undisturbed) && undisturbed.has_sums_of(&ledger));
        push_steps(&mut undisturbed, 7..8, 3);
        assert!(!ledger.has_sums_of(&undisturbed) && !undisturbed.has_sums_of(&ledger));
        assert_eq!(ledger.problems.first(), None);
    }

    #[test]
    fn a_run_that_goes_back_further_than_its_newest_checkpoint_is_a_problem() {
        let mut ledger = PushLedger::of_a_run_that_goes_back();
        push_steps(&mut ledger, 0..8, 3);
        ledger.history.settle(5);
        ledger.go_back();
        push_steps(&mut ledger, 4..5, 3);
        assert!(ledger.problems.first().is_some_and(|problem| problem.contains("a checkpoint of step 5")));
    }
}
