//! The variables of a layer as a step sees them. A resident layer always has them. A streamed layer has them only while the
//! step uses it: [`LayerUse`] puts them in place and takes them away, and the step's code is the same.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};
use zagros_zip::ZipEq;

use super::CHUNK;
use crate::model::streamed::{LayerValues, LayerWindow, UseNumber};
use crate::model::weights::Matrix;
use crate::model::{ModelError, int};

pub(super) struct StepParts<'a> {
    source: PartSource<'a>,
    pub(super) rows: usize,
    built: usize,
    /// Of them, those with dropout.
    dropouts: usize,
    /// Memory for the slopes of inner layers, which are gone when the layer before has its own.
    slopes: Option<[Matrix; 2]>,
}

enum PartSource<'a> {
    /// The gradients of the variables, in their order.
    Resident(&'a mut dyn Iterator<Item = Tensor>),
    /// The layers come and go by this window, for this thread.
    Streamed(&'a Arc<LayerWindow>, usize),
}

#[derive(Debug)]
pub(super) struct LayerVariable {
    pub(super) value: Tensor,
    pub(super) gradient: Tensor,
}

/// The weight and the bias of a layer of an MLP, in the slices of its outputs that are there one after another. The bias is with the
/// last slice.
#[derive(Debug)]
pub(super) struct SlicedLayer {
    pub(super) slices: Vec<LayerSlice>,
    pub(super) bias: LayerVariable,
}

#[derive(Debug)]
pub(super) struct LayerSlice {
    pub(super) present: LayerUse,
    pub(super) weight: LayerVariable,
    /// `[outputs, inputs]`.
    pub(super) shape: [i64; 2],
    /// The first output among those of the layer.
    pub(super) start: i64,
}

/// A layer that is here only while it is used; `None` if it always is.
#[derive(Debug)]
pub(super) struct LayerUse(Option<StreamedLayer>);

#[derive(Debug)]
pub(super) struct StreamedLayer {
    window: Arc<LayerWindow>,
    thread: usize,
    layer: usize,
    variables: Vec<StreamedVariable>,
    present: Option<UseNumber>,
    gradients: Option<LayerValues>,
}

/// Second handles of a [`LayerVariable`]'s tensors: what is set here, is seen there.
#[derive(Debug)]
struct StreamedVariable {
    value: Tensor,
    gradient: Tensor,
    shape: Vec<i64>,
}

impl<'a> StepParts<'a> {
    pub(super) fn for_resident(gradients: &'a mut dyn Iterator<Item = Tensor>) -> Self {
        Self { source: PartSource::Resident(gradients), rows: CHUNK, built: 0, dropouts: 0, slopes: None }
    }

    /// Up to `rows` samples go through one layer after another.
    pub(super) fn for_streamed(window: &'a Arc<LayerWindow>, thread: usize, rows: usize) -> Self {
        Self { source: PartSource::Streamed(window, thread), rows, built: 0, dropouts: 0, slopes: None }
    }

    pub(super) fn next_dropout(&mut self) -> usize {
        self.dropouts += 1;
        self.dropouts - 1
    }

    /// The length of the segments of a stack of so many layers: one layer of each keeps its output. About as many segments as layers in
    /// a segment take the least memory.
    pub(super) fn segment_length(&self, layers: usize) -> usize {
        match &self.source {
            PartSource::Streamed(window, _) if window.recomputes => layers.isqrt().max(1),
            PartSource::Streamed(..) | PartSource::Resident(_) => 1,
        }
    }

    /// Memory for the slopes of an inner layer of a stack, `[rows, width]`. The layers of a resident network keep theirs, which are
    /// warm in cache. Where a whole batch goes through a layer, every second layer has the same memory.
    pub(super) fn inner_slopes(&mut self, index: usize, width: usize) -> Result<Matrix, ModelError> {
        let PartSource::Streamed(window, _) = &self.source else { return Matrix::dense(self.rows, width) };
        if self.slopes.is_none() {
            let memory = || Matrix::dense(self.rows, window.most_outputs());
            self.slopes = Some([memory()?, memory()?]);
        }
        match &self.slopes {
            Some(memory) => Matrix::within_memory(&memory[index % 2], self.rows, width),
            None => Matrix::dense(self.rows, width),
        }
    }

    /// Whether memory that is as large as a layer is given back between uses.
    pub(super) fn is_streamed(&self) -> bool {
        matches!(self.source, PartSource::Streamed(..))
    }

    /// The next layer, in the order in which the network made its weights.
    pub(super) fn next_layer<const N: usize>(
        &mut self,
        variables: [&Tensor; N],
    ) -> Result<(LayerUse, [LayerVariable; N]), ModelError> {
        self.layer_as(variables.map(|variable| (variable, variable.size())))
    }

    /// As [`Self::next_layer`], of a weight `[outputs, inputs]` and a bias `[outputs]` that may come in slices.
    pub(super) fn sliced_layer(&mut self, weight: &Tensor, bias: &Tensor) -> Result<SlicedLayer, ModelError> {
        let (all, inputs) = (weight.size()[0], weight.size()[1]);
        let (mut slices, mut start) = (Vec::new(), 0);
        loop {
            let outputs = self.outputs_of_slice(inputs).unwrap_or(all).min(all - start);
            let shape = [outputs, inputs];
            if start + outputs == all {
                let (present, [weight, bias]) = self.layer_as([(weight, shape.to_vec()), (bias, vec![all])])?;
                slices.push(LayerSlice { present, weight, shape, start });
                return Ok(SlicedLayer { slices, bias });
            }
            let (present, [weight]) = self.layer_as([(weight, shape.to_vec())])?;
            slices.push(LayerSlice { present, weight, shape, start });
            start += outputs;
        }
    }

    /// Outputs of the next layer, whose weight has so many inputs; `None` if all weights are here.
    fn outputs_of_slice(&self, inputs: i64) -> Option<i64> {
        let PartSource::Streamed(window, _) = &self.source else { return None };
        window.weights_of_first(self.built).map(|weights| (int(weights) / inputs.max(1)).max(1))
    }

    /// As [`Self::next_layer`], with the variables seen in these shapes.
    pub(super) fn layer_as<const N: usize>(
        &mut self,
        variables: [(&Tensor, Vec<i64>); N],
    ) -> Result<(LayerUse, [LayerVariable; N]), ModelError> {
        let lost = ModelError::Shape { what: "a layer has no gradient" };
        let layer = self.built;
        self.built += 1;
        match &mut self.source {
            PartSource::Resident(gradients) => {
                let mut made = Vec::with_capacity(N);
                for (variable, shape) in variables {
                    let gradient = gradients.next().ok_or(ModelError::Shape { what: "a layer has no gradient" })?;
                    let value = variable.f_detach()?.f_view_(shape.as_slice())?;
                    made.push(LayerVariable { value, gradient: gradient.f_view_(shape.as_slice())? });
                }
                Ok((LayerUse(None), made.try_into().map_err(|_| lost)?))
            }
            PartSource::Streamed(window, thread) => {
                let (mut made, mut streamed) = (Vec::with_capacity(N), Vec::with_capacity(N));
                for (_, shape) in variables {
                    let (value, gradient) = (nothing()?, nothing()?);
                    let handles = (value.shallow_clone(), gradient.shallow_clone());
                    streamed.push(StreamedVariable { value: handles.0, gradient: handles.1, shape });
                    made.push(LayerVariable { value, gradient });
                }
                let streamed = StreamedLayer {
                    window: Arc::clone(window),
                    thread: *thread,
                    layer,
                    variables: streamed,
                    present: None,
                    gradients: None,
                };
                Ok((LayerUse(Some(streamed)), made.try_into().map_err(|_| lost)?))
            }
        }
    }
}

impl LayerUse {
    /// Before the layer's part of a forward. Waits for its values.
    pub(super) fn forward(&mut self) -> Result<(), ModelError> {
        self.0.as_mut().map_or(Ok(()), StreamedLayer::begin)
    }

    /// After the layer's part of a forward.
    pub(super) fn forward_done(&mut self) -> Result<(), ModelError> {
        self.0.as_mut().map_or(Ok(()), StreamedLayer::end)
    }

    /// Before the layer's part of a backward. Waits for its values, and gives memory for its gradients, which holds anything.
    pub(super) fn backward(&mut self) -> Result<(), ModelError> {
        self.0.as_mut().map_or(Ok(()), |layer| layer.begin().and_then(|()| layer.begin_gradients()))
    }

    /// After the layer's part of a backward: its gradients are whole.
    pub(super) fn backward_done(&mut self) -> Result<(), ModelError> {
        self.0.as_mut().map_or(Ok(()), |layer| layer.end().and_then(|()| layer.give_gradients()))
    }
}

impl StreamedLayer {
    fn begin(&mut self) -> Result<(), ModelError> {
        let (number, values) = self.window.begin_use(self.thread, self.layer)?;
        self.present = Some(number);
        self.view(&values, |variable| &mut variable.value)
    }

    fn end(&mut self) -> Result<(), ModelError> {
        for variable in &mut self.variables {
            variable.value.f_set_data(&nothing()?)?;
        }
        self.present.take().map_or(Ok(()), |number| self.window.end_use(number))
    }

    fn begin_gradients(&mut self) -> Result<(), ModelError> {
        let mut gradients = self.window.layer_memory(self.layer);
        self.view(&gradients.as_tensor()?, |variable| &mut variable.gradient)?;
        self.gradients = Some(gradients);
        Ok(())
    }

    fn give_gradients(&mut self) -> Result<(), ModelError> {
        for variable in &mut self.variables {
            variable.gradient.f_set_data(&nothing()?)?;
        }
        self.gradients.take().map_or(Ok(()), |gradients| self.window.give_gradients(self.thread, self.layer, gradients))
    }

    /// Makes tensors of the variables views of their parts of `all`.
    fn view(&mut self, all: &Tensor, of: impl Fn(&mut StreamedVariable) -> &mut Tensor) -> Result<(), ModelError> {
        let mut start = 0;
        let counts: Vec<i64> = self.variables.iter().map(StreamedVariable::count).collect();
        for (variable, count) in self.variables.iter_mut().zip_eq(counts) {
            let part = all.f_narrow(0, start, count)?.f_view_(variable.shape.as_slice())?;
            of(variable).f_set_data(&part)?;
            start += count;
        }
        Ok(())
    }
}

impl StreamedVariable {
    fn count(&self) -> i64 {
        self.shape.iter().product()
    }
}

/// A tensor without values: a product with it fails, so that nothing reads a layer that is not there.
fn nothing() -> Result<Tensor, ModelError> {
    Ok(Tensor::f_zeros([0], (Kind::Float, Device::Cpu))?)
}
