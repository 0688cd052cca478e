//! Between the first stage and the second: hints the rows of the next batches to the embedding servers.
//!
//! ```text
//! reader ─► prepared batch ─► hint its ids ─► a few batches wait here ─► lookup, in the staleness window
//!                                 └─► servers bring its rows to memory meanwhile
//! ```
//!
//! Hints carry no values, so the staleness of a lookup is that of its own time (invariant DP-4).

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zagros_embedding_client::EmbeddingClient;

use super::read::IncomingBatches;

/// Hints without an answer, for each batch that is looked ahead. Further batches are not hinted.
const OPEN_PER_BATCH: usize = 2;

/// Hints each batch `batches` batches before it is looked up. 0 hints nothing.
pub(crate) fn look_ahead(
    client: &Arc<EmbeddingClient>,
    mut incoming: IncomingBatches,
    batches: usize,
) -> IncomingBatches {
    if batches == 0 {
        return incoming;
    }
    let (ready, hinted) = mpsc::channel(batches);
    let client = Arc::clone(client);
    // Ends with the reader, or when the receiver takes no more batches. The hints that are open end with it.
    tokio::spawn(async move {
        let mut open = JoinSet::new();
        // A place first: a batch is hinted when so many are before it, not earlier.
        while let Ok(place) = ready.reserve().await {
            let received = tokio::select! {
                received = incoming.recv() => received,
                () = ready.closed() => return,
            };
            let Some(prepared) = received else { break };
            while open.try_join_next().is_some() {}
            if let Ok(prepared) = &prepared
                && open.len() < batches * OPEN_PER_BATCH
                && let Some(hint) = client.hint(&prepared.unique)
            {
                open.spawn(hint);
            }
            place.send(prepared);
        }
        drop(ready);
        while open.join_next().await.is_some() {}
    });
    hinted
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zagros_fakes::FakeShard;
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::datapath::prepared::BatchPreparer;
    use crate::error::WorkerError;
    use crate::testing::{WorkerShard, batch, client, small_job};

    /// Batch `n` has the ids 2n and 2n + 1.
    fn send(count: u64) -> IncomingBatches {
        let (send, incoming) = mpsc::channel(count as usize + 1);
        let mut preparer = BatchPreparer::new(&small_job(), Access::Train);
        for number in 0..count {
            let prepared = preparer.prepare(batch(2, &[&[2 * number, 2 * number + 1]])).unwrap();
            send.try_send(Ok(prepared)).unwrap();
        }
        send.try_send(Err(WorkerError::Thread { thread: "reader", reason: "it ends".to_owned() })).unwrap();
        incoming
    }

    fn hinted(shard: &WorkerShard) -> Vec<Vec<u64>> {
        shard.hinted.lock().unwrap().clone()
    }

    async fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn batches_are_hinted_ahead_and_come_in_order() {
        let (client, shard) = client(FakeShard::default()).await;
        let mut incoming = look_ahead(&client, send(10), 3);
        until(|| hinted(&shard).len() >= 3).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(hinted(&shard), [[0, 1], [2, 3], [4, 5]], "three batches ahead and no more");
        for number in 0..10 {
            let prepared = incoming.recv().await.unwrap().unwrap();
            assert_eq!(prepared.unique.tables[0].ids, [2 * number, 2 * number + 1]);
        }
        assert!(incoming.recv().await.unwrap().is_err() && incoming.recv().await.is_none());
        until(|| client.look_ahead_counts().hinted == 20).await;
        assert_eq!(hinted(&shard).len(), 10);
    }

    #[tokio::test]
    async fn servers_that_do_not_answer_hold_nothing_up() {
        let (client, _) = client(FakeShard::default().hanging()).await;
        let mut incoming = look_ahead(&client, send(50), 2);
        for _ in 0..50 {
            assert!(incoming.recv().await.unwrap().is_ok());
        }
        assert!(incoming.recv().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn without_look_ahead_nothing_is_hinted() {
        let (client, shard) = client(FakeShard::default()).await;
        let mut incoming = look_ahead(&client, send(2), 0);
        while incoming.recv().await.unwrap().is_ok() {}
        assert!(hinted(&shard).is_empty());
    }

    #[tokio::test]
    async fn who_takes_no_more_batches_ends_the_hints() {
        let (client, shard) = client(FakeShard::default()).await;
        let (send, incoming) = mpsc::channel(1);
        let hinted_batches = look_ahead(&client, incoming, 3);
        drop(hinted_batches);
        tokio::time::timeout(Duration::from_secs(60), send.closed()).await.expect("it reads on");
        assert!(hinted(&shard).is_empty());
    }
}
