//! `zagros-bench modes`: sync, hybrid and async compared, as processes with a proxy between workers and servers that adds a delay.
//!
//! Workers reach each other over plain loopback, because libtorch's Gloo makes its own connections.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use zagros_bench::cluster::plan_launch;
use zagros_bench::workload;
use zagros_dense_worker::RunFolder;
use zagros_ingest::synthetic::{SyntheticSpec, generate_criteo};
use zagros_job::{Job, Mode, Overrides};
use zagros_plumbing::chart::{Chart, ChartSeries};
use zagros_shell::launch::{LaunchPlan, RoleName, Supervisor};
use zagros_shell::{CommandReport, Exit, Failure, OrFailure, load_job, print_figures, write_file};
use zagros_zip::ZipEq;

use crate::args::ModesArgs;
use crate::proxy::{LineProxy, NetworkLine, RunningProxy};
use crate::runs::{ComparedSetting, FinishedRun, RunComparison, children_cpu, zagros_program};

const WORKERS: u32 = 2;
const SERVERS: u32 = 2;
/// Staleness of mode async: the default of both modes.
const USUAL: usize = 4;
const HEADING: &str = "Modes of training";

pub(crate) async fn run(args: ModesArgs) -> Result<Exit, Failure> {
    let data = TempDir::new().or_internal()?;
    let job = mode_job(&args, data.path())?;
    let (staleness, seeds) = if args.output.quick { (vec![USUAL], 1) } else { (args.staleness.clone(), args.seeds) };
    let settings = ModeSetting::all_settings(&staleness);
    let rate = args.rate.map(|megabits| megabits * 1e6 / 8.0);
    let line = NetworkLine { delay: Duration::from_secs_f64(args.delay / 1e3), rate };
    let batch = (job.train.batch_size / WORKERS as usize).max(1);
    let rate = args.rate.map_or_else(String::new, |rate| format!(", {rate} Mbit/s"));
    let setting = format!(
        "{}: {WORKERS} workers × {SERVERS} servers as processes, batch {batch} each, {} ms each way between them{rate}; medians of {seeds} \
         seed(s)",
        job.name, args.delay
    );
    let run = async |index: usize, seed: u64| {
        let setting: ModeSetting = settings[index];
        run_mode(&setting.apply_to(&job, job.train.seed + seed), line).await
    };
    let names = settings.iter().map(ToString::to_string).collect();
    let comparison = RunComparison::measure(setting, names, seeds, run).await?;
    let report = report(&settings, &comparison);
    if let Some(path) = &args.page {
        write_file(path, report.render_page(HEADING))?;
    }
    print_figures(&comparison, args.output.json, |_| report.print())
}

/// One run: coordinator, servers behind their lines, workers, each a process.
async fn run_mode(job: &Job, line: NetworkLine) -> Result<FinishedRun, Failure> {
    let folder = TempDir::new().or_internal()?;
    let mut job = job.clone();
    job.output.folder = folder.path().join("runs");
    let job_file = folder.path().join("job.toml");
    std::fs::write(&job_file, job.to_toml()).or_internal()?;
    let run = RunFolder::create(&job, &[]).or_internal()?;
    let program = zagros_program()?;
    let plan = plan_launch(&program, &job_file, run.path(), &job);
    let cpu_before = children_cpu()?;
    let mut supervisor = Supervisor::new(plan.timeout);
    let ended = train(&plan, &job, line, &mut supervisor).await;
    supervisor.end_all().await;
    ended?;
    FinishedRun::read(&run.summary_file(), cpu_before)
}

async fn train(
    plan: &LaunchPlan<'_>,
    job: &Job,
    line: NetworkLine,
    supervisor: &mut Supervisor,
) -> Result<(), Failure> {
    let coordinator = plan.start_coordinator(supervisor).await?;
    let mut lines: Vec<RunningProxy> = Vec::new();
    for index in 0..job.cluster.servers {
        let proxy = LineProxy::listen(line).or_internal()?;
        let address = proxy.listen_address().or_internal()?.to_string();
        let mut server = plan.start_role(RoleName::EmbeddingServer(index), &coordinator, &["--advertise", &address])?;
        let announced = server.wait_announced(plan.timeout).await;
        supervisor.add_child(server);
        lines.push(proxy.run(announced?.address).or_internal()?);
    }
    plan.start_workers(job, &coordinator, supervisor)?;
    supervisor.watch().await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModeSetting {
    mode: Mode,
    staleness: usize,
}

impl std::fmt::Display for ModeSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.mode {
            Mode::Sync => f.write_str("sync"),
            Mode::Hybrid => write!(f, "hybrid, τ = {}", self.staleness),
            Mode::Async => write!(f, "async, τ = {}", self.staleness),
        }
    }
}

impl ModeSetting {
    /// `sync`, hybrid with each staleness, and `async`.
    fn all_settings(staleness: &[usize]) -> Vec<Self> {
        let sync = Self { mode: Mode::Sync, staleness: 0 };
        let hybrid = staleness.iter().map(|staleness| Self { mode: Mode::Hybrid, staleness: *staleness });
        let asynchronous = Self { mode: Mode::Async, staleness: USUAL };
        std::iter::once(sync).chain(hybrid).chain([asynchronous]).collect()
    }

