//! The arguments of `zagros data`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use zagros_ingest::synthetic::FactorSpec;

use super::{JobArgs, at_least_one};

#[derive(Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Write a data set with a planted model. The best reachable AUC and log loss are therefore known.
    Generate(GenerateArgs),
    /// Show the content of a job's data columns.
    Inspect(InspectArgs),
    /// Check every row of a job's data and list the bad ones.
    Validate(ValidateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Folder for the files and planted.json.
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// The planted model. `linear` writes train.txt and test.txt in Criteo's format; `factors` writes train.csv, test.csv and a job for
    /// them, job.toml.
    #[arg(long, value_enum, default_value_t = TeacherChoice::Linear, value_name = "TEACHER")]
    pub(crate) teacher: TeacherChoice,
    /// Training rows.
    #[arg(long, default_value_t = 400_000, value_parser = at_least_one())]
    pub(crate) rows: u64,
    /// Test rows.
    #[arg(long, default_value_t = 100_000, value_parser = at_least_one())]
    pub(crate) test_rows: u64,
    /// Seed: the same one writes the same files.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) factors: FactorArgs,
    /// Write nothing if the folder has the training file.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Replace files even if this command did not write them.
    #[arg(long, conflicts_with = "keep")]
    pub(crate) force: bool,
}

/// A planted model, as the user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TeacherChoice {
    /// Effects of single integers and categories, and of two pairs.
    Linear,
    /// Products of functions of latent factors, whose sizes follow a power law: the larger a network, the better.
    Factors,
}

/// The teacher `factors`.
#[derive(Debug, Args)]
pub(crate) struct FactorArgs {
    /// With --teacher factors: by which power of K the variance falls that the terms after the first K have. Default: 0.5. The planted
    /// exponents are α = A for the terms that a network has, and β = A / (1 + A) for the rows.
    #[arg(long, value_name = "A")]
    decay: Option<f64>,
    /// With --teacher factors: latent factors, a column each; every other one is a category. Default: 8.
    #[arg(long, value_name = "N")]
    factors: Option<u32>,
    /// With --teacher factors: values of a category column. Default: 64.
    #[arg(long, value_name = "N")]
    values: Option<u32>,
    /// With --teacher factors: terms of the planted logit. Default: 1024.
    #[arg(long, value_name = "N")]
    terms: Option<u32>,
    /// With --teacher factors: most factors of a term. Default: 4.
    #[arg(long, value_name = "N")]
    order: Option<u32>,
    /// With --teacher factors: standard deviation of the planted logit. Default: 2.
    #[arg(long, value_name = "S")]
    signal: Option<f64>,
}

impl GenerateArgs {
    pub(crate) fn factor_spec(&self) -> FactorSpec {
        let (given, default) = (&self.factors, FactorSpec::default());
        FactorSpec {
            rows: self.rows,
            test_rows: self.test_rows,
            seed: self.seed,
            decay: given.decay.unwrap_or(default.decay),
            factors: given.factors.unwrap_or(default.factors),
            values: given.values.unwrap_or(default.values),
            terms: given.terms.unwrap_or(default.terms),
            order: given.order.unwrap_or(default.order),
            signal: given.signal.unwrap_or(default.signal),
        }
    }

    /// An option of another teacher than the chosen one.
    pub(crate) fn foreign_option(&self) -> Option<&'static str> {
        let given = &self.factors;
        let options = [
            ("--decay", given.decay.is_some()),
            ("--factors", given.factors.is_some()),
            ("--values", given.values.is_some()),
            ("--terms", given.terms.is_some()),
            ("--order", given.order.is_some()),
            ("--signal", given.signal.is_some()),
        ];
        let of_factors = options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option);
        of_factors.filter(|_| self.teacher != TeacherChoice::Factors)
    }
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Stop after N rows, at the end of a block of about a mebibyte.
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(crate) rows: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
}
