//! `zagros scale`: servers come and go while a run trains, and training does not notice.
//! `zagros up`: the same run as separate processes. They listen where the job says, and `zagros status` finds a run by its folder.

use std::net::TcpListener;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::{RunningCommand, assert_contains, signal_process};

use super::faults::pid;
use super::fixture::{Fixture, http_get, wait_for};
use super::memory;
use super::watch::has_a_log_of_each_process;

/// Mode `sync`: the losses are the same bit for bit for any number of embedding servers (invariant DP-5).
const SYNC: [&str; 6] = ["up", "job.toml", "--set=train.mode=sync", "--set=train.epochs=1000", "--servers", "2"];

/// How long a test waits for moves.
const MOST: Duration = Duration::from_secs(60);

fn scale_of(fixture: &Fixture) -> Value {
    fixture.zagros(["status", "--json"]).expect(0).json()["scale"].take()
}

fn scale(fixture: &Fixture, servers: u32, says: &str) {
    let done = fixture.zagros(["scale", &format!("servers={servers}")]).expect(0);
    assert!(done.stdout.contains(says), "{}", done.stdout);
}

fn wait_for_servers(fixture: &Fixture, servers: u32) {
    wait_for(MOST, || {
        let scale = scale_of(fixture);
        let is_reached = scale["servers"] == servers && scale["buckets_left"] == 0;
        if is_reached { Ok(()) } else { Err(format!("{servers} servers are not reached: {scale}")) }
    });
}

/// Stops the run. An undisturbed one of as many steps has the same losses.
fn assert_undisturbed(fixture: &Fixture, run: RunningCommand, job: &[&str]) {
    run.interrupt();
    let mut losses = fixture.losses();
    // A run that is stopped while it reads may cut its last batch short.
    losses.pop();
    let steps = losses.len().to_string();
    fixture.zagros([job, &["--fresh", "--max-steps", &steps]].concat()).expect(0);
    assert_eq!(losses, fixture.losses(), "a loss differs within {steps} steps");
}

/// Invariants DP-3, DP-5 and PL-2.
#[test]
fn a_run_whose_servers_come_and_go_learns_what_an_undisturbed_run_learns() {
    let fixture = Fixture::new(20_000);
    let run = fixture.start_until("dense worker 0     │ step ", SYNC);
    scale(&fixture, 4, "4 embedding servers; moved");
    assert!(pid(&fixture, "embedding-server-3") > 0, "`up` has started it");
    scale(&fixture, 3, "3 embedding servers; moved");
    signal_process(pid(&fixture, "embedding-server-2"), Signal::TERM);
    wait_for_servers(&fixture, 2);
    let moved = scale_of(&fixture);
    assert!(moved["rows_moved"].as_u64() > Some(0) && moved["bytes_moved"].as_u64() > Some(0), "{moved}");
    assert!(moved["moves_committed"].as_u64() >= Some(5), "{moved}");
    assert_undisturbed(&fixture, run, &SYNC);
}

