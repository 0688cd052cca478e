//! Runs of a job with each role a process, compared by one setting: one form of figures and one table for `zagros-bench scaling`, `durability`
//! and `modes`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use tempfile::TempDir;
use tokio::process::Command;
use zagros_bench::workload::{self, middle_value};
use zagros_dense_worker::RunSummary;
use zagros_ingest::synthetic::{SyntheticSpec, generate_criteo};
use zagros_plumbing::process::cpu_time_of_children;
use zagros_shell::{CommandReport, Exit, Failure, OrFailure, ReportTable, err, print_figures};
use zagros_zip::ZipEq;

use crate::args::{DurabilityArgs, ScalingArgs};

const DEADLINE: Duration = Duration::from_secs(3600);

/// The `zagros` in the folder of this program.
pub(crate) fn zagros_program() -> Result<PathBuf, Failure> {
    find_zagros(&std::env::current_exe().or_internal()?)
}

fn find_zagros(this: &Path) -> Result<PathBuf, Failure> {
    let zagros = this.with_file_name("zagros");
    if zagros.is_file() {
        return Ok(zagros);
    }
    let what = format!("{} does not exist: this benchmark starts its processes from it", zagros.display());
    Err(Failure::usage(what, "build it with `make build`, or copy `zagros` beside this program"))
}

/// The summary of a run, and the user and system time of all its processes, from start to end.
#[derive(Debug)]
pub(crate) struct FinishedRun {
    pub(crate) summary: RunSummary,
    pub(crate) cpu: Duration,
}

/// Runs `zagros up`. The job alone writes to the folder `runs`. `what` names the run in errors.
pub(crate) async fn run_up(job: &Path, runs: &Path, what: &str) -> Result<FinishedRun, Failure> {
    let cpu_before = children_cpu()?;
    let mut up = Command::new(zagros_program()?);
    up.arg("up").arg(job).kill_on_drop(true);
    let ended = tokio::time::timeout(DEADLINE, up.stdin(Stdio::null()).output()).await.map_err(|_| {
        Failure::with_help(Exit::Cluster, format!("{what} took more than {DEADLINE:?}"), "ask for fewer --rows")
    })?;
    let ended = ended.or_internal()?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        return Err(Failure::with_help(Exit::Cluster, format!("{what} failed: {}\n{said}", ended.status), "see above"));
    }
    // The folder may hold servers' logs as well.
    let mut summaries = std::fs::read_dir(runs).or_internal()?.flatten().map(|run| run.path().join("summary.json"));
    let missing = || Failure::with_help(Exit::Internal, format!("{} holds no run", runs.display()), "this is a bug");
    FinishedRun::read(&summaries.find(|path| path.is_file()).ok_or_else(missing)?, cpu_before)
}

/// User and system time of the processes that have ended.
pub(crate) fn children_cpu() -> Result<Duration, Failure> {
    cpu_time_of_children().ok_or_else(|| {
        let what = "the kernel does not report the CPU time of processes that have ended";
        Failure::with_help(Exit::Internal, what, "/proc must be mounted")
    })
}

