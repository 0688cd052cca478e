//! Jobs, batches, and fakes of the processes that a worker talks to.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use zagros_embedding_client::{ClientConfig, EmbeddingClient, Shard};
use zagros_fakes::{FakeControlPlane, FakeShard};
use zagros_ingest::{Batch, CategoryIds, IngestError, StreamStats};
use zagros_job::{
    Categorical, CheckpointSettings, ClusterSettings, DataOrder, DataSettings, DenseOptimizer, EvalSettings, Features,
    Format, Initializer, Job, KeptEnd, Model, Numeric, OutputSettings, PadSide, PoolAt, Pooling, RegressionLoss,
    Sequence, Table, TableOptimizer, TableSettings, Target, TargetKind, TestPart, TrainSettings, ValidationPart,
    Values,
};
use zagros_plumbing::Deadline;
use zagros_protocol::Refusal;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, SaveRequest,
    SaveResponse,
};
use zagros_protocol::datapath::{
    Encoding, HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse,
};

use crate::datapath::read::BatchSource;
use crate::metrics::WorkerMetrics;
use crate::model::DenseModel;

/// A job over `numeric` columns and one single-valued feature per entry of `dims`, each with its own table.
pub(crate) fn job(numeric: usize, dims: &[usize], model: Model) -> Job {
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

pub(crate) fn ffnn(hidden: &[i64]) -> Model {
    Model::Ffnn { hidden: hidden.to_vec(), dropout: 0.0 }
}

/// One number, one table of vectors of two values, and a network without hidden layers.
pub(crate) fn small_job() -> Job {
    job(1, &[2], ffnn(&[]))
}

/// A label of two classes.
pub(crate) fn class_target(name: &str) -> Target {
    let classes = ["a", "b"].map(String::from).to_vec();
    Target { kind: TargetKind::Classes { classes }, ..Target::from(name) }
}

/// A label that is a number.
pub(crate) fn number_target(name: &str) -> Target {
    Target { kind: TargetKind::Regression { loss: RegressionLoss::Mse }, ..Target::from(name) }
}

pub(crate) fn metrics() -> WorkerMetrics {
    WorkerMetrics::new(&prometheus::Registry::new())
}

/// Checks that a call is refused, and that the reason has each of these words.
#[track_caller]
pub(crate) fn assert_refused<T, E: ToString>(called: Result<T, E>, words: &[&str]) {
    let Err(reason) = called.map_err(|error| error.to_string()) else { panic!("not refused: {words:?}") };
    assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
}

/// A client that knows its only server, and the server.
pub(crate) async fn client(shard: FakeShard) -> (Arc<EmbeddingClient>, Arc<WorkerShard>) {
    let shard = Arc::new(WorkerShard::from(shard));
    let server: Arc<dyn Shard> = Arc::clone(&shard) as _;
    let config = ClientConfig { writer: 1, incarnation: 1, wire: Encoding::F32, timeout: Duration::from_secs(60) };
    let connect = Arc::new(move |_: &_| Ok(Arc::clone(&server)));
    let client = Arc::new(EmbeddingClient::new(config, Arc::new(FakeControlPlane::default()), connect));
    client.refresh_placement().await.unwrap();
    (client, shard)
}

/// A file that `scripts/model_fixtures.py` made.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/model/fixtures").join(name)
}

/// A module of one numeric value and one vector of two: a batch norm of momentum 0.1 under a linear layer, and every
/// kind of buffer.
pub(crate) fn normed_net() -> Model {
    let sha256 = "fad0055dc1ad884cc1045166de2d5b4a84703f5ec835764d95dafaa1df1beea4".to_owned();
    Model::TorchScript { file: fixture("normed_net.pt"), sha256, trust: true }
}

/// Makes feature `index` multi-valued, pooled by the worker.
pub(crate) fn pool_feature(job: &mut Job, index: usize, pooling: Pooling) {
    pool_at(job, index, pooling, PoolAt::Worker);
}

