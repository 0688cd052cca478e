//! What a process waits for, kept by itself: who waits, for whom, since when, and until when.
//!
//! A wait costs one uncontended lock at its start and one at its end. Its text is formatted when a caller asks for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zagros_protocol::control::{LongWait, ServerWait, WaitKind};

/// Shorter waits are how it should be, and are not reported.
const WORTH_REPORTING: Duration = Duration::from_secs(1);
/// The most waits that a report has: the coordinator takes no more.
const MOST: usize = 16;
const LONGEST: usize = 400;

#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    part: &'static str,
    kind: WaitKind,
    what: &'static str,
    number: Option<u64>,
    server: Option<u32>,
    timeout: Option<Duration>,
}

impl Waiting {
    /// A wait of `part`, of this kind. `what` names what it waits for, as a noun: `the all-reduce of step`.
    pub const fn new(part: &'static str, kind: WaitKind, what: &'static str) -> Self {
        Self { part, kind, what, number: None, server: None, timeout: None }
    }

    #[must_use]
    pub const fn with_number(self, number: u64) -> Self {
        Self { number: Some(number), ..self }
    }

    #[must_use]
    pub const fn with_server(self, index: u32) -> Self {
        Self { server: Some(index), ..self }
    }

    /// How long it waits before it gives up.
    #[must_use]
    pub const fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}

/// The waits of one process. A clone is another handle to the same waits.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    table: Arc<Mutex<WaitTable>>,
}

#[derive(Debug, Default)]
struct WaitTable {
    /// A place is used again once its wait has ended.
    places: Vec<Option<(Waiting, Instant)>>,
    notes: Vec<WaitNote>,
    requests: Vec<ServerWait>,
}

/// A wait that is looked for now and then, and not entered and left.
#[derive(Debug)]
struct WaitNote {
    part: &'static str,
    kind: WaitKind,
    what: String,
    since: Instant,
}

/// A wait in progress. Dropping it ends the wait.
#[derive(Debug)]
#[must_use = "the wait ends when this is dropped"]
pub struct WaitGuard {
    place: usize,
    table: Arc<Mutex<WaitTable>>,
}

impl Waits {
    pub fn begin_wait(&self, waiting: Waiting) -> WaitGuard {
        let entry = Some((waiting, Instant::now()));
        let mut table = lock(&self.table);
        let places = &mut table.places;
        let place = places.iter().position(Option::is_none).unwrap_or(places.len());
        if place == places.len() {
            places.push(entry);
        } else {
            places[place] = entry;
        }
        WaitGuard { place, table: Arc::clone(&self.table) }
    }

    /// Notes that a part waits, or with `None` that it does not. The wait counts from the first of equal notes.
    pub fn note_wait(&self, part: &'static str, kind: WaitKind, what: Option<String>) {
        let mut table = lock(&self.table);
        let known = table.notes.iter().position(|note| note.part == part);
        match (known, what) {
            (Some(place), None) => drop(table.notes.swap_remove(place)),
            (Some(place), Some(what)) => (table.notes[place].kind, table.notes[place].what) = (kind, what),
            (None, Some(what)) => table.notes.push(WaitNote { part, kind, what, since: Instant::now() }),
            (None, None) => {}
        }
    }

    /// Sets the servers that leave requests of this process unanswered.
    pub fn set_requests(&self, requests: Vec<ServerWait>) {
        lock(&self.table).requests = requests;
    }

    pub fn unanswered_requests(&self) -> Vec<ServerWait> {
        lock(&self.table).requests.clone()
    }

    /// The waits that have lasted for a second or longer, oldest first; at most 16.
    pub fn long_waits(&self) -> Vec<LongWait> {
        self.longer_than(WORTH_REPORTING)
    }

