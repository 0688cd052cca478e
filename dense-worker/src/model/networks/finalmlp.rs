//! FinalMLP: "FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction", Mao et al. 2023.
//!
//! Two MLPs read the same input. A bilinear product of their outputs says how they interact:
//!
//! ```text
//!           ┌─ ⊙ 2σ(gate₁) ─ MLP ─► o₁ ─┐
//!  [x, e] ──┤                           ├─► b + w₁·o₁ + w₂·o₂ + Σ_h o₁ʰ·W_h·o₂ʰ
//!           └─ ⊙ 2σ(gate₂) ─ MLP ─► o₂ ─┘
//! ```
//!
//! o₁ʰ is part h of `heads` equal parts of o₁ (equation 9). The gates are optional (equations 2 and 3). A gate is an MLP over chosen
//! features, or a learned vector, which is what an MLP over a learned vector amounts to.

use tch::Tensor;

use crate::model::layers::{LayerCalls, LayerNumber, LinearLayer, Mlp, WeightBuilder, parse_widths};
use crate::model::{InputShape, ModelError, int};

#[derive(Clone, Debug)]
pub(crate) struct FinalMlpForm<'a> {
    pub(crate) first: &'a [i64],
    pub(crate) second: &'a [i64],
    pub(crate) heads: usize,
    pub(crate) gates: Option<GatesForm<'a>>,
}

/// The hidden layers of gates, and the places in the input that each reads.
#[derive(Clone, Debug)]
pub(crate) struct GatesForm<'a> {
    pub(crate) hidden: &'a [i64],
    pub(crate) first: Vec<usize>,
    pub(crate) second: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct FinalMlp {
    pub(crate) first: MlpStream,
    pub(crate) second: MlpStream,
    pub(crate) fusion: BilinearFusion,
}

#[derive(Debug)]
pub(crate) struct MlpStream {
    pub(crate) gate: StreamGate,
    pub(crate) layers: Mlp,
}

#[derive(Debug)]
pub(crate) enum StreamGate {
    None,
    /// `[1, width]`, and the number of its layer.
    Learned(Tensor, LayerNumber),
    OfFeatures {
        places: Tensor,
        mlp: Mlp,
    },
}

/// b + w₁·o₁ + w₂·o₂ + Σ_h o₁ʰ·W_h·o₂ʰ, for each output of the network.
#[derive(Debug)]
pub(crate) struct BilinearFusion {
    pub(crate) of_first: LinearLayer,
    /// w₂, `[outputs, b]`.
    pub(crate) of_second: Tensor,
    /// W, `[outputs, heads·(a/heads)·(b/heads)]` for streams with a and b outputs.
    pub(crate) products: Tensor,
    /// The numbers of the layers of w₂ and of W.
    layers: [LayerNumber; 2],
    pub(crate) heads: usize,
    pub(crate) outputs: usize,
}

impl FinalMlp {
    pub(crate) fn new(
        shape: &InputShape,
        form: FinalMlpForm<'_>,
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let width = shape.numeric + shape.vectors_width();
        if width == 0 {
            return Err(ModelError::Shape { what: "finalmlp has no feature to read" });
        }
        let (hidden, places) = form.gates.map_or((None, [vec![], vec![]]), |gates| {
            let GatesForm { hidden, first, second } = gates;
            (Some(hidden), [first, second])
        });
        let [of_first, of_second] = places;
        let (first, a) = MlpStream::new("first", width, form.first, hidden.map(|hidden| (hidden, of_first)), weights)?;
        let (second, b) =
            MlpStream::new("second", width, form.second, hidden.map(|hidden| (hidden, of_second)), weights)?;
        Ok(Self { first, second, fusion: BilinearFusion::new(a, b, form.heads, weights)? })
    }

    /// `[batch, numeric]` and `[batch, ΣD]` to `[batch, outputs]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let input = calls.part([numeric, embeddings], |both| Ok(Tensor::f_cat(&both, 1)?))?;
        let first = self.first.forward(&input, calls)?;
        let second = self.second.forward(&input, calls)?;
        self.fusion.forward(&first, &second, calls)
    }
}

