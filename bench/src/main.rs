//! zagros-bench: speed on fixed workloads, and a comparison of the modes of training.
//!
//! `train` and `embedding` keep their batches in memory, so that reading is not measured.

mod args;
mod capacity;
mod durability;
mod embedding;
mod modes;
mod page_file;
mod plan;
mod program;
mod scale;
mod scaling;
mod train;
mod up;

use zagros_shell::{Exit, Failure, block_on};

use crate::args::{Arguments, Benchmark};

fn main() {
    let arguments: Arguments = zagros_shell::parse_arguments();
    zagros_shell::run_to_exit(|| dispatch(arguments))
}

fn dispatch(arguments: Arguments) -> Result<Exit, Failure> {
    arguments.logging.install(zagros_shell::Logging::QUIET);
    match arguments.benchmark {
        Benchmark::Train(args) => block_on(train::run(args)),
        Benchmark::Embedding(args) => block_on(embedding::run(args)),
        Benchmark::Modes(args) => block_on(modes::run(args)),
        Benchmark::Scaling(args) => block_on(scaling::run(args)),
        Benchmark::Plan(args) => block_on(plan::run(args)),
        Benchmark::Scale(args) => block_on(scale::run(args)),
        Benchmark::Capacity(args) => capacity::run(&args),
        Benchmark::Durability(args) => block_on(durability::run(args)),
    }
}
