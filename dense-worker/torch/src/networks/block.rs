//! The blocks of a network with their weights, and the forward of each by libtorch.

use tch::{Kind, Tensor};
use zagros_network::wiring::{Block, Columns, NetworkInputs};
use zagros_zip::ZipEq;

use super::products::{BilinearFusion, CrossMatrix, FactorFields, InteractionLayer, StreamGate, second_order};
use super::sequences::{ActivationUnit, SequenceTransformer};
use crate::error::{TorchError, TorchResult};
use crate::int;
use crate::layers::{BlockTensors, LayerCalls, LayerNumber, LinearLayer, Mlp, NumericEmbeddings};

/// A block with what it is made of. What it reads is in its [`BlockInputs`].
#[derive(Debug)]
pub(super) enum TorchBlock {
    Numbers,
    /// The vectors without the sequences behind them: so many values of a sample, if there are sequences.
    Vectors(Option<usize>),
    EmbedNumbers(NumericEmbeddings),
    /// Of each part the places of its columns, if not all are joined.
    Join(Vec<Option<Tensor>>),
    Sum,
    Mlp {
        mlp: Mlp,
        drops_units: bool,
    },
    Interactions(Interactions),
    Cross(Vec<CrossMatrix>),
    /// The places of the first values of vectors.
    FirstValues(Tensor),
    FactorFields(FactorFields),
    SecondOrder {
        factors: usize,
    },
    LinearTerm(LinearLayer),
    Mixture(ExpertGate),
    Fusion(BilinearFusion),
    Gate(StreamGate),
    FactorLayer(Box<InteractionLayer>),
    ActivationUnit(Box<ActivationUnit>),
    Transformer(SequenceTransformer),
}

/// Dot products of all pairs of vectors.
#[derive(Debug)]
pub(super) struct Interactions {
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

#[derive(Clone, Copy)]
pub(super) struct BlockInputs<'a> {
    /// `[batch, numeric]`.
    pub(super) numeric: &'a Tensor,
    /// `[batch, width]`: vectors, and sequences behind them.
    pub(super) embeddings: &'a Tensor,
    pub(super) vectors: &'a Tensor,
    /// Its [`Block::read_values`].
    pub(super) read: &'a [&'a Tensor],
}

