//! Jobs and files for the tests of this crate.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use zagros_job::{
    Categorical, ClusterSettings, DataOrder, DataSettings, DelimitedFormat, DenseOptimizer, DenseUpdates, EvalSettings,
    Features, Format, Initializer, Job, Mode, Model, Numeric, OutputSettings, PoolAt, Pooling, StartChanged,
    StartSteps, Table, TableOptimizer, TableSettings, TestPart, TrainSettings, ValidationPart, Values, WireFormat,
};

use crate::SplitTask;
use crate::read::records::RecordSyntax;
use crate::split::SplitSource;

/// A job over Criteo's format: logarithms, no standardisation, a table a feature.
pub(crate) fn criteo() -> Job {
    let numeric = |n| Numeric { log: true, ..Numeric::from(format!("I{n}")) };
    let categorical = |n: usize| Categorical::of_column(format!("C{n}"), n - 1);
    job(
        Format::Criteo,
        Features {
            targets: vec!["label".into()],
            weight: None,
            numeric: (1..=13).map(numeric).collect(),
            numeric_embedding: None,
            categorical: (1..=26).map(categorical).collect(),
        },
    )
}

/// A job over CSV files with a header: `click`, a number `age`, a category `city`, a bag `tags`
/// separated by `|`; `?` is missing.
pub(crate) fn delimited(change: impl FnOnce(&mut DelimitedFormat)) -> Job {
    let mut format = DelimitedFormat {
        delimiter: b',',
        header: true,
        columns: Vec::new(),
        comment: None,
        trim: false,
        quoted_breaks: false,
        decimal: zagros_job::DecimalMark::Point,
        missing: vec!["?".into()],
    };
    change(&mut format);
    let (pooling, pool_at) = (Pooling::Mean, PoolAt::Worker);
    let bag = Values::Many { separator: "|".into(), pooling, pool_at, weights: None };
    job(
        Format::Delimited(format),
        Features {
            targets: vec!["click".into()],
            weight: None,
            numeric: vec![Numeric { missing: -1.0, ..Numeric::from("age".to_owned()) }],
            numeric_embedding: None,
            categorical: vec![
                Categorical::of_column("city", 0),
                Categorical { values: bag, ..Categorical::of_column("tags", 1) },
            ],
        },
    )
}

/// How records with quoted line breaks are written.
pub(crate) fn quoted_records() -> RecordSyntax {
    let Format::Delimited(format) = delimited(|format| format.quoted_breaks = true).data.format else {
        panic!("not delimited")
    };
    RecordSyntax::from_format(&format).unwrap()
}

pub(crate) struct DealtSplits(pub(crate) std::vec::IntoIter<SplitTask>);

impl DealtSplits {
    pub(crate) fn new(tasks: Vec<SplitTask>) -> Box<Self> {
        Box::new(Self(tasks.into_iter()))
    }
}

impl SplitSource for DealtSplits {
    fn next(&mut self) -> Result<Option<SplitTask>, String> {
        Ok(self.0.next())
    }
}

/// A file in a folder that lives as long as the first value.
pub(crate) fn file(bytes: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("data.txt");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// A well-formed Criteo line, different for each `n`, with missing values; even `n` are positive.
pub(crate) fn criteo_line(n: u64) -> String {
    let integers =
        (0..13_u64).map(|j| if (n + j).is_multiple_of(5) { String::new() } else { (n * (j + 1) % 1_000).to_string() });
    let categories =
        (0..26_u64).map(|f| if (n + f).is_multiple_of(7) { String::new() } else { format!("{:08x}", n % (f + 2)) });
    let label = u64::from(n.is_multiple_of(2)).to_string();
    std::iter::once(label).chain(integers).chain(categories).collect::<Vec<_>>().join("\t")
}

fn job(format: Format, features: Features) -> Job {
    let optimizer = TableOptimizer::Sgd { lr: 0.1, momentum: 0.0, l2: 0.0 };
    let settings = TableSettings { dim: 4, init: Initializer::Zero, optimizer, ..TableSettings::default() };
    let table = |n| Table { name: format!("table{n}"), settings };
    let data = DataSettings {
        format,
        train: Vec::new(),
        test: TestPart::None,
        validation: ValidationPart::None,
        max_bad_rows: 0,
        max_bad_share: 0.0,
        max_line_bytes: 1 << 20,
        threads: 2,
        shuffle_rows: 0,
        order: DataOrder::Shuffled,
        drop_last: false,
        written: Default::default(),
    };
    Job {
        name: "test".into(),
        data,
        tables: (0..features.categorical.len()).map(table).collect(),
        features,
        model: Model::Ffnn { hidden: vec![8], dropout: 0.0 },
        parametrization: zagros_job::Parametrization::Standard,
        mlp: zagros_job::MlpSettings::default(),
        dense_optimizer: DenseOptimizer::Adam { lr: 1e-3, weight_decay: 0.0 },
        train: train(),
        eval: EvalSettings::default(),
        cluster: cluster(),
        checkpoint: zagros_job::CheckpointSettings { every: None, every_steps: None, folder: None, keep: 0, deltas: 0 },
        output: OutputSettings { folder: "runs".into(), save_model: false, keep_best: 0, model_folder: None },
    }
}

fn train() -> TrainSettings {
    TrainSettings {
        batch_size: 8,
        epochs: 1,
        mode: Mode::Sync,
        staleness: 0,
        seed: 1,
        threads: 1,
        precision: zagros_job::Precision::F32,
        device: zagros_job::Device::Cpu,
        start_from: None,
        start_steps: StartSteps::Restart,
        start_changed: StartChanged::Anew,
        max_steps: None,
        evaluate_every: None,
        epoch_steps: None,
        early_stop: None,
        updates: DenseUpdates::default(),
        ..TrainSettings::default()
    }
}

fn cluster() -> ClusterSettings {
    ClusterSettings {
        server_threads: 1,
        servers: 1,
        workers: 1,
        min_workers: None,
        max_workers: None,
        buckets: 16,
        coordinator: "127.0.0.1:0".into(),
        server_addresses: vec!["127.0.0.1:0".into()],
        worker_address: "127.0.0.1:0".into(),
        collective: zagros_job::CollectiveKind::Gloo,
        admin: "127.0.0.1:0".into(),
        timeout: Duration::from_secs(5),
        lease: Duration::from_secs(5),
        wire: WireFormat::F32,
        memory: None,
        cold_folder: None,
        durability: zagros_job::DurabilityLevel::Checkpoint,
        log_folder: None,
        insecure: false,
    }
}
