//! Processes that die, ports that are taken, peers that never come.
//! `zagros-chaos` breaks processes, disks and links by a schedule, and checks every row.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use zagros_tests::{FinishedCommand, TestProgram, assert_contains, signal_process};

use super::fixture::{Fixture, read_json, wait_for, with_sets};

pub(crate) fn pid(fixture: &Fixture, role: &str) -> u32 {
    pid_in(&fixture.run_folder(), role)
}

/// The process of a role of the run in this folder.
pub(crate) fn pid_in(run: &Path, role: &str) -> u32 {
    read_pid(&run.join(format!("roles/{role}.json")))
}

/// The process that has announced itself in this file.
pub(crate) fn read_pid(announced: &Path) -> u32 {
    read_json(announced)["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process id")
}

/// Whether a process does anything; one that has ended and was not collected yet does not.
fn is_running(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
}

#[test]
fn a_killed_role_ends_the_run_and_is_named() {
    let fixture = Fixture::new(4_000);
    // A coordinator comes back, and a server with a log: see `comeback`.
    for (role, name) in [("embedding-server-1", "embedding server 1"), ("dense-worker-0", "dense worker 0")] {
        let sets = ["train.epochs=1000", "cluster.durability=checkpoint"];
        let run = fixture.start_until("step ", with_sets(&["up", "job.toml", "--servers", "2"], &sets));
        let pids: Vec<u32> = ["coordinator", "embedding-server-0", "embedding-server-1", "dense-worker-0"]
            .map(|role| pid(&fixture, role))
            .to_vec();
        signal_process(pid(&fixture, role), Signal::KILL);
        let outcome = run.finish().expect(4).says(&[name, "killed by signal 9", "last lines"]);
        assert!(!outcome.stderr.contains("goes on after step"), "there is no checkpoint: {}", outcome.stderr);
        for pid in pids {
            assert!(!is_running(pid), "process {pid} outlived the run");
        }
    }
}

#[test]
fn children_end_when_the_parent_is_killed() {
    let fixture = Fixture::new(4_000);
    let run = fixture.start_until("step ", ["up", "job.toml", "--set", "train.epochs=1000"]);
    let pids: Vec<u32> =
        ["coordinator", "embedding-server-0", "dense-worker-0"].map(|role| pid(&fixture, role)).to_vec();
    run.signal(Signal::KILL);
    wait_for(Duration::from_secs(60), || match pids.iter().find(|pid| is_running(**pid)) {
        Some(pid) => Err(format!("process {pid} outlives its parent")),
        None => Ok(()),
    });
}

#[test]
fn a_role_without_a_coordinator_gives_up_and_says_whom_it_waited_for() {
    let fixture = Fixture::new(100);
    // Bound and dropped: no process listens there.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a free port").to_string();
    let coordinator = format!("cluster.coordinator={address}");
    for role in ["dense-worker", "embedding-server"] {
        let arguments = [role, "--config", "job.toml", "--set", &coordinator, "--set", "cluster.timeout_seconds=1"];
        fixture.zagros(arguments).expect(4).says(&["coordinator", &address]);
    }
}

#[test]
fn a_worker_without_servers_gives_up_and_names_them() {
    let fixture = Fixture::new(100);
    let coordinator = ["coordinator", "--config", "job.toml", "--announce", "c.json"];
    let _coordinator = fixture.start_until("announced", with_sets(&coordinator, &["cluster.coordinator=127.0.0.1:0"]));
    let outcome = fixture.read_json("c.json");
    let address = format!("cluster.coordinator={}", outcome["address"].as_str().expect("an address"));
    // Another job file than the coordinator's is refused before anything starts.
    let arguments = ["dense-worker", "--config", "job.toml", "--set", &address, "--set", "train.seed=99"];
    fixture.zagros(arguments).expect(4).says(&["job file"]);
    let arguments = ["dense-worker", "--config", "job.toml", "--set", &address, "--set", "cluster.timeout_seconds=1"];
    fixture.zagros(arguments).expect(4).says(&["embedding server 0"]);
}

#[test]
fn a_server_on_every_interface_must_say_where_it_is() {
    let fixture = Fixture::new(100);
    let everywhere = "cluster.server_addresses=[\"0.0.0.0:0\"]";
    let run = fixture.zagros(["embedding-server", "--config", "job.toml", "--set", everywhere]);
    run.expect(2).says(&["embedding server 0", "0.0.0.0", "without asking anyone for proof", "zagros secret new"]);
    // Trusted networks do without a secret. Other processes still cannot connect to "every interface".
    let trusted = "cluster.insecure=true";
    let run = fixture.zagros(["embedding-server", "--config", "job.toml", "--set", everywhere, "--set", trusted]);
    run.expect(2).says(&["embedding server", "0.0.0.0", "--advertise HOST:PORT"]);
}

const CHAOS_SETS: [&str; 6] = ["--servers", "2", "--workers", "2", "--set", "cluster.timeout_seconds=60"];
/// Long enough for a few faults a round.
const CHAOS_EPOCHS: u32 = 8;
/// Long enough for servers that come to get buckets before the run is over.
const EPOCHS_TO_SCALE: u32 = 24;

fn chaos(epochs: u32, mode: &str, kinds: &str, seed: &str) -> String {
    let (mode, epochs) = (format!("train.mode={mode}"), format!("train.epochs={epochs}"));
    let arguments = ["job.toml", "--for", "5m", "--every", "300ms", "--faults", "4", "--seed", seed];
    let more = ["--kinds", kinds, "--set", &mode, "--set", &epochs];
    let ended = run(&Fixture::new(10_000), &[&arguments[..], &CHAOS_SETS, &more].concat()).expect(0);
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
    let said = chaos(CHAOS_EPOCHS, "sync", "kill,stop", "3");
    assert_contains(&said, &["equal those of the undisturbed run bit for bit after", "are exactly minus the sum of"]);
    assert_eq!(schedule(&said).len(), 2 + 4, "{said}");
}

/// ADR 47: a lost worker sets the run back to its newest checkpoint, and no bit differs.
#[test]
fn a_sync_run_whose_workers_are_killed_goes_back_and_equals_an_undisturbed_one_bit_for_bit() {
    let said = chaos(CHAOS_EPOCHS, "sync", "kill", "1");
    assert!(said.contains("equal those of the undisturbed run bit for bit after"), "{said}");
    assert!(said.contains("the run went back to its newest checkpoint"), "no worker was killed: {said}");
    assert!(said.contains("processes were killed: "), "{said}");
}

#[test]
fn a_hybrid_run_that_is_killed_and_stopped_loses_and_doubles_nothing() {
    let said = chaos(CHAOS_EPOCHS, "hybrid", "kill,stop", "2");
    assert!(said.contains("are exactly minus the sum of"), "{said}");
    assert!(said.contains("dense worker"), "a worker is hit: {said}");
}

/// Lost answers, requests that arrive after their repetitions, partitions and disks that take no more.
#[test]
fn a_run_whose_links_and_disks_fail_loses_and_doubles_nothing() {
    let said = chaos(CHAOS_EPOCHS, "hybrid", "disk,slow,partition,break,late", "4");
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
