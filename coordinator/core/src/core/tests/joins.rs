//! Joins that come more than once.

use super::*;

/// Regression: a copy of a join that the network held back fenced the process that had joined, or its successor.
#[test]
fn a_join_that_comes_again_changes_nothing() {
    for slot in [MemberSlot::worker(0), MemberSlot::server(0)] {
        let mut core = core(1, 2);
        let join_of = |instance: u64| JoinRequest {
            supersede: true,
            lineage: u64::from(slot.role == Role::EmbeddingServer) * 7,
            recovered: instance > 1 && slot.role == Role::EmbeddingServer,
            ..request(slot, instance)
        };
        let other = if slot.role == Role::DenseWorker { MemberSlot::server(0) } else { MemberSlot::worker(0) };
        join(&mut core, 0, other);
        let first = core.join(time(0), &join_of(1)).unwrap();
        assert_eq!(core.join(time(1), &join_of(1)).unwrap(), first, "{slot}");
        beat(&mut core, 1, &first).unwrap();
        let second = core.join(time(2), &join_of(2)).unwrap();
        assert_eq!(second.incarnation, 2, "{slot}");
        assert_eq!(core.join(time(3), &join_of(1)).unwrap_err().kind, RefusalKind::Fenced, "{slot}");
        beat(&mut core, 3, &second).unwrap();
    }
}
