//! Golden results: what each network learns stays the same, bit for bit, while the code around it moves.
//!
//! A line of `golden/PROCESSOR.tsv` is a case: a network, a precision, a number of threads, where the dense weights are, a mode; and what
//! came of it: the last loss, and hashes of all losses, of the saved dense weights, of the saved rows and of the scores; `-` where a
//! result was changed on purpose and this processor has not written it since. Sums of libtorch
//! have other bits on other processors, so each family of them has a file. On a family without one, losses are held to those of the
//! other files within a tolerance.
//!
//! `ZAGROS_GOLDEN=write cargo test --release --workspace --test one_process golden` writes the file of this processor.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use zagros_dense_worker::ScoredRows;
use zagros_ingest::InputRows;
use zagros_job::PredictRows;
use zagros_scoring::Manifest;
use zagros_store::{ContentDigest, hex_digits};

use super::*;

const ROWS: u64 = 1000;
/// Tells a child process its number of threads.
const THREADS: &str = "ZAGROS_GOLDEN_THREADS";
/// Before each line of a child process that is a result.
const RESULT: &str = "golden\t";
/// Relative; between the families of processors the last losses were less far apart.
const FARTHEST_F32: f64 = 1e-4;
const FARTHEST_BF16: f64 = 0.03;

/// Each network once with its settings that change a step. The first word names the case.
const NETWORKS: [(&str, &str); 15] = [
    ("dlrm", "kind = 'dlrm'\nbottom = [8]\ntop = [16, 8]\ndropout = 0.1\n"),
    ("dlrm_numbers", "kind = 'dlrm'\nbottom = [8]\ntop = [8]\n[features.numeric_embedding]\ndim = 3\n"),
    ("ffnn", "kind = 'ffnn'\nhidden = [300, 8]\ndropout = 0.1\n"),
    ("ffnn_norm", "kind = 'ffnn'\nhidden = [8]\n[mlp]\nnorm = 'batch'\nactivation = 'dice'\n"),
    ("dcnv2", "kind = 'dcnv2'\ncross_layers = 2\nhidden = [16]\n"),
    ("dcnv2_parallel", "kind = 'dcnv2'\ncross_layers = 2\nrank = 4\nstructure = 'parallel'\nhidden = [16]\n"),
    ("deepfm", "kind = 'deepfm'\nhidden = [16]\n"),
    ("wide_deep", "kind = 'wide_deep'\nhidden = [16]\n"),
    ("wukong", "kind = 'wukong'\nlayers = 2\nfmb_hidden = [16]\nbottom = [8]\ntop = [8]\n"),
    (
        "finalmlp",
        "kind = 'finalmlp'\nfirst = [8]\nsecond = [8]\nheads = 2\ngate = { hidden = [4], first = ['city'] }\n",
    ),
    ("din", "kind = 'din'\nactivation = 'dice'\nattention = [{ sequence = 'liked', target = 'city' }]\nhidden = [8]\n"),
    ("bst", "kind = 'bst'\nheads = 2\nattention = [{ sequence = 'liked', target = 'city' }]\nhidden = [8]\n"),
    ("shared_bottom", "kind = 'shared_bottom'\nbottom = [16]\ntower = [8]\n"),
    ("mmoe", "kind = 'mmoe'\nexperts = 2\nhidden = [16]\ntower = [8]\n"),
    ("ple", "kind = 'ple'\nhidden = [8]\ntower = [8]\n"),
];

/// A case without its number of threads, which is the process's.
struct GoldenCase {
    name: String,
    text: String,
    sets: [String; 3],
}

fn cases() -> Vec<GoldenCase> {
    let mut cases = Vec::new();
    for (network, model) in NETWORKS {
        let features = matches!(network, "din" | "bst").then_some(SEQUENCES);
        let text = network_text(features, model);
        // Streamed weights compute in f32 alone.
        for (precision, weights) in [("f32", "resident"), ("f32", "streamed"), ("bf16", "resident")] {
            for mode in ["sync", "hybrid"] {
                cases.push(GoldenCase {
                    name: format!("{network} {precision} {weights} {mode}"),
                    text: text.clone(),
                    sets: [("precision", precision), ("weights", weights), ("mode", mode)]
                        .map(|(key, value)| format!("train.{key}={value}")),
                });
            }
        }
    }
    cases
}

#[derive(Default)]
struct LogitSink(Arc<Mutex<Vec<f32>>>);

impl ScoredRows for LogitSink {
    type Error = String;

    fn take(&mut self, _: &InputRows, logits: &[f32]) -> Result<(), String> {
        self.0.lock().unwrap().extend(logits);
        Ok(())
    }
}

fn hash(bytes: &[u8]) -> String {
    hex_digits(&ContentDigest::compute(bytes).sha256[..8])
}

