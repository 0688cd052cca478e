//! Sends the parts of a batch to their servers until each id is answered once, also while buckets move.
//!
//! ```text
//!                  answered
//! part of server ────────────► done
//!    ▲   ▲ │  │
//!    │   └─┘  │ the placement has another generation
//!    │ retry  ▼
//!    └──── divided: the ids of this part alone, by the new map
//! ```
//!
//! A retry under the same map repeats the request, so a repeated push reaches the window that knows its (writer,
//! incarnation, seq) and is not applied twice (invariant DP-3). After a move each bucket's window is where the bucket is
//! (ADR 39). A part that was answered is never sent again.
//!
//! How long each server has left requests unanswered. The figures show which server is slow.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tracing::{debug, warn};
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::{Generation, Refusal, RefusalKind};

use super::route::RoutedIds;
use super::route_part::RoutePart;
use crate::Shard;
use crate::errors::ClientError;
use crate::metrics::ClientCallMetrics;
use crate::placement::{Placement, PlacementCache};

/// Pauses between the tries of a request: short enough that a server that is back does not wait for its workers.
const RETRY: Backoff = Backoff { first: Duration::from_millis(50), most: Duration::from_millis(250) };

#[derive(Clone, Copy)]
pub(super) struct Exchange<'a> {
    pub(super) placements: &'a PlacementCache,
    pub(super) requests: &'a OpenRequests,
    pub(super) metrics: &'a ClientCallMetrics,
    /// Longest time until every id is answered, with retries.
    pub(super) timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestReach {
    Owners,
    /// All that own buckets, so that each of them knows that it has all of the batch.
    AllServers {
        /// Generation of the process group that makes the step, 0 without one.
        group: u64,
    },
}

pub(super) struct AnsweredPart<A> {
    pub(super) part: Arc<RoutePart>,
    pub(super) server: String,
    pub(super) answer: A,
}

enum PartOutcome<A> {
    Answered(AnsweredPart<A>),
    /// No server has answered, and the map is another one by now.
    Moved(Arc<RoutePart>, Arc<Placement>),
}

impl Exchange<'_> {
    /// Sends `request_of` each part, all at once. Returns the answers in the order of the servers.
    pub(super) async fn call_servers<C: ShardCall>(
        self,
        (ids, reach): (&RoutedIds, RequestReach),
        request_of: impl Fn(&RoutePart) -> Result<C, ClientError> + Sync,
    ) -> Result<Vec<AnsweredPart<C::Answer>>, ClientError> {
        let placement = self.placements.current().await?;
        let (map, servers) = (&placement.map, placement.shards().len());
        let parts = match reach {
            RequestReach::Owners => ids.route(map, servers).parts.clone(),
            RequestReach::AllServers { .. } => ids.parts_of_all(map, servers),
        };
        let deadline = Deadline::from_now(self.timeout);
        let send = |part| self.send_part(part, &request_of, deadline);
        let mut answers = Vec::with_capacity(parts.len());
        let mut open: FuturesUnordered<_> = parts.into_iter().map(send).collect();
        while let Some(sent) = open.try_next().await? {
            match sent {
                PartOutcome::Answered(answered) => answers.push(answered),
                PartOutcome::Moved(part, now) => {
                    open.extend(ids.divide_part(&part, &now.map, now.shards().len()).into_iter().map(send))
                }
            }
        }
        // Parts are answered in any order, and their sums are added in this one.
        answers.sort_by_key(|answered| answered.part.server);
        Ok(answers)
    }

    /// Sends one part until its server answers, the map changes, or the time is over.
    async fn send_part<C: ShardCall>(
        self,
        part: Arc<RoutePart>,
        request_of: &(impl Fn(&RoutePart) -> Result<C, ClientError> + Sync),
        deadline: Deadline,
    ) -> Result<PartOutcome<C::Answer>, ClientError> {
        let request = request_of(&part)?;
        let _under_way = self.requests.begin_request(part.server, C::PUSHES, deadline.time_waited());
        // What the server says that the request waited for. The last tries have no time left to hear it again.
        let (mut tries, mut waited_for) = (0, None);
        loop {
            let placement = self.placements.current().await?;
            if placement.map.generation() != part.generation {
                return Ok(PartOutcome::Moved(part, placement));
            }
            let shard = placement.shard(part.server);
            let sent = deadline.bound(request.send(shard.as_ref(), part.generation, deadline)).await;
            let server = shard.name().to_owned();
            let refusal = match sent.unwrap_or_else(|within| Err(Refusal::no_answer(within))) {
                Ok(answer) => return Ok(PartOutcome::Answered(AnsweredPart { part, server, answer })),
                Err(refusal) => refusal,
            };
            if refusal.kind != RefusalKind::Moved && !refusal.kind.is_retryable() {
                return Err(ClientError::Refused { server, what: C::WHAT, refusal });
            }
            if refusal.kind == RefusalKind::Disk && tries == 0 {
                warn!(server, %refusal, "a disk of an embedding server fails; the request is repeated");
            }
            debug!(server, tries, %refusal, "request was not served");
            if refusal.kind == RefusalKind::Deadline {
                waited_for.get_or_insert_with(|| refusal.clone());
            }
            // The first `moved` usually means that the client's map is old, so the client fetches the map at once.
            if tries > 0 || refusal.kind != RefusalKind::Moved {
                tokio::time::sleep(RETRY.pause_before(tries).min(deadline.time_left())).await;
            }
            self.placements.fetch_newer(&placement, deadline).await?;
            if deadline.is_past() {
                let (what, waited) = (C::WHAT, deadline.time_waited());
                let last = waited_for.filter(|_| refusal.kind == RefusalKind::Deadline).unwrap_or(refusal);
                return Err(ClientError::Unreachable { server, what, waited, last });
            }
            self.metrics.retries.inc();
            tries += 1;
        }
    }
}

