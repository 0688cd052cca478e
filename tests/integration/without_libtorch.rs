//! The program without libtorch (docs/models.md): what it trains, what it refuses, and what it has in common with the other one.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use zagros_tests::{FinishedCommand, RunningCommand, TestProgram, signal_process};

use super::faults::pid;
use super::fixture::{Fixture, with_sets};
use super::resume::losses;
use super::workers::{address, start_role};

/// A job of the fixture in the program without libtorch; `None`, with a word, where it is not built.
fn start_plain<'a>(fixture: &Fixture, arguments: impl IntoIterator<Item = &'a str>) -> Option<RunningCommand> {
    if !TestProgram::Plain.path().is_file() {
        let path = TestProgram::Plain.path().display();
        assert!(std::env::var_os("CI").is_none(), "no {path}: run scripts/without_libtorch.sh");
        println!("skipped: no {path}; scripts/without_libtorch.sh builds it");
        return None;
    }
    Some(fixture.start_program(TestProgram::Plain, arguments))
}

fn plain<'a>(fixture: &Fixture, arguments: impl IntoIterator<Item = &'a str>) -> Option<FinishedCommand> {
    start_plain(fixture, arguments).map(RunningCommand::finish)
}

fn libraries(program: &Path) -> String {
    let printed = Command::new("ldd").arg(program).output().expect("ldd starts");
    String::from_utf8_lossy(&printed.stdout).into_owned()
}

#[test]
fn it_is_linked_to_libc_alone() {
    let torch = |text: &str| text.contains("libtorch") || text.contains("libc10");
    if TestProgram::Plain.path().is_file() {
        let own = libraries(TestProgram::Plain.path());
        assert!(!torch(&own) && !own.contains("libstdc++") && !own.contains("rocksdb"), "{own}");
    }
    assert!(torch(&libraries(TestProgram::Zagros.path())), "the check sees libtorch where it is");
}

#[test]
fn a_model_has_the_same_scores_in_both_programs() {
    let fixture = Fixture::new(4_000);
    // In mode `sync` nothing but the products differs.
    let job = ["train", "job.toml", "--set", "train.mode=sync"];
    let Some(trained) = plain(&fixture, job) else { return };
    trained.expect(0);
    let (run, score) = (fixture.run_name(), |output| ["test.txt", "-o", output, "--logits"]);
    assert_eq!(fixture.read_run_json("model/manifest.json")["products"], "gemm");
    plain(&fixture, ["predict", &run].into_iter().chain(score("plain.csv"))).expect("it is built").expect(0);
    fixture.zagros(["predict", &run].into_iter().chain(score("torch.csv"))).expect(0);
    assert_eq!(fixture.read("plain.csv"), fixture.read("torch.csv"));
    let eval = ["eval", &run, "--json"];
    let of_plain = plain(&fixture, eval).expect("it is built").expect(0).json();
    assert_eq!(of_plain, fixture.zagros(eval).expect(0).json());
    // The same job trained by the other program is as good, whichever library makes its products.
    fixture.zagros(job).expect(0);
    let (found, expected) = (of_plain["auc"].as_f64().unwrap(), fixture.evaluate()["auc"].as_f64().unwrap());
    assert!((found - expected).abs() < 1e-3, "{found}, with libtorch {expected}");
}

