//! Who reads which split of which pass: free → held → done, and back to free when its holder is gone.
//!
//! A run that goes on from where another was left has rests of streams besides: a rest's splits are kept for whoever
//! takes it, and are held from then on.

use std::collections::{BTreeMap, BTreeSet};

use zagros_protocol::control::{AssignRequest, AssignResponse, PassDone, Position, Rest, Split, Wait, assign_response};
use zagros_protocol::{Refusal, RefusalKind};

use crate::Seat;
use crate::splits::{MOST_SPLITS, SplitOrder, SplitRange, Turn};

/// How long a worker waits before it asks again.
const RETRY_MS: u32 = 200;

/// The books over all passes of the run.
#[derive(Debug)]
pub(crate) struct Passes {
    plan: Vec<SplitRange>,
    passes: Vec<Books>,
    shares: Shares,
    /// Holders whose lease has run out. Their splits stay theirs until another worker has nothing else to read.
    silent: BTreeSet<Seat>,
}

/// The books of a pass, which take memory while it is under way alone.
#[derive(Debug)]
enum Books {
    /// Every split is free.
    Untouched,
    Open(Pass),
    /// Every split is done.
    Complete,
}

/// Which splits are whose: split i is worker i mod workers' to read first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    pub(crate) workers: u32,
    /// Nobody else ever reads it: who reads what is a function of (split, worker) alone.
    pub(crate) fixed: bool,
    /// Which of the free ones comes first.
    pub(crate) order: SplitOrder,
}

/// One pass over the plan: every split is in exactly one of free, held, done and a rest that nobody has taken, and has
/// at most one holder (invariant SP-1).
#[derive(Debug)]
struct Pass {
    /// Its number, and the order of its splits: what a split's turn depends on.
    number: u32,
    order: SplitOrder,
    free: BTreeSet<Turn>,
    held: BTreeMap<u32, Seat>,
    done: BTreeSet<u32>,
    /// Nobody's yet. Their splits may be done, too: read once more for the order of the others' rows.
    rests: Vec<Rest>,
}

impl Passes {
    pub(crate) fn new(plan: Vec<SplitRange>, passes: u32, shares: Shares) -> Self {
        let passes = (0..passes).map(|_| Books::Untouched).collect();
        Self { passes, plan, shares, silent: BTreeSet::new() }
    }

    /// From where another run was left. The plan is that run's, for all passes.
    ///
    /// # Errors
    /// `Invalid` when the position is none of a run over `files` files.
    pub(crate) fn resume(position: &Position, passes: u32, shares: Shares, files: usize) -> Result<Self, Refusal> {
        let plan = plan_of(position, files)?;
        let mut books = Self::new(plan, passes, shares);
        books.check_pass(position.pass)?;
        books.passes[..position.pass as usize].fill_with(|| Books::Complete);
        if let Some(now) = books.open(position.pass) {
            now.go_on(position)?;
        }
        Ok(books)
    }

    /// The rest of an earlier stream, unless the asker is in the middle of a stream; else the first free split of
    /// the asker's share of a pass, else, unless shares are fixed, the first free one; else [`Wait`] while others hold
    /// some (what they hold may come back when they are lost); else [`PassDone`]: what is not complete is held by the
    /// asker itself, or never its to read.
    pub(crate) fn assign(&mut self, request: &AssignRequest, seat: Seat) -> Result<AssignResponse, Refusal> {
        let AssignRequest { pass, continuing, .. } = *request;
        self.check_pass(pass)?;
        self.free_splits_of_silent_holders(pass, seat);
        let shares = self.shares;
        let (plan, books) = (&self.plan, self.passes[pass as usize].opened(pass, self.plan.len(), self.shares.order));
        let Some(books) = books else {
            return Ok(AssignResponse { work: Some(assign_response::Work::PassDone(PassDone {})) });
        };
        let rest = shares.rest(&books.rests, seat);
        let work = match (rest, shares.next(&books.free, seat)) {
            (Some(rest), _) if !continuing => assign_response::Work::Rest(books.take_rest(rest, seat)),
            (_, Some(turn)) => {
                books.free.remove(&turn);
                books.held.insert(turn.split, seat);
                assign_response::Work::Split(plan[turn.split as usize].on_wire(split_id(pass, turn.split)))
            }
            // It comes back for the rest once its stream has ended.
            (Some(_), None) => assign_response::Work::PassDone(PassDone {}),
            (None, None) if shares.fixed => assign_response::Work::PassDone(PassDone {}),
            (None, None) => match books.held.values().find(|holder| **holder != seat) {
                Some(holder) => {
                    let others = books.held.values().filter(|holder| **holder != seat).count();
                    let reason = format!("{others} splits of pass {pass} are held by others, one by {holder}");
                    assign_response::Work::Wait(Wait { retry_ms: RETRY_MS, reason })
                }
                None => assign_response::Work::PassDone(PassDone {}),
            },
        };
        Ok(AssignResponse { work: Some(work) })
    }

