//! Services for unit tests.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus::Registry;
use zagros_job::{Job, Overrides};
use zagros_plumbing::Deadline;
use zagros_protocol::control::{FileDigest, LoadRequest, SaveRequest};
use zagros_protocol::datapath::{Access, Encoding, LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::packed::{SegmentBags, decode_values, encode_ids, encode_values, pack_bags};
use zagros_protocol::{BucketMap, Generation, Refusal, Segment, Segments, ServerIndex, TableId};
use zagros_rows::log::{LogDisk, SystemDisk};
use zagros_table::RowBatch;

use crate::datapath::RequestTimes;
use crate::{EmbeddingService, ServerError, datapath};

/// Values per row of both tables.
pub(crate) const DIM: u32 = 4;
/// Buckets of [`placed`].
pub(crate) const BUCKETS: u32 = 64;

/// A sender with this timeout hardly waits.
const SHORT: Duration = Duration::from_millis(50);

/// A job with two tables: `user` uses Adagrad, `item` uses SGD with learning rate 1.
pub(crate) fn job(servers: u32) -> Job {
    job_with(servers, "")
}

/// The same job with more keys in `[cluster]`.
pub(crate) fn job_with(servers: u32, cluster: &str) -> Job {
    let text = format!(
        r#"
        data = {{ format = "delimited", train = "train.csv", columns = ["label", "user", "item"], header = false }}
        features = {{ label = "label", categorical = ["user", "item"] }}
        embedding = {{ dim = {DIM} }}
        tables.item.optimizer = {{ kind = "sgd", lr = 1.0 }}
        model = {{ kind = "ffnn" }}
        [cluster]
        servers = {servers}
        buckets = {BUCKETS}
        {cluster}
        "#
    );
    Job::parse(&text, Path::new("test.toml"), &Overrides::none()).unwrap()
}

/// A server without a placement.
pub(crate) fn service(servers: u32, index: u32) -> Arc<EmbeddingService> {
    EmbeddingService::new(&job(servers), ServerIndex(index), &Registry::new()).unwrap()
}

/// The map of generation 1.
pub(crate) fn even_map(servers: u32) -> Arc<BucketMap> {
    Arc::new(BucketMap::split_evenly(Generation(1), BUCKETS, servers))
}

/// A server at generation 1 of an even map.
pub(crate) fn placed(servers: u32, index: u32) -> Arc<EmbeddingService> {
    placed_at(&job(servers), index)
}

/// The first server of a job, at generation 1.
pub(crate) fn placed_with(job: &Job) -> Arc<EmbeddingService> {
    placed_at(job, 0)
}

pub(crate) fn placed_at(job: &Job, index: u32) -> Arc<EmbeddingService> {
    let service = EmbeddingService::new(job, ServerIndex(index), &Registry::new()).unwrap();
    service.set_placement(even_map(job.cluster.servers));
    service
}

/// A server with 1 MiB of memory, before it has a placement.
pub(crate) fn limited(folder: &Path, registry: &Registry) -> Result<Arc<EmbeddingService>, ServerError> {
    let cluster = format!("memory = \"1MiB\"\ncold_folder = {folder:?}");
    EmbeddingService::new(&job_with(1, &cluster), ServerIndex(0), registry)
}

/// Segments and ids of a request for rows of [`DIM`] values.
pub(crate) fn rows(parts: &[(u32, &[u64])]) -> (Bytes, Bytes) {
    let segment = |part: &(u32, &[u64])| Segment { table: TableId(part.0), rows: part.1.len() as u32, dim: DIM };
    let ids: Vec<u64> = parts.iter().flat_map(|part| part.1.iter().copied()).collect();
    (Segments::new(parts.iter().map(segment).collect()).pack().into(), encode_ids(&ids).into())
}

pub(crate) fn lookup_of(parts: &[(u32, &[u64])], access: Access) -> LookupRequest {
    let (segments, ids) = rows(parts);
    let (access, encoding) = (access as i32, Encoding::F32 as i32);
    LookupRequest { generation: 1, segments, ids, access, encoding, ..LookupRequest::default() }
}

/// Push number `seq` of writer 9 at generation 1. All gradients are equal.
pub(crate) fn push_of(parts: &[(u32, &[u64])], seq: u64, gradient: f32) -> PushRequest {
    let (segments, ids) = rows(parts);
    let values = vec![gradient; ids.len() / 8 * DIM as usize];
    let encoding = Encoding::F32 as i32;
    let gradients = encode_values(&values, encoding).unwrap().into();
    let payload = PushRequest { segments, ids, gradients, encoding, ..PushRequest::default() };
    PushRequest { generation: 1, writer: 9, incarnation: 1, seq, step: seq, ..payload }
}

/// Bags of segment `segment` of a request. No row is returned by itself.
pub(crate) fn bags(segment: u32, list: &[&[u32]]) -> Bytes {
    let lengths: Vec<u32> = list.iter().map(|bag| bag.len() as u32).collect();
    pack_bags(&[SegmentBags { segment, direct: 0, lengths: &lengths, members: &list.concat() }])
}

/// The deadline of a sender that waits longer than any test.
pub(crate) fn later() -> Deadline {
    Deadline::from_now(Duration::from_secs(3600))
}

pub(crate) fn lookup(service: &EmbeddingService, request: &LookupRequest) -> Result<LookupResponse, Refusal> {
    datapath::lookup(service, request, RequestTimes::new(later()))
}

pub(crate) fn push(service: &EmbeddingService, request: &PushRequest) -> Result<PushResponse, Refusal> {
    datapath::push(service, request, RequestTimes::new(later()))
}

/// Holds up requests like a snapshot that waits for a running request. Dropping this value ends it.
pub(crate) struct HeldGate {
    end: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl HeldGate {
    pub(crate) fn new(service: &Arc<EmbeddingService>) -> Self {
        let (end, ended) = channel::<()>();
        let (entered, under_way) = channel();
        let tables = Arc::clone(&service.tables);
        let request = spawn(move || {
            let _under_way = tables.enter();
            entered.send(()).unwrap();
            let _ = ended.recv();
        });
        under_way.recv().unwrap();
        let tables = Arc::clone(&service.tables);
        let snapshot = spawn(move || drop(tables.take_snapshot()));
        while service.tables.enter_before(RequestTimes::new(Deadline::from_now(SHORT)).deadline).is_ok() {}
        Self { end: Some(end), threads: vec![request, snapshot] }
    }
}

impl Drop for HeldGate {
    fn drop(&mut self) {
        drop(self.end.take());
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// The values that a lookup for reading returns.
pub(crate) fn read(service: &EmbeddingService, parts: &[(u32, &[u64])]) -> Vec<f32> {
    lookup_values(service, &lookup_of(parts, Access::Read))
}

pub(crate) fn lookup_values(service: &EmbeddingService, request: &LookupRequest) -> Vec<f32> {
    let answer = lookup(service, request).unwrap();
    let mut values = vec![f32::NAN; answer.rows.len() / 4];
    decode_values(&answer.rows, answer.encoding, &mut values).unwrap();
    values
}

/// Slot and access metadata of each row.
pub(crate) type Content = BTreeMap<(u32, u64), (Vec<u32>, Option<u32>)>;

/// Rows in memory and in the cold tier.
pub(crate) fn content(services: &[Arc<EmbeddingService>]) -> Content {
    let mut content = Content::new();
    for service in services {
        let snapshot = service.tables.take_snapshot().unwrap();
        for (number, table) in service.tables.iter().enumerate() {
            let mut rows = RowBatch::default();
            (0..table.stripes()).for_each(|stripe| snapshot.read_stripe(number as u32, stripe, &mut rows).unwrap());
            for (row, id) in rows.ids.iter().enumerate() {
                let slot = rows.slots[row * table.stride()..][..table.stride()].to_vec();
                let twice = content.insert((number as u32, *id), (slot, rows.access.get(row).copied()));
                assert!(twice.is_none(), "a row is held twice");
            }
        }
    }
    content
}

/// Rows without their access metadata.
pub(crate) type Slots = BTreeMap<(u32, u64), Vec<u32>>;

pub(crate) fn slots(services: &[Arc<EmbeddingService>]) -> Slots {
    content(services).into_iter().map(|(key, row)| (key, row.0)).collect()
}

pub(crate) fn save_request(folder: &Path) -> SaveRequest {
    SaveRequest { folder: folder.display().to_string(), ..SaveRequest::default() }
}

pub(crate) fn load_request(folder: &Path, files: Vec<FileDigest>) -> LoadRequest {
    LoadRequest { folder: folder.display().to_string(), files, ..LoadRequest::default() }
}

/// Files of whose content nothing is known.
pub(crate) fn unchecked(names: &[String]) -> Vec<FileDigest> {
    names.iter().map(|name| FileDigest { name: name.clone(), ..FileDigest::default() }).collect()
}

/// A disk for logs. The call with the name that is set fails.
#[derive(Debug, Default)]
pub(crate) struct FaultyDisk(Mutex<Option<&'static str>>);

impl FaultyDisk {
    pub(crate) fn fail(&self, call: Option<&'static str>) {
        *self.0.lock() = call;
    }

    fn check(&self, call: &str) -> io::Result<()> {
        match *self.0.lock() {
            Some(failing) if failing == call => Err(io::Error::other(format!("{call} failed"))),
            _ => Ok(()),
        }
    }
}

impl LogDisk for FaultyDisk {
    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<File> {
        self.check("allocate")?;
        SystemDisk.allocate(path, bytes)
    }

    fn write_at(&self, file: &File, bytes: &[u8], place: u64) -> io::Result<()> {
        self.check("write")?;
        SystemDisk.write_at(file, bytes, place)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.check("sync")?;
        SystemDisk.sync(file)
    }
}
