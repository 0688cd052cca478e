//! The dashboard's picture: a function of the status.

use indicatif::{HumanBytes, HumanCount, HumanDuration};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table, Wrap};
use zagros_coordinator::{MemberReport, StatusReport};

/// The most warnings that are shown. The others are counted.
const WARNINGS: usize = 4;
/// What the keys do, shown in the last line of the screen.
const KEYS: &str = "q leaves this view, the run goes on";

#[derive(Debug, Default)]
pub(crate) struct RunPicture {
    pub(crate) status: Option<StatusReport>,
    /// Why there is no newer status.
    pub(crate) trouble: Option<String>,
}

pub(crate) fn draw(frame: &mut Frame<'_>, picture: &RunPicture) {
    let [body, keys] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(KEYS).dim(), keys);
    match &picture.status {
        Some(status) => run(frame, body, status, picture),
        None => {
            let text = picture.trouble.as_deref().unwrap_or("waiting for the coordinator");
            frame.render_widget(Paragraph::new(text.to_owned()).wrap(Wrap { trim: true }), body);
        }
    }
}

fn run(frame: &mut Frame<'_>, area: Rect, status: &StatusReport, picture: &RunPicture) {
    let warnings = warnings(status, picture);
    let of_role = |role: &str| status.members.iter().filter(|member| member.role == role).count() as u16;
    let (servers, workers) = (of_role("embedding server"), of_role("dense worker"));
    // Two lines for the frame, one for the titles. Without room for all members, rows are cut off.
    let table = |members: u16| Constraint::Max(members.max(1) + 3);
    let [title, alarm, progress, curve, server, worker, _rest] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(warnings.len() as u16),
        Constraint::Length(1),
        Constraint::Length(7),
        table(servers),
        table(workers),
        Constraint::Fill(1),
    ])
    .areas(area);
    frame.render_widget(head(status), title);
    frame.render_widget(Paragraph::new(warnings), alarm);
    frame.render_widget(gauge(status), progress);
    let [speed, measures] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(36)]).areas(curve);
    throughput(frame, speed, status);
    frame.render_widget(numbers(status), measures);
    frame.render_widget(server_table(status), server);
    frame.render_widget(worker_table(status), worker);
}

/// The state in words and signs, besides its colour.
fn state(status: &StatusReport) -> Span<'static> {
    let (sign, color) = match status.state.as_str() {
        "training" => ("●", Color::Cyan),
        "finished" => ("✓", Color::Green),
        "failed" => ("✕", Color::Red),
        "interrupted" => ("■", Color::Yellow),
        _ => ("◌", Color::Yellow),
    };
    Span::styled(format!("{sign} {}", status.state), Style::new().fg(color).add_modifier(Modifier::BOLD))
}

fn head(status: &StatusReport) -> Line<'static> {
    let elapsed = HumanDuration(std::time::Duration::from_secs_f64(status.elapsed_seconds.max(0.0)));
    let (step, samples) = (HumanCount(status.step), HumanCount(status.samples));
    let progress = format!("  step {step}, {samples} samples, {elapsed}");
    let reason = if status.reason.is_empty() { String::new() } else { format!("  {}", status.reason) };
    Line::from(vec![
        Span::styled(status.job.clone(), Style::new().add_modifier(Modifier::BOLD)),
        Span::raw("  "),
        state(status),
        Span::raw(progress),
        Span::styled(reason, Style::new().fg(Color::Yellow)),
    ])
}

fn warnings(status: &StatusReport, picture: &RunPicture) -> Vec<Line<'static>> {
    let style = Style::new().fg(Color::Yellow);
    let found = status.diagnosis.findings.iter().map(|finding| &finding.what);
    let all: Vec<&String> = picture.trouble.iter().chain(found).chain(&status.warnings).collect();
    let mut lines: Vec<Line<'static>> =
        all.iter().take(WARNINGS).map(|text| Line::styled(format!("⚠ {text}"), style)).collect();
    let hidden = all.len().saturating_sub(WARNINGS);
    if hidden > 0 {
        lines.push(Line::styled(format!("⚠ and {hidden} more"), style));
    }
    lines
}

fn gauge(status: &StatusReport) -> Gauge<'static> {
    let (epoch, epochs) = ((status.epoch + 1).min(status.epochs.max(1)), status.epochs);
    let held = if status.splits_held > 0 { format!(", {} under way", status.splits_held) } else { String::new() };
    let label = format!("epoch {epoch} of {epochs}: {} of {} splits{held}", status.splits_done, status.splits);
    let share = f64::from(status.splits_done) / f64::from(status.splits.max(1));
    Gauge::default()
        .gauge_style(Style::new().fg(Color::Blue))
        .label(label)
        .ratio(share.clamp(0.0, 1.0))
        .use_unicode(true)
}

