//! Lookup and push over all servers at once, with a timeout for those that are away.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, try_join_all};
use tracing::debug;
use zagros_coordinator_client::ControlPlane;
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::datapath::{Access, Encoding, LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::packed::{Buffers, PackError};
use zagros_protocol::{Generation, Refusal, RefusalKind};
use zagros_zip::ZipEq;

use super::dedup::UniqueIds;
use super::pushes_in_flight::PushesInFlight;
use super::route::{Route, RoutePart, RoutedIds};
use super::rows::Rows;
use super::waiting::{OpenRequests, Waiting};
use crate::Shard;
use crate::directory::Directory;
use crate::errors::ClientError;
use crate::metrics::{CallMetrics, ClientMetrics};
use crate::placement::Connect;
use crate::storage::PatientShard;

/// Who calls, and how.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// Member id from the coordinator; names the pusher.
    pub writer: u64,
    /// Incarnation from the coordinator; a push of an older one is refused.
    pub incarnation: u32,
    /// How values are written on the wire, in both directions.
    pub wire: Encoding,
    /// How long one lookup or push may take, retries included.
    pub timeout: Duration,
}

/// Which batch a push is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// New for each batch of a writer and incarnation.
    pub seq: u64,
    /// Steps of training before the batch's own: what schedules, rounding and the age of rows go by.
    pub step: u64,
    /// Earlier batches whose gradients were not acknowledged when this one was looked up.
    pub staleness: u32,
    /// The part of its step's samples that are in it, by which its gradients were weighed. Penalties on weights are
    /// weighed by it too.
    pub share: f32,
}

/// What became of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushReport {
    /// Servers that acknowledged.
    pub servers: u32,
    /// Of these, how many had applied it before: an acknowledgement was lost on its way.
    pub duplicates: u32,
    /// Bytes of gradients, retries not counted.
    pub bytes: u64,
}

/// The embedding servers of a run, as one.
pub struct EmbeddingClient {
    config: ClientConfig,
    directory: Directory,
    metrics: ClientMetrics,
    /// Memory for gradients on their way.
    buffers: Arc<Buffers>,
    requests: OpenRequests,
    pushes_in_flight: PushesInFlight,
}

impl From<u64> for Batch {
    /// One whose every batch is a step, and all of it, with nothing under way before it.
    fn from(seq: u64) -> Self {
        Self { seq, step: seq, staleness: 0, share: 1.0 }
    }
}

impl EmbeddingClient {
    /// A client that has not fetched the placement yet; the first call does.
    #[must_use]
    pub fn new(config: ClientConfig, control: Arc<dyn ControlPlane>, connect: Connect) -> Self {
        Self {
            config,
            directory: Directory::new(control, connect, config.timeout),
            metrics: ClientMetrics::new(&prometheus::Registry::new()),
            buffers: Arc::default(),
            requests: OpenRequests::default(),
            pushes_in_flight: PushesInFlight::default(),
        }
    }

    /// Counts into this registry.
    #[must_use]
    pub fn with_metrics(self, registry: &prometheus::Registry) -> Self {
        Self { metrics: ClientMetrics::new(registry), ..self }
    }

    /// Fetches the placement, waiting for it with the client's timeout.
    ///
    /// # Errors
    /// [`ClientError::NoPlacement`] when there is none in time; [`ClientError::ServerRestarted`],
    /// [`ClientError::OwnersChanged`] or [`ClientError::BadPlacement`] when the new one cannot be worked with.
    pub async fn refresh(&self) -> Result<(), ClientError> {
        self.directory.refresh().await
    }

    /// Rows and sums of `ids`, aligned with its tables. The sum of a bag is that of its parts, one per server, in
    /// the order of the servers.
    ///
    /// # Errors
    /// When a server does not serve in time, refuses, was restarted, or answers in the wrong shape.
    pub async fn lookup(&self, ids: &RoutedIds, access: Access) -> Result<Rows, ClientError> {
        let _timer = self.metrics.lookup.seconds.start_timer();
        let route = self.route(ids).await?;
        self.metrics.lookup.pooled(ids, &route.parts, self.config.wire);
        let answers = try_join_all(route.parts.iter().map(|part| self.lookup_part(part, access))).await?;
        let mut rows = Rows::zeroed(ids);
        for (part, (server, answer)) in route.parts.iter().zip_eq(answers) {
            self.metrics.lookup.bytes.inc_by(answer.rows.len() as u64);
            self.take(part, &answer, &mut rows).map_err(|source| ClientError::Malformed { server, source })?;
        }
        Ok(rows)
    }

