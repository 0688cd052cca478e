//! Processor time of a step of the dense network for each sample, network by network.
//!
//! `cargo bench -p zagros-dense-worker --bench step -- [--samples N] [--rounds N]`
//!
//! One thread, 13 numbers and 26 vectors of 16, Adam. A step is forward, backward and update. `scripts/step_peers.py` makes the same
//! steps with PyTorch in Python. The time is that of the thread, so other work on the machine disturbs it little. A feed-forward
//! network with leaky ReLU steps by autograd; the one with ReLU does not.

use std::error::Error;
use std::path::Path;

use zagros_dense_worker::model::DenseModel;
use zagros_job::{Job, Overrides};

const NUMERIC: usize = 13;
const FEATURES: usize = 26;
const DIM: usize = 16;
const NETWORKS: [(&str, &str); 9] = [
    ("ffnn", "kind = 'ffnn'\nhidden = [512, 256]"),
    ("ffnn, autograd", "kind = 'ffnn'\nhidden = [512, 256]\n[mlp]\nactivation = 'leaky_relu'"),
    ("dlrm", "kind = 'dlrm'\nbottom = [512, 256]\ntop = [512, 256]"),
    ("dlrm, autograd", "kind = 'dlrm'\nbottom = [512, 256]\ntop = [512, 256]\n[mlp]\nactivation = 'leaky_relu'"),
    ("dcnv2", "kind = 'dcnv2'\nhidden = [512, 256]"),
    ("deepfm", "kind = 'deepfm'\nhidden = [512, 256]"),
    ("wide_deep", "kind = 'wide_deep'\nhidden = [512, 256]"),
    ("wukong", "kind = 'wukong'\nbottom = [512, 256]\ntop = [512, 256]"),
    ("ffnn, batch norm", "kind = 'ffnn'\nhidden = [512, 256]\n[mlp]\nnorm = 'batch'"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().collect();
    let after = |name: &str| given.iter().position(|word| word == name).and_then(|at| given.get(at + 1)?.parse().ok());
    let (samples, rounds): (usize, usize) = (after("--samples").unwrap_or(2048), after("--rounds").unwrap_or(10));
    println!("µs of processor time a sample, least of {rounds} steps on {samples} samples");
    for (name, text) in NETWORKS {
        let text = format!(
            "[data]\nformat = 'criteo'\ntrain = 'none.tsv'\n[embedding]\ndim = {DIM}\n[train]\nthreads = 1\n[model]\n{text}\n"
        );
        let job = Job::parse(&text, Path::new("/bench.toml"), &Overrides::none())?;
        println!("{name:<18} {:>7.3}", least_step(&mut DenseModel::new(&job)?, samples, rounds)?);
    }
    Ok(())
}

fn least_step(model: &mut DenseModel, samples: usize, rounds: usize) -> Result<f64, Box<dyn Error>> {
    let value = |index: usize| (index * 2_654_435_761 % 2001) as f32 / 1000.0 - 1.0;
    let values = |count: usize| (0..count).map(value).collect::<Vec<f32>>();
    let (numeric, embeddings) = (values(samples * NUMERIC), values(samples * FEATURES * DIM));
    let labels: Vec<f32> = (0..samples).map(|sample| f32::from(sample % 4 == 0)).collect();
    let mut least = f64::INFINITY;
    for round in 0..rounds + 2 {
        let started = processor_time()?;
        model.step(&numeric, &embeddings, &labels)?;
        // The first ones only warm up.
        if round > 1 {
            least = least.min((processor_time()? - started) / samples as f64);
        }
    }
    Ok(least)
}

/// Processor time of this thread, µs.
fn processor_time() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().unwrap_or_default().parse::<f64>()? / 1e3)
}
