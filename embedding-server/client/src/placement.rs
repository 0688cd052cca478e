//! The placement of a client: the bucket map, and one connection per server. It is fetched from the coordinator, and fetched
//! again when it changes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;
use tracing::debug;
use zagros_coordinator_client::ControlPlane;
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::control::{PlacementRequest, PlacementResponse, ServerEntry};
use zagros_protocol::{BucketMap, Generation, Lineage, Refusal, ServerIndex};

use crate::{ClientError, Shard};

/// Connects to a server: through a socket, or directly to the service in the same process.
pub type Connect = Arc<dyn Fn(&ServerEntry) -> Result<Arc<dyn Shard>, Refusal> + Send + Sync>;

/// The bucket map and the servers of one generation. Every owner in the map has a server, which the constructor checks.
pub(crate) struct Placement {
    pub(crate) map: BucketMap,
    servers: Vec<ConnectedServer>,
}

pub(crate) struct ConnectedServer {
    pub(crate) entry: ServerEntry,
    pub(crate) shard: Arc<dyn Shard>,
}

impl Placement {
    /// Checks the coordinator's placement. Keeps the connections of `known` to servers that have not changed.
    /// Fails with [`ClientError::ServerRestarted`] if rows that this client has used are lost.
    pub(crate) fn from_response(
        response: PlacementResponse,
        known: Option<&Self>,
        connect: &Connect,
        coordinator: &str,
    ) -> Result<Self, ClientError> {
        let bad = |reason: String| ClientError::BadPlacement { coordinator: coordinator.to_owned(), reason };
        let generation = Generation(response.generation);
        let map = BucketMap::unpack_owners(generation, &response.owners).map_err(|error| bad(error.to_string()))?;
        let mut entries = response.servers;
        entries.sort_by_key(|entry| entry.index);
        check_complete(&map, &entries).map_err(bad)?;
        if let Some(known) = known {
            known.check_followed_by(&map, &entries)?;
        }
        let servers =
            entries.into_iter().map(|entry| ConnectedServer::open(entry, known, connect)).collect::<Result<_, _>>()?;
        Ok(Self { map, servers })
    }

    /// The server of this index, which owns a bucket. Every owner in the map has a server.
    pub(crate) fn shard(&self, owner: u32) -> &Arc<dyn Shard> {
        &self.servers[owner as usize].shard
    }

    pub(crate) fn server(&self, index: u32) -> Option<&ConnectedServer> {
        self.servers.get(index as usize)
    }

    /// The servers in the order of their indices.
    pub(crate) fn shards(&self) -> impl ExactSizeIterator<Item = &Arc<dyn Shard>> {
        self.servers.iter().map(|server| &server.shard)
    }

    /// Checks that no server that keeps a bucket has lost its rows. A server that kept none may be another one by now.
    fn check_followed_by(&self, map: &BucketMap, entries: &[ServerEntry]) -> Result<(), ClientError> {
        for entry in entries {
            let known = self.servers.get(entry.index as usize);
            if known.is_some_and(|known| !known.is_followed_by(entry)) && self.shares_bucket(map, entry.index) {
                return Err(ClientError::ServerRestarted { index: entry.index, address: entry.address.clone() });
            }
        }
        Ok(())
    }

    /// Whether a server has a bucket under this placement and under another map.
    fn shares_bucket(&self, map: &BucketMap, server: u32) -> bool {
        let owner = Some(ServerIndex(server));
        (0..map.bucket_count())
            .any(|bucket| self.map.bucket_owner(bucket) == owner && map.bucket_owner(bucket) == owner)
    }
}

impl ConnectedServer {
    /// Whether what this client has learned of the server's rows holds for `entry`: it is the same process, or another process
    /// that has recovered the rows.
    fn is_followed_by(&self, entry: &ServerEntry) -> bool {
        let lineage = Lineage::from_wire(self.entry.lineage);
        let has_rows = lineage.is_some() && lineage == Lineage::from_wire(entry.lineage);
        has_rows || self.entry.instance == entry.instance
    }

    fn open(entry: ServerEntry, known: Option<&Placement>, connect: &Connect) -> Result<Self, ClientError> {
        let previous = known.and_then(|known| known.servers.get(entry.index as usize));
        // Requests name the process that they are for.
        let is_same =
            |previous: &&Self| (&previous.entry.address, previous.entry.instance) == (&entry.address, entry.instance);
        if let Some(previous) = previous.filter(is_same) {
            return Ok(Self { entry, shard: Arc::clone(&previous.shard) });
        }
        let refused = |refusal| ClientError::Refused {
            server: format!("embedding server {} ({})", entry.index, entry.address),
            what: "connect to",
            refusal,
        };
        let shard = connect(&entry).map_err(refused)?;
        Ok(Self { entry, shard })
    }
}

