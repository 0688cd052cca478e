//! Hints: rows that a later batch needs are brought to memory before they are looked up.
//!
//! Hints take turns, apart from lookups and pushes, and those that wait take bounded memory. One too many is refused, and its rows
//! are read when they are looked up.

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use zagros_protocol::datapath::{HintRequest, HintResponse};
use zagros_protocol::{Refusal, RefusalKind};

use super::deadline::RequestTimes;
use super::request::RequestRows;
use crate::EmbeddingService;

/// Hints that are served at a time: one waits for the disk while the rows of the other are brought in.
const AT_ONCE: usize = 2;
/// The most bytes of ids in hints that are served or wait.
const MOST_BYTES: usize = 32 << 20;

/// The order of hints.
#[derive(Debug)]
pub(crate) struct HintTurns {
    turns: Semaphore,
    /// Bytes of ids of the hints that are served or wait.
    bytes: Mutex<usize>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct HintTurn<'a> {
    _permit: Option<SemaphorePermit<'a>>,
    turns: &'a HintTurns,
    bytes: usize,
}

impl Default for HintTurns {
    fn default() -> Self {
        Self { turns: Semaphore::new(AT_ONCE), bytes: Mutex::default() }
    }
}

impl HintTurns {
    /// Waits for the turn of a hint with so many bytes of ids.
    ///
    /// # Errors
    /// `Unavailable` if too many hints wait.
    pub(crate) async fn turn(&self, bytes: usize) -> Result<HintTurn<'_>, Refusal> {
        {
            let mut held = self.bytes.lock();
            if *held > 0 && held.saturating_add(bytes) > MOST_BYTES {
                let message = format!("{} MiB of hints wait already; the rows are read when they are looked up", *held >> 20);
                return Err(Refusal::new(RefusalKind::Unavailable, message));
            }
            *held += bytes;
        }
        // Made before the wait: a sender that gives up meanwhile drops it.
        let mut turn = HintTurn { _permit: None, turns: self, bytes };
        turn._permit = self.turns.acquire().await.ok();
        Ok(turn)
    }
}

impl Drop for HintTurn<'_> {
    fn drop(&mut self) {
        *self.turns.bytes.lock() -= self.bytes;
    }
}

