//! Who reads which split of which pass: free → held → done, and back to free when its holder is gone.

use std::collections::{BTreeMap, BTreeSet};

use zagros_protocol::control::{AssignResponse, PassDone, Split, Wait, assign_response};
use zagros_protocol::{Refusal, RefusalKind};

use crate::Seat;
use crate::splits::SplitRange;

/// How long a worker waits before it asks again.
const RETRY_MS: u32 = 200;

/// The books over all passes of the run.
#[derive(Debug)]
pub(crate) struct Passes {
    plan: Vec<SplitRange>,
    passes: Vec<Pass>,
    shares: Shares,
}

/// Which splits are whose: split i is worker i mod workers' to read first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    pub(crate) workers: u32,
    /// Nobody else ever reads it: who reads what is a function of (split, worker) alone.
    pub(crate) fixed: bool,
}

/// One pass over the plan: every split is in exactly one of the three, and has at most one holder (invariant SP-1).
#[derive(Debug)]
struct Pass {
    free: BTreeSet<u32>,
    held: BTreeMap<u32, Seat>,
    done: BTreeSet<u32>,
}

impl Passes {
    pub(crate) fn new(plan: Vec<SplitRange>, passes: u32, shares: Shares) -> Self {
        let splits = plan.len() as u32;
        let fresh = || Pass { free: (0..splits).collect(), held: BTreeMap::new(), done: BTreeSet::new() };
        Self { plan, passes: (0..passes).map(|_| fresh()).collect(), shares }
    }

    /// The first free split of the asker's share of a pass, else, unless shares are fixed, the first free one; else
    /// [`Wait`] while others hold some (what they hold may come back when they are lost); else [`PassDone`]: what is
    /// not complete is held by the asker itself, or never its to read.
    pub(crate) fn assign(&mut self, pass: u32, seat: Seat) -> Result<AssignResponse, Refusal> {
        self.check_pass(pass)?;
        let (books, shares) = (&mut self.passes[pass as usize], self.shares);
        let work = match shares.next(&books.free, seat) {
            Some(index) => {
                books.free.remove(&index);
                books.held.insert(index, seat);
                let SplitRange { file, start, end } = self.plan[index as usize];
                assign_response::Work::Split(Split { id: split_id(pass, index), file, start, end })
            }
            None if shares.fixed => assign_response::Work::PassDone(PassDone {}),
            None => match books.held.values().find(|holder| **holder != seat) {
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
        let books = &mut self.passes[pass as usize];
        let indices = ids.iter().map(|id| books.completable(pass, *id, seat)).collect::<Result<Vec<_>, _>>()?;
        let was_complete = books.is_complete();
        for index in indices {
            books.held.remove(&index);
            books.done.insert(index);
        }
        Ok(books.is_complete() && !was_complete)
    }

    /// Frees what a member holds, for others to read (invariant SP-2); answers how many splits that were.
    pub(crate) fn release(&mut self, seat: Seat) -> usize {
        self.passes.iter_mut().map(|pass| pass.release(seat)).sum()
    }

    pub(crate) fn held_by(&self, seat: Seat) -> usize {
        self.passes.iter().map(|pass| pass.held.values().filter(|holder| **holder == seat).count()).sum()
    }

    /// Splits per pass.
    pub(crate) fn splits(&self) -> u32 {
        self.plan.len() as u32
    }

    /// The first pass that is not complete (the last one when all are), and its complete splits.
    pub(crate) fn current(&self) -> (u32, u32) {
        let open = self.passes.iter().position(|pass| !pass.is_complete());
        let index = open.unwrap_or(self.passes.len().saturating_sub(1));
        (index as u32, self.passes.get(index).map_or(0, |pass| pass.done.len() as u32))
    }

    fn check_pass(&self, pass: u32) -> Result<(), Refusal> {
        if pass as usize >= self.passes.len() {
            return Err(Refusal::invalid(format!("pass {pass}: the job has {} (counted from 0)", self.passes.len())));
        }
        Ok(())
    }
}

impl Shares {
    fn next(self, free: &BTreeSet<u32>, seat: Seat) -> Option<u32> {
        let own = free.iter().find(|index| *index % self.workers.max(1) == seat.index);
        let any = if self.fixed { None } else { free.first() };
        own.or(any).copied()
    }
}

impl Pass {
    /// The index of a split that `seat` may complete.
    fn completable(&self, pass: u32, id: u64, seat: Seat) -> Result<u32, Refusal> {
        let index = id as u32;
        let refused = |why: String| Err(Refusal::new(RefusalKind::Invalid, format!("split {id} of pass {pass} {why}")));
        if id != split_id(pass, index) {
            return refused("does not exist".to_owned());
        }
        match self.held.get(&index) {
            _ if self.done.contains(&index) => Ok(index),
            Some(holder) if *holder == seat => Ok(index),
            Some(holder) => refused(format!("is held by {holder}, not by {seat}")),
            None => refused(format!("is not held by {seat}")),
        }
    }

    fn release(&mut self, seat: Seat) -> usize {
        let before = self.held.len();
        let free = &mut self.free;
        self.held.retain(|index, holder| {
            let stays = *holder != seat;
            if !stays {
                free.insert(*index);
            }
            stays
        });
        before - self.held.len()
    }

    fn is_complete(&self) -> bool {
        self.free.is_empty() && self.held.is_empty()
    }
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

    fn passes(splits: u64, passes: u32) -> Passes {
        let plan = (0..splits).map(|split| SplitRange { file: 0, start: split * 10, end: split * 10 + 10 });
        Passes::new(plan.collect(), passes, Shares { workers: 1, fixed: false })
    }

    /// Start of the split that is handed out, or what is said instead.
    fn ask(books: &mut Passes, pass: u32, seat: Seat) -> Result<u64, &'static str> {
        match books.assign(pass, seat).unwrap().work.unwrap() {
            assign_response::Work::Split(split) => Ok(split.start),
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
        assert!(books.assign(2, ADA).is_err());
    }

    #[test]
    fn workers_read_their_own_share_first_and_then_what_is_left_unless_shares_are_fixed() {
        let plan =
            |splits: u64| (0..splits).map(|split| SplitRange { file: 0, start: split * 10, end: split * 10 + 10 });
        let books = |fixed| Passes::new(plan(3).collect(), 1, Shares { workers: 2, fixed });
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
}
