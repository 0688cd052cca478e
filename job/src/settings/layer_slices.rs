//! Layers as a worker uses streamed weights: one that is too large for its memory is cut into slices of the outputs.
//!
//! ```text
//! layer     weight [outputs, inputs]            bias
//! slices    rows 0 … a − 1 │ a … b − 1 │ b … outputs − 1, bias
//! ```
//!
//! A slice is a layer of its own for the worker, which holds two slices at a time. At the servers nothing changes: slices end between
//! tiles.

use super::{DenseTiles, Job, StreamedLayer, StreamedTensor};

const VALUE: u64 = size_of::<f32>() as u64;

/// Layers beside the MLPs' that have a bias. A step uses each as a whole.
const UNCUT: [&str; 5] = ["cross", "cross_up", "first_order", "wide", "fusion_first"];

impl Job {
    /// [`Self::streamed_layers`], of which each that is too large for `train.memory` is cut, unless autograd makes the
    /// step. The last slice has the bias.
    #[must_use]
    pub fn worker_layers(&self) -> Vec<StreamedLayer> {
        self.cut(self.streamed_layers(), self.train.threads)
    }

    /// `[outputs, inputs]`, in the order of its weights; `None` for a network whose weights cannot be streamed.
    pub(crate) fn worker_matrices(&self, threads: usize) -> Option<Vec<[u64; 2]>> {
        let layers = self.cut(self.dense_layers()?, threads);
        let matrix = |StreamedTensor { segment, .. }: &StreamedTensor| match segment.tensor.shape[..] {
            [_, inputs] => Some([segment.range.len() as u64 / inputs.max(1), inputs]),
            _ => None,
        };
        Some(layers.iter().flat_map(|layer| layer.tensors.iter().filter_map(matrix)).collect())
    }

    fn cut(&self, layers: Vec<StreamedLayer>, threads: usize) -> Vec<StreamedLayer> {
        let most = self.most_of_slice(threads).filter(|_| !self.is_by_autograd());
        let Some(most) = most else { return layers };
        layers.into_iter().flat_map(|layer| layer.slices(most)).collect()
    }

    /// The most weights of a slice, with so many threads: weights and gradients of two take half of `train.memory`. A thread has its own
    /// gradients, and perhaps a copy of one.
    fn most_of_slice(&self, threads: usize) -> Option<u64> {
        let held = 2 + 3 * threads.max(1) as u64;
        self.train.memory.map(|memory| memory / (2 * held * VALUE))
    }
}

impl StreamedLayer {
    /// Slices of at most so many weights, or of one tile.
    fn slices(self, most: u64) -> Vec<Self> {
        let [weight, bias] = &self.tensors[..] else { return vec![self] };
        let stack = self.name.rsplit_once('.').map_or("", |(stack, _)| stack);
        let tiles = weight.tiles_of_slice(most);
        if UNCUT.contains(&stack) || tiles >= weight.tiles.count {
            return vec![self];
        }
        let mut slices: Vec<Self> = Vec::new();
        for first in (0..weight.tiles.count).step_by(tiles) {
            let tensors = vec![weight.slice(first, tiles.min(weight.tiles.count - first))];
            slices.push(Self { name: self.name.clone(), tensors });
        }
        if let Some(last) = slices.last_mut() {
            last.tensors.push(bias.clone());
        }
        slices
    }
}

impl StreamedTensor {
    /// Tiles of a slice of at most so many weights: all, if tiles have no whole rows or if that is few enough.
    fn tiles_of_slice(&self, most: u64) -> usize {
        let (DenseTiles { dim, count, .. }, shape) = (self.tiles, &self.segment.tensor.shape);
        let has_rows = shape.len() == 2 && (dim as u64).is_multiple_of(shape[1]);
        if !has_rows || self.segment.range.len() as u64 <= most {
            return count;
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        // Slices of nearly the same size.
        count.div_ceil(count.div_ceil((most / dim).max(1)))
    }

    fn slice(&self, first: usize, count: usize) -> Self {
        let mut slice = self.clone();
        let DenseTiles { dim, .. } = slice.tiles;
        slice.tiles = DenseTiles { dim, first, count };
        let whole = &self.segment.range;
        slice.segment.range = whole.start + first * dim..whole.end.min(whole.start + (first + count) * dim);
        slice
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, job};

    /// 429 · 512 weights, which no tile's end cuts between rows, then 512 · 1,024 in 8 tiles of 128 rows, and 1,024 · 256 in 4.
    const FFNN: &str =
        "[model]\nkind = 'ffnn'\nhidden = [512, 1024, 256]\n[train]\nweights = 'streamed'\nthreads = 1\n";

    fn layers(text: &str) -> Vec<StreamedLayer> {
        job(CRITEO, text).worker_layers()
    }

    #[test]
    fn layers_beyond_the_memory_are_cut_between_tiles() {
        assert_eq!(layers(FFNN), job(CRITEO, FFNN).streamed_layers());
        // 2^18 weights and no more: half of what ten of them need.
        let text = format!("{FFNN}memory = '{}'\n", 2 * 5 * 4 * (1 << 18));
        let (whole, cut) = (job(CRITEO, &text).streamed_layers(), layers(&text));
        let sizes: Vec<_> = cut.iter().map(|layer| (layer.name.as_str(), layer.weight_count())).collect();
        let half = 1 << 18;
        let expected = [
            ("layers.0", 429 * 512 + 512),
            ("layers.1", half),
            ("layers.1", half + 1024),
            ("layers.2", half + 256),
            ("layers.3", 257),
        ];
        assert_eq!(sizes, expected);
        let tiles: Vec<DenseTiles> = cut[1..3].iter().map(|slice| slice.tensors[0].tiles).collect();
        let (dim, count) = (1 << 16, 4);
        assert_eq!(tiles, [DenseTiles { dim, first: 0, count }, DenseTiles { dim, first: 4, count }]);
        let range = |layer: &StreamedLayer, tensor: usize| layer.tensors[tensor].segment.range.clone();
        assert_eq!(range(&cut[1], 0).start, range(&whole[1], 0).start);
        assert_eq!(range(&cut[1], 0).end, range(&cut[2], 0).start);
        assert_eq!(range(&cut[2], 0).end, range(&whole[1], 0).end);
        assert_eq!(cut[2].tensors[1], whole[1].tensors[1]);
    }

    #[test]
    fn a_slice_has_a_tile_at_least_and_slices_are_nearly_equal() {
        let text = |memory: u64| format!("{FFNN}memory = '{memory}'\n");
        let slices =
            |most: u64| layers(&text(2 * 5 * 4 * most)).iter().filter(|layer| layer.name == "layers.1").count();
        assert_eq!([slices(1 << 14), slices(1 << 16), slices(3 << 16), slices(1 << 19)], [8, 8, 3, 1]);
        let dcnv2 = "[model]\nkind = 'dcnv2'\ncross_layers = 1\nhidden = [512]\n[train]\nmemory = '64KiB'\n";
        let cross = layers(dcnv2).iter().filter(|layer| layer.name == "cross.0").count();
        assert_eq!(cross, 1, "a cross layer is used as a whole");
    }
}
