//! Processes that die, ports that are taken, peers that never come.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use zagros_tests::signal_process;

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
