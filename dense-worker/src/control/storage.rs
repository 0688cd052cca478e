//! Embedding servers whose storage calls are tried again.
//!
//! Lookups and pushes are retried by the client. Describing, saving and loading go to one server at a time, mostly at the
//! end of a run: one connection that breaks then must not cost hours of training.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::Instant;
use tracing::warn;
use zagros_embedding_client::{Connect, Shard};
use zagros_plumbing::Backoff;
use zagros_protocol::Refusal;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, LoadRequest, LoadResponse, SaveRequest, SaveResponse,
};
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};

/// Reaches the same servers. A storage call that fails is repeated for `timeout` after its first failure: it may have
/// taken long itself.
pub(super) fn retry_storage(connect: Connect, timeout: Duration) -> Connect {
    Arc::new(move |entry| {
        let shard = connect(entry)?;
        Ok(Arc::new(Retried { shard, timeout }) as Arc<dyn Shard>)
    })
}

struct Retried {
    shard: Arc<dyn Shard>,
    timeout: Duration,
}

impl Retried {
    fn retry<'a, Q: Clone + Send + 'a, R: Send + 'a>(
        &'a self,
        what: &'static str,
        request: Q,
        call: impl Fn(&'a dyn Shard, Q) -> BoxFuture<'a, Result<R, Refusal>> + Send + 'a,
    ) -> BoxFuture<'a, Result<R, Refusal>> {
        async move {
            let (mut tries, mut first_failure) = (0, None);
            loop {
                let refusal = match call(self.shard.as_ref(), request.clone()).await {
                    Err(refusal) if refusal.kind.is_retryable() => refusal,
                    answer => return answer,
                };
                let since = *first_failure.get_or_insert_with(Instant::now);
                if since.elapsed() >= self.timeout {
                    return Err(refusal);
                }
                warn!(server = self.shard.name(), %refusal, "could not {what}; trying again");
                tokio::time::sleep(Backoff::default().pause(tries)).await;
                tries += 1;
            }
        }
        .boxed()
    }
}

impl Shard for Retried {
    fn name(&self) -> &str {
        self.shard.name()
    }

    fn lookup(&self, request: LookupRequest) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        self.shard.lookup(request)
    }

    fn push(&self, request: PushRequest) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        self.shard.push(request)
    }

    fn describe(&self, request: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        self.retry("describe tables", request, |shard, request| shard.describe(request))
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        self.retry("save rows", request, |shard, request| shard.save(request))
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        self.retry("load rows", request, |shard, request| shard.load(request))
    }
}

#[cfg(test)]
mod tests {
    use zagros_protocol::RefusalKind;
    use zagros_protocol::control::ServerEntry;

    use super::*;
    use crate::testing::FakeShard;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn retried(shard: &Arc<FakeShard>) -> Arc<dyn Shard> {
        let shard = Arc::clone(shard);
        let connect: Connect = Arc::new(move |_| Ok(Arc::clone(&shard) as Arc<dyn Shard>));
        retry_storage(connect, TIMEOUT)(&ServerEntry::default()).unwrap()
    }

    fn unavailable() -> Refusal {
        Refusal::new(RefusalKind::Unavailable, "connection reset by peer")
    }

    #[tokio::test(start_paused = true)]
    async fn one_connection_that_breaks_ends_no_save_and_no_description() {
        let shard = Arc::new(FakeShard::default().refusing_storage([unavailable(), unavailable()]));
        retried(&shard).save(SaveRequest::default()).await.unwrap();
        let shard = Arc::new(FakeShard::default().refusing_storage([unavailable()]));
        retried(&shard).describe(DescribeRequest::default()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stays_away_is_given_up_after_the_timeout_and_one_that_refuses_at_once() {
        let away = Arc::new(FakeShard::default().refusing_storage(std::iter::repeat_n(unavailable(), 10_000)));
        let started = Instant::now();
        let refusal = retried(&away).describe(DescribeRequest::default()).await.unwrap_err();
        assert_eq!(refusal, unavailable());
        assert!((TIMEOUT..TIMEOUT * 2).contains(&started.elapsed()), "{:?}", started.elapsed());
        let full = Refusal::new(RefusalKind::Internal, "no space left on device");
        let broken = Arc::new(FakeShard::default().refusing_storage([full.clone(), unavailable()]));
        let started = Instant::now();
        assert_eq!(retried(&broken).save(SaveRequest::default()).await.unwrap_err(), full);
        assert_eq!(started.elapsed(), Duration::ZERO);
    }
}
