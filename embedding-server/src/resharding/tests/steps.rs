//! A move between two pushes of one step.

use zagros_job::{Job, Mode, Optimizer};

use super::*;

fn job() -> Job {
    let mut job = job_with(2, "");
    job.train.mode = Mode::Sync;
    job.tables[ITEM as usize].optimizer = Optimizer::Sgd { lr: 0.5, momentum: 0.9, l2: 0.1 };
    job
}

fn server(index: u32) -> (Arc<EmbeddingService>, LocalMove) {
    let service = EmbeddingService::new(&job(), ServerIndex(index), &Registry::new()).unwrap();
    let moving = LocalMove::from_placement(Arc::clone(&service), &placement(1, Some(7))).unwrap();
    (service, moving)
}

/// A push with half of a step's samples.
fn half(seq: u64, step: u64, ids: &[u64], gradient: f32) -> PushRequest {
    PushRequest { step, share: Some(0.5), ..push_of(&[(ITEM, ids)], seq, gradient) }
}

/// Puts all that the source sends in.
fn copy_all(source: &EmbeddingService, target: &LocalMove, number: &mut u64) {
    loop {
        let sent = next_rows(source, 7, *number).unwrap();
        *number += 1;
        target.put_rows(&sent).unwrap();
        if sent.scanned && sent.changed == 0 && sent.ids.is_empty() {
            return;
        }
    }
}

/// Invariant RK-1 in mode `sync`: the second half of the step finds at the target what it would have found at the source.
#[test]
fn a_step_goes_on_at_the_server_that_its_rows_moved_to() {
    let ids: Vec<u64> = ids_of(0).take(20).collect();
    let first = [half(1, 1, &ids, 0.5), half(2, 1, &ids[..9], 0.25), half(3, 2, &ids[..15], -1.5)];
    let second = half(4, 2, &ids[5..], 0.75);
    let (stays, _) = server(0);
    first.iter().chain([&second]).for_each(|request| _ = push(&stays, request).unwrap());

    let ((source, _), (target, moving)) = (server(0), server(1));
    push(&source, &first[0]).unwrap();
    push(&source, &first[1]).unwrap();
    begin_copy(&source, 7).unwrap();
    let mut number = 0;
    copy_all(&source, &moving, &mut number);
    push(&source, &first[2]).unwrap();
    // These rows are sent before the source is frozen, and change no more.
    copy_all(&source, &moving, &mut number);
    freeze_source(&source, 7).unwrap();
    copy_all(&source, &moving, &mut number);
    let moved = BucketMap::split_evenly(Generation(2), BUCKETS, 1)
        .with_moved(&(0..BUCKETS).collect::<Vec<_>>(), ServerIndex(1));
    let decided = PlacementResponse { owners: moved.pack_owners().into(), ..placement(2, None) };
    adopt_placement(&target, &decided).unwrap();
    push(&target, &PushRequest { generation: 2, ..second }).unwrap();
    assert_eq!(slots(&[target]), slots(&[stays]));
}
