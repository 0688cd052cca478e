//! The journal on a disk: what is written is read back, and damage is named. With damage in any file, what is read is what was
//! written, or the folder is refused by name.

use std::fs;
use std::time::Duration;

use zagros_coordinator_core::{CoreConfig, MemberSlot, RunOutcome};
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
        buckets: 16,
        epochs: 1,
        staleness: 0,
        lease: Duration::from_secs(10),
        timeout: Duration::from_secs(60),
        fingerprint: 3,
        ..CoreConfig::default()
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
    let beat = |step| {
        let progress = Some(Progress { step, loss: f64::NAN, ..Progress::default() });
        HeartbeatRequest { member: server.member_id(), incarnation: 1, progress, ..HeartbeatRequest::default() }
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

fn begin(folder: &Path) -> InputJournal {
    let (mut journal, _) = InputJournal::open(folder).unwrap();
    journal.begin_run(&core(), journal_time(0)).unwrap();
    journal
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

/// A coordinator whose `zagros up` was killed ends a little later, and deletes its journal then.
#[test]
fn a_journal_is_discarded_only_once_no_process_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("journal");
    assert!(InputJournal::discard(&folder).unwrap(), "nothing is there");
    let mut journal = begin(&folder);
    assert!(!InputJournal::discard(&folder).unwrap());
    journal.append(journal_time(1), &CoreInput::Tick).unwrap();
    drop(journal);
    std::fs::write(folder.join("CURRENT"), "damaged").unwrap();
    assert!(InputJournal::discard(&folder).unwrap() && !folder.exists());
}

#[test]
fn a_journal_of_an_earlier_start_of_the_machine_is_recognised() {
    let folder = tempfile::tempdir().unwrap();
    drop(begin(folder.path()));
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
    let mut journal = begin(folder.path());
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
    let (mut journal, mut live, mut cuts) = (begin(folder.path()), core(), 0);
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
    let journal = begin(folder.path());
    let held = InputJournal::open(folder.path()).err().expect("one process at a time").to_string();
    assert!(held.contains("cannot be opened") && held.contains("another coordinator"), "{held}");
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

/// Places in a file that are damaged in turn, at most.
const PLACES: usize = 6;

/// A journal that has been opened several times, with a snapshot: inputs are in tables of RocksDB and in its log.
fn filled(folder: &Path) -> (Core, u64) {
    let (mut journal, mut live, inputs) = (begin(folder), core(), inputs(29));
    play(&mut journal, &mut live, &inputs[..10]);
    journal.take_snapshot(&live, journal_time(1000)).unwrap();
    play(&mut journal, &mut live, &inputs[10..20]);
    drop(journal);
    let (mut journal, _) = InputJournal::open(folder).unwrap();
    play(&mut journal, &mut live, &inputs[20..]);
    (live, 20)
}

fn file_names(folder: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into());
    let mut names: Vec<PathBuf> = names.collect();
    names.sort();
    names
}

/// Every kind of damage to the content of one file. `None` is a file that is missing.
fn damages(content: &[u8]) -> Vec<(String, Option<Vec<u8>>)> {
    let mut damages = vec![("is missing".to_owned(), None)];
    let step = content.len().div_ceil(PLACES).max(1);
    for at in (0..content.len()).step_by(step).chain(content.len().checked_sub(1)) {
        let mut flipped = content.to_vec();
        flipped[at] ^= 4;
        damages.push((format!("is flipped at {at}"), Some(flipped)));
    }
    for at in [0, content.len() / 2, content.len().saturating_sub(3)] {
        damages.push((format!("is cut at {at}"), Some(content[..at].to_vec())));
        let mut zeros = content.to_vec();
        zeros[at..].fill(0);
        damages.push((format!("has zeros from {at} on"), Some(zeros)));
    }
    damages
}

#[test]
fn damage_in_any_file_is_harmless_or_named_and_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let (live, inputs) = filled(&whole);
    let names = file_names(&whole);
    let content: Vec<_> = names.iter().map(|name| fs::read(whole.join(name)).unwrap()).collect();
    let mut refused = Vec::new();
    let mut check = |what: String, changes: &[(usize, Option<Vec<u8>>)]| {
        let damaged = folder.path().join("damaged");
        fs::create_dir(&damaged).unwrap();
        for (index, name) in names.iter().enumerate() {
            let change = changes.iter().find(|(changed, _)| *changed == index);
            let content = change.map_or(Some(&content[index]), |(_, content)| content.as_ref());
            content.into_iter().for_each(|content| fs::write(damaged.join(name), content).unwrap());
        }
        match InputJournal::open(&damaged) {
            Ok((_, recovered)) => {
                let recovered = recovered.unwrap_or_else(|| panic!("{what}: the run is forgotten"));
                assert_eq!((recovered.inputs, bytes(&recovered.core)), (inputs, bytes(&live)), "{what}");
            }
            Err(error) => {
                assert!(error.to_string().contains(damaged.to_str().unwrap()), "{what}: {error}");
                refused.push(what);
            }
        }
        fs::remove_dir_all(&damaged).unwrap();
    };
    for (index, name) in names.iter().enumerate() {
        for (what, change) in damages(&content[index]) {
            check(format!("{} {what}", name.display()), &[(index, change)]);
        }
        for other in (index + 1..names.len()).step_by(3) {
            let swapped = [(index, Some(content[other].clone())), (other, Some(content[index].clone()))];
            check(format!("{} and {} are swapped", name.display(), names[other].display()), &swapped);
        }
    }
    for name in names.iter().filter(|name| name.extension().is_some_and(|ending| ending == "log" || ending == "sst")) {
        let name = name.display().to_string();
        assert!(refused.iter().any(|what| what.starts_with(&name) && what.contains("flipped")), "{name}: {refused:?}");
    }
}

