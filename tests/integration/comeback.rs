//! Processes that are killed and come back in place: the rest of the run only waits.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use zagros_tests::{RunningCommand, signal_process};

use crate::faults::pid;
use crate::fixture::Fixture;
use crate::workers::RoleProcesses;

const ROWS: u32 = 20_000;
const EPOCHS: u64 = 6;
const ROLES: [&str; 5] =
    ["coordinator", "embedding-server-0", "embedding-server-1", "dense-worker-0", "dense-worker-1"];

fn up(fixture: &Fixture, sets: &[&str]) -> RunningCommand {
    let epochs = format!("train.epochs={EPOCHS}");
    let sets = [epochs.as_str()].into_iter().chain(sets.iter().copied()).flat_map(|set| ["--set", set]);
    fixture.start(["up", "job.toml", "--servers", "2", "--workers", "2"].into_iter().chain(sets))
}

fn pids(fixture: &Fixture, except: &str) -> BTreeSet<u32> {
    ROLES.into_iter().filter(|role| *role != except).map(|role| pid(fixture, role)).collect()
}

/// Invariant MB-3, and that a coordinator that comes back has the splits, epochs, groups and members of the one before.
#[test]
fn a_coordinator_that_is_killed_again_and_again_changes_no_bit_of_a_sync_run() {
    let fixture = Fixture::new(ROWS);
    up(&fixture, &["train.mode=sync"]).finish().expect(0);
    let undisturbed = fixture.losses();

    let mut run = up(&fixture, &["train.mode=sync"]);
    run.wait_for_line("epoch 0 is complete");
    let others = pids(&fixture, "coordinator");
    for kill in 1..=4 {
        signal_process(pid(&fixture, "coordinator"), Signal::KILL);
        run.wait_for_line("coordinator was killed by signal 9; starting it again in place");
        run.wait_for_line("with the state of the process before");
        run.wait_for_line(&format!("epoch {kill} is complete"));
    }
    assert_eq!(pids(&fixture, "coordinator"), others, "a member was started again");
    let ended = run.finish().expect(0);
    assert!(!ended.stderr.contains("(incarnation 2)"), "a member joined again: {}", ended.stderr);
    let summary = fixture.summary();
    assert_eq!(summary["samples"].as_u64(), Some(EPOCHS * u64::from(ROWS)));
    let losses = fixture.losses();
    assert_eq!(losses.len(), undisturbed.len());
    // Bit for bit.
    assert_eq!(losses, undisturbed);
    assert!(!fixture.run_folder().join("journal").exists(), "the journal of a run that is over is left");
}

/// Invariants DP-3 and MB-6.
#[test]
fn servers_that_are_killed_again_and_again_change_no_bit_of_a_sync_run() {
    let fixture = Fixture::new(ROWS);
    let sets = ["train.mode=sync", "cluster.durability=process"];
    up(&fixture, &sets).finish().expect(0);
    let undisturbed = fixture.losses();

    let mut run = up(&fixture, &sets);
    run.wait_for_line("epoch 0 is complete");
    for kill in 1..=4 {
        let server = kill % 2;
        let others = pids(&fixture, &format!("embedding-server-{server}"));
        signal_process(pid(&fixture, &format!("embedding-server-{server}")), Signal::KILL);
        run.wait_for_line(&format!("embedding server {server} was killed by signal 9; starting it again in place"));
        run.wait_for_line(&format!("embedding server {server} is back with its rows"));
        run.wait_for_line(&format!("epoch {kill} is complete"));
        assert_eq!(pids(&fixture, &format!("embedding-server-{server}")), others, "another process was started again");
    }
    run.finish().expect(0);
    assert_eq!(fixture.summary()["samples"].as_u64(), Some(EPOCHS * u64::from(ROWS)));
    assert_eq!(fixture.losses(), undisturbed);
}

#[test]
fn a_hybrid_run_goes_on_while_servers_and_coordinator_are_killed_and_each_sample_counts_once() {
    let fixture = Fixture::new(ROWS);
    let mut run = up(&fixture, &["train.mode=hybrid", "cluster.durability=process"]);
    run.wait_for_line("epoch 0 is complete");
    for (kill, role) in [(1, "embedding-server-0"), (2, "coordinator"), (3, "embedding-server-1")] {
        signal_process(pid(&fixture, role), Signal::KILL);
        run.wait_for_line("starting it again in place");
        run.wait_for_line(&format!("epoch {kill} is complete"));
    }
    let ended = run.finish().expect(0);
    assert_eq!(fixture.summary()["samples"].as_u64(), Some(EPOCHS * u64::from(ROWS)));
    let auc = fixture.summary()["evaluation"]["auc"].as_f64().expect("an AUC");
    assert!(auc > 0.6, "AUC {auc}: {}", ended.stderr);
}

fn steps(fixture: &Fixture) -> usize {
    fixture.losses().len()
}

/// Waits until worker 0 has written more steps than `before`; false if it has not within `most`.
fn grows(fixture: &Fixture, before: usize, most: Duration) -> bool {
    let deadline = Instant::now() + most;
    while Instant::now() < deadline {
        if steps(fixture) > before {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn workers_train_while_the_coordinator_is_away_and_no_member_is_started_again() {
    let fixture = Fixture::new(ROWS);
    let epochs = format!("train.epochs={EPOCHS}");
    // The lease is long: its proof lasts for as long as this test has no coordinator.
    let sets = [epochs.as_str(), "cluster.lease_seconds=120", "cluster.timeout_seconds=120"];
    let (mut roles, [mut first, second]) = RoleProcesses::start_with_journal(&fixture, &sets);
    first.wait_for_line("epoch 1/");

    let mut others = roles.take_others();
    let mut coordinator = others.pop().expect("the coordinator is last");
    // They train on what they hold, until a split is needed. At some moments they hold nothing.
    let mut trained = false;
    for _ in 0..20 {
        coordinator.kill();
        let old_steps = steps(&fixture);
        trained = grows(&fixture, old_steps, Duration::from_secs(3));
        coordinator = roles.restart_coordinator(&sets);
        if trained {
            break;
        }
        assert!(grows(&fixture, old_steps, Duration::from_secs(60)), "no step after the coordinator is back");
    }
    assert!(trained, "no step while the coordinator was away, 20 times");
    for process in [first, second, coordinator].into_iter().chain(others) {
        let ended = process.finish().expect(0);
        assert!(!ended.stderr.contains("(incarnation 2)"), "a member joined again: {}", ended.stderr);
    }
    assert_eq!(fixture.summary()["samples"].as_u64(), Some(EPOCHS * u64::from(ROWS)));
}
