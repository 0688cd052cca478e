//! A small generated data set and a job on it, in a folder of the test's own.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use zagros_eval::ClickScores;
use zagros_fakes::s3::FakeS3;
use zagros_tests::{FinishedCommand, RunningCommand, TestProgram};

/// Folder with `train.txt`, `test.txt`, `planted.json` and `job.toml`.
pub(crate) struct Fixture {
    folder: TempDir,
    /// What is added to that of the test.
    environment: Vec<(String, String)>,
    /// A run that lives as long as the tests that look at it.
    _shared: Option<Arc<Fixture>>,
}

const JOB: &str = r#"
name = "small"
[data]
format = "criteo"
train = "train.txt"
test = "test.txt"
threads = 1
[embedding]
dim = 4
optimizer = { kind = "adagrad", lr = 0.05 }
[model]
kind = "dlrm"
bottom = [16]
top = [16]
[train]
batch_size = 256
threads = 1
[cluster]
timeout_seconds = 20
lease_seconds = 2
"#;

/// What jobs on CSV files have in common. A job adds keys to these tables by their whole names.
const CSV_JOB: &str = r#"
data.format = "delimited"
data.train = "train.csv"
data.test = "test.csv"
data.threads = 1
embedding.dim = 4
train.threads = 1
cluster.timeout_seconds = 20
cluster.lease_seconds = 2
"#;

impl Fixture {
    /// With this many training rows and a fifth of them for the test.
    pub(crate) fn new(rows: u32) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fixture = Self { folder, environment: Vec::new(), _shared: None };
        for (name, content) in generated_data(rows).iter() {
            fixture.write(name, content);
        }
        fixture.write("job.toml", JOB);
        fixture
    }

    /// With a job of these keys on `train.csv` and `test.csv`.
    pub(crate) fn with_csv(job: &str, train: String, test: String) -> Self {
        let fixture = Self::new(10);
        fixture.write("job.toml", format!("{CSV_JOB}{job}"));
        fixture.write("train.csv", train);
        fixture.write("test.csv", test);
        fixture
    }

    pub(crate) fn with_environment(self, environment: Vec<(String, String)>) -> Self {
        Self { environment, ..self }
    }

    /// With an object store that has a bucket `models`.
    pub(crate) fn with_store(rows: u32) -> (FakeS3, Self) {
        let store = FakeS3::start("models");
        let fixture = Self::new(rows).with_environment(store.environment_variables());
        (store, fixture)
    }

    /// With the folder of a run of [`Self::train`]. Other tests that are under way have the same run: it stays as it is.
    pub(crate) fn trained(rows: u32, sets: &[&str]) -> (Self, String) {
        static RUNS: Mutex<BTreeMap<String, Arc<Mutex<Weak<Fixture>>>>> = Mutex::new(BTreeMap::new());
        let key = format!("{rows} {sets:?}");
        let run = Arc::clone(RUNS.lock().expect("no test fails in between").entry(key).or_default());
        // Where a training failed, the next test tries it.
        let mut run = run.lock().unwrap_or_else(PoisonError::into_inner);
        let trained = run.upgrade().unwrap_or_else(|| {
            let trained = Arc::new(Self::new(rows));
            trained.train(sets);
            *run = Arc::downgrade(&trained);
            trained
        });
        let name = trained.run_name();
        (Self { _shared: Some(trained), ..Self::new(rows) }, name)
    }

    /// Trains in one process to the end, with these changes to the job.
    #[track_caller]
    pub(crate) fn train(&self, sets: &[&str]) -> FinishedCommand {
        self.zagros(with_sets(&["train", "job.toml"], sets)).expect(0)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("a file of the test is written");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("a file of the test is read")
    }

    pub(crate) fn read_json(&self, name: &str) -> Value {
        read_json(&self.path(name))
    }

    /// A file of JSON in the newest run folder.
    pub(crate) fn read_run_json(&self, name: &str) -> Value {
        read_json(&self.run_folder().join(name))
    }

    pub(crate) fn zagros<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> FinishedCommand {
        self.start(arguments).finish()
    }

    pub(crate) fn start<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> RunningCommand {
        self.start_program(TestProgram::Zagros, arguments)
    }

    /// As [`Self::start`], until it prints a line with this text.
    pub(crate) fn start_until<'a>(&self, text: &str, arguments: impl IntoIterator<Item = &'a str>) -> RunningCommand {
        let mut run = self.start(arguments);
        run.wait_for_line(text);
        run
    }

    /// As [`Self::start`], until it has written so many checkpoints.
    pub(crate) fn start_to_checkpoint<'a>(
        &self,
        count: usize,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> RunningCommand {
        let mut run = self.start(arguments);
        (0..count).for_each(|_| _ = run.wait_for_line("checkpoint after step"));
        run
    }

    /// As [`Self::start`], any of the programs.
    pub(crate) fn start_program<'a>(
        &self,
        program: TestProgram,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> RunningCommand {
        RunningCommand::start(program, self.folder.path(), arguments, &self.environment)
    }

    /// The run folders. Logs of servers that were started by hand lie beside them.
    pub(crate) fn run_folders(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path("runs")).into_iter().flatten();
        let folders = entries.map(|entry| entry.expect("readable").path());
        let is_log =
            |folder: &PathBuf| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log-server-"));
        folders.filter(|folder| !is_log(folder)).collect()
    }

    /// The newest run of a job whose runs lie in this folder.
    pub(crate) fn newest_run(&self, folder: &str) -> PathBuf {
        let runs = std::fs::read_dir(self.path(folder)).expect("runs").map(|run| run.expect("readable").path());
        runs.filter(|run| run.join("job.toml").is_file()).max().expect("a run")
    }

    pub(crate) fn run_folder(&self) -> PathBuf {
        self.run_folders().into_iter().max().expect("there is a run folder")
    }

    /// The newest run folder, as an argument.
    pub(crate) fn run_name(&self) -> String {
        self.run_folder().display().to_string()
    }

    /// What `zagros eval` says of the newest run.
    pub(crate) fn evaluate(&self) -> Value {
        self.zagros(["eval", &self.run_name(), "--json"]).expect(0).json()
    }

    /// The lines of the newest run's record, but for one that a killed process left half written.
    pub(crate) fn metrics(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.run_folder().join("metrics.jsonl")).expect("metrics.jsonl");
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Loss at every step of the newest run, as written, without the steps that it went back on.
    pub(crate) fn losses(&self) -> Vec<f64> {
        let text = std::fs::read_to_string(self.run_folder().join("metrics.jsonl")).expect("metrics.jsonl");
        // The last line of a run that goes on may be half written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut losses: Vec<(u64, f64)> = Vec::new();
        for line in whole.lines().map(|line| serde_json::from_str::<Value>(line).expect("a JSON line")) {
            let step = line["step"].as_u64().unwrap_or_default();
            if line["type"] == "resumed" {
                losses.retain(|(earlier, _)| *earlier <= step);
            }
            losses.extend(line["loss"].as_f64().map(|loss| (step, loss)));
        }
        losses.into_iter().map(|(_, loss)| loss).collect()
    }

    /// As `zagros eval` prints them, which are those of what `zagros predict` writes of the test file, to the last bit.
    pub(crate) fn measures(&self, test: &str, label: &str) -> Value {
        let (run, eval) = (self.run_name(), self.evaluate());
        self.zagros(["predict", &run, test, "-o", "z.csv", "--keys", label, "--logits", "--force"]).expect(0);
        assert_eq!(measured(&self.read("z.csv")), eval);
        eval
    }

    pub(crate) fn summary(&self) -> Value {
        self.read_run_json("summary.json")
    }

    /// That of the test part, in the summary.
    pub(crate) fn auc(&self) -> f64 {
        self.summary()["evaluation"]["auc"].as_f64().expect("an AUC")
    }
}

