//! Storage calls that all embedding servers answer under one bucket map.
//!
//! Together they save or load each bucket once (invariant CK-2). If buckets move between the answers, one of the servers
//! refuses, and all are asked again. Numbers travel between them and a worker as the job has it.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use tracing::debug;
use zagros_embedding_client::{EmbeddingClient, Shard};
use zagros_job::{Job, WireFormat};
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::datapath::Encoding;
use zagros_protocol::{Refusal, RefusalKind};
use zagros_zip::number_from;

use crate::error::WorkerError;

/// The embedding servers of a run, of which there may be more or fewer at the next call.
pub(crate) trait RowServers: Sync {
    /// The servers of the newest bucket map, in the order of their indices.
    fn newest(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Shard>>, WorkerError>>;
    /// For how long calls are repeated while buckets move.
    fn timeout(&self) -> Duration;
}

impl RowServers for EmbeddingClient {
    fn newest(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Shard>>, WorkerError>> {
        async { self.newest_servers().await.map_err(WorkerError::Servers) }.boxed()
    }

    fn timeout(&self) -> Duration {
        self.request_timeout()
    }
}

/// Calls all servers, with their indices. Returns the servers of one bucket map and their answers.
///
/// # Errors
/// The first error of a server. A server refuses with `moved` only if buckets have moved for longer than the timeout.
pub(crate) async fn on_all<T, F>(
    servers: &dyn RowServers,
    call: impl Fn(u32, Arc<dyn Shard>) -> F,
) -> Result<(Vec<Arc<dyn Shard>>, Vec<T>), WorkerError>
where
    F: Future<Output = Result<T, WorkerError>>,
{
    let deadline = Deadline::from_now(servers.timeout());
    let mut tries = 0;
    loop {
        let listed = servers.newest().await?;
        // A server that still works on one call would refuse the next one.
        let answers = join_all(number_from(0, &listed).map(|(index, server)| call(index, Arc::clone(server)))).await;
        match answers.into_iter().collect::<Result<_, _>>() {
            Err(WorkerError::Storage { server, refusal, .. })
                if refusal.kind == RefusalKind::Moved && !deadline.is_past() =>
            {
                debug!(server, %refusal, "buckets have moved, so all embedding servers are called again");
                tokio::time::sleep(Backoff::default().pause_before(tries).min(deadline.time_left())).await;
                tries += 1;
            }
            answers => return answers.map(|answers| (listed, answers)),
        }
    }
}

/// A server could not do something with its rows.
pub(crate) fn storage_error(server: &dyn Shard, what: &'static str, refusal: Refusal) -> WorkerError {
    WorkerError::Storage { server: server.name().to_owned(), what, refusal }
}

pub(crate) fn wire_encoding(job: &Job) -> Encoding {
    match job.cluster.wire {
        WireFormat::F32 => Encoding::F32,
        WireFormat::F16 => Encoding::F16,
        WireFormat::Bf16 => Encoding::Bf16,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use zagros_fakes::{FakeShard, ScriptedFault};
    use zagros_protocol::control::DescribeRequest;

    use super::*;
    use crate::testing::WorkerShard;

    const TIMEOUT: Duration = Duration::from_secs(30);

    impl RowServers for Vec<Arc<dyn Shard>> {
        fn newest(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Shard>>, WorkerError>> {
            std::future::ready(Ok(self.clone())).boxed()
        }

        fn timeout(&self) -> Duration {
            TIMEOUT
        }
    }

    struct GrowingServers(Mutex<usize>, Vec<Arc<dyn Shard>>);

    impl RowServers for GrowingServers {
        fn newest(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Shard>>, WorkerError>> {
            let mut count = self.0.lock().unwrap();
            *count = (*count + 1).min(self.1.len());
            std::future::ready(Ok(self.1[..*count].to_vec())).boxed()
        }

        fn timeout(&self) -> Duration {
            TIMEOUT
        }
    }

    fn server(faults: impl IntoIterator<Item = RefusalKind>) -> Arc<dyn Shard> {
        let server = FakeShard::default();
        server.faults.lock().unwrap().extend(faults.into_iter().map(ScriptedFault::Refuse));
        Arc::new(WorkerShard(server))
    }

    async fn describe(_: u32, server: Arc<dyn Shard>) -> Result<u64, WorkerError> {
        let refused = |refusal| WorkerError::Storage { server: "it".to_owned(), what: "describe", refusal };
        Ok(server.describe(DescribeRequest {}).await.map_err(refused)?.tables[0].rows)
    }

    /// Invariant CK-2.
    #[tokio::test(start_paused = true)]
    async fn when_one_server_has_another_map_all_servers_of_the_next_map_are_asked() {
        let servers = GrowingServers(Mutex::new(0), vec![server([RefusalKind::Moved]), server([])]);
        let (listed, answers) = on_all(&servers, describe).await.unwrap();
        assert_eq!((listed.len(), answers), (2, vec![1, 1]));
    }

    #[tokio::test(start_paused = true)]
    async fn another_refusal_and_moves_without_end_are_errors() {
        let broken = vec![server([RefusalKind::Internal])];
        assert!(on_all(&broken, describe).await.is_err());
        let moving = vec![server([RefusalKind::Moved; 1000])];
        let started = tokio::time::Instant::now();
        let error = on_all(&moving, describe).await.err().unwrap();
        assert!(matches!(error, WorkerError::Storage { refusal, .. } if refusal.kind == RefusalKind::Moved));
        assert!(started.elapsed() >= TIMEOUT && started.elapsed() < TIMEOUT * 2, "{:?}", started.elapsed());
    }
}
