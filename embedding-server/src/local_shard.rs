//! The server as callers in the same process see it. The gRPC service calls it as well.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use zagros_embedding_client::Shard;
use zagros_plumbing::Deadline;
use zagros_protocol::Refusal;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, SaveRequest,
    SaveResponse, SaveStage,
};
use zagros_protocol::datapath::{HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse};

use crate::datapath::RequestTimes;
use crate::{EmbeddingService, datapath, storage};

/// Requests with at most this many bytes of ids and bags run on the thread that received them. 32 Ki rows take a few
/// milliseconds, less than a handover to another thread is worth. A larger request would keep other connections of the
/// runtime's thread waiting.
const INLINE_ID_BYTES: usize = 32 * 1024 * size_of::<u64>();

#[derive(Clone)]
pub struct LocalShard {
    name: Arc<str>,
    service: Arc<EmbeddingService>,
}

impl LocalShard {
    pub fn new(service: Arc<EmbeddingService>) -> Self {
        Self { name: format!("embedding server {} (in process)", service.server_index()).into(), service }
    }

    /// Runs `work` on this thread if the request is small and needs no disk. Otherwise it runs on a thread that may
    /// block.
    async fn serve_request<Q: Send + 'static, T: Send + 'static>(
        &self,
        bytes: usize,
        may_block: bool,
        request: Q,
        work: impl FnOnce(&EmbeddingService, &Q) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if bytes <= INLINE_ID_BYTES && !may_block {
            return work(&self.service, &request);
        }
        self.service.run_blocking(&self.name, move |service| work(service, &request)).await
    }
}

impl Shard for LocalShard {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup(&self, request: LookupRequest, deadline: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        let times = RequestTimes::new(deadline);
        let may_block = self.service.reads_disk();
        async move {
            self.service.await_placement(request.generation, times.server_deadline(deadline)).await;
            self.service.windows.steps.await_pushes(&request, times.server_deadline(deadline)).await?;
            self.serve_request(request.ids.len() + request.bags.len(), may_block, request, move |service, request| {
                service.metrics.lookup.observe(|| datapath::lookup(service, request, times))
            })
            .await
        }
        .boxed()
    }

    fn push(&self, request: PushRequest, deadline: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        let times = RequestTimes::new(deadline);
        let may_block = self.service.writes_disk();
        async move {
            self.service.await_placement(request.generation, times.server_deadline(deadline)).await;
            self.serve_request(request.ids.len() + request.bags.len(), may_block, request, move |service, request| {
                service.metrics.push.observe(|| datapath::push(service, request, times))
            })
            .await
        }
        .boxed()
    }

    fn hint(&self, request: HintRequest, deadline: Deadline) -> BoxFuture<'_, Result<HintResponse, Refusal>> {
        let times = RequestTimes::new(deadline);
        async move {
            // Without a cold tier every row is in memory.
            if !self.service.reads_disk() {
                return Ok(HintResponse::default());
            }
            let _turn = self.service.hints.wait_for_turn(request.ids.len()).await?;
            let hint = move |service: &EmbeddingService| {
                service.metrics.hint.observe(|| datapath::hint(service, &request, times))
            };
            self.service.run_blocking(&self.name, hint).await
        }
        .boxed()
    }

    fn describe(&self, _: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        async { Ok(self.service.describe_tables()) }.boxed()
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        match request.stage() {
            SaveStage::Whole => storage::SnapshotCaptures::save_whole(Arc::clone(&self.service), request).boxed(),
            SaveStage::Capture => {
                storage::SnapshotCaptures::capture_snapshot(Arc::clone(&self.service), request).boxed()
            }
            SaveStage::Files => {
                async move { storage::SnapshotCaptures::await_files(&self.service, &request).await }.boxed()
            }
        }
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        async move { storage::LastLoad::begin_load(&self.service, request).await }.boxed()
    }

    fn forget(&self, request: ForgetRequest) -> BoxFuture<'_, Result<ForgetResponse, Refusal>> {
        self.service.run_blocking(&self.name, move |service| storage::forget(service, &request)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::testing::{DIM, later, lookup_of, placed, push_of};

    #[tokio::test]
    async fn a_large_request_gets_the_same_answer_as_a_small_one() {
        let shard = LocalShard::new(placed(1, 0));
        assert_eq!(shard.name(), "embedding server 0 (in process)");
        let ids: Vec<u64> = (0..40_000).collect();
        let request = lookup_of(&[(0, &ids)], Access::Train);
        assert!(request.ids.len() > INLINE_ID_BYTES);
        let large = shard.lookup(request, later()).await.unwrap();
        let small = shard.lookup(lookup_of(&[(0, &ids[..100])], Access::Read), later()).await.unwrap();
        assert_eq!((large.created, large.rows.len()), (40_000, 40_000 * DIM as usize * 4));
        assert_eq!(large.rows[..small.rows.len()], small.rows[..]);
        let push = push_of(&[(0, &ids)], 1, 0.5);
        assert!(!shard.push(push.clone(), later()).await.unwrap().duplicate);
        assert!(shard.push(push, later()).await.unwrap().duplicate);
    }

    #[tokio::test]
    async fn a_server_describes_its_rows() {
        let shard = LocalShard::new(placed(1, 0));
        shard.lookup(lookup_of(&[(0, &[1, 2]), (1, &[1])], Access::Train), later()).await.unwrap();
        let tables = shard.describe(DescribeRequest {}).await.unwrap().tables;
        let reported: Vec<_> = tables.iter().map(|table| (table.name.as_str(), table.rows)).collect();
        assert_eq!(reported, [("user", 2), ("item", 1)]);
        assert!(tables.iter().all(|table| table.bytes > 0));
    }
}
