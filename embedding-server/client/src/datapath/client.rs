//! Lookup and push to all servers at once, with a timeout for servers that do not answer.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, try_join_all};
use tracing::debug;
use zagros_coordinator_client::ControlPlane;
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::datapath::{Access, Encoding, LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::packed::{PackError, ValueBuffers};
use zagros_protocol::{Generation, Refusal, RefusalKind};
use zagros_zip::ZipEq;

use super::batch_rows::BatchRows;
use super::dedup::UniqueIds;
use super::pushes_in_flight::PushesInFlight;
use super::route::{Route, RoutePart, RoutedIds};
use super::unanswered_requests::{OpenRequests, UnansweredRequests};
use crate::Shard;
use crate::errors::ClientError;
use crate::metrics::{ClientCallMetrics, ClientMetrics};
use crate::placement::Connect;
use crate::placement_cache::PlacementCache;
use crate::storage::RetryingShard;

/// Pauses between the tries of a request: short enough that a server that is back does not wait for its workers.
const RETRY: Backoff = Backoff { first: Duration::from_millis(50), most: Duration::from_millis(250) };

/// The identity and the settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// Member id that the coordinator assigned. It identifies the writer of a push.
    pub writer: u64,
    /// Incarnation that the coordinator assigned. A push of an older incarnation is refused.
    pub incarnation: u32,
    /// Encoding of values on the wire, in both directions.
    pub wire: Encoding,
    /// Longest time of one lookup or push, with retries.
    pub timeout: Duration,
}

/// The batch of a push.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PushedBatch {
    /// Sequence number. Each batch of a writer and incarnation has its own.
    pub seq: u64,
    /// Number of the batch's step. Schedules, rounding and the age of rows depend on it.
    pub step: u64,
    /// How many earlier batches had unacknowledged gradients when this batch was looked up.
    pub staleness: u32,
    /// The batch's share of its step's samples, 0 to 1. The gradients are weighted by it, and the server weights
    /// penalties by it.
    pub share: f32,
}

/// The result of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushAcknowledgement {
    /// Servers that acknowledged the push.
    pub servers: u32,
    /// How many of these servers had applied the push before. Their first acknowledgement was lost.
    pub duplicates: u32,
    /// Bytes of gradients, without retries.
    pub bytes: u64,
}

/// All embedding servers of a run.
pub struct EmbeddingClient {
    config: ClientConfig,
    placements: Arc<PlacementCache>,
    metrics: ClientMetrics,
    /// Reusable memory for gradients that are being sent.
    buffers: Arc<ValueBuffers>,
    requests: OpenRequests,
    pushes_in_flight: PushesInFlight,
}

impl From<u64> for PushedBatch {
    /// A batch that is a whole step, with no earlier batch in flight.
    fn from(seq: u64) -> Self {
        Self { seq, step: seq, staleness: 0, share: 1.0 }
    }
}

impl EmbeddingClient {
    /// Makes a client without a placement. Its first call fetches the placement.
    #[must_use]
    pub fn new(config: ClientConfig, control: Arc<dyn ControlPlane>, connect: Connect) -> Self {
        Self {
            config,
            placements: Arc::new(PlacementCache::new(control, connect, config.timeout)),
            metrics: ClientMetrics::new(&prometheus::Registry::new()),
            buffers: Arc::default(),
            requests: OpenRequests::default(),
            pushes_in_flight: PushesInFlight::default(),
        }
    }

    /// Counts its traffic in this registry.
    #[must_use]
    pub fn with_metrics(self, registry: &prometheus::Registry) -> Self {
        Self { metrics: ClientMetrics::new(registry), ..self }
    }

    /// Fetches the placement. Waits for it at most as long as the client's timeout.
    ///
    /// # Errors
    /// [`ClientError::NoPlacement`] if there is no placement in time. [`ClientError::ServerRestarted`],
    /// [`ClientError::OwnersChanged`] or [`ClientError::BadPlacement`] if the new placement cannot be used.
    pub async fn refresh(&self) -> Result<(), ClientError> {
        self.placements.refresh().await
    }