/// Invariants TI-1, DU-1 and DP-5: rows beyond memory move from two servers to three and back, and a server is killed during each change.
#[test]
fn rows_beyond_memory_move_and_a_killed_server_costs_a_move_and_nothing_else() {
    let fixture = memory::fixture();
    let limit = memory::limit();
    let job =
        ["up", "shared.toml", "--set=train.mode=sync", "--set=train.epochs=1000", "--servers", "2", "--set", &limit];
    let mut run = fixture.start_until("dense worker 0     │ step ", job);
    fixture.zagros(["scale", "servers=3", "--no-wait"]).expect(0);
    run.wait_for_line("embedding server 2");
    signal_process(pid(&fixture, "embedding-server-1"), Signal::KILL);
    wait_for_servers(&fixture, 3);
    let outcome = fixture.read_run_json("roles/embedding-server-2.json");
    let admin = outcome["admin"].as_str().expect("an address").to_owned();
    wait_for(MOST, || {
        let cold = memory::metric(&http_get(&admin, "/metrics"), r#"cold_rows{server="2"}"#);
        if cold > 0 { Ok(()) } else { Err("no row of the new server lies beyond its memory".to_owned()) }
    });
    fixture.zagros(["scale", "servers=2", "--no-wait"]).expect(0);
    signal_process(pid(&fixture, "embedding-server-0"), Signal::KILL);
    wait_for_servers(&fixture, 2);
    let moved = scale_of(&fixture);
    assert!(moved["rows_moved"].as_u64() > Some(10_000) && moved["moves_committed"].as_u64() >= Some(4), "{moved}");
    println!("{moved}");
    assert_undisturbed(&fixture, run, &job);
}

/// Invariant DP-5: an id is admitted at the same lookup, because its exact count moves.
#[test]
fn ids_that_are_counted_move_and_the_run_learns_what_an_undisturbed_run_learns() {
    let fixture = Fixture::new(20_000);
    let count = "--set=embedding.admission={ kind = \"count\", min_count = 40 }";
    let run = fixture.start_until("dense worker 0     │ step ", SYNC.into_iter().chain([count]));
    scale(&fixture, 3, "3 embedding servers; moved");
    scale(&fixture, 2, "2 embedding servers; moved");
    assert_undisturbed(&fixture, run, &[&SYNC[..], &[count]].concat());
}

#[test]
fn what_cannot_be_scaled_is_refused_with_the_reason() {
    let fixture = Fixture::new(4_000);
    fixture.zagros(["scale", "servers=0"]).expect(2).says(&["servers=0"]);
    fixture.zagros(["scale", "servers=2", "--run", "runs/none"]).expect(2).says(&["there is no run folder"]);
    let run = fixture.start_until("step ", ["up", "job.toml", "--set=train.epochs=1000", "--set=cluster.buckets=64"]);
    fixture.zagros(["scale", "servers=65"]).expect(2).says(&["65 servers cannot share 64 buckets"]);
    let refused = fixture.zagros(["scale", "servers=1", "workers=3"]).expect(2);
    refused.says(&["the run has 1 dense workers", "cluster.max_workers"]);
    scale(&fixture, 1, "0 buckets have to move");
    run.interrupt();
}

/// Invariant RK-5, and CK-2 with another number of workers: 1 → 3 → 2, stopped with 2, resumed with 1.
#[test]
fn workers_come_and_go_while_the_run_trains_and_a_stopped_run_resumes_with_another_number() {
    let fixture = Fixture::new(20_000);
    let up = |epochs: u32, workers: &'static str| {
        let sets = [format!("--set=train.epochs={epochs}"), "--set=data.shuffle_rows=2000".to_owned()];
        let fixed = ["up", "job.toml", "--set=cluster.max_workers=4", "--workers", workers].map(str::to_owned);
        fixed.into_iter().chain(sets).collect::<Vec<_>>()
    };
    let mut run = fixture.start_until("dense worker 0     │ step ", up(1000, "1").iter().map(String::as_str));
    let both = fixture.zagros(["scale", "servers=2", "workers=3"]).expect(0);
    let says = |said: &str| assert!(both.stdout.contains(said), "{}", both.stdout);
    ["2 embedding servers and 3 dense workers are wanted", "; 3 dense workers"].into_iter().for_each(says);
    assert!(pid(&fixture, "dense-worker-2") > 0, "`up` has started it");
    let status = fixture.zagros(["status"]).expect(0);
    assert!(status.stdout.contains("3 dense workers") && status.stdout.contains("dense worker 2"), "{}", status.stdout);
    let two = fixture.zagros(["scale", "workers=2"]).expect(0);
    assert!(two.stdout.contains("; 2 dense workers"), "{}", two.stdout);
    fixture.zagros(["scale", "workers=5"]).expect(2).says(&["4 dense workers at most (`cluster.max_workers`)"]);
    // A worker that is killed is started again, and the one that has left is not.
    signal_process(pid(&fixture, "dense-worker-1"), Signal::KILL);
    run.wait_for_line("starting it again");
    // A run that is stopped while a worker is lost saves nothing.
    run.wait_for_line("training continues after step");
    let status = fixture.zagros(["status", "--json"]).expect(0);
    let epoch = status.json()["epoch"].as_u64().expect("an epoch");
    run.signal(Signal::INT);
    // A worker may have left before `up` has asked it to: the coordinator's line is there either way.
    run.finish().expect(130).says(&["dense worker 2 left: the run goes on without it"]);
    assert_eq!(fixture.summary()["outcome"], "interrupted");

    let epochs = u32::try_from(epoch).expect("few") + 3;
    fixture.zagros(up(epochs, "1").iter().map(String::as_str)).expect(0);
    let summary = fixture.summary();
    assert_eq!(summary["outcome"], "finished");
    assert_eq!(summary["epochs"].as_array().map(Vec::len), Some(epochs as usize));
    println!("{} samples in {} steps", summary["samples"], summary["steps"]);
}

/// Its lines are for people: no field is empty or looks like a type.
#[test]
fn lines_carry_the_role_and_the_model_is_saved_by_every_server() {
    let fixture = Fixture::new(4_000);
    let run = fixture.zagros(["up", "job.toml", "--servers", "2"]).expect(0);
    assert_contains(&run.stderr, &["coordinator", "embedding server 0", "embedding server 1", "dense worker 0"]);
    assert_contains(&run.stderr, &["µs of CPU a sample in all processes", "reason=run finished"]);
    for leak in ["Reported(", "address=\"\""] {
        assert!(!run.stderr.contains(leak), "{leak} in\n{}", run.stderr);
    }
    let folder = fixture.run_folder();
    assert!(!folder.join("row-log").exists() && !folder.join("cold-rows").exists(), "servers delete their logs");
    assert_eq!(std::fs::read_dir(fixture.path("runs")).expect("runs").count(), 1, "there are only folders of runs");
    let manifest = fixture.read_run_json("model/manifest.json");
    assert_eq!(manifest["row_files"].as_array().map(Vec::len), Some(2), "{manifest}");
    let summary = fixture.summary();
    assert_eq!(fixture.evaluate()["auc"], summary["evaluation"]["auc"]);
    let cost = |figure: &str| summary["cost"][figure].as_f64().unwrap_or_default();
    let (own, all) = (cost("cpu_us_per_sample"), cost("cpu_us_per_sample_of_all"));
    assert!(0.0 < own && own < all, "{summary}");
    has_a_log_of_each_process(&fixture);
}

