//! A disk that is full, and has room again later. The file system is a small tmpfs where the test may mount one, as root, and
//! else a quota in front of the real one.

use std::fs::File;
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zagros_rows::log::{LogDisk, SystemDisk};
use zagros_table::Initializer;

use super::*;

/// Bytes of the file system, and of the file that fills a part of it.
const DISK: u64 = 192 << 20;
const BALLAST: u64 = 64 << 20;
/// The longest wait for the server to go on by itself.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A small disk with a file of [`BALLAST`] bytes that can be deleted.
#[derive(Debug)]
enum SmallDisk {
    Mounted(PathBuf),
    Quota(Arc<QuotaDisk>),
}

/// Refuses files beyond a number of bytes.
#[derive(Debug)]
struct QuotaDisk {
    left: AtomicU64,
}

impl SmallDisk {
    fn new(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        let size = format!("size={DISK}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            drop(SystemDisk.allocate(&folder.join("ballast"), BALLAST).unwrap());
            return Self::Mounted(folder.to_owned());
        }
        Self::Quota(Arc::new(QuotaDisk { left: AtomicU64::new(DISK - BALLAST) }))
    }

    fn calls(&self) -> Arc<dyn LogDisk> {
        match self {
            Self::Mounted(_) => Arc::new(SystemDisk),
            Self::Quota(disk) => Arc::clone(disk) as _,
        }
    }

    fn free(&self) {
        match self {
            Self::Mounted(folder) => fs::remove_file(folder.join("ballast")).unwrap(),
            Self::Quota(disk) => _ = disk.left.fetch_add(BALLAST, Ordering::Relaxed),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Self::Mounted(folder) = self {
            let _ = Command::new("umount").arg(folder).status();
        }
    }
}

impl LogDisk for QuotaDisk {
    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<File> {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map_err(|_| io::Error::from(io::ErrorKind::StorageFull))?;
        SystemDisk.allocate(path, bytes)
    }
}

/// Acknowledgements stop, readiness says why, and nothing is lost. Once there is room again, the server goes on by itself.
#[test]
fn a_full_disk_stops_acknowledgements_until_it_has_room_and_no_push_is_lost() {
    let home =
        LogFixture::with_change("", |job| job.tables.iter_mut().for_each(|table| table.init = Initializer::Zero));
    let disk = SmallDisk::new(&home.log());
    println!("the disk is {disk:?}");
    let start = |home: &LogFixture| {
        let host = LogHost { disk: disk.calls(), ..LogHost::default() };
        let service = EmbeddingService::open_on_host(&home.job, ServerIndex(0), &Registry::new(), host).unwrap();
        service.set_placement(even_map(1));
        service
    };
    let ids: Vec<u64> = (0..50_000).collect();
    let service = start(&home);
    let mut acknowledged = 0;
    let refusal = loop {
        match push(&service, &push_of(&[(ITEM, &ids)], acknowledged + 1, 1.0)) {
            Ok(_) => acknowledged += 1,
            Err(refusal) => break refusal,
        }
        assert!(acknowledged < 1000, "the disk never fills");
    };
    assert!(acknowledged > 20, "{acknowledged} pushes");
    assert!(refusal.kind == RefusalKind::Disk && refusal.message.contains("the log cannot be written"), "{refusal}");
    assert!(service.check_ready().unwrap_err().contains("accepts no pushes"));
    let row = |service: &EmbeddingService| read(service, &[(ITEM, &[1, 49_999])]);
    let expected = |pushes: u64| vec![-(pushes as f32); 2 * crate::testing::DIM as usize];
    assert_eq!(row(&service), expected(acknowledged), "lookups go on, and the refused push is not applied");
    // The server tries again every second. As long as there is no room, the push is refused again.
    thread::sleep(Duration::from_secs(2));
    assert!(push(&service, &push_of(&[(ITEM, &ids)], acknowledged + 1, 1.0)).is_err());
    disk.free();
    let deadline = Instant::now() + TIMEOUT;
    for seq in acknowledged + 1..acknowledged + 4 {
        // As a worker does: it repeats what was refused.
        while let Err(refusal) = push(&service, &push_of(&[(ITEM, &ids)], seq, 1.0)) {
            assert!(Instant::now() < deadline, "the server does not go on: {refusal}");
            thread::sleep(Duration::from_millis(50));
        }
    }
    assert_eq!(service.check_ready(), Ok(()));
    drop(service);
    let service = start(&home);
    assert_eq!(row(&service), expected(acknowledged + 3), "each acknowledged push is there once");
    assert!(push(&service, &push_of(&[(ITEM, &ids)], acknowledged + 3, 1.0)).unwrap().duplicate);
    drop(service);
}
