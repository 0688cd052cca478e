//! One file per command; this one finds the right one.

mod bench;
mod data;
mod eval;
mod health;
mod inspect;
mod logs;
mod report;
mod roles;
mod status;
mod train;

use std::time::Duration;

use clap::CommandFactory;
use zagros_plumbing::telemetry::{self, LogFormat};

use crate::answer::answer;
use crate::args::{Arguments, BenchCommand, Command, DataCommand};
use crate::exit::{Exit, Failure, OrInternal};
use crate::up;

/// What ends a command is printed as its error, so that the embedded coordinator need not log it as well.
const QUIET: &str = "warn,zagros_coordinator=off";

/// Runs the command to its end.
pub(crate) fn dispatch(arguments: Arguments) -> Result<Exit, Failure> {
    telemetry::install(
        if arguments.log_json { LogFormat::Json } else { LogFormat::Text },
        if arguments.quiet { QUIET } else { log_level(&arguments.command) },
    );
    match arguments.command {
        Command::Train(args) => block_on(train::run(args)),
        Command::Up(args) => block_on(up::run(args)),
        Command::Eval(args) => block_on(eval::run(args)),
        Command::Coordinator(args) => block_on(roles::coordinator(args)),
        Command::EmbeddingServer(args) => {
            let threads = roles::server_threads(&args)?;
            block_on_threads(Some(threads), roles::embedding_server(args))
        }
        Command::DenseWorker(args) => block_on(roles::dense_worker(args)),
        Command::Report(args) => report::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Status(args) => block_on(status::run(args)),
        Command::Logs(args) => block_on(logs::run(args)),
        Command::Health(args) => block_on(health::run(args)),
        Command::Data(DataCommand::Generate(args)) => data::generate(&args),
        Command::Data(DataCommand::Inspect(args)) => data::inspect(&args),
        Command::Data(DataCommand::Validate(args)) => data::validate(&args),
        Command::Bench(BenchCommand::Train(args)) => block_on(bench::train(args)),
        Command::Bench(BenchCommand::Embedding(args)) => block_on(bench::embedding(args)),
        Command::Bench(BenchCommand::Modes(args)) => block_on(bench::modes(args)),
        Command::Bench(BenchCommand::Scaling(args)) => block_on(bench::scaling(args)),
        Command::Schema => print_schema(),
        Command::Completions { shell } => print_completions(shell),
    }
}

/// How long tasks and threads of the runtime may take to end.
const SHUTDOWN: Duration = Duration::from_millis(500);

/// Roles tell what they do. Commands for a person stay quiet unless something is wrong.
fn log_level(command: &Command) -> &'static str {
    match command {
        Command::Coordinator(_) | Command::EmbeddingServer(_) | Command::DenseWorker(_) => "info",
        _ => QUIET,
    }
}

fn block_on(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    block_on_threads(None, command)
}

fn block_on_threads(
    threads: Option<usize>,
    command: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    threads.map(|threads| runtime.worker_threads(threads));
    let runtime = runtime.enable_all().build().or_internal()?;
    let ended = runtime.block_on(command);
    // Tasks let go of what they hold, such as a store that must be closed before the process ends. A blocking read of a
    // parser thread must not keep the process for longer: all that matters is written.
    runtime.shutdown_timeout(SHUTDOWN);
    ended
}

fn print_schema() -> Result<Exit, Failure> {
    answer(&zagros_job::schema_json().to_string())?;
    Ok(Exit::Success)
}

fn print_completions(shell: clap_complete::Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "zagros", &mut script);
    answer(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}
