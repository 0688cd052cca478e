//! A server's rows reported and saved, whatever becomes of the connection meanwhile.
//!
//! At the end of a run hours of training hang on these calls. A retry is safe: telling changes nothing, a save says by a
//! number of its own which one it is, so that the server answers with what the first try did, and a load that replaces
//! starts over. A server that was started anew in between refuses, for it has none of the rows.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tracing::debug;
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, LoadRequest, LoadResponse, SaveRequest, SaveResponse,
};
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::{Refusal, RefusalKind};

use crate::Shard;

/// A server whose storage calls are tried again while it cannot be reached.
pub(crate) struct PatientShard {
    shard: Arc<dyn Shard>,
    timeout: Duration,
}

impl PatientShard {
    /// Waits for a server that is away for so long.
    pub(crate) fn new(shard: Arc<dyn Shard>, timeout: Duration) -> Self {
        Self { shard, timeout }
    }

    /// Calls until it is served, refused for good, or the server has been away for as long as the timeout, counted from
    /// the first try that failed: a save may take hours.
    async fn retry<'a, T>(&'a self, call: impl Fn() -> BoxFuture<'a, Result<T, Refusal>>) -> Result<T, Refusal> {
        let (mut away, mut tries) = (None, 0);
        loop {
            let refusal = match call().await {
                Err(refusal) if refusal.kind == RefusalKind::Unavailable => refusal,
                done => return done,
            };
            let deadline = *away.get_or_insert_with(|| Deadline::after(self.timeout));
            if deadline.is_past() {
                return Err(refusal);
            }
            debug!(server = self.shard.name(), tries, %refusal, "request was not served");
            tokio::time::sleep(Backoff::default().pause(tries).min(deadline.left())).await;
            tries += 1;
        }
    }
}

impl Shard for PatientShard {
    fn name(&self) -> &str {
        self.shard.name()
    }

    fn lookup(&self, request: LookupRequest, deadline: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        self.shard.lookup(request, deadline)
    }

    fn push(&self, request: PushRequest, deadline: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        self.shard.push(request, deadline)
    }

    fn describe(&self, request: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        async move { self.retry(|| self.shard.describe(request)).await }.boxed()
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        let request = SaveRequest { attempt: rand::random(), ..request };
        async move { self.retry(|| self.shard.save(request.clone())).await }.boxed()
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        if !request.replace {
            // Counts that were added already would be added again.
            return self.shard.load(request);
        }
        async move { self.retry(|| self.shard.load(request.clone())).await }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use futures::future::ready;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Fails as reported, first to last, and then serves.
    struct Flaky {
        failures: Mutex<VecDeque<RefusalKind>>,
        attempts: Mutex<Vec<u64>>,
    }

    impl Flaky {
        fn answer<T: Send + 'static>(&self, good: T) -> BoxFuture<'static, Result<T, Refusal>> {
            let failure = self.failures.lock().unwrap().pop_front();
            ready(failure.map_or(Ok(good), |kind| Err(Refusal::new(kind, "as the test wants")))).boxed()
        }
    }

    impl Shard for Flaky {
        fn name(&self) -> &str {
            "flaky"
        }

        fn lookup(&self, _: LookupRequest, _: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
            self.answer(LookupResponse::default())
        }

        fn push(&self, _: PushRequest, _: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
            self.answer(PushResponse::default())
        }

        fn describe(&self, _: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
            self.answer(DescribeResponse::default())
        }

        fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
            self.attempts.lock().unwrap().push(request.attempt);
            self.answer(SaveResponse::default())
        }

        fn load(&self, _: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
            self.answer(LoadResponse::default())
        }
    }

    fn flaky(failures: &[RefusalKind]) -> (Arc<Flaky>, PatientShard) {
        let flaky =
            Arc::new(Flaky { failures: Mutex::new(failures.iter().copied().collect()), attempts: Mutex::default() });
        (flaky.clone(), PatientShard::new(flaky, TIMEOUT))
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_connection_fails_no_save_and_the_server_hears_that_it_is_the_same_one() {
        use RefusalKind::Unavailable;
        let (flaky, shard) = flaky(&[Unavailable, Unavailable]);
        shard.save(SaveRequest::default()).await.unwrap();
        shard.save(SaveRequest::default()).await.unwrap();
        let attempts = flaky.attempts.lock().unwrap().clone();
        assert!(matches!(attempts[..], [a, b, c, d] if a == b && b == c && c != d && a != 0), "{attempts:?}");
        for failures in [[Unavailable; 2], [Unavailable; 2]] {
            flaky.failures.lock().unwrap().extend(failures);
            shard.describe(DescribeRequest {}).await.unwrap();
            flaky.failures.lock().unwrap().extend(failures);
            shard.load(LoadRequest { replace: true, ..LoadRequest::default() }).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_and_a_server_that_stays_away_are_reported() {
        use RefusalKind::{Internal, Moved, Unavailable};
        for final_one in [Internal, Moved] {
            let (_, shard) = flaky(&[Unavailable, final_one]);
            assert_eq!(shard.save(SaveRequest::default()).await.unwrap_err().kind, final_one);
        }
        let (_, shard) = flaky(&[Unavailable]);
        assert!(shard.load(LoadRequest::default()).await.is_err(), "rows would be added twice");
        let started = tokio::time::Instant::now();
        let (_, shard) = flaky(&[Unavailable; 1000]);
        assert_eq!(shard.describe(DescribeRequest {}).await.unwrap_err().kind, Unavailable);
        assert!(started.elapsed() >= TIMEOUT && started.elapsed() < TIMEOUT * 2, "{:?}", started.elapsed());
    }
}
