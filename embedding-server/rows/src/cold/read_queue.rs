//! Reads of many pieces of files at once: by io_uring where the kernel lets this process use it, else by a few threads.
//!
//! Both read through the page cache. It takes memory that nothing else uses, and a piece that is in it costs no I/O.
//!
//! ```text
//!            pieces                                  nothing arrives within the patience
//! a read ───────────► ring (or threads) ─► rows     ────────────────────────────────────► error; the ring is set aside
//!                      ▲                                                                   │
//!                      └────────────── the disk has answered all of its reads ◄────────────┘
//! ```
//!
//! A disk that hangs answers no read, and no read can be taken back: the kernel may write into its buffer at any time. So the
//! buffer is set aside with its ring, the caller gets an error, and both are used again once the disk answers.

use std::time::Duration;

use parking_lot::Mutex;
use zagros_table::ColdError;

use super::call_threads::CallThreads;
use super::pieces::{FilePiece, OnPiece, hang_error};
use super::ring::ReadRing;

/// Rings that are kept for the next reads. Each has a buffer of 1 MiB or more.
const IDLE: usize = 8;
/// Rings that wait for a disk that hangs. With so many, reads fail at once.
const MOST_STUCK: usize = 4;
/// The longest piece, unless a record is longer.
const LONGEST: usize = 8 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadMethod {
    /// By io_uring, or as [`Self::Calls`] where the kernel does not let this process use it.
    #[default]
    Ring,
    /// By calls of a few threads, after the kernel was advised of the next pieces.
    Calls,
}

#[derive(Debug)]
pub(crate) struct ReadQueue {
    reader: ReadBackend,
    pub(crate) longest_piece: usize,
    patience: Duration,
}

#[derive(Debug)]
enum ReadBackend {
    Rings(Mutex<ReadRings>),
    Calls(CallThreads),
}

/// The rings that no thread uses now.
#[derive(Debug, Default)]
struct ReadRings {
    idle: Vec<ReadRing>,
    /// With reads that the disk has not answered in time.
    stuck: Vec<ReadRing>,
}

impl ReadQueue {
    /// Reads of records of `record` bytes at most. A read fails if nothing of it arrives for `patience`.
    pub(crate) fn new(method: ReadMethod, record: usize, patience: Duration) -> Self {
        let longest = record.max(LONGEST);
        let first = if method == ReadMethod::Ring { ReadRing::new(longest) } else { None };
        let reader = match first {
            Some(ring) => ReadBackend::Rings(Mutex::new(ReadRings { idle: vec![ring], stuck: Vec::new() })),
            None => ReadBackend::Calls(CallThreads::default()),
        };
        Self { reader, longest_piece: longest, patience }
    }

    /// Reads the pieces and gives each one to `on_piece`.
    pub(crate) fn read(&self, pieces: &[FilePiece], on_piece: &mut OnPiece<'_>) -> Result<(), ColdError> {
        match &self.reader {
            ReadBackend::Calls(threads) => threads.read(pieces, self.patience, on_piece),
            ReadBackend::Rings(rings) => {
                let taken = rings.lock().take(self.patience)?;
                // The kernel has let this process make one: it is out of memory or of open files.
                let Some(mut ring) = taken.or_else(|| ReadRing::new(self.longest_piece)) else {
                    let reason = "no further instance of io_uring can be made (memory or open files)".to_owned();
                    return Err(ColdError { doing: "read", reason });
                };
                let done = ring.read(pieces, self.patience, on_piece);
                rings.lock().give_back(ring);
                done
            }
        }
    }
}

impl ReadRings {
    fn take(&mut self, patience: Duration) -> Result<Option<ReadRing>, ColdError> {
        for mut ring in std::mem::take(&mut self.stuck) {
            ring.forget_answered();
            self.give_back(ring);
        }
        if self.stuck.len() >= MOST_STUCK {
            return Err(hang_error(patience, None));
        }
        Ok(self.idle.pop())
    }

