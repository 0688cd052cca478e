//! Jobs of tests, without a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use zagros_job::{
    Categorical, CheckpointSettings, ClusterSettings, CrossStructure, DataOrder, DataSettings, DenseOptimizer,
    EvalSettings, ExpertLayers, Features, Format, HeldOutRows, Initializer, Job, KeptEnd, Model, Numeric, Optimizer,
    OutputSettings, PadSide, PoolAt, Pooling, RegressionLoss, Sequence, Table, TableSettings, Target, TargetKind,
    TrainSettings, Values,
};

/// A job over `numeric` columns and one single-valued feature per entry of `dims`, each with its own table.
pub fn job(numeric: usize, dims: &[usize], model: Model) -> Job {
    Job {
        name: "test".to_owned(),
        data: data(),
        features: features(numeric, dims.len()),
        tables: dims.iter().enumerate().map(|(index, dim)| table(index, *dim)).collect(),
        model,
        parametrization: zagros_job::Parametrization::Standard,
        mlp: zagros_job::MlpSettings::default(),
        dense_optimizer: DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.0 },
        train: TrainSettings { batch_size: 8, staleness: 2, seed: 11, threads: 1, ..TrainSettings::default() },
        eval: EvalSettings::default(),
        checkpoint: CheckpointSettings { every: None, ..CheckpointSettings::default() },
        cluster: ClusterSettings {
            server_threads: 1,
            buckets: 16,
            coordinator: "127.0.0.1:0".to_owned(),
            timeout: Duration::from_secs(5),
            lease: Duration::from_secs(2),
            durability: zagros_job::DurabilityLevel::Checkpoint,
            ..ClusterSettings::default()
        },
        output: OutputSettings { save_model: false, ..OutputSettings::default() },
    }
}

pub fn ffnn(hidden: &[i64]) -> Model {
    Model::Ffnn { hidden: hidden.to_vec(), dropout: 0.0 }
}

/// A network of each kind that makes its step without autograd.
pub fn networks_without_autograd(dropout: f64) -> Vec<Model> {
    let layers = || ExpertLayers { hidden: vec![7, 6], tower: vec![5], dropout };
    let dcnv2 = |rank, structure| Model::Dcnv2 { cross_layers: 2, rank, structure, hidden: vec![6], dropout };
    vec![
        Model::Ffnn { hidden: vec![11, 6], dropout },
        Model::Dlrm { bottom: vec![12, 7], top: vec![9, 5], dropout },
        dcnv2(None, CrossStructure::Parallel),
        dcnv2(Some(3), CrossStructure::Stacked),
        Model::DeepFm { hidden: vec![11, 6], dropout },
        Model::WideDeep { hidden: vec![11, 6], dropout },
        Model::FinalMlp { first: vec![8, 6], second: vec![4], heads: 2, gate: None, dropout },
        Model::SharedBottom { bottom: vec![8], tower: vec![5], dropout },
        Model::Mmoe { experts: 3, layers: layers() },
        Model::Ple { levels: 2, shared_experts: 1, task_experts: 2, layers: layers() },
    ]
}

/// One number, one table of vectors of two values, and a network without hidden layers.
pub fn small_job() -> Job {
    job(1, &[2], ffnn(&[]))
}

/// A label of two classes.
pub fn class_target(name: &str) -> Target {
    let classes = ["a", "b"].map(String::from).to_vec();
    Target { kind: TargetKind::Classes { classes }, ..Target::from(name) }
}

pub fn number_target(name: &str) -> Target {
    Target { kind: TargetKind::Regression { loss: RegressionLoss::Mse }, ..Target::from(name) }
}

/// The text of a manifest, without its seal, of a finished run that has saved no file.
pub fn empty_manifest(dense: &str) -> String {
    format!(
        r#"{{"manifest_sha256": "", "format": 1, "job": "ads", "fingerprint": "0", "release": "0", "outcome": "finished", "steps": 1,
        "samples": 1, "dense": "{dense}", "row_files": [], "rows": 0, "files": [], "evaluation": null}}"#
    )
}

/// Checks that a call is refused, and that the reason has each of these words.
#[track_caller]
pub fn assert_refused<T, E: ToString>(called: Result<T, E>, words: &[&str]) {
    let Err(reason) = called.map_err(|error| error.to_string()) else { panic!("not refused: {words:?}") };
    assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
}

/// A file that `scripts/model_fixtures.py` made.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dense-worker/torch/src/fixtures").join(name)
}

/// A module of one numeric value and one vector of two: a batch norm of momentum 0.1 under a linear layer, and every
/// kind of buffer.
pub fn normed_net() -> Model {
    let sha256 = "fad0055dc1ad884cc1045166de2d5b4a84703f5ec835764d95dafaa1df1beea4".to_owned();
    Model::TorchScript { file: fixture("normed_net.pt"), sha256, trust: true }
}

/// Makes feature `index` multi-valued, pooled by the worker.
pub fn pool_feature(job: &mut Job, index: usize, pooling: Pooling) {
    pool_at(job, index, pooling, PoolAt::Worker);
}

/// Makes feature `index` multi-valued.
pub fn pool_at(job: &mut Job, index: usize, pooling: Pooling, pool_at: PoolAt) {
    job.features.categorical[index].values =
        Values::Many { separator: "|".to_owned(), pooling, pool_at, weights: None };
}

/// Makes feature `index` a sequence of `length` positions.
pub fn sequence(job: &mut Job, index: usize, length: usize, pad: PadSide) {
    let sequence = Sequence { length, keep: KeptEnd::Last, pad };
    job.features.categorical[index].values = Values::Sequence { separator: "|".to_owned(), sequence };
}

fn data() -> DataSettings {
    DataSettings {
        format: Format::Criteo,
        train: Vec::new(),
        test: HeldOutRows::None,
        validation: HeldOutRows::None,
        max_bad_rows: 0,
        max_bad_share: 0.0,
        max_line_bytes: 1 << 20,
        threads: 1,
        shuffle_rows: 0,
        order: DataOrder::Shuffled,
        drop_last: false,
        written: Default::default(),
    }
}

fn features(numeric: usize, categorical: usize) -> Features {
    let column = |index| Numeric::from(format!("I{index}"));
    let feature = |table| Categorical::of_column(format!("C{table}"), table);
    Features {
        targets: vec!["label".into()],
        weight: None,
        numeric: (1..=numeric).map(column).collect(),
        numeric_embedding: None,
        categorical: (0..categorical).map(feature).collect(),
    }
}

fn table(index: usize, dim: usize) -> Table {
    let init = Initializer::Uniform { bound: 0.1 };
    let optimizer = Optimizer::Sgd { lr: 0.1, momentum: 0.0, l2: 0.0 };
    Table { name: format!("t{index}"), settings: TableSettings { dim, init, optimizer, ..TableSettings::default() } }
}

/// Numbers, vectors and labels of two samples, for two features of two values.
pub const BATCH: (&[f32], &[f32], &[f32]) = (&[0.5, -1.0], &[0.1, 0.2, -0.3, 0.4, 0.5, 0.6, 0.7, -0.8], &[0.0, 1.0]);
