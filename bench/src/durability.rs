//! `zagros-bench durability`: one job with each value of `cluster.durability` in turn, each role a process: only a
//! server of its own keeps a log.

use std::path::Path;

use serde::Serialize;
use tempfile::TempDir;
use zagros_shell::{Exit, Failure, OrFailure, err, out, print_figures};
use zagros_zip::ZipEq;

use crate::args::DurabilityArgs;
use crate::program::{self, UpRun};
use zagros_calibrate::workload;

/// The compared values. The first is the one that the others are divided by.
const VALUES: [&str; 3] = ["checkpoint", "process", "machine"];
/// Samples of `--quick`.
const QUICK: u64 = 3 * workload::BATCH as u64;

#[derive(Debug, Serialize)]
struct DurabilityFigures {
    cores: usize,
    samples: u64,
    servers: u32,
    threads: usize,
    rounds: Vec<[DurabilityRun; VALUES.len()]>,
    costs: Vec<DurabilityCost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct DurabilityRun {
    /// Samples per second of training, without start and end.
    samples_per_second: f64,
    /// CPU of all processes, from start to end, per trained sample.
    cpu_us_per_sample: f64,
}

/// A value compared with the first one: medians over the rounds.
#[derive(Debug, PartialEq, Serialize)]
struct DurabilityCost {
    durability: &'static str,
    samples_per_second: f64,
    cpu_us_per_sample: f64,
    /// Of the ratios within each round, so that other load on the machine affects both runs alike.
    speed_ratio: f64,
    cpu_ratio: f64,
}

pub(crate) async fn run(args: DurabilityArgs) -> Result<Exit, Failure> {
    let (rounds, samples) = if args.quick { (1, QUICK) } else { (args.rounds, args.samples) };
    let temporary = TempDir::new().or_internal()?;
    let folder = args.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&folder).or_internal()?;
    workload::write_rows(&folder.join("train.csv"), samples)?;
    let mut figures = DurabilityFigures {
        cores: zagros_job::threads::core_count(),
        samples,
        servers: args.servers,
        threads: args.threads,
        rounds: Vec::new(),
        costs: Vec::new(),
    };
    for round in 1..=rounds {
        let mut runs = [DurabilityRun { samples_per_second: 0.0, cpu_us_per_sample: 0.0 }; VALUES.len()];
        for (run, durability) in runs.iter_mut().zip_eq(VALUES) {
            *run = train(&folder, &args, durability).await?;
            let DurabilityRun { samples_per_second: speed, cpu_us_per_sample: cpu } = run;
            err!("round {round} of {rounds}, {durability}: {speed:.0} samples/s, {cpu:.2} µs of CPU a sample");
        }
        figures.rounds.push(runs);
    }
    figures.costs = costs(&figures.rounds);
    print_figures(&figures, args.json, print)
}

async fn train(folder: &Path, args: &DurabilityArgs, durability: &str) -> Result<DurabilityRun, Failure> {
    // Each run has its own folder, so that it does not resume another one, and leaves no log to the next one.
    let runs = TempDir::new_in(folder).or_internal()?;
    let job_file = folder.join("job.toml");
    std::fs::write(&job_file, job(args, durability, runs.path())).or_internal()?;
    let what = format!("training with cluster.durability = {durability:?}");
    let UpRun { summary, cpu } = program::run_up(&job_file, runs.path(), &what).await?;
    let samples = summary.samples.max(1) as f64;
    Ok(DurabilityRun {
        samples_per_second: summary.samples_per_second,
        cpu_us_per_sample: cpu.as_secs_f64() / samples * 1e6,
    })
}

/// The workload's job on the rows of the file `train.csv`.
fn job(args: &DurabilityArgs, durability: &str, runs: &Path) -> String {
    let DurabilityArgs { servers, threads, .. } = args;
    let model = "kind = \"dlrm\"\nbottom = [512, 256]\ntop = [512, 256]";
    let cluster = format!("servers = {servers}\ndurability = {durability:?}");
    let train = format!("threads = {threads}");
    let text = workload::job_text(16, model, &train, &cluster);
    let text = text.replace("format = \"criteo\"", "format = \"delimited\"").replace("\"memory\"", "\"train.csv\"");
    let output = format!("[output]\nfolder = {runs:?}");
    text.replace("[output]", &output) + "[checkpoint]\nkeep = 0\n" + &workload::features_section()
}

fn costs(rounds: &[[DurabilityRun; VALUES.len()]]) -> Vec<DurabilityCost> {
    let cost = |(index, durability)| {
        let median_of = |figure: fn(&DurabilityRun, &DurabilityRun) -> f64| {
            median(rounds.iter().map(|runs| figure(&runs[index], &runs[0])).collect())
        };
        DurabilityCost {
            durability,
            samples_per_second: median_of(|run, _| run.samples_per_second),
            cpu_us_per_sample: median_of(|run, _| run.cpu_us_per_sample),
            speed_ratio: median_of(|run, first| run.samples_per_second / first.samples_per_second),
            cpu_ratio: median_of(|run, first| run.cpu_us_per_sample / first.cpu_us_per_sample),
        }
    };
    VALUES.into_iter().enumerate().map(cost).collect()
}

/// The middle value; of an even number the mean of the two middle ones.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = ((values.len().max(1) - 1) / 2, values.len() / 2);
    f64::midpoint(values[low], values[high])
}

fn print(figures: &DurabilityFigures) {
    let DurabilityFigures { cores, samples, servers, threads, rounds, costs } = figures;
    out!("{samples} samples of crit-zipf, DLRM, dim 16, batch {}, {servers} embedding server(s),", workload::BATCH);
    out!("{threads} thread(s) for the network, {cores} core(s); medians of {} round(s)\n", rounds.len());
    out!("durability   samples/s   CPU µs a sample   speed ÷ checkpoint's   CPU ÷ checkpoint's");
    for cost in costs {
        out!(
            "{:<10} {:>11.0} {:>17.2} {:>22.3} {:>20.3}",
            cost.durability,
            cost.samples_per_second,
            cost.cpu_us_per_sample,
            cost.speed_ratio,
            cost.cpu_ratio
        );
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::{DurabilityLevel, Job, Overrides};

    use super::*;

    #[test]
    fn the_job_reads_the_workloads_columns() {
        let args =
            DurabilityArgs { rounds: 1, samples: 1, servers: 3, threads: 2, folder: None, quick: true, json: false };
        let text = job(&args, "machine", Path::new("runs"));
        let job = Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap();
        assert_eq!((job.cluster.servers, job.cluster.durability), (3, DurabilityLevel::Machine));
        assert_eq!((job.features.numeric.len(), job.features.categorical.len()), (13, 26));
        assert_eq!((job.train.threads, job.train.batch_size), (2, workload::BATCH));
    }

    #[test]
    fn ratios_are_of_runs_in_the_same_round() {
        let run = |speed, cpu| DurabilityRun { samples_per_second: speed, cpu_us_per_sample: cpu };
        let rounds = [
            [run(100.0, 10.0), run(50.0, 20.0), run(100.0, 10.0)],
            [run(10.0, 10.0), run(10.0, 10.0), run(20.0, 10.0)],
            [run(100.0, 10.0), run(90.0, 11.0), run(10.0, 10.0)],
        ];
        let costs = costs(&rounds);
        assert_eq!((costs[0].speed_ratio, costs[0].samples_per_second), (1.0, 100.0));
        assert_eq!((costs[1].speed_ratio, costs[1].cpu_ratio), (0.9, 1.1));
        assert_eq!((costs[2].durability, costs[2].speed_ratio), ("machine", 1.0));
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
    }
}
