//! Several dense workers as processes, in every mode: what they learn, and what happens when one of them dies or stands still. Mode `sync`
//! sends the lookup of a batch with the push of the step before it, and learns the bits of a run that sends it after.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::{FinishedCommand, RunningCommand, TestProgram, assert_contains, signal_process};

use super::faults::{pid as role_pid, read_pid};
use super::fixture::{Fixture, checkpoints, gzip, read_json, with_sets};

const COORDINATOR: [&str; 5] = ["coordinator", "--announce", "roles/coordinator.json", "--journal", "journal"];

/// Every role as a process of its own, with no parent that ends the rest.
pub(crate) struct RoleProcesses<'a> {
    fixture: &'a Fixture,
    coordinator: String,
    others: Vec<RunningCommand>,
}

impl<'a> RoleProcesses<'a> {
    pub(crate) fn start(fixture: &'a Fixture, sets: &[&str]) -> (Self, [RunningCommand; 2]) {
        Self::start_after(fixture, sets, &COORDINATOR[..3])
    }

    /// The same with a coordinator that may come back.
    pub(crate) fn start_with_journal(fixture: &'a Fixture, sets: &[&str]) -> (Self, [RunningCommand; 2]) {
        Self::start_after(fixture, sets, &COORDINATOR)
    }

    /// Another coordinator with the journal of the one before, on its port.
    pub(crate) fn restart_coordinator(&self, sets: &[&str]) -> RunningCommand {
        self.role(&COORDINATOR, sets)
    }

    fn start_after(fixture: &'a Fixture, sets: &[&str], arguments: &[&str]) -> (Self, [RunningCommand; 2]) {
        let mut roles = Self { fixture, coordinator: "cluster.coordinator=127.0.0.1:0".to_owned(), others: Vec::new() };
        let mut coordinator = roles.role(arguments, sets);
        coordinator.wait_for_line("announced");
        roles.coordinator = format!("cluster.coordinator={}", address(fixture, "coordinator", "address"));
        let servers = ["0", "1"].map(|index| {
            let announce = format!("roles/server-{index}.json");
            roles.role(&["embedding-server", "--index", index, "--announce", &announce], sets)
        });
        roles.others.extend(servers.into_iter().chain([coordinator]));
        let workers = [0, 1].map(|index| roles.start_worker(index, sets));
        (roles, workers)
    }

    /// As Kubernetes does: another process follows one that is asked to end.
    pub(crate) fn start_worker(&self, index: u32, sets: &[&str]) -> RunningCommand {
        let (announce, index) = (format!("roles/{index}.json"), index.to_string());
        self.role(&["dense-worker", "--index", &index, "--announce", &announce, "--on-stop", "restart"], sets)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.others.iter().for_each(|role| role.signal(signal));
    }

    /// The servers, and last the coordinator, whose ends the caller sees to from now on.
    pub(crate) fn take_others(&mut self) -> Vec<RunningCommand> {
        std::mem::take(&mut self.others)
    }

    fn role(&self, arguments: &[&str], sets: &[&str]) -> RunningCommand {
        let all = ["cluster.workers=2", "cluster.servers=2", self.coordinator.as_str()];
        let sets = all.iter().chain(sets).flat_map(|set| ["--set", set]);
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--config", "job.toml"]).chain(sets).collect();
        self.fixture.start(arguments)
    }

    pub(crate) fn worker(&self, index: u32) -> u32 {
        pid(self.fixture, &format!("roles/{index}.json"))
    }
}

/// Starts a role, which announces itself in `roles` by its arguments.
pub(crate) fn start_role(fixture: &Fixture, program: TestProgram, arguments: &[&str], sets: &[&str]) -> RunningCommand {
    let announce = format!("roles/{}.json", arguments.join(""));
    let command = [arguments, &["--config", "job.toml", "--announce", &announce]].concat();
    fixture.start_program(program, with_sets(&command, sets))
}

pub(crate) fn address(fixture: &Fixture, role: &str, key: &str) -> String {
    fixture.read_json(&format!("roles/{role}.json"))[key].as_str().expect("an address").to_owned()
}

pub(crate) fn pid(fixture: &Fixture, announced: &str) -> u32 {
    read_pid(&fixture.path(announced))
}

/// Of a program that is built without NCCL; one with it refuses the same on a machine without a device.
#[test]
fn sums_over_nccl_are_refused_before_anything_is_trained() {
    let fixture = Fixture::new(100);
    let sets = ["--workers", "2", "--set", "cluster.collective=nccl"];
    let run = fixture.zagros(["up", "job.toml"].into_iter().chain(sets)).expect(2);
    assert_contains(&run.stderr, &["cluster.collective = \"nccl\": ", "or use cluster.collective = \"gloo\""]);
    assert_contains(&run.stderr, &["docs/nccl.md"]);
}

