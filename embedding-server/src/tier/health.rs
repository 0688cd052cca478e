//! A cold store that records whether its last calls failed. While it fails, the server serves from memory and reports
//! the failure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{error, info};
use zagros_plumbing::metrics::{Histogram, IntCounter};
use zagros_table::{ColdError, ColdRead, ColdSize, ColdStore, ColdView};

/// A call that takes longer waits for a disk that hangs.
const LONGEST_CALL: Duration = Duration::from_secs(10);

/// A cold store with a record of its last calls.
#[derive(Debug)]
pub(crate) struct WatchedStore<S> {
    pub(crate) store: S,
    reads: StoreCalls,
    writes: StoreCalls,
}

#[derive(Debug)]
pub(crate) struct StoreCalls {
    pub(crate) seconds: Histogram,
    pub(crate) rows: IntCounter,
    /// Why the last call failed. `None` if it succeeded.
    failure: Mutex<Option<String>>,
    /// When each call began that has not ended, by number.
    open: Mutex<BTreeMap<u64, Instant>>,
}

impl<S: ColdStore> WatchedStore<S> {
    pub(crate) fn new(store: S, reads: StoreCalls, writes: StoreCalls) -> Self {
        Self { store, reads, writes }
    }

    /// Whether rows can be read and written, judging by the last calls and those that do not end.
    pub(crate) fn check_health(&self) -> Result<(), String> {
        self.health_within(LONGEST_CALL)
    }

    fn health_within(&self, longest: Duration) -> Result<(), String> {
        let failure = self.writes.failure.lock().clone();
        let failure = failure.or_else(|| self.reads.failure.lock().clone());
        let failure = failure.or_else(|| self.writes.unanswered("write", longest));
        failure.or_else(|| self.reads.unanswered("read", longest)).map_or(Ok(()), Err)
    }
}

impl StoreCalls {
    pub(crate) fn new(seconds: Histogram, rows: IntCounter) -> Self {
        Self { seconds, rows, failure: Mutex::default(), open: Mutex::default() }
    }

    /// What a call waits for that began more than `longest` ago.
    fn unanswered(&self, doing: &str, longest: Duration) -> Option<String> {
        let began = *self.open.lock().first_key_value()?.1;
        let waits = began.elapsed();
        (waits > longest).then(|| {
            format!("the cold tier cannot {doing}: the disk has not answered for {:.0} s", waits.as_secs_f64())
        })
    }

    fn begin_call(&self) -> u64 {
        let mut open = self.open.lock();
        let number = open.last_key_value().map_or(0, |(number, _)| number + 1);
        open.insert(number, Instant::now());
        number
    }

    /// Makes a call for `rows` rows, and records its result.
    fn observe<T>(&self, rows: usize, call: impl FnOnce() -> Result<T, ColdError>) -> Result<T, ColdError> {
        let (timer, number) = (self.seconds.start_timer(), self.begin_call());
        let done = call();
        timer.observe_duration();
        self.open.lock().remove(&number);
        let mut failure = self.failure.lock();
        match &done {
            Ok(_) => {
                self.rows.inc_by(rows as u64);
                if failure.take().is_some() {
                    info!("the cold tier works again");
                }
            }
            Err(reason) => {
                let reason = reason.to_string();
                // Logged once, not for every further failure.
                if failure.is_none() {
                    error!(reason, "the cold tier failed; the server serves from memory while there is room");
                }
                *failure = Some(reason);
            }
        }
        done
    }
}

impl<S: ColdStore> ColdStore for WatchedStore<S> {
    fn read_all(&self, reads: &mut [ColdRead<'_>]) -> Result<(), ColdError> {
        let rows = reads.iter().map(|read| read.cold_keys.len()).sum();
        self.reads.observe(rows, || self.store.read_all(reads))
    }

    fn write(&self, table: u32, places: &[u64], rows: &[u32]) -> Result<(), ColdError> {
        self.writes.observe(places.len(), || self.store.write(table, places, rows))
    }

    fn remove(&self, table: u32, places: &[u64]) -> Result<(), ColdError> {
        self.writes.observe(0, || self.store.remove(table, places))
    }

    fn remove_all(&self, table: u32) -> Result<(), ColdError> {
        self.writes.observe(0, || self.store.remove_all(table))
    }

    fn flush(&self) -> Result<(), ColdError> {
        self.writes.observe(0, || self.store.flush())
    }

    fn freeze(&self) -> Result<Box<dyn ColdView>, ColdError> {
        self.store.freeze()
    }

    fn size(&self) -> ColdSize {
        self.store.size()
    }

    fn memory(&self) -> usize {
        self.store.memory()
    }
}

#[cfg(test)]
mod tests {
    use zagros_fakes::MemoryColdStore;
    use zagros_plumbing::metrics::HistogramOpts;
    use zagros_table::ColdRows;

    use super::*;

    fn calls() -> StoreCalls {
        StoreCalls::new(
            Histogram::with_opts(HistogramOpts::new("seconds", "Seconds.")).unwrap(),
            IntCounter::new("rows", "Rows.").unwrap(),
        )
    }

    #[test]
    fn it_is_unhealthy_from_a_failure_to_the_next_success_of_the_same_kind() {
        let store = WatchedStore::new(MemoryColdStore::new(&[1]), calls(), calls());
        let mut rows = ColdRows::default();
        store.write(0, &[1, 2], &[10, 20]).unwrap();
        assert_eq!(store.check_health(), Ok(()));
        store.store.fail_with(Some("no space left on device".to_owned()));
        assert!(store.write(0, &[3], &[30]).is_err());
        assert_eq!(store.check_health(), Err("the cold tier cannot write: no space left on device".to_owned()));
        store.store.fail_with(None);
        store.read(0, &[1, 3], &mut rows).unwrap();
        assert!(store.check_health().is_err(), "a read says nothing of writes");
        store.write(0, &[3], &[30]).unwrap();
        assert_eq!(store.check_health(), Ok(()));
        store.store.fail_with(Some("input/output error".to_owned()));
        assert!(store.read(0, &[1], &mut rows).is_err());
        assert_eq!(store.check_health(), Err("the cold tier cannot read: input/output error".to_owned()));
        assert_eq!((store.writes.rows.get(), store.reads.rows.get()), (3, 2));
        assert_eq!(store.reads.seconds.get_sample_count(), 2);
    }

    #[test]
    fn a_call_that_does_not_end_is_reported_and_forgotten_once_it_ends() {
        let store = WatchedStore::new(MemoryColdStore::new(&[1]), calls(), calls());
        let (answer, disk) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let writes = &store.writes;
            let hung = scope.spawn(move || writes.observe(1, || disk.recv().map_err(|_| unreachable!("it answers"))));
            while store.writes.open.lock().is_empty() {
                std::thread::yield_now();
            }
            // A call that began later ends before.
            store.write(0, &[1], &[10]).unwrap();
            let reported = store.health_within(Duration::ZERO).unwrap_err();
            assert!(reported.contains("cannot write: the disk has not answered for"), "{reported}");
            assert_eq!(store.health_within(Duration::from_secs(3600)), Ok(()));
            answer.send(()).unwrap();
            hung.join().unwrap().unwrap();
        });
        assert_eq!(store.health_within(Duration::ZERO), Ok(()));
    }
}
