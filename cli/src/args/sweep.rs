//! The arguments of `zagros sweep`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use zagros_sweep::Metric;

use super::{JobArgs, at_least_one};

const EXAMPLES: &str = "\
Examples:
  zagros sweep job.toml --grid train.batch_size=512,1024 --grid embedding.dim=8,16
  zagros sweep job.toml --random embedding.optimizer.lr=1e-3..1e-1:log --trials 20
  zagros sweep job.toml --tpe embedding.optimizer.lr=1e-3..1e-1:log --tpe embedding.dim=4..32 --trials 30 --halving
  zagros train runs/NAME-sweep/best.toml                the best job, trained";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group(ArgGroup::new("sampler").required(true).args(["grid", "random", "tpe"])))]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Train all combinations of these values, KEY=VALUE,VALUE,… (again for more keys).
    #[arg(long, value_name = "KEY=VALUES")]
    pub(crate) grid: Vec<String>,
    /// Train values by chance: KEY=VALUE,VALUE,… or KEY=LOW..HIGH, whole or real numbers, with :log evenly in the logarithm (again
    /// for more keys).
    #[arg(long, value_name = "KEY=VALUES")]
    pub(crate) random: Vec<String>,
    /// As --random, but after ten trials more often where earlier ones were good (tree-structured Parzen estimator).
    #[arg(long, value_name = "KEY=VALUES")]
    pub(crate) tpe: Vec<String>,
    /// How many trials --random and --tpe make. More trials later continue the same sweep.
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "grid", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) trials: u64,
    /// Seed of what is chosen by chance.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Trials side by side, which share the cores. Default: one for each two cores.
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(crate) jobs: Option<u64>,
    /// Train all trials for a part of the steps, and only the best third further, up to three times (successive halving). Steps are those
    /// of train.max_steps; without it, epochs count.
    #[arg(long)]
    pub(crate) halving: bool,
    /// What trials are compared by, on the validation part.
    #[arg(long, value_name = "MEASURE", default_value = "auc")]
    pub(crate) metric: MetricChoice,
    /// Stop after this time: `30m`. The same command goes on.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) budget: Option<Duration>,
    /// Folder of the sweep. Default: NAME-sweep in output.folder.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// Save the model of each trial in its folder.
    #[arg(long)]
    pub(crate) save_models: bool,
}

/// A measure, as the user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MetricChoice {
    /// Area under the ROC curve.
    Auc,
    /// Mean binary cross-entropy.
    Logloss,
    /// Mean AUC of the groups of eval.group_by.
    Gauc,
}

impl From<MetricChoice> for Metric {
    fn from(choice: MetricChoice) -> Self {
        match choice {
            MetricChoice::Auc => Self::Auc,
            MetricChoice::Logloss => Self::Logloss,
            MetricChoice::Gauc => Self::Gauc,
        }
    }
}
