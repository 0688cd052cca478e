//! Hints to the servers: which rows a later batch needs.
//!
//! A hint is advice. It is sent once, to the servers of the bucket map that is known, and nothing is made of its failure: a server
//! that did not get it, or got it twice or late, answers lookups all the same.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tracing::debug;
use zagros_plumbing::Deadline;
use zagros_protocol::datapath::HintRequest;

use super::client::EmbeddingClient;
use super::route::RoutedIds;

/// The longest time of a hint. Its batch has been looked up by then.
const LONGEST: Duration = Duration::from_secs(10);

impl EmbeddingClient {
    /// Hints the ids of a later batch to their servers. Nothing is sent before the returned future is polled, which is ready when
    /// every server has answered or the time is over. `None` before the first placement.
    pub fn hint(&self, ids: &RoutedIds) -> Option<impl Future<Output = ()> + Send + use<>> {
        let placement = self.placement()?;
        let route = ids.route(placement.bucket_map(), placement.shards().len());
        let metrics = self.metrics().hints.clone();
        let timeout = self.request_timeout().min(LONGEST);
        Some(async move {
            let deadline = Deadline::from_now(timeout);
            let send = |part: &Arc<super::RoutePart>| {
                let request = HintRequest {
                    generation: part.generation.0,
                    segments: part.segments.clone(),
                    ids: part.ids.clone(),
                };
                let shard = Arc::clone(placement.shard(part.server));
                async move {
                    let rows = request.ids.len() / size_of::<u64>();
                    (rows, deadline.bound(shard.hint(request, deadline)).await)
                }
            };
            for (rows, answer) in join_all(route.parts.iter().map(send)).await {
                match answer {
                    Ok(Ok(answer)) => metrics.count_answer(rows as u64, answer.ready),
                    Ok(Err(refusal)) => {
                        debug!(%refusal, "a hint was not taken");
                        metrics.lost.inc_by(rows as u64);
                    }
                    Err(_) => metrics.lost.inc_by(rows as u64),
                }
            }
        })
    }
}
