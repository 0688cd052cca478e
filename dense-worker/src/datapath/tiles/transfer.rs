//! How layers come and go: the requests of a layer's pull and push, and the lane of layers, a thread that makes the workers' calls for
//! layers, one after another.
//!
//! All ranks make the same calls in the same order. A layer's weights are gathered before they are used, and its gradients are
//! summed after that, while the step computes with another layer.

use std::sync::mpsc;

use futures::future::try_join_all;
use tokio::sync::oneshot;
use zagros_collective::{CollectiveError, CollectiveGroup};
use zagros_embedding_client::{ClientError, EmbeddingClient, PushedBatch};
use zagros_protocol::datapath::Access;
use zagros_zip::{ZipEq, number_from};

use super::layer::TileRequest;
use crate::error::WorkerError;
use zagros_model::LayerValues;

/// Requests of a layer that are under way at once: enough for several servers, and few enough that their payloads are small
/// beside a layer.
const REQUESTS_AT_ONCE: usize = 4;

/// Why a layer did not come, or its gradient did not arrive.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransferError {
    #[error(transparent)]
    Servers(#[from] ClientError),
    #[error(transparent)]
    Workers(#[from] CollectiveError),
    /// The task that was to answer is gone.
    #[error("the run ends")]
    RunEnds,
}

/// What a push answers once all servers have acknowledged it.
pub(super) type PushReceipt = oneshot::Receiver<Result<(), TransferError>>;

/// Writes the weights of a part of a layer, after the layer's push before, to their places in `layer`.
pub(super) async fn pull(
    client: &EmbeddingClient,
    part: &[TileRequest],
    mut layer: LayerValues,
    before: Option<PushReceipt>,
) -> Result<LayerValues, TransferError> {
    acknowledged(before).await?;
    for group in part.chunks(REQUESTS_AT_ONCE) {
        let answers =
            try_join_all(group.iter().map(|request| client.lookup_answers(&request.ids, Access::Train))).await?;
        for (request, answers) in group.iter().zip_eq(answers) {
            request.write_weights(&mut layer, |tables| answers.write_rows(tables))?;
        }
    }
    Ok(layer)
}

/// Pushes the gradient of a part of a layer. The requests have numbers from that of `batch` on.
pub(super) async fn push(
    client: &EmbeddingClient,
    batch: PushedBatch,
    part: &[TileRequest],
    gradient: LayerValues,
    before: Option<PushReceipt>,
) -> Result<(), TransferError> {
    acknowledged(before).await?;
    for (first, group) in number_from(0, part.chunks(REQUESTS_AT_ONCE)) {
        let numbered = number_from(batch.seq + first * REQUESTS_AT_ONCE as u64, group);
        let each = numbered.map(async |(seq, request): (u64, &TileRequest)| {
            let given = request.gradient_slices(&gradient);
            let gradients: Vec<&[f32]> = given.iter().map(|values| &**values).collect();
            client.push_slices(PushedBatch { seq, ..batch }, &request.ids, &gradients).await
        });
        try_join_all(each).await?;
    }
    Ok(())
}

/// Applies the gradients that the pushes of a step have left in the tiles. Numbers as for [`push`].
pub(super) async fn commit(
    client: &EmbeddingClient,
    batch: PushedBatch,
    part: &[TileRequest],
    before: Option<PushReceipt>,
) -> Result<(), TransferError> {
    acknowledged(before).await?;
    let each = number_from(batch.seq, part)
        .map(|(seq, request)| client.push_slices(PushedBatch { seq, ..batch }, &request.ids, &[]));
    try_join_all(each).await?;
    Ok(())
}

async fn acknowledged(before: Option<PushReceipt>) -> Result<(), TransferError> {
    match before {
        // A push whose task is gone belongs to a run that ends.
        Some(receipt) => receipt.await.unwrap_or(Ok(())),
        None => Ok(()),
    }
}

type LaneCall = Box<dyn FnOnce(&mut dyn CollectiveGroup) + Send>;

/// The thread ends once the handle is dropped and all calls are made.
#[derive(Debug)]
pub(super) struct LayerLane {
    pub(super) rank: usize,
    pub(super) world: usize,
    calls: mpsc::Sender<LaneCall>,
}

impl LayerLane {
    /// Starts the thread with a process group of its own.
    pub(super) fn start(mut group: Box<dyn CollectiveGroup>) -> Result<Self, WorkerError> {
        let (rank, world) = (group.rank(), group.world_size());
        let (send, calls) = mpsc::channel::<LaneCall>();
        let run = move || calls.into_iter().for_each(|call| call(group.as_mut()));
        let spawned = std::thread::Builder::new().name("layers".to_owned()).spawn(run);
        spawned.map_err(|error| WorkerError::Thread { thread: "layers", reason: format!("cannot start: {error}") })?;
        Ok(Self { rank, world, calls: send })
    }

    /// Makes a call after those before. A call that is never made drops what it owns.
    pub(super) fn call(&self, call: impl FnOnce(&mut dyn CollectiveGroup) + Send + 'static) {
        // The thread ends early only with a panic. The caller that waits for the call learns of it.
        let _ = self.calls.send(Box::new(call));
    }
}

#[cfg(test)]
mod tests {
    use zagros_collective::SingleRank;

    use super::*;

    #[test]
    fn calls_are_made_in_their_order_also_after_the_handle_is_gone() {
        let lane = LayerLane::start(Box::new(SingleRank)).unwrap();
        assert_eq!((lane.rank, lane.world), (0, 1));
        let (tell, heard) = mpsc::channel();
        for number in 0..100 {
            let tell = tell.clone();
            lane.call(move |group| tell.send((number, group.world_size())).unwrap());
        }
        drop((lane, tell));
        assert_eq!(heard.iter().collect::<Vec<_>>(), (0..100).map(|number| (number, 1)).collect::<Vec<_>>());
    }
}
