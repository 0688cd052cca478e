//! zagros-bench: speed on fixed workloads, and a comparison of the modes of training.

mod args;
mod capacity;
mod embedding;
mod modes;
mod proxy;
mod runs;
mod train;

use zagros_shell::{Exit, Failure, block_on};

use crate::args::{BenchArguments, BenchCommand};

fn main() {
    let arguments: BenchArguments = zagros_shell::parse_arguments();
    zagros_shell::run_to_exit(|| dispatch(arguments))
}

fn dispatch(arguments: BenchArguments) -> Result<Exit, Failure> {
    arguments.logging.install(zagros_shell::Logging::QUIET);
    match arguments.benchmark {
        BenchCommand::Train(args) => block_on(train::run(args)),
        BenchCommand::Embedding(args) => block_on(embedding::run(args)),
        BenchCommand::Modes(args) => block_on(modes::run(args)),
        BenchCommand::Scaling(args) => block_on(runs::run_scaling(args)),
        BenchCommand::Capacity(args) => capacity::run(&args),
        BenchCommand::Durability(args) => block_on(runs::run_durability(args)),
    }
}
