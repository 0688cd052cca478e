//! Arguments of `zagros predict`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use zagros_predictions::PredictionFormat;

use super::at_least_one;

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
    pub(crate) format: Option<OutputFormat>,
    /// Columns of the data to write before the score, such as the id of the row. They need not be features.
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',')]
    pub(crate) keys: Vec<String>,
    /// Name of the column with the score.
    #[arg(long, value_name = "NAME", default_value = "score")]
    pub(crate) score_column: String,
    /// What is averaged over several models.
    #[arg(long, value_name = "WHAT", default_value = "scores")]
    pub(crate) average: AverageOf,
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

/// A format, as the user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Comma-separated, with a header.
    Csv,
    /// One JSON object a line.
    Jsonl,
    /// Apache Parquet.
    Parquet,
}

impl From<OutputFormat> for PredictionFormat {
    fn from(format: OutputFormat) -> Self {
        match format {
            OutputFormat::Csv => Self::Csv,
            OutputFormat::Jsonl => Self::Jsonl,
            OutputFormat::Parquet => Self::Parquet,
        }
    }
}

/// What is averaged over several models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AverageOf {
    /// What is written: probabilities or numbers, and with --logits logits.
    Scores,
    /// The logits, and the score follows from their mean.
    Logits,
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