fn throughput(frame: &mut Frame<'_>, area: Rect, status: &StatusReport) {
    let title = format!(" throughput: {} samples/s ", HumanCount(status.samples_per_second as u64));
    let block = Block::bordered().title(title);
    let room = usize::from(block.inner(area).width);
    let points = status.history.iter().map(|point| point.samples_per_second as u64);
    let newest: Vec<u64> = points.skip(status.history.len().saturating_sub(room)).collect();
    frame.render_widget(Sparkline::default().data(&newest).style(Style::new().fg(Color::Cyan)).block(block), area);
}

fn numbers(status: &StatusReport) -> Paragraph<'static> {
    let workers = || status.members.iter().filter_map(|member| member.progress.as_ref());
    let count = workers().count();
    let loss = workers().map(|worker| worker.loss).sum::<f64>() / count as f64;
    let stale = workers().map(|worker| worker.staleness).max().unwrap_or(0);
    let auc = workers().find_map(|worker| worker.auc);
    let held_out = status.evaluations.last();
    let checkpoint = status
        .checkpoints
        .last()
        .map_or("none yet".to_owned(), |mark| format!("step {}, {:.0} s ago", HumanCount(mark.step), mark.age_seconds));
    let line = |name: &str, value: String| Line::from(format!(" {name:<11}{value}"));
    let lines = vec![
        line("loss", measure(Some(loss))),
        line("AUC so far", measure(auc)),
        line(held_out.map_or("held out", |last| last.part), measure(held_out.map(|last| last.auc))),
        line("staleness", format!("{stale} of {}", status.staleness_bound)),
        line("checkpoint", checkpoint),
    ];
    Paragraph::new(lines).block(Block::bordered().title(" measures "))
}

fn measure(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or("–".to_owned(), |value| format!("{value:.4}"))
}

fn server_table(status: &StatusReport) -> Table<'static> {
    let row = |member: &MemberReport| {
        let load = member.load.unwrap_or_default();
        let p99 = load.lookup_seconds_p99.map_or("–".to_owned(), |seconds| format!("≤ {:.1} ms", seconds * 1e3));
        let hits = load.hit_rate.map_or("–".to_owned(), |rate| format!("{:.0} %", rate * 100.0));
        let cells = [
            format!("server {}", member.index),
            alive(member),
            member.buckets.to_string(),
            HumanCount(load.rows).to_string(),
            HumanBytes(load.bytes).to_string(),
            hits,
            p99,
            load.under_way.to_string(),
        ];
        Row::new(cells).style(tone(member))
    };
    let widths = [10, 16, 8, 14, 12, 6, 12, 9].map(Constraint::Length);
    let titles = ["", "", "buckets", "rows", "memory", "hits", "lookup p99", "under way"];
    let members = status.members.iter().filter(|member| member.role == "embedding server");
    table(members.map(row).collect(), widths, titles, " embedding servers ")
}

fn worker_table(status: &StatusReport) -> Table<'static> {
    let row = |member: &MemberReport| {
        let progress = member.progress.unwrap_or_default();
        let waits: Vec<String> =
            member.waits.iter().map(|wait| format!("server {} ({:.1} s)", wait.server, wait.oldest_seconds)).collect();
        let stages = progress.stages.unwrap_or_default();
        let in_steps = stages.waiting + stages.gather + stages.dense + stages.reduce + stages.scatter;
        let share = |seconds: f64| {
            if in_steps > 0.0 { format!("{:.0} %", seconds / in_steps * 100.0) } else { "–".to_owned() }
        };
        let cells = [
            format!("worker {}", member.index),
            alive(member),
            HumanCount(progress.step).to_string(),
            HumanCount(progress.samples_per_second as u64).to_string(),
            share(stages.dense),
            share(stages.waiting),
            share(stages.reduce),
            if waits.is_empty() { "–".to_owned() } else { waits.join(", ") },
        ];
        Row::new(cells).style(tone(member))
    };
    let fixed = [10, 16, 8, 14, 12, 12, 14].map(Constraint::Length);
    let widths = [&fixed[..], &[Constraint::Fill(1)]].concat();
    let titles = ["", "", "step", "samples/s", "in network", "no batch", "other workers", "waits for"];
    let members = status.members.iter().filter(|member| member.role == "dense worker");
    table(members.map(row).collect(), widths, titles, " dense workers ")
}

fn table<const N: usize>(
    rows: Vec<Row<'static>>,
    widths: impl IntoIterator<Item = Constraint>,
    titles: [&'static str; N],
    name: &'static str,
) -> Table<'static> {
    Table::new(rows, widths).header(Row::new(titles).dim()).block(Block::bordered().title(name))
}

fn alive(member: &MemberReport) -> String {
    match member.state.as_str() {
        "alive" if member.silent_seconds >= 3.0 => format!("◌ silent {:.0} s", member.silent_seconds),
        "alive" => "● alive".to_owned(),
        "lost" => "✕ lost".to_owned(),
        "away" => format!("◌ away {:.0} s", member.silent_seconds),
        other => format!("■ {other}"),
    }
}

