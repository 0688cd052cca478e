//! The layers of a dense network whose weights are streamed, from the job alone: what a server must know to hold them.
//!
//! A layer is a matrix with or without a bias, or small tensors that are only used together, such as those of an
//! activation unit. A tensor is divided into tiles, contiguous blocks of its values, each a row of the tensor's table.
//!
//! A layer that is too large for the memory of a worker is cut into slices of the outputs:
//!
//! ```text
//! layer     weight [outputs, inputs]            bias
//! slices    rows 0 … a − 1 │ a … b − 1 │ b … outputs − 1, bias
//! ```
//!
//! A slice is a layer of its own for the worker, which holds two slices at a time. At the servers nothing changes: slices end between
//! tiles.

use zagros_table::Initializer;

use super::{DenseSegment, FirstValues, Job};

/// The most weights of a tile, 256 KiB: a row's own costs vanish, and the tiles of a layer still spread over servers. A
/// row has at most 2¹⁶ weights.
const TILE: usize = 1 << 16;
/// Tiles are whole cache lines, except those of a matrix whose rows are wide and odd.
const TILE_STEP: usize = 16;
/// Weights of a matrix, 16 MiB, above which a tile has whole rows.
const LARGE: usize = 1 << 22;

#[derive(Clone, Debug, PartialEq)]
pub struct StreamedLayer {
    /// What the names of its tensors begin with, such as `top.0`.
    pub name: String,
    /// Its tensors, in the order of the weights.
    pub tensors: Vec<StreamedTensor>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StreamedTensor {
    pub segment: DenseSegment,
    pub table: u32,
    pub tiles: DenseTiles,
}

/// The tiles of a tensor: its values in blocks of equal size, the last filled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseTiles {
    /// Weights of a tile: the dim of the table.
    pub dim: usize,
    /// The first of them: 0, except in a slice of a tensor.
    pub first: usize,
    /// Tiles: the rows `first` … `first` + `count` − 1.
    pub count: usize,
}

/// The tiles of a tensor, and where its weights are among those of its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TiledTensor {
    pub table: u32,
    pub tiles: DenseTiles,
    /// Its first weight, counted in the layer.
    pub first: usize,
    pub weights: usize,
}

impl DenseTiles {
    /// Those of a matrix of more than 2²² weights are whole rows of it, where a tile has room for one:
    /// [`Job::worker_layers`] cuts it between them.
    pub fn new(shape: &[u64]) -> Self {
        let lengths: Vec<usize> = shape.iter().map(|length| usize::try_from(*length).unwrap_or(usize::MAX)).collect();
        let weights = lengths.iter().copied().fold(1, usize::saturating_mul);
        match lengths[..] {
            [outputs, inputs] if weights > LARGE && inputs <= TILE => Self::of_rows(outputs, inputs),
            _ => {
                let count = weights.div_ceil(TILE).max(1);
                let dim = weights.div_ceil(count).next_multiple_of(TILE_STEP).clamp(TILE_STEP, TILE);
                Self { dim, first: 0, count }
            }
        }
    }

    fn of_rows(rows: usize, width: usize) -> Self {
        // So many rows are whole cache lines.
        let even = TILE_STEP >> width.trailing_zeros().min(TILE_STEP.ilog2());
        let most = TILE / width;
        let count = rows.div_ceil(if most < even { most } else { most - most % even });
        let each = rows.div_ceil(count);
        let each = if each.next_multiple_of(even) <= most { each.next_multiple_of(even) } else { each };
        Self { dim: each * width, first: 0, count: rows.div_ceil(each) }
    }
}

impl StreamedLayer {
    pub fn weight_count(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.segment.range.len()).sum()
    }

    /// Its tensors by their tiles, in the order of the weights.
    pub fn tiled_tensors(&self) -> Vec<TiledTensor> {
        let placed = |first: &mut usize, tensor: &StreamedTensor| {
            let (place, weights) = (*first, tensor.segment.range.len());
            *first += weights;
            Some(TiledTensor { table: tensor.table, tiles: tensor.tiles, first: place, weights })
        };
        self.tensors.iter().scan(0, placed).collect()
    }
}

impl DenseSegment {
    /// The values before the first step.
    pub fn initializer(&self) -> Initializer {
        match self.tensor.first {
            FirstValues::Uniform(bound) => Initializer::Uniform { bound: (bound * self.first_factor) as f32 },
            FirstValues::Normal(deviation) => Initializer::Normal { deviation: (deviation * self.first_factor) as f32 },
            FirstValues::Constant(value) => Initializer::Constant { value },
        }
    }
}

impl Job {
    /// The layers in the order of the weights; `None` for a user's module, whose layers the job does not know.
    pub fn dense_layers(&self) -> Option<Vec<StreamedLayer>> {
        let mut layers: Vec<StreamedLayer> = Vec::new();
        for (index, segment) in self.dense_segments()?.into_iter().enumerate() {
            let name = segment.tensor.layer.clone();
            let (table, tiles) = ((self.tables.len() + index) as u32, DenseTiles::new(&segment.tensor.shape));
            let tensor = StreamedTensor { segment, table, tiles };
            match layers.last_mut().filter(|last| last.name == name) {
                Some(last) => last.tensors.push(tensor),
                None => layers.push(StreamedLayer { name, tensors: vec![tensor] }),
            }
        }
        Some(layers)
    }
}

const VALUE: u64 = size_of::<f32>() as u64;

/// Layers beside the MLPs' that have a bias. A step uses each as a whole.
const UNCUT: [&str; 5] = ["cross", "cross_up", "first_order", "wide", "fusion_first"];