    /// For two workers with one thread each, which share its batch. Asynchronous workers share no steps, so these are
    /// not limited.
    fn apply_to(self, job: &Job, seed: u64) -> Job {
        let mut job = job.clone();
        (job.train.mode, job.train.staleness) = (self.mode, self.staleness);
        (job.train.max_steps, job.train.evaluate_every) = (None, None);
        job.train.seed = seed;
        job.train.batch_size = (job.train.batch_size / WORKERS as usize).max(1);
        (job.train.threads, job.data.threads) = (1, 1);
        (job.cluster.workers, job.cluster.servers) = (WORKERS, SERVERS);
        job.cluster.server_addresses = vec!["127.0.0.1:0".to_owned()];
        job.output.save_model = false;
        job.checkpoint.keep = 0;
        job
    }
}

/// The job of the command line, or generated rows in `folder` and a small network on them.
fn mode_job(args: &ModesArgs, folder: &Path) -> Result<Job, Failure> {
    if let Some(file) = &args.job {
        return load_job(file, &args.sets);
    }
    let (rows, test_rows) = if args.output.quick { (8_000, 2_000) } else { (args.rows, args.rows / 4) };
    let spec = SyntheticSpec { rows, test_rows, ..SyntheticSpec::default() };
    generate_criteo(&spec, folder).or_internal()?;
    let text = workload::generated_job_text(
        "test = \"test.txt\"",
        "kind = \"ffnn\"\nhidden = [64, 32]",
        "batch_size = 1024",
        "",
        &folder.join("runs"),
    );
    let sets = ["name=modes", "embedding.dim=8"].into_iter().chain(args.sets.iter().map(String::as_str));
    let job = Job::parse(&text, &folder.join("job.toml"), &Overrides::sets(sets));
    job.map_err(|errors| Failure::new(Exit::Usage, errors))
}

/// A chart of speed and one of AUC, and the table, for a terminal and for a page.
fn report(settings: &[ModeSetting], comparison: &RunComparison) -> CommandReport {
    let cases: Vec<(ModeSetting, &ComparedSetting)> = settings.iter().copied().zip_eq(&comparison.settings).collect();
    let mut report = CommandReport::default();
    report.add_lead(&comparison.about);
    let speed = chart(&cases, "Samples a second", "over those of sync", |case| Some(case.speed_ratio));
    let auc = chart(&cases, "Test AUC", "less that of sync, by pairs with one seed", |case| case.auc_gap);
    report.add_figures([speed.render_figure(), auc.render_figure()]);
    comparison.add_table(&mut report);
    report
}

/// Hybrid as a curve over τ, the other modes as points.
fn chart(
    cases: &[(ModeSetting, &ComparedSetting)],
    title: &'static str,
    subtitle: &'static str,
    value: fn(&ComparedSetting) -> Option<f64>,
) -> Chart {
    let points = |mode: Mode| {
        let of_mode = cases.iter().filter(|(setting, _)| setting.mode == mode);
        of_mode.filter_map(|(setting, case)| Some((setting.staleness as f64, value(case)?))).collect()
    };
    let series = [("hybrid", 0, Mode::Hybrid), ("sync", 1, Mode::Sync), ("async", 2, Mode::Async)];
    let series = series.map(|(name, colour, mode)| ChartSeries { name, colour, dots: true, points: points(mode) });
    Chart { title, subtitle, across: "staleness τ", series: series.into(), ..Chart::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::RunFigures;

    #[test]
    fn every_setting_of_a_job_is_a_job() {
        let text =
            "[data]\nformat = 'criteo'\ntrain = 'a'\ntest = 'b'\n[train]\nbatch_size = 512\nevaluate_every = 5\n";
        let job = Job::parse(text, Path::new("/jobs/a.toml"), &Overrides::none()).unwrap();
        for setting in ModeSetting::all_settings(&[1, 4]) {
            let applied = setting.apply_to(&job, 7);
            let again = Job::parse(&applied.to_toml(), Path::new("/elsewhere/a.toml"), &Overrides::none()).unwrap();
            assert_eq!(again, applied);
            assert_eq!((again.train.batch_size, again.train.seed, again.train.staleness), (256, 7, setting.staleness));
        }
    }

    #[test]
    fn every_mode_is_drawn_and_listed() {
        let settings = ModeSetting::all_settings(&[1, 4]);
        let figures = [(1.0, 0.0), (1.5, 0.0005), (3.0, 0.0), (4.0, -0.01)];
        let compared = settings.iter().zip_eq(figures).map(|(setting, (speed, gap))| {
            let runs = vec![RunFigures::default()];
            ComparedSetting {
                setting: setting.to_string(),
                runs,
                speed_ratio: speed,
                cpu_ratio: 1.0,
                auc_gap: Some(gap),
            }
        });
        let comparison = RunComparison { about: "modes".to_owned(), settings: compared.collect() };
        let page = report(&settings, &comparison).render_page(HEADING);
        assert_eq!(page.matches("<figure>").count(), 2);
        // Two points of hybrid and one of each other mode, in each chart.
        assert_eq!(page.matches("<circle").count(), 8);
        for text in ["staleness τ</text>", "<td>async, τ = 4</td>", "<td>+0.0005</td>"] {
            assert!(page.contains(text), "{text}: {page}");
        }
    }
}
