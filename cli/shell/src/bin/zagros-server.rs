//! zagros-server: the roles that need no libtorch, for machines and images without it.
//!
//! Its commands are those of `zagros`, by the same functions.

use clap::Parser;
use zagros_shell::{Logging, ServerCommand};

const EXAMPLES: &str = "\
Examples:
  zagros-server coordinator job.toml                    place rows, hand out data
  zagros-server embedding-server job.toml --index 1     hold a part of the rows
  zagros-server status --coordinator 127.0.0.1:7700     how the job is doing

Dense workers, and all that trains or scores, are commands of `zagros`, which links libtorch.

Exit codes: 0 done, 1 internal error, 2 command line or job file, 3 data, 4 another process,
6 disk full or folder not writable, 130/143 stopped by Ctrl-C or SIGTERM.";

/// Coordinator and embedding servers of a cluster that trains click models.
#[derive(Debug, Parser)]
#[command(name = "zagros-server", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: ServerCommand,
    #[command(flatten)]
    logging: Logging,
}

fn main() {
    let arguments: Arguments = zagros_shell::parse_arguments();
    zagros_shell::run_to_exit(|| {
        arguments.logging.install(arguments.command.log_level());
        arguments.command.run()
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
