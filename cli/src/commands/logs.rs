//! `zagros logs`: the log lines of a run's roles on this machine, in the order of time.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use owo_colors::{AnsiColors, OwoColorize};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Exit, Failure, out, watch_signals};

use crate::args::LogsArgs;
use zagros_shell::launch::LOG_FOLDER;

use crate::logs::{self, LogLevel, LogLine, LogSource};

const RUNS: &str = "runs";
/// How often new lines are looked for.
const LOOK: Duration = Duration::from_millis(250);

struct LineFilter {
    level: LogLevel,
    since: Option<SystemTime>,
}

impl LineFilter {
    fn takes(&self, line: &LogLine) -> bool {
        line.level >= self.level && self.since.is_none_or(|since| line.time >= since)
    }
}

/// Prints the existing lines, and new ones if asked for.
pub(crate) async fn run(args: LogsArgs) -> Result<Exit, Failure> {
    let folder = match args.run {
        Some(run) => run.join(LOG_FOLDER),
        None => newest(Path::new(RUNS))?.join(LOG_FOLDER),
    };
    let role = args.role.as_deref().map(|role| match role {
        "server" => "embedding server",
        "worker" => "dense worker",
        role => role,
    });
    let found = logs::find_sources(&folder).map_err(|error| unreadable(&folder, &error))?;
    let mut sources: Vec<LogSource> = found.into_iter().filter(|source| source.is_of(role, args.index)).collect();
    if sources.is_empty() {
        let what = format!("{} has no log of that role and index", folder.display());
        return Err(Failure::usage(what, "omit --role and --index to see all of them"));
    }
    let since = args.since.and_then(|age| SystemTime::now().checked_sub(age));
    let wanted = LineFilter { level: args.level, since };
    let all: Result<Vec<_>, _> = sources.iter_mut().map(LogSource::read_all).collect();
    let all = all.map_err(|error| unreadable(&folder, &error))?;
    for (source, line) in logs::merge_by_time(all).filter(|(_, line)| wanted.takes(line)) {
        print(&sources[source].name, &line);
    }
    if args.follow { follow(&folder, sources, &wanted).await } else { Ok(Exit::Success) }
}

async fn follow(folder: &Path, mut sources: Vec<LogSource>, wanted: &LineFilter) -> Result<Exit, Failure> {
    let shutdown = Shutdown::new();
    let _signals = watch_signals(&shutdown)?;
    loop {
        let news: io::Result<Vec<_>> = sources.iter_mut().map(|source| source.read_new().map(Vec::into_iter)).collect();
        let news = news.map_err(|error| unreadable(folder, &error))?;
        for (source, line) in logs::merge_by_time(news).filter(|(_, line)| wanted.takes(line)) {
            print(&sources[source].name, &line);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = shutdown.requested() => return Ok(Exit::Success),
        }
    }
}

fn print(name: &str, line: &LogLine) {
    let text = match line.level {
        LogLevel::Error => line.text.red().to_string(),
        LogLevel::Warn => line.text.yellow().to_string(),
        LogLevel::Info | LogLevel::Debug | LogLevel::Trace => line.text.clone(),
    };
    out!("{} {:<19}│ {text}", line.stamp.dimmed(), name.color(color(name)));
}

/// The colour that `up` uses.
fn color(name: &str) -> AnsiColors {
    match name {
        "coordinator" => AnsiColors::Magenta,
        name if name.starts_with("embedding") => AnsiColors::Cyan,
        _ => AnsiColors::Green,
    }
}

/// The run in a folder whose logs were written last.
fn newest(runs: &Path) -> Result<PathBuf, Failure> {
    let age = |run: &PathBuf| {
        let logs = std::fs::read_dir(run.join(LOG_FOLDER)).ok()?;
        logs.filter_map(|entry| entry.ok()?.metadata().ok()?.modified().ok()).max()
    };
    let folders = std::fs::read_dir(runs).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let newest = folders.filter_map(|run| Some((age(&run)?, run))).max();
    newest.map(|(_, run)| run).ok_or_else(|| {
        let what = format!("no run with logs below {}", runs.display());
        let help = "name its folder: zagros logs RUN; only `zagros up` writes logs: for containers use `docker compose \
                    logs`, for pods `kubectl logs`";
        Failure::usage(what, help)
    })
}

fn unreadable(folder: &Path, error: &io::Error) -> Failure {
    let what = format!("cannot read the logs in {}: {error}", folder.display());
    Failure::usage(what, "name the folder of a run that `zagros up` has started")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_run_that_wrote_last() {
        let runs = tempfile::tempdir().unwrap();
        let message = format!("{:?}", newest(runs.path()).unwrap_err());
        assert!(message.contains("no run with logs") && message.contains("zagros logs RUN"), "{message}");
        for (run, second) in [("b", 10), ("a", 20), ("c", 5)] {
            let logs = runs.path().join(run).join(LOG_FOLDER);
            std::fs::create_dir_all(&logs).unwrap();
            let file = std::fs::File::create(logs.join("coordinator.log")).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
        }
        std::fs::create_dir_all(runs.path().join("without")).unwrap();
        assert_eq!(newest(runs.path()).unwrap(), runs.path().join("a"));
    }

    #[test]
    fn lines_are_chosen_by_level_and_age() {
        let line = LogLine::parse("2026-11-22T02:09:29.000000Z WARN slow").unwrap();
        let takes = |level, since| LineFilter { level, since }.takes(&line);
        assert!(takes(LogLevel::Warn, None) && !takes(LogLevel::Error, None));
        let later = line.time + Duration::from_secs(1);
        assert!(takes(LogLevel::Info, Some(line.time)) && !takes(LogLevel::Info, Some(later)));
    }
}
