//! Rows that are removed by their ids while their bucket is copied to another server.

use zagros_protocol::control::ForgetRequest;
use zagros_protocol::packed::{decode_ids, encode_ids};

use super::*;
use crate::storage::forget;

fn request(generation: u64, id: u64) -> ForgetRequest {
    ForgetRequest { table: "item".to_owned(), ids: encode_ids(&[id]).into(), generation }
}

/// The next rows of the move until all are sent: ids that came, and ids that are gone.
fn copied(source: &EmbeddingService, number: &mut u64) -> (Vec<u64>, Vec<u64>) {
    let (mut came, mut gone) = (Vec::new(), Vec::new());
    loop {
        let answer = next_rows(source, 7, *number).unwrap();
        *number += 1;
        came.extend(decode_ids(&answer.ids));
        gone.extend(decode_ids(&answer.removed));
        if answer.scanned && answer.changed == 0 && answer.ids.is_empty() && answer.removed.is_empty() {
            return (came, gone);
        }
    }
}

#[test]
fn a_row_that_was_copied_is_removed_from_the_copy_too_and_a_frozen_server_refuses() {
    let source = announced(0);
    let id = id_of(0);
    push(&source, &push_of(&[(ITEM, &[id])], 1, 1.0)).unwrap();
    begin_copy(&source, 7).unwrap();
    let mut number = 0;
    assert_eq!(copied(&source, &mut number), (vec![id], vec![]));
    assert_eq!(decode_ids(&forget(&source, &request(1, id)).unwrap().removed), [id]);
    assert_eq!(copied(&source, &mut number), (vec![], vec![id]));
    freeze_source(&source, 7).unwrap();
    assert_eq!(forget(&source, &request(1, id)).unwrap_err().kind, RefusalKind::Unavailable);
    // The move is decided: a caller has to ask by the new map.
    adopt_placement(&source, &placement(2, None)).unwrap();
    assert_eq!(forget(&source, &request(1, id)).unwrap_err().kind, RefusalKind::Moved);
    forget(&source, &request(2, id)).unwrap();
}
