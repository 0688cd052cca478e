//! One file per command. This file calls the right one.

mod data;
pub(crate) mod dense_worker;
mod eval;
mod forget;
mod init;
mod inspect;
mod plan;
mod predict;
mod train;

use clap::CommandFactory;
use zagros_dense_worker::RunFolder;
use zagros_shell::{Exit, Failure, Logging, OrFailure, block_on, print_answer};

use crate::args::{Arguments, Command, DataCommand, ReportArgs};
use crate::{page, quantize, scaling_law, sweep, up};

pub(crate) fn dispatch(arguments: Arguments) -> Result<Exit, Failure> {
    arguments.logging.install(log_level(&arguments.command));
    match arguments.command {
        Command::Init(args) => init::run(&args),
        Command::Train(args) => block_on(train::run(args)),
        Command::Up(args) => block_on(up::run(args, arguments.logging)),
        Command::Sweep(args) => block_on(sweep::run(args)),
        Command::Models(args) => plan::list_models(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Calibrate(args) => block_on(plan::calibrate(args)),
        Command::Simulate(args) => plan::simulate(&args),
        Command::ScalingLaw(args) => block_on(scaling_law::run(args)),
        Command::Eval(args) => block_on(eval::run(args)),
        Command::Predict(args) => block_on(predict::run(args)),
        Command::DenseWorker(args) => block_on(dense_worker::run(args)),
        Command::Server(command) => command.run(),
        Command::Report(args) => write_report(&args),
        Command::Forget(args) => block_on(forget::run(args)),
        Command::Quantize(args) => quantize::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Data(DataCommand::Generate(args)) => data::generate(&args),
        Command::Data(DataCommand::Inspect(args)) => data::inspect(&args),
        Command::Data(DataCommand::Validate(args)) => data::validate(&args),
        Command::Schema => print_answer(&zagros_job::schema_json().to_string()).map(|()| Exit::Success),
        Command::Completions { shell } => print_completions(shell),
    }
}

/// Roles log their work. Commands for a person log only warnings and errors.
fn log_level(command: &Command) -> &'static str {
    match command {
        Command::Server(command) => command.log_level(),
        Command::DenseWorker(_) => "info",
        _ => Logging::QUIET,
    }
}

fn print_completions(shell: clap_complete::Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "zagros", &mut script);
    print_answer(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}

/// `zagros report`: writes a run's page again, from its folder.
fn write_report(args: &ReportArgs) -> Result<Exit, Failure> {
    let folder = RunFolder::open(&args.run).or_exit(Exit::Data)?;
    print_answer(&page::write(&folder)?.display().to_string())?;
    Ok(Exit::Success)
}