/// Two workers with their own changes to the job learn what one learns, but for this difference in AUC, and their model
/// scores as reported. Gives how the run of two has ended.
#[track_caller]
pub(crate) fn assert_two_learn_as_one(fixture: &Fixture, sets: &[&str], own: &[&str], most: f64) -> FinishedCommand {
    fixture.zagros(with_sets(&["up", "job.toml", "--servers", "2"], sets)).expect(0);
    let (alone, samples) = (fixture.auc(), fixture.summary()["samples"].clone());
    let up = with_sets(&["up", "job.toml", "--servers", "2", "--workers", "2"], sets);
    let run = fixture.zagros(with_sets(&up, own)).expect(0);
    let joint = fixture.auc();
    println!("test AUC {alone:.4} with one worker, {joint:.4} with two");
    assert!((alone - joint).abs() < most, "AUC {alone} with one worker, {joint} with two");
    assert_eq!(fixture.summary()["samples"], samples);
    // Batches are cut elsewhere, so that a logit may be rounded otherwise.
    let scored = fixture.evaluate()["auc"].as_f64().expect("an AUC");
    assert!((scored - joint).abs() < 1e-5, "{scored} scored again, {joint} then");
    run
}

#[test]
fn two_workers_learn_what_one_learns_and_only_the_first_reports() {
    // The global batch stays what it was.
    let fixture = Fixture::new(20_000);
    let run = assert_two_learn_as_one(&fixture, &["train.epochs=2"], &["train.batch_size=128"], 0.02);
    let reports = |worker: &str| run.stderr.lines().any(|line| line.contains(worker) && line.contains("step "));
    assert!(reports("dense worker 0") && !reports("dense worker 1"), "{}", run.stderr);
}

/// Five times as many rows to one as to the other, which runs dry. Where one is late, the other may have both files.
fn uneven() -> (Fixture, Vec<&'static str>) {
    let fixture = Fixture::new(5_000);
    for name in ["train.txt", "test.txt"] {
        fixture.write(&format!("{name}.gz"), gzip(&fixture.read(name)));
    }
    let sets = ["up", "job.toml", "--workers", "2", "--set", "data.train=[\"train.txt.gz\", \"test.txt.gz\"]"];
    (fixture, sets.to_vec())
}

#[test]
fn a_worker_that_runs_dry_steps_along_and_every_row_is_trained_once() {
    let (fixture, arguments) = uneven();
    let run = fixture.zagros(arguments.into_iter().chain(["--set", "train.epochs=2"])).expect(0);
    assert_eq!(fixture.summary()["samples"], 2 * 6_000);
    // The worker with 5,000 rows makes 20 steps of 256 an epoch, the other one its 4 beside them; one with all makes 24.
    let steps = fixture.summary()["steps"].as_u64().expect("a count");
    assert!([20 + 20, 20 + 24, 24 + 24].contains(&steps), "{steps} steps; {}", run.stderr);
    assert!(fixture.auc() > 0.6);
}

#[test]
fn a_batch_of_one_worker_that_is_no_number_ends_all_and_names_it() {
    let (fixture, arguments) = uneven();
    let small = fixture.read("test.txt");
    let row = small.lines().nth(600).expect("a row");
    let wrong: Vec<&str> = row.split('\t').enumerate().map(|(at, text)| if at == 1 { "3e38" } else { text }).collect();
    fixture.write("test.txt", small.replacen(row, &wrong.join("\t"), 1));
    fixture.write("test.txt.gz", gzip(&fixture.read("test.txt")));
    // Cross layers multiply what they read with itself.
    let sets = ["--set", "features.numeric=[{column=\"I1\", log=false}]", "--set", "model={kind=\"dcnv2\"}"];
    let run = fixture.zagros(arguments.into_iter().chain(sets)).expect(5);
    // That worker says so, and the other one names it.
    run.says(&[": loss or gradients of dense worker", ": the loss is not finite"]);
}

/// As on Kubernetes, when a node is drained: another process joins in its place. Worker 0 stands still meanwhile, so
/// training is not over.
#[test]
fn a_worker_that_is_asked_to_end_comes_back_and_every_sample_is_trained_once() {
    let fixture = Fixture::new(20_000);
    let sets = ["train.epochs=10", "cluster.min_workers=1", "cluster.max_workers=2", "cluster.lease_seconds=60"];
    let (mut roles, [mut first, second]) = RoleProcesses::start_with_journal(&fixture, &sets);
    first.wait_for_line("epoch 1/");
    signal_process(roles.worker(1), Signal::TERM);
    second.finish().expect(143).says(&["asked to end, and the run goes on without this worker"]);
    signal_process(roles.worker(0), Signal::STOP);
    let mut third = roles.start_worker(1, &sets);
    third.wait_for_line("waiting for the other dense workers");
    signal_process(roles.worker(0), Signal::CONT);
    third.wait_for_line("training continues after step");
    first.wait_for_line("with dense workers 0, 1");
    for process in [first, third].into_iter().chain(roles.take_others()) {
        process.finish().expect(0);
    }
    let summary = fixture.summary();
    assert_eq!((&summary["outcome"], &summary["samples"]), (&"finished".into(), &200_000.into()));
}

