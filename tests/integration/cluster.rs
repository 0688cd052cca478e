//! `zagros up`: the same run as separate processes.

use serde_json::Value;

use crate::fixture::{Fixture, http_get};
use zagros_tests::zagros_in;
use zagros_zip::ZipEq;

#[test]
fn three_server_processes_give_the_loss_curve_of_the_embedded_run() {
    let fixture = Fixture::new(8_000);
    fixture.zagros(["train", "job.toml", "--set", "train.mode=sync"]).expect(0);
    let embedded = fixture.losses();
    fixture.zagros(["up", "job.toml", "--servers", "3", "--set", "train.mode=sync"]).expect(0);
    let cluster = fixture.losses();
    assert_eq!(embedded.len(), 32);
    assert_eq!(embedded.len(), cluster.len());
    for (step, (one, other)) in embedded.iter().zip_eq(&cluster).enumerate() {
        assert!((one - other).abs() <= 1e-6, "step {step}: {one} embedded, {other} as a cluster");
    }
}

#[test]
fn lines_carry_the_role_and_the_model_is_saved_by_every_server() {
    let fixture = Fixture::new(4_000);
    let run = fixture.zagros(["up", "job.toml", "--servers", "2"]).expect(0);
    for text in ["coordinator", "embedding server 0", "embedding server 1", "dense worker 0"] {
        assert!(run.stderr.contains(text), "no {text:?} in:\n{}", run.stderr);
    }
    let folder = fixture.run_folder();
    assert!(!folder.join("row-log").exists() && !folder.join("cold-rows").exists(), "servers delete their logs");
    assert_eq!(std::fs::read_dir(fixture.path("runs")).expect("runs").count(), 1, "there are only folders of runs");
    let manifest = std::fs::read(folder.join("model/manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    assert_eq!(manifest["row_files"].as_array().map(Vec::len), Some(2), "{manifest}");
    let folder = folder.display().to_string();
    let scored = fixture.zagros(["eval", &folder, "--json"]).expect(0);
    let scored: Value = serde_json::from_str(&scored.stdout).expect("JSON");
    let summary = fixture.summary();
    assert_eq!(scored["auc"], summary["evaluation"]["auc"]);
    let cost = |figure: &str| summary["cost"][figure].as_f64().unwrap_or_default();
    let (own, all) = (cost("cpu_us_per_sample"), cost("cpu_us_per_sample_of_all"));
    assert!(0.0 < own && own < all, "{summary}");
    assert!(run.stderr.contains("µs of CPU a sample in all processes"), "{}", run.stderr);
}

#[test]
fn status_reports_on_a_running_job() {
    let fixture = Fixture::new(4_000);
    // Enough epochs that the run is still going when it is asked.
    let mut run = fixture.start(["up", "job.toml", "--servers", "2", "--set", "train.epochs=1000"]);
    run.wait_for_line("step ");
    assert!(fixture.run_folder().join("row-log/server-1/lineage.json").exists(), "a log lies in the folder of its run");
    let roles = fixture.run_folder().join("roles/coordinator.json");
    let coordinator: Value = serde_json::from_slice(&std::fs::read(roles).expect("announced")).expect("JSON");
    let address = coordinator["address"].as_str().expect("an address");
    let status = zagros_in(fixture.folder(), ["status", "--coordinator", address, "--json"]).expect(0);
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    assert_eq!(status["state"], "training");
    assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{status}");
    let shown = zagros_in(fixture.folder(), ["status", "--coordinator", address]).expect(0);
    assert!(shown.stdout.contains("embedding server 1"), "{}", shown.stdout);
    run.signal(rustix::process::Signal::INT);
    assert_eq!(run.finish().code(), Some(130));
}

#[test]
fn every_role_serves_health_and_metrics() {
    let fixture = Fixture::new(4_000);
    let mut run = fixture.start(["up", "job.toml", "--set", "train.epochs=1000"]);
    run.wait_for_line("step ");
    for (role, metric) in [
        ("coordinator", "zagros_coordinator_"),
        ("embedding-server-0", "zagros_embedding_"),
        ("dense-worker-0", "zagros_worker_"),
    ] {
        let path = fixture.run_folder().join(format!("roles/{role}.json"));
        let outcome: Value = serde_json::from_slice(&std::fs::read(path).expect("announced")).expect("JSON");
        let address = outcome["admin"].as_str().expect("an address");
        assert!(http_get(address, "/healthz").starts_with("HTTP/1.1 200"), "{role}");
        assert!(http_get(address, "/readyz").starts_with("HTTP/1.1 200"), "{role}");
        assert!(http_get(address, "/metrics").contains(metric), "{role}");
    }
    run.signal(rustix::process::Signal::TERM);
    assert_eq!(run.finish().code(), Some(143));
}
