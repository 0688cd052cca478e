//! The blocks of a network with their weights, and the forward of each by libtorch.

use tch::{Kind, Tensor};
use zagros_network::wiring::{Block, Columns, NetworkInputs, Value};

use super::products::{BilinearFusion, CrossMatrix, FactorFields, InteractionLayer, StreamGate, second_order};
use super::sequences::{ActivationUnit, SequenceTransformer};
use crate::error::{TorchError, TorchResult};
use crate::int;
use crate::layers::{BlockTensors, LayerCalls, LayerNumber, LinearLayer, Mlp, NumericEmbeddings};

/// Number of the block of numeric values, and of that of feature vectors.
const NUMBERS: usize = 0;
pub(super) const VECTORS: usize = 1;

#[derive(Debug)]
pub(super) enum TorchBlock {
    Numbers,
    /// The vectors without the sequences behind them: so many values of a sample, if there are sequences.
    Vectors(Option<usize>),
    EmbedNumbers(NumericEmbeddings),
    Join(Vec<JoinedPart>),
    Sum(Vec<usize>),
    Mlp {
        input: usize,
        mlp: Mlp,
        drops_units: bool,
    },
    Interactions(Interactions),
    Cross {
        input: usize,
        layers: Vec<CrossMatrix>,
    },
    /// The places of the first values of vectors.
    FirstValues(Tensor),
    FactorFields(FactorFields),
    SecondOrder {
        fields: usize,
        factors: usize,
    },
    LinearTerm {
        input: usize,
        linear: LinearLayer,
    },
    Mixture {
        input: usize,
        experts: Vec<usize>,
        gate: ExpertGate,
    },
    Fusion {
        streams: [usize; 2],
        fusion: BilinearFusion,
    },
    Gate {
        input: usize,
        gate: StreamGate,
    },
    FactorLayer {
        input: usize,
        layer: Box<InteractionLayer>,
    },
    ActivationUnit(Box<ActivationUnit>),
    Transformer(SequenceTransformer),
}

/// A value, or those of its columns at these places.
#[derive(Debug)]
pub(super) struct JoinedPart {
    value: usize,
    places: Option<Tensor>,
}

/// Dot products of all pairs of vectors.
#[derive(Debug)]
pub(super) struct Interactions {
    dense: Option<usize>,
    /// Vectors besides the dense one, and their values.
    features: usize,
    dim: usize,
    /// Positions of the strict lower triangle in a flattened `[vectors, vectors]`.
    pairs: Tensor,
}

#[derive(Debug)]
pub(super) struct ExpertGate {
    /// `[experts, inputs]`.
    weight: Tensor,
    layer: LayerNumber,
}

/// What blocks read.
#[derive(Clone, Copy)]
pub(super) struct BlockInputs<'a> {
    /// `[batch, numeric]`.
    pub(super) numeric: &'a Tensor,
    /// `[batch, width]`: vectors, and sequences behind them.
    pub(super) embeddings: &'a Tensor,
    /// What the blocks before give.
    pub(super) values: &'a [Tensor],
}

