//! A client and an embedding server in one process, without a socket: ids in, rows out, gradients back.
//!
//! `cargo run --release -p zagros-embedding-server --example in_process`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use zagros_embedding_client::{BatchRows, ClientConfig, Deduplicator, EmbeddingClient, FeatureIds, RoutedIds, Shard};
use zagros_embedding_server::{EmbeddingService, LocalShard};
use zagros_fakes::FakeControlPlane;
use zagros_job::{Job, Overrides};
use zagros_protocol::datapath::{Access, Encoding};
use zagros_protocol::{BucketMap, Generation, ServerIndex, TableId};

const JOB: &str = r#"
    [data]
    format = "delimited"
    train = "train.csv"
    columns = ["label", "user", "item"]
    header = false
    [features]
    label = "label"
    categorical = ["user", "item"]
    [embedding]
    dim = 4
    optimizer = { kind = "sgd", lr = 0.5 }
    [model]
    kind = "ffnn"
    [cluster]
    servers = 1
    buckets = 16
"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let job = Job::parse(JOB, Path::new("in-process.toml"), &Overrides::none())?;

    // The server without a socket. It owns every bucket under generation 1 of the bucket map.
    let service = EmbeddingService::new(&job, ServerIndex(0), &prometheus::Registry::new())?;
    service.set_placement(Arc::new(BucketMap::split_evenly(Generation(1), 16, 1)));
    let shard: Arc<dyn Shard> = Arc::new(LocalShard::new(service));

    // A client asks the coordinator who owns which bucket. Here the coordinator of tests answers: one server owns all.
    let control = Arc::new(FakeControlPlane::default());
    let config = ClientConfig { writer: 1, incarnation: 1, wire: Encoding::F32, timeout: Duration::from_secs(30) };
    let client = EmbeddingClient::new(config, control, Arc::new(move |_| Ok(Arc::clone(&shard))));

    // Two features of a batch with three samples. Table 0 is `user`, table 1 is `item`; user 7 occurs twice.
    let features = [
        FeatureIds { table: TableId(0), dim: 4, ids: &[7, 9, 7] },
        FeatureIds { table: TableId(1), dim: 4, ids: &[100, 200, 300] },
    ];
    // Each distinct id is sent once; `inverse` says for each sample which of the distinct ids is its own.
    let (unique, inverse) = Deduplicator::new().dedup_batch(&features);
    assert_eq!((unique.id_count(), &inverse[0]), (5, &vec![0, 1, 0]));

    // The route is computed once for the lookup and the push of a batch.
    let ids = RoutedIds::from(unique);
    let first = client.lookup(&ids, Access::Train).await?;
    let gradients = BatchRows { tables: first.tables.iter().map(|rows| vec![0.2; rows.len()]).collect() };
    // Batch 0 of this writer. The server applies it once, however often it is sent.
    let report = client.push(0, &ids, &gradients).await?;
    println!("{} server(s) took {} bytes of gradients", report.servers, report.bytes);

    let trained = client.lookup(&ids, Access::Read).await?;
    println!("a weight of user 7 was {} and is {}", first.tables[0][0], trained.tables[0][0]);
    assert!((first.tables[0][0] - trained.tables[0][0] - 0.1).abs() < 1e-6);
    Ok(())
}
