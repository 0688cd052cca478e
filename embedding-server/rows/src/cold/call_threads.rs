//! Reads by calls, where the kernel does not let this process use io_uring: a few threads read, so that the device has something to
//! do, and a caller waits no longer than its patience for a disk that hangs.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::fs::{Advice, fadvise};
use zagros_table::ColdError;

use super::pieces::{FilePiece, OnPiece, hang_error};

/// Threads that read. A disk that hangs keeps them until it answers.
const THREADS: usize = 8;
/// Pieces that a thread reads at a time, after the kernel was advised of all of them.
const CHUNK: usize = 16;

/// Threads that read pieces. They are started by the first read.
#[derive(Debug, Default)]
pub(super) struct CallThreads {
    work: OnceLock<Sender<CallJob>>,
    /// Jobs of all readers that have ended. A reader whose jobs still queue behind others' is not kept waiting by a disk that hangs.
    ended: Arc<AtomicU64>,
}

struct CallJob {
    pieces: Arc<[FilePiece]>,
    range: Range<usize>,
    /// Gone once the caller waits no more.
    wanted: Weak<()>,
    answer: Sender<CallAnswer>,
}

/// Which pieces of the read, and their bytes one after the other.
type CallAnswer = (Range<usize>, Result<Vec<u8>, ColdError>);

impl CallThreads {
    /// Reads the pieces and gives each one to `on_piece`.
    pub(super) fn read(
        &self,
        pieces: &[FilePiece],
        patience: Duration,
        on_piece: &mut OnPiece<'_>,
    ) -> Result<(), ColdError> {
        let (pieces, wanted): (Arc<[FilePiece]>, _) = (pieces.into(), Arc::new(()));
        let (answer, answers) = unbounded();
        let mut missing = 0;
        for start in (0..pieces.len()).step_by(CHUNK) {
            let range = start..pieces.len().min(start + CHUNK);
            let job =
                CallJob { pieces: Arc::clone(&pieces), range, wanted: Arc::downgrade(&wanted), answer: answer.clone() };
            self.hand_over(job)?;
            missing += 1;
        }
        while missing > 0 {
            let ended = self.ended.load(Ordering::Relaxed);
            let (range, bytes) = match answers.recv_timeout(patience) {
                Ok(answer) => answer,
                Err(_) if self.ended.load(Ordering::Relaxed) != ended => continue,
                Err(_) => return Err(hang_error(patience, pieces.first())),
            };
            let bytes = bytes?;
            let mut rest = &bytes[..];
            for piece in &pieces[range] {
                let (own, others) = rest.split_at(piece.bytes);
                on_piece(piece, own)?;
                rest = others;
            }
            missing -= 1;
        }
        Ok(())
    }

    fn hand_over(&self, job: CallJob) -> Result<(), ColdError> {
        let work = self.work.get_or_init(|| {
            let (work, jobs) = unbounded();
            for number in 0..THREADS {
                let (jobs, ended) = (jobs.clone(), Arc::clone(&self.ended));
                // Without any thread the jobs are refused below.
                let _ = thread::Builder::new().name(format!("cold read {number}")).spawn(move || serve(&jobs, &ended));
            }
            work
        });
        let refused = |_| ColdError { doing: "read", reason: "no thread for reads could be started".to_owned() };
        work.send(job).map_err(refused)
    }
}

/// Reads what is wanted, until the store has gone.
fn serve(jobs: &Receiver<CallJob>, ended: &AtomicU64) {
    for CallJob { pieces, range, wanted, answer } in jobs {
        if wanted.strong_count() > 0 {
            let bytes = read_chunk(&pieces[range.clone()]);
            // The caller may have given up meanwhile.
            let _ = answer.send((range, bytes));
        }
        ended.fetch_add(1, Ordering::Relaxed);
    }
}

fn read_chunk(pieces: &[FilePiece]) -> Result<Vec<u8>, ColdError> {
    pieces.iter().for_each(advise);
    let mut bytes = vec![0; pieces.iter().map(|piece| piece.bytes).sum()];
    let mut rest = &mut bytes[..];
    for piece in pieces {
        let (own, others) = rest.split_at_mut(piece.bytes);
        piece.segment.read(piece.offset, own)?;
        rest = others;
    }
    Ok(bytes)
}

/// Tells the kernel that a piece will be read soon. If the kernel takes no advice, the read itself waits longer.
fn advise(piece: &FilePiece) {
    let _ = fadvise(&piece.segment.file, piece.offset, NonZeroU64::new(piece.bytes as u64), Advice::WillNeed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::pieces::testing::{numbers, pieces};

    /// Jobs are handed over, and no thread takes them.
    fn unserved() -> (CallThreads, Receiver<CallJob>) {
        let (work, jobs) = unbounded();
        (CallThreads { work: OnceLock::from(work), ..CallThreads::default() }, jobs)
    }

    #[test]
    fn threads_that_do_not_answer_are_an_error_and_later_leave_out_what_nobody_wants_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let all = pieces(&numbers(folder.path(), 1000), 0..1000);
        let (threads, jobs) = unserved();
        let mut arrived = 0;
        let mut count = |_: &FilePiece, _: &[u8]| {
            arrived += 1;
            Ok(())
        };
        let error = threads.read(&all, Duration::from_millis(5), &mut count).unwrap_err();
        assert!(error.reason.contains("has answered nothing for 0.0 s") && error.reason.contains(".rows"), "{error}");
        assert!(jobs.len() > 1);
        thread::scope(|scope| {
            scope.spawn(|| serve(&jobs, &AtomicU64::new(0)));
            threads.read(&all, Duration::from_secs(60), &mut count).unwrap();
            drop(threads);
        });
        assert_eq!(arrived, 1000);
    }

    #[test]
    fn a_reader_whose_jobs_queue_behind_those_of_others_waits_on() {
        let folder = tempfile::tempdir().unwrap();
        let all = pieces(&numbers(folder.path(), 10), 0..10);
        let (threads, jobs) = unserved();
        let patience = Duration::from_millis(500);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Jobs of others end, for longer than the patience.
                for _ in 0..100 {
                    thread::sleep(patience / 50);
                    threads.ended.fetch_add(1, Ordering::Relaxed);
                }
                let job = jobs.recv().unwrap();
                let _ = job.answer.send((job.range.clone(), read_chunk(&job.pieces[job.range])));
            });
            threads.read(&all, patience, &mut |_, _| Ok(())).unwrap();
        });
    }
}
