//! The journal on a disk: what is written is read back, and damage is named.

use std::time::Duration;

use zagros_coordinator_core::{CoreConfig, MemberSlot, RunOutcome, SplitOrder};
use zagros_protocol::control::{HeartbeatRequest, JoinRequest, Progress};
use zagros_protocol::{PROTOCOL_VERSION, RunId};

use super::*;

pub(super) fn core() -> Core {
    Core::new(CoreConfig {
        run: RunId(7),
        job: "test".to_owned(),
        servers: 1,
        workers: 1,
        min_workers: 1,
        max_workers: 1,
        fixed_workers: None,
        buckets: 16,
        epochs: 1,
        fixed_splits: false,
        order: SplitOrder::AsInFiles,
        asynchronous: false,
        staleness: 0,
        checkpoint_every: None,
        lease: Duration::from_secs(10),
        timeout: Duration::from_secs(60),
        fingerprint: 3,
    })
}

pub(super) fn journal_time(millis: u64) -> JournalTime {
    JournalTime { at: Duration::from_millis(millis), wall_ms: 1_000_000 + millis }
}

/// A server joins, and is heard again and again.
pub(super) fn inputs(beats: u64) -> Vec<(JournalTime, CoreInput)> {
    let server = MemberSlot::server(0);
    let join = JoinRequest {
        role: server.role.to_wire(),
        address: "127.0.0.1:1".to_owned(),
        job_fingerprint: 3,
        protocol_version: PROTOCOL_VERSION,
        ..JoinRequest::default()
    };
    let beat = |step| HeartbeatRequest {
        member: server.member_id(),
        incarnation: 1,
        progress: Some(Progress { step, loss: f64::NAN, ..Progress::default() }),
        ..HeartbeatRequest::default()
    };
    let beats = (1..=beats).map(|step| (journal_time(step * 100), CoreInput::Heartbeat(beat(step))));
    [(journal_time(0), CoreInput::Join(join))].into_iter().chain(beats).collect()
}

pub(super) fn bytes(core: &Core) -> Vec<u8> {
    postcard::to_allocvec(core).unwrap()
}

pub(super) fn play(journal: &mut InputJournal, core: &mut Core, inputs: &[(JournalTime, CoreInput)]) {
    for (time, input) in inputs {
        journal.append(*time, input).unwrap();
        input.replay(core, time.at);
    }
}

#[test]
fn a_process_finds_the_state_that_the_one_before_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("journal");
    let (mut journal, nothing) = InputJournal::open(&folder).unwrap();
    assert!(nothing.is_none());
    let mut live = core();
    journal.begin_run(&live, journal_time(0)).unwrap();
    let inputs = inputs(50);
    // Killed after the inputs, after a snapshot, and after more inputs.
    for part in [&inputs[..20], &[], &inputs[20..]] {
        play(&mut journal, &mut live, part);
        if part.is_empty() {
            journal.take_snapshot(&live, journal_time(2000)).unwrap();
        }
        drop(journal);
        let recovered;
        (journal, recovered) = InputJournal::open(&folder).unwrap();
        let recovered = recovered.expect("the run");
        assert_eq!(bytes(&recovered.core), bytes(&live));
        assert_eq!(recovered.inputs, part.len() as u64);
    }
    assert_eq!(journal.end.next, 51);
    // Another run in the same folder has none of it.
    journal.begin_run(&core(), journal_time(9000)).unwrap();
    drop(journal);
    let (journal, recovered) = InputJournal::open(&folder).unwrap();
    let recovered = recovered.expect("the new run");
    assert_eq!((bytes(&recovered.core), recovered.inputs, recovered.time), (bytes(&core()), 0, journal_time(9000)));
    journal.delete().unwrap();
    assert!(!folder.exists());
}

#[test]
fn a_journal_of_an_earlier_start_of_the_machine_is_recognised() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = InputJournal::open(folder.path()).unwrap();
    journal.begin_run(&core(), journal_time(0)).unwrap();
    drop(journal);
    let found = || InputJournal::open(folder.path()).unwrap().1.expect("the run").machine;
    assert_eq!(found(), MachineStart::Same);
    let (mut journal, _) = InputJournal::open(folder.path()).unwrap();
    journal.put_boot(b"0d5f8b5c-0000-0000-0000-000000000000".to_vec()).unwrap();
    drop(journal);
    assert_eq!(found(), MachineStart::StartedAgain);
    assert_eq!(found(), MachineStart::StartedAgain, "it stays so until a run begins");
}

/// A pod moves to another machine with its disk.
#[test]
fn a_journal_that_was_handed_over_goes_on_on_any_machine_and_then_belongs_to_that_machine() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = InputJournal::open(folder.path()).unwrap();
    journal.begin_run(&core(), journal_time(0)).unwrap();
    journal.put_boot(b"another machine".to_vec()).unwrap();
    journal.hand_over().unwrap();
    drop(journal);
    let (journal, recovered) = InputJournal::open(folder.path()).unwrap();
    assert_eq!(recovered.expect("the run").machine, MachineStart::Same);
    let mark = journal.end_file.read().unwrap().unwrap();
    assert_eq!(mark.boot, this_boot(), "a loss of power is recognised from now on");
}

#[test]
fn a_long_journal_is_cut_and_its_end_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = InputJournal::open(folder.path()).unwrap();
    let mut live = core();
    journal.begin_run(&live, journal_time(0)).unwrap();
    let mut cuts = 0;
    // A heartbeat takes 38 bytes at least.
    let beats = SNAPSHOT_BYTES / 32;
    for (time, input) in inputs(beats) {
        play(&mut journal, &mut live, &[(time, input)]);
        if journal.is_long() {
            journal.take_snapshot(&live, time).unwrap();
            cuts += 1;
        }
    }
    play(&mut journal, &mut live, &[(journal_time(beats * 100 + 1), CoreInput::End(RunOutcome::Finished))]);
    drop(journal);
    let (_, recovered) = InputJournal::open(folder.path()).unwrap();
    let recovered = recovered.unwrap();
    assert!(cuts >= 1 && recovered.inputs < beats, "{cuts} cuts, {} inputs", recovered.inputs);
    assert_eq!((bytes(&recovered.core), recovered.core.outcome()), (bytes(&live), Some(&RunOutcome::Finished)));
}

#[test]
fn what_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = InputJournal::open(folder.path()).unwrap();
    let held = InputJournal::open(folder.path()).err().expect("one process at a time").to_string();
    assert!(held.contains("cannot be opened") && held.contains("another coordinator"), "{held}");
    journal.begin_run(&core(), journal_time(0)).unwrap();
    journal.db.put(key(0), [99; 20]).unwrap();
    drop(journal);
    let damaged = InputJournal::open(folder.path()).err().expect("damaged").to_string();
    assert!(damaged.contains("damaged at input 0: its checksum is wrong"), "{damaged}");
    let db = DB::open(&options(false), folder.path()).unwrap();
    db.put(RELEASE, "0.0.1 (journal format 1)").unwrap();
    drop(db);
    let other = InputJournal::open(folder.path()).err().expect("another release").to_string();
    assert!(other.contains("written by release 0.0.1 (journal format 1)"), "{other}");
}

#[test]
fn a_start_of_the_machine_that_cannot_be_read_is_no_other_one() {
    let found = [(&b"a"[..], Some("a")), (b"a", Some("b")), (b"a", None), (b"", None), (b"unknown", None)];
    let same = found.map(|(then, now)| machine(then, now) == MachineStart::Same);
    assert_eq!(same, [true, false, false, false, false]);
    assert_eq!(machine(HANDED_OVER, None), MachineStart::Same);
}
