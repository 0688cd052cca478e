//! Listens to the workers' reports, and keeps the ledger and the progress of a round.
//!
//! How far each dense worker is, and whether it has recovered from a fault.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use zagros_embedding_client::push_record::{Frame, grid};
use zagros_protocol::datapath::{Encoding, PushRequest};
use zagros_protocol::packed::{decode_ids, decode_values};
use zagros_protocol::{Refusal, Segments};

use crate::incarnations::IncarnationLog;
use crate::ledger::{PushKey, PushLedger, RowId};

/// The longest wait for the reports of workers that have ended.
const LAST_REPORTS: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct RoundRecord {
    pub(crate) ledger: PushLedger,
    pub(crate) progress: WorkerProgress,
    pub(crate) incarnations: IncarnationLog,
    pub(crate) connected: usize,
    pub(crate) failures: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct RoundRecorder {
    path: PathBuf,
    record: Arc<Mutex<RoundRecord>>,
}

impl RoundRecorder {
    /// The job has so many tables of features. What workers say is added to `ledger`.
    pub(crate) fn listen(path: &Path, tables: u32, ledger: PushLedger) -> io::Result<Self> {
        // That of a command that was killed.
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        let record = Arc::new(Mutex::new(RoundRecord { ledger, ..RoundRecord::default() }));
        let recorder = Self { path: path.to_owned(), record };
        let record = Arc::downgrade(&recorder.record);
        thread::Builder::new().name("push recorder".to_owned()).spawn(move || {
            // Ends with the connection that `drop` makes.
            while let Ok((stream, _)) = listener.accept() {
                let Some(record) = record.upgrade() else { return };
                lock(&record).connected += 1;
                thread::spawn(move || {
                    let ended = follow(stream, &record, tables);
                    let mut record = lock(&record);
                    record.connected -= 1;
                    record.failures.extend(ended.err().map(|error| error.to_string()));
                });
            }
        })?;
        Ok(recorder)
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, RoundRecord> {
        lock(&self.record)
    }

    /// Every process of the run has ended, and the run goes back to its newest checkpoint.
    pub(crate) async fn go_back(&self) {
        self.wait_for_reports().await;
        let mut record = self.record();
        record.ledger.go_back();
        record.incarnations.go_back();
        record.progress.start_again();
    }

    /// The reports of workers that have ended may still be on their way.
    pub(crate) async fn wait_for_reports(&self) {
        let all = async {
            while self.record().connected > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(LAST_REPORTS, all).await.is_err() {
            self.record().failures.push(format!("reports of dense workers are missing after {LAST_REPORTS:?}"));
        }
    }
}

impl Drop for RoundRecorder {
    fn drop(&mut self) {
        self.record = Arc::default();
        // Wakes the listener, which then finds the record gone and ends.
        let _ = UnixStream::connect(&self.path);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn lock(record: &Mutex<RoundRecord>) -> MutexGuard<'_, RoundRecord> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

fn follow(stream: UnixStream, record: &Mutex<RoundRecord>, tables: u32) -> io::Result<()> {
    let mut from = BufReader::with_capacity(1 << 20, stream);
    let (mut worker, mut calls) = (0, HashMap::<u64, (PushKey, Vec<RowId>)>::new());
    let (mut writer, mut incarnation) = (0, 0);
    while let Some(frame) = Frame::read(&mut from)? {
        match frame {
            Frame::Hello { worker: index } => worker = index,
            Frame::Sent { call, push } => {
                let key = PushKey { writer: push.writer, incarnation: push.incarnation, seq: push.seq };
                let rows = recorded_rows(&push, tables).map_err(|refusal| io::Error::other(refusal.to_string()))?;
                calls.insert(call, (key, rows.iter().map(|(row, _)| *row).collect()));
                let mut record = lock(record);
                record.progress.sent(worker, key);
                record.ledger.sent(key, push.step, rows);
            }
            Frame::Acknowledged { call } => {
                if let Some((key, rows)) = calls.remove(&call) {
                    lock(record).ledger.acknowledged(key, &rows);
                }
            }
            Frame::GivenUp { call } => drop(calls.remove(&call)),
            Frame::Joined { writer: of, incarnation: number } => {
                (writer, incarnation) = (of, number);
                lock(record).incarnations.join((writer, incarnation), worker);
            }
            Frame::Started(push) => {
                let mut record = lock(record);
                record.incarnations.start((writer, incarnation), &push);
                let rows = push.tables.iter().flat_map(|rows| rows.ids.iter().map(|id| (rows.table, *id)));
                record.ledger.started(PushKey { writer, incarnation, seq: push.seq }, push.step, rows.collect());
            }
            Frame::Finished { seq } => {
                let mut record = lock(record);
                record.incarnations.finish((writer, incarnation), seq);
                record.ledger.finished(PushKey { writer, incarnation, seq });
            }
            Frame::Trained { network } => lock(record).incarnations.note_network((writer, incarnation), network),
        }
    }
    Ok(())
}

/// The rows of a push with their gradients in grid units.
fn recorded_rows(push: &PushRequest, tables: u32) -> Result<Vec<(RowId, Vec<i32>)>, Refusal> {
    let malformed = |error: &dyn std::fmt::Display| Refusal::invalid(error.to_string());
    let segments = Segments::unpack(&push.segments, &push.ids).map_err(|error| malformed(&error))?;
    let ids = decode_ids(&push.ids);
    let mut values = vec![0.0; push.gradients.len() / 4];
    decode_values(&push.gradients, Encoding::F32 as i32, &mut values).map_err(|error| malformed(&error))?;
    let (mut rows, mut first, mut place) = (Vec::with_capacity(ids.len()), 0, 0);
    for segment in segments.iter() {
        let (count, dim) = (segment.rows as usize, segment.dim as usize);
        let of_segment = ids.get(first..first + count).unwrap_or_default();
        for (at, id) in of_segment.iter().enumerate() {
            let start = place + at * dim;
            let gradient = values.get(start..start + dim).unwrap_or_default();
            if segment.table.0 < tables {
                let gradient = gradient.iter().map(|value| grid::round_to_units(*value)).collect::<Result<_, _>>()?;
                rows.push(((segment.table.0, *id), gradient));
            }
        }
        (first, place) = (first + count, place + count * dim);
    }
    Ok(rows)
}

/// The newest push of each worker, by index.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerProgress {
    pub(crate) newest: BTreeMap<u32, PushNumber>,
    pub(crate) steps: u64,
    /// How often every process was started again.
    starts: u32,
}

/// Orders the pushes of a worker: by the start of all processes, by its own process, by number.
type PushNumber = (u32, u32, u64);

/// The moment of a fault, as the workers' progress shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgressMoment(BTreeMap<u32, PushNumber>);

impl WorkerProgress {
    pub(crate) fn sent(&mut self, worker: u32, key: PushKey) {
        let newest = self.newest.get(&worker).copied();
        let number = (self.starts, key.incarnation, key.seq);
        if newest.is_none_or(|newest| number > newest) {
            self.newest.insert(worker, number);
            self.steps += 1;
        }
    }

    /// Every process is started again. Their incarnations and numbers start anew.
    pub(crate) fn start_again(&mut self) {
        self.starts += 1;
    }

    pub(crate) fn moment(&self) -> ProgressMoment {
        ProgressMoment(self.newest.clone())
    }

    /// A batch is looked up once at most `staleness` pushes before it are unanswered: a push that many and one more
    /// after the newest of `moment` proves that it was looked up after it.
    pub(crate) fn is_past(&self, moment: &ProgressMoment, staleness: u64) -> bool {
        moment.0.iter().all(|(worker, then)| {
            let now = self.newest.get(worker);
            let (start, incarnation, seq) = *then;
            now.is_some_and(|now| (now.0, now.1) > (start, incarnation) || now.2 > seq + staleness + 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(incarnation: u32, seq: u64) -> PushKey {
        PushKey { writer: 9, incarnation, seq }
    }

    #[test]
    fn a_step_counts_as_new_only_if_its_lookup_came_after_the_fault() {
        let mut progress = WorkerProgress::default();
        progress.sent(0, key(1, 4));
        progress.sent(1, key(1, 4));
        let moment = progress.moment();
        // Looked up before: the window of staleness 2 was open.
        for seq in 5..=7 {
            progress.sent(0, key(1, seq));
            progress.sent(1, key(1, seq));
            assert!(!progress.is_past(&moment, 2), "{seq}");
        }
        progress.sent(0, key(1, 8));
        assert!(!progress.is_past(&moment, 2), "worker 1 has not");
        // A new process of worker 1.
        progress.sent(1, key(2, 0));
        assert!(progress.is_past(&moment, 2));
        assert_eq!((progress.steps, progress.newest.len()), (10, 2));
        let moment = progress.moment();
        progress.start_again();
        progress.sent(0, key(1, 0));
        assert!(!progress.is_past(&moment, 2), "worker 1 has not started again");
        progress.sent(1, key(1, 0));
        assert!(progress.is_past(&moment, 2));
    }

    #[test]
    fn a_repeated_push_is_no_step() {
        let mut progress = WorkerProgress::default();
        progress.sent(0, key(1, 4));
        progress.sent(0, key(1, 4));
        progress.sent(0, key(1, 3));
        assert_eq!(progress.steps, 1);
    }
}
