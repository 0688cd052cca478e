//! Lookup and push to all servers at once, with a timeout for servers that do not answer.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tracing::debug;
use zagros_coordinator_client::ControlPlane;
use zagros_plumbing::Deadline;
use zagros_protocol::Generation;
use zagros_protocol::datapath::{
    Access, Encoding, HintRequest, LookupRequest, LookupResponse, PushRequest, TileUpdate,
};
use zagros_protocol::packed::{PackError, ValueBuffers, value_bytes};
use zagros_zip::ZipEq;

use super::dedup::{BatchRows, UniqueIds};
use super::exchange::{
    AfterPushes, AnsweredPart, Exchange, LookupCall, OpenRequests, RequestReach, UnansweredRequests,
};
use super::route::RoutedIds;
use super::route_part::RoutePart;
use super::staleness_window::PushesInFlight;
use crate::Shard;
use crate::errors::ClientError;
use crate::metrics::{ClientCallMetrics, ClientMetrics, LookaheadCounts};
use crate::placement::{Connect, PlacementCache};
use crate::storage::RetryingShard;

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

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PushedBatch {
    /// Sequence number. Each batch of a writer and incarnation has its own.
    pub seq: u64,
    /// Number of the batch's step. Schedules, rounding and the age of rows depend on it.
    pub step: u64,
    /// How many earlier batches had unacknowledged gradients when this batch was looked up.
    pub staleness: u32,
    /// The batch's share of its step's samples, 0 to 1. The server weights penalties by it.
    pub share: f32,
    /// What becomes of the gradients of tiles of streamed weights. A commit has no gradients.
    pub tiles: TileUpdate,
    /// Factor of the gradients that a commit applies, above 0 and at most 1.
    pub factor: f32,
    pub reach: RequestReach,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushAcknowledgement {
    /// Acknowledgements: one per server, and more if buckets moved meanwhile.
    pub servers: u32,
    /// How many of these acknowledgements say that the push was applied before. The first acknowledgement was lost.
    pub duplicates: u32,
    /// Bytes of gradients, without retries.
    pub bytes: u64,
}

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
        let (tiles, reach) = (TileUpdate::AtOnce, RequestReach::Owners);
        Self { seq, step: seq, staleness: 0, share: 1.0, tiles, factor: 0.0, reach }
    }
}

impl EmbeddingClient {
    /// Makes a client without a placement. Its first call fetches the placement.
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

    #[must_use]
    pub fn with_metrics(self, registry: &prometheus::Registry) -> Self {
        Self { metrics: ClientMetrics::new(registry), ..self }
    }

    /// Waits for the placement at most as long as the client's timeout.
    pub async fn refresh_placement(&self) -> Result<(), ClientError> {
        self.placements.refresh().await
    }

    /// Looks up the rows and sums of `ids`. The result has the tables of `ids`. The sum of a bag adds the sums of the
    /// servers in the order of the servers.
    pub async fn lookup(&self, ids: &RoutedIds, access: Access) -> Result<BatchRows, ClientError> {
        let answers = self.lookup_answers(ids, access).await?;
        let mut rows = BatchRows::zeros_like(ids);
        answers.write_rows(&mut rows.table_slices_mut())?;
        Ok(rows)
    }