impl TorchBlock {
    pub(super) fn build(
        block: &Block,
        inputs: &NetworkInputs,
        tensors: &mut BlockTensors<'_, '_>,
    ) -> TorchResult<Self> {
        let block_of = |value: &Value| value.block;
        Ok(match block {
            Block::Numbers => Self::Numbers,
            Block::Vectors => {
                let has_sequences = !inputs.sequences.is_empty();
                Self::Vectors(has_sequences.then(|| inputs.dims.iter().sum()))
            }
            Block::EmbedNumbers => {
                let embedding = inputs.embedding.as_ref();
                let embedding = embedding.ok_or(TorchError::shape("the network embeds no number"))?;
                Self::EmbedNumbers(NumericEmbeddings::new(embedding, inputs.numbers, tensors)?)
            }
            Block::Join(parts) => {
                let rest = || tensors.column_indices(&split_places(&inputs.dims).1);
                let joined = |part: &Columns| {
                    Ok::<_, TorchError>(match part {
                        Columns::All(value) => JoinedPart { value: value.block, places: None },
                        Columns::WithoutFirst(value) => JoinedPart { value: value.block, places: Some(rest()?) },
                    })
                };
                Self::Join(parts.iter().map(joined).collect::<Result<_, _>>()?)
            }
            Block::Sum(values) => Self::Sum(values.iter().map(block_of).collect()),
            Block::Mlp(mlp) => Self::Mlp {
                input: mlp.input.block,
                mlp: Mlp::new(mlp.widths.len(), mlp.hidden, tensors)?,
                drops_units: mlp.drops_units,
            },
            Block::Interactions { dense, vectors, dim } => Self::Interactions(Interactions {
                dense: dense.as_ref().map(block_of),
                features: inputs.dims.len(),
                dim: *dim,
                pairs: tensors.column_indices(&strict_lower_triangle(*vectors))?,
            }),
            Block::Cross { input, layers, rank } => {
                let layers =
                    (0..*layers).map(|_| CrossMatrix::new(rank.is_some(), tensors)).collect::<Result<_, _>>()?;
                Self::Cross { input: input.block, layers }
            }
            Block::FirstValues => Self::FirstValues(tensors.column_indices(&split_places(&inputs.dims).0)?),
            Block::FactorFields { numbers, dim } => {
                let factors = numbers.as_ref().map(|numbers| Ok::<_, TorchError>((numbers.block, tensors.matrix()?)));
                let (factors, features) = (factors.transpose()?, inputs.dims.len());
                Self::FactorFields(FactorFields { factors, features, dim: *dim })
            }
            Block::SecondOrder { fields, factors } => Self::SecondOrder { fields: fields.block, factors: *factors },
            Block::LinearTerm(input) => Self::LinearTerm { input: input.block, linear: tensors.linear()? },
            Block::Mixture { input, experts } => {
                let (weight, layer) = tensors.matrix()?;
                let experts = experts.iter().map(block_of).collect();
                Self::Mixture { input: input.block, experts, gate: ExpertGate { weight, layer } }
            }
            Block::Fusion { first, second, heads } => Self::Fusion {
                streams: [first.block, second.block],
                fusion: BilinearFusion::new(*heads, inputs.outputs.iter().sum(), tensors)?,
            },
            Block::Gate { input, places, hidden } => {
                Self::Gate { input: input.block, gate: StreamGate::new(places, hidden.len(), tensors)? }
            }
            Block::FactorLayer(layer) => {
                Self::FactorLayer { input: layer.input.block, layer: Box::new(InteractionLayer::new(layer, tensors)?) }
            }
            Block::ActivationUnit { pair, hidden, activation, softmax } => Self::ActivationUnit(Box::new(
                ActivationUnit::new(*pair, (hidden.len(), *activation, *softmax), tensors)?,
            )),
            Block::Transformer { pair, layers, heads, causal } => {
                Self::Transformer(SequenceTransformer::new(*pair, *layers, (*heads, *causal), tensors)?)
            }
        })
    }

    /// `[batch, width]`.
    pub(super) fn forward<'n>(&'n self, inputs: BlockInputs<'_>, calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
        let BlockInputs { numeric, embeddings, values } = inputs;
        match self {
            Self::Numbers => Ok(numeric.shallow_clone()),
            Self::Vectors(None) => Ok(embeddings.shallow_clone()),
            Self::Vectors(Some(width)) => calls.part([embeddings], |[input]| Ok(input.f_narrow(1, 0, int(*width))?)),
            Self::EmbedNumbers(numbers) => numbers.forward(&values[NUMBERS], calls),
            Self::Join(parts) => join(parts, values, calls),
            Self::Sum(terms) => {
                let [first, rest @ ..] = &terms[..] else { return Ok(Tensor::new()) };
                let Some((second, rest)) = rest.split_first() else { return Ok(values[*first].shallow_clone()) };
                let others =
                    rest.iter().try_fold(values[*second].shallow_clone(), |sum, term| sum.f_add(&values[*term]));
                Ok(values[*first].f_add(&others?)?)
            }
            Self::Mlp { input, mlp, drops_units: true } => mlp.forward(&values[*input], calls),
            Self::Mlp { input, mlp, drops_units: false } => mlp.forward_keeping(&values[*input], calls),
            Self::Interactions(interactions) => interactions.forward(values, calls),
            Self::Cross { input, layers } => {
                let first = &values[*input];
                layers.iter().try_fold(first.shallow_clone(), |x, layer| layer.forward(first, &x, calls))
            }
            Self::FirstValues(places) => {
                Ok(values[VECTORS].f_index_select(1, places)?.f_sum_dim_intlist(1_i64, true, Kind::Float)?)
            }
            Self::FactorFields(fields) => fields.forward(&values[VECTORS], values, calls),
            Self::SecondOrder { fields, factors } => second_order(&values[*fields], *factors),
            Self::LinearTerm { input, linear } => linear.forward(&values[*input], calls),
            Self::Mixture { input, experts, gate } => {
                let experts: Vec<&Tensor> = experts.iter().map(|expert| &values[*expert]).collect();
                gate.mixed(&values[*input], &Tensor::f_stack(&experts, 1)?, calls)
            }
            Self::Fusion { streams: [first, second], fusion } => {
                fusion.forward(&values[*first], &values[*second], calls)
            }
            Self::Gate { input, gate } => gate.scaled(&values[*input], calls),
            Self::FactorLayer { input, layer } => layer.forward(&values[*input], calls),
            Self::ActivationUnit(unit) => calls.layer(unit.layer(), [embeddings], |[input]| unit.forward(input)),
            Self::Transformer(transformer) => transformer.forward(embeddings, calls),
        }
    }
}

