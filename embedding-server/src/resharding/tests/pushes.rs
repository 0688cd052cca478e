//! A writer: it divides each push by the newest map, repeats what is not acknowledged, and sends some parts twice. Rows that
//! are removed by their ids while their bucket is copied.
//! A move between two pushes of one step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::task::JoinHandle;
use zagros_job::{Job, Mode, Optimizer};
use zagros_protocol::RefusalKind;
use zagros_protocol::control::ForgetRequest;
use zagros_protocol::datapath::PushRequest;
use zagros_protocol::packed::{decode_ids, encode_ids};

use super::cluster::{Cluster, Dice};
use super::lookups::{Part, Uses, are_there, by_owner};
use super::*;
use crate::storage::forget;
use crate::testing::push_of;

const PUSHES: u64 = 40;
/// Pushes of a writer that are under way at once.
const AT_ONCE: u64 = 4;

pub(super) type Row = (u32, u64);

/// Makes all pushes of one writer. Answers the sum of the gradients of each row.
pub(super) async fn write(cluster: Arc<Cluster>, writer: u64, mut dice: Dice) -> BTreeMap<Row, f32> {
    let (mut sums, mut uses, mut next) = (BTreeMap::new(), Uses::default(), 0);
    let (mut copies, identity) = (Vec::new(), cluster.writer(writer as usize));
    let (ids, counts) = (cluster.kind.ids(), cluster.kind.threshold().is_some());
    // Where ids are counted, each writer has its own, so that it knows their counts.
    let is_own = |row: u64| !counts || row / 2 % 3 == writer;
    for _ in 0..PUSHES / AT_ONCE {
        let mut rows = || -> Vec<Row> {
            let chosen = (0..2 * ids).filter(|row| is_own(*row) && dice.one_in(12));
            chosen.map(|row| ((row % 2) as u32, row / 2)).collect()
        };
        let pushed: Vec<Vec<Row>> = (0..AT_ONCE).map(|_| rows()).collect();
        if counts {
            let all: BTreeSet<Row> = pushed.iter().flatten().copied().collect();
            let all: Vec<Row> = all.into_iter().collect();
            copies.extend(admit(&cluster, identity, &all, (&mut uses, &mut next, &mut dice)).await);
        }
        let pushes = pushed.into_iter().map(|rows| {
            let gradient = 1.0 + dice.below(3) as f32;
            rows.iter().for_each(|row| *sums.entry(*row).or_insert(0.0) += gradient);
            let dice = Dice::new(dice.below(u64::MAX));
            next += 1;
            acknowledge(&cluster, identity, (next, gradient), rows, dice)
        });
        copies.extend(join_all(pushes.collect::<Vec<_>>()).await.into_iter().flatten());
    }
    for copy in copies {
        copy.await.unwrap();
    }
    sums
}

/// Has all rows admitted. A lookup is acknowledged before its rows are in the log, and a push makes the log durable: a push of
/// nothing follows, and the rows are there for good if they are there afterwards.
async fn admit(
    cluster: &Arc<Cluster>,
    identity: (u64, u32),
    rows: &[Row],
    (uses, next, dice): (&mut Uses, &mut u64, &mut Dice),
) -> Vec<JoinHandle<()>> {
    let mut copies = Vec::new();
    loop {
        uses.admit(cluster, rows).await;
        *next += 1;
        copies
            .extend(acknowledge(cluster, identity, (*next, 0.0), rows.to_vec(), Dice::new(dice.below(u64::MAX))).await);
        if are_there(cluster, rows).await {
            return copies;
        }
    }
}

/// Sends a push until all of it is acknowledged. Answers the copies of its parts that are still under way.
async fn acknowledge(
    cluster: &Arc<Cluster>,
    (writer, incarnation): (u64, u32),
    (seq, gradient): (u64, f32),
    mut pending: Vec<Row>,
    mut dice: Dice,
) -> Vec<JoinHandle<()>> {
    let (mut copies, mut tries) = (Vec::new(), 0);
    while !pending.is_empty() {
        for part in by_owner(cluster, &std::mem::take(&mut pending)) {
            let [users, items] = part.ids();
            let Part { owner, generation, rows } = part;
            let request = push_of(&[(0, &users), (1, &items)], seq, gradient);
            let request = PushRequest { generation, writer, incarnation, ..request };
            if dice.one_in(4) {
                copies.push(tokio::spawn(send_late(Arc::clone(cluster), owner, request.clone(), dice.below(8))));
            }
            match cluster.send(owner, request).await {
                Ok(_) if dice.one_in(5) => pending.extend(rows),
                Ok(_) => {}
                Err(refusal) => {
                    let kinds = [RefusalKind::Moved, RefusalKind::Unavailable, RefusalKind::Deadline];
                    assert!(kinds.contains(&refusal.kind), "{refusal}");
                    pending.extend(rows);
                }
            }
        }
        tries += 1;
        assert!(tries < 20_000, "push {seq} of writer {writer} is never acknowledged");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    copies
}

/// A copy of a request that the network has kept for a while.
async fn send_late(cluster: Arc<Cluster>, owner: u32, request: PushRequest, pause: u64) {
    tokio::time::sleep(Duration::from_millis(pause)).await;
    let _ = cluster.send(owner, request).await;
}

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