/// Makes feature `index` multi-valued.
pub(crate) fn pool_at(job: &mut Job, index: usize, pooling: Pooling, pool_at: PoolAt) {
    job.features.categorical[index].values =
        Values::Many { separator: "|".to_owned(), pooling, pool_at, weights: None };
}

/// Makes feature `index` a sequence of `length` positions.
pub(crate) fn sequence(job: &mut Job, index: usize, length: usize, pad: PadSide) {
    let sequence = Sequence { length, keep: KeptEnd::Last, pad };
    job.features.categorical[index].values = Values::Sequence { separator: "|".to_owned(), sequence };
}

/// `size` samples with one numeric value each; one single-valued feature per entry of `ids`.
pub(crate) fn batch(size: usize, ids: &[&[u64]]) -> Batch {
    Batch {
        size,
        labels: (0..size).map(|sample| (sample % 2) as f32).collect(),
        numeric: vec![0.5; size],
        categorical: ids.iter().map(|ids| CategoryIds { ids: ids.to_vec(), ..CategoryIds::default() }).collect(),
        ..Batch::default()
    }
}

/// A source that returns the given batches.
pub(crate) struct ScriptedBatches {
    items: Box<dyn Iterator<Item = Result<Batch, IngestError>> + Send>,
    rows: u64,
}

impl ScriptedBatches {
    pub(crate) fn new(items: impl IntoIterator<Item = Result<Batch, IngestError>, IntoIter: Send + 'static>) -> Self {
        Self { items: Box::new(items.into_iter()), rows: 0 }
    }
}

impl Iterator for ScriptedBatches {
    type Item = Result<Batch, IngestError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.items.next()?;
        self.rows += item.as_ref().map_or(0, |batch| batch.size as u64);
        Some(item)
    }
}

impl BatchSource for ScriptedBatches {
    fn stats(&self) -> StreamStats {
        StreamStats { rows: self.rows, ..StreamStats::default() }
    }
}

fn data() -> DataSettings {
    DataSettings {
        format: Format::Criteo,
        train: Vec::new(),
        test: TestPart::None,
        validation: ValidationPart::None,
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
    let optimizer = TableOptimizer::Sgd { lr: 0.1, momentum: 0.0, l2: 0.0 };
    Table { name: format!("t{index}"), settings: TableSettings { dim, init, optimizer, ..TableSettings::default() } }
}

/// Numbers, vectors and labels of two samples, for two features of two values.
pub(crate) const BATCH: (&[f32], &[f32], &[f32]) =
    (&[0.5, -1.0], &[0.1, 0.2, -0.3, 0.4, 0.5, 0.6, 0.7, -0.8], &[0.0, 1.0]);

/// All weights of a network, which are here.
pub(crate) fn weights(model: &DenseModel) -> Vec<f32> {
    let mut weights = vec![0.0; model.weight_count()];
    model.copy_weights(&mut weights).unwrap();
    weights
}

/// The fake embedding server of all tests, as a shard of a worker.
#[derive(Default)]
pub(crate) struct WorkerShard(FakeShard);

impl From<FakeShard> for WorkerShard {
    fn from(shard: FakeShard) -> Self {
        Self(shard)
    }
}

impl Deref for WorkerShard {
    type Target = FakeShard;

    fn deref(&self) -> &FakeShard {
        &self.0
    }
}

impl Shard for WorkerShard {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn lookup(&self, request: LookupRequest, _: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        self.0.lookup(request).boxed()
    }

    fn push(&self, request: PushRequest, _: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        self.0.push(request).boxed()
    }

    fn hint(&self, request: HintRequest, _: Deadline) -> BoxFuture<'_, Result<HintResponse, Refusal>> {
        self.0.hint(request).boxed()
    }

    fn describe(&self, _: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        self.0.describe().boxed()
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        self.0.save(request).boxed()
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        self.0.load(request).boxed()
    }

    fn forget(&self, request: ForgetRequest) -> BoxFuture<'_, Result<ForgetResponse, Refusal>> {
        self.0.forget(request).boxed()
    }
}
