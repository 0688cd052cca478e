//! A shard that lets someone see what passes through it, one who counts the payload bytes, and one who counts how often each id is pushed,
//! and with which numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use zagros_embedding_client::{Connect, Shard};
use zagros_plumbing::Deadline;
use zagros_protocol::Refusal;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, SaveRequest,
    SaveResponse,
};
use zagros_protocol::datapath::{HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse};

/// Sees what passes; each does nothing unless it is wanted.
pub(crate) trait ShardWatch: Send + Sync {
    fn looks_up(&self, _request: &LookupRequest) {}
    fn looked_up(&self, _answer: &LookupResponse) {}
    fn pushes(&self, _request: &PushRequest) {}
    /// A push of these ids is acknowledged.
    fn pushed(&self, _ids: &[u8]) {}
    fn refuses_to_describe(&self) -> Option<Refusal> {
        None
    }
}

pub(crate) struct WatchedShard<W> {
    shard: Arc<dyn Shard>,
    watch: W,
}

impl<W: ShardWatch> WatchedShard<W> {
    pub(crate) fn new(shard: Arc<dyn Shard>, watch: W) -> Self {
        Self { shard, watch }
    }
}

impl<W: ShardWatch> Shard for WatchedShard<W> {
    fn name(&self) -> &str {
        self.shard.name()
    }

    fn lookup(&self, request: LookupRequest, deadline: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        async move {
            self.watch.looks_up(&request);
            let answer = self.shard.lookup(request, deadline).await?;
            self.watch.looked_up(&answer);
            Ok(answer)
        }
        .boxed()
    }

    fn push(&self, request: PushRequest, deadline: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        async move {
            self.watch.pushes(&request);
            let ids = request.ids.clone();
            let answer = self.shard.push(request, deadline).await?;
            self.watch.pushed(&ids);
            Ok(answer)
        }
        .boxed()
    }

    fn hint(&self, request: HintRequest, deadline: Deadline) -> BoxFuture<'_, Result<HintResponse, Refusal>> {
        self.shard.hint(request, deadline)
    }

    fn describe(&self, request: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        match self.watch.refuses_to_describe() {
            Some(refusal) => std::future::ready(Err(refusal)).boxed(),
            None => self.shard.describe(request),
        }
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        self.shard.save(request)
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        self.shard.load(request)
    }

    fn forget(&self, request: ForgetRequest) -> BoxFuture<'_, Result<ForgetResponse, Refusal>> {
        self.shard.forget(request)
    }
}

pub(crate) struct PayloadCounter(pub(crate) Arc<AtomicU64>);

impl PayloadCounter {
    fn count(&self, payloads: &[&[u8]]) {
        let bytes: usize = payloads.iter().map(|payload| payload.len()).sum();
        self.0.fetch_add(bytes as u64, Ordering::AcqRel);
    }
}

impl ShardWatch for PayloadCounter {
    fn looks_up(&self, request: &LookupRequest) {
        self.count(&[&request.segments, &request.ids, &request.bags]);
    }

    fn looked_up(&self, answer: &LookupResponse) {
        self.count(&[&answer.rows]);
    }

    fn pushes(&self, request: &PushRequest) {
        self.count(&[&request.segments, &request.ids, &request.bags, &request.gradients]);
    }
}

/// By id of any table, how many acknowledged pushes it was in.
#[derive(Clone, Default)]
pub(crate) struct PushTally(Arc<Mutex<BTreeMap<u64, u32>>>, Arc<Mutex<Vec<PushedNumbers>>>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct PushedNumbers {
    pub(crate) incarnation: u32,
    pub(crate) seq: u64,
    pub(crate) step: u64,
}

impl PushTally {
    pub(crate) fn watch(&self, connect: &Connect) -> Connect {
        let (tally, connect) = (self.clone(), Arc::clone(connect));
        Arc::new(move |entry| Ok(Arc::new(WatchedShard::new(connect(entry)?, tally.clone())) as Arc<dyn Shard>))
    }

    /// Pushes in the order in which they were started.
    pub(crate) fn pushes(&self) -> Vec<PushedNumbers> {
        self.1.lock().unwrap().clone()
    }

    pub(crate) fn by_id(&self) -> BTreeMap<u64, u32> {
        self.0.lock().unwrap().clone()
    }
}

impl ShardWatch for PushTally {
    fn pushes(&self, request: &PushRequest) {
        let PushRequest { incarnation, seq, step, .. } = *request;
        self.1.lock().unwrap().push(PushedNumbers { incarnation, seq, step });
    }

    fn pushed(&self, ids: &[u8]) {
        let mut pushes = self.0.lock().unwrap();
        for id in ids.as_chunks::<8>().0 {
            *pushes.entry(u64::from_le_bytes(*id)).or_default() += 1;
        }
    }
}
