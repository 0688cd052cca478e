//! The arguments of `zagros forget`.

use std::path::PathBuf;

use clap::Args;

use super::parse_id;

const EXAMPLES: &str = "\
Examples:
  zagros forget runs/ads-… --table user --values users.txt --dry-run   what would be removed
  zagros forget runs/ads-… --table user --values users.txt             remove it
  zagros forget runs/ads-* --table user --id 0xb04310580…              one id, from all runs";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ForgetArgs {
    /// Run folders, with their model, states and checkpoints, or folders of models, also s3://bucket/…. The embedding servers of a
    /// `zagros up` that trains in a run folder remove the rows at once.
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) models: Vec<PathBuf>,
    /// The table.
    #[arg(long, value_name = "NAME")]
    pub(crate) table: String,
    /// Remove the rows of these ids: a file with one id a line, decimal or 0x…; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) ids: Option<PathBuf>,
    /// Remove the rows of these values: a file with one value a line, written as in the data; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) values: Option<PathBuf>,
    /// Remove the row of this id, decimal or 0x… (again for more).
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    pub(crate) id: Vec<u64>,
    /// Remove the row of this value, written as in the data (again for more).
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Vec<String>,
    /// Say what would be removed, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object for each MODEL.
    #[arg(long)]
    pub(crate) json: bool,
    /// How long to wait for an object store that a model is in, and for the embedding servers of a run that trains.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
}
