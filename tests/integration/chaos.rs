//! `zagros-chaos`: processes, disks and links are broken by a schedule, and every row is checked.

use zagros_tests::{FinishedCommand, TestProgram, assert_contains};

use super::fixture::Fixture;

const SETS: [&str; 6] = ["--servers", "2", "--workers", "2", "--set", "cluster.timeout_seconds=60"];
/// Long enough for a few faults a round.
const EPOCHS: u32 = 8;
/// Long enough for servers that come to get buckets before the run is over.
const EPOCHS_TO_SCALE: u32 = 24;

fn chaos(epochs: u32, mode: &str, kinds: &str, seed: &str) -> String {
    let (mode, epochs) = (format!("train.mode={mode}"), format!("train.epochs={epochs}"));
    let arguments = ["job.toml", "--for", "5m", "--every", "300ms", "--faults", "4", "--seed", seed];
    let more = ["--kinds", kinds, "--set", &mode, "--set", &epochs];
    let ended = run(&Fixture::new(10_000), &[&arguments[..], &SETS, &more].concat()).expect(0);
    assert!(ended.stdout.contains("Exact: 4 faults, nothing lost, nothing doubled"), "{}", ended.stdout);
    assert!(!ended.stdout.contains('✗'), "{}", ended.stdout);
    ended.stdout
}

fn run(fixture: &Fixture, arguments: &[&str]) -> FinishedCommand {
    fixture.start_program(TestProgram::Chaos, arguments.iter().copied()).finish()
}

fn schedule(said: &str) -> Vec<&str> {
    said.lines().skip_while(|line| !line.starts_with("Schedule")).take_while(|line| !line.is_empty()).collect()
}

/// Invariants DP-3, DU-1, MB-5 and SP-2.
#[test]
fn a_sync_run_that_is_killed_and_stopped_equals_an_undisturbed_one_bit_for_bit() {
    let said = chaos(EPOCHS, "sync", "kill,stop", "3");
    assert_contains(&said, &["equal those of the undisturbed run bit for bit after", "are exactly minus the sum of"]);
    assert_eq!(schedule(&said).len(), 2 + 4, "{said}");
}

/// ADR 47: a lost worker sets the run back to its newest checkpoint, and no bit differs.
#[test]
fn a_sync_run_whose_workers_are_killed_goes_back_and_equals_an_undisturbed_one_bit_for_bit() {
    let said = chaos(EPOCHS, "sync", "kill", "1");
    assert!(said.contains("equal those of the undisturbed run bit for bit after"), "{said}");
    assert!(said.contains("the run went back to its newest checkpoint"), "no worker was killed: {said}");
    assert!(said.contains("processes were killed: "), "{said}");
}

#[test]
fn a_hybrid_run_that_is_killed_and_stopped_loses_and_doubles_nothing() {
    let said = chaos(EPOCHS, "hybrid", "kill,stop", "2");
    assert!(said.contains("are exactly minus the sum of"), "{said}");
    assert!(said.contains("dense worker"), "a worker is hit: {said}");
}

/// Lost answers, requests that arrive after their repetitions, partitions and disks that take no more.
#[test]
fn a_run_whose_links_and_disks_fail_loses_and_doubles_nothing() {
    let said = chaos(EPOCHS, "hybrid", "disk,slow,partition,break,late", "4");
    assert!(said.contains("are exactly minus the sum of"), "{said}");
    assert!(said.contains("↔"), "a link is hit: {said}");
}

/// ADR 39: pushes follow the buckets, and each is applied once.
#[test]
fn a_run_whose_servers_come_and_go_while_processes_are_killed_loses_and_doubles_nothing() {
    // On a busy machine servers may be gone again before they have got a bucket.
    let mut said = String::new();
    for seed in ["6", "7", "8"] {
        said = chaos(EPOCHS_TO_SCALE, "hybrid", "scale,kill", seed);
        assert!(said.contains("are exactly minus the sum of"), "{said}");
        if said.contains(" moves of ") {
            return;
        }
    }
    panic!("no bucket has moved: {said}");
}

#[test]
fn a_job_whose_rows_cannot_be_checked_is_refused_by_its_key() {
    let fixture = Fixture::new(100);
    let own = "tables.C1.optimizer={ kind = \"adagrad\" }";
    run(&fixture, &["job.toml", "--set", own]).expect(2).says(&["table `C1`", "optimizer"]);
    run(&fixture, &["job.toml", "--kinds", "earthquake"]).expect(2).says(&["earthquake", "kill, stop, disk"]);
}
