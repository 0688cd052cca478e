//! The reference page of the command line, `docs/cli.md`, made from clap's descriptions.
//!
//! A test compares the committed page with the program, so the page is never out of date.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, Command, CommandFactory, Subcommand};
use zagros_shell::ServerCommand;

use super::Arguments;

const UPDATE: &str = "UPDATE_DOCS=1 cargo test --release -p zagros --bin zagros reference";

fn page() -> String {
    let mut root = Arguments::command();
    root.build();
    let mut page = format!(
        "<!-- Written by a test from the code: {UPDATE} -->\n# Command line\n\nThis page lists every command of `zagros`.\n\
         `zagros-server` has the commands {}: the same code, without libtorch.\n\
         `zagros-operator --help` and `zagros-bench --help` describe the other two programs.\n",
        server_commands()
    );
    write_section(&mut page, &mut root, 2);
    page
}

/// The commands of `zagros-server`, as a list in a sentence.
fn server_commands() -> String {
    let server = ServerCommand::augment_subcommands(Command::new("zagros-server"));
    let names: Vec<String> = server.get_subcommands().map(|command| format!("`{}`", command.get_name())).collect();
    let (last, others) = names.split_last().expect("zagros-server has commands");
    format!("{} and {last}", others.join(", "))
}

/// One command, then its subcommands.
fn write_section(page: &mut String, command: &mut Command, level: usize) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    write!(page, "\n{} `{name}`\n\n{}\n", "#".repeat(level), text(command.get_long_about().or(command.get_about())))
        .unwrap();
    write!(page, "\n```text\n{}\n```\n", usage(command)).unwrap();
    write_arguments(page, command, level == 2);
    if let Some(examples) = command.get_after_help() {
        write!(page, "\n```text\n{examples}\n```\n").unwrap();
    }
    for subcommand in command.get_subcommands_mut().filter(|subcommand| subcommand.get_name() != "help") {
        write_section(page, subcommand, level + 1);
    }
}

/// `zagros train [OPTIONS] <JOB>`.
fn usage(command: &mut Command) -> String {
    let usage = command.render_usage().to_string();
    usage.trim_start_matches("Usage:").trim().lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

/// The table of arguments. Arguments that every command has are only listed at the root.
fn write_arguments(page: &mut String, command: &Command, is_root: bool) {
    let shown = |argument: &&Arg| {
        let every_command_has_it =
            argument.is_global_set() || ["help", "version"].contains(&argument.get_id().as_str());
        (is_root || !every_command_has_it) && !argument.is_hide_set()
    };
    let rows: Vec<String> = command.get_arguments().filter(shown).map(row).collect();
    if !rows.is_empty() {
        write!(page, "\n| argument | meaning | default |\n|---|---|---|\n{}", rows.concat()).unwrap();
    }
}

/// One argument, in one line of the table.
fn row(argument: &Arg) -> String {
    let values: Vec<_> = argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    let takes_value = argument.get_action().takes_values();
    let mut meaning = text(argument.get_long_help().or(argument.get_help()));
    if takes_value && !values.is_empty() {
        write!(meaning, " One of {}.", values.join(", ")).unwrap();
    }
    let defaults = argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy()));
    let default = if takes_value { defaults.collect::<Vec<_>>().join(", ") } else { String::new() };
    format!("| `{}` | {} | {default} |\n", heading(argument), meaning.replace('|', "\\|"))
}

/// `--rows <N>`, `-f, --follow` or `<JOB>`.
fn heading(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    format!("{short}{argument}").replace('|', "\\|")
}

/// A help text as one line. A `<` becomes an entity, except between backquotes.
fn text(help: Option<&clap::builder::StyledStr>) -> String {
    let help = help.map(ToString::to_string).unwrap_or_default();
    let line = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_code = |part: usize| part % 2 == 1;
    let parts = line.split('`').enumerate();
    let escaped = parts.map(|(at, part)| if is_code(at) { part.to_owned() } else { part.replace('<', "&lt;") });
    escaped.collect::<Vec<_>>().join("`")
}

#[test]
fn the_reference_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page, "docs/cli.md differs from the code; write it with: {UPDATE}");
}