/// Checks that index `i` is at position `i` of the sorted `entries`, and that the map names no other server.
fn check_complete(map: &BucketMap, entries: &[ServerEntry]) -> Result<(), String> {
    if let Some(position) = (0..entries.len()).find(|position| entries[*position].index as usize != *position) {
        return Err(format!("embedding server {position} is missing or named twice"));
    }
    let owners = (0..map.bucket_count()).filter_map(|bucket| map.bucket_owner(bucket));
    match owners.max() {
        Some(owner) if owner.0 as usize >= entries.len() => {
            Err(format!("buckets belong to embedding server {owner}, but only {} are named", entries.len()))
        }
        _ => Ok(()),
    }
}

/// Reading the placement takes no lock.
pub(crate) struct PlacementCache {
    control: Arc<dyn ControlPlane>,
    connect: Connect,
    pub(crate) timeout: Duration,
    placement: ArcSwapOption<Placement>,
    /// Held during a fetch, so that many failing calls fetch the placement once.
    fetching: Mutex<()>,
}

enum FetchError {
    /// A later fetch may succeed: the coordinator does not answer, or servers are missing.
    NotYet(String),
    /// No later fetch will succeed.
    Final(ClientError),
}

impl PlacementCache {
    pub(crate) fn new(control: Arc<dyn ControlPlane>, connect: Connect, timeout: Duration) -> Self {
        Self { control, connect, timeout, placement: ArcSwapOption::empty(), fetching: Mutex::new(()) }
    }

    /// The current placement. Waits for the first one.
    pub(crate) async fn current(&self) -> Result<Arc<Placement>, ClientError> {
        loop {
            if let Some(placement) = self.placement.load_full() {
                return Ok(placement);
            }
            self.refresh().await?;
        }
    }

    pub(crate) async fn refresh(&self) -> Result<(), ClientError> {
        let deadline = Deadline::from_now(self.timeout);
        let _one_at_a_time = self.fetching.lock().await;
        let is_early = |failure: &FetchError| matches!(failure, FetchError::NotYet(_));
        let fetched = Backoff::default().retry(deadline, is_early, || self.fetch_once(deadline)).await;
        fetched.map_err(|failure| match failure {
            FetchError::Final(error) => error,
            FetchError::NotYet(reason) => ClientError::NoPlacement {
                coordinator: self.control.name().to_owned(),
                waited: deadline.time_waited(),
                reason,
            },
        })
    }

    /// Fetches the placement once. If another caller has replaced `seen` or is fetching now, that fetch counts for this
    /// caller too, whatever its result. So many callers wait for a silent coordinator no longer than one caller. A
    /// silent coordinator is not an error here: the data path works without it while the servers keep their buckets.
    pub(crate) async fn fetch_newer(&self, seen: &Arc<Placement>, deadline: Deadline) -> Result<(), ClientError> {
        let Ok(_one_at_a_time) = self.fetching.try_lock() else {
            // The holder of the lock has a deadline of its own. This caller's deadline may be earlier.
            let _ = deadline.bound(self.fetching.lock()).await;
            return Ok(());
        };
        if !self.placement.load().as_ref().is_some_and(|now| Arc::ptr_eq(now, seen)) {
            return Ok(());
        }
        match self.fetch_once(deadline).await {
            Ok(()) => Ok(()),
            Err(FetchError::Final(error)) => Err(error),
            Err(FetchError::NotYet(reason)) => {
                debug!(coordinator = self.control.name(), reason, "cannot fetch the placement");
                Ok(())
            }
        }
    }

    pub(crate) fn last_fetched(&self) -> Option<Arc<Placement>> {
        self.placement.load_full()
    }

