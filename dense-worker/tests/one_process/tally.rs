//! A shard that counts how often each id is pushed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use zagros_embedding_client::{Connect, Shard};
use zagros_protocol::Refusal;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, LoadRequest, LoadResponse, SaveRequest, SaveResponse,
};
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};

/// By id of any table, how many acknowledged pushes it was in.
#[derive(Clone, Default)]
pub(crate) struct Tally(Arc<Mutex<BTreeMap<u64, u32>>>);

struct Tallying {
    shard: Arc<dyn Shard>,
    tally: Tally,
}

impl Tally {
    /// Counts what goes to any of the shards.
    pub(crate) fn of(&self, connect: &Connect) -> Connect {
        let (tally, connect) = (self.clone(), Arc::clone(connect));
        Arc::new(move |entry| Ok(Arc::new(Tallying { shard: connect(entry)?, tally: tally.clone() }) as Arc<dyn Shard>))
    }

    pub(crate) fn by_id(&self) -> BTreeMap<u64, u32> {
        self.0.lock().unwrap().clone()
    }

    fn add(&self, ids: &[u8]) {
        let mut pushes = self.0.lock().unwrap();
        for id in ids.as_chunks::<8>().0 {
            *pushes.entry(u64::from_le_bytes(*id)).or_default() += 1;
        }
    }
}

impl Shard for Tallying {
    fn name(&self) -> &str {
        self.shard.name()
    }

    fn lookup(&self, request: LookupRequest) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        self.shard.lookup(request)
    }

    fn push(&self, request: PushRequest) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        async move {
            let ids = request.ids.clone();
            let answer = self.shard.push(request).await?;
            self.tally.add(&ids);
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
