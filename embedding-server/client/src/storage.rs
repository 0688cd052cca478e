//! Storage calls of a server, retried until they succeed or the server has not answered for the timeout. They survive a
//! broken connection and a restart of the server's process.
//!
//! At the end of a run, hours of training depend on these calls. A retry is safe: a describe call changes nothing, and a save
//! and a load carry a number of their own, so the server answers a retry with the result of the first try. A new process that
//! has recovered the rows of the earlier process serves the call. A new process without these rows refuses it.
//!
//! A save or a load names the bucket map under which its server was listed. If buckets have moved since, the server refuses
//! it, and the caller asks all servers again: otherwise a bucket would be saved twice, or not at all (invariant CK-2).

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tracing::debug;
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, SaveRequest,
    SaveResponse, SaveStage,
};
use zagros_protocol::datapath::{HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::{Generation, Refusal, RefusalKind};
use zagros_zip::number_from;

use crate::placement::{ConnectedServer, Placement, PlacementCache};
use crate::{ClientError, Shard};

/// A server whose storage calls are retried while it cannot be reached. Its calls of the data path are not.
pub(crate) struct RetryingShard {
    index: u32,
    listed: Arc<Placement>,
    placements: Arc<PlacementCache>,
}

impl RetryingShard {
    /// All servers of a placement, in the order of their indices. A call goes to the address in the newest placement. It waits
    /// as long as the timeout of `placements`.
    pub(crate) fn from_placement(listed: &Arc<Placement>, placements: &Arc<PlacementCache>) -> Vec<Arc<dyn Shard>> {
        let shard = |(index, _)| Self { index, listed: Arc::clone(listed), placements: Arc::clone(placements) };
        number_from(0, listed.shards()).map(|listed| Arc::new(shard(listed)) as Arc<dyn Shard>).collect()
    }

    /// The process that serves now. A server that owns nothing any more, and is therefore not in `placement`, still writes
    /// the files of its last snapshot.
    fn current_server<'a>(&'a self, placement: &'a Placement) -> Option<&'a ConnectedServer> {
        placement.server(self.index).or_else(|| self.listed.server(self.index))
    }

    fn current_shard(&self, placement: &Placement) -> Result<Arc<dyn Shard>, Refusal> {
        let gone = || Refusal::new(RefusalKind::Internal, format!("there is no embedding server {}", self.index));
        self.current_server(placement).map(|server| Arc::clone(&server.shard)).ok_or_else(gone)
    }

    /// Calls until the server answers, refuses for good, or has not answered for the timeout. The timeout counts from
    /// the first failed try, because a save may take hours.
    async fn retry<T>(&self, call: impl Fn(Arc<dyn Shard>) -> Answer<T>) -> Result<T, Refusal> {
        let (mut away, mut tries) = (None, 0);
        loop {
            let placement = self.placements.current().await.map_err(no_server)?;
            let refusal = match call(self.current_shard(&placement)?).await {
                Err(refusal)
                    if matches!(refusal.kind, RefusalKind::Unavailable | RefusalKind::Disk | RefusalKind::Moved) =>
                {
                    refusal
                }
                done => return done,
            };
            let deadline = *away.get_or_insert_with(|| Deadline::from_now(self.placements.timeout));
            if deadline.is_past() {
                return Err(refusal);
            }
            debug!(server = self.name(), tries, %refusal, "request was not served");
            if refusal.kind != RefusalKind::Moved {
                tokio::time::sleep(Backoff::default().pause_before(tries).min(deadline.time_left())).await;
            }
            self.placements.fetch_newer(&placement, deadline).await.map_err(no_server)?;
            // Buckets have moved. Or another process is in the server's place, and the directory does not know of a newer one.
            let now = self.placements.current().await.map_err(no_server)?;
            let instance = |placement| self.current_server(placement).map(|server| server.entry.instance);
            if refusal.kind == RefusalKind::Moved && instance(&now) == instance(&placement) {
                return Err(refusal);
            }
            tries += 1;
        }
    }
}

type Answer<T> = BoxFuture<'static, Result<T, Refusal>>;

/// A call that may be made several times, with a copy of its request each time.
fn repeatable<Q: Clone, T>(
    request: Q,
    call: impl Fn(Arc<dyn Shard>, Q) -> Answer<T>,
) -> impl Fn(Arc<dyn Shard>) -> Answer<T> {
    move |shard| call(shard, request.clone())
}

/// No server can answer: its rows are lost, or the coordinator does not report its address.
fn no_server(error: ClientError) -> Refusal {
    Refusal::new(RefusalKind::Internal, error)
}

impl Shard for RetryingShard {
    fn name(&self) -> &str {
        self.listed.shard(self.index).name()
    }

    fn lookup(&self, request: LookupRequest, deadline: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        self.listed.shard(self.index).lookup(request, deadline)
    }

    fn push(&self, request: PushRequest, deadline: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        self.listed.shard(self.index).push(request, deadline)
    }

    fn hint(&self, request: HintRequest, deadline: Deadline) -> BoxFuture<'_, Result<HintResponse, Refusal>> {
        self.listed.shard(self.index).hint(request, deadline)
    }

    fn describe(&self, request: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        self.retry(move |shard| async move { shard.describe(request).await }.boxed()).boxed()
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        // The files of a snapshot are those of the map at the snapshot.
        let is_snapshot = request.stage() != SaveStage::Files;
        let generation = if is_snapshot { self.listed.map.generation() } else { Generation::NONE };
        let request = SaveRequest { attempt: rand::random(), generation: generation.0, ..request };
        self.retry(repeatable(request, |shard, request| async move { shard.save(request).await }.boxed())).boxed()
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        let generation = self.listed.map.generation().0;
        let request = LoadRequest { attempt: rand::random(), generation, ..request };
        self.retry(repeatable(request, |shard, request| async move { shard.load(request).await }.boxed())).boxed()
    }

    fn forget(&self, request: ForgetRequest) -> BoxFuture<'_, Result<ForgetResponse, Refusal>> {
        let request = ForgetRequest { generation: self.listed.map.generation().0, ..request };
        self.retry(repeatable(request, |shard, request| async move { shard.forget(request).await }.boxed())).boxed()
    }
}

