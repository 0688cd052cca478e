//! Removes rows by their ids while the run trains.
//!
//! ```text
//! take the turn of saves ─► find rows ─► wait for requests to end ─► remove, which the log learns ─► flush the log ─► answer
//! ```
//!
//! A snapshot is of one instant, so it is taken wholly before or wholly after. A move of buckets learns of the removal as of any
//! change. The next checkpoint has all rows: a delta would name the ids, and follow files that have their rows.

use std::time::Duration;

use tracing::info;
use zagros_job::is_dense_table;
use zagros_protocol::control::{ForgetRequest, ForgetResponse};
use zagros_protocol::packed::{decode_ids, encode_ids};
use zagros_protocol::{Refusal, RefusalKind};
use zagros_table::ColdError;

use crate::EmbeddingService;

/// How long running requests may take to end. Others wait meanwhile.
const QUIET: Duration = Duration::from_secs(2);

/// Removes the rows of ids of this server's buckets. A repeated request finds nothing left to remove.
/// Refused while another map is in force, a save or load is under way, or requests do not end.
pub(crate) fn forget(service: &EmbeddingService, request: &ForgetRequest) -> Result<ForgetResponse, Refusal> {
    service.check_whole()?;
    let number = feature_table(service, &request.table)?;
    if !request.ids.len().is_multiple_of(size_of::<u64>()) {
        return Err(Refusal::invalid(format!("ids of 8 bytes each are {} bytes long", request.ids.len())));
    }
    let ids = decode_ids(&request.ids);
    // Files that are being written are those of an instant before.
    let _turn = service.storage.take_turn()?;
    let unavailable = |why: String| Refusal::new(RefusalKind::Unavailable, why);
    service.log.as_ref().map_or(Ok(()), |log| log.check_health()).map_err(unavailable)?;
    let table = service.tables.table(number).map_err(|error| service.table_refusal(&error))?;
    let cold = |error: ColdError| {
        unavailable(format!(
            "some rows may be left in the cold tier: {error}; check its disk, then give the same command again"
        ))
    };
    let owned = || -> Result<Vec<u64>, Refusal> {
        let placement = service.placement()?;
        placement.check_request(request.generation)?;
        Ok(ids.iter().copied().filter(|id| placement.owns_row(number, *id)).collect())
    };
    // Read while training goes on. A row that is made from here on is removed too, and not named in the answer.
    let known = table.known_ids(&owned()?).map_err(cold)?;
    let removed = service.tables.while_quiet(QUIET, || {
        let owned = owned()?;
        service.checkpoints.forget_newest();
        table.remove_ids(&owned).map_err(cold)
    });
    let go_on = || format!("no row is removed: waited {QUIET:?} for lookups and pushes to end; try again later");
    removed.ok_or_else(|| unavailable(go_on()))??;
    service.log.as_ref().map_or(Ok(()), |log| log.flush())?;
    info!(server = service.index.0, table = request.table, rows = known.len(), "rows were removed by their ids");
    Ok(ForgetResponse { removed: encode_ids(&known).into() })
}

fn feature_table(service: &EmbeddingService, name: &str) -> Result<u32, Refusal> {
    if is_dense_table(name) {
        let dense = format!("table `{name}` holds the dense network, and no rows of ids; name a table of features");
        return Err(Refusal::invalid(dense));
    }
    let found = service.names.iter().position(|known| known == name);
    let known = || service.names.iter().filter(|name| !is_dense_table(name)).cloned().collect::<Vec<_>>().join(", ");
    let unknown = || Refusal::invalid(format!("there is no table `{name}`; the tables are {}", known()));
    found.map(|number| number as u32).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::testing::{lookup, lookup_of, placed, push, push_of, read};

    const ITEM: u32 = 1;

    fn request(table: &str, ids: &[u64]) -> ForgetRequest {
        ForgetRequest { table: table.to_owned(), ids: encode_ids(ids).into(), generation: 1 }
    }

    fn removed(service: &EmbeddingService, ids: &[u64]) -> Vec<u64> {
        decode_ids(&forget(service, &request("item", ids)).unwrap().removed)
    }

    #[test]
    fn a_row_is_gone_and_comes_back_as_a_new_one() {
        let service = placed(1, 0);
        let first = read(&service, &[(ITEM, &[5, 6])]);
        push(&service, &push_of(&[(ITEM, &[5, 6])], 1, 0.5)).unwrap();
        push(&service, &push_of(&[(0, &[5])], 2, 0.5)).unwrap();
        let (learned, user) = (read(&service, &[(ITEM, &[6])]), read(&service, &[(0, &[5])]));
        assert_eq!(removed(&service, &[7, 5]), [5]);
        assert_eq!(removed(&service, &[7, 5]), [] as [u64; 0], "a retry finds nothing left");
        assert_eq!(read(&service, &[(ITEM, &[5])]), first[..first.len() / 2], "its first value");
        assert_eq!((read(&service, &[(ITEM, &[6])]), read(&service, &[(0, &[5])])), (learned, user));
    }

    #[test]
    fn rows_of_other_servers_are_left_alone_and_another_map_is_refused() {
        let service = placed(2, 0);
        let ids: Vec<u64> = (0..50).collect();
        let placement = service.placement().unwrap();
        let owned: Vec<u64> = ids.iter().copied().filter(|id| placement.owns_row(ITEM, *id)).collect();
        lookup(&service, &lookup_of(&[(ITEM, &owned)], Access::Train)).unwrap();
        let late = ForgetRequest { generation: 2, ..request("item", &ids) };
        assert_eq!(forget(&service, &late).unwrap_err().kind, RefusalKind::Moved);
        assert_eq!(removed(&service, &ids), owned);
        assert_eq!(service.current_load().rows, 0);
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_changes_nothing() {
        let service = placed(1, 0);
        let first = read(&service, &[(ITEM, &[5])]);
        push(&service, &push_of(&[(ITEM, &[5])], 1, 0.5)).unwrap();
        let refused = |request: &ForgetRequest| forget(&service, request).unwrap_err();
        let unknown = refused(&request("itme", &[5]));
        assert!(unknown.message.contains("no table `itme`; the tables are user, item"), "{unknown}");
        assert!(refused(&request(zagros_job::DENSE_TABLE, &[5])).message.contains("dense network"));
        let short = ForgetRequest { ids: vec![1; 7].into(), ..request("item", &[]) };
        assert!(refused(&short).message.contains("are 7 bytes long"));
        let held = service.storage.take_turn().unwrap();
        assert_eq!(refused(&request("item", &[5])).kind, RefusalKind::Unavailable);
        drop(held);
        assert_ne!(read(&service, &[(ITEM, &[5])]), first);
        assert_eq!(removed(&service, &[5]), [5]);
    }

    /// While it is forgotten, threads look the row up and push to it.
    #[test]
    fn requests_under_way_see_the_row_or_a_new_one() {
        let service = placed(1, 0);
        let push_some = |thread: u64| {
            for seq in 0..200 {
                push(&service, &push_of(&[(ITEM, &[5, 6, 7])], 1000 * thread + seq, 0.5)).unwrap();
            }
        };
        std::thread::scope(|threads| {
            (1..4).for_each(|thread| _ = threads.spawn(move || push_some(thread)));
            (0..50).for_each(|_| _ = removed(&service, &[5, 6]));
        });
        removed(&service, &[5, 6, 7]);
        assert_eq!(service.current_load().rows, 0);
    }
}
