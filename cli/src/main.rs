//! zagros: train click models whose embedding tables outgrow a machine.

mod args;
mod averaged;
mod backend;
mod commands;
mod days;
mod experiment;
mod forget;
mod init;
mod measures;
mod memory;
mod models;
mod page;
mod pause;
mod plan;
mod planning;
mod predictions;
mod quantize;
mod report;
mod resume;
mod rewrite;
mod saved;
mod scaling_law;
mod scored_rows;
mod simulation;
mod steps;
mod sweep;
mod terminal;
mod up;

fn main() {
    let arguments: args::Arguments = zagros_shell::parse_arguments();
    zagros_shell::run_to_exit(|| commands::dispatch(arguments))
}
