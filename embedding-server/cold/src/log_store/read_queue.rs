//! Reads of many pieces of files at once: by io_uring where the kernel lets this process use it, else one by one after the
//! kernel was advised of the next ones.
//!
//! Both read through the page cache. It takes memory that nothing else uses, and a piece that is in it costs no I/O.
//! With [`DEPTH`] pieces on their way, the device has always something to do.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::fs::{Advice, fadvise};
use zagros_table::ColdError;

use super::segment::RowSegment;

/// Rings that are kept for the next reads. Each has a buffer of 1 MiB or more.
const IDLE: usize = 8;
/// Pieces on their way at a time.
const DEPTH: usize = 128;
/// Pieces that the kernel is advised of before they are read, without io_uring.
const AHEAD: usize = 64;
/// The longest piece, unless a record is longer.
const LONGEST: usize = 8 << 10;

/// How a store reads its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadMethod {
    /// By io_uring, or as [`Self::Calls`] where the kernel does not let this process use it.
    #[default]
    Ring,
    /// One call a piece, after the kernel was advised of the next pieces.
    Calls,
}

/// A piece of a file with some of the requested records.
#[derive(Clone, Debug)]
pub(crate) struct FilePiece {
    pub(crate) segment: Arc<RowSegment>,
    pub(crate) offset: u64,
    /// At most [`ReadQueue::longest`].
    pub(crate) bytes: usize,
    /// Which of the tables of the read it is of.
    pub(crate) part: usize,
    /// Which of the requested records of this table are in it.
    pub(crate) records: std::ops::Range<usize>,
}

/// Takes the pieces in the order of their arrival, with their bytes.
pub(crate) type OnPiece<'a> = dyn FnMut(&FilePiece, &[u8]) -> Result<(), ColdError> + 'a;

/// Reads pieces for any number of threads.
#[derive(Debug)]
pub(crate) struct ReadQueue {
    /// Rings that no thread uses now. Empty without io_uring.
    idle: Mutex<Vec<Ring>>,
    method: ReadMethod,
    longest: usize,
}

/// An instance of io_uring, with a buffer for each piece on its way.
struct Ring {
    ring: IoUring,
    /// `[DEPTH * longest]`.
    buffer: Vec<u8>,
    longest: usize,
    pieces: Vec<Option<FilePiece>>,
    free: Vec<usize>,
    /// Reads that the kernel has and has not completed.
    in_flight: usize,
}

impl ReadQueue {
    /// Reads of records of `record` bytes at most.
    pub(crate) fn new(method: ReadMethod, record: usize) -> Self {
        let longest = record.max(LONGEST);
        let first = if method == ReadMethod::Ring { Ring::new(longest) } else { None };
        let method = if first.is_some() { ReadMethod::Ring } else { ReadMethod::Calls };
        Self { idle: Mutex::new(first.into_iter().collect()), method, longest }
    }

    /// How it really reads.
    pub(crate) fn method(&self) -> ReadMethod {
        self.method
    }

    /// The most bytes of a piece.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Reads the pieces and gives each one to `on_piece`.
    ///
    /// # Errors
    /// The first failure of a read or of `on_piece`.
    pub(crate) fn read(&self, pieces: &[FilePiece], on_piece: &mut OnPiece<'_>) -> Result<(), ColdError> {
        let idle = if self.method == ReadMethod::Ring { self.idle.lock().pop() } else { None };
        let ring = idle.or_else(|| (self.method == ReadMethod::Ring).then(|| Ring::new(self.longest)).flatten());
        let Some(mut ring) = ring else { return self.read_by_calls(pieces, on_piece) };
        let done = ring.read(pieces, on_piece);
        let mut idle = self.idle.lock();
        if ring.in_flight == 0 && idle.len() < IDLE {
            idle.push(ring);
        }
        done
    }

    fn read_by_calls(&self, pieces: &[FilePiece], on_piece: &mut OnPiece<'_>) -> Result<(), ColdError> {
        let mut buffer = vec![0; self.longest];
        pieces.iter().take(AHEAD).for_each(advise);
        for (number, piece) in pieces.iter().enumerate() {
            pieces.get(number + AHEAD).into_iter().for_each(advise);
            let bytes = &mut buffer[..piece.bytes];
            piece.segment.read(piece.offset, bytes)?;
            on_piece(piece, bytes)?;
        }
        Ok(())
    }
}

/// Tells the kernel that a piece will be read soon. If the kernel takes no advice, the read itself waits longer.
fn advise(piece: &FilePiece) {
    let bytes = std::num::NonZeroU64::new(piece.bytes as u64);
    let _ = fadvise(&piece.segment.file, piece.offset, bytes, Advice::WillNeed);
}

