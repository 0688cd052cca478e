//! Services for unit tests.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use bytes::Bytes;
use prometheus::Registry;
use zagros_job::{Job, Overrides};
use zagros_plumbing::Deadline;
use zagros_protocol::datapath::{Access, Encoding, LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::packed::{SegmentBags, decode_values, encode_ids, encode_values, pack_bags};
use zagros_protocol::{BucketMap, Generation, Refusal, Segment, Segments, ServerIndex, TableId};

use crate::datapath::RequestTimes;
use crate::{EmbeddingService, datapath};

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
        [data]
        format = "delimited"
        train = "train.csv"
        columns = ["label", "user", "item"]
        header = false
        [features]
        label = "label"
        categorical = ["user", "item"]
        [embedding]
        dim = {DIM}
        [tables.item]
        optimizer = {{ kind = "sgd", lr = 1.0 }}
        [model]
        kind = "ffnn"
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

/// A server at generation 1 of an even map.
pub(crate) fn placed(servers: u32, index: u32) -> Arc<EmbeddingService> {
    let service = service(servers, index);
    service.set_placement(Arc::new(BucketMap::split_evenly(Generation(1), BUCKETS, servers)));
    service
}

/// The only server of a job, at generation 1.
pub(crate) fn placed_with(job: &Job) -> Arc<EmbeddingService> {
    let service = EmbeddingService::new(job, ServerIndex(0), &Registry::new()).unwrap();
    service.set_placement(Arc::new(BucketMap::split_evenly(Generation(1), BUCKETS, 1)));
    service
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
    LookupRequest { generation: 1, segments, ids, access, encoding, bags: Bytes::new(), ..LookupRequest::default() }
}

/// Push number `seq` of writer 9 at generation 1. All gradients are equal.
pub(crate) fn push_of(parts: &[(u32, &[u64])], seq: u64, gradient: f32) -> PushRequest {
    let (segments, ids) = rows(parts);
    let values = vec![gradient; ids.len() / 8 * DIM as usize];
    let gradients = encode_values(&values, Encoding::F32 as i32).unwrap().into();
    let (encoding, bags) = (Encoding::F32 as i32, Bytes::new());
    PushRequest {
        generation: 1,
        writer: 9,
        incarnation: 1,
        seq,
        step: seq,
        segments,
        ids,
        gradients,
        encoding,
        bags,
        staleness: 0,
        share: None,
        ..PushRequest::default()
    }
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

/// A lookup whose sender waits.
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
