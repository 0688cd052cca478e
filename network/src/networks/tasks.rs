//! Networks of several targets ("tasks"): what the targets share, and a tower of each.
//!
//! The input x of all is the vector of the numeric values and the feature vectors. The output layer of a target's tower gives
//! the target's outputs.
//!
//! - **Shared bottom** (Caruana 1997): every tower reads the output of one MLP, or x itself.
//! - **`MMoE`**: "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", Ma et al. KDD 2018.
//!   The tower of target k reads Σ g_k(x)_e · f_e(x) over the experts f_e, with the gate g_k(x) = softmax(W_k·x)
//!   (equations 6 and 7).
//! - **PLE**: "Progressive Layered Extraction (PLE): A Novel Multi-Task Learning (MTL) Model for Personalized
//!   Recommendations", Tang et al. `RecSys` 2020. Each target has experts of its own besides those that all share. Its gate
//!   mixes its own and the shared ones (equations 1 and 2). With several levels, the mix of a target is the input of its
//!   experts and its gate in the next level, and the mix of all experts that of the shared ones (figure 5).
//!
//! ESMM is a shared bottom without layers whose second target is `given` the first.

use crate::layout::LayerDim;
use crate::wiring::{Columns, Value, Wiring, wide};

#[derive(Clone, Copy, Debug)]
pub struct PleForm<'a> {
    pub levels: usize,
    /// Experts of a level that all targets share.
    pub shared_experts: usize,
    /// Experts of a level that each target has of its own.
    pub task_experts: usize,
    pub hidden: &'a [i64],
}

pub fn shared_bottom(net: &mut Wiring, bottom: &[i64], tower: &[i64]) -> Value {
    let x = net.all_inputs();
    let read = net.mlp("bottom", x, &wide(bottom), true);
    let targets = net.inputs().outputs.len();
    towers(net, &vec![read; targets], tower)
}

pub fn mmoe(net: &mut Wiring, experts: usize, hidden: &[i64], tower: &[i64]) -> Value {
    let x = net.all_inputs();
    let experts = mlps(net, "expert", experts, x, hidden);
    let targets = net.inputs().outputs.len();
    let read: Vec<Value> = (0..targets).map(|target| net.mixture("gate", target, x, experts.clone())).collect();
    towers(net, &read, tower)
}

pub fn ple(net: &mut Wiring, form: PleForm<'_>, tower: &[i64]) -> Value {
    let x = net.all_inputs();
    let targets = net.inputs().outputs.len();
    let (mut own_inputs, mut shared_input) = (vec![x; targets], x);
    for level in 0..form.levels {
        let name = |part: &str| format!("level_{level}_{part}");
        let shared = mlps(net, &name("shared"), form.shared_experts, shared_input, form.hidden);
        let mut own = Vec::with_capacity(targets);
        for (target, input) in own_inputs.iter().enumerate() {
            own.push(mlps(net, &name(&format!("target_{target}")), form.task_experts, *input, form.hidden));
        }
        let mut mixes = Vec::with_capacity(targets);
        for (target, input) in own_inputs.iter().enumerate() {
            mixes.push(net.mixture(&name("gate"), target, *input, [&own[target][..], &shared].concat()));
        }
        own_inputs = mixes;
        if level + 1 < form.levels {
            let all = [own.concat(), shared].concat();
            shared_input = net.mixture(&name("shared_gate"), 0, shared_input, all);
        }
    }
    towers(net, &own_inputs, tower)
}

/// `name_0` and so on.
fn mlps(net: &mut Wiring, name: &str, count: usize, input: Value, hidden: &[i64]) -> Vec<Value> {
    (0..count).map(|index| net.mlp(&format!("{name}_{index}"), input, &wide(hidden), true)).collect()
}

/// A tower of each target, over what it reads.
fn towers(net: &mut Wiring, read: &[Value], tower: &[i64]) -> Value {
    let mut outputs = Vec::with_capacity(read.len());
    for (target, input) in read.iter().enumerate() {
        let last = LayerDim::fixed(net.inputs().outputs[target] as u64);
        let name = format!("tower_{target}");
        outputs.push(Columns::All(net.add_mlp(&name, *input, (&wide(tower), Some(last)), true)));
    }
    net.join(outputs)
}
