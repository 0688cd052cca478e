//! The way of samples through a network, from its inputs to its outputs, for autograd and for scoring.
//!
//! A network with its own weights is one graph of autograd, from the outputs to the inputs. Where weights are elsewhere, a layer's
//! weights are there while the layer is in use, so a graph cannot hold them. Then each layer is a call: the forward keeps its inputs and
//! its output, and no graph of the layer. The backward makes the call again, with a graph of the layer alone (Chen et al. 2016, "Training
//! Deep Nets with Sublinear Memory Cost").
//!
//! ```text
//! forward    x ─► call 0 ─► y₀ ·· glue ··► x₁ ─► call 1 ─► y₁ ·· glue ··► outputs
//! backward                                                    ◄── slopes of y₁
//!            call 1 again: slopes of x₁, gradients of its weights ─► pushed
//!                           ◄── slopes of y₀, through the glue
//!            call 0 again: slopes of x, gradients of its weights ─► pushed
//! ```
//!
//! The glue between calls, such as a concatenation, is a graph between outputs of calls, which are leaves. A value that several calls
//! read gets its slopes in the order in which autograd would add them: from the last reader to the first.

use tch::{Kind, Tensor};
use zagros_network::UnitDropout;
use zagros_zip::ZipEq;

use crate::error::TorchResult;
use crate::int;
use crate::variables::StreamedVariables;

/// The number of a layer among the job's streamed layers. Anything in a network with its own weights.
pub(crate) type LayerNumber = usize;

/// The calls of layers in a forward, which borrows the network for `'n`.
pub(crate) struct LayerCalls<'n> {
    /// `None` when samples are scored.
    dropout: Option<&'n mut UnitDropout>,
    drawn: usize,
    weights: CallWeights<'n>,
}

enum CallWeights<'n> {
    /// In the network.
    Here,
    /// Elsewhere. The calls so far are kept for the backward.
    Recorded(&'n StreamedVariables, Vec<LayerCall<'n>>),
    /// Elsewhere. Each product is made of so many blocks of samples.
    InBlocks(&'n StreamedVariables, i64),
}

/// The calls of a forward that are kept for the backward, in their order.
pub(crate) struct RecordedCalls<'n>(Option<(&'n StreamedVariables, Vec<LayerCall<'n>>)>);

type CallFunction<'n> = dyn Fn(&[Tensor]) -> TorchResult<Tensor> + 'n;

/// A function of some values that is computed again in the backward.
struct LayerCall<'n> {
    /// `None` for a function without weights.
    layer: Option<LayerNumber>,
    function: Box<CallFunction<'n>>,
    inputs: Vec<Tensor>,
    /// A leaf, which gets the slopes.
    output: Tensor,
}

impl<'n> LayerCalls<'n> {
    pub(crate) fn for_training(dropout: &'n mut UnitDropout, streamed: Option<&'n StreamedVariables>) -> Self {
        let weights = streamed.map_or(CallWeights::Here, |streamed| CallWeights::Recorded(streamed, Vec::new()));
        Self { dropout: Some(dropout), drawn: 0, weights }
    }

    /// Without dropout and without slopes, of so many blocks of samples. The outputs of a block have the same bits as alone.
    pub(crate) fn for_scoring(streamed: Option<&'n StreamedVariables>, blocks: usize) -> Self {
        let weights = streamed.map_or(CallWeights::Here, |streamed| {
            streamed.start_scoring();
            CallWeights::InBlocks(streamed, int(blocks))
        });
        Self { dropout: None, drawn: 0, weights }
    }

    pub(crate) fn is_training(&self) -> bool {
        self.dropout.is_some()
    }

    /// Drops units of a layer's output in training.
    pub(super) fn drop_units(&mut self, x: Tensor) -> TorchResult<Tensor> {
        let Some(dropout) = &mut self.dropout else { return Ok(x) };
        let mut factors = Vec::new();
        dropout.draw_factors(self.drawn, x.numel(), &mut factors);
        self.drawn += 1;
        if factors.is_empty() {
            return Ok(x);
        }
        let factors = Tensor::f_from_slice(&factors)?.f_reshape(x.size())?.f_to_device(x.device())?;
        self.part([&x, &factors], |[x, factors]| Ok(x.f_mul(factors)?))
    }

    /// A function of `inputs` and a layer's weights. Its output has memory of its own, or that of an input. Each input has a row, or equally
    /// many rows, for each sample.
    pub(crate) fn layer<const N: usize>(
        &mut self,
        layer: LayerNumber,
        inputs: [&Tensor; N],
        function: impl Fn([&Tensor; N]) -> TorchResult<Tensor> + 'n,
    ) -> TorchResult<Tensor> {
        self.call(Some(layer), inputs, function)
    }

    /// As [`Self::layer`], without weights: what it keeps of its own for the backward is computed again instead. Several readers of one value
    /// are calls, or it is the output of one, so that its slopes are added in autograd's order.
    pub(crate) fn part<const N: usize>(
        &mut self,
        inputs: [&Tensor; N],
        function: impl Fn([&Tensor; N]) -> TorchResult<Tensor> + 'n,
    ) -> TorchResult<Tensor> {
        self.call(None, inputs, function)
    }

