//! Damaged folders and files, invalid calls, and a full disk: a file system of a few MiB, which only root may mount.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;
use zagros_rows::cold::{LogOptions, LogStore, StoreContent};
use zagros_table::{ColdError, ColdRows, ColdStore};

use crate::store::{WIDTHS, assert_holds, rows, segments, small, without_ring};

fn open(folder: &Path) -> Result<LogStore, ColdError> {
    crate::store::open(StoreContent::Scratch, folder)
}

#[test]
fn a_folder_that_is_in_use_is_named_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path()).unwrap();
    first.write(0, &[1, 2], &rows(0, &[1, 2], 0)).unwrap();
    let error = open(folder.path()).unwrap_err();
    let expected = format!("the cold tier cannot open: {} is in use by another process", folder.path().display());
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_holds(&first, 0, &[1, 2], 0);
}

#[test]
fn files_of_a_killed_store_are_deleted_and_other_files_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let (killed, inside) = (folder.path().join("killed"), folder.path().join("made/if/need/be"));
    let store = open(&killed).unwrap();
    store.write(0, &[1], &rows(0, &[1], 0)).unwrap();
    fs::create_dir_all(&inside).unwrap();
    for entry in fs::read_dir(&killed).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, inside.join(path.file_name().unwrap())).unwrap();
    }
    fs::write(inside.join("notes.txt"), "mine").unwrap();
    let mut found = ColdRows::default();
    open(&inside).unwrap().read(0, &[1], &mut found).unwrap();
    assert_eq!(found.found, [false]);
    assert_eq!(fs::read_to_string(inside.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn a_folder_that_cannot_be_created_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = open(&file.join("inside")).unwrap_err();
    assert!(error.to_string().contains("Not a directory") && error.reason.contains("file/inside"), "{error}");
}

#[test]
fn wrong_calls_are_refused_and_write_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    let short = store.write(0, &[1, 2], &rows(0, &[1], 0)).unwrap_err();
    assert_eq!(short.to_string(), "the cold tier cannot write: 3 words for 2 rows of 3 words");
    let unknown = store.write(2, &[], &[]).unwrap_err();
    assert_eq!(unknown.to_string(), "the cold tier cannot write: no table 2 of 2");
    let mut found = ColdRows::default();
    assert_eq!(store.read(2, &[1], &mut found).unwrap_err().doing, "read");
    assert_eq!(store.remove(2, &[1]).unwrap_err().doing, "remove");
    store.read(0, &[1, 2], &mut found).unwrap();
    assert_eq!(found.found, [false, false]);
}

fn filled(folder: &Path, options: &LogOptions) -> (LogStore, Vec<u64>) {
    let store = LogStore::open(StoreContent::Scratch, folder, &WIDTHS, options).unwrap();
    let cold_keys: Vec<u64> = (0..30_000).collect();
    cold_keys.chunks(1000).for_each(|cold_keys| store.write(1, cold_keys, &rows(1, cold_keys, 0)).unwrap());
    (store, cold_keys)
}

/// Reading an emptied file is an error. Its rows must not seem to be missing.
#[test]
fn emptied_files_are_an_error_and_not_a_missing_row() {
    for options in [small(), without_ring()] {
        let folder = tempfile::tempdir().unwrap();
        let (store, cold_keys) = filled(folder.path(), &options);
        segments(folder.path()).iter().for_each(|path| fs::write(path, "").unwrap());
        let error = store.read(1, &cold_keys, &mut ColdRows::default()).unwrap_err();
        assert_eq!(error.doing, "read");
        assert!(error.reason.contains(&folder.path().display().to_string()), "{error}");
    }
}