    /// Books splits as complete; all of them or none. One that is complete already stays so: the call was repeated.
    /// Answers whether the pass became complete.
    pub(crate) fn complete(&mut self, pass: u32, ids: &[u64], seat: Seat) -> Result<bool, Refusal> {
        self.check_pass(pass)?;
        let splits = self.plan.len() as u32;
        let Some(books) = self.open(pass) else {
            // Every split that there is was completed before.
            let unknown = ids.iter().find(|id| **id != split_id(pass, **id as u32) || **id as u32 >= splits);
            return unknown.map_or(Ok(false), |id| Err(refused_split(pass, *id, "does not exist")));
        };
        let indices = ids.iter().map(|id| books.completable(pass, *id, seat)).collect::<Result<Vec<_>, _>>()?;
        for index in indices {
            books.held.remove(&index);
            books.done.insert(index);
        }
        let is_complete = books.is_complete();
        if is_complete {
            self.passes[pass as usize] = Books::Complete;
        }
        Ok(is_complete)
    }

    /// Whether a split of a pass is complete.
    pub(crate) fn is_done(&self, pass: u32, id: u64) -> bool {
        let index = id as u32;
        let is_planned = id == split_id(pass, index) && (index as usize) < self.plan.len();
        match self.passes.get(pass as usize).filter(|_| is_planned) {
            Some(Books::Complete) => true,
            Some(Books::Open(pass)) => pass.done.contains(&index),
            Some(Books::Untouched) | None => false,
        }
    }

    /// The lease of a holder has run out; answers how many splits it holds.
    pub(crate) fn mark_silent(&mut self, seat: Seat) -> usize {
        self.silent.insert(seat);
        self.held_by(seat)
    }

    /// A silent holder is heard again; answers whether its splits are still its own.
    pub(crate) fn reclaim(&mut self, seat: Seat) -> bool {
        self.silent.remove(&seat)
    }

    /// Where nothing else is left for the asker, splits of silent holders are (invariant SP-2), unless shares are fixed.
    fn free_splits_of_silent_holders(&mut self, pass: u32, asker: Seat) {
        let Some(books) = self.passes[pass as usize].under_way() else { return };
        if self.shares.fixed || self.shares.next(&books.free, asker).is_some() {
            return;
        }
        let silent = books.held.values().find(|holder| **holder != asker && self.silent.contains(holder));
        if let Some(holder) = silent.copied() {
            self.release(holder);
        }
    }

    /// Frees what a member holds, for others to read (invariant SP-2); answers how many splits that were.
    pub(crate) fn release(&mut self, seat: Seat) -> usize {
        self.silent.remove(&seat);
        self.passes.iter_mut().filter_map(Books::under_way).map(|pass| pass.release(seat)).sum()
    }

    pub(crate) fn held_by(&self, seat: Seat) -> usize {
        self.passes.iter().map(|books| books.held_by(seat)).sum()
    }

    /// Ids of the splits of a pass that a worker is to read.
    pub(crate) fn held_in(&self, pass: u32, seat: Seat) -> Vec<u64> {
        let held = match self.passes.get(pass as usize) {
            Some(Books::Open(pass)) => Some(&pass.held),
            Some(Books::Untouched | Books::Complete) | None => None,
        };
        held.into_iter()
            .flatten()
            .filter(|(_, holder)| **holder == seat)
            .map(|(index, _)| split_id(pass, *index))
            .collect()
    }

    /// Splits per pass.
    pub(crate) fn splits(&self) -> u32 {
        self.plan.len() as u32
    }