/// Several readers of a value are calls, or read the output of one: so two parts are one call.
fn join<'n>(parts: &'n [JoinedPart], values: &[Tensor], calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
    let chosen = |part: &JoinedPart, value: &Tensor| match &part.places {
        Some(places) => value.f_index_select(1, places),
        None => Ok(value.shallow_clone()),
    };
    match parts {
        [JoinedPart { value, places: None }] => Ok(values[*value].shallow_clone()),
        [first, second] => calls.part([&values[first.value], &values[second.value]], move |[a, b]| {
            Ok(Tensor::f_cat(&[chosen(first, a)?, chosen(second, b)?], 1)?)
        }),
        parts => {
            let all = parts.iter().map(|part| chosen(part, &values[part.value])).collect::<Result<Vec<_>, _>>()?;
            Ok(Tensor::f_cat(&all, 1)?)
        }
    }
}

impl Interactions {
    fn forward<'n>(&'n self, values: &[Tensor], calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
        let vectors = values[VECTORS].f_reshape([-1, int(self.features), int(self.dim)])?;
        let Some(dense) = self.dense.map(|dense| &values[dense]) else {
            return calls.part([&vectors], |[vectors]| self.products(vectors));
        };
        let vectors = Tensor::f_cat(&[dense.f_unsqueeze(1)?, vectors], 1)?;
        let products = calls.part([&vectors], |[vectors]| self.products(vectors))?;
        Ok(Tensor::f_cat(&[dense, &products], 1)?)
    }

    /// `[batch, V, D]` to `[batch, V(V−1)/2]`.
    fn products(&self, vectors: &Tensor) -> TorchResult<Tensor> {
        let products = vectors.f_bmm(&vectors.f_transpose(1, 2)?)?;
        Ok(products.f_flatten(1, 2)?.f_index_select(1, &self.pairs)?)
    }
}

impl ExpertGate {
    /// The experts' outputs `[batch, experts, width]`, mixed as x says: `[batch, width]`.
    fn mixed<'n>(&'n self, x: &Tensor, experts: &Tensor, calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
        let softmax = |[x]: [&Tensor; 1]| Ok(x.f_linear(&self.weight, None::<&Tensor>)?.f_softmax(1, Kind::Float)?);
        let shares = calls.layer(self.layer, [x], softmax)?;
        let mix = |[shares, experts]: [&Tensor; 2]| Ok(shares.f_unsqueeze(1)?.f_bmm(experts)?.f_squeeze_dim(1)?);
        calls.part([&shares, experts], mix)
    }
}

fn strict_lower_triangle(vectors: usize) -> Vec<i64> {
    (0..vectors).flat_map(|row| (0..row).map(move |column| int(row * vectors + column))).collect()
}

/// Of vectors side by side, the places of their first values, and of the others.
fn split_places(dims: &[usize]) -> (Vec<i64>, Vec<i64>) {
    let (mut first, mut rest, mut start) = (Vec::new(), Vec::new(), 0);
    for dim in dims {
        first.push(int(start));
        rest.extend((start + 1..start + dim).map(int));
        start += dim;
    }
    (first, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_the_strict_lower_triangle_row_by_row() {
        assert_eq!(strict_lower_triangle(3), [3, 6, 7]);
        assert!(strict_lower_triangle(1).is_empty());
    }

    #[test]
    fn a_vector_of_one_value_is_its_first_alone() {
        assert_eq!(split_places(&[3, 1, 2]), (vec![0, 3, 4], vec![1, 2, 5]));
    }
}
