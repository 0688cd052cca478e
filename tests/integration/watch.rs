//! The log files of a run, and `zagros doctor` on real processes: it names the one that the others wait for (invariant WT-2), and how a run ended.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::{RunningCommand, signal_process};

use super::faults::pid;
use super::fixture::{Fixture, wait_for, with_sets};

/// Of a run of the fixture's folder that has ended, with two servers.
pub(crate) fn has_a_log_of_each_process(fixture: &Fixture) {
    for name in ["coordinator", "embedding-server-0", "embedding-server-1", "dense-worker-0"] {
        let log = fixture.run_folder().join(format!("logs/{name}.log"));
        assert!(std::fs::metadata(&log).expect("a log").len() > 0, "{}", log.display());
    }
}

/// Long enough for a slow machine. Only a test that fails waits so long.
const DOCTOR_TIMEOUT: Duration = Duration::from_secs(90);

/// A run that goes on for as long as it is looked at. No process is lost meanwhile.
const DOCTOR_SETS: [&str; 5] = [
    "train.epochs=1000",
    "train.staleness=0",
    "cluster.timeout_seconds=200",
    "cluster.lease_seconds=120",
    "cluster.durability=process",
];

fn up(fixture: &Fixture, servers: &str, sets: &[&str]) -> RunningCommand {
    let mut run = fixture.start(with_sets(&["up", "job.toml", "--servers", servers, "--workers", "2"], sets));
    run.wait_for_line("epoch 0 is complete");
    run
}

fn asked(fixture: &Fixture, arguments: &[&str]) -> (Value, i32) {
    let said = fixture.zagros(["doctor", "--json"].iter().chain(arguments).copied());
    let json = serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("no JSON: {}{}", said.stdout, said.stderr));
    (json, said.code().expect("an exit code"))
}

/// Asks until the doctor finds something of this kind about this subject, as what is worst.
fn wait_for_finding(fixture: &Fixture, arguments: &[&str], kind: &str, subject: &str) -> Value {
    wait_for(DOCTOR_TIMEOUT, || {
        let (said, code) = asked(fixture, arguments);
        let first = said["findings"][0].clone();
        if first["kind"] != kind || first["subject"] != subject {
            return Err(format!("no {kind} of {subject}: {said:#}"));
        }
        assert_eq!((code, &said["healthy"]), (8, &Value::Bool(false)), "{said:#}");
        Ok(first)
    })
}

fn wait_until_healthy(fixture: &Fixture) {
    wait_for(DOCTOR_TIMEOUT, || match asked(fixture, &[]) {
        (said, 0) if said["healthy"] == true => Ok(()),
        (said, code) => Err(format!("it stays ill, {code}: {said:#}")),
    });
}

fn lines(finding: &Value) -> String {
    let why = finding["why"].as_array().expect("a list").iter().filter_map(Value::as_str);
    why.collect::<Vec<_>>().join("\n")
}