impl FinishedRun {
    pub(crate) fn read(summary: &Path, cpu_before: Duration) -> Result<Self, Failure> {
        let summary = std::fs::read(summary).or_internal()?;
        let cpu = children_cpu()?.saturating_sub(cpu_before);
        Ok(Self { summary: serde_json::from_slice(&summary).or_internal()?, cpu })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct RunFigures {
    samples: u64,
    steps: u64,
    /// Of training, without start and scoring.
    pub(crate) samples_per_second: f64,
    /// Of all processes, from start to end.
    cpu_us_per_sample: f64,
    /// The shares of its time in which the first worker's step thread waited for batches, and for other workers.
    waiting_share: f64,
    reduce_share: f64,
    /// AUC of the held-out rows, if there are any, at the end.
    auc: Option<f64>,
    staleness_mean: f64,
    staleness_max: u32,
}

impl RunFigures {
    pub(crate) fn new(run: &FinishedRun) -> Self {
        let FinishedRun { summary, cpu } = run;
        let share = |seconds: f64| if summary.seconds > 0.0 { seconds / summary.seconds } else { 0.0 };
        Self {
            samples: summary.samples,
            steps: summary.steps,
            samples_per_second: summary.samples_per_second,
            cpu_us_per_sample: cpu.as_secs_f64() * 1e6 / summary.samples.max(1) as f64,
            waiting_share: share(summary.stages.waiting),
            reduce_share: share(summary.stages.reduce),
            auc: summary.evaluation.and_then(|evaluation| evaluation.auc),
            staleness_mean: summary.staleness.mean,
            staleness_max: summary.staleness.max,
        }
    }
}

/// The runs with one value of what is varied, one for each round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ComparedSetting {
    pub(crate) setting: String,
    pub(crate) runs: Vec<RunFigures>,
    /// Medians of the ratios and differences to the first setting's run in the same round.
    pub(crate) speed_ratio: f64,
    pub(crate) cpu_ratio: f64,
    pub(crate) auc_gap: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunComparison {
    /// The workload and the machine, in words.
    pub(crate) about: String,
    pub(crate) settings: Vec<ComparedSetting>,
}

impl RunComparison {
    /// Runs every setting in each round, so that other load on the machine affects the runs of a round alike. `run` makes the run of a
    /// setting in a round, both numbered from 0.
    pub(crate) async fn measure(
        about: String,
        settings: Vec<String>,
        rounds: u64,
        run: impl AsyncFn(usize, u64) -> Result<FinishedRun, Failure>,
    ) -> Result<Self, Failure> {
        let mut runs: Vec<Vec<RunFigures>> = vec![Vec::new(); settings.len()];
        for round in 0..rounds {
            for (index, setting) in settings.iter().enumerate() {
                let figures = RunFigures::new(&run(index, round).await?);
                let (speed, cpu) = (figures.samples_per_second, figures.cpu_us_per_sample);
                err!("round {} of {rounds}, {setting}: {speed:.0} samples/s, {cpu:.2} µs of CPU a sample", round + 1);
                runs[index].push(figures);
            }
        }
        Ok(Self { about, settings: compare_runs(settings, &runs) })
    }

    /// A line of words, and a row for each setting: medians over the rounds.
    pub(crate) fn add_table(&self, report: &mut CommandReport) {
        const COLUMNS: [&str; 12] = [
            "setting",
            "samples/s",
            "× first",
            "CPU µs/sample",
            "× first",
            "waits for batches",
            "for workers",
            "AUC",
            "− first",
            "staleness",
            "max",
            "steps",
        ];
        let rows = self.settings.iter().map(ComparedSetting::table_cells).collect();
        report.add_title("Figures").add_table(ReportTable::new(&COLUMNS, rows));
    }

    fn print(&self) {
        let mut report = CommandReport::default();
        self.add_table(report.add_lead(&self.about));
        report.print();
    }
}

fn compare_runs(settings: Vec<String>, runs: &[Vec<RunFigures>]) -> Vec<ComparedSetting> {
    let compare = |(setting, own): (String, &Vec<RunFigures>)| {
        let pairs = || own.iter().zip_eq(&runs[0]);
        let gaps: Option<Vec<f64>> = pairs().map(|(own, first)| Some(own.auc? - first.auc?)).collect();
        ComparedSetting {
            setting,
            runs: own.clone(),
            speed_ratio: middle_value(pairs().map(|(own, first)| own.samples_per_second / first.samples_per_second)),
            cpu_ratio: middle_value(pairs().map(|(own, first)| own.cpu_us_per_sample / first.cpu_us_per_sample)),
            auc_gap: gaps.map(|gaps| middle_value(gaps.into_iter())),
        }
    };
    settings.into_iter().zip_eq(runs).map(compare).collect()
}

impl ComparedSetting {
    fn table_cells(&self) -> Vec<String> {
        let middle = |figure: fn(&RunFigures) -> f64| middle_value(self.runs.iter().map(figure));
        let auc: Option<Vec<f64>> = self.runs.iter().map(|run| run.auc).collect();
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        vec![
            self.setting.clone(),
            format!("{:.0}", middle(|run| run.samples_per_second)),
            format!("{:.3}", self.speed_ratio),
            format!("{:.2}", middle(|run| run.cpu_us_per_sample)),
            format!("{:.3}", self.cpu_ratio),
            format!("{:.1} %", 100.0 * middle(|run| run.waiting_share)),
            format!("{:.1} %", 100.0 * middle(|run| run.reduce_share)),
            or_dash(auc.map(|auc| format!("{:.4}", middle_value(auc.into_iter())))),
            or_dash(self.auc_gap.map(|gap| format!("{gap:+.4}"))),
            format!("{:.2}", middle(|run| run.staleness_mean)),
            self.runs.iter().map(|run| run.staleness_max).max().unwrap_or(0).to_string(),
            format!("{:.0}", middle(|run| run.steps as f64)),
        ]
    }
}

/// Training rows of `zagros-bench scaling --quick`, and its batch size.
const QUICK_SCALING: (u64, usize) = (20_000, 512);
/// Learning rate of the dense network's Adam.
const RATE: f64 = 0.001;

/// One job with one dense worker, then with several. By default the batch of all workers together stays the same, so all runs make the same
/// steps and end with the same AUC up to chance.
pub(crate) async fn run_scaling(args: ScalingArgs) -> Result<Exit, Failure> {
    let (rows, batch) = if args.output.quick { QUICK_SCALING } else { (args.rows, args.batch) };
    let folder = TempDir::new().or_internal()?;
    let spec = SyntheticSpec { rows, test_rows: rows / 4, ..SyntheticSpec::default() };
    generate_criteo(&spec, folder.path()).or_internal()?;
    let (servers, cores) = (args.servers, zagros_job::threads::core_count());
    let whose = if args.grow_batch { "each worker" } else { "all workers together" };
    let mut setting = format!(
        "{rows} rows, DLRM, dim 16, batch {batch} of {whose}, {servers} server(s), {cores} core(s); each role a process, one thread for the \
         network of each worker and one that parses"
    );
    let most = 2 * args.workers.iter().copied().max().unwrap_or(1);
    if most > cores as u64 {
        setting += &format!("; {most} threads of workers on {cores} core(s) cannot show how they scale");
    }
    let settings = args.workers.iter().map(|workers| format!("{workers} worker(s)")).collect();
    let run = async |index: usize, _: u64| {
        let workers = args.workers[index];
        // Each run has its own folder, so that it does not resume another one.
        let (job, runs) = (folder.path().join("job.toml"), folder.path().join(format!("runs-{index}")));
        std::fs::write(&job, scaling_job(servers, workers, batch, args.grow_batch, &runs)).or_internal()?;
        run_up(&job, &runs, &format!("training with {workers} dense worker(s)")).await
    };
    let comparison = RunComparison::measure(setting, settings, 1, run).await?;
    print_figures(&comparison, args.output.json, RunComparison::print)
}

/// A job with one parser thread and one network thread for each worker. Adam's steps do not grow with the gradient, so its learning rate takes
/// the square root of the batch's growth.
fn scaling_job(servers: u32, workers: u64, batch: usize, grows: bool, runs: &Path) -> String {
    let (each, rate) =
        if grows { (batch, RATE * (workers as f64).sqrt()) } else { (batch.div_ceil(workers as usize), RATE) };
    let model =
        format!("kind = \"dlrm\"\nbottom = [512, 256]\ntop = [512, 256]\n[optimizer]\nkind = \"adam\"\nlr = {rate}");
    let data = "test = \"test.txt\"\nthreads = 1";
    let train = format!("batch_size = {each}\nthreads = 1");
    let cluster = format!("servers = {servers}\nworkers = {workers}");
    workload::generated_job_text(data, &model, &train, &cluster, runs)
}

/// The compared values of `cluster.durability`. The first is the one that the others are divided by.
const DURABILITY: [&str; 3] = ["checkpoint", "process", "machine"];

/// One job with each value of `cluster.durability` in turn: only a server of its own keeps a log.
pub(crate) async fn run_durability(args: DurabilityArgs) -> Result<Exit, Failure> {
    let (rounds, samples) =
        if args.output.quick { (1, 3 * workload::BATCH as u64) } else { (args.rounds, args.samples) };
    let temporary = TempDir::new().or_internal()?;
    let folder = args.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&folder).or_internal()?;
    generate_criteo(&SyntheticSpec { rows: samples, test_rows: 1, ..SyntheticSpec::default() }, &folder)
        .or_internal()?;
    let setting = format!(
        "{samples} generated samples, DLRM, dim 16, batch {}, {} embedding server(s), {} thread(s) for the network, {} core(s); medians of \
         {rounds} round(s)",
        workload::BATCH,
        args.servers,
        args.threads,
        zagros_job::threads::core_count()
    );
    let run = async |index: usize, _: u64| {
        // Each run has its own folder, so that it does not resume another one, and leaves no log to the next one.
        let runs = TempDir::new_in(&folder).or_internal()?;
        let job_file = folder.join("job.toml");
        std::fs::write(&job_file, durability_job(&args, DURABILITY[index], runs.path())).or_internal()?;
        run_up(&job_file, runs.path(), &format!("training with cluster.durability = {:?}", DURABILITY[index])).await
    };
    let settings = DURABILITY.map(str::to_owned).to_vec();
    let comparison = RunComparison::measure(setting, settings, rounds, run).await?;
    print_figures(&comparison, args.output.json, RunComparison::print)
}

fn durability_job(args: &DurabilityArgs, durability: &str, runs: &Path) -> String {
    let DurabilityArgs { servers, threads, .. } = args;
    let model = "kind = \"dlrm\"\nbottom = [512, 256]\ntop = [512, 256]";
    let cluster = format!("servers = {servers}\ndurability = {durability:?}");
    let train = format!("batch_size = {}\nthreads = {threads}", workload::BATCH);
    workload::generated_job_text("", model, &train, &format!("{cluster}\n[checkpoint]\nkeep = 0"), runs)
}

#[cfg(test)]
mod tests {
    use zagros_job::{DurabilityLevel, Job, Overrides};