/// A process that is killed while it writes an input leaves a part of it, which never took effect.
#[test]
fn an_input_that_is_torn_anywhere_is_dropped_unless_it_took_effect() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let (mut live, _) = filled(&whole);
    let (mut journal, _) = InputJournal::open(&whole).unwrap();
    let is_log = |name: &PathBuf| name.extension().is_some_and(|ending| ending == "log");
    let log = file_names(&whole).into_iter().rfind(is_log).unwrap();
    let more = inputs(33).split_off(30);
    play(&mut journal, &mut live, &more[..3]);
    let (mark, length) = (fs::read(whole.join(END_FILE)).unwrap(), fs::metadata(whole.join(&log)).unwrap().len());
    play(&mut journal, &mut live, &more[3..]);
    drop(journal);
    let content = fs::read(whole.join(&log)).unwrap();
    let open = |cut: usize, mark: Option<&[u8]>| {
        let torn = folder.path().join("torn");
        fs::create_dir(&torn).unwrap();
        for name in file_names(&whole) {
            fs::copy(whole.join(&name), torn.join(&name)).unwrap();
        }
        fs::write(torn.join(&log), &content[..cut]).unwrap();
        mark.into_iter().for_each(|mark| fs::write(torn.join(END_FILE), mark).unwrap());
        let opened = InputJournal::open(&torn).map(|(_, recovered)| recovered.unwrap().inputs);
        fs::remove_dir_all(&torn).unwrap();
        opened
    };
    for cut in (length as usize..content.len()).step_by(7) {
        assert_eq!(open(cut, Some(&mark)).unwrap(), 23, "cut at {cut}");
        let refused = open(cut, None).unwrap_err().to_string();
        assert!(refused.contains("damaged at input 33: 34 inputs took effect"), "cut at {cut}: {refused}");
    }
    assert_eq!(open(content.len(), Some(&mark)).unwrap(), 24, "killed before the mark");
}

#[test]
fn a_journal_whose_beginning_or_end_was_killed_is_of_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("journal");
    filled(&folder);
    InputJournal::open(&folder).unwrap().0.forget_end().unwrap();
    assert!(InputJournal::open(&folder).unwrap().1.is_none());
    drop(begin(&folder));
    assert!(InputJournal::open(&folder).unwrap().1.is_some());
}
