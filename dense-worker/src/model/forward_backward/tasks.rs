//! A chunk through the networks of several labels ([`TasksNetwork`]) and back.

use tch::Tensor;
use zagros_zip::ZipEq;

use super::blocks::SampleBlocks;
use super::layer::StepParts;
use super::mixture::ExpertMixture;
use super::stack::{InputSlopes, LayerStack};
use super::{BatchShare, ChunkProgress, ChunkStep};
use crate::model::layers::{Mlp, UnitDropout};
use crate::model::networks::{ExpertGate, PleLevel, SharedLayers, TasksNetwork};
use crate::model::weights::Matrix;
use crate::model::{InputShape, ModelError};

#[derive(Debug)]
pub(in crate::model) struct TasksForwardBackward {
    numeric: usize,
    /// x, `[chunk, numeric + ΣD]`.
    input: Matrix,
    d_input: Matrix,
    shared: SharedStacks,
    towers: Vec<LayerStack>,
    /// `[chunk, outputs of all targets]`.
    d_logits: Vec<f32>,
}

#[derive(Debug)]
enum SharedStacks {
    Nothing,
    Bottom(LayerStack),
    /// The one level of MMoE, or those of PLE.
    Levels(Vec<ExpertLevel>),
}

#[derive(Debug)]
struct ExpertLevel {
    shared: Vec<LayerStack>,
    /// The experts of each target; none in MMoE.
    own: Vec<Vec<LayerStack>>,
    gates: Vec<ExpertMixture>,
    shared_gate: Option<ExpertMixture>,
}

/// What a level or a tower reads, or its slopes: that of each target, and that of all.
struct TargetInputs {
    own: Vec<Tensor>,
    shared: Tensor,
}

impl TasksForwardBackward {
    /// `None` for experts without layers.
    pub(super) fn new(
        network: &TasksNetwork,
        shape: &InputShape,
        parts: &mut StepParts<'_>,
    ) -> Result<Option<Self>, ModelError> {
        let inputs = shape.numeric + shape.width();
        let shared = match &network.shared {
            SharedLayers::Bottom(None) => SharedStacks::Nothing,
            SharedLayers::Bottom(Some(bottom)) => SharedStacks::Bottom(LayerStack::new(bottom, true, parts)?),
            SharedLayers::Mmoe(experts, gates) => {
                if experts.iter().any(|expert| expert.input_count() == 0) {
                    return Ok(None);
                }
                let none: Vec<Vec<Mlp>> = gates.iter().map(|_| Vec::new()).collect();
                SharedStacks::Levels(vec![ExpertLevel::new((experts, &none), gates, None, parts)?])
            }
            SharedLayers::Ple(levels) => {
                if levels.iter().flat_map(|level| &level.shared).any(|expert| expert.input_count() == 0) {
                    return Ok(None);
                }
                let level = |level: &PleLevel| {
                    ExpertLevel::new((&level.shared, &level.own), &level.gates, level.shared_gate.as_ref(), parts)
                };
                SharedStacks::Levels(levels.iter().map(level).collect::<Result<_, _>>()?)
            }
        };
        let towers =
            network.towers.iter().map(|tower| LayerStack::new(tower, true, parts)).collect::<Result<_, _>>()?;
        Ok(Some(Self {
            numeric: shape.numeric,
            input: Matrix::aligned(parts.rows, inputs)?,
            d_input: Matrix::aligned(parts.rows, inputs)?,
            shared,
            towers,
            d_logits: Vec::new(),
        }))
    }

    /// Forward to the towers. Answers what each reads.
    fn forward_shared(
        &mut self,
        rows: usize,
        by: SampleBlocks,
        dropout: &mut UnitDropout,
    ) -> Result<Vec<Tensor>, ModelError> {
        let x = self.input.rows(rows)?;
        let targets = self.towers.len();
        match &mut self.shared {
            SharedStacks::Nothing => Ok(TargetInputs::the_same(&x, targets).own),
            SharedStacks::Bottom(bottom) => {
                bottom.forward(&x, rows, by, Some(dropout))?;
                bottom.output_and_slopes(rows).1.fill(0.0);
                Ok(TargetInputs::the_same(&bottom.output_tensor(rows)?, targets).own)
            }
            SharedStacks::Levels(levels) => {
                let mut read = TargetInputs::the_same(&x, targets);
                for level in levels {
                    level.forward(&read, rows, by, dropout)?;
                    read = level.outputs(&x, rows)?;
                }
                Ok(read.own)
            }
        }
    }

