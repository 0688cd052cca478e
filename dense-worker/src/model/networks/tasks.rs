//! Networks of several targets ("tasks"): what the targets share, and a tower of each.
//!
//! The input x of all is the vector of the numeric values and the feature vectors. The output layer of a target's tower gives
//! the target's outputs.
//!
//! - **Shared bottom** (Caruana 1997): every tower reads the output of one MLP, or x itself.
//! - **MMoE**: "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", Ma et al. KDD 2018.
//!   The tower of target k reads Σ g_k(x)_e · f_e(x) over the experts f_e, with the gate g_k(x) = softmax(W_k·x)
//!   (equations 6 and 7).
//! - **PLE**: "Progressive Layered Extraction (PLE): A Novel Multi-Task Learning (MTL) Model for Personalized
//!   Recommendations", Tang et al. `RecSys` 2020. Each target has experts of its own besides those that all share. Its gate
//!   mixes its own and the shared ones (equations 1 and 2). With several levels, the mix of a target is the input of its
//!   experts and its gate in the next level, and the mix of all experts that of the shared ones (figure 5).
//!
//! ESMM is a shared bottom without layers whose second target is `given` the first ([`crate::model::training::loss`]).

use tch::{Kind, Tensor};

use crate::model::layers::{LayerCalls, LayerNumber, Mlp, WeightBuilder, parse_widths};
use crate::model::{InputShape, ModelError};

