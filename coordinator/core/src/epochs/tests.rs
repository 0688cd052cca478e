//! The books of a run, by value.

use super::*;

const ADA: MemberSlot = MemberSlot::worker(0);
const BOB: MemberSlot = MemberSlot::worker(1);

fn shares(workers: u32, fixed: bool) -> Shares {
    Shares { workers, fixed, order: SplitOrder::AsInFiles }
}

fn epochs(splits: u64, epochs: u32) -> Epochs {
    let plan = (0..splits).map(|split| SplitRange { file: 0, start: split * 10, end: split * 10 + 10 });
    Epochs::new(plan.collect(), epochs, shares(1, false))
}

/// Start of the split that is handed out, or what is said instead.
fn ask(books: &mut Epochs, epoch: u32, slot: MemberSlot) -> Result<u64, &'static str> {
    let request = AssignRequest { epoch, ..AssignRequest::default() };
    match books.assign(&request, slot).unwrap().work.unwrap() {
        assign_response::Work::Split(split) => Ok(split.start),
        assign_response::Work::ResumeCursor(_) => Err("resume cursor"),
        assign_response::Work::Wait(_) => Err("wait"),
        assign_response::Work::EpochDone(_) => Err("done"),
    }
}

#[test]
fn one_worker_reads_in_order_and_never_waits_for_itself() {
    let mut books = epochs(3, 1);
    assert_eq!([0, 1, 2].map(|_| ask(&mut books, 0, ADA).unwrap()), [0, 10, 20]);
    // Its last batch is not trained yet, and it will not be while the reader waits: so it is told to go on.
    assert_eq!(ask(&mut books, 0, ADA), Err("done"));
    assert_eq!(books.current(), (0, 0));
    assert_eq!(books.complete(0, &[0, 1], ADA), Ok(false));
    assert_eq!(books.complete(0, &[2], ADA), Ok(true));
    assert_eq!(books.complete(0, &[2], ADA), Ok(false), "a repeated call completes the epoch again");
}

#[test]
fn a_split_of_a_lost_worker_is_read_by_another() {
    let mut books = epochs(2, 1);
    ask(&mut books, 0, ADA).unwrap();
    ask(&mut books, 0, BOB).unwrap();
    assert_eq!(ask(&mut books, 0, BOB), Err("wait"));
    assert_eq!(books.release(ADA), 1);
    assert_eq!(ask(&mut books, 0, BOB), Ok(0));
    assert_eq!((books.held_by(ADA), books.held_by(BOB)), (0, 2));
}

/// An epoch that nobody reads takes no memory, however many there are and however many splits each has.
#[test]
fn books_are_kept_of_epochs_under_way_alone() {
    let mut books = epochs(2, 1000);
    for epoch in 0..999 {
        assert_eq!([ask(&mut books, epoch, ADA), ask(&mut books, epoch, ADA)], [Ok(0), Ok(10)]);
        assert_eq!(books.complete(epoch, &[split_id(epoch, 0), split_id(epoch, 1)], ADA), Ok(true));
        let open = books.epochs.iter().filter(|books| matches!(books, Books::Open(_))).count();
        assert_eq!((open, books.current()), (0, (epoch + 1, 0)));
    }
    assert_eq!(ask(&mut books, 4, BOB), Err("done"));
    assert!(books.complete(4, &[split_id(4, 2)], ADA).unwrap_err().message.contains("does not exist"));
    assert_eq!(books.position(4).unwrap().done, [split_id(4, 0), split_id(4, 1)]);
}

#[test]
fn a_silent_holder_keeps_its_splits_until_another_worker_has_nothing_else_to_read() {
    let mut books = epochs(3, 1);
    ask(&mut books, 0, ADA).unwrap();
    assert_eq!(books.mark_silent(ADA), 1);
    assert_eq!(ask(&mut books, 0, BOB), Ok(10));
    assert!(books.reclaim(ADA), "the split was given away though another one was free");
    books.mark_silent(ADA);
    assert_eq!([ask(&mut books, 0, BOB), ask(&mut books, 0, BOB)], [Ok(20), Ok(0)]);
    assert!(!books.reclaim(ADA), "two workers read one split");
    assert_eq!((books.held_by(ADA), books.held_by(BOB)), (0, 3));
}

