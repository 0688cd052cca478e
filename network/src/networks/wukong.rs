//! Wukong: "Wukong: Towards a Scaling Law for Large-Scale Recommendation", Zhang et al. 2024.
//!
//! The input is a matrix X₀ of one vector per categorical feature, and one that a bottom MLP makes of the numeric values.
//! Each layer makes a matrix of `fmb` + `lcb` vectors of the same dim D:
//!
//! ```text
//!              ┌─ X·Xᵀ·Y ─ flatten ─ layer norm ─ MLP ─► fmb vectors   factorisation machine block
//!  X (n × D) ──┼─ W·X ─────────────────────────────────► lcb vectors   linear compress block
//!              └─ X, or V·X if n ≠ fmb + lcb ──────────► added to both
//!                                          layer norm of each vector ─► the next X
//! ```
//!
//! X·Xᵀ holds the dot products of every two vectors. Y (n × `rank`) keeps `rank` columns of it, so the block's cost grows
//! linearly with n. The interactions double in order with each layer: layer l holds products of up to 2^l features. The
//! paper's variant in which Y depends on the sample is not built.

use crate::layout::LayerDim;
use crate::networks::features::bottom_vector;
use crate::wiring::{Block, Columns, FactorLayer, Value, Wiring, size, wide};

#[derive(Clone, Copy, Debug)]
pub struct WukongForm<'a> {
    pub layers: usize,
    /// Vectors that the factorisation machine block of a layer gives.
    pub fmb: usize,
    /// Vectors that the linear compress block of a layer gives.
    pub lcb: usize,
    /// Columns that are kept of the vectors' dot products.
    pub rank: usize,
    pub fmb_hidden: &'a [i64],
    pub bottom: &'a [i64],
    pub top: &'a [i64],
}

pub fn wukong(net: &mut Wiring, form: WukongForm<'_>) -> Value {
    let WukongForm { layers, fmb, lcb, rank, fmb_hidden, bottom, top } = form;
    let (mut x, dim, rank) = (net.vectors(), net.dim(), rank as u64);
    let mut vectors = LayerDim::fixed(net.inputs().dims.len() as u64);
    if let Some(dense) = bottom_vector(net, bottom) {
        x = net.join(vec![Columns::All(dense), Columns::All(x)]);
        vectors.size += 1;
    }
    let [machine, compressed] = [fmb, lcb].map(|vectors| LayerDim::wide(vectors as u64));
    let given = LayerDim::wide(machine.size + compressed.size);
    for index in 0..layers {
        let (products, values) = (vectors.times(rank), dim as u64);
        let (hidden, last) = (wide(fmb_hidden), machine.times(values));
        let widths = hidden.iter().chain([&last]).map(|width| size(*width)).collect();
        let layer = FactorLayer { input: x, vectors: size(vectors), dim, fmb, lcb, widths };
        x = net.add_with(Block::FactorLayer(layer), given.times(values), |layout| {
            layout.one_layer(format!("fmb_projection.{index}"), |layout| {
                layout.each_of(values, |layout| {
                    layout.add_matrix("fmb_projection", index, vectors, LayerDim::fixed(rank));
                });
                layout.add_norm("fmb_norm", index, products);
            });
            layout.count_products(products.size * values);
            layout.add_mlp(&format!("fmb_{index}"), products, &hidden, Some(last));
            layout.one_layer(format!("lcb.{index}"), |layout| {
                layout.each_of(values, |layout| {
                    layout.add_matrix("lcb", index, vectors, compressed);
                    if given.size != vectors.size {
                        layout.add_matrix("residual", index, vectors, given);
                    }
                });
                layout.add_norm("norm", index, LayerDim::fixed(values));
            });
        });
        vectors = given;
    }
    net.logit("top", x, &wide(top))
}