#[test]
fn what_needs_libtorch_is_refused_by_its_key() {
    let fixture = Fixture::new(10);
    for (set, key) in [
        ("model={ kind = 'wukong' }", "model.kind = \"wukong\" needs libtorch"),
        ("model={ kind = 'finalmlp', gate = {} }", "model.gate needs libtorch"),
        ("mlp.norm=batch", "mlp.norm needs libtorch"),
        ("mlp.activation=gelu", "mlp.activation needs libtorch"),
        ("features.numeric_embedding={}", "features.numeric_embedding needs libtorch"),
        ("train.precision=f16", "train.precision = \"f16\" needs libtorch"),
        ("train.device=cuda", "train.device = \"cuda\" needs libtorch"),
        ("cluster={ workers = 2, collective = 'nccl' }", "cluster.collective = \"nccl\" needs libtorch"),
    ] {
        for command in [&["train", "job.toml", "--set", set][..], &["train", "job.toml", "--dry-run", "--set", set]] {
            let Some(refused) = plain(&fixture, command.iter().copied()) else { return };
            refused.expect(2).says(&[key, "make build", "docs/models.md"]);
        }
    }
    // bf16 is rounded in software.
    plain(&fixture, ["train", "job.toml", "--set", "train.precision=bf16"]).expect("it is built").expect(0);
}

#[test]
fn several_workers_without_libtorch_learn_what_one_learns_in_every_mode() {
    let fixture = Fixture::new(20_000);
    let up = |workers: &'static str, sets: &[&'static str]| {
        let command = ["up", "job.toml", "--servers", "2", "--workers", workers, "--set", "train.epochs=5"];
        plain(&fixture, with_sets(&command, sets)).map(|run| run.expect(0))
    };
    if up("1", &[]).is_none() {
        return;
    }
    let (alone, samples) = (fixture.auc(), fixture.summary()["samples"].clone());
    for mode in ["train.mode=hybrid", "train.mode=async", "train.mode=sync"] {
        // The global batch stays what it was.
        up("2", &[mode, "train.batch_size=128"]);
        let joint = fixture.auc();
        println!("{mode}: test AUC {alone:.4} with one worker, {joint:.4} with two");
        assert!((alone - joint).abs() < 0.03, "{mode}: AUC {alone} with one worker, {joint} with two");
        assert_eq!(fixture.summary()["samples"], samples, "{mode}");
    }
    let once = losses(&fixture);
    up("2", &["train.mode=sync", "train.batch_size=128"]);
    assert!(!once.0.is_empty() && losses(&fixture) == once, "two runs of mode sync differ");
}

/// Invariant RK-3.
#[test]
fn a_killed_worker_without_libtorch_is_replaced_and_the_run_goes_on() {
    let fixture = Fixture::new(20_000);
    let sets = ["train.epochs=20", "checkpoint.every_steps=50"];
    let Some(mut run) = start_plain(&fixture, with_sets(&["up", "job.toml", "--workers", "3"], &sets)) else { return };
    for lost in [1, 0] {
        run.wait_for_line("checkpoint after step");
        signal_process(pid(&fixture, &format!("dense-worker-{lost}")), Signal::KILL);
        run.wait_for_line(&format!("dense worker {lost} was killed by signal 9; starting it again"));
        run.wait_for_line("training continues after step");
    }
    run.finish().expect(0);
    assert_eq!(fixture.summary()["outcome"], "finished");
    let auc = fixture.auc();
    assert!(auc > 0.6, "AUC {auc}");
}

#[test]
fn a_worker_with_libtorch_does_not_join_one_without() {
    let fixture = Fixture::new(100);
    let coordinator = ["cluster.workers=2", "cluster.coordinator=127.0.0.1:0"];
    let mut coordinator = start_role(&fixture, TestProgram::Server, &["coordinator"], &coordinator);
    coordinator.wait_for_line("announced");
    let coordinator_address = format!("cluster.coordinator={}", address(&fixture, "coordinator", "address"));
    let sets = ["cluster.workers=2", coordinator_address.as_str()];
    let command = ["dense-worker", "--config", "job.toml", "--index", "0"];
    let Some(_first) = start_plain(&fixture, with_sets(&command, &sets)) else { return };
    coordinator.wait_for_line("dense worker 0 joined");
    let second = start_role(&fixture, TestProgram::Zagros, &["dense-worker", "--index", "1"], &sets).finish();
    second.expect(4).says(&["dense worker 1 exchanges values with other workers by \"c10d\"", "the same program"]);
}
