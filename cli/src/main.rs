//! zagros: train click models whose embedding tables outgrow a machine.

mod answer;
mod args;
mod commands;
mod dashboard;
mod embedded;
mod exit;
mod logs;
mod meter;
mod page;
mod page_token;
mod plan;
mod print;
mod report;
mod resume;
mod start;
mod terminal;
mod up;

use clap::Parser;

fn main() -> std::process::ExitCode {
    let arguments = args::Arguments::parse();
    exit::install_printer();
    match commands::dispatch(arguments) {
        Ok(code) => code.into(),
        Err(failure) => failure.print(),
    }
}