impl Ring {
    /// `None` if the kernel does not let this process use io_uring, as in many containers.
    fn new(longest: usize) -> Option<Self> {
        // Completions are noted when this thread waits for them, not by interrupting it. Kernels before 5.19 refuse this.
        let cheap = IoUring::builder().setup_coop_taskrun().build(DEPTH as u32);
        let ring = cheap.or_else(|_| IoUring::new(DEPTH as u32)).ok()?;
        Some(Self {
            ring,
            buffer: vec![0; DEPTH * longest],
            longest,
            pieces: vec![None; DEPTH],
            free: (0..DEPTH).collect(),
            in_flight: 0,
        })
    }

    fn read(&mut self, pieces: &[FilePiece], on_piece: &mut OnPiece<'_>) -> Result<(), ColdError> {
        let (mut next, mut done) = (pieces.iter(), Ok(()));
        loop {
            while done.is_ok() && !self.free.is_empty() {
                let Some(piece) = next.next() else { break };
                done = self.start(piece, on_piece);
            }
            if self.in_flight == 0 {
                return done;
            }
            // Waiting for a quarter makes fewer calls than waiting for one, and keeps the device busy.
            let enough = if next.len() > 0 { self.in_flight.div_ceil(4) } else { 1 };
            let arrived = match self.wait(enough) {
                Ok(arrived) => arrived,
                Err(error) => return Err(ColdError { doing: "read", reason: format!("io_uring fails: {error}") }),
            };
            for (slot, result) in arrived {
                let taken = self.take(slot, result, on_piece);
                done = done.and(taken);
            }
        }
    }

    /// Puts a read into the queue. If the queue is full, reads at once.
    #[expect(unsafe_code, reason = "the kernel writes into the buffer while the read is on its way")]
    fn start(&mut self, piece: &FilePiece, on_piece: &mut OnPiece<'_>) -> Result<(), ColdError> {
        let Some(slot) = self.free.pop() else { return Ok(()) };
        let buffer = self.buffer[slot * self.longest..][..piece.bytes].as_mut_ptr();
        let read = opcode::Read::new(types::Fd(piece.segment.file.as_raw_fd()), buffer, piece.bytes as u32);
        let entry = read.offset(piece.offset).build().user_data(slot as u64);
        self.pieces[slot] = Some(piece.clone());
        // SAFETY: The buffer and the file live until the read has completed: the buffer is not touched, the piece holds the file,
        // and both are dropped only after `Drop` has waited for it. The queue has as many entries as there are buffers.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return self.take(slot, -libc::EBUSY, on_piece);
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Submits what is queued and waits for so many completions. Answers buffers and results.
    fn wait(&mut self, enough: usize) -> io::Result<Vec<(usize, i32)>> {
        match self.ring.submit_and_wait(enough) {
            Ok(_) => {}
            // The caller comes again.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            Err(error) => return Err(error),
        }
        let arrived: Vec<_> =
            self.ring.completion().map(|entry| (entry.user_data() as usize, entry.result())).collect();
        self.in_flight -= arrived.len();
        Ok(arrived)
    }

    /// Gives a piece that has arrived to `on_piece`, and frees its buffer.
    fn take(&mut self, slot: usize, result: i32, on_piece: &mut OnPiece<'_>) -> Result<(), ColdError> {
        self.free.push(slot);
        let Some(piece) = self.pieces[slot].take() else { return Ok(()) };
        let bytes = &mut self.buffer[slot * self.longest..][..piece.bytes];
        if usize::try_from(result) != Ok(bytes.len()) {
            // A short or interrupted read goes on here; one that failed fails again, and says why.
            piece.segment.read(piece.offset, bytes)?;
        }
        on_piece(&piece, bytes)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.wait(self.in_flight).is_err() {
                // The kernel may still write into the buffer, so nobody else may have its memory.
                std::mem::forget(std::mem::take(&mut self.buffer));
                return;
            }
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Ring")
            .field("longest", &self.longest)
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_store::record::RecordFormat;

    /// A segment of `count` numbers of four bytes after its head.
    fn numbers(folder: &std::path::Path, count: u32) -> Arc<RowSegment> {
        let segment = RowSegment::create(folder, RecordFormat { table: 0, width: 1 }, 0).unwrap();
        let bytes: Vec<u8> = (0..count).flat_map(u32::to_le_bytes).collect();
        segment.write(super::super::segment::HEAD as u64, &bytes).unwrap();
        Arc::new(segment)
    }

    fn pieces(segment: &Arc<RowSegment>, numbers: impl Iterator<Item = u32>) -> Vec<FilePiece> {
        let piece = |(at, number): (usize, u32)| FilePiece {
            segment: Arc::clone(segment),
            offset: super::super::segment::HEAD as u64 + 4 * u64::from(number),
            bytes: 4,
            part: 0,
            records: at..at + 1,
        };
        numbers.enumerate().map(piece).collect()
    }

    #[test]
    fn every_piece_arrives_once_by_either_method() {
        let folder = tempfile::tempdir().unwrap();
        let segment = numbers(folder.path(), 100_000);
        for method in [ReadMethod::Ring, ReadMethod::Calls] {
            let queue = ReadQueue::new(method, 4);
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
            let queue = ReadQueue::new(method, 4);
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
}
