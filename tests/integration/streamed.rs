//! Streamed weights in processes of their own: killed servers, a worker that is killed, and what its memory holds.

use std::sync::OnceLock;

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::{RunningCommand, signal_process};
use zagros_zip::ZipEq;

use super::faults::pid;
use super::fixture::{Fixture, with_sets};

const ROWS: u32 = 20_000;
const EPOCHS: u64 = 6;
/// A layer of several tiles on each server.
const SETS: [&str; 6] = [
    "train.mode=sync",
    "train.weights=streamed",
    "train.epochs=6",
    "cluster.durability=process",
    "model={kind='ffnn', hidden=[512, 256]}",
    "checkpoint.every_steps=20",
];

fn up_with(fixture: &Fixture, (servers, workers): (&str, &str), sets: &[&str]) -> RunningCommand {
    fixture.start(with_sets(&["up", "job.toml", "--servers", servers, "--workers", workers], sets))
}

/// Losses and evaluation of an undisturbed run with [`SETS`] and two servers, by its number of workers.
fn undisturbed(workers: usize) -> &'static (Vec<f64>, Value) {
    static UNDISTURBED: [OnceLock<(Vec<f64>, Value)>; 2] = [OnceLock::new(), OnceLock::new()];
    UNDISTURBED[workers - 1].get_or_init(|| {
        let fixture = Fixture::new(ROWS);
        up_with(&fixture, ("2", &workers.to_string()), &SETS).finish().expect(0);
        (fixture.losses(), fixture.summary()["evaluation"].clone())
    })
}

/// Invariants DP-3 and MB-6: a layer's gradient is applied once, and the tiles come back with the log.
#[test]
fn servers_that_are_killed_change_no_bit_of_streamed_weights() {
    let fixture = Fixture::new(ROWS);
    let (undisturbed, _) = undisturbed(1);
    let mut run = up_with(&fixture, ("2", "1"), &SETS);
    run.wait_for_line("epoch 0 is complete");
    for kill in 1..=4 {
        let server = kill % 2;
        signal_process(pid(&fixture, &format!("embedding-server-{server}")), Signal::KILL);
        run.wait_for_line(&format!("embedding server {server} is back with its rows"));
        run.wait_for_line(&format!("epoch {kill} is complete"));
    }
    run.finish().expect(0);
    assert_eq!(fixture.summary()["samples"].as_u64(), Some(EPOCHS * u64::from(ROWS)));
    assert_eq!(fixture.losses(), *undisturbed);
    let sets: Vec<&str> = SETS.into_iter().filter(|set| !set.contains("streamed")).collect();
    up_with(&fixture, ("2", "1"), &sets).finish().expect(0);
    assert_eq!(fixture.losses(), *undisturbed);
}

/// The only worker of a run ends it. The same command goes on from the newest checkpoint, whose tiles any number of servers takes.
#[test]
fn a_run_whose_worker_was_killed_goes_on_from_the_tiles_of_a_checkpoint() {
    let fixture = Fixture::new(ROWS);
    let (whole, _) = undisturbed(1);
    let mut run = up_with(&fixture, ("3", "1"), &SETS);
    run.wait_for_line("epoch 2 is complete");
    signal_process(pid(&fixture, "dense-worker-0"), Signal::KILL);
    run.finish().expect(4);
    up_with(&fixture, ("1", "1"), &SETS).finish().expect(0);
    assert_eq!(fixture.losses().last(), whole.last());
    let model = fixture.run_folder().join("model").display().to_string();
    fixture.zagros(["eval", &model, "--set", "cluster.servers=3", "--json"]).expect(0).prints(&["auc"]);
    fixture.zagros(["inspect", &model]).expect(0).prints(&["(dense) layers.0.weight"]);
}

/// Losses agree but for the order of sums. A checkpoint of slices goes on as one of whole layers.
#[test]
fn layers_in_slices_learn_the_same_and_go_on_whole() {
    let fixture = Fixture::new(ROWS);
    let (whole, _) = undisturbed(2);
    let sets: Vec<&str> = SETS.into_iter().chain(["train.memory=4MiB"]).collect();
    let mut run = up_with(&fixture, ("3", "2"), &sets);
    run.wait_for_line("epoch 2 is complete");
    run.interrupt();
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-4, "{found}, not {expected}");
    let sliced = fixture.losses();
    assert!(sliced.len() >= whole.len() / 2 - 1, "{} steps of {}", sliced.len(), whole.len());
    // A run that is stopped while it reads may cut its last batch short.
    let made = sliced.len() - 1;
    sliced[..made].iter().zip_eq(&whole[..made]).for_each(|(found, expected)| close(*found, *expected));
    up_with(&fixture, ("1", "2"), &SETS).finish().expect(0);
    close(*fixture.losses().last().expect("a loss"), *whole.last().expect("a loss"));
}

