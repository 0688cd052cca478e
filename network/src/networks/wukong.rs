//! Wukong: "Wukong: Towards a Scaling Law for Large-Scale Recommendation", Zhang et al. 2024.

use crate::layout::LayerDim;
use crate::networks::dlrm::bottom_vector;
use crate::wiring::{Value, Wiring, wide};

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
    let has_bottom = bottom_vector(net, bottom).is_some();
    let (dim, rank) = (net.dim() as u64, rank as u64);
    let [machine, compressed] = [fmb, lcb].map(|vectors| LayerDim::wide(vectors as u64));
    let given = LayerDim::wide(machine.size + compressed.size);
    let mut vectors = LayerDim::fixed((net.inputs().dims.len() + usize::from(has_bottom)) as u64);
    let mut read = net.vectors();
    for index in 0..layers {
        let products = vectors.times(rank);
        read = net.by_autograd(given.times(dim), |layout| {
            layout.one_layer(format!("fmb_projection.{index}"), |layout| {
                layout
                    .each_of(dim, |layout| layout.add_matrix("fmb_projection", index, vectors, LayerDim::fixed(rank)));
                layout.add_norm("fmb_norm", index, products);
            });
            layout.count_products(products.size * dim);
            layout.add_mlp(&format!("fmb_{index}"), products, &wide(fmb_hidden), Some(machine.times(dim)));
            layout.one_layer(format!("lcb.{index}"), |layout| {
                layout.each_of(dim, |layout| {
                    layout.add_matrix("lcb", index, vectors, compressed);
                    if given.size != vectors.size {
                        layout.add_matrix("residual", index, vectors, given);
                    }
                });
                layout.add_norm("norm", index, LayerDim::fixed(dim));
            });
        });
        vectors = given;
    }
    let last = Value { width: vectors.times(dim), ..read };
    net.logit("top", last, &wide(top))
}
