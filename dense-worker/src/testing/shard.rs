//! The fake embedding server of all tests, as a shard of a worker.

use std::ops::Deref;

use futures::FutureExt;
use futures::future::BoxFuture;
use zagros_embedding_client::Shard;
use zagros_plumbing::Deadline;
use zagros_protocol::Refusal;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, SaveRequest,
    SaveResponse,
};
use zagros_protocol::datapath::{HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse};

#[derive(Default)]
pub(crate) struct WorkerShard(zagros_fakes::FakeShard);

impl From<zagros_fakes::FakeShard> for WorkerShard {
    fn from(shard: zagros_fakes::FakeShard) -> Self {
        Self(shard)
    }
}

impl Deref for WorkerShard {
    type Target = zagros_fakes::FakeShard;

    fn deref(&self) -> &zagros_fakes::FakeShard {
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
