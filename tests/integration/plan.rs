//! `zagros plan` and `zagros simulate`: forecasts of a real job file, runs of described workloads, and what is refused.

use serde_json::Value;
use zagros_tests::assert_contains;

use super::fixture::Fixture;

const MACHINES: &str = "currency = 'USD'\n[[group]]\nname = 'compute'\ncount = 4\ncores = 8\nmemory = '32GiB'\nworkers = 1\nprice_per_hour = 2\n\
                        [[group]]\nname = 'rows'\ncores = 16\nmemory = '64GiB'\nservers = 1\nprice_per_hour = 4\n";

fn forecast(fixture: &Fixture, arguments: &[&str]) -> Value {
    let all = ["plan", "job.toml", "--json"].iter().chain(arguments);
    fixture.zagros(all.copied()).expect(0).json()
}

fn figure(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or_else(|| panic!("no {name} in {of}"))
}

fn rate(simulated: &Value) -> f64 {
    figure(&simulated["run"], "samples_per_second")
}

#[test]
fn a_job_has_a_forecast_here_and_on_described_machines() {
    let fixture = Fixture::new(4_000).with_environment(vec![("XDG_CACHE_HOME".to_owned(), "cache".to_owned())]);
    let here = forecast(&fixture, &[]);
    assert_eq!((figure(&here, "samples"), figure(&here, "workers"), figure(&here, "servers")), (4_000.0, 1.0, 0.0));
    assert_eq!(here["is_data_measured"], Value::from(true));
    assert!(here["calibration"].as_str().is_some_and(|source| source.starts_with("not calibrated: run")), "{here}");
    // 26 ids a sample, of which a batch has fewer distinct ones.
    let rows = figure(&here, "distinct_rows_per_sample");
    assert!((1.0..26.0).contains(&rows), "{here}");
    let processes = forecast(&fixture, &["--workers", "2", "--servers", "1"]);
    assert!(figure(&processes, "cpu_us_per_sample") > figure(&here, "cpu_us_per_sample"), "{processes}");
    fixture.write("machines.toml", MACHINES);
    let cluster = forecast(&fixture, &["--machines", "machines.toml", "--rows", "1000000"]);
    assert_eq!((figure(&cluster, "workers"), figure(&cluster, "servers")), (4.0, 1.0));
    assert!((figure(&cluster, "money") / figure(&cluster, "hours") - 12.0).abs() < 1e-6, "{cluster}");
    assert!(figure(&cluster["memory"], "server_rows") > 0.0, "{cluster}");
    let large =
        fixture.zagros(["plan", "job.toml", "--machines", "machines.toml", "--rows", "10000000000"]).expect(0).stderr;
    assert!(large.contains("each machine of `rows` has 64.00 GiB of memory"), "{large}");
    let shown = fixture.zagros(["plan", "job.toml", "--machines", "machines.toml"]).expect(0).stdout;
    assert_contains(&shown, &["bottleneck", "samples/s with 4 dense worker(s) and 1 embedding server(s)", "USD"]);
    assert_contains(&shown, &["limits", "memory"]);
    let dry_run = fixture.zagros(["train", "job.toml", "--dry-run"]).expect(0).stdout;
    assert!(dry_run.contains("forecast") && dry_run.contains("µs of CPU a sample; bottleneck:"), "{dry_run}");
}

/// A network whose layers are larger than its values: 6 × 512².
const DEEP: &str = "model={kind='ffnn', hidden=[512, 512, 512, 512, 512, 512, 512]}";

