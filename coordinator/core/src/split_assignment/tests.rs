//! The split ledger of a run, by value.

use zagros_protocol::control::{ResumeCursor, Split};

use super::epoch::FreeSplits;
use super::*;
use crate::SplitOrder;

const ADA: MemberSlot = MemberSlot::worker(0);
const BOB: MemberSlot = MemberSlot::worker(1);

fn shares(workers: u32, fixed: bool) -> SplitShares {
    SplitShares { workers, fixed, order: SplitOrder::AsInFiles }
}

fn plan(splits: u64) -> Vec<SplitRange> {
    (0..splits).map(|split| SplitRange { file: 0, start: split * 10, end: split * 10 + 10 }).collect()
}

fn epochs(splits: u64, epochs: u32) -> SplitLedger {
    SplitLedger::new(plan(splits), epochs, shares(1, false))
}

/// The start of the split that is dealt out, or the answer that replaces it.
fn ask(ledger: &mut SplitLedger, epoch: u32, slot: MemberSlot) -> Result<u64, &'static str> {
    let request = AssignRequest { epoch, ..AssignRequest::default() };
    match ledger.assign_split(&request, slot, 1).unwrap().work.unwrap() {
        Work::Split(split) => Ok(split.start),
        Work::ResumeCursor(_) => Err("resume cursor"),
        Work::Wait(_) => Err("wait"),
        Work::EpochDone(_) => Err("done"),
    }
}

#[test]
fn one_worker_reads_in_order_and_never_waits_for_itself() {
    let mut ledger = epochs(3, 1);
    assert_eq!([0, 1, 2].map(|_| ask(&mut ledger, 0, ADA).unwrap()), [0, 10, 20]);
    // The worker's last batch is not trained yet, and is not trained while the reader waits. So the reader must not wait.
    assert_eq!(ask(&mut ledger, 0, ADA), Err("done"));
    assert_eq!(ledger.current_epoch(), (0, 0));
    assert_eq!(ledger.complete_splits(0, &[0, 1], ADA), Ok(false));
    assert_eq!(ledger.complete_splits(0, &[2], ADA), Ok(true));
    assert_eq!(ledger.complete_splits(0, &[2], ADA), Ok(false), "a repeated call completes the epoch again");
}

/// Invariant SP-4. A question whose answer is lost is asked again. The first one may arrive after its repetition, and after the next question.
#[test]
fn a_repeated_question_has_the_same_answer_and_a_late_one_deals_nothing() {
    let mut ledger = epochs(3, 1);
    let mut ask = |question: u64, incarnation: u32| {
        let request = AssignRequest { question, incarnation, ..AssignRequest::default() };
        ledger.assign_split(&request, ADA, 1).map(|answer| answer.work)
    };
    let first = ask(1, 1).unwrap();
    assert_eq!([ask(1, 1).unwrap(), ask(1, 1).unwrap()], [first.clone(), first.clone()]);
    let second = ask(2, 1).unwrap();
    assert_ne!(first, second);
    assert!(ask(1, 1).unwrap_err().message.contains("question 1 comes after question 2"));
    let third = ask(3, 1).unwrap();
    let (Some(Work::Split(one)), Some(Work::Split(next))) = (&second, &third) else { panic!("{second:?} {third:?}") };
    assert_eq!(one.start + 10, next.start);
    assert_eq!(ask(4, 1).unwrap(), Some(Work::EpochDone(EpochDone { leave: false })));
    // Another process in the same place counts its questions anew, once the splits of the one before are free.
    ledger.release_splits(ADA);
    let request = AssignRequest { question: 1, incarnation: 2, ..AssignRequest::default() };
    assert_eq!(ledger.assign_split(&request, ADA, 1).unwrap().work, first);
}

/// An epoch that no worker reads takes no memory, whatever the number of epochs and of splits.
#[test]
fn only_open_epochs_take_memory() {
    let mut ledger = epochs(2, 1000);
    for epoch in 0..999 {
        assert_eq!([ask(&mut ledger, epoch, ADA), ask(&mut ledger, epoch, ADA)], [Ok(0), Ok(10)]);
        assert_eq!(ledger.complete_splits(epoch, &[split_id(epoch, 0), split_id(epoch, 1)], ADA), Ok(true));
        let open = ledger.epochs.iter().filter(|epoch| matches!(epoch, EpochLedger::Open(_))).count();
        assert_eq!((open, ledger.current_epoch()), (0, (epoch + 1, 0)));
    }
    assert_eq!(ask(&mut ledger, 4, BOB), Err("done"));
    assert!(ledger.complete_splits(4, &[split_id(4, 2)], ADA).unwrap_err().message.contains("does not exist"));
    assert_eq!(ledger.epoch_position(4).unwrap().done, [split_id(4, 0), split_id(4, 1)]);
}