impl MlpStream {
    /// Also returns the width of its output.
    fn new(
        name: &str,
        width: usize,
        hidden: &[i64],
        gate: Option<(&[i64], Vec<usize>)>,
        weights: &mut WeightBuilder,
    ) -> Result<(Self, usize), ModelError> {
        let widths = parse_widths(hidden)?;
        let what = "a stream of finalmlp has no layer";
        let outputs = *widths.last().ok_or(ModelError::Shape { what })?;
        let gate = StreamGate::new(&format!("gate_{name}"), width, gate, weights)?;
        Ok((Self { gate, layers: Mlp::hidden(name, width, &widths, weights)? }, outputs))
    }

    fn forward<'n>(&'n self, input: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Tensor, ModelError> {
        self.layers.forward(&self.gate.scaled(input, calls)?, calls)
    }
}

impl StreamGate {
    fn new(
        name: &str,
        width: usize,
        form: Option<(&[i64], Vec<usize>)>,
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let Some((hidden, places)) = form else { return Ok(Self::None) };
        if places.is_empty() {
            let logits = weights.factors(name, 1, width)?;
            return Ok(Self::Learned(logits, weights.layer_of(&format!("{name}.weight"))));
        }
        let widths = [parse_widths(hidden)?, vec![width]].concat();
        let mlp = weights.without_layer_choices(|weights| Mlp::linear_last(name, places.len(), &widths, weights))?;
        let places: Vec<i64> = places.into_iter().map(int).collect();
        Ok(Self::OfFeatures { places: weights.column_indices(&places)?, mlp })
    }

    /// `[batch, width]` to the same shape.
    fn scaled<'n>(&'n self, input: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Tensor, ModelError> {
        let scaled = |input: &Tensor, logits: &Tensor| Ok(input.f_mul(&logits.f_sigmoid()?)?.f_mul_scalar(2.0)?);
        match self {
            Self::None => Ok(input.shallow_clone()),
            Self::Learned(logits, layer) => calls.layer(*layer, [input], move |[input]| scaled(input, logits)),
            Self::OfFeatures { places, mlp } => {
                let logits = mlp.forward_keeping(&input.f_index_select(1, places)?, calls)?;
                calls.part([input, &logits], move |[input, logits]| scaled(input, logits))
            }
        }
    }
}

impl BilinearFusion {
    /// Of streams with `a` and `b` outputs.
    fn new(a: usize, b: usize, heads: usize, weights: &mut WeightBuilder) -> Result<Self, ModelError> {
        if !a.is_multiple_of(heads) || !b.is_multiple_of(heads) {
            return Err(ModelError::Shape { what: "the heads of finalmlp do not divide the output of a stream" });
        }
        let outputs = weights.output_count();
        Ok(Self {
            of_first: weights.linear("fusion_first", 0, a, outputs)?,
            of_second: weights.matrix("fusion_second", 0, b, outputs)?,
            products: weights.matrix("fusion", 0, a * b / heads, outputs)?,
            layers: ["fusion_second.0.weight", "fusion.0.weight"].map(|tensor| weights.layer_of(tensor)),
            heads,
            outputs,
        })
    }

    /// `[batch, a]` and `[batch, b]` to `[batch, outputs]`.
    fn forward<'n>(
        &'n self,
        first: &Tensor,
        second: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let [of_second, products] = self.layers;
        let interactions =
            calls.layer(products, [first, second], |[first, second]| self.interactions(first, second))?;
        let first = self.of_first.forward(first, calls)?;
        let second = calls.layer(of_second, [second], |[x]| Ok(x.f_linear(&self.of_second, None::<&Tensor>)?))?;
        Ok(first.f_add(&second)?.f_add(&interactions)?)
    }

    fn interactions(&self, first: &Tensor, second: &Tensor) -> Result<Tensor, ModelError> {
        let (batch, heads, outputs) = (first.size()[0], int(self.heads), int(self.outputs));
        let (a, b) = (first.size()[1] / heads, second.size()[1] / heads);
        // [heads, a/heads, outputs·b/heads].
        let products = self.products.f_reshape([outputs, heads, a, b])?.f_permute([1, 2, 0, 3])?;
        let products = products.f_reshape([heads, a, outputs * b])?;
        let parts = first.f_reshape([batch, heads, a])?.f_transpose(0, 1)?;
        let left = parts.f_bmm(&products)?.f_reshape([heads, batch, outputs, b])?;
        let right = second.f_reshape([batch, heads, 1, b])?.f_transpose(0, 1)?;
        Ok(left.f_mul(&right)?.f_sum_dim_intlist([0_i64, 3].as_slice(), false, tch::Kind::Float)?)
    }
}