#[test]
fn streamed_weights_are_planned_as_such() {
    let fixture = Fixture::new(4_000).with_environment(vec![("XDG_CACHE_HOME".to_owned(), "cache".to_owned())]);
    let plan_with = |weights: &str| {
        let weights = format!("train.weights={weights}");
        forecast(&fixture, &["--workers", "1", "--servers", "2", "--set", DEEP, "--set", &weights])
    };
    let (streamed, resident) = (plan_with("streamed"), plan_with("resident"));
    let memory = |of: &Value, name: &str| figure(&of["memory"], name);
    assert_eq!((&streamed["is_streamed"], &resident["is_streamed"]), (&Value::from(true), &Value::from(false)));
    assert!(memory(&streamed, "worker") < memory(&resident, "worker"), "{streamed} {resident}");
    assert_eq!(memory(&streamed, "worker"), memory(&resident, "streamed_worker"));
    // Half of weights and both moments, and messages.
    assert!(memory(&streamed, "server_dense") > 6.0 * figure(&streamed, "dense_parameters"), "{streamed}");
    assert_eq!(memory(&resident, "server_dense"), 0.0);
    let a_step = memory(&streamed, "streamed_bytes_per_step") / figure(&streamed, "dense_parameters");
    assert!((11.9..12.0).contains(&a_step), "{a_step} bytes a weight");
    let a_sample = figure(&streamed, "network_bytes_per_sample") - figure(&resident, "network_bytes_per_sample");
    assert!((a_sample * 256.0 / memory(&streamed, "streamed_bytes_per_step") - 1.0).abs() < 1e-6, "{streamed}");
    let shown = ["plan", "job.toml", "--set", DEEP, "--set", "train.weights=streamed"];
    let shown = fixture.zagros(shown).expect(0).stdout;
    assert_contains(&shown, &["two layers and their gradients", "streamed weights", "a step of a worker"]);
}

#[test]
fn a_run_says_beforehand_whether_streamed_weights_hide_if_the_machine_is_calibrated() {
    let fixture = Fixture::new(1_000).with_environment(vec![("XDG_CACHE_HOME".to_owned(), "cache".to_owned())]);
    let train = ["train", "job.toml", "--fresh", "--max-steps", "1", "--set", DEEP, "--set", "train.weights=streamed"];
    let said = fixture.zagros(train).expect(0).stderr;
    assert!(said.contains("FLOP a step of a worker; `zagros calibrate` finds out"), "{said}");
    assert!(!said.contains("the worker waits") && !said.contains("while the worker computes"), "{said}");
    let calibration =
        zagros_planner::Calibration { source: "a test".to_owned(), ..zagros_planner::Calibration::default() };
    std::fs::create_dir_all(fixture.path("cache/zagros")).expect("a folder");
    fixture.write("cache/zagros/calibration.toml", calibration.to_toml());
    let said = fixture.zagros(train).expect(0).stderr;
    assert!(said.contains("by the calibration of this machine"), "{said}");
    let resident = ["train", "job.toml", "--fresh", "--max-steps", "1", "--set", DEEP];
    assert!(!fixture.zagros(resident).expect(0).stderr.contains("streamed weights"));
}

#[test]
fn descriptions_that_cannot_be_are_refused() {
    let fixture = Fixture::new(1_000);
    fixture.write("machines.toml", MACHINES.replace("servers = 1", ""));
    let refused = |more: [&str; 2], words: &str| {
        fixture.zagros([&["plan", "job.toml"], &more[..]].concat()).expect(2).says(&[words]);
    };
    refused(["--machines", "machines.toml"], "no group of machines has servers");
    fixture.write("calibration.toml", "source = 'mine'");
    refused(["--calibration", "calibration.toml"], "the calibration cannot be read");
    refused(["--machines", "absent.toml"], "cannot read absent.toml");
    let unwritable = fixture.zagros(["calibrate", "--output", "job.toml/calibration.toml"]).expect(6);
    unwritable.says(&["cannot write job.toml/calibration.toml"]);
}

const CLUSTER: &str = "[[group]]\nname = 'compute'\ncount = 4\ncores = 8\nmemory = '32GiB'\nworkers = 1\n\
                        [[group]]\nname = 'rows'\ncount = 2\ncores = 16\nmemory = '64GiB'\nservers = 1\n";
const WORKLOAD: &str = "[workload]\nparameters = 1e9\nhidden = [256]\nbatch_size = 512\n\
                        [simulation]\nsteps = 40\nworker_restart_seconds = 5\nserver_restart_seconds = 5\nlease_seconds = 2\n";