    /// Looks up the rows and sums of `ids`. The result has the tables of `ids`. The sum of a bag adds the sums of the
    /// servers in the order of the servers.
    ///
    /// # Errors
    /// If a server does not answer in time, refuses the lookup, was restarted, or answers in the wrong shape.
    pub async fn lookup(&self, ids: &RoutedIds, access: Access) -> Result<BatchRows, ClientError> {
        let _timer = self.metrics.lookup.seconds.start_timer();
        let route = self.route(ids).await?;
        self.metrics.lookup.pooled(ids, &route.parts, self.config.wire);
        let answers = try_join_all(route.parts.iter().map(|part| self.lookup_part(part, access))).await?;
        let mut rows = BatchRows::zeroed(ids);
        for (part, (server, answer)) in route.parts.iter().zip_eq(answers) {
            self.metrics.lookup.bytes.inc_by(answer.rows.len() as u64);
            self.take(part, &answer, &mut rows).map_err(|source| ClientError::Malformed { server, source })?;
        }
        Ok(rows)
    }

    /// Pushes `gradients` and waits until every server has acknowledged them. `gradients` has one row for each row and
    /// sum that the lookup of `ids` returned.
    ///
    /// # Errors
    /// As [`Self::lookup`]. Some servers may have applied their part. The caller then stops, or repeats the call with
    /// the same `seq`.
    pub async fn push(
        &self,
        batch: impl Into<PushedBatch>,
        ids: &RoutedIds,
        gradients: &BatchRows,
    ) -> Result<PushAcknowledgement, ClientError> {
        let batch = batch.into();
        let _timer = self.metrics.push.seconds.start_timer();
        check_shape(ids, gradients)?;
        let _in_flight = self.pushes_in_flight.begin(batch.seq).await;
        let route = self.route(ids).await?;
        self.metrics.push.pooled(ids, &route.parts, self.config.wire);
        let answers = try_join_all(route.parts.iter().map(|part| self.push_part(part, batch, gradients))).await?;
        let mut report = PushAcknowledgement { servers: answers.len() as u32, ..PushAcknowledgement::default() };
        for (bytes, answer) in answers {
            report.bytes += bytes;
            report.duplicates += u32::from(answer.duplicate);
        }
        self.metrics.push.bytes.inc_by(report.bytes);
        Ok(report)
    }

    /// The servers in the order of their indices, for storage calls. A save or describe call survives a broken
    /// connection. Empty before the first placement.
    #[must_use]
    pub fn servers(&self) -> Vec<Arc<dyn Shard>> {
        let retrying = |(index, shard)| {
            let shard: &Arc<dyn Shard> = &shard;
            Arc::new(RetryingShard::new(index as u32, shard, &self.placements)) as Arc<dyn Shard>
        };
        self.placements.servers().into_iter().enumerate().map(retrying).collect()
    }

    /// The requests that servers have not answered yet, by server.
    #[must_use]
    pub fn waiting(&self) -> Vec<UnansweredRequests> {
        self.requests.waiting()
    }

    async fn route(&self, ids: &RoutedIds) -> Result<Arc<Route>, ClientError> {
        let placement = self.placements.current().await?;
        Ok(ids.route(placement.map(), placement.shards().len()))
    }

    async fn lookup_part(&self, part: &RoutePart, access: Access) -> Result<(String, LookupResponse), ClientError> {
        let request = LookupRequest {
            generation: Generation::NONE.0,
            segments: part.segments.clone(),
            ids: part.ids.clone(),
            access: access as i32,
            encoding: self.config.wire as i32,
            bags: part.bags.clone(),
        };
        self.call(part.server, &request, &self.metrics.lookup).await
    }

    async fn push_part(
        &self,
        part: &RoutePart,
        batch: PushedBatch,
        gradients: &BatchRows,
    ) -> Result<(u64, PushResponse), ClientError> {
        let request = PushRequest {
            generation: Generation::NONE.0,
            writer: self.config.writer,
            incarnation: self.config.incarnation,
            seq: batch.seq,
            step: batch.step,
            staleness: batch.staleness,
            segments: part.segments.clone(),
            ids: part.ids.clone(),
            gradients: part.gather(gradients, &self.buffers).into_bytes(self.config.wire as i32)?,
            encoding: self.config.wire as i32,
            bags: part.bags.clone(),
            share: Some(batch.share),
        };
        let (_, answer) = self.call(part.server, &request, &self.metrics.push).await?;
        Ok((request.gradients.len() as u64, answer))
    }