    use super::*;
    use crate::args::OutputArgs;

    fn parsed(text: &str) -> Job {
        Job::parse(text, Path::new("job.toml"), &Overrides::none()).unwrap()
    }

    #[test]
    fn the_batch_of_all_workers_stays_the_same_or_grows_with_the_learning_rate() {
        for (workers, each) in [(1, 4096), (2, 2048), (3, 1366), (4, 1024)] {
            let job = parsed(&scaling_job(2, workers, 4096, false, Path::new("runs")));
            assert_eq!((job.train.batch_size, job.train.threads, job.cluster.servers), (each, 1, 2));
            assert_eq!(u64::from(job.cluster.workers), workers);
        }
        let text = scaling_job(2, 4, 4096, true, Path::new("runs"));
        assert_eq!(parsed(&text).train.batch_size, 4096);
        assert!(text.contains("lr = 0.002"), "{text}");
    }

    #[test]
    fn the_job_of_durability_is_a_job() {
        let output = OutputArgs { quick: true, json: false };
        let args = DurabilityArgs { rounds: 1, samples: 1, servers: 3, threads: 2, folder: None, output };
        let job = parsed(&durability_job(&args, "machine", Path::new("runs")));
        assert_eq!((job.cluster.servers, job.cluster.durability), (3, DurabilityLevel::Machine));
        assert_eq!((job.train.threads, job.train.batch_size), (2, workload::BATCH));
    }