impl TorchBlock {
    pub(super) fn build(
        block: &Block,
        inputs: &NetworkInputs,
        tensors: &mut BlockTensors<'_, '_>,
    ) -> TorchResult<Self> {
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
                let places = |part: &Columns| match part {
                    Columns::All(_) => Ok(None),
                    Columns::WithoutFirst(_) => rest().map(Some),
                };
                Self::Join(parts.iter().map(places).collect::<Result<_, _>>()?)
            }
            Block::Sum(_) => Self::Sum,
            Block::Mlp(mlp) => {
                Self::Mlp { mlp: Mlp::new(mlp.widths.len(), mlp.hidden, tensors)?, drops_units: mlp.drops_units }
            }
            Block::Interactions { vectors, dim, .. } => Self::Interactions(Interactions {
                features: inputs.dims.len(),
                dim: *dim,
                pairs: tensors.column_indices(&strict_lower_triangle(*vectors))?,
            }),
            Block::Cross { layers, rank, .. } => {
                Self::Cross((0..*layers).map(|_| CrossMatrix::new(rank.is_some(), tensors)).collect::<Result<_, _>>()?)
            }
            Block::FirstValues => Self::FirstValues(tensors.column_indices(&split_places(&inputs.dims).0)?),
            Block::FactorFields { numbers, dim } => {
                let factors = numbers.is_some().then(|| tensors.matrix()).transpose()?;
                Self::FactorFields(FactorFields { factors, features: inputs.dims.len(), dim: *dim })
            }
            Block::SecondOrder { factors, .. } => Self::SecondOrder { factors: *factors },
            Block::LinearTerm(_) => Self::LinearTerm(tensors.linear()?),
            Block::Mixture { .. } => {
                let (weight, layer) = tensors.matrix()?;
                Self::Mixture(ExpertGate { weight, layer })
            }
            Block::Fusion { heads, .. } => {
                Self::Fusion(BilinearFusion::new(*heads, inputs.outputs.iter().sum(), tensors)?)
            }
            Block::Gate { places, hidden, .. } => Self::Gate(StreamGate::new(places, hidden.len(), tensors)?),
            Block::FactorLayer(layer) => Self::FactorLayer(Box::new(InteractionLayer::new(layer, tensors)?)),
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
        let BlockInputs { numeric, embeddings, vectors, read } = inputs;
        match self {
            Self::Numbers => Ok(numeric.shallow_clone()),
            Self::Vectors(None) => Ok(embeddings.shallow_clone()),
            Self::Vectors(Some(width)) => calls.part([embeddings], |[input]| Ok(input.f_narrow(1, 0, int(*width))?)),
            Self::EmbedNumbers(numbers) => numbers.forward(numeric, calls),
            Self::Join(parts) => join(parts, read, calls),
            Self::Sum => {
                let [first, second, rest @ ..] = read else {
                    return Ok(read.first().map_or_else(Tensor::new, |only| only.shallow_clone()));
                };
                let others = rest.iter().try_fold(second.shallow_clone(), |sum, term| sum.f_add(term));
                Ok(first.f_add(&others?)?)
            }
            Self::Mlp { mlp, drops_units } => mlp.forward(read[0], *drops_units, calls),
            Self::Interactions(interactions) => interactions.forward(vectors, read.first().copied(), calls),
            Self::Cross(layers) => {
                let first = read[0];
                layers.iter().try_fold(first.shallow_clone(), |x, layer| layer.forward(first, &x, calls))
            }
            Self::FirstValues(places) => {
                Ok(vectors.f_index_select(1, places)?.f_sum_dim_intlist(1_i64, true, Kind::Float)?)
            }
            Self::FactorFields(fields) => fields.forward(vectors, read, calls),
            Self::SecondOrder { factors } => second_order(read[0], *factors),
            Self::LinearTerm(linear) => linear.forward(read[0], calls),
            Self::Mixture(gate) => {
                let (experts, input) = read.split_at(read.len() - 1);
                gate.mixed(input[0], &Tensor::f_stack(experts, 1)?, calls)
            }
            Self::Fusion(fusion) => fusion.forward(read[0], read[1], calls),
            Self::Gate(gate) => gate.scaled(read[0], calls),
            Self::FactorLayer(layer) => layer.forward(read[0], calls),
            Self::ActivationUnit(unit) => calls.layer(unit.layer(), [embeddings], |[input]| unit.forward(input)),
            Self::Transformer(transformer) => transformer.forward(embeddings, calls),
        }
    }
}

/// Several readers of a value are calls, or read the output of one: so two parts are one call.
fn join<'n>(parts: &'n [Option<Tensor>], read: &[&Tensor], calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
    let chosen = |places: &Option<Tensor>, value: &Tensor| match places {
        Some(places) => value.f_index_select(1, places),
        None => Ok(value.shallow_clone()),
    };
    match (parts, read) {
        ([None], [value]) => Ok(value.shallow_clone()),
        ([first, second], [one, other]) => {
            calls.part([*one, *other], move |[a, b]| Ok(Tensor::f_cat(&[chosen(first, a)?, chosen(second, b)?], 1)?))
        }
        (parts, read) => {
            let all = parts.iter().zip_eq(read).map(|(places, value)| chosen(places, value));
            Ok(Tensor::f_cat(&all.collect::<Result<Vec<_>, _>>()?, 1)?)
        }
    }
}

impl Interactions {
    fn forward<'n>(
        &'n self,
        vectors: &Tensor,
        dense: Option<&Tensor>,
        calls: &mut LayerCalls<'n>,
    ) -> TorchResult<Tensor> {
        let vectors = vectors.f_reshape([-1, int(self.features), int(self.dim)])?;
        let Some(dense) = dense else {
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
