//! What the command prints: the schedule, each fault as it happens, and the result.

use std::collections::BTreeMap;
use std::time::Duration;

use owo_colors::OwoColorize;
use zagros_job::Job;
use zagros_protocol::control::ScaleStatus;
use zagros_shell::out;

use crate::FaultKind;
use crate::schedule::{FaultRecord, PlannedFault};
use crate::verdict::CheckedPromise;

const SHOWN: usize = 400;

pub(crate) fn title(text: &str) {
    out!("\n{}", text.bold());
}

pub(crate) fn setting(job: &Job, seed: u64, changes: &[String]) {
    let cluster = &job.cluster;
    let (program, name, mode) = ("zagros".bold(), job.name.bold(), format!("{:?}", job.train.mode).to_lowercase());
    let (servers, workers) = (cluster.servers, cluster.workers);
    out!(
        "{program}: chaos of {name} in mode {mode}: 1 coordinator, {servers} embedding servers, {workers} dense workers"
    );
    let (lease, timeout) = (humantime::format_duration(cluster.lease), humantime::format_duration(cluster.timeout));
    out!("seed {seed}, staleness {}, lease {lease}, timeout {timeout}", job.train.staleness);
    title("The job, changed so that every row can be checked exactly");
    changes.iter().for_each(|change| out!("  {change}"));
}

pub(crate) fn schedule(faults: &[PlannedFault], seed: u64) {
    title(&format!("Schedule (seed {seed})"));
    out!("{}", format!("{:>6}  {:>9}  {:<20}  {}", "fault", "pause", "what", "of").dimmed());
    for fault in faults.iter().take(SHOWN) {
        let (number, pause) = (fault.number, fault.pause.as_secs_f64());
        out!("{number:>6}  {pause:>7.1} s  {:<20}  {}", fault.what(), fault.target_names());
    }
    if faults.len() > SHOWN {
        out!("  … and {} more", faults.len() - SHOWN);
    }
}

pub(crate) fn fault(record: &FaultRecord) {
    let FaultRecord { fault, at, back, next_step, steps_without_coordinator } = record;
    let back = back.map(|back| format!("back after {}", seconds(back)));
    let step = match next_step {
        Some(next) => format!("next step after {}", seconds(*next)),
        None => "the run ended before its next step".to_owned(),
    };
    let away = steps_without_coordinator.map(|steps| format!("{steps} steps meanwhile"));
    let outcome: Vec<String> = back.into_iter().chain(away).chain([step]).collect();
    let (number, at, what, names) = (fault.number, clock(*at), fault.what(), fault.target_names());
    out!("{number:>6}  {at:>9}  {what:<20}  {names:<42}  {}", outcome.join(" · "));
}

pub(crate) fn round(text: &str) {
    out!("\n{} {text}", "▶".cyan());
}

pub(crate) fn promises(promises: &[CheckedPromise]) {
    for CheckedPromise { is_kept, what } in promises {
        let mark = if *is_kept { "✓".green().to_string() } else { "✗".red().to_string() };
        out!("  {mark} {what}");
    }
}

/// A loss curve as a row of blocks, on the scale of `lowest` to `highest`.
pub(crate) fn curve(name: &str, points: &[f64], (lowest, highest): (f64, f64)) {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let block =
        |loss: &f64| BLOCKS[(((loss - lowest) / (highest - lowest).max(1e-9)) * 7.0).round().clamp(0.0, 7.0) as usize];
    let (first, last) = (points.first().copied().unwrap_or_default(), points.last().copied().unwrap_or_default());
    let text: String = points.iter().map(block).collect();
    out!("  {name:<12} {first:.4} {} {last:.4}", text.cyan());
}

pub(crate) fn recoveries(records: &[FaultRecord]) {
    title("From the fault to the next step of every worker");
    let head = format!("{:<28}  {:>6}  {:>9} {:>9}  {:>9} {:>9}", "", "faults", "back: ½", "worst", "step: ½", "worst");
    out!("{}", head.dimmed());
    let mut groups: BTreeMap<(FaultKind, String), Vec<&FaultRecord>> = BTreeMap::new();
    for record in records {
        groups.entry((record.fault.kind, group(&record.fault))).or_default().push(record);
    }
    for ((kind, on), records) in &groups {
        line(&format!("{kind} {on}"), records);
    }
    line("all", &records.iter().collect::<Vec<_>>());
    if let Some(killed) = killed(records) {
        out!("\n{killed}");
    }
    let away: Vec<u64> = records.iter().filter_map(|record| record.steps_without_coordinator).collect();
    if !away.is_empty() {
        let with_steps = away.iter().filter(|steps| **steps > 0).count();
        let sum: u64 = away.iter().sum();
        out!("\n{sum} steps were made while the coordinator was away; in {with_steps} of {} absences", away.len());
    }
}

