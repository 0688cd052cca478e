//! What a server makes of the folders that it finds: logs that were being made, of other tables, damaged, with files missing.
//! A row that was removed by its id does not come back. A server that ends, or writes a base, between two pushes of one step.

use zagros_job::{Mode, Optimizer};
use zagros_protocol::Refusal;
use zagros_protocol::control::ForgetRequest;
use zagros_protocol::packed::{decode_ids, encode_ids};
use zagros_rows::log::format::VERSION;
use zagros_zip::ZipEq;

use super::*;
use crate::durability::open;
use crate::storage::forget;
use crate::tables::table_configs;

/// Why a server does not start, with all its causes.
fn refusal(home: &LogFixture) -> String {
    with_causes(&home.try_start().err().expect("the server must not start"))
}

/// All files of the log and their content, but for the lock.
fn content(home: &LogFixture) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = home.files("segment-").into_iter().chain(home.files("lineage"));
    files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// A very first start has several steps on the disk. A process that ends between any two of them leaves no rows, and nothing
/// that a later start refuses.
#[test]
fn a_first_start_that_is_killed_at_any_step_starts_again() {
    let home = LogFixture::new("memory = \"8MiB\"");
    let configs = table_configs(&home.job);
    let opened = || open(&home.job, ServerIndex(0), &configs, true, home.boot).unwrap().unwrap();
    let tier = |opened: &mut super::super::open::OpenedLog| {
        drop(opened.open_tier(&home.job, ServerIndex(0), &configs, &Registry::new()).unwrap());
    };
    // Before the cold tier is made.
    assert!(!opened().has_rows);
    let mut first = opened();
    assert!(!first.has_rows);
    // Killed when the cold tier has its mark and the log does not begin: the state that the steps before `begin` leave.
    tier(&mut first);
    drop(first);
    fs::write(home.log().join("discarded"), "").unwrap();
    let mut second = opened();
    assert!(!second.has_rows);
    tier(&mut second);
    drop(second);
    // From here on the log is there, without rows.
    let third = opened();
    assert!(third.has_rows);
    drop(third);
    let service = home.start();
    push_both(&service, &[1], 1, 1.0);
    let expected = rows(&service);
    assert_eq!(rows(&home.restart(service)), expected);
}

