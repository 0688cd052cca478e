//! The limit: rows in one plain file, at known offsets. They are read one by one, or with a queue as deep as the log's.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use io_uring::{IoUring, opcode, types};

/// Reads on their way at a time, as many as the log has.
const DEPTH: usize = 128;
/// Direct reads are of whole blocks of this size.
const BLOCK: u64 = 4096;

pub(crate) struct Plain {
    file: File,
    path: PathBuf,
    width: usize,
}

/// Whether reads go through the page cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cache {
    Used,
    /// They do not (`O_DIRECT`).
    Bypassed,
}

impl Plain {
    pub(crate) fn create(folder: &Path, width: usize) -> Self {
        let path = folder.join("rows");
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        Self { file: options.open(&path).expect("a new file"), path, width }
    }

    pub(crate) fn append(&mut self, rows: &[u32]) {
        self.file.write_all(bytemuck::cast_slice(rows)).expect("rows are written");
    }

    pub(crate) fn read(&self, numbers: &[usize]) -> Vec<u32> {
        let mut rows = vec![0; numbers.len() * self.width];
        for (index, number) in numbers.iter().enumerate() {
            let row = bytemuck::cast_slice_mut(&mut rows[index * self.width..][..self.width]);
            self.file.read_exact_at(row, (number * self.width * 4) as u64).expect("a row is read");
        }
        rows
    }

    /// As [`Self::read`], many rows at a time. `None` where the kernel lets this process have no queue, or the file system
    /// no direct reads.
    #[expect(unsafe_code, reason = "the kernel writes into the buffer while a read is on its way")]
    pub(crate) fn read_queued(&self, numbers: &[usize], cache: Cache) -> Option<Vec<u32>> {
        let mut ring = IoUring::new(DEPTH as u32).ok()?;
        let direct = if cache == Cache::Bypassed { libc::O_DIRECT } else { 0 };
        let file = File::options().read(true).custom_flags(direct).open(&self.path).ok()?;
        let bytes = (self.width * 4) as u64;
        let span = |number: usize| {
            let (start, end) = (number as u64 * bytes, (number as u64 + 1) * bytes);
            if direct == 0 { (start, end) } else { (start / BLOCK * BLOCK, end.div_ceil(BLOCK) * BLOCK) }
        };
        let largest = bytes.div_ceil(BLOCK) * BLOCK + BLOCK;
        let buffer = vec![0_u8; DEPTH * largest as usize + BLOCK as usize];
        let aligned = buffer.as_ptr().align_offset(BLOCK as usize);
        let mut rows = vec![0; numbers.len() * self.width];
        let (mut free, mut next, mut done): (Vec<usize>, _, _) = ((0..DEPTH).collect(), 0, 0);
        let mut wanted = vec![0; DEPTH];
        while done < numbers.len() {
            while let (Some(slot), true) = (free.last().copied(), next < numbers.len()) {
                let ((start, end), at) = (span(numbers[next]), aligned + slot * largest as usize);
                let into = buffer[at..].as_ptr().cast_mut();
                let read = opcode::Read::new(types::Fd(file.as_raw_fd()), into, (end - start) as u32);
                // SAFETY: No other code uses the buffer until the read has completed, and this function waits for all reads.
                unsafe { ring.submission().push(&read.offset(start).build().user_data(slot as u64)) }.ok()?;
                free.pop();
                wanted[slot] = next;
                next += 1;
            }
            let in_flight = DEPTH - free.len();
            ring.submit_and_wait(if next < numbers.len() { in_flight.div_ceil(4) } else { 1 }).ok()?;
            for entry in ring.completion() {
                let slot = entry.user_data() as usize;
                let (position, at) = (wanted[slot], aligned + slot * largest as usize);
                let skipped = (numbers[position] as u64 * bytes - span(numbers[position]).0) as usize;
                assert!(entry.result() as u64 >= skipped as u64 + bytes, "a row is read: {}", entry.result());
                let row = bytemuck::cast_slice_mut::<u32, u8>(&mut rows[position * self.width..][..self.width]);
                // SAFETY: The read into this part of the buffer has completed.
                row.copy_from_slice(unsafe {
                    std::slice::from_raw_parts(buffer[at + skipped..].as_ptr(), bytes as usize)
                });
                free.push(slot);
                done += 1;
            }
        }
        Some(rows)
    }
}

/// Lets the kernel forget what it has of the files of a folder.
pub(crate) fn forget(folder: &Path) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a file").path();
        let Ok(file) = File::open(&path) else { continue };
        let _ = file.sync_all();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is taken");
    }
}