    /// As [`Self::lookup`], for a caller that has memory for the rows. Answers in the wrong shape are found on writing.
    pub async fn lookup_answers(&self, ids: &RoutedIds, access: Access) -> Result<LookupAnswers<'_>, ClientError> {
        self.fetch_answers((ids, access), None).await
    }

    /// As [`Self::lookup`], with rows as they are after the pushes `after`. They need not be acknowledged yet.
    /// If a server does not get the pushes in time, the error names it and whose pushes it has.
    pub async fn lookup_after(
        &self,
        ids: &RoutedIds,
        access: Access,
        after: &AfterPushes,
    ) -> Result<BatchRows, ClientError> {
        let mut rows = BatchRows::zeros_like(ids);
        self.fetch_answers((ids, access), Some(after)).await?.write_rows(&mut rows.table_slices_mut())?;
        Ok(rows)
    }

    async fn fetch_answers(
        &self,
        (ids, access): (&RoutedIds, Access),
        after: Option<&AfterPushes>,
    ) -> Result<LookupAnswers<'_>, ClientError> {
        let _timer = self.metrics.lookup.seconds.start_timer();
        let request = |part: &RoutePart| Ok(LookupCall { request: self.lookup_request(part, access), after });
        let answers = self.exchange(&self.metrics.lookup).call_servers((ids, RequestReach::Owners), request).await?;
        self.metrics.lookup.count_bags(ids, answers.iter().map(|answered| &*answered.part), self.config.wire);
        Ok(LookupAnswers { client: self, answers })
    }

    /// Pushes `gradients`, one row for each row and sum that the lookup of `ids` returned, and waits until every server has
    /// acknowledged them. After an error, some servers may have applied their part: the caller stops, or repeats the call with
    /// the same `seq`.
    pub async fn push(
        &self,
        batch: impl Into<PushedBatch>,
        ids: &RoutedIds,
        gradients: &BatchRows,
    ) -> Result<PushAcknowledgement, ClientError> {
        self.push_slices(batch, ids, &gradients.table_slices()).await
    }

    /// As [`Self::push`], with the gradients of each table where they lie.
    pub async fn push_slices(
        &self,
        batch: impl Into<PushedBatch>,
        ids: &RoutedIds,
        gradients: &[&[f32]],
    ) -> Result<PushAcknowledgement, ClientError> {
        let batch = batch.into();
        let _timer = self.metrics.push.seconds.start_timer();
        if batch.tiles != TileUpdate::Commit {
            check_shape(ids, gradients)?;
        }
        let _in_flight = self.pushes_in_flight.begin_push(batch.seq).await;
        let request = |part: &RoutePart| self.push_request(part, batch, gradients);
        let answers = self.exchange(&self.metrics.push).call_servers((ids, batch.reach), request).await?;
        self.metrics.push.count_bags(ids, answers.iter().map(|answered| &*answered.part), self.config.wire);
        let mut report = PushAcknowledgement { servers: answers.len() as u32, ..PushAcknowledgement::default() };
        let width = if batch.tiles == TileUpdate::Commit { 0 } else { value_bytes(self.config.wire as i32)? };
        for answered in answers {
            report.bytes += (answered.part.value_count() * width) as u64;
            report.duplicates += u32::from(answered.answer.duplicate);
        }
        self.metrics.push.bytes.inc_by(report.bytes);
        Ok(report)
    }

    /// The servers in the order of their indices, for storage calls, as the client knows them. A save or describe call
    /// survives a broken connection. Empty before the first placement.
    pub fn known_servers(&self) -> Vec<Arc<dyn Shard>> {
        let fetched = self.placements.last_fetched();
        fetched.map(|listed| RetryingShard::from_placement(&listed, &self.placements)).unwrap_or_default()
    }

    pub fn request_timeout(&self) -> Duration {
        self.config.timeout
    }

    /// The servers of the newest bucket map, as far as the coordinator answers. A save or load of all servers begins with
    /// these, and begins again when one of them refuses it with [`zagros_protocol::RefusalKind::Moved`].
    pub async fn newest_servers(&self) -> Result<Vec<Arc<dyn Shard>>, ClientError> {
        let known = self.placements.current().await?;
        self.placements.fetch_newer(&known, Deadline::from_now(self.config.timeout)).await?;
        Ok(self.known_servers())
    }

    pub fn unanswered_requests(&self) -> Vec<UnansweredRequests> {
        self.requests.unanswered_by_server()
    }

    pub fn lookahead_counts(&self) -> LookaheadCounts {
        self.metrics.hints.row_counts()
    }

    fn exchange<'a>(&'a self, metrics: &'a ClientCallMetrics) -> Exchange<'a> {
        Exchange { placements: &self.placements, requests: &self.requests, metrics, timeout: self.config.timeout }
    }

    fn lookup_request(&self, part: &RoutePart, access: Access) -> LookupRequest {
        LookupRequest {
            generation: Generation::NONE.0,
            segments: part.segments.clone(),
            ids: part.ids.clone(),
            access: access as i32,
            encoding: self.config.wire as i32,
            bags: part.bags.clone(),
            ..LookupRequest::default()
        }
    }

    fn push_request(
        &self,
        part: &RoutePart,
        batch: PushedBatch,
        gradients: &[&[f32]],
    ) -> Result<PushRequest, ClientError> {
        let gradients = match batch.tiles {
            TileUpdate::Commit => bytes::Bytes::new(),
            _ => part.gather(gradients, &self.buffers).into_bytes(self.config.wire as i32)?,
        };
        let group = match batch.reach {
            RequestReach::AllServers { group } => Some(group),
            RequestReach::Owners => None,
        };
        Ok(PushRequest {
            generation: Generation::NONE.0,
            writer: self.config.writer,
            incarnation: self.config.incarnation,
            seq: batch.seq,
            step: batch.step,
            staleness: batch.staleness,
            segments: part.segments.clone(),
            ids: part.ids.clone(),
            gradients,
            encoding: self.config.wire as i32,
            bags: part.bags.clone(),
            share: Some(batch.share),
            tiles: batch.tiles as i32,
            factor: batch.factor,
            whole: part.is_whole && group.is_some(),
            group: group.unwrap_or(0),
        })
    }
}

