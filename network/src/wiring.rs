//! A network as blocks that are wired together: what each block reads, and which tensors it has.

use std::ops::Range;

use crate::layout::{DenseLayout, FirstValues, LayerDim, LayoutBuilder, TensorRole};
use crate::settings::{AttentionActivation, MlpSettings};

/// What a network reads of a sample, and how many values it gives.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkInputs {
    pub numbers: usize,
    /// What some of them become before the network reads them.
    pub embedding: Option<NumberEmbedding>,
    /// Values of each feature vector that is not a sequence.
    pub dims: Vec<usize>,
    /// Sequences that are compared with a target.
    pub sequences: Vec<SequencePair>,
    pub outputs: Vec<usize>,
}

/// Vectors in place of numbers (Gorishniy et al. 2022, section 3).
#[derive(Clone, Debug, PartialEq)]
pub struct NumberEmbedding {
    pub embedded: Vec<usize>,
    /// Frequencies of each, and values of its vector.
    pub frequencies: usize,
    pub dim: usize,
    /// Of the frequencies' first values.
    pub deviation: f64,
}

/// A sequence of vectors, and the vector that it is compared with, among the vectors of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencePair {
    /// The first value of the sequence. The number of its real positions follows the vectors.
    pub offset: usize,
    pub dim: usize,
    pub length: usize,
    /// Whether padding comes before the real positions.
    pub pads_left: bool,
    /// The first value of the target's vector.
    pub target: usize,
}

/// What a block gives: `[samples, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    pub block: usize,
    pub width: LayerDim,
}

impl Value {
    pub fn columns(self) -> usize {
        usize::try_from(self.width.size).unwrap_or(usize::MAX)
    }
}

/// A part of a network. Values are those of blocks before it.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// The numeric values of a sample.
    Numbers,
    /// The feature vectors of a sample side by side.
    Vectors,
    /// Values side by side.
    Join(Vec<Columns>),
    /// The sum of values of the same width.
    Sum(Vec<Value>),
    Mlp(MlpBlock),
    /// DLRM's: `dense`, a vector of `dim` values, then the dot products of all pairs of vectors.
    Interactions {
        dense: Option<Value>,
        vectors: usize,
        dim: usize,
    },
    Cross {
        input: Value,
        layers: usize,
        rank: Option<usize>,
    },
    /// Σ of the first values of all vectors: the weights of a linear model.
    FirstValues,
    /// A vector of each number, the number times its factors, then the vectors without their first value.
    FactorFields {
        numbers: Option<Value>,
        dim: usize,
    },
    /// Σ_{i<j} ⟨f_i, f_j⟩ over fields of so many factors.
    SecondOrder {
        fields: Value,
        factors: usize,
    },
    /// w·x + b.
    LinearTerm(Value),
    /// Σ softmax(G·x)_e · y_e over the experts.
    Mixture {
        input: Value,
        experts: Vec<Value>,
    },
    Fusion {
        first: Value,
        second: Value,
        heads: usize,
    },
    /// Vectors in place of numbers. Only autograd computes it, as all that follow.
    EmbedNumbers,
    /// x ⊙ 2σ(gate): of an MLP with these hidden layers over places of x, or of learned logits where it reads none.
    Gate {
        input: Value,
        places: Vec<usize>,
        hidden: Vec<usize>,
    },
    /// A layer of Wukong over so many vectors of `dim` values.
    FactorLayer(FactorLayer),
    /// The sum of a sequence's vectors, weighed by a unit that compares each with the target.
    ActivationUnit {
        pair: SequencePair,
        hidden: Vec<usize>,
        activation: AttentionActivation,
        softmax: bool,
    },
    /// Blocks of self-attention over a sequence and its target.
    Transformer {
        pair: SequencePair,
        layers: usize,
        heads: usize,
        causal: bool,
    },
}

/// A layer of Wukong: it makes `fmb` + `lcb` vectors of `vectors`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactorLayer {
    pub input: Value,
    pub vectors: usize,
    pub dim: usize,
    pub fmb: usize,
    pub lcb: usize,
    /// Outputs of the layers of the MLP over the products.
    pub widths: Vec<usize>,
}