    /// The first pass that is not complete (the last one when all are), and its complete splits.
    pub(crate) fn current(&self) -> (u32, u32) {
        let splits = self.plan.len();
        let open = self.passes.iter().position(|books| !books.is_complete(splits));
        let index = open.unwrap_or(self.passes.len().saturating_sub(1));
        (index as u32, self.passes.get(index).map_or(0, |books| books.done(splits).count() as u32))
    }

    /// Where a pass is, but for what is left of the streams.
    pub(crate) fn position(&self, pass: u32) -> Result<Position, Refusal> {
        self.check_pass(pass)?;
        let plan = (0..).zip(&self.plan).map(|(index, range)| range.on_wire(split_id(pass, index)));
        let done = self.passes[pass as usize].done(self.plan.len()).map(|index| split_id(pass, index));
        Ok(Position { pass, plan: plan.collect(), done: done.collect(), rests: Vec::new(), bad_rows: 0 })
    }

    /// Whether nobody was given anything to read yet.
    pub(crate) fn is_untouched(&self) -> bool {
        self.passes.iter().all(Books::is_untouched)
    }

    /// The books of a pass that is there; `None` once it is complete.
    fn open(&mut self, pass: u32) -> Option<&mut Pass> {
        self.passes[pass as usize].opened(pass, self.plan.len(), self.shares.order)
    }

    fn check_pass(&self, pass: u32) -> Result<(), Refusal> {
        if pass as usize >= self.passes.len() {
            return Err(Refusal::invalid(format!("pass {pass}: the job has {} (counted from 0)", self.passes.len())));
        }
        Ok(())
    }
}

impl Shares {
    fn next(self, free: &BTreeSet<Turn>, seat: Seat) -> Option<Turn> {
        let own = free.iter().find(|turn| turn.split % self.workers.max(1) == seat.index);
        let any = if self.fixed { None } else { free.first() };
        own.or(any).copied()
    }

    /// The asker's own rest, else, unless shares are fixed, any.
    fn rest(self, rests: &[Rest], seat: Seat) -> Option<usize> {
        let own = rests.iter().position(|rest| rest.reader % self.workers.max(1) == seat.index);
        own.or((!self.fixed && !rests.is_empty()).then_some(0))
    }
}

impl Books {
    fn opened(&mut self, number: u32, splits: usize, order: SplitOrder) -> Option<&mut Pass> {
        if matches!(self, Self::Untouched) {
            *self = Self::Open(Pass::fresh(number, splits as u32, order));
        }
        self.under_way()
    }

    /// Of a pass that somebody has asked for and that is not complete.
    fn under_way(&mut self) -> Option<&mut Pass> {
        match self {
            Self::Open(pass) => Some(pass),
            Self::Untouched | Self::Complete => None,
        }
    }

    fn held_by(&self, seat: Seat) -> usize {
        match self {
            Self::Open(pass) => pass.held.values().filter(|holder| **holder == seat).count(),
            Self::Untouched | Self::Complete => 0,
        }
    }

    fn done(&self, splits: usize) -> impl Iterator<Item = u32> {
        let (some, all) = match self {
            Self::Open(pass) => (Some(&pass.done), 0),
            Self::Untouched => (None, 0),
            Self::Complete => (None, splits as u32),
        };
        some.into_iter().flatten().copied().chain(0..all)
    }

    fn is_complete(&self, splits: usize) -> bool {
        match self {
            Self::Open(pass) => pass.is_complete(),
            Self::Untouched => splits == 0,
            Self::Complete => true,
        }
    }

    fn is_untouched(&self) -> bool {
        match self {
            Self::Open(pass) => pass.held.is_empty() && pass.done.is_empty() && pass.rests.is_empty(),
            Self::Untouched => true,
            Self::Complete => false,
        }
    }
}

impl Pass {
    fn fresh(number: u32, splits: u32, order: SplitOrder) -> Self {
        let (held, done, rests) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Self { free: (0..splits).map(|split| order.turn(number, split)).collect(), number, order, held, done, rests }
    }

    fn turn(&self, split: u32) -> Turn {
        self.order.turn(self.number, split)
    }

