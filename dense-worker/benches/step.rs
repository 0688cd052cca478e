//! Processor time of a step of the dense network for each sample, network by network.
//!
//! ```text
//! cargo bench -p zagros-dense-worker --bench step -- [--samples N] [--rounds N]     a table of these networks
//! cargo bench -p zagros-dense-worker --bench step -- --serve                        steps on request
//! PRODUCTS=libtorch cargo bench -p zagros-dense-worker --bench step                 products of this library, or of gemm
//! ```
//!
//! One thread, 13 numbers and 26 vectors of 16, Adam. Networks of sequences have 25 vectors and a sequence of 50. A step is forward,
//! backward and update. The time is that of the thread, so other work on the machine disturbs it little. A network with leaky ReLU
//! steps by autograd; the first five networks with ReLU do not.
//!
//! `scripts/step_peers.py` makes the same steps with PyTorch in Python, in turns with this program: with `--serve` it answers each line
//! `samples steps network` with the times of these steps.

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::Path;

use zagros_job::{Job, Overrides};
use zagros_model::DenseModel;

const DIM: usize = 16;
const SEQUENCE: &str = "[features]\ncategorical = ['C1', 'C2', 'C3', 'C4', 'C5', 'C6', 'C7', 'C8', 'C9', 'C10', 'C11', 'C12', 'C13', 'C14', \
    'C15', 'C16', 'C17', 'C18', 'C19', 'C20', 'C21', 'C22', 'C23', 'C24', 'C25', \
    { column = 'C26', table = 'C25', separator = '|', sequence = { length = 50 } }]\n";
const TWO_LABELS: &str = "[features]\nlabel = ['label', { column = 'label', name = 'second' }]\n";
const NETWORKS: [(&str, &str, &str); 17] = [
    ("ffnn", "", "kind = 'ffnn'\nhidden = [512, 256]"),
    ("ffnn, autograd", "", "kind = 'ffnn'\nhidden = [512, 256]\n[mlp]\nactivation = 'leaky_relu'"),
    ("dlrm", "", "kind = 'dlrm'\nbottom = [512, 256]\ntop = [512, 256]"),
    ("dlrm, autograd", "", "kind = 'dlrm'\nbottom = [512, 256]\ntop = [512, 256]\n[mlp]\nactivation = 'leaky_relu'"),
    ("dcnv2", "", "kind = 'dcnv2'\nhidden = [512, 256]"),
    ("dcnv2, autograd", "", "kind = 'dcnv2'\nhidden = [512, 256]\n[mlp]\nactivation = 'leaky_relu'"),
    ("deepfm", "", "kind = 'deepfm'\nhidden = [512, 256]"),
    ("deepfm, autograd", "", "kind = 'deepfm'\nhidden = [512, 256]\n[mlp]\nactivation = 'leaky_relu'"),
    ("wide_deep", "", "kind = 'wide_deep'\nhidden = [512, 256]"),
    ("wide_deep, autograd", "", "kind = 'wide_deep'\nhidden = [512, 256]\n[mlp]\nactivation = 'leaky_relu'"),
    ("din", SEQUENCE, "kind = 'din'\nattention_hidden = [32, 16]\nhidden = [512, 256]"),
    ("bst", SEQUENCE, "kind = 'bst'\nheads = 2\nhidden = [512, 256]"),
    ("mmoe", TWO_LABELS, "kind = 'mmoe'\nexperts = 4\nhidden = [128]\ntower = [64]"),
    ("ple", TWO_LABELS, "kind = 'ple'\nhidden = [128]\ntower = [64]"),
    ("wukong", "", "kind = 'wukong'\nbottom = [512, 256]\ntop = [512, 256]"),
    ("finalmlp", "", "kind = 'finalmlp'\nfirst = [512, 256]\nsecond = [512, 256]\nheads = 16"),
    ("ffnn, batch norm", "", "kind = 'ffnn'\nhidden = [512, 256]\n[mlp]\nnorm = 'batch'"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().collect();
    if given.iter().any(|word| word == "--serve") {
        return serve();
    }
    let value_of =
        |name: &str| given.iter().position(|word| word == name).and_then(|at| given.get(at + 1)?.parse().ok());
    let (samples, rounds): (usize, usize) = (value_of("--samples").unwrap_or(2048), value_of("--rounds").unwrap_or(10));
    println!("µs of processor time a sample, least of {rounds} steps on {samples} samples");
    for (name, ..) in NETWORKS {
        // The first steps only warm up.
        let times = BenchNetwork::new(name, samples)?.steps(rounds + 2)?;
        let least = times[2..].iter().copied().fold(f64::INFINITY, f64::min);
        println!("{name:<18} {:>7.3}", least / samples as f64);
    }
    Ok(())
}

/// Answers requests from the standard input until it ends.
fn serve() -> Result<(), Box<dyn Error>> {
    let mut networks = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let [samples, steps, name] = words[..] else { return Err(format!("not a request: {line}").into()) };
        let samples = samples.parse()?;
        let network = match networks.entry((name.to_owned(), samples)) {
            std::collections::hash_map::Entry::Occupied(made) => made.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => place.insert(BenchNetwork::new(name, samples)?),
        };
        let times: Vec<String> = network.steps(steps.parse()?)?.iter().map(f64::to_string).collect();
        println!("{}", times.join(" "));
        std::io::stdout().flush()?;
    }
    Ok(())
}

struct BenchNetwork {
    model: DenseModel,
    numeric: Vec<f32>,
    embeddings: Vec<f32>,
    labels: Vec<f32>,
}

impl BenchNetwork {
    fn new(name: &str, samples: usize) -> Result<Self, Box<dyn Error>> {
        let found = NETWORKS.iter().find(|(known, ..)| *known == name);
        let (_, features, network) = found.ok_or_else(|| format!("no network is named {name}"))?;
        let text = format!(
            "[data]\nformat = 'criteo'\ntrain = 'none.tsv'\n{features}[embedding]\ndim = {DIM}\n[train]\nthreads = 1\n\
             [model]\n{network}\n"
        );
        let job = Job::parse(&text, Path::new("/bench.toml"), &Overrides::none())?;
        let backend = zagros_torch::fastest_backend();
        let backend = std::env::var("PRODUCTS").map_or(backend, |name| backend.keep_products(&name));
        let model = DenseModel::new(&job, backend)?;
        let value = |index: usize| (index * 2_654_435_761 % 2001) as f32 / 1000.0 - 1.0;
        let values = |count: usize| (0..count).map(value).collect::<Vec<f32>>();
        let columns = model.input_columns();
        let (numeric, mut embeddings) = (values(samples * columns.numeric_inputs()), values(samples * columns.width));
        for (sample, row) in embeddings.chunks_exact_mut(columns.width).enumerate() {
            for (place, length) in columns.position_counts() {
                row[place] = (sample % (length + 1)) as f32;
            }
        }
        let targets = job.features.targets.len();
        let labels = (0..samples * targets).map(|label| f32::from(label / targets % 4 == 0)).collect();
        Ok(Self { model, numeric, embeddings, labels })
    }

    /// The processor time of each step, µs.
    fn steps(&mut self, count: usize) -> Result<Vec<f64>, Box<dyn Error>> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let started = processor_time()?;
            self.model.step(&self.numeric, &self.embeddings, &self.labels)?;
            times.push(processor_time()? - started);
        }
        Ok(times)
    }
}

/// Processor time of this thread, µs.
fn processor_time() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().unwrap_or_default().parse::<f64>()? / 1e3)
}