#[test]
fn a_worker_that_is_killed_or_stands_still_is_named_by_the_other() {
    let hybrid = [("hybrid", Signal::KILL, 1), ("hybrid", Signal::KILL, 0), ("hybrid", Signal::STOP, 1)];
    for (mode, signal, lost) in hybrid.into_iter().chain([("async", Signal::KILL, 1)]) {
        // The servers of one case may be killed before they have deleted their log, which mode `async` with its own tables refuses.
        let fixture = Fixture::new(4_000);
        let mode = format!("train.mode={mode}");
        let sets = [mode.as_str(), "train.epochs=1000", "cluster.timeout_seconds=10"];
        let (roles, [mut first, second]) = RoleProcesses::start(&fixture, &sets);
        first.wait_for_line("step ");
        signal_process(roles.worker(lost), signal);
        let (left, name) = if lost == 1 { (first, "dense worker 1") } else { (second, "dense worker 0") };
        let started = Instant::now();
        left.finish().expect(4).says(&[name]);
        println!("{mode}: {name} got {signal:?}: the other ended after {:.1?}", started.elapsed());
    }
}

#[test]
fn one_process_says_what_to_use_for_several_workers() {
    let fixture = Fixture::new(100);
    let run = fixture.zagros(["train", "job.toml", "--set", "cluster.workers=2"]);
    run.expect(2).says(&["`zagros train` runs one dense worker", "zagros up", "cluster.workers=1"]);
}

const TWO: [&str; 6] = ["up", "job.toml", "--servers", "2", "--workers", "2"];

#[test]
fn asynchronous_workers_learn_what_one_learns_and_the_model_scores_as_reported() {
    let fixture = Fixture::new(20_000);
    // With fewer epochs the AUC still rises fast, and the difference depends on who is how fast.
    assert_two_learn_as_one(&fixture, &["train.epochs=5"], &["train.mode=async"], 0.03);
    let summary = fixture.summary();
    assert!(summary["staleness"]["max"].as_u64().is_some_and(|max| max <= 4), "{}", summary["staleness"]);
    // The table of the dense network is called what it is.
    fixture.zagros(["inspect", &fixture.run_folder().display().to_string()]).expect(0).prints(&["(dense)"]);
}

/// The test of the rows that are trained on is in `dense-worker/tests/one_process/rejoin.rs`.
#[test]
fn a_killed_asynchronous_worker_is_started_again_and_the_run_ends_well() {
    let fixture = Fixture::new(20_000);
    // The other one trains on meanwhile, and must not be done before the killed one is back.
    let sets = ["--set", "train.mode=async", "--set", "train.epochs=80", "--set", "checkpoint.every_steps=100"];
    let mut run = fixture.start_to_checkpoint(1, TWO.into_iter().chain(sets));
    signal_process(role_pid(&fixture, "dense-worker-1"), Signal::KILL);
    run.wait_for_line("dense worker 1 was killed by signal 9; starting it again (2 restarts left");
    run.wait_for_line("training continues after step");
    run.finish().expect(0);
    let summary = fixture.summary();
    let (outcome, epochs) = (&summary["outcome"], summary["epochs"].as_array().map(Vec::len));
    assert_eq!((outcome, epochs), (&"finished".into(), Some(80)), "{summary}");
    assert!(summary["evaluation"]["auc"].as_f64().is_some_and(|auc| auc > 0.6), "{}", summary["evaluation"]);
}

/// Invariant RK-4. No epoch ends while worker 1 stands still, so training is not over when worker 2 is asked to end.
#[test]
fn an_asynchronous_worker_that_is_asked_to_end_leaves_and_every_sample_counts_once() {
    let fixture = Fixture::new(20_000);
    let sets = ["train.mode=async", "train.epochs=15", "cluster.min_workers=2", "cluster.lease_seconds=60"];
    let mut run = fixture.start_until("epoch 1/", with_sets(&["up", "job.toml", "--workers", "3"], &sets));
    signal_process(role_pid(&fixture, "dense-worker-1"), Signal::STOP);
    signal_process(role_pid(&fixture, "dense-worker-2"), Signal::TERM);
    run.wait_for_line("asked to end, and the run goes on without this worker");
    signal_process(role_pid(&fixture, "dense-worker-1"), Signal::CONT);
    run.finish().expect(0).says(&["dense worker 2 left: the run goes on without it", "with dense workers 0, 1"]);
    let summary = fixture.summary();
    assert_eq!((&summary["outcome"], &summary["samples"]), (&"finished".into(), &300_000.into()));
    assert_eq!(summary["epochs"].as_array().map(Vec::len), Some(15));
}

