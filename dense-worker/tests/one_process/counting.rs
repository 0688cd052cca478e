//! A shard that counts the payload bytes of what it is asked and what it answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use zagros_embedding_client::Shard;
use zagros_protocol::Refusal;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, LoadRequest, LoadResponse, SaveRequest, SaveResponse,
};
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};

pub(crate) struct Counting {
    shard: Arc<dyn Shard>,
    bytes: Arc<AtomicU64>,
}

impl Counting {
    pub(crate) fn new(shard: Arc<dyn Shard>, bytes: Arc<AtomicU64>) -> Self {
        Self { shard, bytes }
    }

    fn count(&self, payloads: &[&[u8]]) {
        let bytes: usize = payloads.iter().map(|payload| payload.len()).sum();
        self.bytes.fetch_add(bytes as u64, Ordering::AcqRel);
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
        self.shard.push(request)
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