#[test]
fn a_completion_counts_only_for_the_holder_and_all_of_it_or_nothing() {
    let mut books = epochs(3, 2);
    ask(&mut books, 0, ADA).unwrap();
    ask(&mut books, 0, BOB).unwrap();
    let refused = books.complete(0, &[0, 1], ADA).unwrap_err();
    assert_eq!(refused.message, "split 1 of epoch 0 is held by dense worker 1, not by dense worker 0");
    assert_eq!(books.current(), (0, 0));
    assert!(books.complete(0, &[2], ADA).unwrap_err().message.contains("is not held by"));
    assert!(books.complete(0, &[split_id(1, 0)], ADA).unwrap_err().message.contains("does not exist"));
    assert!(books.complete(2, &[], ADA).unwrap_err().message.contains("the job has 2"));
    assert!(books.assign(&AssignRequest { epoch: 2, ..AssignRequest::default() }, ADA).is_err());
}

#[test]
fn workers_read_their_own_share_first_and_then_what_is_left_unless_shares_are_fixed() {
    let plan = |splits: u64| (0..splits).map(|split| SplitRange { file: 0, start: split * 10, end: split * 10 + 10 });
    let books = |fixed| Epochs::new(plan(3).collect(), 1, shares(2, fixed));
    let mut shared = books(false);
    assert_eq!([BOB, BOB, ADA].map(|slot| ask(&mut shared, 0, slot)), [Ok(10), Ok(0), Ok(20)]);
    assert_eq!([ask(&mut shared, 0, ADA), ask(&mut shared, 0, BOB)], [Err("wait"); 2]);
    let mut fixed = books(true);
    assert_eq!(
        [BOB, BOB, ADA, ADA, ADA].map(|slot| ask(&mut fixed, 0, slot)),
        [Ok(10), Err("done"), Ok(0), Ok(20), Err("done")]
    );
    assert_eq!(fixed.release(ADA), 2);
    assert_eq!([ask(&mut fixed, 0, BOB), ask(&mut fixed, 0, ADA)], [Err("done"), Ok(0)]);
}

/// Label-sorted files were read in the same order in each epoch.
#[test]
fn each_epoch_deals_out_its_splits_in_an_order_of_its_own_that_a_resumed_run_goes_on_with() {
    let plan = || (0..20).map(|split| SplitRange { file: 0, start: split, end: split + 1 }).collect::<Vec<_>>();
    let shares = Shares { order: SplitOrder::Shuffled { seed: 5, window_rows: 1 }, ..shares(1, false) };
    let all = |books: &mut Epochs, epoch| std::iter::from_fn(|| ask(books, epoch, ADA).ok()).collect::<Vec<_>>();
    let mut books = Epochs::new(plan(), 2, shares);
    let (first, second) = (all(&mut books, 0), all(&mut books, 1));
    assert_ne!(first, (0..20).collect::<Vec<_>>());
    assert_ne!(first, second);

    let mut books = Epochs::new(plan(), 2, shares);
    let begun: Vec<u64> = (0..7).map(|_| ask(&mut books, 1, ADA).unwrap()).collect();
    let done: Vec<u64> = begun.iter().map(|start| split_id(1, *start as u32)).collect();
    books.complete(1, &done, ADA).unwrap();
    let mut resumed = Epochs::resume(&books.position(1).unwrap(), 2, shares, 1).unwrap();
    assert_eq!([begun, all(&mut resumed, 1)].concat(), second);
    // What a lost worker held has its turn back.
    assert_eq!(resumed.release(ADA), 13);
    assert_eq!(all(&mut resumed, 1), second[7..]);
}

#[test]
fn epochs_are_booked_apart() {
    let mut books = epochs(1, 2);
    ask(&mut books, 0, ADA).unwrap();
    ask(&mut books, 1, ADA).unwrap();
    assert_eq!(books.complete(1, &[split_id(1, 0)], ADA), Ok(true));
    assert_eq!(books.current(), (0, 0));
    assert_eq!(books.complete(0, &[split_id(0, 0)], ADA), Ok(true));
    assert_eq!(books.current(), (1, 1));
}

fn split(id: u64) -> Split {
    Split { id: split_id(1, id as u32), file: 0, start: id * 10, end: id * 10 + 10 }
}