/// How many processes were killed, by role: a fault may kill two.
fn killed(records: &[FaultRecord]) -> Option<String> {
    let mut by_role: BTreeMap<String, usize> = BTreeMap::new();
    let kills = records.iter().filter(|record| record.fault.kind == FaultKind::Kill);
    for target in kills.flat_map(|record| &record.fault.targets) {
        *by_role.entry(target.group()).or_default() += 1;
    }
    let sum: usize = by_role.values().sum();
    let roles: Vec<String> = by_role.iter().map(|(role, count)| format!("{role} {count}")).collect();
    (sum > 0).then(|| format!("{sum} processes were killed: {}", roles.join(", ")))
}

pub(crate) fn moves(rounds: &[ScaleStatus]) {
    let sum = |of: fn(&ScaleStatus) -> u64| rounds.iter().map(of).sum::<u64>();
    let committed = sum(|moves| moves.moves_committed);
    if committed > 0 {
        let frozen = rounds.iter().map(|moves| moves.longest_freeze_seconds).fold(0.0, f64::max);
        out!(
            "\n{committed} moves of {} buckets with {} rows between embedding servers, {} more were abandoned; a server stood still \
             for {:.0} ms at most",
            sum(|moves| moves.buckets_moved),
            sum(|moves| moves.rows_moved),
            sum(|moves| moves.moves_abandoned),
            frozen * 1e3
        );
    }
}

fn group(fault: &PlannedFault) -> String {
    match fault.targets.as_slice() {
        [target] => target.group(),
        _ => "of two at once".to_owned(),
    }
}

fn line(name: &str, records: &[&FaultRecord]) {
    let times = |of: fn(&FaultRecord) -> Option<Duration>| {
        let mut times: Vec<Duration> = records.iter().filter_map(|record| of(record)).collect();
        times.sort();
        let median = times.get(times.len() / 2).map_or_else(|| "-".to_owned(), |time| seconds(*time));
        let worst = times.last().map_or_else(|| "-".to_owned(), |time| seconds(*time));
        format!("{median:>9} {worst:>9}")
    };
    let (back, step) = (times(|record| record.back), times(|record| record.next_step));
    out!("{name:<28}  {:>6}  {back}  {step}", records.len());
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn clock(time: Duration) -> String {
    let tenths = time.as_millis() / 100;
    format!("{:02}:{:02}.{}", tenths / 600, tenths / 10 % 60, tenths % 10)
}

#[cfg(test)]
mod tests {
    use zagros_shell::launch::RoleName;

    use super::*;
    use crate::schedule::FaultTarget;

    #[test]
    fn a_fault_that_kills_two_counts_as_two_kills() {
        let record = |targets: &[RoleName], kind| {
            let targets = targets.iter().copied().map(FaultTarget::Process).collect();
            let fault = PlannedFault { number: 1, kind, targets, pause: Duration::ZERO, lasts: Duration::ZERO };
            FaultRecord::new(fault, Duration::ZERO)
        };
        let two = record(&[RoleName::EmbeddingServer(1), RoleName::DenseWorker(0)], FaultKind::Kill);
        let one = record(&[RoleName::EmbeddingServer(0)], FaultKind::Kill);
        let stop = record(&[RoleName::Coordinator], FaultKind::Stop);
        assert_eq!(killed(&[two, one, stop.clone()]).as_deref(), Some("3 processes were killed: server 2, worker 1"));
        assert_eq!(killed(&[stop]), None);
    }

    #[test]
    fn times_are_minutes_seconds_and_tenths() {
        assert_eq!(clock(Duration::from_millis(61_250)), "01:01.2");
        assert_eq!(seconds(Duration::from_millis(1234)), "1.23 s");
    }
}