/// Checks the whole request, then brings its rows to memory.
pub(crate) fn hint(
    service: &EmbeddingService,
    request: &HintRequest,
    times: RequestTimes,
) -> Result<HintResponse, Refusal> {
    let placement = service.placement()?;
    service.check_whole()?;
    placement.check_request(request.generation)?;
    let rows = RequestRows::unpack(&request.segments, &request.ids, &[])?;
    let parts = rows.parts();
    service.tables.check(&parts).map_err(|error| service.refuse(&error))?;
    placement.check_rows(&parts)?;

    let entry = service.tables.enter_before(times.deadline()).map_err(|error| times.refuse(service, &error))?;
    service.check_still(&placement, request.generation)?;
    let brought = service.with_scratch(|scratch| entry.bring_in(&parts, scratch));
    let ready = brought.map_err(|error| times.refuse(service, &error))?;
    service.metrics.hint.rows.observe((request.ids.len() / 8) as f64);
    Ok(HintResponse { ready })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use prometheus::Registry;
    use zagros_embedding_client::Shard;
    use zagros_plumbing::Deadline;
    use zagros_plumbing::metrics::render;
    use zagros_protocol::datapath::Access;
    use zagros_protocol::{BucketMap, Generation, ServerIndex};

    use super::*;
    use crate::LocalShard;
    use crate::testing::{BUCKETS, job_with, later, lookup, lookup_of, placed, read, rows};

    fn hint_of(ids: &[u64]) -> HintRequest {
        let (segments, ids) = rows(&[(0, ids)]);
        HintRequest { generation: 1, segments, ids }
    }

    /// A server with 1 MiB of memory, of whose rows most are in the cold tier.
    fn limited(folder: &std::path::Path, registry: &Registry) -> Arc<EmbeddingService> {
        let cluster = format!("memory = \"1MiB\"\ncold_folder = {folder:?}");
        let service = EmbeddingService::new(&job_with(1, &cluster), ServerIndex(0), registry).unwrap();
        service.set_placement(Arc::new(BucketMap::even(Generation(1), BUCKETS, 1)));
        for start in (0..40_000).step_by(1000) {
            let ids: Vec<u64> = (start..start + 1000).collect();
            lookup(&service, &lookup_of(&[(0, &ids)], Access::Train)).unwrap();
        }
        service
    }

    #[tokio::test]
    async fn hinted_rows_are_looked_up_without_the_disk() {
        let (folder, registry) = (tempfile::tempdir().unwrap(), Registry::new());
        let service = limited(folder.path(), &registry);
        let shard = LocalShard::new(Arc::clone(&service));
        // The first rows left memory first.
        let ids: Vec<u64> = (0..100).collect();
        let expected = read(&service, &[(0, &ids)]);
        let ready = shard.hint(hint_of(&ids), later()).await.unwrap().ready;
        assert!(ready > 50, "{ready}");
        let late = lookup(&service, &lookup_of(&[(0, &ids)], Access::Train)).unwrap().late;
        assert_eq!((late, read(&service, &[(0, &ids)])), (0, expected));
        // Twice, and too late: all rows are in memory.
        assert_eq!(shard.hint(hint_of(&ids), later()).await.unwrap().ready, 0);
        let text = render(&registry);
        for line in [
            r#"zagros_embedding_requests_total{call="hint",server="0"} 2"#.to_owned(),
            r#"zagros_embedding_table_ids_total{server="0",table="user",what="hinted"} 200"#.to_owned(),
            format!(r#"zagros_embedding_table_ids_total{{server="0",table="user",what="ready"}} {ready}"#),
        ] {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    /// Invariants PL-2, PL-3 and DP-2 hold for advice, too.
    #[tokio::test]
    async fn a_stale_or_malformed_hint_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let service = limited(folder.path(), &Registry::new());
        let shard = LocalShard::new(Arc::clone(&service));
        let refused = |request: HintRequest| shard.hint(request, later());
        let good = hint_of(&[1, 2]);
        let kind = |refusal: Refusal| refusal.kind;
        let stale = HintRequest { generation: 0, ..good.clone() };
        assert_eq!(refused(stale).await.map_err(kind), Err(RefusalKind::Moved));
        let short = HintRequest { ids: good.ids.slice(..8), ..good.clone() };
        assert_eq!(refused(short).await.map_err(kind), Err(RefusalKind::Invalid));
        service.set_placement(Arc::new(BucketMap::even(Generation(1), BUCKETS, 2)));
        let of_others = hint_of(&(0..50).collect::<Vec<_>>());
        assert_eq!(refused(of_others).await.map_err(kind), Err(RefusalKind::Moved));
    }

    #[tokio::test]
    async fn a_server_with_all_rows_in_memory_does_nothing() {
        let shard = LocalShard::new(placed(1, 0));
        assert_eq!(shard.hint(HintRequest::default(), later()).await, Ok(HintResponse::default()));
    }

    #[tokio::test]
    async fn hints_take_turns_and_those_that_wait_take_bounded_memory() {
        let turns = HintTurns::default();
        let [first, second] = [turns.turn(MOST_BYTES / 2).await.unwrap(), turns.turn(1).await.unwrap()];
        let soon = Deadline::after(Duration::from_millis(20));
        assert!(soon.bound(turns.turn(2)).await.is_err(), "two are served at a time");
        assert_eq!(*turns.bytes.lock(), MOST_BYTES / 2 + 1, "one that is given up holds nothing");
        let refusal = turns.turn(MOST_BYTES / 2).await.unwrap_err();
        assert!(refusal.kind == RefusalKind::Unavailable && refusal.message.contains("hints wait already"), "{refusal}");
        drop(first);
        let third = turns.turn(MOST_BYTES / 2).await.unwrap();
        drop((second, third));
        // One that is larger than the limit is served alone.
        drop(turns.turn(2 * MOST_BYTES).await.unwrap());
        assert_eq!(*turns.bytes.lock(), 0);
    }
}