impl Block {
    /// The key of a job file for which the network has this block, if only autograd computes it.
    pub fn autograd_key(&self) -> Option<&'static str> {
        match self {
            Self::EmbedNumbers => Some("features.numeric_embedding"),
            Self::Gate { .. } => Some("model.gate"),
            Self::FactorLayer(_) => Some("model.kind = \"wukong\""),
            Self::ActivationUnit { .. } => Some("model.kind = \"din\""),
            Self::Transformer { .. } => Some("model.kind = \"bst\""),
            _ => None,
        }
    }

    /// The values that it reads, in the order in which a backward gives their slopes. Blocks that read the vectors of a sample always do
    /// not name them.
    pub fn read_values(&self) -> Vec<Value> {
        match self {
            Self::Numbers
            | Self::Vectors
            | Self::FirstValues
            | Self::EmbedNumbers
            | Self::ActivationUnit { .. }
            | Self::Transformer { .. } => Vec::new(),
            Self::Join(parts) => parts.iter().map(|part| part.value()).collect(),
            Self::Sum(values) => values.clone(),
            Self::Interactions { dense: read, .. } | Self::FactorFields { numbers: read, .. } => {
                read.iter().copied().collect()
            }
            Self::Mlp(MlpBlock { input, .. })
            | Self::Cross { input, .. }
            | Self::LinearTerm(input)
            | Self::SecondOrder { fields: input, .. }
            | Self::Gate { input, .. }
            | Self::FactorLayer(FactorLayer { input, .. }) => vec![*input],
            Self::Mixture { input, experts } => experts.iter().chain([input]).copied().collect(),
            Self::Fusion { first, second, .. } => vec![*first, *second],
        }
    }
}

/// Columns of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    All(Value),
    /// Of the feature vectors, all but the first value of each.
    WithoutFirst(Value),
}

impl Columns {
    pub fn value(self) -> Value {
        let (Self::All(value) | Self::WithoutFirst(value)) = self;
        value
    }
}

/// Linear layers, each but the last of some followed by ReLU and dropout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlpBlock {
    pub input: Value,
    pub widths: Vec<usize>,
    pub hidden: usize,
    pub drops_units: bool,
}

/// A network with its tensors, in the order of its blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    pub layout: DenseLayout,
    pub inputs: NetworkInputs,
    pub blocks: Vec<WiredBlock>,
    /// What the network gives: the outputs of all targets.
    pub output: Value,
}

/// A block, which of the network's tensors are its own, and how many values it gives.
#[derive(Clone, Debug, PartialEq)]
pub struct WiredBlock {
    pub block: Block,
    pub tensors: Range<usize>,
    pub width: usize,
}

#[derive(Debug)]
pub struct Wiring {
    pub(crate) layout: LayoutBuilder,
    inputs: NetworkInputs,
    blocks: Vec<WiredBlock>,
    /// What the network reads in place of the numbers.
    numbers: Option<Value>,
}

/// Hidden widths, which grow with the width of the network.
pub(crate) fn wide(widths: &[i64]) -> Vec<LayerDim> {
    widths.iter().map(|width| LayerDim::wide(width.unsigned_abs())).collect()
}

/// Widths of layers whose size is chosen on its own.
pub(crate) fn fixed(widths: &[i64]) -> Vec<LayerDim> {
    widths.iter().map(|width| LayerDim::fixed(width.unsigned_abs())).collect()
}

pub(crate) fn size(width: LayerDim) -> usize {
    usize::try_from(width.size).unwrap_or(usize::MAX)
}

impl Wiring {
    /// `layers` is what follows hidden layers.
    pub fn new(inputs: NetworkInputs, layers: MlpSettings) -> Self {
        let mut made = Self { layout: LayoutBuilder::new(layers), inputs, blocks: Vec::new(), numbers: None };
        let numbers = LayerDim::fixed(made.inputs.numbers as u64);
        let numbers = made.add(Block::Numbers, numbers);
        let vectors = made.inputs.dims.iter().sum::<usize>();
        made.add(Block::Vectors, LayerDim::fixed(vectors as u64));
        made.numbers = (numbers.width.size > 0).then_some(numbers);
        if let Some(embedding) = made.inputs.embedding.clone() {
            made.numbers = Some(made.embed_numbers(&embedding));
        }
        made
    }

