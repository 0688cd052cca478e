//! The memory of this machine, and the disk of its temporary folder.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use zagros_cost::DiskRates;
use zagros_shell::{Failure, OrFailure};

/// Far more than any cache holds.
const BYTES: usize = 64 << 20;
const COPIES: usize = 4;
const TRIES: usize = 3;

/// Bytes that `threads` copy each second together: the fastest of several tries.
pub(crate) fn copy_rate(threads: usize) -> f64 {
    let mut buffers: Vec<_> = (0..threads).map(|_| (vec![1_u8; BYTES], vec![2_u8; BYTES])).collect();
    let mut best: f64 = 0.0;
    for _ in 0..TRIES {
        let started = Instant::now();
        thread::scope(|scope| {
            for (from, to) in &mut buffers {
                scope.spawn(|| {
                    for _ in 0..COPIES {
                        to.copy_from_slice(std::hint::black_box(from));
                        std::hint::black_box(&mut *to);
                    }
                });
            }
        });
        best = best.max((threads * COPIES * BYTES) as f64 / started.elapsed().as_secs_f64());
    }
    best
}

/// Bytes of the file by which the disk is measured, and of one write.
const FILE_BYTES: usize = 64 << 20;
const PIECE: usize = 1 << 20;
/// Small writes that are made durable one by one.
const FLUSHES: usize = 10;

pub(crate) fn disk_rates() -> Result<DiskRates, Failure> {
    let mut file = tempfile::tempfile().or_internal()?;
    let mut piece = vec![7_u8; PIECE];
    let write = time(|| {
        (0..FILE_BYTES / PIECE).try_for_each(|_| file.write_all(&piece))?;
        file.sync_all()
    })?;
    // Asks the system to forget the file. Where it does not, the rate is that of memory.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    file.seek(SeekFrom::Start(0)).or_internal()?;
    let read = time(|| (0..FILE_BYTES / PIECE).try_for_each(|_| file.read_exact(&mut piece)))?;
    let flushes: Vec<Duration> = (0..FLUSHES).map(|_| flush(&mut file)).collect::<Result<_, _>>()?;
    let flush = flushes.iter().min().copied().unwrap_or_default();
    let rate = |time: Duration| FILE_BYTES as f64 / time.as_secs_f64().max(1e-9);
    Ok(DiskRates {
        write_bytes_per_second: rate(write),
        read_bytes_per_second: rate(read),
        flush_ms: flush.as_secs_f64() * 1e3,
    })
}

fn flush(file: &mut File) -> Result<Duration, Failure> {
    time(|| {
        file.write_all(&[1; 4096])?;
        file.sync_data()
    })
}

fn time(mut work: impl FnMut() -> std::io::Result<()>) -> Result<Duration, Failure> {
    let started = Instant::now();
    work().or_internal()?;
    Ok(started.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_a_disk_have_rates() {
        assert!(copy_rate(1) > 1e6);
        let DiskRates { write_bytes_per_second, read_bytes_per_second, flush_ms } = disk_rates().unwrap();
        assert!(write_bytes_per_second > 0.0 && read_bytes_per_second > 0.0 && flush_ms >= 0.0);
    }
}