/// The second epoch of five splits: split 0 is done, two workers were in the middle of streams.
fn position() -> Position {
    let cursor = |reader, splits: &[u64]| ResumeCursor {
        reader,
        splits: splits.iter().copied().map(split).collect(),
        skip: 3,
        ..ResumeCursor::default()
    };
    let done = vec![split(0).id];
    Position {
        epoch: 1,
        plan: (0..5).map(split).collect(),
        done,
        resume_cursors: vec![cursor(0, &[0, 2]), cursor(1, &[1])],
        bad_rows: 0,
    }
}

fn resumed(workers: u32, fixed: bool) -> Epochs {
    Epochs::resume(&position(), 3, shares(workers, fixed), 1).unwrap()
}

fn reader(books: &mut Epochs, slot: MemberSlot) -> Option<(u32, u64)> {
    let request = AssignRequest { epoch: 1, ..AssignRequest::default() };
    match books.assign(&request, slot).unwrap().work.unwrap() {
        assign_response::Work::ResumeCursor(cursor) => Some((cursor.reader, cursor.skip)),
        _ => None,
    }
}

#[test]
fn each_worker_goes_on_with_its_own_rest_and_then_with_its_share() {
    let mut books = resumed(2, true);
    assert_eq!(books.current(), (1, 1));
    assert_eq!((reader(&mut books, BOB), reader(&mut books, ADA)), (Some((1, 3)), Some((0, 3))));
    // Held besides the split that is done and only read again.
    assert_eq!((books.held_by(ADA), books.held_by(BOB)), (1, 1));
    assert_eq!([ask(&mut books, 1, ADA), ask(&mut books, 1, BOB)], [Ok(40), Ok(30)]);
    assert_eq!([ask(&mut books, 1, ADA), ask(&mut books, 1, BOB)], [Err("done"); 2]);
    let ids = |splits: &[u64]| splits.iter().map(|id| split(*id).id).collect::<Vec<_>>();
    assert_eq!(books.complete(1, &ids(&[0, 2, 4]), ADA), Ok(false));
    assert_eq!(books.complete(1, &ids(&[1, 3]), BOB), Ok(true));
    assert_eq!(ask(&mut books, 2, ADA), Ok(0));
}

#[test]
fn fewer_workers_take_all_rests_each_as_a_stream_of_its_own() {
    let mut books = resumed(1, false);
    assert_eq!(reader(&mut books, ADA), Some((0, 3)));
    let continuing = AssignRequest { epoch: 1, continuing: true, ..AssignRequest::default() };
    let go_on = |books: &mut Epochs| match books.assign(&continuing, ADA).unwrap().work.unwrap() {
        assign_response::Work::Split(split) => Some(split.start),
        _ => None,
    };
    assert_eq!([go_on(&mut books), go_on(&mut books), go_on(&mut books)], [Some(30), Some(40), None]);
    assert_eq!(reader(&mut books, ADA), Some((1, 3)));
    assert_eq!(ask(&mut books, 1, ADA), Err("done"));
}

#[test]
fn the_splits_of_a_lost_workers_rest_are_read_from_their_start() {
    let mut books = resumed(2, false);
    assert_eq!(reader(&mut books, ADA), Some((0, 3)));
    assert_eq!(books.release(ADA), 1);
    assert_eq!(reader(&mut books, BOB), Some((1, 3)));
    assert_eq!([ask(&mut books, 1, BOB), ask(&mut books, 1, BOB)], [Ok(30), Ok(20)]);
}

#[test]
fn a_position_leads_back_to_itself() {
    let books = resumed(2, false);
    assert!(!books.is_untouched() && epochs(3, 1).is_untouched());
    assert_eq!(books.position(1).unwrap(), Position { resume_cursors: Vec::new(), ..position() });
    assert!(books.position(3).is_err());
}

#[test]
fn a_position_that_cannot_be_is_refused() {
    let shares = shares(1, false);
    let refused = |change: fn(&mut Position)| {
        let mut position = position();
        change(&mut position);
        Epochs::resume(&position, 3, shares, 1).unwrap_err().message
    };
    assert!(refused(|position| position.epoch = 3).contains("no split 0"));
    assert!(refused(|position| position.plan[2].file = 1).contains("no split 2"));
    assert!(refused(|position| position.done.push(77)).contains("no split 77"));
    assert!(refused(|position| position.resume_cursors[1].splits = vec![split(2)]).contains("in two resume cursors"));
}