    /// Backward from the slopes of what the towers read, which are added up by now.
    fn backward_shared(&mut self, rows: usize, progress: &mut ChunkProgress<'_>) -> Result<(), ModelError> {
        let (x, d_x) = (self.input.rows(rows)?, self.d_input.rows(rows)?);
        let targets = self.towers.len();
        match &mut self.shared {
            SharedStacks::Nothing => Ok(()),
            SharedStacks::Bottom(bottom) => bottom.backward(&x, rows, progress, InputSlopes::Written(&d_x)),
            SharedStacks::Levels(levels) => {
                for index in (0..levels.len()).rev() {
                    let (before, rest) = levels.split_at_mut(index);
                    let (read, d_read) = match before.last() {
                        Some(before) => (before.outputs(&x, rows)?, before.d_outputs(&d_x, rows)?),
                        None => (TargetInputs::the_same(&x, targets), TargetInputs::the_same(&d_x, targets)),
                    };
                    rest[0].backward(&read, d_read, rows, progress)?;
                }
                Ok(())
            }
        }
    }

    /// Where the slopes of what each tower reads are added up.
    fn d_read(&self, rows: usize) -> Result<Vec<Tensor>, ModelError> {
        let (targets, d_x) = (self.towers.len(), self.d_input.rows(rows)?);
        match &self.shared {
            SharedStacks::Nothing => Ok(TargetInputs::the_same(&d_x, targets).own),
            SharedStacks::Bottom(bottom) => Ok(TargetInputs::the_same(&bottom.d_output_tensor(rows)?, targets).own),
            SharedStacks::Levels(levels) => match levels.last() {
                Some(last) => Ok(last.d_outputs(&d_x, rows)?.own),
                None => Ok(TargetInputs::the_same(&d_x, targets).own),
            },
        }
    }
}

impl ChunkStep for TasksForwardBackward {
    fn refresh(&mut self) -> Result<(), ModelError> {
        match &mut self.shared {
            SharedStacks::Nothing => {}
            SharedStacks::Bottom(bottom) => bottom.refresh()?,
            SharedStacks::Levels(levels) => levels.iter_mut().try_for_each(ExpertLevel::refresh)?,
        }
        self.towers.iter_mut().try_for_each(LayerStack::refresh)
    }

    fn chunk(&mut self, share: BatchShare<'_>, progress: &mut ChunkProgress<'_>) -> Result<f64, ModelError> {
        let rows = share.samples;
        self.input.put_side_by_side(rows, (share.numeric, self.numeric), share.embeddings);
        self.d_input.values_mut(rows).fill(0.0);
        let read = self.forward_shared(rows, progress.blocks, progress.dropout)?;
        for (tower, read) in self.towers.iter_mut().zip_eq(&read) {
            tower.forward(read, rows, progress.blocks, Some(&mut *progress.dropout))?;
        }
        let outputs = share.logits.len() / rows;
        let mut start = 0;
        for tower in &self.towers {
            start = copy_columns(tower.output(rows), share.logits, (rows, outputs, start));
        }
        self.d_logits.resize(share.logits.len(), 0.0);
        let loss = progress.loss(share.logits, (share.labels, share.weights), &mut self.d_logits);
        if progress.ends_at_outputs() {
            return Ok(loss);
        }
        let d_read = self.d_read(rows)?;
        let mut end = outputs;
        for (target, tower) in self.towers.iter_mut().enumerate().rev() {
            let (_, slopes) = tower.output_and_slopes(rows);
            let width = slopes.len() / rows;
            end -= width;
            for (into, slopes) in slopes.chunks_exact_mut(width).zip_eq(self.d_logits.chunks_exact(outputs)) {
                into.copy_from_slice(&slopes[end..][..width]);
            }
            tower.backward(&read[target], rows, progress, InputSlopes::Added(&d_read[target]))?;
        }
        drop((read, d_read));
        self.backward_shared(rows, progress)?;
        self.d_input.copy_from_column(self.numeric, rows, share.gradients);
        Ok(loss)
    }
}

impl TargetInputs {
    fn the_same(x: &Tensor, targets: usize) -> Self {
        Self { own: (0..targets).map(|_| x.shallow_clone()).collect(), shared: x.shallow_clone() }
    }
}

