//! `zagros inspect`: tables, one row, checksums, export, and errors that name what is wrong.

use std::path::Path;

use serde_json::Value;
use zagros_tests::FinishedCommand;

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