    /// Takes over what another run has read.
    fn go_on(&mut self, position: &Position) -> Result<(), Refusal> {
        for id in &position.done {
            let index = planned(position, *id)?;
            self.free.remove(&self.turn(index));
            self.done.insert(index);
        }
        for rest in &position.rests {
            let mut is_needed = false;
            for split in &rest.splits {
                let index = planned(position, split.id)?;
                let is_done = self.done.contains(&index);
                if !self.free.remove(&self.turn(index)) && !is_done {
                    return Err(Refusal::invalid(format!("the position has split {} in two rests", split.id)));
                }
                is_needed |= !is_done;
            }
            if is_needed {
                self.rests.push(rest.clone());
            }
        }
        Ok(())
    }

    fn take_rest(&mut self, place: usize, seat: Seat) -> Rest {
        let rest = self.rests.remove(place);
        let open = rest.splits.iter().map(|split| split.id as u32).filter(|index| !self.done.contains(index));
        self.held.extend(open.map(|index| (index, seat)));
        rest
    }

    /// The index of a split that `seat` may complete.
    fn completable(&self, pass: u32, id: u64, seat: Seat) -> Result<u32, Refusal> {
        let index = id as u32;
        if id != split_id(pass, index) {
            return Err(refused_split(pass, id, "does not exist"));
        }
        match self.held.get(&index) {
            _ if self.done.contains(&index) => Ok(index),
            Some(holder) if *holder == seat => Ok(index),
            Some(holder) => Err(refused_split(pass, id, &format!("is held by {holder}, not by {seat}"))),
            None => Err(refused_split(pass, id, &format!("is not held by {seat}"))),
        }
    }

    fn release(&mut self, seat: Seat) -> usize {
        let before = self.held.len();
        let (free, order, number) = (&mut self.free, self.order, self.number);
        self.held.retain(|index, holder| {
            let stays = *holder != seat;
            if !stays {
                free.insert(order.turn(number, *index));
            }
            stays
        });
        before - self.held.len()
    }

    fn is_complete(&self) -> bool {
        self.free.is_empty() && self.held.is_empty() && self.rests.is_empty()
    }
}

fn refused_split(pass: u32, id: u64, why: &str) -> Refusal {
    Refusal::new(RefusalKind::Invalid, format!("split {id} of pass {pass} {why}"))
}

/// The plan that a position has, which must be one of splits that follow each other.
fn plan_of(position: &Position, files: usize) -> Result<Vec<SplitRange>, Refusal> {
    let splits = position.plan.len();
    if splits > MOST_SPLITS + files {
        let most = MOST_SPLITS + files;
        return Err(Refusal::invalid(format!(
            "the position has {splits} splits, and a run of {files} files at most {most}"
        )));
    }
    let range = |(index, split): (u32, &Split)| {
        let Split { id, file, start, end } = *split;
        if id != split_id(position.pass, index) || file as usize >= files || end < start {
            return Err(Refusal::invalid(format!("the position has no split {index} of one of {files} files")));
        }
        Ok(SplitRange { file, start, end })
    };
    (0..).zip(&position.plan).map(range).collect()
}

/// The index of a split of the position's plan.
fn planned(position: &Position, id: u64) -> Result<u32, Refusal> {
    let index = id as u32;
    let is_planned = id == split_id(position.pass, index) && (index as usize) < position.plan.len();
    if is_planned { Ok(index) } else { Err(Refusal::invalid(format!("the position's plan has no split {id}"))) }
}

