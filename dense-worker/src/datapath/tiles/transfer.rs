//! The requests of a layer's pull and push.

use futures::future::try_join_all;
use tokio::sync::oneshot;
use zagros_collective::CollectiveError;
use zagros_embedding_client::{ClientError, EmbeddingClient, PushedBatch};
use zagros_protocol::datapath::Access;
use zagros_zip::{ZipEq, number_from};

use super::layer::{LayerPart, TileRequest};
use crate::model::LayerValues;

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
    access: Access,
    part: &LayerPart,
    mut layer: LayerValues,
    before: Option<PushReceipt>,
) -> Result<LayerValues, TransferError> {
    acknowledged(before).await?;
    for group in part.requests.chunks(REQUESTS_AT_ONCE) {
        let answers = try_join_all(group.iter().map(|request| client.lookup_answers(&request.ids, access))).await?;
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
    part: &LayerPart,
    gradient: LayerValues,
    before: Option<PushReceipt>,
) -> Result<(), TransferError> {
    acknowledged(before).await?;
    for (first, group) in number_from(0, part.requests.chunks(REQUESTS_AT_ONCE)) {
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
    part: &LayerPart,
    before: Option<PushReceipt>,
) -> Result<(), TransferError> {
    acknowledged(before).await?;
    let each = number_from(batch.seq, &part.requests)
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
