//! The arguments of the commands on saved models: `zagros inspect`, `forget`, `quantize` and `predict`.

use std::path::PathBuf;

use crate::predictions::PredictionFormat;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use zagros_table::WeightType;

use super::at_least_one;

#[derive(Debug, Args)]
pub(crate) struct InspectModelArgs {
    /// Run folder, the folder of a model or checkpoint, or a .zrows file, also s3://bucket/….
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Look at this table only.
    #[arg(long, value_name = "NAME")]
    pub(crate) table: Option<String>,
    /// Show the row of this id, decimal or 0x….
    #[arg(long, value_name = "ID", requires = "table", conflicts_with = "value", value_parser = parse_id)]
    pub(crate) id: Option<u64>,
    /// Show the row of this value, written as in the data. The value's hash is its id.
    #[arg(long, value_name = "TEXT", requires = "table")]
    pub(crate) value: Option<String>,
    /// Check every checksum of every file.
    #[arg(long, conflicts_with_all = ["table", "export"])]
    pub(crate) verify: bool,
    /// Do not compare whole files with the hashes in the manifest first. Of a large model in a store, only the needed parts
    /// are then read. Damage elsewhere, and files of another save, go unnoticed.
    #[arg(long, conflicts_with = "verify")]
    pub(crate) unchecked: bool,
    /// Write the table for other programs: FILE.parquet or FILE.safetensors.
    #[arg(long, value_name = "FILE", requires = "table", conflicts_with_all = ["id", "value"])]
    pub(crate) export: Option<PathBuf>,
    /// Export optimiser state and access metadata too.
    #[arg(long, requires = "export")]
    pub(crate) state: bool,
    /// Replace the exported file if it exists.
    #[arg(long, requires = "export")]
    pub(crate) force: bool,
    /// MODEL is the folder of an embedding server's log: show what it holds, and check it.
    #[arg(long, conflicts_with_all = ["table", "verify", "unchecked", "export"])]
    pub(crate) log: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// How long to wait for an object store that the model is in.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
}

impl InspectModelArgs {
    pub(crate) fn wanted_id(&self) -> Option<u64> {
        self.id.or_else(|| self.value.as_deref().map(|text| zagros_ingest::hash_value(text.as_bytes())))
    }
}

/// Parses an id in the forms that other programs show: decimal, or hexadecimal after 0x.
pub(crate) fn parse_id(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| {
        format!("{error}; an id is a number of 64 bits, decimal or 0x…; for a value of the data use --value")
    })
}

const FORGET_EXAMPLES: &str = "\
Examples:
  zagros forget runs/ads-… --table user --values users.txt --dry-run   what would be removed
  zagros forget runs/ads-… --table user --values users.txt             remove it
  zagros forget runs/ads-* --table user --id 0xb04310580…              one id, from all runs";

#[derive(Debug, Args)]
#[command(after_help = FORGET_EXAMPLES)]
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

const QUANTIZE_EXAMPLES: &str = "\
Examples:
  zagros quantize runs/ads-… -o served --element int8                       a byte a weight in every table
  zagros quantize runs/ads-… -o served --element int8 --without-state       and no optimiser state: only to serve
  zagros quantize runs/ads-… -o half --element f16 --table user --table ad  two tables only";

#[derive(Debug, Args)]
#[command(after_help = QUANTIZE_EXAMPLES)]
pub(crate) struct QuantizeArgs {
    /// Run folder, or the folder of a model or checkpoint, also s3://bucket/…. It stays as it is.
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Write the model to this folder, new or empty, also s3://bucket/….
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: PathBuf,
    /// The number format of a weight (embedding.element). Each weight is rounded to the nearest number.
    #[arg(long, value_parser = elements())]
    pub(crate) element: WeightType,
    /// Convert this table only (again for more). Without this, every table of features is converted.
    #[arg(long, value_name = "NAME")]
    pub(crate) table: Vec<String>,
    /// Leave the state of the optimisers out. The model scores as with it; no run of the same job starts from it.
    #[arg(long)]
    pub(crate) without_state: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// How long to wait for an object store that a model is in.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
}

fn elements() -> impl TypedValueParser<Value = WeightType> {
    let of_name = |name: String| WeightType::ALL.into_iter().find(|element| element.name() == name).ok_or("unknown");
    PossibleValuesParser::new(WeightType::ALL.map(WeightType::name)).try_map(of_name)
}

#[derive(Debug, Args)]
pub(crate) struct PredictArgs {
    /// Run folder, or the folder of a model or checkpoint, also s3://bucket/…. Several with commas between them: their scores are
    /// averaged.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Files with the rows, with or without the label, in any format: it is found by their content. `-` is standard input.
    #[arg(value_name = "DATA", required = true)]
    pub(crate) data: Vec<PathBuf>,
    /// File for the scores, in the order of the rows: .csv, .jsonl or .parquet; `-` is standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Format of the scores. Default: by the ending of FILE; CSV on standard output.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<PredictionFormat>,
    /// Columns of the data to write before the score, such as the id of the row. They need not be features.
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',')]
    pub(crate) keys: Vec<String>,
    /// Name of the column with the score.
    #[arg(long, value_name = "NAME", default_value = "score")]
    pub(crate) score_column: String,
    /// What is averaged over several models: what is written, or the logits, from whose mean a score follows.
    #[arg(long, value_name = "WHAT", default_value = "scores", value_parser = ["scores", "logits"])]
    pub(crate) average: String,
    /// Write logits. Without this, a score is the probability of a positive label.
    #[arg(long)]
    pub(crate) logits: bool,
    /// Write what the network says. Without this, the model's calibration is applied, if it has one (eval.calibration).
    #[arg(long)]
    pub(crate) uncalibrated: bool,
    /// What becomes of malformed rows.
    #[arg(long, value_name = "WHAT", default_value = "refuse")]
    pub(crate) bad_rows: BadRowsChoice,
    /// Rows between two points from which the same command can continue if it is stopped.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one())]
    pub(crate) save_every: u64,
    /// Score all rows. Without this, unfinished scores of the same rows and model are continued.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Replace FILE if it exists.
    #[arg(long)]
    pub(crate) force: bool,
    /// Change a key of the run's job: `--set data.threads=4`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Open the model's TorchScript module, which has this SHA-256: it can run code of its author.
    #[arg(long, value_name = "SHA256")]
    pub(crate) trust_module: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// How long to wait for an object store that the model is in.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
}

/// What becomes of malformed rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BadRowsChoice {
    /// More than data.max_bad_rows of the model's job are an error; others are skipped.
    Refuse,
    /// They are skipped, however many there are.
    Skip,
    /// They get an empty score, so that the scores have as many rows as the data.
    Empty,
}