    fn longer_than(&self, least: Duration) -> Vec<LongWait> {
        let now = Instant::now();
        let table = lock(&self.table);
        let entered = table.places.iter().flatten().map(|(waiting, since)| waiting.report(now.duration_since(*since)));
        let noted = table.notes.iter().map(|note| LongWait {
            part: note.part.to_owned(),
            kind: note.kind.into(),
            what: shortened(&note.what),
            age_ms: millis(now.duration_since(note.since)),
            ..LongWait::default()
        });
        let mut long: Vec<LongWait> = entered.chain(noted).filter(|wait| wait.age_ms >= millis(least)).collect();
        drop(table);
        long.sort_by_key(|wait| std::cmp::Reverse(wait.age_ms));
        long.truncate(MOST);
        long
    }
}

impl Waiting {
    fn report(&self, age: Duration) -> LongWait {
        let Self { part, kind, what, number, server, timeout } = *self;
        LongWait {
            part: part.to_owned(),
            kind: kind.into(),
            indices: server.into_iter().collect(),
            what: number.map_or_else(|| what.to_owned(), |number| format!("{what} {number}")),
            age_ms: millis(age),
            left_ms: timeout.map(|timeout| millis(timeout.saturating_sub(age))),
        }
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        lock(&self.table).places[self.place] = None;
    }
}

fn lock(table: &Mutex<WaitTable>) -> MutexGuard<'_, WaitTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn shortened(text: &str) -> String {
    let start = &text[..text.floor_char_boundary(LONGEST)];
    if start == text { text.to_owned() } else { format!("{start}…") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL_REDUCE: Waiting = Waiting::new("dense thread", WaitKind::Workers, "the all-reduce of step");

    fn texts(waits: &Waits) -> Vec<String> {
        waits.longer_than(Duration::ZERO).into_iter().map(|wait| wait.what).collect()
    }

    #[test]
    fn a_wait_is_reported_while_its_guard_lives_and_its_place_is_used_again() {
        let waits = Waits::default();
        let first = waits.begin_wait(ALL_REDUCE.with_number(812).with_timeout(Duration::from_secs(60)));
        let second = waits.begin_wait(Waiting::new("checkpoint", WaitKind::Servers, "a snapshot").with_server(2));
        let reported = waits.longer_than(Duration::ZERO);
        let find_wait = |what: &str| reported.iter().find(|wait| wait.what == what).unwrap();
        let all_reduce = find_wait("the all-reduce of step 812");
        assert_eq!((all_reduce.part.as_str(), all_reduce.kind()), ("dense thread", WaitKind::Workers));
        assert!((1..=60_000).contains(&all_reduce.left_ms.unwrap()), "{all_reduce:?}");
        assert_eq!((&find_wait("a snapshot").indices[..], find_wait("a snapshot").left_ms), (&[2][..], None));
        drop(first);
        assert_eq!(texts(&waits), ["a snapshot"]);
        let third = waits.begin_wait(ALL_REDUCE.with_number(813));
        assert_eq!(lock(&waits.table).places.len(), 2, "a place was not used again");
        drop((second, third));
        assert!(texts(&waits).is_empty());
    }

    #[test]
    fn short_waits_are_not_reported_and_many_are_cut_to_the_oldest() {
        let waits = Waits::default();
        let guards: Vec<WaitGuard> = (0..40).map(|number| waits.begin_wait(ALL_REDUCE.with_number(number))).collect();
        assert!(waits.long_waits().is_empty());
        assert_eq!(texts(&waits).len(), MOST);
        drop(guards);
    }

    #[test]
    fn a_note_keeps_its_age_until_it_is_taken_back() {
        let waits = Waits::default();
        waits.note_wait("log", WaitKind::Disk, Some("no space left on device".to_owned()));
        let since = lock(&waits.table).notes[0].since;
        waits.note_wait("log", WaitKind::Disk, Some("é".repeat(LONGEST)));
        assert_eq!(lock(&waits.table).notes[0].since, since);
        let [noted] = &waits.longer_than(Duration::ZERO)[..] else { panic!("not one wait") };
        assert!(noted.what.len() <= LONGEST + 5 && noted.what.ends_with("é…"), "{}", noted.what);
        waits.note_wait("log", WaitKind::Disk, None);
        waits.note_wait("log", WaitKind::Disk, None);
        assert!(texts(&waits).is_empty());
    }
}