/// Epoch that the newest complete checkpoint of the newest run is in.
fn checkpointed_epoch(fixture: &Fixture) -> u64 {
    let newest = checkpoints(&fixture.run_folder()).pop().expect("one is complete");
    read_json(&newest.join("training.json"))["epoch"].as_u64().expect("an epoch")
}

/// Up to the checkpoint each sample was trained on once in each epoch, and after it so is what was left.
#[test]
fn a_killed_run_of_asynchronous_workers_goes_on_with_another_number_of_them() {
    let fixture = Fixture::new(4_000);
    let up = |workers: &'static str, epochs: String, more: &[&str]| {
        let epochs = format!("train.epochs={epochs}");
        let mode = ["--restarts", "0", "--set", "train.mode=async", "--set", &epochs];
        let run = ["up", "job.toml", "--servers", "2", "--workers", workers].into_iter().chain(mode);
        fixture.start(run.chain(more.iter().copied()))
    };
    up("2", "1".to_owned(), &[]).finish().expect(0);
    let samples = fixture.summary()["samples"].as_u64().expect("samples");
    let mut first = up("2", "10000".to_owned(), &["--set", "checkpoint.every_seconds=0.5"]);
    first.wait_for_line("checkpoint after step");
    signal_process(role_pid(&fixture, "dense-worker-1"), Signal::KILL);
    first.finish().expect(4).says(&["dense worker 1"]);
    let epochs = checkpointed_epoch(&fixture) + 2;
    let second = up("3", epochs.to_string(), &[]).finish();
    second.expect(0).says(&["cluster.workers: 2 → 3", "going on after step"]);
    let summary = fixture.summary();
    assert_eq!((&summary["outcome"], summary["samples"].as_u64()), (&"finished".into(), Some(samples * epochs)));
}

#[test]
fn a_server_that_stands_still_is_named_and_training_goes_on_after_it() {
    let fixture = Fixture::new(4_000);
    let mut run =
        fixture.start(["up", "job.toml", "--servers", "2", "--set", "train.epochs=100", "--set", "train.staleness=2"]);
    run.wait_for_line("step ");
    let server = role_pid(&fixture, "embedding-server-1");
    signal_process(server, Signal::STOP);
    let outcome = run.wait_for_line("is slow");
    assert_contains(&outcome, &["embedding server 1 (127.0.0.1:", "of 3 batches are under way"]);
    signal_process(server, Signal::CONT);
    run.wait_for_line("embedding server 1 (127.0.0.1:");
    run.finish().expect(0);
    let summary = fixture.summary();
    assert_eq!((&summary["outcome"], &summary["staleness"]["max"]), (&"finished".into(), &2.into()));
}

/// Rows that could expire are looked up once all pushes of the step before are acknowledged. In so many steps none does.
const SEQUENTIAL: &str = "embedding.eviction.ttl={steps=4000000000}";
const WITH_PUSH: &str = "embedding.eviction={}";

/// Losses of all steps, the scores and the numbers of rows.
type Learned = (Vec<f64>, Value, Value);

fn sync_arguments<'a>(workers: &'a str, servers: &'a str, set: &'a str) -> impl Iterator<Item = &'a str> {
    let sets = ["--set", "train.mode=sync", "--set", "train.epochs=3", "--set", set];
    ["up", "job.toml", "--workers", workers, "--servers", servers].into_iter().chain(sets)
}

fn learned_by(fixture: &Fixture) -> Learned {
    let summary = fixture.summary();
    (fixture.losses(), summary["evaluation"].clone(), summary["rows"].clone())
}

#[test]
fn lookups_that_are_sent_with_pushes_change_no_bit_of_a_sync_run() {
    let fixture = Fixture::new(6_000);
    for workers in ["1", "2"] {
        fixture.zagros(sync_arguments(workers, "1", SEQUENTIAL)).expect(0);
        let sequential = learned_by(&fixture);
        assert!(!sequential.0.is_empty());
        for servers in ["1", "3"] {
            fixture.zagros(sync_arguments(workers, servers, WITH_PUSH)).expect(0);
            assert_eq!(learned_by(&fixture), sequential, "{workers} workers, {servers} servers");
        }
    }
}
