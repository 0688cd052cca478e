//! The arguments of experiments: `zagros sweep` and `zagros scaling-law`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use zagros_experiments::sweep::Metric;
use zagros_job::ModelSize;

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
    #[arg(long, value_name = "MEASURE", default_value = "auc", value_parser = PossibleValuesParser::new(["auc", "logloss", "gauc"]).map(metric_by_name))]
    pub(crate) metric: Metric,
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

fn metric_by_name(name: String) -> Metric {
    match name.as_str() {
        "logloss" => Metric::Logloss,
        "gauc" => Metric::Gauc,
        _ => Metric::Auc,
    }
}

const LAW_EXAMPLES: &str = "\
Examples:
  zagros data generate data/factors --teacher factors --rows 2000000
  zagros scaling-law data/factors/job.toml --budget 10m             what would a larger network bring?
  zagros scaling-law data/factors/job.toml --budget 10m --verify    the same, and train it
  zagros scaling-law job.toml --sizes 111k,590k,1.3m,5m --next 20m --seeds 2 --budget 8h";

#[derive(Debug, Args)]
#[command(after_help = LAW_EXAMPLES)]
pub(crate) struct ScalingLawArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Sizes to train, each a number of weights as `model.size` takes it. At least three. Default: 28k,111k,440k,1.8m,7m, as far as the
    /// features of the job allow them.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',')]
    pub(crate) sizes: Vec<ModelSize>,
    /// The size to forecast. Default: as much larger than the largest as that is than the one before.
    #[arg(long, value_name = "SIZE")]
    pub(crate) next: Option<ModelSize>,
    /// Seeds of each size. The spread between them is part of the interval of the forecast.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one())]
    pub(crate) seeds: u64,
    /// Shares of the training rows after which each run is measured, whole multiples of the first.
    #[arg(long, value_name = "SHARE,…", value_delimiter = ',', default_value = "0.125,0.25,0.5,1", value_parser = share)]
    pub(crate) data: Vec<f64>,
    /// End within this time: the family is planned from the speed of two short runs, and what does not fit is skipped and named. `0s` for no
    /// limit.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = humantime::parse_duration)]
    pub(crate) budget: Duration,
    /// Runs side by side, which share the cores. Default: one for each two cores.
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(crate) jobs: Option<u64>,
    /// Train the next size after its forecast is written, and compare.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Folder of the family. Default: NAME-scaling in output.folder.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| format!("`{text}` is not a share of the rows: write a number above 0 and up to 1, like 0.25"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_above_zero_and_at_most_one() {
        assert_eq!(["0.25", "1"].map(|text| share(text).ok()), [Some(0.25), Some(1.0)]);
        for wrong in ["0", "1.1", "-1", "half", "NaN"] {
            assert!(share(wrong).unwrap_err().contains(wrong));
        }
    }
}