impl ExpertLevel {
    fn new(
        (shared, own): (&[Mlp], &[Vec<Mlp>]),
        gates: &[ExpertGate],
        shared_gate: Option<&ExpertGate>,
        parts: &mut StepParts<'_>,
    ) -> Result<Self, ModelError> {
        let mut stacks = |experts: &[Mlp]| {
            experts.iter().map(|expert| LayerStack::new(expert, true, parts)).collect::<Result<Vec<_>, _>>()
        };
        let shared = stacks(shared)?;
        let own: Vec<Vec<LayerStack>> = own.iter().map(|experts| stacks(experts)).collect::<Result<_, _>>()?;
        let width = shared.iter().chain(own.iter().flatten()).next().map_or(0, LayerStack::output_width);
        let gates =
            gates.iter().map(|gate| ExpertMixture::new(&gate.weight, width, parts)).collect::<Result<_, _>>()?;
        let shared_gate = shared_gate.map(|gate| ExpertMixture::new(&gate.weight, width, parts)).transpose()?;
        Ok(Self { shared, own, gates, shared_gate })
    }

    fn experts_mut(&mut self) -> impl Iterator<Item = &mut LayerStack> {
        self.shared.iter_mut().chain(self.own.iter_mut().flatten())
    }

    fn refresh(&mut self) -> Result<(), ModelError> {
        // Gates have no copy in another precision.
        self.experts_mut().try_for_each(LayerStack::refresh)
    }

    fn forward(
        &mut self,
        read: &TargetInputs,
        rows: usize,
        by: SampleBlocks,
        dropout: &mut UnitDropout,
    ) -> Result<(), ModelError> {
        for expert in &mut self.shared {
            expert.forward(&read.shared, rows, by, Some(dropout))?;
        }
        for (experts, input) in self.own.iter_mut().zip_eq(&read.own) {
            experts.iter_mut().try_for_each(|expert| expert.forward(input, rows, by, Some(dropout)))?;
        }
        for (target, gate) in self.gates.iter_mut().enumerate() {
            gate.forward(&read.own[target], self.own[target].iter().chain(&self.shared), rows, by)?;
        }
        let all = self.own.iter().flatten().chain(&self.shared);
        self.shared_gate.as_mut().map_or(Ok(()), |gate| gate.forward(&read.shared, all, rows, by))
    }

    fn outputs(&self, x: &Tensor, rows: usize) -> Result<TargetInputs, ModelError> {
        self.of_gates(ExpertMixture::output, x, rows)
    }

    /// The slopes of [`Self::outputs`].
    fn d_outputs(&self, d_x: &Tensor, rows: usize) -> Result<TargetInputs, ModelError> {
        self.of_gates(ExpertMixture::d_output, d_x, rows)
    }

    /// Without a shared gate no code reads `unread`.
    fn of_gates(
        &self,
        matrix: impl Fn(&ExpertMixture) -> &Matrix,
        unread: &Tensor,
        rows: usize,
    ) -> Result<TargetInputs, ModelError> {
        let own = self.gates.iter().map(|gate| matrix(gate).rows(rows)).collect::<Result<_, _>>()?;
        let shared = self.shared_gate.as_ref().map(|gate| matrix(gate).rows(rows)).transpose()?;
        Ok(TargetInputs { own, shared: shared.unwrap_or_else(|| unread.shallow_clone()) })
    }

    /// From the slopes of the outputs to those of the inputs, to which it adds.
    fn backward(
        &mut self,
        read: &TargetInputs,
        d_read: TargetInputs,
        rows: usize,
        progress: &mut ChunkProgress<'_>,
    ) -> Result<(), ModelError> {
        self.experts_mut().for_each(|expert| expert.output_and_slopes(rows).1.fill(0.0));
        let Self { shared, own, gates, shared_gate } = self;
        if let Some(gate) = shared_gate {
            let all = own.iter_mut().flatten().chain(&mut *shared);
            gate.backward((&read.shared, &d_read.shared), all, rows, progress)?;
        }
        for (target, gate) in gates.iter_mut().enumerate().rev() {
            let seen = own[target].iter_mut().chain(&mut *shared);
            gate.backward((&read.own[target], &d_read.own[target]), seen, rows, progress)?;
        }
        for (target, experts) in own.iter_mut().enumerate().rev() {
            for expert in experts.iter_mut().rev() {
                expert.backward(&read.own[target], rows, progress, InputSlopes::Added(&d_read.own[target]))?;
            }
        }
        for expert in shared.iter_mut().rev() {
            expert.backward(&read.shared, rows, progress, InputSlopes::Added(&d_read.shared))?;
        }
        Ok(())
    }
}

/// Copies the columns of `from` to `into`, which has `outputs` of them, from column `start` on. Answers the next column.
fn copy_columns(from: &[f32], into: &mut [f32], (rows, outputs, start): (usize, usize, usize)) -> usize {
    let width = from.len() / rows;
    for (into, values) in into.chunks_exact_mut(outputs).zip_eq(from.chunks_exact(width)) {
        into[start..][..width].copy_from_slice(values);
    }
    start + width
}
