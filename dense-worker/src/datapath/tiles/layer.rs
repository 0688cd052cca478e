//! The tiles of a layer, the requests that fetch or push them, and how they come and go.
//!
//! All ranks make the same calls in the same order. A layer's weights are gathered before they are used, and its gradients are
//! summed after that, while the step computes with another layer.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, mpsc};

use futures::future::try_join_all;
use tokio::sync::oneshot;
use zagros_collective::{CollectiveError, CollectiveGroup};
use zagros_embedding_client::{BatchRows, ClientError, EmbeddingClient, PushedBatch, RoutedIds, TableIds, UniqueIds};
use zagros_job::{DenseTiles, StreamedLayer, TiledTensor};
use zagros_model::LayerValues;
use zagros_protocol::TableId;
use zagros_protocol::datapath::Access;
use zagros_zip::{ZipEq, number_from};

use crate::error::WorkerError;

/// Tiles of one request, at most 4 MiB of weights: a layer comes in several answers at once.
const TILES_PER_REQUEST: usize = 16;

/// A layer's tiles, in the order of its weights.
#[derive(Debug)]
pub(super) struct TiledLayer {
    pub(super) name: String,
    pub(super) weights: usize,
    tensors: Vec<TiledTensor>,
    pub(super) whole: Arc<LayerPart>,
}

/// The requests of the tiles of some of a layer's weights.
pub(super) type LayerPart = Vec<TileRequest>;

#[derive(Debug)]
pub(super) struct TileRequest {
    pub(super) ids: RoutedIds,
    /// For each table of the ids: the weights of the layer that its tiles hold, without what fills a tile up.
    weights: Vec<Range<usize>>,
    /// Whether the tiles lie in the layer as they do in their tables.
    is_whole: bool,
}

impl TiledLayer {
    pub(super) fn new(layer: &StreamedLayer) -> Self {
        let (tensors, weights) = (layer.tiled_tensors(), layer.weight_count());
        let whole = Arc::new(cut_part(&tensors, &(0..weights)));
        Self { name: layer.name.clone(), weights, tensors, whole }
    }

    /// Where each rank's part of the weights begins, and where the last one ends: `[world + 1]`. Parts are whole tiles of nearly
    /// equally many weights.
    pub(super) fn part_bounds(&self, world: usize) -> Vec<usize> {
        let starts: Vec<usize> = self.tensors.iter().flat_map(tile_starts).chain([self.weights]).collect();
        let nearest = |rank: usize| {
            let wanted = self.weights * rank / world;
            let place = starts.partition_point(|start| *start < wanted);
            let previous = starts[place.saturating_sub(1)];
            if wanted - previous.min(wanted) < starts[place] - wanted { previous } else { starts[place] }
        };
        (0..=world).map(nearest).collect()
    }

    /// The tiles of these weights, which begin and end between tiles.
    pub(super) fn cut_part(&self, weights: &Range<usize>) -> LayerPart {
        cut_part(&self.tensors, weights)
    }
}

/// The first weight of each tile.
fn tile_starts(tensor: &TiledTensor) -> impl Iterator<Item = usize> + use<> {
    (tensor.first..tensor.first + tensor.weights).step_by(tensor.tiles.dim)
}

fn cut_part(tensors: &[TiledTensor], weights: &Range<usize>) -> LayerPart {
    let (mut requests, mut request, mut ends) = (Vec::new(), RequestTiles::default(), RequestTiles::default());
    for tensor in tensors {
        let end = tensor.first + tensor.weights;
        let own = tile_starts(tensor).enumerate().filter(|(_, start)| weights.contains(start));
        let (whole, partial): (Vec<_>, Vec<_>) = own.partition(|(_, start)| start + tensor.tiles.dim <= end);
        let mut whole = &whole[..];
        while !whole.is_empty() {
            let (tiles, others) = whole.split_at(whole.len().min(TILES_PER_REQUEST - request.tiles));
            request.add(tensor, tiles, end);
            whole = others;
            if request.tiles == TILES_PER_REQUEST {
                requests.push(std::mem::take(&mut request).close());
            }
        }
        ends.add(tensor, &partial, end);
    }
    let others = [request, ends].into_iter().filter(|request| request.tiles > 0);
    requests.extend(others.map(RequestTiles::close));
    requests
}

#[derive(Default)]
struct RequestTiles {
    tables: Vec<TableIds>,
    weights: Vec<Range<usize>>,
    tiles: usize,
}

impl RequestTiles {
    /// Adds tiles of a tensor that ends at the weight `end`, each by its number in the layer and its first weight.
    fn add(&mut self, tensor: &TiledTensor, tiles: &[(usize, usize)], end: usize) {
        let (Some((_, first)), Some((_, last))) = (tiles.first(), tiles.last()) else { return };
        let DenseTiles { dim, first: tile, .. } = tensor.tiles;
        let ids = tiles.iter().map(|(number, _)| (tile + number) as u64).collect();
        self.tables.push(TableIds::new(TableId(tensor.table), dim as u32, ids));
        self.weights.push(*first..end.min(last + dim));
        self.tiles += tiles.len();
    }

    fn close(self) -> TileRequest {
        let lengths = self.tables.iter().map(|table| table.ids.len() * table.dim as usize);
        let is_whole = lengths.zip_eq(&self.weights).all(|(length, weights)| length == weights.len());
        TileRequest { ids: UniqueIds { tables: self.tables }.into(), weights: self.weights, is_whole }
    }
}