impl Job {
    /// [`Self::streamed_layers`], of which each that is too large for `train.memory` is cut, unless autograd makes the
    /// step. The last slice has the bias.
    pub fn worker_layers(&self) -> Vec<StreamedLayer> {
        self.cut(self.streamed_layers())
    }

    /// `[outputs, inputs]`, in the order of its weights; `None` for a network whose weights cannot be streamed.
    pub(crate) fn worker_matrices(&self) -> Option<Vec<[u64; 2]>> {
        let layers = self.cut(self.dense_layers()?);
        let matrix = |StreamedTensor { segment, .. }: &StreamedTensor| match segment.tensor.shape[..] {
            [_, inputs] => Some([segment.range.len() as u64 / inputs.max(1), inputs]),
            _ => None,
        };
        Some(layers.iter().flat_map(|layer| layer.tensors.iter().filter_map(matrix)).collect())
    }

    fn cut(&self, layers: Vec<StreamedLayer>) -> Vec<StreamedLayer> {
        let most = self.most_of_slice().filter(|_| !self.is_by_autograd());
        let Some(most) = most else { return layers };
        layers.into_iter().flat_map(|layer| layer.slices(most)).collect()
    }

    /// The most weights of a slice: weights and gradients of two take half of `train.memory`. A thread has its own
    /// gradients, and perhaps a copy of one.
    fn most_of_slice(&self) -> Option<u64> {
        let held = 2 + 3 * self.train.threads.max(1) as u64;
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
    use crate::fixture::{CRITEO, job, module};

    #[test]
    fn a_layer_has_its_tensors_and_each_a_table_behind_those_of_the_features() {
        let job = job(CRITEO, "[model]\nkind = 'dlrm'\nbottom = [8]\ntop = [6]\n");
        let found = job.dense_layers().unwrap();
        let names: Vec<&str> = found.iter().map(|layer| layer.name.as_str()).collect();
        assert_eq!(names, ["bottom.0", "bottom.1", "top.0", "top.1"]);
        let tables: Vec<u32> = found.iter().flat_map(|layer| &layer.tensors).map(|tensor| tensor.table).collect();
        assert_eq!(tables, (26..34).collect::<Vec<u32>>());
        assert_eq!(found[0].weight_count(), 13 * 8 + 8);
        let bound = (1.0 / 13.0_f64.sqrt()) as f32;
        assert_eq!(found[0].tensors[1].segment.initializer(), Initializer::Uniform { bound });
        let all: usize = found.iter().map(StreamedLayer::weight_count).sum();
        assert_eq!(Some(all as u64), job.dense_parameters());
        let module = crate::fixture::job(CRITEO, &module());
        assert_eq!((module.dense_layers(), module.dense_parameters()), (None, None));
    }

    #[test]
    fn small_tensors_that_are_used_together_are_one_layer() {
        let names = |text: &str| {
            let layers = job(CRITEO, text).dense_layers().unwrap();
            layers.into_iter().map(|layer| layer.name).collect::<Vec<_>>()
        };
        let wukong = "[model]\nkind = 'wukong'\nlayers = 1\nfmb_hidden = [8]\nbottom = []\ntop = []\n";
        let expected = ["bottom.0", "fmb_projection.0", "fmb_0.0", "fmb_0.1", "lcb.0", "top.0"];
        assert_eq!(names(wukong), expected);
        let norms = "[model]\nkind = 'ffnn'\nhidden = [8, 4]\n[mlp]\nnorm = 'layer'\n";
        assert_eq!(names(norms), ["layers.0", "layers.1", "layers.2", "layers_norm.0", "layers_norm.1"]);
        let embedded = "[model]\nkind = 'ffnn'\nhidden = []\n[features]\nnumeric_embedding = { dim = 4 }\n";
        assert_eq!(names(embedded), ["numeric_embedding", "layers.0"]);
    }

    #[test]
    fn tiles_hold_all_weights_and_little_more() {
        for weights in [1, 15, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 4_194_304 + 2048] {
            let DenseTiles { dim, first, count } = DenseTiles::new(&[weights as u64]);
            let held = dim * count;
            assert!(dim <= TILE && held >= weights && held < weights + 16 * count, "{weights}: {count} of {dim}");
            assert_eq!(first, 0);
        }
    }

    #[test]
    fn tiles_of_a_large_matrix_are_whole_rows() {
        let many = [(8192, 8192), (4096, 4096), (65_536, 5005), (8192, 429 * 32 + 1), (20_000, 429)];
        for (outputs, inputs) in many.into_iter().chain([(100, 65_536), (9_999, 640)]) {
            let DenseTiles { dim, count, .. } = DenseTiles::new(&[outputs, inputs]);
            let rows = dim / inputs as usize;
            assert!(rows > 0 && dim == rows * inputs as usize && dim <= TILE, "{outputs} x {inputs}: {dim}");
            // All rows, and the last tile is not empty.
            assert_eq!(count, (outputs as usize).div_ceil(rows), "{rows} rows");
            assert!(dim % TILE_STEP == 0 || TILE / (inputs as usize) < TILE_STEP, "{outputs} x {inputs}: {dim}");
        }
        // As they would be without rows.
        assert_eq!(DenseTiles::new(&[8192, 8192]), DenseTiles { dim: TILE, first: 0, count: 1024 });
        assert_eq!(DenseTiles::new(&[401, 416]).count, 3);
        // A row is longer than a tile.
        assert_eq!(DenseTiles::new(&[100, 65_537]), DenseTiles { dim: 64_896, first: 0, count: 101 });
    }

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