    #[test]
    fn ratios_and_gaps_are_of_runs_in_the_same_round() {
        let run = |samples_per_second, cpu_us_per_sample, auc| RunFigures {
            samples_per_second,
            cpu_us_per_sample,
            auc,
            ..RunFigures::default()
        };
        let runs = [
            vec![run(100.0, 10.0, Some(0.5)), run(10.0, 10.0, Some(0.5)), run(100.0, 10.0, Some(0.75))],
            vec![run(50.0, 20.0, Some(0.5)), run(10.0, 10.0, Some(0.75)), run(90.0, 11.0, Some(0.875))],
            vec![run(100.0, 10.0, Some(0.5)), run(20.0, 10.0, None), run(10.0, 10.0, Some(0.5))],
        ];
        let compared = compare_runs(["a", "b", "c"].map(str::to_owned).to_vec(), &runs);
        let ratios = compared.iter().map(|setting| (setting.speed_ratio, setting.cpu_ratio, setting.auc_gap));
        let expected = [(1.0, 1.0, Some(0.0)), (0.9, 1.1, Some(0.125)), (1.0, 1.0, None)];
        assert_eq!(Vec::from_iter(ratios), expected);
        assert_eq!(compared[2].table_cells()[7..9], ["–", "–"]);
        assert_eq!(middle_value([4.0, 1.0].into_iter()), 2.5);
    }

    #[test]
    fn zagros_is_found_in_the_same_folder_or_its_absence_is_explained() {
        let folder = TempDir::new().unwrap();
        let this = folder.path().join("zagros-bench");
        let missing = format!("{:?}", find_zagros(&this).unwrap_err());
        assert!(missing.contains("make build"), "{missing}");
        std::fs::write(folder.path().join("zagros"), "").unwrap();
        assert_eq!(find_zagros(&this).unwrap(), folder.path().join("zagros"));
    }
}