fn simulated(fixture: &Fixture, arguments: &[&str]) -> Value {
    let all = ["simulate", "--json"].iter().chain(arguments);
    fixture.zagros(all.copied()).expect(0).json()
}

#[test]
fn a_job_is_simulated_here_and_on_described_machines() {
    let fixture = Fixture::new(4_000).with_environment(vec![("XDG_CACHE_HOME".to_owned(), "cache".to_owned())]);
    let here = simulated(&fixture, &["job.toml", "--steps", "20"]);
    assert_eq!((&here["run"]["workers"], &here["run"]["servers"]), (&Value::from(1), &Value::from(0)));
    let processes = simulated(&fixture, &["job.toml", "--steps", "20", "--workers", "2", "--servers", "1"]);
    assert_eq!((&processes["run"]["workers"], &processes["run"]["servers"]), (&Value::from(2), &Value::from(1)));
    fixture.write("machines.toml", CLUSTER);
    let cluster = ["job.toml", "--steps", "20", "--machines", "machines.toml", "--rows", "1000000"];
    let run = simulated(&fixture, &cluster);
    assert_eq!(run["run"]["workers"], Value::from(4));
    assert!(run["run"]["server_bytes"].as_f64().is_some_and(|bytes| bytes > 0.0), "{run}");
    // The same seed is the same run.
    assert_eq!(run, simulated(&fixture, &cluster));
    let changed = simulated(&fixture, &[&cluster[..], &["--set", "train.mode='sync'"]].concat());
    assert_eq!(changed["run"]["mode"], Value::from("sync"));
    assert!(rate(&changed) < rate(&run), "{changed}");
}

#[test]
fn a_described_workload_needs_no_job() {
    let fixture = Fixture::new(10);
    fixture.write("cluster.toml", format!("{CLUSTER}{WORKLOAD}"));
    let shown = fixture.zagros(["simulate", "--machines", "cluster.toml"]).expect(0).stdout;
    assert_contains(&shown, &["cluster  simulated", "samples/s with 4 dense worker(s) and 2 embedding server(s)"]);
    assert_contains(&shown, &["bottleneck", "busy", "lookups by staleness"]);
    let table = simulated(&fixture, &["--machines", "cluster.toml", "--what-if", "staleness=0,4"]);
    let rows = table["tables"][0]["rows"].as_array().expect("rows");
    assert!(rows.len() == 2 && rate(&rows[0]) < rate(&rows[1]), "{table}");
    let ended = fixture.zagros(["simulate", "--machines", "cluster.toml", "--failures"]).expect(0);
    ended.prints(&["the loss of a worker", "one failure in 10,000 h"]);
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let fixture = Fixture::new(10);
    fixture.write("machines.toml", CLUSTER);
    fixture.write("cluster.toml", format!("{CLUSTER}{WORKLOAD}"));
    fixture.write("misspelt.toml", format!("{CLUSTER}{WORKLOAD}").replace("hidden", "hiden"));
    let refused = |arguments: &[&str]| {
        let all = ["simulate"].iter().chain(arguments);
        fixture.zagros(all.copied()).expect(2).stderr
    };
    assert!(refused(&["--machines", "misspelt.toml"]).contains("did you mean `hidden`?"));
    assert!(refused(&["--machines", "machines.toml"]).contains("nothing says what is trained"));
    assert!(refused(&["job.toml", "--machines", "cluster.toml"]).contains("both a job file and a [workload]"));
    assert!(refused(&["--machines", "absent.toml"]).contains("cannot read absent.toml"));
    assert!(refused(&["--machines", "cluster.toml", "--what-if", "stalenes=1"]).contains("did you mean `staleness`?"));
    assert!(refused(&["--machines", "cluster.toml", "--steps", "1"]).contains("[simulation] has steps = 1"));
    assert!(refused(&[]).contains("JOB"));
}