pub struct LookupAnswers<'a> {
    client: &'a EmbeddingClient,
    answers: Vec<AnsweredPart<LookupResponse>>,
}

impl LookupAnswers<'_> {
    /// Writes rows and sums, table after table of the lookup's ids, each `[wanted, dim]`. Sums are added to what is there.
    pub fn write_rows(self, tables: &mut [&mut [f32]]) -> Result<(), ClientError> {
        let (wire, metrics) = (self.client.config.wire, &self.client.metrics);
        for AnsweredPart { part, server, answer } in self.answers {
            metrics.lookup.bytes.inc_by(answer.rows.len() as u64);
            metrics.hints.late.inc_by(u64::from(answer.late));
            let taken = match answer.encoding == wire as i32 {
                true => part.scatter(&answer.rows, wire, tables),
                false => Err(PackError::Encoding(answer.encoding)),
            };
            taken.map_err(|source| ClientError::Malformed { server, source })?;
        }
        Ok(())
    }
}

fn check_shape(unique: &UniqueIds, gradients: &[&[f32]]) -> Result<(), ClientError> {
    if unique.tables.len() != gradients.len() {
        let (expected, found) = (unique.tables.len(), gradients.len());
        return Err(ClientError::GradientShape { table: "number of tables".to_owned(), expected, found });
    }
    for (table, values) in unique.tables.iter().zip_eq(gradients) {
        let expected = table.result_rows() * table.dim as usize;
        if values.len() != expected {
            let table = table.table.to_string();
            return Err(ClientError::GradientShape { table, expected, found: values.len() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

/// The longest time of a hint. Its batch has been looked up by then.
const LONGEST: Duration = Duration::from_secs(10);

impl EmbeddingClient {
    /// Hints the ids of a later batch to their servers. Nothing is sent before the returned future is polled, which is ready when
    /// every server has answered or the time is over. `None` before the first placement.
    pub fn hint(&self, ids: &RoutedIds) -> Option<impl Future<Output = ()> + Send + use<>> {
        let placement = self.placements.last_fetched()?;
        let route = ids.route(&placement.map, placement.shards().len());
        let metrics = self.metrics.hints.clone();
        let timeout = self.request_timeout().min(LONGEST);
        Some(async move {
            let deadline = Deadline::from_now(timeout);
            let send = |part: &Arc<super::RoutePart>| {
                let (generation, segments, ids) = (part.generation.0, part.segments.clone(), part.ids.clone());
                let request = HintRequest { generation, segments, ids };
                let shard = Arc::clone(placement.shard(part.server));
                async move {
                    let rows = request.ids.len() / size_of::<u64>();
                    (rows, deadline.bound(shard.hint(request, deadline)).await)
                }
            };
            for (rows, answer) in join_all(route.parts.iter().map(send)).await {
                match answer {
                    Ok(Ok(answer)) => {
                        metrics.hinted.inc_by(rows as u64);
                        metrics.ready.inc_by(answer.ready);
                    }
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
