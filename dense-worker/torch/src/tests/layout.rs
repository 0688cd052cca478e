//! The layout that the job gives is the network that is built: names, shapes, places and bounds of first values, with and without µP.

use std::path::Path;

use zagros_job::{DenseSegment, FirstValues, Job, Overrides};

use zagros_model::DenseModel;

use super::{stored, weights};
use crate::backend;

const SEQUENCES: &str = "[features]\ncategorical = ['C1', 'C2', { column = 'C3', table = 'C2', separator = '|', \
                         sequence = { length = 3 } }]\n";
const LABELS: &str =
    "[features]\nlabel = ['label', { column = 'label', name = 'level', kind = 'classes', classes = ['0', '1'] }]\n";

fn job(sections: &str, model: &str) -> Job {
    let text = format!(
        "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 4\n[train]\nthreads = 1\n{sections}[model]\n{model}\n"
    );
    Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap()
}

/// Features and other sections, and the network. Those by autograd have their tensors at libtorch.
const NETWORKS: [(&str, &str); 14] = [
    ("", "kind = 'dlrm'"),
    (LABELS, "kind = 'ple'\nlevels = 2"),
    ("", "kind = 'wukong'"),
    ("", "kind = 'finalmlp'\ngate = {}"),
    ("", "kind = 'finalmlp'\ngate = { hidden = [5], first = ['C1', 'I2'] }"),
    (SEQUENCES, "kind = 'din'"),
    (SEQUENCES, "kind = 'din'\nactivation = 'dice'"),
    (SEQUENCES, "kind = 'din'\nactivation = 'relu'"),
    (SEQUENCES, "kind = 'bst'\nlayers = 2\nheads = 2"),
    ("[features.numeric_embedding]\ndim = 3\n", "kind = 'wide_deep'"),
    ("[mlp]\nnorm = 'batch'\nactivation = 'dice'\n", "kind = 'dlrm'"),
    ("[mlp]\nnorm = 'layer'\nactivation = 'dice'\n", "kind = 'wukong'"),
    ("[mlp]\nnorm = 'layer'\n", "kind = 'dcnv2'\nstructure = 'parallel'"),
    ("[mlp]\nnorm = 'layer'\n", "kind = 'finalmlp'\ngate = { hidden = [5], first = ['C1', 'I2'] }"),
];

/// The largest magnitude of the first values is near the bound.
fn check_first_values(segment: &DenseSegment, values: &[f32], what: &str) {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let DenseSegment { tensor, first_factor, .. } = segment;
    match tensor.first {
        FirstValues::Constant(value) => assert!(values.iter().all(|found| *found == value), "{what}"),
        FirstValues::Uniform(bound) => {
            let bound = bound * first_factor;
            assert!(f64::from(largest) <= bound * 1.0001, "{what}: {largest}, bound {bound}");
            assert!(values.len() < 32 || f64::from(largest) > 0.7 * bound, "{what}: {largest}, bound {bound}");
        }
        FirstValues::Normal(deviation) => assert!(f64::from(largest) < 5.0 * deviation, "{what}: {largest}"),
    }
}

#[test]
fn the_layout_of_a_job_is_that_of_its_network() {
    for mup in ["mup_base_width = 0", "mup_base_width = 64"] {
        for (sections, network) in NETWORKS {
            let job = job(sections, &format!("{network}\nsize = '111k'\n{mup}"));
            let model = DenseModel::new(&job, backend()).unwrap();
            let mut named = stored(&model);
            named.retain(|name, _| !name.contains("running_"));
            let all = weights(&model);
            let segments = job.dense_segments().unwrap();
            assert_eq!(segments.len(), named.len(), "{network}");
            assert_eq!(segments.last().unwrap().range.end, model.weight_count(), "{network}");
            for segment in &segments {
                let what = format!("{network} {sections} {}", segment.tensor.name);
                let found = named.get(&segment.tensor.name);
                let (shape, values) = found.unwrap_or_else(|| panic!("{what} is not there"));
                let shape: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
                assert_eq!(shape, segment.tensor.shape, "{what}");
                let own = &all[segment.range.clone()];
                assert!(values == own, "{what} lies elsewhere");
                check_first_values(segment, own, &what);
            }
        }
    }
}

/// A network of the base width is one of PyTorch's scheme.
#[test]
fn at_the_base_width_mup_changes_nothing() {
    let model =
        |mup: &str| DenseModel::new(&job("", &format!("kind = 'ffnn'\nhidden = [16, 16]\n{mup}")), backend()).unwrap();
    let [mut plain, mut base, mut wide] = ["", "mup_base_width = 16", "mup_base_width = 4"].map(model);
    assert_eq!(weights(&plain), weights(&base));
    assert_ne!(weights(&plain), weights(&wide));
    let batch = ([0.5; 13], [0.25; 26 * 4], [1.0]);
    let [one, other, third] = [&mut plain, &mut base, &mut wide].map(|model| {
        model.step(&batch.0, &batch.1, &batch.2).unwrap();
        weights(model)
    });
    assert_eq!(one, other);
    assert_ne!(one, third);
}