    async fn fetch_once(&self, deadline: Deadline) -> Result<(), FetchError> {
        // A refusal by the coordinator is not final: the servers may still serve. The wait ends with the deadline.
        let asked = deadline.bound(self.control.placement(PlacementRequest {})).await;
        let asked = asked.unwrap_or_else(|within| Err(Refusal::no_answer(within)));
        let response = asked.map_err(|refusal| FetchError::NotYet(refusal.message))?;
        if response.generation == Generation::NONE.0 {
            return Err(FetchError::NotYet(response.waiting_for));
        }
        let known = self.placement.load_full();
        let adopted = Placement::from_response(response, known.as_deref(), &self.connect, self.control.name());
        self.placement.store(Some(Arc::new(adopted.map_err(FetchError::Final)?)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use zagros_fakes::FakeShard;

    fn entry(index: u32, address: &str, instance: u64) -> ServerEntry {
        ServerEntry { index, address: address.to_owned(), instance, alive: true, run: 1, lineage: 0 }
    }

    fn response(generation: u64, servers: Vec<ServerEntry>) -> PlacementResponse {
        let map = BucketMap::split_evenly(Generation(generation), 64, servers.len() as u32);
        PlacementResponse { generation, owners: map.pack_owners().into(), servers, ..PlacementResponse::default() }
    }

    fn assert_lost(adopted: Result<Placement, ClientError>, lost: u32) {
        let error = adopted.err().unwrap();
        assert!(matches!(error, ClientError::ServerRestarted { index, .. } if index == lost), "{error}");
        assert!(error.to_string().contains(&format!("embedding server {lost} (")), "{error}");
        assert!(error.to_string().contains("was restarted"), "{error}");
    }

    fn counting_connect() -> (Connect, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let connect: Connect = Arc::new(move |entry| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(FakeShard::new(entry.index, BucketMap::split_evenly(Generation(1), 64, 2))))
        });
        (connect, calls)
    }

    fn adopt(response: PlacementResponse, known: Option<&Placement>) -> Result<Placement, ClientError> {
        Placement::from_response(response, known, &counting_connect().0, "coordinator (fake)")
    }

    #[test]
    fn a_server_that_only_moved_is_connected_again_and_the_others_are_kept() {
        let (connect, calls) = counting_connect();
        let first = response(1, vec![entry(1, "b:1", 12), entry(0, "a:1", 11)]);
        let known = Placement::from_response(first, None, &connect, "coordinator").unwrap();
        assert_eq!(known.shard(1).name(), "embedding server 1 (fake)");
        let moved = response(2, vec![entry(0, "a:1", 11), entry(1, "c:1", 12)]);
        let now = Placement::from_response(moved, Some(&known), &connect, "coordinator").unwrap();
        assert_eq!(now.map.generation(), Generation(2));
        assert_eq!((now.shards().len(), calls.load(Ordering::Relaxed)), (2, 3));
        assert!(Arc::ptr_eq(now.shard(0), known.shard(0)));
    }

    #[test]
    fn a_server_that_has_recovered_its_rows_is_connected_again_under_the_same_generation() {
        let (connect, calls) = counting_connect();
        let with_lineage = |instance, lineage| ServerEntry { lineage, ..entry(0, "a:1", instance) };
        let placement = |entry| response(1, vec![entry]);
        let known = Placement::from_response(placement(with_lineage(11, 7)), None, &connect, "coordinator").unwrap();
        let now =
            Placement::from_response(placement(with_lineage(99, 7)), Some(&known), &connect, "coordinator").unwrap();
        // At the same address, too: the connection names the process.
        assert!(!Arc::ptr_eq(now.shard(0), known.shard(0)) && calls.load(Ordering::Relaxed) == 2);
        for other in [with_lineage(99, 8), with_lineage(99, 0)] {
            assert_lost(adopt(placement(other), Some(&known)), 0);
        }
    }

    fn owned_by(generation: u64, owners: [u32; 4], servers: Vec<ServerEntry>) -> PlacementResponse {
        let owners = owners.iter().flat_map(|owner| owner.to_le_bytes()).collect::<Vec<_>>().into();
        PlacementResponse { generation, owners, servers, ..PlacementResponse::default() }
    }

    #[test]
    fn servers_that_come_are_connected_and_servers_that_go_are_left() {
        let (connect, calls) = counting_connect();
        let [a, b, c] = [entry(0, "a:1", 11), entry(1, "b:1", 12), entry(2, "c:1", 13)];
        let adopt = |placement, known| Placement::from_response(placement, known, &connect, "coordinator").unwrap();
        let two = adopt(owned_by(1, [0, 0, 1, 1], vec![a.clone(), b.clone()]), None);
        let three = adopt(owned_by(2, [0, 2, 1, 1], vec![a.clone(), b.clone(), c]), Some(&two));
        assert_eq!((three.shards().len(), calls.load(Ordering::Relaxed)), (3, 3));
        let one = adopt(owned_by(5, [0; 4], vec![a.clone()]), Some(&three));
        assert_eq!((one.shards().len(), calls.load(Ordering::Relaxed)), (1, 3));
        assert!(Arc::ptr_eq(one.shard(0), two.shard(0)));
    }

    #[test]
    fn a_server_whose_buckets_have_moved_may_be_another_process_and_one_that_keeps_some_may_not() {
        let [a, b, other] = [entry(0, "a:1", 11), entry(1, "b:1", 12), entry(1, "b:1", 99)];
        let known = adopt(owned_by(1, [0, 0, 1, 1], vec![a.clone(), b]), None).unwrap();
        let moved = owned_by(3, [1, 1, 0, 0], vec![a.clone(), other.clone()]);
        assert_eq!(adopt(moved, Some(&known)).unwrap().shards().len(), 2);
        let kept = owned_by(3, [1, 1, 0, 1], vec![a, other]);
        assert_lost(adopt(kept, Some(&known)), 1);
    }

    #[test]
    fn a_placement_with_holes_is_refused() {
        let mut few = response(1, vec![entry(0, "a:1", 11), entry(1, "b:1", 12)]);
        few.servers.pop();
        let hole = response(1, vec![entry(0, "a:1", 11), entry(2, "b:1", 12)]);
        let empty = PlacementResponse { generation: 1, ..PlacementResponse::default() };
        for (placement, expected) in [
            (few, "buckets belong to embedding server 1, but only 1 are named"),
            (hole, "embedding server 1 is missing"),
            (empty, "coordinator (fake) sent a placement"),
        ] {
            let error = adopt(placement, None).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