    fn take(&self, part: &RoutePart, answer: &LookupResponse, rows: &mut BatchRows) -> Result<(), PackError> {
        if answer.encoding != self.config.wire as i32 {
            return Err(PackError::Encoding(answer.encoding));
        }
        part.scatter(&answer.rows, self.config.wire, rows)
    }

    /// Sends one server's part until the server answers or the timeout ends. Returns the answer and the server's name.
    ///
    /// The part always goes to the same server index. A new generation may change the address of this server, but not
    /// its buckets ([`ClientError::OwnersChanged`]). So a repeated push reaches the sequence window that knows its
    /// (writer, incarnation, seq), and is not applied twice (invariant DP-3). Parts that other servers have
    /// acknowledged are not sent again.
    async fn call<C: ShardCall>(
        &self,
        server: u32,
        request: &C,
        metrics: &ClientCallMetrics,
    ) -> Result<(String, C::Answer), ClientError> {
        let deadline = Deadline::after(self.config.timeout);
        let _under_way = self.requests.begin(server, C::PUSHES);
        // What the server says that the request waited for. The last tries have no time left to hear it again.
        let (mut tries, mut waited_for) = (0, None);
        loop {
            let placement = self.placements.current().await?;
            let shard = placement.shard(server);
            let sent = deadline.bound(request.send(shard.as_ref(), placement.map().generation(), deadline)).await;
            let refusal = match sent.unwrap_or_else(|within| Err(Refusal::no_answer(within))) {
                Ok(answer) => return Ok((shard.name().to_owned(), answer)),
                Err(refusal) => refusal,
            };
            let server = shard.name().to_owned();
            if refusal.kind != RefusalKind::Moved && !refusal.kind.is_retryable() {
                return Err(ClientError::Refused { server, what: C::WHAT, refusal });
            }
            debug!(server, tries, %refusal, "request was not served");
            if refusal.kind == RefusalKind::Deadline {
                waited_for.get_or_insert_with(|| refusal.clone());
            }
            // The first `moved` usually means that the client's map is old, so the client fetches the map at once.
            if tries > 0 || refusal.kind != RefusalKind::Moved {
                tokio::time::sleep(RETRY.pause(tries).min(deadline.left())).await;
            }
            self.placements.follow(&placement, deadline).await?;
            if deadline.is_past() {
                let (what, waited) = (C::WHAT, deadline.waited());
                let last = waited_for.filter(|_| refusal.kind == RefusalKind::Deadline).unwrap_or(refusal);
                return Err(ClientError::Unreachable { server, what, waited, last });
            }
            metrics.retries.inc();
            tries += 1;
        }
    }
}

/// A request that can be sent again under another generation.
trait ShardCall: Sync {
    type Answer: Send;
    const WHAT: &'static str;
    const PUSHES: bool;
    fn send<'a>(
        &self,
        shard: &'a dyn Shard,
        at: Generation,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Self::Answer, Refusal>>;
}

impl ShardCall for LookupRequest {
    type Answer = LookupResponse;
    const WHAT: &'static str = "look up rows at";
    const PUSHES: bool = false;
    fn send<'a>(
        &self,
        shard: &'a dyn Shard,
        at: Generation,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<LookupResponse, Refusal>> {
        // Clones share the payloads.
        shard.lookup(Self { generation: at.0, ..self.clone() }, deadline)
    }
}

impl ShardCall for PushRequest {
    type Answer = PushResponse;
    const WHAT: &'static str = "push gradients to";
    const PUSHES: bool = true;
    fn send<'a>(
        &self,
        shard: &'a dyn Shard,
        at: Generation,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<PushResponse, Refusal>> {
        shard.push(Self { generation: at.0, ..self.clone() }, deadline)
    }
}

fn check_shape(unique: &UniqueIds, gradients: &BatchRows) -> Result<(), ClientError> {
    if unique.tables.len() != gradients.tables.len() {
        let (expected, found) = (unique.tables.len(), gradients.tables.len());
        return Err(ClientError::GradientShape { table: "number of tables".to_owned(), expected, found });
    }
    for (table, values) in unique.tables.iter().zip_eq(&gradients.tables) {
        let expected = table.wanted() * table.dim as usize;
        if values.len() != expected {
            let table = table.table.to_string();
            return Err(ClientError::GradientShape { table, expected, found: values.len() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