#[derive(Clone, Copy, Debug)]
pub(crate) enum SharedForm<'a> {
    Bottom { hidden: &'a [i64] },
    Mmoe { experts: usize, hidden: &'a [i64] },
    Ple { levels: usize, shared_experts: usize, task_experts: usize, hidden: &'a [i64] },
}

#[derive(Debug)]
pub(crate) struct TasksNetwork {
    pub(crate) shared: SharedLayers,
    /// One for each target, in order.
    pub(crate) towers: Vec<Mlp>,
}

#[derive(Debug)]
pub(crate) enum SharedLayers {
    /// `None` without layers.
    Bottom(Option<Mlp>),
    /// The experts, and each target's gate.
    Mmoe(Vec<Mlp>, Vec<ExpertGate>),
    Ple(Vec<PleLevel>),
}

/// A level of PLE.
#[derive(Debug)]
pub(crate) struct PleLevel {
    pub(crate) shared: Vec<Mlp>,
    /// The experts of each target.
    pub(crate) own: Vec<Vec<Mlp>>,
    /// Each target's gate: over its own experts, then the shared ones.
    pub(crate) gates: Vec<ExpertGate>,
    /// Over the experts of all targets in order, then the shared ones; `None` in the last level.
    pub(crate) shared_gate: Option<ExpertGate>,
}

#[derive(Debug)]
pub(crate) struct ExpertGate {
    /// `[experts, inputs]`.
    pub(crate) weight: Tensor,
    layer: LayerNumber,
}

impl TasksNetwork {
    /// `outputs` are those of each target.
    pub(crate) fn new(
        shape: &InputShape,
        form: SharedForm<'_>,
        tower: &[i64],
        outputs: &[usize],
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let inputs = shape.numeric + shape.width();
        if inputs == 0 {
            return Err(ModelError::Shape { what: "the network has no input: no numeric and no categorical feature" });
        }
        let (shared, read) = SharedLayers::new(inputs, form, outputs.len(), weights)?;
        let tower = parse_widths(tower)?;
        let towers = outputs.iter().enumerate().map(|(target, outputs)| {
            Mlp::linear_last(&format!("tower_{target}"), read, &[&tower[..], &[*outputs]].concat(), weights)
        });
        Ok(Self { shared, towers: towers.collect::<Result<_, _>>()? })
    }

    /// `[batch, numeric]` and `[batch, ΣD]` to `[batch, outputs of all targets]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let x = calls.part([numeric, embeddings], |both| Ok(Tensor::f_cat(&both, 1)?))?;
        let read = self.shared.forward(&x, self.towers.len(), calls)?;
        let mut outputs = Vec::with_capacity(self.towers.len());
        for (target, tower) in self.towers.iter().enumerate() {
            outputs.push(tower.forward(&read[target], calls)?);
        }
        Ok(Tensor::f_cat(&outputs, 1)?)
    }

    /// Whether a tensor of this name is of a layer that reads x.
    pub(crate) fn reads_input(&self, tensor: &str) -> bool {
        let is_first = tensor.contains(".0.");
        match &self.shared {
            SharedLayers::Bottom(Some(_)) => tensor.starts_with("bottom.0."),
            SharedLayers::Bottom(None) => tensor.starts_with("tower_") && is_first,
            SharedLayers::Mmoe(..) => tensor.starts_with("gate.") || (tensor.starts_with("expert_") && is_first),
            SharedLayers::Ple(_) => tensor.starts_with("level_0_") && (tensor.contains("gate.") || is_first),
        }
    }
}

impl SharedLayers {
    /// The shared part, and the width of what the towers read.
    fn new(
        inputs: usize,
        form: SharedForm<'_>,
        targets: usize,
        weights: &mut WeightBuilder,
    ) -> Result<(Self, usize), ModelError> {
        match form {
            SharedForm::Bottom { hidden } => {
                let hidden = parse_widths(hidden)?;
                let Some(width) = hidden.last() else { return Ok((Self::Bottom(None), inputs)) };
                Ok((Self::Bottom(Some(Mlp::hidden("bottom", inputs, &hidden, weights)?)), *width))
            }
            SharedForm::Mmoe { experts, hidden } => {
                let hidden = parse_widths(hidden)?;
                let made = mlps("expert", experts, inputs, &hidden, weights)?;
                let gates = (0..targets).map(|target| ExpertGate::new("gate", target, inputs, experts, weights));
                Ok((Self::Mmoe(made, gates.collect::<Result<_, _>>()?), hidden.last().copied().unwrap_or(inputs)))
            }
            SharedForm::Ple { levels, shared_experts, task_experts, hidden } => {
                let (hidden, mut read, mut made) = (parse_widths(hidden)?, inputs, Vec::with_capacity(levels));
                for level in 0..levels {
                    let form = LevelForm { level, is_last: level + 1 == levels, shared_experts, task_experts, targets };
                    made.push(PleLevel::new(form, read, &hidden, weights)?);
                    read = hidden.last().copied().unwrap_or(read);
                }
                Ok((Self::Ple(made), read))
            }
        }
    }

    fn forward<'n>(
        &'n self,
        x: &Tensor,
        targets: usize,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Vec<Tensor>, ModelError> {
        let the_same = |x: &Tensor| (0..targets).map(|_| x.shallow_clone()).collect();
        match self {
            Self::Bottom(None) => Ok(the_same(x)),
            Self::Bottom(Some(bottom)) => Ok(the_same(&bottom.forward(x, calls)?)),
            Self::Mmoe(experts, gates) => {
                let experts = stacked(&all(experts, x, calls)?)?;
                gates.iter().map(|gate| gate.mixed(x, &experts, calls)).collect()
            }
            Self::Ple(levels) => {
                let (mut own, mut shared): (Vec<Tensor>, _) = (the_same(x), x.shallow_clone());
                for level in levels {
                    (own, shared) = level.forward(&own, &shared, calls)?;
                }
                Ok(own)
            }
        }
    }
}

#[derive(Clone, Copy)]
struct LevelForm {
    level: usize,
    is_last: bool,
    shared_experts: usize,
    task_experts: usize,
    targets: usize,
}

impl PleLevel {
    fn new(form: LevelForm, inputs: usize, hidden: &[usize], weights: &mut WeightBuilder) -> Result<Self, ModelError> {
        let LevelForm { level, is_last, shared_experts, task_experts, targets } = form;
        let shared = mlps(&format!("level_{level}_shared"), shared_experts, inputs, hidden, weights)?;
        let own = |target| mlps(&format!("level_{level}_target_{target}"), task_experts, inputs, hidden, weights);
        let own = (0..targets).map(own).collect::<Result<_, _>>()?;
        let seen = task_experts + shared_experts;
        let gate = |target| ExpertGate::new(&format!("level_{level}_gate"), target, inputs, seen, weights);
        let gates = (0..targets).map(gate).collect::<Result<_, _>>()?;
        let all = targets * task_experts + shared_experts;
        let shared_gate = || ExpertGate::new(&format!("level_{level}_shared_gate"), 0, inputs, all, weights);
        Ok(Self { shared, own, gates, shared_gate: (!is_last).then(shared_gate).transpose()? })
    }

    /// The mix of each target, and that of all.
    fn forward<'n>(
        &'n self,
        inputs: &[Tensor],
        shared_input: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<(Vec<Tensor>, Tensor), ModelError> {
        let shared = all(&self.shared, shared_input, calls)?;
        let (mut mixes, mut everything) = (Vec::new(), Vec::new());
        for (target, experts) in self.own.iter().enumerate() {
            let mut seen = all(experts, &inputs[target], calls)?;
            everything.extend(seen.iter().map(Tensor::shallow_clone));
            seen.extend(shared.iter().map(Tensor::shallow_clone));
            mixes.push(self.gates[target].mixed(&inputs[target], &stacked(&seen)?, calls)?);
        }
        let Some(gate) = &self.shared_gate else { return Ok((mixes, shared_input.shallow_clone())) };
        everything.extend(shared);
        Ok((mixes, gate.mixed(shared_input, &stacked(&everything)?, calls)?))
    }
}

/// `name_0` and so on.
fn mlps(
    name: &str,
    count: usize,
    inputs: usize,
    hidden: &[usize],
    weights: &mut WeightBuilder,
) -> Result<Vec<Mlp>, ModelError> {
    (0..count).map(|index| Mlp::hidden(&format!("{name}_{index}"), inputs, hidden, weights)).collect()
}

fn all<'n>(experts: &'n [Mlp], x: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Vec<Tensor>, ModelError> {
    experts.iter().map(|expert| expert.forward(x, calls)).collect()
}

/// `[batch, experts, width]`.
fn stacked(outputs: &[Tensor]) -> Result<Tensor, ModelError> {
    Ok(Tensor::f_stack(outputs, 1)?)
}

impl ExpertGate {
    fn new(
        stack: &str,
        index: usize,
        inputs: usize,
        experts: usize,
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let weight = weights.matrix(stack, index, inputs, experts)?;
        Ok(Self { weight, layer: weights.layer_of(&format!("{stack}.{index}.weight")) })
    }

    /// The experts' outputs `[batch, experts, width]`, mixed as x says: `[batch, width]`.
    fn mixed<'n>(&'n self, x: &Tensor, experts: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Tensor, ModelError> {
        let softmax = |[x]: [&Tensor; 1]| Ok(x.f_linear(&self.weight, None::<&Tensor>)?.f_softmax(1, Kind::Float)?);
        let shares = calls.layer(self.layer, [x], softmax)?;
        let mix = |[shares, experts]: [&Tensor; 2]| Ok(shares.f_unsqueeze(1)?.f_bmm(experts)?.f_squeeze_dim(1)?);
        calls.part([&shares, experts], mix)
    }
}