    /// Pushes `gradients` (aligned with `ids`, one full row per row and sum of its lookup) and waits until every server has
    /// acknowledged them.
    ///
    /// # Errors
    /// As [`Self::lookup`]. Some servers may have applied their part then: the caller stops, or repeats the call
    /// with the same `seq`.
    pub async fn push(
        &self,
        batch: impl Into<Batch>,
        ids: &RoutedIds,
        gradients: &Rows,
    ) -> Result<PushReport, ClientError> {
        let batch = batch.into();
        let _timer = self.metrics.push.seconds.start_timer();
        check_shape(ids, gradients)?;
        let _in_flight = self.pushes_in_flight.begin(batch.seq).await;
        let route = self.route(ids).await?;
        self.metrics.push.pooled(ids, &route.parts, self.config.wire);
        let answers = try_join_all(route.parts.iter().map(|part| self.push_part(part, batch, gradients))).await?;
        let mut report = PushReport { servers: answers.len() as u32, ..PushReport::default() };
        for (bytes, answer) in answers {
            report.bytes += bytes;
            report.duplicates += u32::from(answer.duplicate);
        }
        self.metrics.push.bytes.inc_by(report.bytes);
        Ok(report)
    }

    /// The servers in the order of their indices, for storage: a save, and what they tell, outlast a broken connection.
    /// Empty before the first placement.
    #[must_use]
    pub fn servers(&self) -> Vec<Arc<dyn Shard>> {
        let patient = |shard| Arc::new(PatientShard::new(shard, self.config.timeout)) as Arc<dyn Shard>;
        self.directory.servers().into_iter().map(patient).collect()
    }

    /// The servers that have not answered something yet, by index.
    #[must_use]
    pub fn waiting(&self) -> Vec<Waiting> {
        self.requests.waiting()
    }

    async fn route(&self, ids: &RoutedIds) -> Result<Arc<Route>, ClientError> {
        let placement = self.directory.current().await?;
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
        batch: Batch,
        gradients: &Rows,
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

    fn take(&self, part: &RoutePart, answer: &LookupResponse, rows: &mut Rows) -> Result<(), PackError> {
        if answer.encoding != self.config.wire as i32 {
            return Err(PackError::Encoding(answer.encoding));
        }
        part.scatter(&answer.rows, self.config.wire, rows)
    }

    /// One server's part, sent until it is served or the timeout ends. Answers with the server's name.
    ///
    /// The part always goes to the same server index: a placement with other owners is an error
    /// ([`ClientError::OwnersChanged`]), so a generation only changes addresses. A repeated push therefore meets the
    /// window that has seen its (writer, incarnation, seq), and what the first try applied is not applied again (invariant DP-3);
    /// parts that other servers have already acknowledged are not sent again at all.
    async fn call<C: ShardCall>(
        &self,
        server: u32,
        request: &C,
        metrics: &CallMetrics,
    ) -> Result<(String, C::Answer), ClientError> {
        let deadline = Deadline::after(self.config.timeout);
        let _under_way = self.requests.begin(server, C::PUSHES);
        // What the server says that the request waited for. The last tries have no time left to hear it again.
        let (mut tries, mut waited_for) = (0, None);
        loop {
            let placement = self.directory.current().await?;
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
            // A first `moved` usually means only that the client's map is old: fetch it at once.
            if tries > 0 || refusal.kind != RefusalKind::Moved {
                tokio::time::sleep(Backoff::default().pause(tries).min(deadline.left())).await;
            }
            self.directory.follow(&placement, deadline).await?;
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
        // Payloads are shared, not copied.
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

fn check_shape(unique: &UniqueIds, gradients: &Rows) -> Result<(), ClientError> {
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
