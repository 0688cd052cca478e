//! The memory of this machine, the disk of its temporary folder, and rows on that disk: a real table with a tenth of its rows in memory, and
//! the real log of rows.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use zagros_planner::{ColdRates, DiskRates};
use zagros_shell::{Failure, OrFailure};
use zagros_table::{ColdRows, ColdStore};

use crate::table_load::{DIM, IdLaw, TableFigures, TableLoad, measure_table, open_store};

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

/// Rows of the table: 150 MB. With few, many rows of a batch would be neighbours on disk and come in one read.
const ROWS: usize = 1_000_000;
/// Bytes of memory of a tenth of them, and of the index of all.
const BUDGET: usize = ROWS * (15 + 12);
/// Rows of a batch, and of a read of forgotten files; and such reads.
const AT_ONCE: usize = 4096;
const READS: u64 = 8;
/// Spreads numbers over all ids.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

pub(crate) fn cold_rates() -> Result<ColdRates, Failure> {
    let (in_memory, on_disk) = (train_table(None)?, train_table(Some(BUDGET))?);
    let more_ns = (on_disk.cpu_us - in_memory.cpu_us).max(0.0) * on_disk.batches as f64 * 1e3;
    Ok(ColdRates { row_ns: more_ns / on_disk.paged_in.max(1) as f64, reads_per_second: reads_per_second()? })
}

/// A table with so much memory. After the first batches as many rows leave as come.
fn train_table(budget: Option<usize>) -> Result<TableFigures, Failure> {
    measure_table(&TableLoad {
        rows: ROWS,
        budget,
        law: IdLaw::Uniform,
        draws: AT_ONCE,
        warm: 30,
        measured: 60,
        lookahead: 0,
        pause: Duration::ZERO,
        folder: &std::env::temp_dir(),
    })
}

/// Rows read each second that are nowhere in memory.
fn reads_per_second() -> Result<f64, Failure> {
    let folder = tempfile::tempdir().or_internal()?;
    let width = 2 * DIM + 1;
    let store = open_store(folder.path(), width)?;
    let all: Vec<u64> = (0..ROWS as u64).map(|number| number.wrapping_mul(SPREAD)).collect();
    let words = vec![1; AT_ONCE * width];
    all.chunks(AT_ONCE).try_for_each(|keys| store.write(0, keys, &words[..keys.len() * width])).or_internal()?;
    store.flush().or_internal()?;
    let (mut time, mut rows) = (Duration::ZERO, ColdRows::default());
    for read in 0..READS {
        // A step that has no divisor in common with the number of rows meets each of them once.
        let first = (read + 1) * 104_729;
        let keys: Vec<u64> =
            (0..AT_ONCE as u64).map(|place| all[((first + place * 78_901) % ROWS as u64) as usize]).collect();
        forget_files(folder.path())?;
        let started = Instant::now();
        store.read(0, &keys, &mut rows).or_internal()?;
        time += started.elapsed();
    }
    Ok((READS as usize * AT_ONCE) as f64 / time.as_secs_f64().max(1e-9))
}

/// Asks the system to forget files. Where it does not, the rate is that of memory.
fn forget_files(folder: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(folder).or_internal()? {
        let Ok(file) = File::open(entry.or_internal()?.path()) else { continue };
        file.sync_all().or_internal()?;
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
    Ok(())
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

    #[test]
    fn most_rows_of_a_batch_come_from_disk_at_some_rate() {
        let on_disk = train_table(Some(BUDGET)).unwrap();
        assert!((on_disk.ids / 2..=on_disk.ids).contains(&on_disk.paged_in), "{on_disk:?}");
        assert_eq!(train_table(None).unwrap().paged_in, 0);
        assert!(reads_per_second().unwrap() > 0.0);
    }
}