/// Enough epochs that the run goes on for as long as it is asked.
const LONG: [&str; 3] = ["up", "job.toml", "--set=train.epochs=1000"];

/// The first of so many ports in a row that are free, below those that the system gives to others.
fn free_ports(count: u16) -> u16 {
    let first = 20_000 + u16::try_from(std::process::id() % 8_000).expect("it fits");
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut found = (first..32_000).step_by(usize::from(count));
    found.find(|port| (*port..port + count).all(is_free)).expect("free ports")
}

#[test]
fn ports_that_the_job_gives_are_those_that_are_served() {
    let fixture = Fixture::new(4_000);
    let port = free_ports(4);
    let (coordinator, admin) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1));
    let sets = [format!("--set=cluster.coordinator={coordinator}"), format!("--set=cluster.admin={admin}")];
    let mut run = fixture.start(LONG.into_iter().chain(sets.iter().map(String::as_str)));
    run.wait_for_line("dense worker 0     │ step ");
    let status = fixture.zagros(["status", "--json", "--coordinator", &coordinator]).expect(0).json();
    assert_eq!(status["state"], "training");
    for (place, metric) in [(1, "zagros_coordinator_"), (2, "zagros_embedding_"), (3, "zagros_worker_")] {
        let address = format!("127.0.0.1:{}", port + place);
        assert!(http_get(&address, "/metrics").contains(metric), "{metric} at {address}");
    }
    run.interrupt();
}

fn is_healthy_and_has_metrics(fixture: &Fixture) {
    for (role, metric) in [
        ("coordinator", "zagros_coordinator_"),
        ("embedding-server-0", "zagros_embedding_"),
        ("dense-worker-0", "zagros_worker_"),
    ] {
        let outcome = fixture.read_run_json(&format!("roles/{role}.json"));
        let address = outcome["admin"].as_str().expect("an address");
        assert!(http_get(address, "/healthz").starts_with("HTTP/1.1 200"), "{role}");
        assert!(http_get(address, "/readyz").starts_with("HTTP/1.1 200"), "{role}");
        assert!(http_get(address, "/metrics").contains(metric), "{role}");
    }
}

#[test]
fn a_live_run_serves_health_metrics_and_status_and_says_when_it_is_over() {
    let fixture = Fixture::new(4_000);
    let run = fixture.start_until("dense worker 0     │ step ", LONG.into_iter().chain(["--servers", "2"]));
    assert!(fixture.run_folder().join("row-log/server-1/lineage.json").exists(), "a log lies in the folder of its run");
    is_healthy_and_has_metrics(&fixture);
    let folder = fixture.run_name();
    let coordinator = fixture.read_run_json("roles/coordinator.json");
    let address = coordinator["address"].as_str().expect("an address");
    fixture.zagros(["status", "--coordinator", address]).expect(0).prints(&["embedding server 1"]);
    for named in [&[folder.as_str()][..], &[], &["--coordinator", address]] {
        let status = fixture.zagros([&["status", "--json"], named].concat()).expect(0).json();
        assert_eq!((&status["job"], &status["state"]), (&"small".into(), &"training".into()), "{named:?}");
        assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{named:?}: {status}");
    }
    run.signal(Signal::TERM);
    run.finish().expect(143);
    fixture.zagros(["status", &folder]).expect(4).says(&[
        "no run is live in",
        "/logs has its last lines",
        "report.html",
    ]);
    fixture.zagros(["status", "nowhere"]).expect(2).says(&["there is no run folder nowhere"]);
}

#[test]
fn every_command_takes_the_job_file_in_the_same_way() {
    let fixture = Fixture::new(2_000);
    let plan = fixture.zagros(["up", "job.toml", "--servers", "2", "--workers", "2", "--dry-run"]).expect(0);
    plan.prints(&["2 embedding server(s), 2 dense worker(s)"]);
    assert!(!fixture.path("runs").exists(), "a plan is no run");
    // Each is known by the job's own error, which comes after the command line was understood.
    for role in ["coordinator", "embedding-server", "dense-worker", "train", "up"] {
        fixture.zagros([role, "job.toml", "--set", "train.sed=3"]).expect(2).says(&["train.sed", "seed"]);
    }
    for role in ["coordinator", "embedding-server", "dense-worker"] {
        fixture.zagros([role, "--config", "job.toml", "--set", "train.sed=3"]).expect(2).says(&["train.sed"]);
        fixture.zagros([role]).expect(2).says(&["JOB"]);
    }
}
