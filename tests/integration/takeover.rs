//! A server that is lost for good: another server's process takes over its log (ADR 54).

use rustix::process::Signal;
use zagros_tests::signal_process;

use crate::fixture::Fixture;
use crate::workers::{Roles, pid};

const ROWS: u32 = 20_000;
const EPOCHS: u64 = 10;
const SETS: [&str; 6] = [
    "train.mode=sync",
    "train.epochs=10",
    "cluster.min_servers=1",
    "cluster.durability=machine",
    "cluster.lease_seconds=3",
    "cluster.timeout_seconds=20",
];

/// The losses of a run of two servers and two workers. Once it trains, the server that `lost` names is killed for good; the
/// coordinator says `expected` of it then.
fn losses_without(lost: Option<(usize, &[&str])>) -> Vec<f64> {
    let fixture = Fixture::new(ROWS);
    let (mut roles, workers) = Roles::start(&fixture, &SETS);
    let mut others = roles.take_others();
    let mut coordinator = others.pop().expect("a coordinator");
    if let Some((server, expected)) = lost {
        coordinator.wait_for_line("epoch 0 is complete");
        signal_process(pid(&fixture, &format!("roles/server-{server}.json")), Signal::KILL);
        for line in expected {
            coordinator.wait_for_line(line);
        }
        others.remove(server);
    }
    for role in workers.into_iter().chain(others).chain([coordinator]) {
        role.finish().expect(0);
    }
    assert_eq!(fixture.summary()["samples"].as_u64(), Some(EPOCHS * u64::from(ROWS)));
    let logs = fixture.path("runs").read_dir().expect("run folders").flatten().map(|entry| entry.file_name());
    let left: Vec<_> = logs.filter(|name| name.to_string_lossy().starts_with("log-server")).collect();
    assert!(left.is_empty(), "logs of a run that is over are left: {left:?}");
    fixture.losses()
}

#[test]
fn the_log_of_a_lost_server_is_taken_over_and_no_bit_of_the_run_changes() {
    let undisturbed = losses_without(None);
    let taken = "embedding server 1 has taken over the log of embedding server 0: its process serves for both";
    assert_eq!(losses_without(Some((0, &[taken]))), undisturbed);
    // The buckets of the last server go to the others, and it ends.
    let taken = "embedding server 0 has taken over the log of embedding server 1: its process serves for both";
    let released = "embedding server 1 has handed its buckets over, and ends";
    assert_eq!(losses_without(Some((1, &[taken, released]))), undisturbed);
}