pub(super) trait ShardCall: Send + Sync {
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

/// The pushes that a lookup waits for at each server.
#[derive(Clone, Debug)]
pub struct AfterPushes {
    pub step: u64,
    /// Generation of the process group that makes it, 0 without one.
    pub group: u64,
    /// How many workers push in the step. Each of them reaches all servers ([`RequestReach::AllServers`]).
    pub pushes: u32,
    acknowledged: Arc<AtomicBool>,
}

impl AfterPushes {
    pub fn new(step: u64, group: u64, pushes: u32) -> Self {
        Self { step, group, pushes, acknowledged: Arc::default() }
    }

    /// All of them are acknowledged: from now on no try of the lookup waits for them.
    pub fn mark_acknowledged(&self) {
        self.acknowledged.store(true, Ordering::Release);
    }
}

pub(super) struct LookupCall<'a> {
    pub(super) request: LookupRequest,
    pub(super) after: Option<&'a AfterPushes>,
}

impl ShardCall for LookupCall<'_> {
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
        let mut request = LookupRequest { generation: at.0, ..self.request.clone() };
        // A server that is back, or has other buckets, has not counted pushes that are acknowledged.
        if let Some(after) = self.after.filter(|after| !after.acknowledged.load(Ordering::Acquire)) {
            (request.after_step, request.after_group, request.after_pushes) = (after.step, after.group, after.pushes);
        }
        shard.lookup(request, deadline)
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

#[derive(Clone, Debug, PartialEq)]
pub struct UnansweredRequests {
    pub server: u32,
    pub lookups: usize,
    pub pushes: usize,
    /// Age of the oldest request, with retries.
    pub oldest: Duration,
}

/// The unanswered requests. A request takes one lock, a row takes none.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenRequests {
    open: Arc<Mutex<BTreeMap<u64, OpenRequest>>>,
}

#[derive(Clone, Copy, Debug)]
struct OpenRequest {
    server: u32,
    pushes: bool,
    since: Instant,
}

/// An unanswered request. Dropping the guard ends it.
#[derive(Debug)]
pub(super) struct RequestGuard {
    number: u64,
    open: Arc<Mutex<BTreeMap<u64, OpenRequest>>>,
}

impl OpenRequests {
    /// Starts a request to a server. Its ids have waited for so long already, maybe for other servers.
    pub(super) fn begin_request(&self, server: u32, pushes: bool, waited: Duration) -> RequestGuard {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let number = open.last_key_value().map_or(0, |(newest, _)| newest + 1);
        let now = Instant::now();
        open.insert(number, OpenRequest { server, pushes, since: now.checked_sub(waited).unwrap_or(now) });
        RequestGuard { number, open: Arc::clone(&self.open) }
    }

    /// One entry for each server with an unanswered request.
    pub(super) fn unanswered_by_server(&self) -> Vec<UnansweredRequests> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut servers, now) = (BTreeMap::new(), Instant::now());
        for request in open.values() {
            let (server, oldest) = (request.server, now.saturating_duration_since(request.since));
            let entry = servers.entry(server).or_insert(UnansweredRequests { server, lookups: 0, pushes: 0, oldest });
            entry.lookups += usize::from(!request.pushes);
            entry.pushes += usize::from(request.pushes);
            entry.oldest = entry.oldest.max(oldest);
        }
        servers.into_values().collect()
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_of_a_server_is_that_of_its_oldest_request() {
        let requests = OpenRequests::default();
        assert!(requests.unanswered_by_server().is_empty());
        let first = requests.begin_request(1, true, Duration::ZERO);
        let second = requests.begin_request(1, false, Duration::from_secs(7));
        let other = requests.begin_request(0, false, Duration::ZERO);
        let waiting = requests.unanswered_by_server();
        let entry = |waiting: &UnansweredRequests| (waiting.server, waiting.lookups, waiting.pushes);
        assert_eq!(waiting.iter().map(entry).collect::<Vec<_>>(), [(0, 1, 0), (1, 1, 1)]);
        assert!(waiting[0].oldest < Duration::from_secs(7) && waiting[1].oldest >= Duration::from_secs(7));
        drop((first, other));
        assert_eq!(requests.unanswered_by_server().iter().map(entry).collect::<Vec<_>>(), [(1, 1, 0)]);
        drop(second);
        assert!(requests.unanswered_by_server().is_empty());
    }
}
