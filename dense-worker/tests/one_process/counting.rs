//! A shard that counts the payload bytes of what it is asked and what it answers, and how often each id is pushed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use zagros_embedding_client::Shard;
use zagros_protocol::Refusal;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, LoadRequest, LoadResponse, SaveRequest, SaveResponse,
};
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};

/// What went to all shards.
#[derive(Default)]
pub(crate) struct Traffic {
    bytes: AtomicU64,
    pushes: Mutex<BTreeMap<u64, u32>>,
}

impl Traffic {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    pub(crate) fn pushes_by_id(&self) -> BTreeMap<u64, u32> {
        self.pushes.lock().unwrap().clone()
    }

    fn count_ids(&self, ids: &[u8]) {
        let mut pushes = self.pushes.lock().unwrap();
        for id in ids.as_chunks::<8>().0 {
            *pushes.entry(u64::from_le_bytes(*id)).or_default() += 1;
        }
    }
}

pub(crate) struct Counting {
    shard: Arc<dyn Shard>,
    traffic: Arc<Traffic>,
}

impl Counting {
    pub(crate) fn new(shard: Arc<dyn Shard>, traffic: Arc<Traffic>) -> Self {
        Self { shard, traffic }
    }

    fn count(&self, payloads: &[&[u8]]) {
        let bytes: usize = payloads.iter().map(|payload| payload.len()).sum();
        self.traffic.bytes.fetch_add(bytes as u64, Ordering::AcqRel);
    }
}

impl Shard for Counting {
    fn name(&self) -> &str {
        self.shard.name()
    }

    fn lookup(&self, request: LookupRequest) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        async move {
            self.count(&[&request.segments, &request.ids, &request.bags]);
            let answer = self.shard.lookup(request).await?;
            self.count(&[&answer.rows]);
            Ok(answer)
        }
        .boxed()
    }

    fn push(&self, request: PushRequest) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        self.count(&[&request.segments, &request.ids, &request.bags, &request.gradients]);
        async move {
            let ids = request.ids.clone();
            let answer = self.shard.push(request).await?;
            self.traffic.count_ids(&ids);
            Ok(answer)
        }
        .boxed()
    }

    fn describe(&self, request: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        self.shard.describe(request)
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        self.shard.save(request)
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        self.shard.load(request)
    }
}
