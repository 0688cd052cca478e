//! The recipe of each network: depth and widths by its number of weights. All hidden layers follow one width, which is
//! solved so that the network has as many weights as the job asks for, over the job's own features.

use crate::settings::{Job, Model, ModelSize};

/// The widest layer that a job may have.
const WIDEST: u64 = 1 << 20;
const NARROWEST: u64 = 4;
/// The share by which the least and the widest network may miss the size.
const TOLERANCE: f64 = 0.05;
/// Sizes from which a network has so many hidden layers.
const DEPTHS: [(u64, usize); 8] = [
    (1_000_000_000_000, 64),
    (100_000_000_000, 32),
    (10_000_000_000, 16),
    (1_000_000_000, 8),
    (100_000_000, 5),
    (10_000_000, 4),
    (1_000_000, 3),
    (0, 2),
];
/// Sizes from which rows have so many values, with `model.size_embeddings`.
const DIMS: [(u64, usize); 5] =
    [(100_000_000_000, 128), (1_000_000_000, 64), (10_000_000, 32), (1_000_000, 16), (0, 8)];

/// Values of a row, with `model.size_embeddings`.
pub(crate) fn table_dim(size: ModelSize) -> usize {
    value_for_size(&DIMS, size)
}

/// The network of the job with `size` weights over its features, as near as the steps of the width allow.
pub(crate) fn solve_widths(job: &Job, size: ModelSize) -> Result<Model, [String; 2]> {
    let count = |width: u64| {
        let weights = job.network_of(&sized(job, size, width)).map_or(0, |network| network.layout.parameter_count());
        (weights, weights as f64 / size.0 as f64)
    };
    let unit = match &job.model {
        // Each head reads an equal part.
        Model::FinalMlp { heads, .. } => *heads as u64,
        _ => 1,
    };
    let (narrowest, widest) = (NARROWEST.next_multiple_of(unit), WIDEST / unit * unit);
    if count(narrowest).1 > 1.0 + TOLERANCE {
        let least = ModelSize(count(narrowest).0);
        let why = format!("over the features of this job it has at least {least}");
        return Err([why, format!("choose {least} or more, or fewer features, or a smaller embedding.dim")]);
    }
    if count(widest).1 < 1.0 - TOLERANCE {
        let most = ModelSize(count(widest).0);
        return Err([format!("with its widest layers it has {most}"), format!("choose {most} or less")]);
    }
    // The widest of at most the size, in units.
    let (mut low, mut high) = (narrowest / unit, widest / unit + 1);
    while high - low > 1 {
        let middle = u64::midpoint(low, high);
        if count(middle * unit).1 <= 1.0 { low = middle } else { high = middle }
    }
    let step = step(low * unit).next_multiple_of(unit);
    let below = (low * unit / step * step).max(narrowest);
    let higher = (below + step).min(widest);
    let miss = |width: u64| (count(width).1 - 1.0).abs();
    Ok(sized(job, size, if miss(higher) < miss(below) { higher } else { below }))
}

/// Widths are multiples of this from a width on: products of matrices like them.
fn step(width: u64) -> u64 {
    match width {
        0..64 => 1,
        64..512 => 8,
        512..4096 => 16,
        _ => 64,
    }
}

fn value_for_size(steps: &[(u64, usize)], size: ModelSize) -> usize {
    steps.iter().find(|(from, _)| size.0 >= *from).map_or(0, |(_, value)| *value)
}

fn sized(job: &Job, size: ModelSize, width: u64) -> Model {
    job.model_of_width(value_for_size(&DEPTHS, size), width, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, job};
    use crate::settings::LADDER;

    const SEQUENCES: &str = "[features]\ncategorical = ['C1', 'C2', { column = 'C3', table = 'C2', separator = '|', sequence = { length = 3 } }]\n";

    pub(crate) const NETWORKS: &str = "dlrm ffnn dcnv2 deepfm wide_deep wukong finalmlp shared_bottom mmoe ple din bst";

    /// With features that the network can read.
    fn sized_job(kind: &str, size: &str) -> Job {
        let features = if ["din", "bst"].contains(&kind) { SEQUENCES } else { "" };
        job(CRITEO, &format!("{features}[model]\nkind = '{kind}'\nsize = '{size}'\n"))
    }

    #[test]
    fn every_network_has_every_preset() {
        for kind in NETWORKS.split(' ') {
            let mut widths = Vec::new();
            for size in LADDER {
                let job = sized_job(kind, &size.to_string());
                let miss = job.dense_parameters().unwrap() as f64 / size.0 as f64 - 1.0;
                let allowed = if size.0 < 1_300_000 { 0.15 } else { 0.05 };
                assert!(miss.abs() <= allowed, "{kind} {size}: {miss:+.3}, {:?}", job.model);
                let width = job.model.main_width().unwrap();
                assert!(width.is_multiple_of(step(width)), "{kind} {size}: {width}");
                widths.push(width);
            }
            assert!(widths.is_sorted(), "{kind} {widths:?}");
        }
    }

    #[test]
    fn any_number_is_a_size() {
        for size in ["777k", "2.5m", "40M", "3.3b", "1t"] {
            let weights = sized_job("ffnn", size).dense_parameters().unwrap();
            let miss = weights as f64 / size.parse::<ModelSize>().unwrap().0 as f64 - 1.0;
            assert!(miss.abs() < 0.05, "{size} {weights}");
        }
    }

    #[test]
    fn heads_divide_the_streams_of_any_size() {
        for heads in [1, 3, 7, 12] {
            let text = format!("[model]\nkind = 'finalmlp'\nsize = '1.3m'\nheads = {heads}\n");
            let width = job(CRITEO, &text).model.main_width().unwrap();
            assert!(width.is_multiple_of(heads), "{heads} {width}");
        }
    }

    #[test]
    fn depth_grows_with_the_size() {
        let depth = |size: &str| match sized_job("ffnn", size).model {
            Model::Ffnn { hidden, .. } => hidden.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(["111k", "1.3m", "13m", "111m", "1.3b", "13b", "111b"].map(depth), [2, 3, 4, 5, 8, 16, 32]);
    }
}
