//! Which tensors of a network read the inputs of a sample.

use crate::wiring::{Block, FactorLayer, MlpBlock, Network, Value, WiredBlock};

/// What a tensor reads of a sample by its place: it means something else once numbers, or vectors, are added, removed or moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadInputs {
    pub numbers: bool,
    pub vectors: bool,
}

impl ReadInputs {
    fn join(self, other: Self) -> Self {
        Self { numbers: self.numbers || other.numbers, vectors: self.vectors || other.vectors }
    }
}

impl Network {
    pub fn read_inputs(&self) -> Vec<ReadInputs> {
        let (numbers, vectors) =
            (ReadInputs { numbers: true, vectors: false }, ReadInputs { numbers: false, vectors: true });
        let mut of_values = vec![ReadInputs::default(); self.blocks.len()];
        let mut of_tensors = vec![ReadInputs::default(); self.layout.tensors.len()];
        for (index, WiredBlock { block, tensors, .. }) in self.blocks.iter().enumerate() {
            let read_of = |value: &Value| of_values[value.block];
            // What its tensors read, and what its output still says by its places.
            let (read, given) = match block {
                Block::Numbers | Block::EmbedNumbers => (numbers, numbers),
                Block::Vectors | Block::FirstValues => (vectors, vectors),
                Block::Join(parts) => {
                    let read = parts.iter().map(|part| read_of(&part.value()));
                    let all = read.fold(ReadInputs::default(), ReadInputs::join);
                    (all, all)
                }
                Block::FactorFields { numbers: read, .. } => {
                    (numbers, vectors.join(read.as_ref().map_or(ReadInputs::default(), read_of)))
                }
                Block::Interactions { .. } => (vectors, vectors),
                Block::Cross { input, .. } | Block::Gate { input, .. } => (read_of(input), read_of(input)),
                Block::Mlp(MlpBlock { input, .. })
                | Block::LinearTerm(input)
                | Block::Mixture { input, .. }
                | Block::FactorLayer(FactorLayer { input, .. }) => (read_of(input), ReadInputs::default()),
                Block::ActivationUnit { .. } | Block::Transformer { .. } => (vectors, ReadInputs::default()),
                Block::Sum(_) | Block::SecondOrder { .. } | Block::Fusion { .. } => Default::default(),
            };
            of_values[index] = given;
            for place in first_tensors(block, tensors.len()) {
                of_tensors[tensors.start + place] = read;
            }
        }
        of_tensors
    }
}

/// Which of a block's tensors read what the block reads, and not what its layers make of it.
fn first_tensors(block: &Block, count: usize) -> Vec<usize> {
    match block {
        Block::Mlp(_) => (0..count.min(2)).collect(),
        // Projection and its norm, the first layer of the MLP, and the matrices before the last norm.
        Block::FactorLayer(FactorLayer { vectors, fmb, lcb, .. }) => {
            let matrices = 1 + usize::from(fmb + lcb != *vectors);
            (0..5).chain(count - 2 - matrices..count - 2).collect()
        }
        _ => (0..count).collect(),
    }
}
