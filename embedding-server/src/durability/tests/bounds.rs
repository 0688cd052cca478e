//! The log does not grow without end: bases cut it, and pushes are refused where they cannot.

use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// The longest wait for a base.
const TIMEOUT: Duration = Duration::from_secs(60);
const SIZES: LogSizes = LogSizes { segment: 64 << 10, tail: 256 << 10 };

/// Bytes of all files below a folder. A file that is deleted meanwhile has none.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_below(&entry.path()),
        data => data.map_or(0, |data| data.len()),
    };
    entries.flatten().map(bytes).sum()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} after {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_log_is_cut_by_its_bases_and_bounded_in_bytes() {
    let home = LogFixture::new("");
    let service = home.start_with(SIZES).unwrap();
    let ids: Vec<u64> = (0..1500).collect();
    // Adagrad's table has 8 words a row, the other one 4.
    let base = 1500 * (2 * 8 + 4 * (8 + 4)) + (16 << 10);
    let tail = 4 * SIZES.tail.max(base / 2) + 2 * base;
    // Two bases, the tail, and segments that are begun or ready, each with room for a push at least.
    let most = 2 * base + tail + 8 * (SIZES.segment + base);
    let (deadline, mut pushed, mut seq, mut bases) = (Instant::now() + TIMEOUT, 0, 0, 0);
    while pushed < 20 * most || bases < 5 {
        assert!(Instant::now() < deadline, "{pushed} bytes and {bases} bases after {TIMEOUT:?}");
        seq += 1;
        match push(&service, &push_of(&[(0, &ids), (ITEM, &ids)], seq, 1.0)) {
            Ok(_) => pushed += base,
            Err(refusal) => {
                assert!(refusal.kind.is_retryable() && refusal.message.contains("since its newest base"), "{refusal}");
                seq -= 1;
                thread::sleep(Duration::from_millis(1));
            }
        }
        bases = service.log.as_ref().unwrap().metrics.bases.get();
        let found = bytes_below(&home.log());
        assert!(found <= most, "{found} bytes after {pushed} pushed ones, at most {most}");
    }
    let expected = rows(&service);
    assert_eq!(rows(&home.restart(service)), expected);
}

#[test]
fn pushes_are_refused_while_no_base_can_cut_the_log_and_go_on_afterwards() {
    let home = LogFixture::new("");
    let service = home.start_with(SIZES).unwrap();
    let ids: Vec<u64> = (0..1500).collect();
    let log = service.log.as_ref().unwrap();
    let held = log.base.lock();
    let mut seq = 0;
    let refusal = loop {
        seq += 1;
        match push(&service, &push_of(&[(ITEM, &ids)], seq, 1.0)) {
            Ok(_) => assert!(seq < 200, "the log has {} bytes", log.tail_bytes()),
            Err(refusal) => break refusal,
        }
    };
    let why = "since its newest base, and may have 1048576: a base is being written";
    assert!(refusal.kind == RefusalKind::Unavailable && refusal.message.contains(why), "{refusal}");
    assert!(service.check_ready().unwrap_err().contains("accepts no pushes"));
    let old_rows = read(&service, &[(ITEM, &[1])]);
    drop(held);
    wait_until("no base was written", || push(&service, &push_of(&[(ITEM, &ids)], seq, 1.0)).is_ok());
    assert_eq!(read(&service, &[(ITEM, &[1])])[0], old_rows[0] - 1.0, "the refused push is applied once");
    assert_eq!(service.check_ready(), Ok(()));
}

/// The thread of the log writes a base when all other holders let go of the server. The thread then ends the server, and waits for
/// no other thread.
#[test]
fn a_server_that_ends_while_a_base_is_written_releases_its_log() {
    let home = LogFixture::new("");
    let service = home.start_with(SIZES).unwrap();
    let ids: Vec<u64> = (0..1500).collect();
    let log = Arc::clone(service.log.as_ref().unwrap());
    let held = log.base.lock();
    (1..=12).for_each(|seq| _ = push_items(&service, &ids, seq, 1.0));
    let expected = rows(&service);
    assert!(log.bound.is_due(log.tail_bytes()));
    // The thread holds the service as well once it waits for the lock.
    wait_until("no base is tried", || Arc::strong_count(&service) > 1);
    let start = Instant::now();
    drop(service);
    drop(held);
    drop(log);
    assert_eq!(rows(&home.start()), expected);
    assert!(start.elapsed() < TIMEOUT / 2, "the thread waited for itself: {:?}", start.elapsed());
}

/// A base of a large table takes minutes. Meanwhile the log is flushed, and what failed is tried again.
#[test]
fn a_log_is_flushed_and_tried_again_while_a_base_is_written() {
    let home = LogFixture::new("");
    let service = home.start_with(SIZES).unwrap();
    let ids: Vec<u64> = (0..1500).collect();
    let log = Arc::clone(service.log.as_ref().unwrap());
    let held = log.base.lock();
    (1..=12).for_each(|seq| _ = push_items(&service, &ids, seq, 1.0));
    wait_until("no base is tried", || Arc::strong_count(&service) > 1);
    // No caller waits for these records, as for those of moved rows and of lookups.
    log.writer.start_load();
    log.writer.complete_load();
    wait_until("nothing is flushed", || log.writer.durable_lsn() == log.writer.next_lsn());
    home.disk.fail(Some("write"));
    log.writer.start_load();
    log.writer.complete_load();
    wait_until("the disk does not fail", || log.writer.check_running().is_err());
    home.disk.fail(None);
    wait_until("nothing is tried again", || log.writer.check_running().is_ok());
    drop(held);
}

/// The end of a run is no failure of the log.
#[test]
fn a_server_whose_run_is_over_is_ready_until_it_ends() {
    let (home, service) = LogFixture::started("");
    push_items(&service, &[1], 1, 1.0);
    service.delete_log();
    assert_eq!(service.check_ready(), Ok(()));
    let log = service.log.as_ref().unwrap();
    assert_eq!((log.check_health(), log.metrics.stopped.get()), (Ok(()), 0));
    assert!(!home.log().exists());
}