/// One flipped bit is an error that names file and place, for the reader of this row alone.
#[test]
fn a_flipped_bit_is_found_and_named() {
    for options in [small(), without_ring()] {
        let folder = tempfile::tempdir().unwrap();
        let (store, cold_keys) = filled(folder.path(), &options);
        let record = (4 + 8 + 4 * WIDTHS[1]) as u64;
        let damaged = &segments(folder.path())[0];
        let file = fs::File::options().read(true).write(true).open(damaged).unwrap();
        // In the last word of record 2, which has key 2.
        let (mut byte, at) = ([0], 64 + 3 * record - 1);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        let error = store.read(1, &cold_keys, &mut ColdRows::default()).unwrap_err();
        let expected = format!("{} is damaged: the record at byte {}", damaged.display(), 64 + 2 * record);
        assert!(error.reason.starts_with(&expected), "{error}");
        assert_holds(&store, 1, &cold_keys[3..], 0);
        // Compaction keeps the file, and says why.
        cold_keys[3..].chunks(1000).for_each(|part| store.remove(1, part).unwrap());
        let named = |error: ColdError| error.reason.starts_with(&expected);
        assert!(store.compact().is_err_and(named) || damaged.exists());
        assert!(damaged.exists());
    }
}

/// The folder is deleted. Rows can still be read, and a write that needs a new file reports why it fails.
#[test]
fn a_store_without_its_folder_reads_rows_and_reports_why_it_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("cold");
    let store = open(&inside).unwrap();
    store.write(1, &[u64::MAX], &rows(1, &[u64::MAX], 0)).unwrap();
    let mut held = vec![u64::MAX];
    fs::remove_dir_all(&inside).unwrap();
    let error = (0_u64..).find_map(|cold_key| {
        let written = store.write(1, &[cold_key], &rows(1, &[cold_key], 0));
        written.map(|()| held.push(cold_key)).err()
    });
    let error = error.unwrap();
    assert!(error.doing == "write" && error.reason.contains("No such file"), "{error}");
    assert!(held.len() > 1);
    assert_holds(&store, 1, &held, 0);
}

const TIMEOUT: Duration = Duration::from_secs(60);

/// A file system for one test, which ends with the test.
struct Disk(TempDir);

impl Disk {
    /// `None` if this process may not mount. Then the test prints that it is skipped. In CI it fails.
    fn mounted(options: &std::ffi::CStr) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        match mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), Some(options)) {
            Ok(()) => Some(Self(folder)),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "the full disk cannot be tested: mounting fails: {error}");
                eprintln!("SKIPPED, the full disk is not tested: mounting needs root: {error}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = unmount(self.path(), UnmountFlags::DETACH);
        assert!(unmounted.is_ok() || std::thread::panicking(), "{unmounted:?}");
    }
}

/// Writes thousands of rows until a write fails. Returns the cold keys that were acknowledged.
fn fill(store: &LogStore) -> (Vec<u64>, ColdError) {
    let mut held = Vec::new();
    loop {
        let cold_keys: Vec<u64> = (0..1000).map(|cold_key| held.len() as u64 + cold_key).collect();
        match store.write(1, &cold_keys, &rows(1, &cold_keys, 0)) {
            Ok(()) => held.extend(cold_keys),
            Err(error) => return (held, error),
        }
    }
}

#[test]
fn a_full_disk_loses_nothing_and_is_written_again_once_there_is_space() {
    let Some(disk) = Disk::mounted(c"size=24m") else { return };
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; 16 << 20]).unwrap();
    let store = open(&disk.path().join("cold")).unwrap();
    let (mut held, error) = fill(&store);
    assert!(error.doing == "write" && error.reason.contains("No space left on device"), "{error}");
    assert!(held.len() >= 10_000, "{} rows", held.len());
    assert_holds(&store, 1, &held, 0);

    fs::remove_file(&ballast).unwrap();
    let cold_keys: Vec<u64> = (0..1000).map(|cold_key| u64::MAX - cold_key).collect();
    let (since, rows) = (Instant::now(), rows(1, &cold_keys, 0));
    while let Err(error) = store.write(1, &cold_keys, &rows) {
        assert!(since.elapsed() < TIMEOUT, "still, {TIMEOUT:?} after there is space: {error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    held.extend(cold_keys);
    assert_holds(&store, 1, &held, 0);
}