    fn call<const N: usize>(
        &mut self,
        layer: Option<LayerNumber>,
        inputs: [&Tensor; N],
        function: impl Fn([&Tensor; N]) -> TorchResult<Tensor> + 'n,
    ) -> TorchResult<Tensor> {
        match &mut self.weights {
            CallWeights::Here => function(inputs),
            CallWeights::InBlocks(streamed, blocks) => {
                let work = || in_blocks(inputs, *blocks, &function);
                layer.map_or_else(work, |layer| streamed.forward(layer, work))
            }
            CallWeights::Recorded(streamed, calls) => {
                let is_read = layer.is_some() || inputs.iter().any(|input| input.requires_grad());
                // Under autograd, whose products the backward repeats. The graph goes at once.
                let work = || Ok(function(inputs)?.f_detach()?);
                let output = layer.map_or_else(work, |layer| streamed.forward(layer, work))?;
                if !is_read {
                    return Ok(output);
                }
                let output = output.f_set_requires_grad(true)?;
                let function = Box::new(move |inputs: &[Tensor]| function(std::array::from_fn(|index| &inputs[index])));
                let inputs = inputs.map(Tensor::shallow_clone).into();
                calls.push(LayerCall { layer, function, inputs, output: output.shallow_clone() });
                Ok(output)
            }
        }
    }

    pub(crate) fn into_calls(self) -> RecordedCalls<'n> {
        RecordedCalls(match self.weights {
            CallWeights::Recorded(streamed, calls) => Some((streamed, calls)),
            CallWeights::Here | CallWeights::InBlocks(..) => None,
        })
    }
}

impl RecordedCalls<'_> {
    /// Backward through the calls, from the last to the first. The outputs of the network have given their slopes to the calls that they
    /// are made of.
    pub(crate) fn backward(self) -> TorchResult {
        let Some((streamed, mut calls)) = self.0 else { return Ok(()) };
        while let Some(call) = calls.pop() {
            call.backward(streamed)?;
        }
        Ok(())
    }
}

impl LayerCall<'_> {
    fn backward(self, streamed: &StreamedVariables) -> TorchResult {
        let Self { layer, function, inputs, output } = self;
        let slopes = output.f_grad()?;
        drop(output);
        let again = |weights: &[&Tensor]| gradients(&function, &inputs, &slopes, weights);
        let d_inputs = match layer {
            Some(layer) => streamed.backward(layer, again)?,
            None => again(&[])?,
        };
        let read: Vec<&Tensor> = inputs.iter().filter(|input| input.requires_grad()).collect();
        for (input, d_input) in read.into_iter().zip_eq(d_inputs) {
            if d_input.defined() {
                give_slopes(input, &d_input)?;
            }
        }
        Ok(())
    }
}

/// The gradients of weights, then of those inputs that have one. None is defined if the slopes are not.
fn gradients(
    function: &CallFunction<'_>,
    inputs: &[Tensor],
    slopes: &Tensor,
    weights: &[&Tensor],
) -> TorchResult<Vec<Tensor>> {
    let alone = |input: &Tensor| input.f_detach()?.f_set_requires_grad(input.requires_grad());
    let inputs: Vec<Tensor> = inputs.iter().map(alone).collect::<Result<_, _>>()?;
    let with_slopes = inputs.iter().filter(|input| input.requires_grad());
    let wanted: Vec<&Tensor> = weights.iter().copied().chain(with_slopes).collect();
    if !slopes.defined() {
        return Ok(wanted.iter().map(|_| Tensor::new()).collect());
    }
    let output = function(&inputs)?;
    // The slope of Σ output · slope is the slope.
    let sum = output.f_mul(slopes)?.f_sum(Kind::Float)?;
    Ok(Tensor::f_run_backward(&[&sum], &wanted, false, false)?)
}

/// Adds slopes to those of the leaves that a value is made of.
fn give_slopes(value: &Tensor, slopes: &Tensor) -> TorchResult {
    Ok(value.f_mul(slopes)?.f_sum(Kind::Float)?.f_backward()?)
}

/// The outputs of each of so many equal blocks of rows, one after another.
fn in_blocks<const N: usize>(
    inputs: [&Tensor; N],
    blocks: i64,
    function: &dyn Fn([&Tensor; N]) -> TorchResult<Tensor>,
) -> TorchResult<Tensor> {
    let mut outputs = Vec::with_capacity(usize::try_from(blocks).unwrap_or(0));
    for block in 0..blocks {
        let part = |input: &Tensor| {
            let rows = input.size()[0] / blocks;
            input.f_narrow(0, block * rows, rows)
        };
        let parts = inputs.into_iter().map(part).collect::<Result<Vec<_>, _>>()?;
        outputs.push(function(std::array::from_fn(|index| &parts[index]))?);
    }
    match <[Tensor; 1]>::try_from(outputs) {
        Ok([only]) => Ok(only),
        Err(outputs) => Ok(Tensor::f_cat(&outputs, 0)?),
    }
}
