//! `zagros simulate`: runs of a job and of described workloads, tables, failures, and what is refused.

use serde_json::Value;

use crate::fixture::Fixture;

const MACHINES: &str = "[[group]]\nname = 'compute'\ncount = 4\ncores = 8\nmemory = '32GiB'\nworkers = 1\n\
                        [[group]]\nname = 'rows'\ncount = 2\ncores = 16\nmemory = '64GiB'\nservers = 1\n";
const WORKLOAD: &str = "[workload]\nparameters = 1e9\nhidden = [256]\nbatch_size = 512\n\
                        [simulation]\nsteps = 40\nworker_restart_seconds = 5\nserver_restart_seconds = 5\nlease_seconds = 2\n";

fn simulated(fixture: &Fixture, arguments: &[&str]) -> Value {
    let all = ["simulate", "--json"].iter().chain(arguments);
    serde_json::from_str(&fixture.zagros(all.copied()).expect(0).stdout).expect("JSON")
}

fn rate(run: &Value) -> f64 {
    run["samples_per_second"].as_f64().unwrap_or_else(|| panic!("no samples_per_second in {run}"))
}

#[test]
fn a_job_is_simulated_here_and_on_described_machines() {
    let fixture = Fixture::new(4_000).with_environment(vec![("XDG_CACHE_HOME".to_owned(), "cache".to_owned())]);
    let here = simulated(&fixture, &["job.toml", "--steps", "20"]);
    assert_eq!((&here["run"]["workers"], &here["run"]["servers"]), (&Value::from(1), &Value::from(0)));
    let processes = simulated(&fixture, &["job.toml", "--steps", "20", "--workers", "2", "--servers", "1"]);
    assert_eq!((&processes["run"]["workers"], &processes["run"]["servers"]), (&Value::from(2), &Value::from(1)));
    fixture.write("machines.toml", MACHINES);
    let cluster = ["job.toml", "--steps", "20", "--machines", "machines.toml", "--rows", "1000000"];
    let run = simulated(&fixture, &cluster);
    assert_eq!(run["run"]["workers"], Value::from(4));
    assert!(run["run"]["server_bytes"].as_f64().is_some_and(|bytes| bytes > 0.0), "{run}");
    // The same seed is the same run.
    assert_eq!(run, simulated(&fixture, &cluster));
    let changed = simulated(&fixture, &[&cluster[..], &["--set", "train.mode='sync'"]].concat());
    assert_eq!(changed["run"]["mode"], Value::from("sync"));
    assert!(rate(&changed["run"]) < rate(&run["run"]), "{changed}");
}

#[test]
fn a_described_workload_needs_no_job() {
    let fixture = Fixture::new(10);
    fixture.write("cluster.toml", format!("{MACHINES}{WORKLOAD}"));
    let shown = fixture.zagros(["simulate", "--machines", "cluster.toml"]).expect(0).stdout;
    for text in [
        "cluster  simulated",
        "samples/s with 4 dense worker(s) and 2 embedding server(s)",
        "bottleneck",
        "busy",
        "lookups by staleness",
    ] {
        assert!(shown.contains(text), "no {text:?} in:\n{shown}");
    }
    let table = simulated(&fixture, &["--machines", "cluster.toml", "--what-if", "staleness=0,4"]);
    let rows = table["tables"][0]["rows"].as_array().expect("rows");
    assert!(rows.len() == 2 && rate(&rows[0]["run"]) < rate(&rows[1]["run"]), "{table}");
    let failures = fixture.zagros(["simulate", "--machines", "cluster.toml", "--failures"]).expect(0).stdout;
    assert!(failures.contains("the loss of a worker") && failures.contains("one failure in 10,000 h"), "{failures}");
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let fixture = Fixture::new(10);
    fixture.write("machines.toml", MACHINES);
    fixture.write("cluster.toml", format!("{MACHINES}{WORKLOAD}"));
    fixture.write("misspelt.toml", format!("{MACHINES}{WORKLOAD}").replace("hidden", "hiden"));
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
