//! Hints, the messages of lookahead: rows that a later batch needs are paged in before they are looked up.
//!
//! A hint is checked as a lookup is. One that is refused does no harm: its rows are read when they are looked up.

use zagros_protocol::Refusal;
use zagros_protocol::datapath::{HintRequest, HintResponse};

use super::request::{RequestRows, RequestTimes};
use crate::EmbeddingService;

pub(crate) fn hint(
    service: &EmbeddingService,
    request: &HintRequest,
    times: RequestTimes,
) -> Result<HintResponse, Refusal> {
    let placement = service.placement()?;
    service.check_whole()?;
    placement.check_request(request.generation)?;
    let rows = RequestRows::unpack(&request.segments, &request.ids, &[])?;
    let parts = rows.table_parts();
    service.tables.check_parts(&parts).map_err(|error| service.table_refusal(&error))?;
    placement.check_rows(&parts)?;

    let entry = service.tables.enter_before(times.deadline).map_err(|error| times.table_refusal(service, &error))?;
    service.check_still(&placement, request.generation)?;
    let paged_in = service.with_scratch(|scratch| entry.page_in_hinted(&parts, scratch));
    let ready = paged_in.map_err(|error| times.table_refusal(service, &error))?;
    service.metrics.hint.rows.observe((request.ids.len() / 8) as f64);
    Ok(HintResponse { ready })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prometheus::Registry;
    use zagros_embedding_client::Shard;
    use zagros_plumbing::metrics::render_text;
    use zagros_protocol::RefusalKind;
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::LocalShard;
    use crate::testing::{even_map, later, limited, lookup, lookup_of, placed, read, rows};

    fn hint_of(ids: &[u64]) -> HintRequest {
        let (segments, ids) = rows(&[(0, ids)]);
        HintRequest { generation: 1, segments, ids }
    }

    /// A server of whose rows most are in the cold tier.
    fn overfull(folder: &std::path::Path, registry: &Registry) -> Arc<EmbeddingService> {
        let service = limited(folder, registry).unwrap();
        service.set_placement(even_map(1));
        for start in (0..40_000).step_by(1000) {
            let ids: Vec<u64> = (start..start + 1000).collect();
            lookup(&service, &lookup_of(&[(0, &ids)], Access::Train)).unwrap();
        }
        service
    }

    #[tokio::test]
    async fn hinted_rows_are_looked_up_without_the_disk() {
        let (folder, registry) = (tempfile::tempdir().unwrap(), Registry::new());
        let service = overfull(folder.path(), &registry);
        let shard = LocalShard::new(Arc::clone(&service));
        // Some of them have left memory.
        let ids: Vec<u64> = (0..100).collect();
        let expected = read(&service, &[(0, &ids)]);
        let (mut hints, mut ready) = (1, shard.hint(hint_of(&ids), later()).await.unwrap().ready);
        assert!(ready > 0, "all rows were in memory");
        // Rows that were chosen to leave before a hint named them leave nevertheless.
        loop {
            while !service.tables.maintain().unwrap().is_idle() {}
            let more = shard.hint(hint_of(&ids), later()).await.unwrap().ready;
            (hints, ready) = (hints + 1, ready + more);
            if more == 0 {
                break;
            }
        }
        let late = lookup(&service, &lookup_of(&[(0, &ids)], Access::Train)).unwrap().late;
        assert_eq!((late, read(&service, &[(0, &ids)])), (0, expected));
        // Twice, and too late: all rows are in memory.
        assert_eq!(shard.hint(hint_of(&ids), later()).await.unwrap().ready, 0);
        hints += 1;
        let text = render_text(&registry);
        for line in [
            format!(r#"zagros_embedding_requests_total{{call="hint",server="0"}} {hints}"#),
            format!(r#"zagros_embedding_table_ids_total{{server="0",table="user",what="hinted"}} {}"#, 100 * hints),
            format!(r#"zagros_embedding_table_ids_total{{server="0",table="user",what="ready"}} {ready}"#),
        ] {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    /// Invariants PL-2, PL-3 and DP-2 hold for advice, too.
    #[tokio::test]
    async fn a_stale_or_malformed_hint_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let service = overfull(folder.path(), &Registry::new());
        let shard = LocalShard::new(Arc::clone(&service));
        let good = hint_of(&[1, 2]);
        let stale = HintRequest { generation: 0, ..good.clone() };
        let short = HintRequest { ids: good.ids.slice(..8), ..good };
        for (request, kind) in [(stale, RefusalKind::Moved), (short, RefusalKind::Invalid)] {
            assert_eq!(shard.hint(request, later()).await.unwrap_err().kind, kind);
        }
        service.set_placement(even_map(2));
        let of_others = hint_of(&(0..50).collect::<Vec<_>>());
        assert_eq!(shard.hint(of_others, later()).await.unwrap_err().kind, RefusalKind::Moved);
    }

    #[tokio::test]
    async fn a_server_with_all_rows_in_memory_does_nothing() {
        let shard = LocalShard::new(placed(1, 0));
        assert_eq!(shard.hint(HintRequest::default(), later()).await, Ok(HintResponse::default()));
    }
}
