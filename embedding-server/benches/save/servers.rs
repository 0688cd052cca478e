//! Embedding servers in this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use tokio::runtime::Runtime;
use zagros_embedding_client::Shard;
use zagros_embedding_server::{EmbeddingService, LocalShard};
use zagros_job::{Job, Overrides};
use zagros_plumbing::Deadline;
use zagros_protocol::control::{FileDigest, LoadRequest, SaveRequest, SaveResponse};
use zagros_protocol::datapath::{Access, Encoding, LookupRequest};
use zagros_protocol::packed::encode_ids;
use zagros_protocol::{BucketMap, Generation, Segment, Segments, ServerIndex, TableId};

/// Weights of a row.
pub(crate) const DIM: u32 = 16;
/// Words of a slot: weights and their sums of squares.
pub(crate) const WIDTH: usize = 2 * DIM as usize;
pub(crate) const BATCH: u64 = 4096;
const BUCKETS: u32 = 1024;
/// Longer than any request takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) struct Servers<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) shards: Vec<LocalShard>,
}

impl<'a> Servers<'a> {
    pub(crate) fn new(runtime: &'a Runtime, count: u32) -> Self {
        let job = job(count);
        let map = Arc::new(BucketMap::split_evenly(Generation(1), BUCKETS, count));
        let shard = |index| {
            let service = EmbeddingService::new(&job, ServerIndex(index), &Registry::new()).expect("a service");
            service.set_placement(Arc::clone(&map));
            LocalShard::new(service)
        };
        Self { runtime, shards: (0..count).map(shard).collect() }
    }

    /// Creates rows 0 to `rows` on the first server.
    pub(crate) fn fill(&self, rows: u64) {
        for start in (0..rows).step_by(BATCH as usize) {
            let ids: Vec<u64> = (start..rows.min(start + BATCH)).collect();
            let (segments, ids) = request_of(&ids);
            let (access, encoding) = (Access::Train as i32, Encoding::F32 as i32);
            let request = LookupRequest { generation: 1, segments, ids, access, encoding, ..LookupRequest::default() };
            self.runtime.block_on(self.shards[0].lookup(request, Deadline::from_now(TIMEOUT))).expect("rows are made");
        }
    }

    pub(crate) fn save(&self, folder: &Path) -> Vec<SaveResponse> {
        let request = SaveRequest { folder: folder.display().to_string(), ..SaveRequest::default() };
        let save = |shard: &LocalShard| self.runtime.block_on(shard.save(request.clone())).expect("a save");
        self.shards.iter().map(save).collect()
    }

    /// Loads into every server. Returns the number of rows of all servers.
    pub(crate) fn load(&self, folder: &Path, files: &[FileDigest]) -> u64 {
        let (folder, files) = (folder.display().to_string(), files.to_vec());
        let request = LoadRequest { folder, files, ..LoadRequest::default() };
        let load = |shard: &LocalShard| self.runtime.block_on(shard.load(request.clone())).expect("a load").rows;
        self.shards.iter().map(load).sum()
    }
}

pub(crate) fn request_of(ids: &[u64]) -> (bytes::Bytes, bytes::Bytes) {
    let segment = Segment { table: TableId(0), rows: ids.len() as u32, dim: DIM };
    (Segments::new(vec![segment]).pack().into(), encode_ids(ids).into())
}

fn job(servers: u32) -> Job {
    let text = format!(
        r#"
        data = {{ format = "delimited", train = "train.csv", columns = ["label", "user"], header = false }}
        features = {{ label = "label", categorical = ["user"] }}
        embedding = {{ dim = {DIM}, optimizer = {{ kind = "adagrad", lr = 0.05 }} }}
        model = {{ kind = "ffnn" }}
        checkpoint = {{ deltas = 1 }}
        cluster = {{ servers = {servers}, buckets = {BUCKETS} }}
        "#
    );
    Job::parse(&text, Path::new("bench.toml"), &Overrides::none()).expect("a job")
}
