//! `zagros inspect`: tables, one row, checksums, export, and errors that name what is wrong.
//!
//! What a program of an earlier day saved still loads: `fixtures/saved` has a finished run and a killed one, with keys that are no more.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use zagros_tests::{FinishedCommand, repository};
use zagros_zip::ZipEq;

use super::fixture::{Fixture, damaged, read_json};

struct TrainedModel {
    fixture: Fixture,
    run: String,
}

impl TrainedModel {
    fn inspect<'a>(&'a self, arguments: impl IntoIterator<Item = &'a str>) -> FinishedCommand {
        self.fixture.zagros(["inspect", self.run.as_str()].into_iter().chain(arguments))
    }

    fn json<'a>(&'a self, arguments: impl IntoIterator<Item = &'a str>) -> Value {
        self.inspect(arguments.into_iter().chain(["--json"])).expect(0).json()
    }

    fn value(&self) -> String {
        let text = self.fixture.read("train.txt");
        let mut values = text.lines().filter_map(|line| line.split('\t').nth(14));
        values.find(|value| !value.is_empty()).expect("a value").to_owned()
    }
}

#[test]
fn a_saved_model_is_listed_looked_up_verified_and_exported() {
    let fixture = Fixture::new(500);
    fixture.train(&["cluster.servers=2"]);
    let trained = TrainedModel { run: fixture.run_name(), fixture };
    let manifest = read_json(&Path::new(&trained.run).join("model/manifest.json"));

    let tables = trained.json([]);
    let tables = tables.as_array().expect("a list");
    let rows = |table: &Value| table["rows"].as_u64().expect("a number");
    assert_eq!(tables.len(), 26);
    assert_eq!(Some(tables.iter().map(rows).sum()), manifest["rows"].as_u64());
    assert!(tables[0]["norm_mean"].as_f64().is_some_and(|mean| mean > 0.0), "{}", tables[0]);
    assert!(trained.inspect([]).expect(0).stdout.contains("C26"));
    assert!(trained.inspect(["--table", "C1"]).expect(0).stdout.contains('█'));

    let value = trained.value();
    let row = trained.json(["--table", "C1", "--value", &value]);
    assert_eq!(row["parts"]["weights"].as_array().map(Vec::len), Some(4));
    let id = row["id"].as_str().expect("an id is text");
    assert_eq!(trained.json(["--table", "C1", "--id", id]), row);
    trained.inspect(["--table", "C1", "--id", id]).expect(0).prints(&["weights (f32)", "sum_of_squares"]);

    assert!(trained.inspect(["--verify"]).expect(0).stdout.contains("every checksum agrees"));
    for name in ["c1.parquet", "c1.safetensors"] {
        let done = trained.json(["--table", "C1", "--export", name, "--state"]);
        assert_eq!(done["rows"], tables[0]["rows"]);
        let bytes = std::fs::metadata(trained.fixture.path(name)).expect("it is there").len();
        assert_eq!(done["bytes"].as_u64(), Some(bytes));
    }
    what_cannot_be_inspected_is_an_error(&trained);
}

fn what_cannot_be_inspected_is_an_error(trained: &TrainedModel) {
    trained.inspect(["--table", "C91"]).expect(2).says(&["there is no table `C91`", "did you mean `C9`?"]);
    let ended = trained.inspect(["--table", "C1", "--id", "5"]).expect(3);
    ended.says(&["no row of id 5: it would be in rows-", "--value TEXT"]);
    trained.inspect(["--id", "5"]).expect(2).says(&["--table"]);
    trained.inspect(["--table", "C1", "--export", "c1.csv"]).expect(2).says(&[".parquet or .safetensors"]);
    trained.fixture.write("c1.parquet", "mine");
    trained.inspect(["--table", "C1", "--export", "c1.parquet"]).expect(2).says(&["exists and is kept", "--force"]);
    assert_eq!(trained.fixture.read("c1.parquet"), "mine");
    trained.fixture.zagros(["inspect", "job.toml"]).expect(3).says(&["job.toml is not a file of rows"]);
    trained.fixture.zagros(["inspect", "none"]).expect(3).says(&["none does not exist"]);

    let file = Path::new(&trained.run).join("model/rows-1-of-2.zrows");
    let good = std::fs::read(&file).expect("a file of rows");
    std::fs::write(&file, damaged(&good)).expect("it is written");
    let run = trained.inspect(["--verify"]).expect(3).says(&["1 of 5 file(s) cannot be used"]);
    assert!(run.stdout.contains("should have CRC-32") && run.stdout.contains("rows-1-of-2.zrows"), "{}", run.stdout);
    // A whole file, but of another save.
    std::fs::copy(file.with_file_name("rows-0-of-2.zrows"), &file).expect("it is copied");
    let run = trained.inspect(["--verify"]).expect(3);
    assert!(run.stdout.contains("is not the file that was saved"), "{}", run.stdout);
    std::fs::write(&file, good).expect("it is written");
    trained.inspect(["--verify"]).expect(0);
    std::fs::remove_file(Path::new(&trained.run).join("model/manifest.json")).expect("it is removed");
    trained.inspect([]).expect(3).says(&["the save did not finish"]);
    trained.fixture.zagros(["inspect", &file.display().to_string()]).expect(0);
}

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