/// Two workers share the layers. In mode `sync` a killed worker sends all back to the checkpoint, whose tiles give the same losses.
#[test]
fn synchronous_workers_that_share_layers_write_the_same_losses_although_one_is_killed() {
    let fixture = Fixture::new(ROWS);
    let (whole, evaluation) = undisturbed(2);
    let sets: Vec<&str> = SETS.into_iter().filter(|set| !set.contains("streamed")).collect();
    up_with(&fixture, ("2", "2"), &sets).finish().expect(0);
    assert_eq!(fixture.losses(), *whole, "weights that each worker has give the same");
    assert_same_without_a_worker(&fixture, &SETS, (whole, evaluation));
}

fn assert_same_without_a_worker(fixture: &Fixture, sets: &[&str], (losses, evaluation): (&[f64], &Value)) {
    let mut run = up_with(fixture, ("2", "2"), sets);
    run.wait_for_line("checkpoint after step");
    signal_process(pid(fixture, "dense-worker-1"), Signal::KILL);
    run.wait_for_line("the run goes back to its newest checkpoint");
    run.finish().expect(0);
    assert_eq!(fixture.losses(), losses);
    assert_eq!(fixture.summary()["evaluation"], *evaluation);
}

/// A network that has autograd alone: a worker that is killed, and scores of the model.
#[test]
fn workers_that_share_the_layers_of_a_wukong_write_the_losses_of_resident_weights() {
    let fixture = Fixture::new(ROWS);
    let network =
        "model={kind='wukong', layers=2, fmb=4, lcb=4, rank=4, fmb_hidden=[64], bottom=[32], top=[64], dropout=0.1}";
    let sets_with = |weights: &'static str| {
        let own = SETS
            .into_iter()
            .filter(|set| !set.starts_with("model=") && !set.contains("streamed") && !set.contains("epochs"));
        own.chain([network, weights, "train.epochs=2"]).collect::<Vec<&str>>()
    };
    let (resident, streamed) = (sets_with("train.weights=resident"), sets_with("train.weights=streamed"));
    up_with(&fixture, ("2", "2"), &resident).finish().expect(0);
    let whole = fixture.losses();
    assert!(whole.len() > 10, "{}", whole.len());
    up_with(&fixture, ("2", "2"), &streamed).finish().expect(0);
    assert_eq!(fixture.losses(), whole);
    let evaluation = fixture.summary()["evaluation"].clone();
    assert_same_without_a_worker(&fixture, &streamed, (&whole, &evaluation));
    let model = fixture.run_folder().join("model").display().to_string();
    fixture.zagros(["eval", &model, "--set", "cluster.servers=3", "--json"]).expect(0).prints(&["auc"]);
    fixture.zagros(["predict", &model, "test.txt", "-o", "scores.csv"]).expect(0);
    let scores = fixture.read("scores.csv").lines().count();
    assert!(scores > 100, "{scores} scores");
    fixture.zagros(["inspect", &model]).expect(0).prints(&["(dense) fmb_projection.0.weight"]);
}

/// Invariants RK-3 and DP-3, in mode `hybrid`.
#[test]
fn a_worker_and_a_server_are_killed_while_the_workers_share_layers() {
    let fixture = Fixture::new(ROWS);
    let sets: Vec<&str> =
        SETS.into_iter().map(|set| if set == "train.mode=sync" { "train.mode=hybrid" } else { set }).collect();
    let mut run = up_with(&fixture, ("2", "2"), &sets);
    run.wait_for_line("epoch 0 is complete");
    signal_process(pid(&fixture, "dense-worker-1"), Signal::KILL);
    run.wait_for_line("training continues after step");
    run.wait_for_line("epoch 2 is complete");
    signal_process(pid(&fixture, "embedding-server-0"), Signal::KILL);
    run.wait_for_line("embedding server 0 is back with its rows");
    run.finish().expect(0);
    let summary = fixture.summary();
    let (samples, auc) = (summary["samples"].as_u64().expect("samples"), fixture.auc());
    println!("{samples} samples of {}, AUC {auc:.4}", EPOCHS * u64::from(ROWS));
    // At most what one worker reads of an epoch is trained on twice.
    assert!((EPOCHS * u64::from(ROWS)..=(EPOCHS + 1) * u64::from(ROWS)).contains(&samples), "{samples}");
    assert!(auc > 0.65, "AUC {auc}");
}
