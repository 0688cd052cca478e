//! Listens to the workers' reports, and keeps the ledger and the progress of a round.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use zagros_protocol::datapath::{Encoding, PushRequest};
use zagros_protocol::packed::{decode_ids, decode_values};
use zagros_protocol::{Refusal, Segments};

use crate::incarnations::IncarnationLog;
use crate::ledger::{PushKey, PushLedger, RowId};
use crate::progress::WorkerProgress;
use zagros_embedding_client::push_record::{Frame, grid};

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