/// A command with changes to the job.
pub(crate) fn with_sets<'a>(command: &[&'a str], sets: &[&'a str]) -> Vec<&'a str> {
    command.iter().copied().chain(sets.iter().flat_map(|set| ["--set", *set])).collect()
}

/// The files that `zagros data generate` writes for this many training rows. The program runs once for each number.
fn generated_data(rows: u32) -> Arc<BTreeMap<String, Vec<u8>>> {
    type DataSets = HashMap<u32, Arc<OnceLock<Arc<BTreeMap<String, Vec<u8>>>>>>;
    static DATA_SETS: Mutex<Option<DataSets>> = Mutex::new(None);
    let mut data_sets = DATA_SETS.lock().expect("no test failed in between");
    let data_set = Arc::clone(data_sets.get_or_insert_default().entry(rows).or_default());
    drop(data_sets);
    Arc::clone(data_set.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (rows, test_rows) = (rows.to_string(), (rows / 5).to_string());
        let arguments = ["data", "generate", ".", "--rows", &rows, "--test-rows", &test_rows];
        RunningCommand::start(TestProgram::Zagros, folder.path(), arguments, &[]).finish().expect(0);
        Arc::new(read_files(folder.path()))
    }))
}

/// The files of a folder by their names.
pub(crate) fn read_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable"));
    let files = entries.map(|entry| {
        let name = entry.file_name().into_string().expect("UTF-8");
        (name, std::fs::read(entry.path()).expect("a file is read"))
    });
    files.collect()
}

pub(crate) fn read_json(file: &Path) -> Value {
    let text = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&text).expect("JSON")
}

/// The measures of predicted logits with the labels of their rows, as `zagros eval --json` prints them.
pub(crate) fn measured(predictions: &str) -> Value {
    let mut scores = ClickScores::new();
    for line in predictions.lines().skip(1) {
        let (label, logit) = line.split_once(',').expect("two fields");
        scores.push(label.parse().expect("a label"), logit.parse().expect("a logit"));
    }
    serde_json::to_value(scores.compute_measures()).expect("JSON")
}

/// The whole checkpoints of a run, oldest first.
pub(crate) fn checkpoints(run: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(run.join("checkpoints")).into_iter().flatten();
    let folders = entries.map(|folder| folder.expect("readable").path());
    let mut whole: Vec<_> = folders.filter(|folder| folder.join("manifest.json").is_file()).collect();
    whole.sort();
    whole
}

/// The bytes that the program gzip makes of a text.
pub(crate) fn gzip(text: &str) -> Vec<u8> {
    let mut gzip = Command::new("gzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gzip is there");
    let mut stdin = gzip.stdin.take().expect("a pipe");
    let text = text.to_owned();
    let writing = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let bytes = gzip.wait_with_output().expect("gzip ends").stdout;
    writing.join().expect("no panic").expect("gzip reads");
    bytes
}

/// The bytes with another bit in their middle.
pub(crate) fn damaged(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    bytes
}

/// Looks until there is what is looked for. Fails the test after so long, with what it has seen instead.
#[track_caller]
pub(crate) fn wait_for<T>(most: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + most;
    loop {
        let seen = match look() {
            Ok(found) => return found,
            Err(seen) => seen,
        };
        assert!(Instant::now() < deadline, "not within {most:?}: {seen}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The answer of an admin port of this machine.
pub(crate) fn http_get(address: &str, path: &str) -> String {
    http_get_as("localhost", address, path)
}

/// As [`http_get`], by another name of the host.
pub(crate) fn http_get_as(host: &str, address: &str, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).expect("the admin port answers");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("the request is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the answer is text");
    answer
}