impl TileRequest {
    /// Has `write` write the weights of an answer, table after table, to their places in the layer.
    pub(super) fn write_weights<E>(
        &self,
        layer: &mut [f32],
        write: impl FnOnce(&mut [&mut [f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.is_whole {
            return write(&mut slices_of(layer, &self.weights));
        }
        let mut rows = BatchRows::zeros_like(&self.ids);
        write(&mut rows.table_slices_mut())?;
        for (values, range) in rows.tables.iter().zip_eq(&self.weights) {
            let weights = &mut layer[range.clone()];
            weights.copy_from_slice(&values[..weights.len()]);
        }
        Ok(())
    }

    /// The gradients of this request's tiles, table after table.
    pub(super) fn gradient_slices<'a>(&self, gradient: &'a [f32]) -> Vec<Cow<'a, [f32]>> {
        let tile_values = |(table, range): (&TableIds, &Range<usize>)| {
            let (values, length) = (&gradient[range.clone()], table.ids.len() * table.dim as usize);
            if values.len() == length {
                return Cow::Borrowed(values);
            }
            // Zeros for what fills the tile up.
            let mut filled = values.to_vec();
            filled.resize(length, 0.0);
            Cow::Owned(filled)
        };
        self.ids.tables.iter().zip_eq(&self.weights).map(tile_values).collect()
    }
}

/// These parts of all values. They ascend and do not overlap.
fn slices_of<'a>(mut values: &'a mut [f32], parts: &[Range<usize>]) -> Vec<&'a mut [f32]> {
    let mut start = 0;
    let mut slices = Vec::with_capacity(parts.len());
    for part in parts {
        let (before, after) = std::mem::take(&mut values).split_at_mut(part.end - start);
        slices.push(&mut before[part.start - start..]);
        (values, start) = (after, part.end);
    }
    slices
}

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

/// A thread that makes the workers' calls for layers, one after another. It ends once the handle is dropped and all calls are made.
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
    use proptest::prelude::*;

    use super::*;

    fn layer(tensors: &[(usize, usize)]) -> TiledLayer {
        let (mut made, mut first) = (Vec::new(), 0);
        for (table, (dim, weights)) in tensors.iter().enumerate() {
            let tiles = DenseTiles { dim: *dim, first: table, count: weights.div_ceil(*dim) };
            made.push(TiledTensor { table: table as u32, tiles, first, weights: *weights });
            first += weights;
        }
        let whole = Arc::new(cut_part(&made, &(0..first)));
        TiledLayer { name: "top.0".to_owned(), weights: first, tensors: made, whole }
    }

    /// The weights of all requests of a part, and its tiles as (table, id), both ascending.
    fn content(part: &[TileRequest]) -> (Vec<usize>, Vec<(u32, u64)>) {
        let weights = part.iter().flat_map(|request| request.weights.iter().cloned().flatten());
        let tables = part.iter().flat_map(|request| request.ids.tables.iter());
        let tiles = tables.flat_map(|table| table.ids.iter().map(|id| (table.table.0, *id)));
        let (mut weights, mut tiles): (Vec<_>, Vec<_>) = (weights.collect(), tiles.collect());
        weights.sort_unstable();
        tiles.sort_unstable();
        (weights, tiles)
    }

    proptest! {
        #[test]
        fn parts_are_the_layer_in_whole_tiles(
            tensors in prop::collection::vec((1_usize..20, 1_usize..900), 1..4),
            world in 1_usize..7,
        ) {
            let layer = layer(&tensors);
            let (all, tiles) = content(&layer.whole);
            prop_assert_eq!(&all, &(0..layer.weights).collect::<Vec<_>>());
            let bounds = layer.part_bounds(world);
            prop_assert_eq!((bounds.len(), bounds[0], bounds[world]), (world + 1, 0, layer.weights));
            let (mut found, mut found_tiles) = (Vec::new(), Vec::new());
            for rank in bounds.windows(2) {
                let part = layer.cut_part(&(rank[0]..rank[1]));
                let (weights, tiles) = content(&part);
                prop_assert_eq!(&weights, &(rank[0]..rank[1]).collect::<Vec<_>>());
                let largest = part.iter().map(|request| request.ids.tables.iter().map(|table| table.ids.len()).sum());
                prop_assert!(largest.max().unwrap_or(0_usize) <= TILES_PER_REQUEST.max(tensors.len()));
                // A part has its share of the weights, to half a tile at each end.
                let widest = tensors.iter().map(|(dim, _)| *dim).max().unwrap_or(0);
                prop_assert!((rank[1] - rank[0]).abs_diff(layer.weights / world) <= widest + 1);
                found.extend(weights);
                found_tiles.extend(tiles);
            }
            prop_assert_eq!((found, found_tiles), (all, tiles));
        }
    }

    #[test]
    fn weights_go_to_tiles_and_come_back() {
        let layer = layer(&[(4, 10), (2, 3)]);
        let gradient: Vec<f32> = (0..13_u16).map(f32::from).collect();
        let [whole, ends] = &layer.whole[..] else { panic!("{:?}", layer.whole) };
        let given = [whole, ends].map(|request| request.gradient_slices(&gradient));
        assert_eq!(given[0], [vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], vec![10.0, 11.0]]);
        assert_eq!(given[1], [vec![8.0, 9.0, 0.0, 0.0], vec![12.0, 0.0]]);
        let mut back = vec![-1.0; 13];
        for (request, given) in [whole, ends].into_iter().zip_eq(&given) {
            let write = |tables: &mut [&mut [f32]]| {
                tables.iter_mut().zip_eq(given).for_each(|(table, values)| table.copy_from_slice(values));
                Ok::<_, ()>(())
            };
            request.write_weights(&mut back, write).unwrap();
        }
        assert_eq!(back, gradient);
    }
}

#[cfg(test)]
mod transfer_tests {
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