/// Unique over all passes, so that a late completion cannot be taken for one of another pass.
fn split_id(pass: u32, index: u32) -> u64 {
    u64::from(pass) << 32 | u64::from(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: Seat = Seat::worker(0);
    const BOB: Seat = Seat::worker(1);

    fn shares(workers: u32, fixed: bool) -> Shares {
        Shares { workers, fixed, order: SplitOrder::AsInFiles }
    }

    fn passes(splits: u64, passes: u32) -> Passes {
        let plan = (0..splits).map(|split| SplitRange { file: 0, start: split * 10, end: split * 10 + 10 });
        Passes::new(plan.collect(), passes, shares(1, false))
    }

    /// Start of the split that is handed out, or what is said instead.
    fn ask(books: &mut Passes, pass: u32, seat: Seat) -> Result<u64, &'static str> {
        let request = AssignRequest { pass, ..AssignRequest::default() };
        match books.assign(&request, seat).unwrap().work.unwrap() {
            assign_response::Work::Split(split) => Ok(split.start),
            assign_response::Work::Rest(_) => Err("rest"),
            assign_response::Work::Wait(_) => Err("wait"),
            assign_response::Work::PassDone(_) => Err("done"),
        }
    }

    #[test]
    fn one_worker_reads_in_order_and_never_waits_for_itself() {
        let mut books = passes(3, 1);
        assert_eq!([0, 1, 2].map(|_| ask(&mut books, 0, ADA).unwrap()), [0, 10, 20]);
        // Its last batch is not trained yet, and it will not be while the reader waits: so it is told to go on.
        assert_eq!(ask(&mut books, 0, ADA), Err("done"));
        assert_eq!(books.current(), (0, 0));
        assert_eq!(books.complete(0, &[0, 1], ADA), Ok(false));
        assert_eq!(books.complete(0, &[2], ADA), Ok(true));
        assert_eq!(books.complete(0, &[2], ADA), Ok(false), "a repeated call completes the pass again");
    }

    #[test]
    fn a_split_of_a_lost_worker_is_read_by_another() {
        let mut books = passes(2, 1);
        ask(&mut books, 0, ADA).unwrap();
        ask(&mut books, 0, BOB).unwrap();
        assert_eq!(ask(&mut books, 0, BOB), Err("wait"));
        assert_eq!(books.release(ADA), 1);
        assert_eq!(ask(&mut books, 0, BOB), Ok(0));
        assert_eq!((books.held_by(ADA), books.held_by(BOB)), (0, 2));
    }

    /// A pass that nobody reads takes no memory, however many there are and however many splits each has.
    #[test]
    fn books_are_kept_of_passes_under_way_alone() {
        let mut books = passes(2, 1000);
        for pass in 0..999 {
            assert_eq!([ask(&mut books, pass, ADA), ask(&mut books, pass, ADA)], [Ok(0), Ok(10)]);
            assert_eq!(books.complete(pass, &[split_id(pass, 0), split_id(pass, 1)], ADA), Ok(true));
            let open = books.passes.iter().filter(|books| matches!(books, Books::Open(_))).count();
            assert_eq!((open, books.current()), (0, (pass + 1, 0)));
        }
        assert_eq!(ask(&mut books, 4, BOB), Err("done"));
        assert!(books.complete(4, &[split_id(4, 2)], ADA).unwrap_err().message.contains("does not exist"));
        assert_eq!(books.position(4).unwrap().done, [split_id(4, 0), split_id(4, 1)]);
    }

    #[test]
    fn a_silent_holder_keeps_its_splits_until_another_worker_has_nothing_else_to_read() {
        let mut books = passes(3, 1);
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
        let mut books = passes(3, 2);
        ask(&mut books, 0, ADA).unwrap();
        ask(&mut books, 0, BOB).unwrap();
        let refused = books.complete(0, &[0, 1], ADA).unwrap_err();
        assert_eq!(refused.message, "split 1 of pass 0 is held by dense worker 1, not by dense worker 0");
        assert_eq!(books.current(), (0, 0));
        assert!(books.complete(0, &[2], ADA).unwrap_err().message.contains("is not held by"));
        assert!(books.complete(0, &[split_id(1, 0)], ADA).unwrap_err().message.contains("does not exist"));
        assert!(books.complete(2, &[], ADA).unwrap_err().message.contains("the job has 2"));
        assert!(books.assign(&AssignRequest { pass: 2, ..AssignRequest::default() }, ADA).is_err());
    }

    #[test]
    fn workers_read_their_own_share_first_and_then_what_is_left_unless_shares_are_fixed() {
        let plan =
            |splits: u64| (0..splits).map(|split| SplitRange { file: 0, start: split * 10, end: split * 10 + 10 });
        let books = |fixed| Passes::new(plan(3).collect(), 1, shares(2, fixed));
        let mut shared = books(false);
        assert_eq!([BOB, BOB, ADA].map(|seat| ask(&mut shared, 0, seat)), [Ok(10), Ok(0), Ok(20)]);
        assert_eq!([ask(&mut shared, 0, ADA), ask(&mut shared, 0, BOB)], [Err("wait"); 2]);
        let mut fixed = books(true);
        assert_eq!(
            [BOB, BOB, ADA, ADA, ADA].map(|seat| ask(&mut fixed, 0, seat)),
            [Ok(10), Err("done"), Ok(0), Ok(20), Err("done")]
        );
        assert_eq!(fixed.release(ADA), 2);
        assert_eq!([ask(&mut fixed, 0, BOB), ask(&mut fixed, 0, ADA)], [Err("done"), Ok(0)]);
    }

    /// Label-sorted files were read in the same order in each pass.
    #[test]
    fn each_pass_deals_out_its_splits_in_an_order_of_its_own_that_a_resumed_run_goes_on_with() {
        let plan = || (0..20).map(|split| SplitRange { file: 0, start: split, end: split + 1 }).collect::<Vec<_>>();
        let shares = Shares { order: SplitOrder::Shuffled { seed: 5, window_rows: 1 }, ..shares(1, false) };
        let all = |books: &mut Passes, pass| std::iter::from_fn(|| ask(books, pass, ADA).ok()).collect::<Vec<_>>();
        let mut books = Passes::new(plan(), 2, shares);
        let (first, second) = (all(&mut books, 0), all(&mut books, 1));
        assert_ne!(first, (0..20).collect::<Vec<_>>());
        assert_ne!(first, second);

        let mut books = Passes::new(plan(), 2, shares);
        let begun: Vec<u64> = (0..7).map(|_| ask(&mut books, 1, ADA).unwrap()).collect();
        let done: Vec<u64> = begun.iter().map(|start| split_id(1, *start as u32)).collect();
        books.complete(1, &done, ADA).unwrap();
        let mut resumed = Passes::resume(&books.position(1).unwrap(), 2, shares, 1).unwrap();
        assert_eq!([begun, all(&mut resumed, 1)].concat(), second);
        // What a lost worker held has its turn back.
        assert_eq!(resumed.release(ADA), 13);
        assert_eq!(all(&mut resumed, 1), second[7..]);
    }

    #[test]
    fn passes_are_booked_apart() {
        let mut books = passes(1, 2);
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

    /// The second pass of five splits: split 0 is done, two workers were in the middle of streams.
    fn position() -> Position {
        let rest = |reader, splits: &[u64]| Rest {
            reader,
            splits: splits.iter().copied().map(split).collect(),
            skip: 3,
            ..Rest::default()
        };
        let done = vec![split(0).id];
        Position {
            pass: 1,
            plan: (0..5).map(split).collect(),
            done,
            rests: vec![rest(0, &[0, 2]), rest(1, &[1])],
            bad_rows: 0,
        }
    }

    fn resumed(workers: u32, fixed: bool) -> Passes {
        Passes::resume(&position(), 3, shares(workers, fixed), 1).unwrap()
    }

    fn reader(books: &mut Passes, seat: Seat) -> Option<(u32, u64)> {
        let request = AssignRequest { pass: 1, ..AssignRequest::default() };
        match books.assign(&request, seat).unwrap().work.unwrap() {
            assign_response::Work::Rest(rest) => Some((rest.reader, rest.skip)),
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
        let continuing = AssignRequest { pass: 1, continuing: true, ..AssignRequest::default() };
        let go_on = |books: &mut Passes| match books.assign(&continuing, ADA).unwrap().work.unwrap() {
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
        assert!(!books.is_untouched() && passes(3, 1).is_untouched());
        assert_eq!(books.position(1).unwrap(), Position { rests: Vec::new(), ..position() });
        assert!(books.position(3).is_err());
    }

    #[test]
    fn a_position_that_cannot_be_is_refused() {
        let shares = shares(1, false);
        let refused = |change: fn(&mut Position)| {
            let mut position = position();
            change(&mut position);
            Passes::resume(&position, 3, shares, 1).unwrap_err().message
        };
        assert!(refused(|position| position.pass = 3).contains("no split 0"));
        assert!(refused(|position| position.plan[2].file = 1).contains("no split 2"));
        assert!(refused(|position| position.done.push(77)).contains("no split 77"));
        assert!(refused(|position| position.rests[1].splits = vec![split(2)]).contains("in two rests"));
    }
}