#[cfg(test)]
mod tests {
    use zagros_fakes::{FakeControlPlane, FakeShard, ScriptedFault};
    use zagros_protocol::BucketMap;
    use zagros_protocol::control::ServerEntry;

    use super::*;
    use crate::placement::Connect;
    use crate::testing::Cluster;
    use RefusalKind::{Internal, Moved, Unavailable};

    const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

    /// Refuses with these kinds in order, then serves.
    async fn flaky(failures: &[RefusalKind]) -> (Arc<FakeShard>, Arc<dyn Shard>) {
        let flaky = Arc::new(FakeShard::default());
        fail(&flaky, failures);
        let control = Cluster::new(1).control;
        (flaky.clone(), retrying(control, flaky).await)
    }

    fn fail(shard: &FakeShard, failures: &[RefusalKind]) {
        shard.faults.lock().unwrap().extend(failures.iter().copied().map(ScriptedFault::Refuse));
    }

    /// A server that the coordinator always names, with the same process or another one.
    async fn retrying(control: Arc<FakeControlPlane>, flaky: Arc<FakeShard>) -> Arc<dyn Shard> {
        let connect: Connect = Arc::new(move |_| Ok(flaky.clone() as Arc<dyn Shard>));
        let placements = Arc::new(PlacementCache::new(control, connect, TIMEOUT));
        let listed = placements.current().await.unwrap();
        RetryingShard::from_placement(&listed, &placements).remove(0)
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_connection_fails_no_save_and_the_server_hears_that_it_is_the_same_one() {
        let (flaky, shard) = flaky(&[Unavailable, Unavailable]).await;
        shard.save(SaveRequest::default()).await.unwrap();
        shard.save(SaveRequest::default()).await.unwrap();
        let attempts = flaky.save_attempts.lock().unwrap().clone();
        assert!(matches!(attempts[..], [a, b, c, d] if a == b && b == c && c != d && a != 0), "{attempts:?}");
        for _ in 0..2 {
            fail(&flaky, &[Unavailable; 2]);
            shard.describe(DescribeRequest {}).await.unwrap();
            fail(&flaky, &[Unavailable; 2]);
            shard.load(LoadRequest::default()).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_and_a_server_that_stays_away_are_reported() {
        for final_one in [Internal, Moved] {
            let (_, shard) = flaky(&[Unavailable, final_one]).await;
            assert_eq!(shard.save(SaveRequest::default()).await.unwrap_err().kind, final_one);
        }
        let started = tokio::time::Instant::now();
        let (_, shard) = flaky(&[Unavailable; 1000]).await;
        assert_eq!(shard.describe(DescribeRequest {}).await.unwrap_err().kind, Unavailable);
        assert!(started.elapsed() >= TIMEOUT && started.elapsed() < TIMEOUT * 2, "{:?}", started.elapsed());
    }

    /// The process before was killed: the server at its address refuses what is meant for that one.
    #[tokio::test(start_paused = true)]
    async fn a_process_that_has_the_rows_serves_in_the_place_of_the_one_before_and_another_does_not() {
        for (lineage, fault, is_served) in
            [(7, Moved, true), (7, Unavailable, true), (8, Moved, false), (8, Unavailable, false)]
        {
            let cluster = Cluster::new(1);
            cluster.announce(1, |entry| ServerEntry { lineage: 7, ..entry });
            let flaky = Arc::new(FakeShard::default());
            let shard = retrying(cluster.control.clone(), flaky.clone()).await;
            shard.describe(DescribeRequest {}).await.unwrap();
            cluster.announce(1, |entry| ServerEntry { lineage, instance: 2, ..entry });
            fail(&flaky, &[fault]);
            let saved = shard.save(SaveRequest::default()).await;
            assert_eq!(saved.as_ref().err().map(|refusal| refusal.kind), (!is_served).then_some(Internal));
            if let Err(refusal) = saved {
                assert!(refusal.message.contains("embedding server 0 (fake) was restarted"), "{refusal}");
            }
        }
    }

    /// Invariant CK-2.
    #[tokio::test(start_paused = true)]
    async fn a_save_and_a_load_name_the_map_of_their_list_and_the_files_of_a_snapshot_none() {
        let (flaky, shard) = flaky(&[]).await;
        for stage in [SaveStage::Whole, SaveStage::Capture, SaveStage::Files] {
            shard.save(SaveRequest { stage: stage.into(), ..SaveRequest::default() }).await.unwrap();
        }
        shard.load(LoadRequest::default()).await.unwrap();
        assert_eq!(*flaky.storage_generations.lock().unwrap(), [1, 1, 0, 1]);
    }

    /// Its last snapshot is being written when a server's buckets are gone.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_owns_nothing_any_more_still_writes_its_files() {
        let cluster = Cluster::new(2);
        let placements = Arc::new(PlacementCache::new(cluster.control.clone(), cluster.connect(), TIMEOUT));
        let servers = RetryingShard::from_placement(&placements.current().await.unwrap(), &placements);
        cluster.announce_owners(&BucketMap::split_evenly(Generation(2), 64, 1));
        placements.refresh().await.unwrap();
        let files = SaveRequest { stage: SaveStage::Files.into(), ..SaveRequest::default() };
        assert_eq!(servers[1].save(files).await.unwrap().files[0].name, "rows-1.zrows");
        assert_eq!(servers[1].name(), "embedding server 1 (fake)");
    }
}
