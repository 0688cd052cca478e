//! The dashboard as text. The docs show the picture of a healthy run.

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
    let load = LoadReport {
        rows,
        bytes: rows * 96,
        requests: 20_000,
        under_way: index,
        hit_rate: Some(0.97),
        lookup_seconds_mean: Some(0.0004),
        lookup_seconds_p99: Some(0.0016),
    };
    let (role, state) = ("embedding server".to_owned(), "alive".to_owned());
    MemberReport { role, state, index, buckets: 512, load: Some(load), silent_seconds: 0.4, ..MemberReport::default() }
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
    StatusReport {
        job: "quickstart".to_owned(),
        state: "training".to_owned(),
        epoch: 1,
        epochs: 3,
        splits: 64,
        splits_done: 24,
        splits_held: 4,
        members: vec![server(0, 310_442), server(1, 309_871), worker(0), worker(1)],
        evaluations: vec![EvaluationReport {
            step: 4000,
            auc: 0.7522,
            part: "validation",
            ..EvaluationReport::default()
        }],
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
    let lines = vec![
        "coordinator        │ INFO training starts".to_owned(),
        "dense worker 0     │ checkpoint after step 4000".to_owned(),
    ];
    RunPicture {
        status: Some(status),
        lines,
        keys: "q leaves this view, the run goes on   Ctrl-C stops the run",
        trouble: None,
    }
}

#[test]
fn a_run_is_shown_as_in_the_docs() {
    let shown = drawn(&picture(training()), 110, 30);
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
    for words in
        ["quickstart  ● training", "epoch 2 of 3: 24 of 64 splits, 4 under way", "84,210 samples/s", "0.7522", "2 of 4"]
    {
        assert!(shown.contains(words), "no {words:?} in\n{shown}");
    }
    assert!(shown.contains("server 1   ● alive") && shown.contains("75 %") && shown.contains("≤ 1.6 ms"), "{shown}");
    assert!(shown.contains("checkpoint after step 4000") && shown.contains("Ctrl-C stops the run"), "{shown}");
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
    let waiting = drawn(&RunPicture { keys: "q leaves", ..RunPicture::default() }, 60, 10);
    assert!(waiting.contains("waiting for the coordinator") && waiting.contains("q leaves"), "{waiting}");
    drawn(&picture(StatusReport::default()), 60, 20);
    for (width, height) in [(1, 1), (20, 5), (40, 12), (300, 100)] {
        drawn(&picture(training()), width, height);
    }
    let mut broken = training();
    broken.members[2].progress = Some(ProgressReport { loss: f64::NAN, ..ProgressReport::default() });
    assert!(drawn(&picture(broken), 110, 30).contains("loss       –"));
}