/// Trains a case, saves, and scores with what was saved: a line of the file.
async fn result(case: &GoldenCase, threads: usize) -> String {
    let folder = tempfile::tempdir().unwrap();
    let threads = format!("train.threads={threads}");
    let mut sets: Vec<_> = case.sets.iter().map(String::as_str).collect();
    sets.extend(["train.epochs=1", "data.shuffle_rows=100", "cluster.servers=2", &threads]);
    let job = job_of(&case.text, rows(ROWS), folder.path(), &sets);
    let (summary, recorded, run) = train(job).await;
    summary.unwrap_or_else(|error| panic!("{}: {error}", case.name));

    let manifest: Manifest =
        serde_json::from_slice(&std::fs::read(run.model_folder().join("manifest.json")).unwrap()).unwrap();
    let files_hash = |names: &[String]| {
        let files = manifest.files.iter().filter(|file| names.contains(&file.name));
        hash(files.map(|file| &*file.sha256).collect::<String>().as_bytes())
    };
    let (dense, row_files) = (files_hash(std::slice::from_ref(&manifest.dense)), files_hash(&manifest.row_files));
    let losses: Vec<u8> = recorded.losses().iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let last = recorded.steps().last().unwrap().loss;
    let logits = scores(&run, &folder.path().join("train.csv")).await;
    let scores = hash(&logits.iter().flat_map(|logit| logit.to_le_bytes()).collect::<Vec<_>>());
    format!("{last:.6}\t{}\t{dense}\t{row_files}\t{scores}", hash(&losses))
}

async fn scores(run: &RunFolder, rows: &Path) -> Vec<f32> {
    let mut job = Job::load(&run.job_file(), &Overrides::none()).unwrap();
    job.eval.predict = Some(PredictRows::default());
    let logits = LogitSink::default();
    let all = Arc::clone(&logits.0);
    let predicted = scoring(run, job, Some(vec![rows.to_owned()])).predict(true, 0, logits);
    tokio::time::timeout(LATE, predicted).await.expect("predicting hangs").unwrap().unwrap();
    let all = all.lock().unwrap();
    assert_eq!(all.len() as u64, ROWS);
    all.clone()
}

/// A part of [`golden_results_stay`], in a process of its own: libtorch has one number of threads for a process.
#[tokio::test(flavor = "multi_thread")]
async fn results_of_this_process() {
    let Ok(threads) = std::env::var(THREADS) else { return };
    let threads = threads.parse().unwrap();
    for case in cases() {
        println!("{RESULT}{} {threads}\t{}", case.name, result(&case, threads).await);
    }
}

/// Such as `AuthenticAMD-26-avx512`.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let value = |key: &str| {
        let line = info.lines().find(|line| line.starts_with(key)).unwrap_or("? : other");
        line.split_once(": ").unwrap().1.to_owned()
    };
    let flags = value("flags");
    // Tiles add bf16 products up in another order than vectors do.
    let class = if flags.contains("amx_bf16") {
        "avx512-amx"
    } else if flags.contains("avx512f") {
        "avx512"
    } else if flags.contains("avx2") {
        "avx2"
    } else {
        "older"
    };
    format!("{}-{}-{class}", value("vendor_id"), value("cpu family"))
}

fn read(file: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let pair = |line: &str| line.split_once('\t').map(|(case, result)| (case.to_owned(), result.to_owned()));
    text.lines().filter_map(pair).collect()
}

/// Whether results are equal, but for those that are not known.
fn is_as(golden: &str, found: &str) -> bool {
    let [golden, found] = [golden, found].map(|result| result.split('\t').collect::<Vec<_>>());
    golden.len() == found.len() && golden.iter().zip_eq(&found).all(|(golden, found)| *golden == "-" || golden == found)
}

#[test]
fn golden_results_stay() {
    let children = ["1", "2"].map(|threads| {
        Command::new(std::env::current_exe().unwrap())
            .args(["golden::results_of_this_process", "--exact", "--nocapture"])
            .env(THREADS, threads)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let mut found = BTreeMap::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let lines = String::from_utf8(output.stdout).unwrap();
        let results = lines.lines().filter_map(|line| line.split_once(RESULT)?.1.split_once('\t'));
        found.extend(results.map(|(case, result)| (case.to_owned(), result.to_owned())));
    }
    assert_eq!(found.len(), 2 * cases().len());

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/one_process/golden");
    let own = folder.join(format!("{}.tsv", processor()));
    if std::env::var("ZAGROS_GOLDEN").as_deref() == Ok("write") {
        let lines = found.iter().map(|(case, result)| format!("{case}\t{result}\n")).collect::<String>();
        std::fs::write(&own, lines).unwrap();
    }
    let golden = read(&own);
    if !golden.is_empty() {
        let is_other =
            |(case, result): &(&String, &String)| !golden.get(*case).is_some_and(|known| is_as(known, result));
        let others: Vec<_> = found.iter().filter(is_other).collect();
        let (count, all, file) = (others.len(), found.len(), own.display());
        assert!(others.is_empty(), "{count} of {all} cases differ from {file}: {others:#?}");
        return;
    }
    let golden = std::fs::read_dir(&folder).unwrap().map(|entry| read(&entry.unwrap().path())).next().unwrap();
    let loss = |result: &str| result.split_once('\t').unwrap().0.parse::<f64>().unwrap();
    for (case, result) in &found {
        let (found, expected) = (loss(result), loss(&golden[case]));
        let farthest = if case.contains("bf16") { FARTHEST_BF16 } else { FARTHEST_F32 };
        assert!((found - expected).abs() <= farthest * expected, "{case}: {found}, elsewhere {expected}");
    }
}
