//! What a program of an earlier day saved still loads: `fixtures/saved` has a finished run and a killed one, with keys that are no more.

use std::path::Path;
use std::process::Command;

use zagros_tests::repository;
use zagros_zip::ZipEq;

use super::fixture::Fixture;

const KILLED: &str = "runs/fixture-20261129-144959";
/// The job of both runs; the killed one has more epochs and checkpoints.
const JOB: &str = r#"
name = "fixture"
[data]
format = "delimited"
train = "rows.csv"
test = "rows.csv"
[features]
label = "click"
numeric = [{ column = "price", log = true }]
categorical = [{ column = "user" }, { column = "tags", separator = "|", pooling = "mean" }]
[embedding]
dim = 4
[model]
kind = "dcnv2"
hidden = [8]
[train]
batch_size = 50
epochs = 60
seed = 1
[checkpoint]
every_steps = 20
[output]
folder = "runs"
"#;

/// What is in a folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    let copied = Command::new("cp").arg("-r").arg(from.join(".")).arg(to).status();
    assert!(copied.expect("cp starts").success(), "{} is not copied", from.display());
}

/// The saved runs in a folder of the test's own. The killed run had its data elsewhere.
fn saved() -> Fixture {
    let fixture = Fixture::new(100);
    copy(&repository().join("tests/integration/fixtures/saved"), fixture.folder());
    copy(&fixture.path("interrupted"), &fixture.path(KILLED));
    let job = format!("{KILLED}/job.toml");
    fixture.write(&job, fixture.read(&job).replace("/data/", &format!("{}/", fixture.folder().display())));
    fixture.write("job.toml", JOB);
    fixture
}

#[test]
fn a_model_scores_its_rows_as_on_the_day_when_it_was_saved() {
    let fixture = saved();
    fixture.zagros(["inspect", "finished", "--verify"]).expect(0);
    fixture.zagros(["predict", "finished", "rows.csv", "-o", "new.csv"]).expect(0);
    let scores = |name: &str| -> Vec<f32> {
        fixture.read(name).lines().skip(1).map(|line| line.parse().expect("a score")).collect()
    };
    let (then, now) = (scores("scores.csv"), scores("new.csv"));
    assert_eq!(then.len(), 200);
    // Libtorch's sums differ by the processor.
    assert!(then.iter().zip_eq(&now).all(|(then, now)| (then - now).abs() < 1e-6), "{then:?} {now:?}");
}

#[test]
fn a_run_starts_from_a_model_that_was_saved_before() {
    let fixture = saved();
    fixture.zagros(["train", "job.toml", "--fresh", "--from", "finished", "--set", "train.epochs=1"]).expect(0);
}

#[test]
fn a_run_that_was_killed_before_goes_on_from_its_checkpoint() {
    let fixture = saved();
    fixture.zagros(["inspect", &format!("{KILLED}/checkpoints/resume-000000000020"), "--verify"]).expect(0);
    fixture.zagros(["train", "job.toml"]).expect(0).says(&["going on after step 20"]);
}