/// Each process is stopped in turn, named with the command that lets it go on, and let go on.
#[test]
fn a_stopped_process_is_named_whoever_it_is() {
    let fixture = Fixture::new(20_000);
    let run = up(&fixture, "2", &DOCTOR_SETS);
    wait_until_healthy(&fixture);

    for (stopped, other) in [(1, 0), (0, 1)] {
        let worker = pid(&fixture, &format!("dense-worker-{stopped}"));
        let subject = format!("dense worker {stopped}");
        signal_process(worker, Signal::STOP);
        let found = wait_for_finding(&fixture, &[], "member_silent", &subject);
        let next = found["next"].as_str().expect("text").to_owned();
        assert_eq!(next, format!("let it go on: kill -CONT {worker}"));
        // The other worker waits for it in a call of all: the doctor names which, once it has waited for three seconds.
        let waits = format!("dense worker {other} waits in ");
        wait_for(DOCTOR_TIMEOUT, || {
            let why = lines(&wait_for_finding(&fixture, &[], "member_silent", &subject));
            why.contains(&waits).then_some(()).ok_or(why)
        });
        signal_process(worker, Signal::CONT);
        wait_until_healthy(&fixture);
    }

    let server = pid(&fixture, "embedding-server-1");
    signal_process(server, Signal::STOP);
    // Whether the window counts as full depends on the step: after the last batch of an epoch nothing wants a place in it.
    let is_stopped = format!("process {server} on this machine is stopped");
    wait_for(DOCTOR_TIMEOUT, || {
        let why = lines(&wait_for_finding(&fixture, &[], "member_silent", "embedding server 1"));
        let says_all = why.contains(" for embedding server 1, for") && why.contains(&is_stopped);
        says_all.then_some(()).ok_or(why)
    });
    // The coordinator alone knows as much, but for the process. `status` shows the first finding.
    let status = fixture.zagros(["status"]).expect(0);
    assert!(status.stdout.contains("embedding server 1 shows no sign of life since"), "{}", status.stdout);
    let plain = fixture.zagros(["doctor"]).expect(8);
    for text in ["✕ embedding server 1 shows no sign of life", "why", "next", &format!("kill -CONT {server}")] {
        assert!(plain.stdout.contains(text), "no {text:?} in {}", plain.stdout);
    }
    assert!(plain.stdout.lines().count() <= 24, "more than a screen: {}", plain.stdout);
    signal_process(server, Signal::CONT);
    wait_until_healthy(&fixture);

    let coordinator = pid(&fixture, "coordinator");
    signal_process(coordinator, Signal::STOP);
    let found = wait_for_finding(&fixture, &["--timeout", "2"], "coordinator_silent", "coordinator");
    assert_eq!(found["next"], format!("let it go on: kill -CONT {coordinator}"));
    signal_process(coordinator, Signal::CONT);
    wait_until_healthy(&fixture);

    run.interrupt();
    let (over, code) = asked(&fixture, &[&fixture.run_name()]);
    assert_eq!((code, &over["healthy"]), (0, &Value::Bool(true)), "{over:#}");
    assert!(over["verdict"].as_str().expect("text").contains("interrupted"), "{over:#}");
}

#[test]
fn members_that_never_came_are_named_and_how_to_start_them() {
    let fixture = Fixture::new(1_000);
    let start = |arguments: &[&str], coordinator: &str| {
        let coordinator = format!("cluster.coordinator={coordinator}");
        let command = [arguments, &["--config", "job.toml"]].concat();
        fixture.start(with_sets(&command, &["cluster.workers=2", "cluster.timeout_seconds=200", &coordinator]))
    };
    let mut coordinator = start(&["coordinator", "--announce", "coordinator.json"], "127.0.0.1:0");
    coordinator.wait_for_line("announced");
    let announced = fixture.read_json("coordinator.json");
    let address = announced["address"].as_str().expect("an address");
    let server = start(&["embedding-server"], address);
    let worker = start(&["dense-worker"], address);
    let expected =
        "the run waits for its members: 1 of 1 servers and 1 of 2 workers have joined; dense worker 1 is missing";
    let found = wait_for(DOCTOR_TIMEOUT, || {
        let found = wait_for_finding(&fixture, &["--coordinator", address], "member_missing", "dense worker 1");
        let says_all = found["what"] == expected && lines(&found).contains("dense worker 0 waits");
        if says_all { Ok(found) } else { Err(format!("{found:#}")) }
    });
    let next = found["next"].as_str().expect("text");
    assert!(next.starts_with("start it: zagros dense-worker JOB --index 1"), "{found:#}");
    [worker, server, coordinator].into_iter().for_each(RunningCommand::kill);
}

#[test]
fn of_a_run_that_failed_the_process_that_ended_first_is_named() {
    let fixture = Fixture::new(20_000);
    // Without a log the rows of a server end with its process.
    let run = up(&fixture, "2", &["train.epochs=1000", "cluster.durability=checkpoint"]);
    signal_process(pid(&fixture, "embedding-server-1"), Signal::KILL);
    run.finish().expect(4);
    let folder = fixture.run_name();
    let (said, code) = asked(&fixture, &[&folder]);
    assert_eq!(code, 8, "{said:#}");
    assert_eq!(said["verdict"], "the run ended because embedding server 1 was killed by signal 9", "{said:#}");
    // The newest run is the default.
    assert_eq!(asked(&fixture, &[]).0, said);
}

#[test]
fn a_folder_without_a_run_is_refused_and_a_coordinator_that_is_not_there_is_a_finding() {
    let fixture = Fixture::new(100);
    fixture.zagros(["doctor", "nowhere"]).expect(2).says(&["nowhere is no folder of a run"]);
    let (said, code) = asked(&fixture, &["--coordinator", "127.0.0.1:1", "--timeout", "1"]);
    assert_eq!((code, &said["findings"][0]["kind"]), (8, &Value::from("coordinator_silent")), "{said:#}");
    assert!(lines(&said["findings"][0]).contains("127.0.0.1:1"), "{said:#}");
}
