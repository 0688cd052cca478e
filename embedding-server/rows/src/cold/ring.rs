//! Reads by io_uring: many pieces on their way at a time, so that the device has always something to do.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use zagros_table::ColdError;

use super::pieces::{FilePiece, OnPiece, hang_error};
use super::segment::file_error;

const DEPTH: usize = 128;

/// An instance of io_uring, with a buffer for each piece on its way.
pub(super) struct ReadRing {
    ring: IoUring,
    /// `[DEPTH * longest]`.
    buffer: Vec<u8>,
    longest: usize,
    reads: Vec<Option<RingRead>>,
    free: Vec<usize>,
    /// Reads that the kernel has and has not completed.
    in_flight: usize,
}

#[derive(Clone)]
struct RingRead {
    piece: FilePiece,
    /// Bytes of it that are in its buffer: the kernel may answer a part.
    arrived: usize,
}

impl ReadRing {
    /// `None` if the kernel does not let this process use io_uring, as in many containers.
    pub(super) fn new(longest: usize) -> Option<Self> {
        // Completions are noted when this thread waits for them, not by interrupting it. Kernels before 5.19 refuse this.
        let cheap = IoUring::builder().setup_coop_taskrun().build(DEPTH as u32);
        let ring = cheap.or_else(|_| IoUring::new(DEPTH as u32)).ok()?;
        // Kernels before 5.11 cannot end a wait.
        if !ring.params().is_feature_ext_arg() {
            return None;
        }
        Some(Self {
            ring,
            buffer: vec![0; DEPTH * longest],
            longest,
            reads: vec![None; DEPTH],
            free: (0..DEPTH).collect(),
            in_flight: 0,
        })
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.in_flight > 0
    }

    /// Frees the buffers of reads that were completed after their caller had gone.
    pub(super) fn forget_answered(&mut self) {
        for (slot, _) in self.arrived() {
            self.reads[slot] = None;
            self.free.push(slot);
        }
    }

    /// Reads the pieces and gives each one to `on_piece`. If the disk answers nothing for `patience`, reads are still on their way
    /// afterwards.
    pub(super) fn read(
        &mut self,
        pieces: &[FilePiece],
        patience: Duration,
        on_piece: &mut OnPiece<'_>,
    ) -> Result<(), ColdError> {
        let (mut next, mut done) = (pieces.iter(), Ok(()));
        loop {
            while done.is_ok() && !self.free.is_empty() {
                let Some(piece) = next.next() else { break };
                done = self.start(piece);
            }
            if self.in_flight == 0 {
                return done;
            }
            // Waiting for a quarter makes fewer calls than waiting for one, and keeps the device busy.
            let enough = if next.len() > 0 { self.in_flight.div_ceil(4) } else { 1 };
            let arrived = match self.wait(enough, patience) {
                Ok(arrived) => arrived,
                Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                    return Err(hang_error(patience, self.reads.iter().flatten().next().map(|read| &read.piece)));
                }
                Err(error) => return Err(ColdError { doing: "read", reason: format!("io_uring fails: {error}") }),
            };
            for (slot, result) in arrived {
                let taken = self.take(slot, result, on_piece);
                done = done.and(taken);
            }
        }
    }

    fn start(&mut self, piece: &FilePiece) -> Result<(), ColdError> {
        let Some(slot) = self.free.pop() else { return Ok(()) };
        self.queue(slot, RingRead { piece: piece.clone(), arrived: 0 })
    }

    /// Puts what is missing of a read into the queue.
    #[expect(unsafe_code, reason = "the kernel writes into the buffer while the read is on its way")]
    fn queue(&mut self, slot: usize, read: RingRead) -> Result<(), ColdError> {
        let RingRead { piece, arrived } = &read;
        let missing = &mut self.buffer[slot * self.longest..][*arrived..piece.bytes];
        let (buffer, bytes) = (missing.as_mut_ptr(), missing.len() as u32);
        let entry = opcode::Read::new(Fd(piece.segment.file.as_raw_fd()), buffer, bytes);
        let entry = entry.offset(piece.offset + *arrived as u64).build().user_data(slot as u64);
        self.reads[slot] = Some(read);
        // SAFETY: The file is open until the kernel has taken the read: the piece holds it. The buffer is not touched until the read
        // has completed, and if it never does, `Drop` leaks it.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.reads[slot] = None;
            self.free.push(slot);
            // It has as many entries as there are buffers.
            return Err(ColdError { doing: "read", reason: "the queue of io_uring is full".to_owned() });
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Submits what is queued and waits for so many completions. Answers buffers and results: fewer, if the rest takes longer than
    /// `patience`.
    /// `ETIME`: none came within `patience`.
    fn wait(&mut self, enough: usize, patience: Duration) -> io::Result<Vec<(usize, i32)>> {
        let longest = Timespec::from(patience);
        let waited = self.ring.submitter().submit_with_args(enough, &SubmitArgs::new().timespec(&longest));
        let arrived = self.arrived();
        match waited {
            Ok(_) => Ok(arrived),
            Err(_) if !arrived.is_empty() => Ok(arrived),
            // The caller comes again.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(arrived),
            Err(error) => Err(error),
        }
    }

    fn arrived(&mut self) -> Vec<(usize, i32)> {
        let arrived: Vec<_> =
            self.ring.completion().map(|entry| (entry.user_data() as usize, entry.result())).collect();
        self.in_flight -= arrived.len();
        arrived
    }

    /// Gives a piece that has arrived to `on_piece`, and frees its buffer. If a part is missing, it is read next.
    fn take(&mut self, slot: usize, result: i32, on_piece: &mut OnPiece<'_>) -> Result<(), ColdError> {
        let Some(mut read) = self.reads[slot].take() else { return Ok(()) };
        if let Ok(bytes) = usize::try_from(result) {
            read.arrived += bytes;
        }
        let is_whole = read.arrived == read.piece.bytes;
        if !is_whole && (result > 0 || matches!(-result, libc::EINTR | libc::EAGAIN)) {
            return self.queue(slot, read);
        }
        self.free.push(slot);
        let RingRead { piece, .. } = read;
        if is_whole {
            return on_piece(&piece, &self.buffer[slot * self.longest..][..piece.bytes]);
        }
        let error = if result == 0 { ErrorKind::UnexpectedEof.into() } else { io::Error::from_raw_os_error(-result) };
        Err(file_error("read", &error, &piece.segment.path))
    }
}

impl Drop for ReadRing {
    fn drop(&mut self) {
        self.forget_answered();
        if self.is_waiting() {
            // The kernel may still write into the buffer, so no other code may get its memory.
            std::mem::forget(std::mem::take(&mut self.buffer));
        }
    }
}

impl std::fmt::Debug for ReadRing {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("ReadRing")
            .field("longest", &self.longest)
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}