/// Whatever the rows of a log are, a start that cannot take them over leaves them as they are.
#[test]
fn a_log_that_cannot_be_taken_over_is_refused_and_never_deleted() {
    let (mut home, service) = LogFixture::started("");
    train(&service, 1, 20, 100);
    let expected = rows(&service);
    drop(service);
    let old_content = content(&home);

    let job = home.job.clone();
    home.job.train.seed += 1;
    let text = refusal(&home);
    assert!(text.contains("seed of table `user` is ") && text.contains("move the folder away"), "{text}");
    home.job = job.clone();
    home.job.tables[1].dim = 8;
    assert!(refusal(&home).contains("dim of table `item` is 4 there, and 8 in the job"));
    home.job = job;

    let lineage = home.log().join("lineage.json");
    let good = fs::read(&lineage).unwrap();
    let version = format!("\"version\": {VERSION}");
    let later = String::from_utf8(good.clone()).unwrap().replace(&version, "\"version\": 77");
    let refusals = [
        ("{ \"ver", "lineage.json at byte 0"),
        (r#"{"version": 4}"#, "missing field"),
        (r#"{"version": 2}"#, "has version 2, and this release reads version 4"),
        (&later, "has version 77, and this release reads version 4"),
    ];
    for (text, expected) in refusals {
        fs::write(&lineage, text).unwrap();
        let text = refusal(&home);
        assert!(text.contains(expected), "{text}");
    }
    fs::remove_file(&lineage).unwrap();
    assert!(refusal(&home).contains("lineage.json is missing"));
    fs::write(&lineage, good).unwrap();
    assert_eq!(content(&home), old_content);
    assert_eq!(rows(&home.start()), expected);
}

/// What does not change the shape of a row may change from one process to the next.
#[test]
fn a_server_goes_on_under_another_learning_rate() {
    let (mut home, service) = LogFixture::started("");
    push_items(&service, &[1], 1, 1.0);
    let old_rows = read(&service, &[(ITEM, &[1])]);
    drop(service);
    home.job.tables[1].optimizer = zagros_job::Optimizer::Sgd { lr: 0.5, momentum: 0.0, l2: 0.0 };
    let service = home.start();
    assert!(service.has_recovered());
    push_items(&service, &[1], 2, 1.0);
    assert_eq!(read(&service, &[(ITEM, &[1])])[0], old_rows[0] - 0.5);
}

#[test]
fn a_damaged_log_and_one_without_its_files_are_refused_by_name() {
    let (home, service) = LogFixture::started("");
    train(&service, 1, 20, 100);
    let service = home.restart(service);
    push_items(&service, &[7], 1, 1.0);
    write_base(&service);
    push_items(&service, &[7], 2, 1.0);
    let expected = rows(&service);
    drop(service);
    // The base stands for segments that are deleted: without it, the first segment is missed.
    let base = home.files("base-").pop().unwrap();
    let aside = home.folder.path().join("aside");
    fs::rename(&base, &aside).unwrap();
    let text = refusal(&home);
    assert!(text.contains("is missing: the log is needed from lsn 0 on"), "{text}");
    fs::rename(&aside, &base).unwrap();
    // Without its manifest it is none, and its rows are still there.
    let manifest = base.join("manifest.json");
    for missing in [vec![manifest], home.files("segment-")].concat() {
        let kept = fs::read(&missing).unwrap();
        fs::remove_file(&missing).unwrap();
        assert!(refusal(&home).contains("is missing") && base.join("part-0.log").exists(), "{}", missing.display());
        fs::write(&missing, kept).unwrap();
    }
    let service = home.start();
    assert_eq!(rows(&service), expected);
    service.delete_log();
    assert!(!home.log().exists());
}

/// A process that ends while it deletes the log of a run that is over leaves no rows, and nothing that a later start refuses.
#[test]
fn a_log_whose_deletion_was_killed_is_of_no_run() {
    let (home, service) = LogFixture::started("");
    train(&service, 1, 5, 50);
    drop(service);
    fs::write(home.log().join("discarded"), "").unwrap();
    home.files("segment-").iter().for_each(|path| fs::remove_file(path).unwrap());
    let service = home.start();
    assert!(!service.has_recovered());
    assert_eq!(rows(&service).len(), 0);
}

/// The rows of another run are forgotten under a lineage of their own, so that a process that ends meanwhile is never taken
/// for one with the rows of that run.
#[test]
fn a_server_that_fails_while_it_forgets_rows_has_another_lineage() {
    let (home, service) = LogFixture::started("");
    train(&service, 1, 5, 50);
    let (lineage, expected) = (service.lineage(), rows(&service));
    home.disk.fail(Some("write"));
    assert!(service.start_empty().is_err());
    drop(service);
    home.disk.fail(None);
    let service = home.start();
    assert_ne!(service.lineage(), lineage);
    assert_eq!(rows(&service), expected, "all rows or none");
}

/// Rows are ranked by their age while they are put in. The process has less memory than the one before.
#[test]
fn rows_that_do_not_fit_any_more_are_the_oldest() {
    let mut home = LogFixture::with_change("memory = \"16MiB\"", |job| {
        for table in &mut job.tables {
            table.eviction.target = zagros_table::EvictionTarget::Drop;
        }
    });
    let service = home.start();
    let ids = |first: u64| (first..first + 1000).collect::<Vec<u64>>();
    for step in 0..60 {
        let request = push_of(&[(0, &ids(1000 * step))], step + 1, 1.0);
        push(&service, &PushRequest { step: 100 * step + 1, ..request }).unwrap();
    }
    write_base(&service);
    let old_ids = ids_by_stripe(&service);
    drop(service);
    home.job.cluster.memory = Some(2 << 20);
    let new_ids = ids_by_stripe(&home.start());
    // Stripes that come first fill the memory; each of the others has to give rows up.
    let [mut kept, mut dropped] = [(0, 0); 2];
    for (before, after) in old_ids.iter().zip_eq(&new_ids).filter(|(before, after)| after.len() < before.len()) {
        for id in before {
            let sum = if after.contains(id) { &mut kept } else { &mut dropped };
            *sum = (sum.0 + id, sum.1 + 1);
        }
    }
    let mean = |(sum, count): (u64, u64)| sum / count.max(1);
    assert!(kept.1 > 500 && dropped.1 > 10_000, "{kept:?} {dropped:?}");
    assert!(mean(kept) > mean(dropped) + 1_500, "ids kept: {} on average, dropped: {}", mean(kept), mean(dropped));
}

/// The ids of table 0 in each stripe.
fn ids_by_stripe(service: &EmbeddingService) -> Vec<Vec<u64>> {
    let table = service.tables.table(0).unwrap();
    (0..table.stripes()).map(|stripe| table.ids_in_memory(stripe)).collect()
}

/// The machine of a server is reset: the end of the log may be missing, and nothing in it shows that. It is no log of the run any
/// more, and the coordinator ends the run.
#[test]
fn a_log_of_an_earlier_start_of_the_machine_counts_as_lost_unless_it_was_handed_over() {
    for (boot, is_handed_over) in
        [(Some("second"), false), (None, false), (Some("first"), false), (Some("second"), true), (None, true)]
    {
        let (mut home, service) = LogFixture::started("");
        let lineage = service.lineage();
        push_items(&service, &[1], 1, 1.0);
        let files = home.files("").into_iter().filter(|path| path.is_file());
        let older: Vec<_> = files.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        push_items(&service, &[1], 2, 1.0);
        let expected = rows(&service);
        if is_handed_over {
            service.hand_over();
            let refusal = push(&service, &push_of(&[(ITEM, &[1])], 3, 1.0)).unwrap_err();
            assert!(refusal.kind.is_retryable(), "the next process takes it: {refusal}");
            assert_eq!(service.check_ready(), Ok(()), "an end is no failure");
        }
        drop(service);
        if !is_handed_over && boot != home.boot {
            // The newest records were not on the disk.
            older.into_iter().for_each(|(path, content)| fs::write(path, content).unwrap());
        }
        home.boot = boot;
        let service = home.start();
        if is_handed_over || boot == Some("first") {
            assert_eq!((service.lineage(), rows(&service)), (lineage, expected));
        } else {
            assert!(!service.has_recovered() && service.lineage() != lineage, "{boot:?}");
            assert_eq!(rows(&service).len(), 0);
        }
        // From now on it is a log of this start of the machine.
        drop(service);
        home.boot = Some("third");
        assert!(!home.start().has_recovered());
    }
}

/// Where every push is on the disk before it is acknowledged, no start of the machine matters.
#[test]
fn a_log_on_the_disk_goes_on_after_any_start_of_the_machine() {
    let (mut home, service) = LogFixture::started("");
    push(&service, &push_of(&[(ITEM, &[1])], 1, 1.0)).unwrap();
    let expected = rows(&service);
    drop(service);
    home.job.cluster.durability = zagros_job::DurabilityLevel::Machine;
    for boot in [Some("first"), Some("second"), None] {
        home.boot = boot;
        assert_eq!(rows(&home.start()), expected, "{boot:?}");
    }
    home.job.cluster.durability = zagros_job::DurabilityLevel::Process;
    assert_eq!(rows(&home.start()), expected);
    home.boot = Some("third");
    assert!(!home.start().has_recovered());
}

fn forget_items(service: &EmbeddingService, ids: &[u64]) -> Result<Vec<u64>, Refusal> {
    let request = ForgetRequest { table: "item".to_owned(), ids: encode_ids(ids).into(), generation: 1 };
    forget(service, &request).map(|response| decode_ids(&response.removed))
}

/// Invariant DU-1, for removals. With rows in memory, and with most rows in the cold tier.
#[test]
fn a_process_that_follows_has_every_row_but_the_forgotten_ones() {
    for (limit, ids) in [("", 300), ("memory = \"8MiB\"", 40_000)] {
        let (home, service) = LogFixture::started(limit);
        let all: Vec<u64> = (0..ids).collect();
        all.chunks(1000).enumerate().for_each(|(seq, part)| _ = push_both(&service, part, seq as u64 + 1, 1.0));
        assert_eq!(forget_items(&service, &[3, 7, ids - 1, ids + 5]).unwrap(), [3, 7, ids - 1]);
        let expected = rows(&service);
        assert_eq!(expected.len() as u64, 2 * ids - 3);
        // The process is killed: nothing is written at its end.
        let service = home.restart(service);
        assert!(service.has_recovered());
        assert_eq!(rows(&service), expected);
        // It comes back as a new row, which is logged.
        let first = read(&service, &[(ITEM, &[3])]);
        push_items(&service, &[3], 1000, 1.0);
        let learned = read(&service, &[(ITEM, &[3])]);
        assert_ne!(learned, first);
        assert_eq!(read(&home.restart(service), &[(ITEM, &[3])]), learned);
    }
}

#[test]
fn while_the_disk_of_the_log_fails_nothing_is_removed() {
    let (home, service) = LogFixture::started("");
    push(&service, &push_of(&[(ITEM, &[5])], 1, 1.0)).unwrap();
    home.disk.fail(Some("write"));
    // The log notices at a write.
    let _ = push(&service, &push_of(&[(ITEM, &[6])], 2, 1.0));
    assert_eq!(forget_items(&service, &[5]).unwrap_err().kind, RefusalKind::Unavailable);
    home.disk.fail(None);
}

/// Three workers, with a quarter, a half and a quarter of each step's samples, and rows that two or all of them have.
fn pushes() -> Vec<PushRequest> {
    let mut all = Vec::new();
    for step in 1..=3 {
        for (writer, share) in [(1, 0.25), (2, 0.5), (3, 0.25)] {
            let ids: Vec<u64> = (0..12).filter(|id| (id + step) % writer < 2).collect();
            let request = push_of(&[(0, &ids[2..]), (ITEM, &ids)], step, 0.3 * step as f32 - writer as f32);
            all.push(PushRequest { writer, share: Some(share), ..request });
        }
    }
    all
}

/// Rows after all pushes. `between` makes another server of the one that has applied this many.
fn trained(home: &LogFixture, mut between: impl FnMut(usize, Arc<EmbeddingService>) -> Arc<EmbeddingService>) -> Slots {
    let mut service = home.start();
    for (applied, request) in pushes().iter().enumerate() {
        service = between(applied, service);
        assert!(!push(&service, request).unwrap().duplicate);
    }
    rows(&service)
}

fn home(mode: Mode, cluster: &str) -> LogFixture {
    LogFixture::with_change(cluster, |job| {
        job.train.mode = mode;
        job.tables[ITEM as usize].optimizer = Optimizer::Sgd { lr: 0.5, momentum: 0.9, l2: 0.1 };
    })
}

/// Invariant RK-1 in mode `sync`: no bit depends on where a process ends. Rows in memory, and most rows in the cold tier.
#[test]
fn a_step_goes_on_in_the_process_that_follows() {
    for cluster in ["", "memory = \"8MiB\""] {
        let expected = trained(&home(Mode::Sync, cluster), |_, service| service);
        for cut in 1..pushes().len() {
            for with_base in [false, true] {
                let home = home(Mode::Sync, cluster);
                let found = trained(&home, |applied, service| {
                    if applied != cut {
                        return service;
                    }
                    if with_base {
                        write_base(&service);
                    }
                    home.restart(service)
                });
                assert_eq!(found, expected, "the process ends after push {cut}, with a base: {with_base}");
            }
        }
    }
}

/// Mode `hybrid` promises less, and its log has no more than the rows.
#[test]
fn only_sync_pays_for_it() {
    let bytes = |mode| {
        let home = home(mode, "");
        let service = home.start();
        pushes().iter().for_each(|request| _ = push(&service, request).unwrap());
        service.log.as_ref().unwrap().writer.durable_lsn()
    };
    let (sync, hybrid) = (bytes(Mode::Sync), bytes(Mode::Hybrid));
    assert!(sync > hybrid + hybrid / 4, "{sync} bytes in mode sync, {hybrid} in hybrid");
}
