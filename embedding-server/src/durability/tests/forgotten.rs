//! A row that was removed by its id does not come back from the log.

use zagros_protocol::control::ForgetRequest;
use zagros_protocol::packed::{decode_ids, encode_ids};

use super::*;
use crate::storage::forget;

fn forget_items(service: &EmbeddingService, ids: &[u64]) -> Vec<u64> {
    let request = ForgetRequest { table: "item".to_owned(), ids: encode_ids(ids).into(), generation: 1 };
    decode_ids(&forget(service, &request).unwrap().removed)
}

/// Invariant DU-1, for removals. With rows in memory, and with most rows in the cold tier.
#[test]
fn a_process_that_follows_has_every_row_but_the_forgotten_ones() {
    for (limit, ids) in [("", 300), ("memory = \"8MiB\"", 40_000)] {
        let home = LogFixture::new(limit);
        let service = home.start();
        let all: Vec<u64> = (0..ids).collect();
        for (seq, part) in all.chunks(1000).enumerate() {
            push(&service, &push_of(&[(0, part), (ITEM, part)], seq as u64 + 1, 1.0)).unwrap();
        }
        assert_eq!(forget_items(&service, &[3, 7, ids - 1, ids + 5]), [3, 7, ids - 1]);
        let expected = rows(&service);
        assert_eq!(expected.len() as u64, 2 * ids - 3);
        // The process is killed: nothing is written at its end.
        drop(service);
        let service = home.start();
        assert!(service.has_recovered());
        assert_eq!(rows(&service), expected);
        // It comes back as a new row, which is logged.
        let first = read(&service, &[(ITEM, &[3])]);
        push(&service, &push_of(&[(ITEM, &[3])], 1000, 1.0)).unwrap();
        let learned = read(&service, &[(ITEM, &[3])]);
        assert_ne!(learned, first);
        drop(service);
        assert_eq!(read(&home.start(), &[(ITEM, &[3])]), learned);
    }
}

#[test]
fn while_the_disk_of_the_log_fails_nothing_is_removed() {
    let home = LogFixture::new("");
    let service = home.start();
    push(&service, &push_of(&[(ITEM, &[5])], 1, 1.0)).unwrap();
    home.disk.fail(Some("write"));
    // The log notices at a write.
    let _ = push(&service, &push_of(&[(ITEM, &[6])], 2, 1.0));
    let request = ForgetRequest { table: "item".to_owned(), ids: encode_ids(&[5]).into(), generation: 1 };
    assert_eq!(forget(&service, &request).unwrap_err().kind, RefusalKind::Unavailable);
    home.disk.fail(None);
}