fn tone(member: &MemberReport) -> Style {
    match member.state.as_str() {
        "lost" => Style::new().fg(Color::Red),
        "away" => Style::new().fg(Color::Yellow),
        "alive" if member.silent_seconds >= 3.0 => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use zagros_coordinator::{
        CheckpointReport, EvaluationReport, HistoryReport, LoadReport, ProgressReport, StageReport, WaitReport,
    };

    use super::*;

    /// The text before the picture in docs/live-page.md.
    const MARK: &str = "UPDATE_DOCS=1 cargo test -p zagros-shell dashboard -->\n```text\n";

    fn server(index: u32, rows: u64) -> MemberReport {
        let (bytes, requests, under_way, hit_rate) = (rows * 96, 20_000, index, Some(0.97));
        let (lookup_seconds_mean, lookup_seconds_p99) = (Some(0.0004), Some(0.0016));
        let load = LoadReport { rows, bytes, requests, under_way, hit_rate, lookup_seconds_mean, lookup_seconds_p99 };
        let (role, state, load) = ("embedding server".to_owned(), "alive".to_owned(), Some(load));
        MemberReport { role, state, index, buckets: 512, load, silent_seconds: 0.4, ..MemberReport::default() }
    }

    fn worker(index: u32) -> MemberReport {
        let stages =
            StageReport { waiting: 4.0, gather: 2.0, dense: 30.0, reduce: 3.0, scatter: 1.0, ..StageReport::default() };
        let progress = ProgressReport {
            step: 4321,
            samples: 1_106_176,
            samples_per_second: 84_210.0,
            loss: 0.4712,
            staleness: 2,
            staleness_max: 4,
            auc: Some(0.7431),
            stages: Some(stages),
            ..ProgressReport::default()
        };
        let (role, state) = ("dense worker".to_owned(), "alive".to_owned());
        MemberReport { role, state, index, splits_held: 2, progress: Some(progress), ..MemberReport::default() }
    }

    fn training() -> StatusReport {
        let point = |second: u32| HistoryReport {
            seconds: f64::from(second),
            samples_per_second: 60_000.0 + f64::from(second % 7) * 4000.0,
            ..HistoryReport::default()
        };
        let evaluation =
            EvaluationReport { step: 4000, auc: 0.7522, part: "validation", ..EvaluationReport::default() };
        StatusReport {
            job: "quickstart".to_owned(),
            state: "training".to_owned(),
            epoch: 1,
            epochs: 3,
            splits: 64,
            splits_done: 24,
            splits_held: 4,
            members: vec![server(0, 310_442), server(1, 309_871), worker(0), worker(1)],
            evaluations: vec![evaluation],
            elapsed_seconds: 92.0,
            step: 4321,
            samples: 1_106_176,
            samples_per_second: 84_210.0,
            staleness_bound: 4,
            checkpoints: vec![CheckpointReport { step: 4000, age_seconds: 12.0 }],
            history: (0..60).map(point).collect(),
            ..StatusReport::default()
        }
    }

    fn drawn(picture: &RunPicture, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, picture)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
    }

    fn picture(status: StatusReport) -> RunPicture {
        RunPicture { status: Some(status), trouble: None }
    }

    #[test]
    fn a_run_is_shown_as_in_the_docs() {
        let shown = drawn(&picture(training()), 110, 21);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/live-page.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once(MARK).unwrap();
        let (old, after) = rest.split_once("```\n").unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, format!("{before}{MARK}{shown}```\n{after}")).unwrap();
        } else {
            assert!(
                old == shown,
                "docs/live-page.md differs; write it with: UPDATE_DOCS=1 cargo test -p zagros-shell dashboard\n{shown}"
            );
        }
    }

    #[test]
    fn trouble_is_reported_in_words_and_signs() {
        let mut status = training();
        status.warnings = (0..6).map(|number| format!("warning {number}")).collect();
        status.members[0].state = "lost".to_owned();
        status.members[1].silent_seconds = 7.2;
        status.members[2].waits = vec![WaitReport { server: 1, lookups: 1, pushes: 0, oldest_seconds: 3.2 }];
        let shown = drawn(&RunPicture { trouble: Some("no answer".to_owned()), ..picture(status) }, 130, 34);
        for words in ["⚠ no answer", "⚠ warning 2", "⚠ and 3 more", "✕ lost", "◌ silent 7 s", "server 1 (3.2 s)"]
        {
            assert!(shown.contains(words), "no {words:?} in\n{shown}");
        }
        assert!(!shown.contains("warning 3"), "{shown}");
    }

    #[test]
    fn an_empty_status_or_a_tiny_terminal_breaks_nothing() {
        let waiting = drawn(&RunPicture::default(), 60, 10);
        assert!(waiting.contains("waiting for the coordinator") && waiting.contains("q leaves"), "{waiting}");
        drawn(&picture(StatusReport::default()), 60, 20);
        for (width, height) in [(1, 1), (20, 5), (40, 12), (300, 100)] {
            drawn(&picture(training()), width, height);
        }
        let mut broken = training();
        broken.members[2].progress = Some(ProgressReport { loss: f64::NAN, ..ProgressReport::default() });
        assert!(drawn(&picture(broken), 110, 30).contains("loss       –"));
    }
}