    pub fn inputs(&self) -> &NetworkInputs {
        &self.inputs
    }

    pub fn finish(self, output: Value) -> Network {
        Network { layout: self.layout.into_layout(), inputs: self.inputs, blocks: self.blocks, output }
    }

    fn embed_numbers(&mut self, embedding: &NumberEmbedding) -> Value {
        let NumberEmbedding { embedded, frequencies, dim, deviation } = embedding;
        let [count, frequencies, dim] = [embedded.len(), *frequencies, *dim].map(|size| size as u64);
        let uniform = FirstValues::Uniform(1.0 / (2.0 * frequencies as f64).sqrt());
        let name = |name: &str| format!("numeric_embedding.{name}");
        let normal = FirstValues::Normal(*deviation);
        self.layout.add_fixed(&name("frequencies"), &[count, frequencies], TensorRole::Scale, normal);
        self.layout.add_fixed(&name("weight"), &[count, 2 * frequencies, dim], TensorRole::Weight, uniform);
        self.layout.add_fixed(&name("bias"), &[count, dim], TensorRole::Bias, uniform);
        self.add(Block::EmbedNumbers, LayerDim::fixed(self.inputs.numbers as u64 - count + count * dim))
    }

    /// What the network reads of the numbers; `None` without them.
    pub fn numbers(&self) -> Option<Value> {
        self.numbers
    }

    pub fn vectors(&self) -> Value {
        Value { block: 1, width: LayerDim::fixed(self.inputs.dims.iter().sum::<usize>() as u64) }
    }

    /// Values of the first feature vector; those of all, where a network needs one dim.
    pub fn dim(&self) -> usize {
        self.inputs.dims.first().copied().unwrap_or(0)
    }

    /// The values that the network gives.
    pub fn outputs(&self) -> LayerDim {
        LayerDim::fixed(self.inputs.outputs.iter().sum::<usize>() as u64)
    }

    /// A block, whose tensors have been added.
    fn add(&mut self, block: Block, width: LayerDim) -> Value {
        let first = self.blocks.last().map_or(0, |last| last.tensors.end);
        let tensors = first..self.layout.tensor_count();
        self.blocks.push(WiredBlock { block, tensors, width: size(width) });
        Value { block: self.blocks.len() - 1, width }
    }

    /// Numeric values and feature vectors side by side.
    pub fn all_inputs(&mut self) -> Value {
        let parts: Vec<Columns> = self.numbers().into_iter().chain([self.vectors()]).map(Columns::All).collect();
        self.join(parts)
    }

    /// Grows with the network's width if a part does.
    pub fn join(&mut self, parts: Vec<Columns>) -> Value {
        let width = |columns: &Columns| match columns {
            Columns::All(value) => value.width,
            Columns::WithoutFirst(value) => {
                LayerDim { size: value.width.size - self.inputs.dims.len() as u64, ..value.width }
            }
        };
        let widths: Vec<LayerDim> = parts.iter().map(width).collect();
        let all = LayerDim {
            size: widths.iter().map(|width| width.size).sum(),
            power: widths.iter().map(|width| width.power).max().unwrap_or(0),
        };
        self.add(Block::Join(parts), all)
    }

    pub fn sum(&mut self, values: Vec<Value>) -> Value {
        let width = values.first().map_or(LayerDim::fixed(0), |value| value.width);
        self.add(Block::Sum(values), width)
    }

    /// Hidden layers, perhaps none.
    pub fn mlp(&mut self, name: &str, input: Value, hidden: &[LayerDim], drops_units: bool) -> Value {
        self.add_mlp(name, input, (hidden, None), drops_units)
    }

    /// Hidden layers and one that gives the outputs of the network.
    pub fn logit(&mut self, name: &str, input: Value, hidden: &[LayerDim]) -> Value {
        self.add_mlp(name, input, (hidden, Some(self.outputs())), true)
    }

