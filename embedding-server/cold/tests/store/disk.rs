//! A full disk: a file system of a few MiB, which only root may mount.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;
use zagros_cold::LogStore;
use zagros_table::{ColdError, ColdStore};

use crate::{assert_holds, rows, scratch};

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
    let store = scratch(&disk.path().join("cold"));
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