#[test]
fn a_silent_holder_keeps_its_splits_until_another_worker_has_nothing_else_to_read() {
    let mut ledger = epochs(3, 1);
    ask(&mut ledger, 0, ADA).unwrap();
    assert_eq!(ledger.suspend_holder(ADA), 1);
    assert_eq!(ask(&mut ledger, 0, BOB), Ok(10));
    assert!(ledger.reclaim_splits(ADA), "the split was given away though another one was free");
    ledger.suspend_holder(ADA);
    assert_eq!([ask(&mut ledger, 0, BOB), ask(&mut ledger, 0, BOB)], [Ok(20), Ok(0)]);
    assert!(!ledger.reclaim_splits(ADA), "two workers read one split");
    assert_eq!(held(&ledger), (0, 3));
}

#[test]
fn only_the_holder_completes_splits_and_a_call_completes_all_or_none() {
    let mut ledger = epochs(3, 2);
    ask(&mut ledger, 0, ADA).unwrap();
    ask(&mut ledger, 0, BOB).unwrap();
    let refused = ledger.complete_splits(0, &[0, 1], ADA).unwrap_err();
    assert_eq!(refused.message, "split 1 of epoch 0 is held by dense worker 1, not by dense worker 0");
    assert_eq!(ledger.current_epoch(), (0, 0));
    assert!(ledger.complete_splits(0, &[2], ADA).unwrap_err().message.contains("is not held by"));
    assert!(ledger.complete_splits(0, &[split_id(1, 0)], ADA).unwrap_err().message.contains("does not exist"));
    assert!(ledger.complete_splits(2, &[], ADA).unwrap_err().message.contains("the job has 2"));
    assert!(ledger.assign_split(&AssignRequest { epoch: 2, ..AssignRequest::default() }, ADA, 1).is_err());
}

#[test]
fn workers_read_their_own_share_first_and_then_any_split_unless_shares_are_fixed() {
    let ledger = |fixed| SplitLedger::new(plan(3), 1, shares(2, fixed));
    let mut shared = ledger(false);
    assert_eq!([BOB, BOB, ADA].map(|slot| ask(&mut shared, 0, slot)), [Ok(10), Ok(0), Ok(20)]);
    assert_eq!([ask(&mut shared, 0, ADA), ask(&mut shared, 0, BOB)], [Err("wait"); 2]);
    let mut fixed = ledger(true);
    let found = [BOB, BOB, ADA, ADA, ADA].map(|slot| ask(&mut fixed, 0, slot));
    assert_eq!(found, [Ok(10), Err("done"), Ok(0), Ok(20), Err("done")]);
    assert_eq!(fixed.release_splits(ADA), 2);
    assert_eq!([ask(&mut fixed, 0, BOB), ask(&mut fixed, 0, ADA)], [Err("done"), Ok(0)]);
}

#[test]
fn the_next_split_is_the_first_of_the_workers_share_in_every_state_of_the_free_splits() {
    let order = SplitOrder::Shuffled { seed: 3, window_rows: 1 };
    for (workers, fixed) in [(1, false), (3, false), (3, true)] {
        let shares = SplitShares { workers, fixed, order };
        let mut all: BTreeSet<_> = (0..40).map(|split| order.position(1, split)).collect();
        let mut free = FreeSplits::new(workers, all.iter().copied());
        let mut slots = (0..5).cycle().map(MemberSlot::worker);
        while !free.is_empty() {
            let slot = slots.next().unwrap();
            let own = all.iter().find(|position| position.split % workers == slot.index);
            let next = own.or_else(|| all.first().filter(|_| !fixed)).copied();
            assert_eq!(shares.next_split(&free, slot), next, "{slot} of {workers}, fixed: {fixed}");
            if let Some(next) = next {
                assert!(all.remove(&next) && free.remove(next) && !free.remove(next));
            }
        }
        assert!(all.is_empty());
    }
}