    pub(crate) fn add_mlp(
        &mut self,
        name: &str,
        input: Value,
        (hidden, last): (&[LayerDim], Option<LayerDim>),
        drops_units: bool,
    ) -> Value {
        let given = self.layout.add_mlp(name, input.width, hidden, last);
        let widths: Vec<usize> = hidden.iter().chain(&last).map(|width| size(*width)).collect();
        if widths.is_empty() {
            return input;
        }
        self.add(Block::Mlp(MlpBlock { input, widths, hidden: hidden.len(), drops_units }), given)
    }

    pub(crate) fn interactions(&mut self, dense: Option<Value>) -> Value {
        let (dim, vectors) = (self.dim(), self.inputs.dims.len() + usize::from(dense.is_some()));
        let pairs = vectors * vectors.saturating_sub(1) / 2;
        self.layout.count_products((pairs * dim) as u64);
        let width = pairs + if dense.is_some() { dim } else { 0 };
        self.add(Block::Interactions { dense, vectors, dim }, LayerDim::fixed(width as u64))
    }

    pub(crate) fn cross(&mut self, input: Value, layers: usize, rank: Option<usize>) -> Value {
        let width = input.width;
        for index in 0..layers {
            match rank.map(|rank| LayerDim::fixed(rank as u64)) {
                None => self.layout.add_linear("cross", index, width, width),
                Some(rank) => {
                    self.layout.add_matrix("cross_down", index, width, rank);
                    self.layout.add_linear("cross_up", index, rank, width);
                }
            }
        }
        self.add(Block::Cross { input, layers, rank }, width)
    }

    pub(crate) fn first_values(&mut self) -> Value {
        self.add(Block::FirstValues, LayerDim::fixed(1))
    }

    /// A field of each number and each vector, all of K = dim − 1 values.
    pub(crate) fn factor_fields(&mut self) -> Value {
        let (numbers, dim) = (self.numbers(), self.dim());
        let factors = dim.saturating_sub(1) as u64;
        if let Some(numbers) = numbers {
            let shape = [numbers.width.size, factors];
            self.layout.add_fixed("factors.weight", &shape, TensorRole::Scale, FirstValues::Uniform(0.01));
        }
        let fields = numbers.map_or(0, Value::columns) + self.inputs.dims.len();
        self.layout.count_products(fields as u64 * factors);
        self.add(Block::FactorFields { numbers, dim }, LayerDim::fixed(fields as u64 * factors))
    }

    pub(crate) fn second_order(&mut self, fields: Value) -> Value {
        let factors = self.dim().saturating_sub(1);
        self.add(Block::SecondOrder { fields, factors }, LayerDim::fixed(1))
    }

    pub(crate) fn linear_term(&mut self, name: &str, input: Value) -> Value {
        self.layout.add_linear(name, 0, input.width, LayerDim::fixed(1));
        self.add(Block::LinearTerm(input), LayerDim::fixed(1))
    }

    pub(crate) fn mixture(&mut self, name: &str, index: usize, input: Value, experts: Vec<Value>) -> Value {
        let given = experts.first().map_or(input.width, |expert| expert.width);
        self.layout.add_matrix(name, index, input.width, LayerDim::fixed(experts.len() as u64));
        self.layout.count_products(experts.len() as u64 * given.size);
        self.add(Block::Mixture { input, experts }, given)
    }

    /// The product of two widths grows with the square.
    pub(crate) fn fusion(&mut self, first: Value, second: Value, heads: usize) -> Value {
        let (outputs, a, b) = (self.outputs(), first.width, second.width);
        self.layout.add_linear("fusion_first", 0, a, outputs);
        self.layout.add_matrix("fusion_second", 0, b, outputs);
        let products = LayerDim { size: a.size * b.size / (heads as u64).max(1), power: a.power + b.power };
        self.layout.add_matrix("fusion", 0, products, outputs);
        self.layout.count_products(b.size * outputs.size);
        self.add(Block::Fusion { first, second, heads }, outputs)
    }

    /// A block whose tensors `make` adds.
    pub(crate) fn add_with(&mut self, block: Block, width: LayerDim, make: impl FnOnce(&mut LayoutBuilder)) -> Value {
        make(&mut self.layout);
        self.add(block, width)
    }
}