    fn give_back(&mut self, ring: ReadRing) {
        if ring.is_waiting() {
            self.stuck.push(ring);
        } else if self.idle.len() < IDLE {
            self.idle.push(ring);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cold::pieces::testing::{numbers, pieces};
    use crate::cold::segment::RowSegment;

    const PATIENT: Duration = Duration::from_secs(60);

    #[test]
    fn every_piece_arrives_once_by_either_method() {
        let folder = tempfile::tempdir().unwrap();
        let segment = numbers(folder.path(), 100_000);
        for method in [ReadMethod::Ring, ReadMethod::Calls] {
            let queue = ReadQueue::new(method, 4, PATIENT);
            for count in [0, 1, 127, 128, 129, 5000] {
                let wanted = |at: u32| at.wrapping_mul(7919) % 100_000;
                let mut found = vec![None; count as usize];
                let done = queue.read(&pieces(&segment, (0..count).map(wanted)), &mut |piece, bytes| {
                    let number = u32::from_le_bytes(bytes.try_into().unwrap());
                    assert_eq!(found[piece.records.start].replace(number), None);
                    Ok(())
                });
                assert_eq!(done, Ok(()));
                assert_eq!(found, (0..count).map(|at| Some(wanted(at))).collect::<Vec<_>>(), "{method:?}");
            }
        }
    }

    #[test]
    fn a_failure_ends_the_read_and_the_queue_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let segment = numbers(folder.path(), 1000);
        for method in [ReadMethod::Ring, ReadMethod::Calls] {
            let queue = ReadQueue::new(method, 4, PATIENT);
            let past_the_end = pieces(&segment, (0..1000).chain([5000]).chain(0..1000));
            let error = queue.read(&past_the_end, &mut |_, _| Ok(())).unwrap_err();
            assert!(error.reason.contains("t00000-0000000000000000.rows"), "{error}");
            let refused = ColdError { doing: "read", reason: "no".to_owned() };
            let done = queue.read(&pieces(&segment, 0..1000), &mut |_, _| Err(refused.clone()));
            assert_eq!(done, Err(refused));
            let mut arrived = 0;
            queue
                .read(&pieces(&segment, 0..1000), &mut |_, _| {
                    arrived += 1;
                    Ok(())
                })
                .unwrap();
            assert_eq!(arrived, 1000);
        }
    }

    /// A file whose reads are not answered until the test writes: a pipe.
    fn hanging(folder: &std::path::Path) -> (Arc<RowSegment>, std::io::PipeWriter) {
        let (reader, writer) = std::io::pipe().unwrap();
        let file = std::fs::File::from(std::os::fd::OwnedFd::from(reader));
        (Arc::new(RowSegment { number: 0, file, path: folder.join("hanging") }), writer)
    }

    /// Everything else is read meanwhile, and the ring is used again once the disk has answered.
    #[test]
    fn a_disk_that_hangs_is_an_error_after_the_patience_and_is_read_again_once_it_answers() {
        let folder = tempfile::tempdir().unwrap();
        let (healthy, (hung, mut disk)) = (numbers(folder.path(), 100), hanging(folder.path()));
        let queue = ReadQueue::new(ReadMethod::Ring, 4, Duration::from_millis(20));
        let ReadBackend::Rings(rings) = &queue.reader else { return eprintln!("SKIPPED: no io_uring here") };
        for stuck in 1..=MOST_STUCK {
            let error = queue.read(&pieces(&hung, 0..1), &mut |_, _| Ok(())).unwrap_err();
            let reason = &error.reason;
            assert!(reason.contains("has answered nothing for 0.0 s") && reason.contains("hanging"), "{error}");
            assert_eq!(rings.lock().stuck.len(), stuck);
            if stuck < MOST_STUCK {
                queue.read(&pieces(&healthy, 0..100), &mut |_, _| Ok(())).unwrap();
            }
        }
        let error = queue.read(&pieces(&healthy, 0..1), &mut |_, _| Ok(())).unwrap_err();
        assert!(error.reason.contains("has answered nothing"), "{error}");
        std::io::Write::write_all(&mut disk, &[7; 4 * MOST_STUCK]).unwrap();
        // The kernel answers in its own time.
        while queue.read(&pieces(&healthy, 0..100), &mut |_, _| Ok(())).is_err() {
            std::thread::yield_now();
        }
        while !rings.lock().stuck.is_empty() {
            let _ = queue.read(&pieces(&healthy, 0..1), &mut |_, _| Ok(()));
        }
        assert!(!rings.lock().idle.is_empty());
    }

    /// The kernel answers a part of a piece, and then nothing for a while.
    #[test]
    fn the_rest_of_a_piece_is_read_with_patience_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let (hung, mut disk) = hanging(folder.path());
        std::io::Write::write_all(&mut disk, &[7; 3]).unwrap();
        let queue = ReadQueue::new(ReadMethod::Ring, 4, Duration::from_millis(20));
        let ReadBackend::Rings(_) = &queue.reader else { return eprintln!("SKIPPED: no io_uring here") };
        let error = queue.read(&pieces(&hung, 0..1), &mut |_, _| Ok(())).unwrap_err();
        assert!(error.reason.contains("has answered nothing for 0.0 s"), "{error}");
        let (hung, mut disk) = hanging(folder.path());
        let queue = ReadQueue::new(ReadMethod::Ring, 4, PATIENT);
        let rest = std::thread::spawn(move || {
            for byte in 1..=4 {
                std::io::Write::write_all(&mut disk, &[byte]).unwrap();
                std::thread::yield_now();
            }
            disk
        });
        let mut found = Vec::new();
        let done = queue.read(&pieces(&hung, 0..1), &mut |_, bytes| {
            found.extend_from_slice(bytes);
            Ok(())
        });
        assert_eq!((done, found), (Ok(()), vec![1, 2, 3, 4]));
        drop(rest.join().unwrap());
    }
}