/// Regression: of two workers with a shuffle window as large as the file, the one that started first took nearly every split into its
/// window, and the other one made its steps without samples.
#[test]
fn a_worker_that_reads_ahead_leaves_to_each_other_as_many_splits_as_it_holds() {
    let asks = |ledger: &mut SplitLedger, slot, present| {
        let request = AssignRequest { epoch: 0, continuing: true, ..AssignRequest::default() };
        match ledger.assign_split(&request, slot, present).unwrap().work.unwrap() {
            Work::Split(split) => Ok(split.start),
            Work::Wait(wait) => Err(wait.reason),
            _ => Err("done".to_owned()),
        }
    };
    let mut ledger = SplitLedger::new(plan(9), 1, shares(2, false));
    let all = |ledger: &mut SplitLedger, slot, present| std::iter::from_fn(|| asks(ledger, slot, present).ok()).count();
    assert_eq!(all(&mut ledger, ADA, 2), 5, "half of nine, and no more");
    let full = "dense worker 0 holds its part of epoch 0, 5 splits, and has not trained on them yet";
    assert_eq!(asks(&mut ledger, ADA, 2), Err(full.to_owned()));
    assert_eq!(asks(&mut ledger, BOB, 2), Ok(10));
    // The splits that it has trained on make room for others, so it waits for no worker that does not come.
    assert_eq!(ledger.complete_splits(0, &[split_id(0, 0), split_id(0, 2)], ADA), Ok(false));
    assert_eq!(all(&mut ledger, ADA, 2), 2);
    assert_eq!(all(&mut ledger, BOB, 2), 1, "the last one");
    assert_eq!(ledger.release_splits(BOB), 2);
    assert_eq!(all(&mut ledger, ADA, 1), 2, "it is alone now");
}

/// Regression: label-sorted files were read in the same order in each epoch.
#[test]
fn each_epoch_has_its_own_order_of_splits_and_a_resumed_run_keeps_it() {
    let plan = || (0..20).map(|split| SplitRange { file: 0, start: split, end: split + 1 }).collect::<Vec<_>>();
    let shares = SplitShares { order: SplitOrder::Shuffled { seed: 5, window_rows: 1 }, ..shares(1, false) };
    let all = |ledger: &mut SplitLedger, epoch| std::iter::from_fn(|| ask(ledger, epoch, ADA).ok()).collect::<Vec<_>>();
    let mut ledger = SplitLedger::new(plan(), 2, shares);
    let (first, second) = (all(&mut ledger, 0), all(&mut ledger, 1));
    assert_ne!(first, (0..20).collect::<Vec<_>>());
    assert_ne!(first, second);

    let mut ledger = SplitLedger::new(plan(), 2, shares);
    let dealt: Vec<u64> = (0..7).map(|_| ask(&mut ledger, 1, ADA).unwrap()).collect();
    let done: Vec<u64> = dealt.iter().map(|start| split_id(1, *start as u32)).collect();
    ledger.complete_splits(1, &done, ADA).unwrap();
    let mut resumed = SplitLedger::from_position(&ledger.epoch_position(1).unwrap(), 2, shares, 1).unwrap();
    assert_eq!([dealt, all(&mut resumed, 1)].concat(), second);
    // A split of a lost worker has its former position in the order.
    assert_eq!(resumed.release_splits(ADA), 13);
    assert_eq!(all(&mut resumed, 1), second[7..]);
}

#[test]
fn epochs_are_booked_separately() {
    let mut ledger = epochs(1, 2);
    ask(&mut ledger, 0, ADA).unwrap();
    ask(&mut ledger, 1, ADA).unwrap();
    assert_eq!(ledger.complete_splits(1, &[split_id(1, 0)], ADA), Ok(true));
    assert_eq!(ledger.current_epoch(), (0, 0));
    assert_eq!(ledger.complete_splits(0, &[split_id(0, 0)], ADA), Ok(true));
    assert_eq!(ledger.current_epoch(), (1, 1));
}

fn held(ledger: &SplitLedger) -> (usize, usize) {
    (ledger.held_by(ADA), ledger.held_by(BOB))
}

fn split(id: u64) -> Split {
    Split { id: split_id(1, id as u32), file: 0, start: id * 10, end: id * 10 + 10 }
}

/// The second epoch of five splits: split 0 is done, two workers were in the middle of streams.
fn position() -> Position {
    let cursor = |reader, splits: &[u64]| {
        let splits = splits.iter().copied().map(split).collect();
        ResumeCursor { reader, splits, skip: 3, ..ResumeCursor::default() }
    };
    let (plan, done) = ((0..5).map(split).collect(), vec![split(0).id]);
    Position { epoch: 1, plan, done, resume_cursors: vec![cursor(0, &[0, 2]), cursor(1, &[1])], bad_rows: 0 }
}

fn resumed(workers: u32, fixed: bool) -> SplitLedger {
    SplitLedger::from_position(&position(), 3, shares(workers, fixed), 1).unwrap()
}

fn reader(ledger: &mut SplitLedger, slot: MemberSlot) -> Option<(u32, u64)> {
    let request = AssignRequest { epoch: 1, ..AssignRequest::default() };
    match ledger.assign_split(&request, slot, 1).unwrap().work.unwrap() {
        Work::ResumeCursor(cursor) => Some((cursor.reader, cursor.skip)),
        _ => None,
    }
}

#[test]
fn each_worker_reads_its_own_resume_cursor_and_then_its_share() {
    let mut ledger = resumed(2, true);
    assert_eq!(ledger.current_epoch(), (1, 1));
    assert_eq!((reader(&mut ledger, BOB), reader(&mut ledger, ADA)), (Some((1, 3)), Some((0, 3))));
    // Each also holds the split that is done, which it only reads again.
    assert_eq!(held(&ledger), (1, 1));
    assert_eq!([ask(&mut ledger, 1, ADA), ask(&mut ledger, 1, BOB)], [Ok(40), Ok(30)]);
    assert_eq!([ask(&mut ledger, 1, ADA), ask(&mut ledger, 1, BOB)], [Err("done"); 2]);
    let ids = |splits: &[u64]| splits.iter().map(|id| split(*id).id).collect::<Vec<_>>();
    assert_eq!(ledger.complete_splits(1, &ids(&[0, 2, 4]), ADA), Ok(false));
    assert_eq!(ledger.complete_splits(1, &ids(&[1, 3]), BOB), Ok(true));
    assert_eq!(ask(&mut ledger, 2, ADA), Ok(0));
}

#[test]
fn fewer_workers_take_all_cursors_one_after_another() {
    let mut ledger = resumed(1, false);
    assert_eq!(reader(&mut ledger, ADA), Some((0, 3)));
    let continuing = AssignRequest { epoch: 1, continuing: true, ..AssignRequest::default() };
    let go_on = |ledger: &mut SplitLedger| match ledger.assign_split(&continuing, ADA, 1).unwrap().work.unwrap() {
        Work::Split(split) => Some(split.start),
        _ => None,
    };
    assert_eq!([go_on(&mut ledger), go_on(&mut ledger), go_on(&mut ledger)], [Some(30), Some(40), None]);
    assert_eq!(reader(&mut ledger, ADA), Some((1, 3)));
    assert_eq!(ask(&mut ledger, 1, ADA), Err("done"));
}

#[test]
fn the_splits_of_a_lost_workers_cursor_are_read_from_their_start() {
    let mut ledger = resumed(2, false);
    assert_eq!(reader(&mut ledger, ADA), Some((0, 3)));
    assert_eq!(ledger.release_splits(ADA), 1);
    assert_eq!(reader(&mut ledger, BOB), Some((1, 3)));
    assert_eq!([ask(&mut ledger, 1, BOB), ask(&mut ledger, 1, BOB)], [Ok(30), Ok(20)]);
}

#[test]
fn a_resumed_ledger_has_the_position_that_it_resumed_from() {
    let ledger = resumed(2, false);
    assert!(!ledger.is_untouched() && epochs(3, 1).is_untouched());
    assert_eq!(ledger.epoch_position(1).unwrap(), Position { resume_cursors: Vec::new(), ..position() });
    assert!(ledger.epoch_position(3).is_err());
}

#[test]
fn an_impossible_position_is_refused() {
    let shares = shares(1, false);
    let refused = |change: fn(&mut Position)| {
        let mut position = position();
        change(&mut position);
        SplitLedger::from_position(&position, 3, shares, 1).unwrap_err().message
    };
    assert!(refused(|position| position.epoch = 3).contains("split 0 of the position"));
    assert!(refused(|position| position.plan[2].file = 1).contains("split 2 of the position"));
    assert!(refused(|position| position.done.push(77)).contains("split 77 is not in"));
    assert!(refused(|position| position.resume_cursors[1].splits = vec![split(2)]).contains("in two resume cursors"));
}
