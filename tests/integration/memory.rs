//! `cluster.memory`: what leaves memory loses nothing, and memory is kept to.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Fixture, http_get};

/// All features in one table of far more rows than the memory below holds.
const SHARED: &str = "[features]\ncategorical = [";
/// A twentieth of the rows of 20,000 samples and less.
const MEMORY: u64 = 256 << 10;
/// How long a test waits for rows to leave memory.
const PATIENCE: Duration = Duration::from_secs(60);

fn fixture() -> Fixture {
    let fixture = Fixture::new(20_000);
    let column = |number: u32| format!("{{ column = \"C{number}\", table = \"shared\" }}, ");
    let columns: String = (1..=26).map(column).collect();
    let tables = format!("{SHARED}{columns}]\n[tables.shared]\n[cluster]\ncold_folder = \"cold\"\n");
    fixture.write("shared.toml", fixture.read("job.toml").replace("[cluster]\n", &tables));
    fixture
}

fn limit() -> String {
    format!("cluster.memory={} B", MEMORY)
}

/// Invariant TI-1: eviction to the cold tier changes no weight, in one process and with two servers.
#[test]
fn the_losses_are_those_of_a_run_that_keeps_every_row_in_memory() {
    let fixture = fixture();
    fixture.zagros(["train", "shared.toml", "--set", "train.mode=sync"]).expect(0);
    let unlimited = fixture.losses();
    assert_eq!(unlimited.len(), 79);
    let sync = ["--set", "train.mode=sync", "--set", &limit()].map(str::to_owned);
    for command in [vec!["train"], vec!["up", "--servers", "2"]] {
        let arguments = command.iter().copied().chain(["shared.toml"]).chain(sync.iter().map(String::as_str));
        fixture.zagros(arguments).expect(0);
        assert_eq!(fixture.losses(), unlimited, "{command:?}");
    }
}

#[test]
fn a_server_keeps_to_its_memory_and_tells_what_left_it() {
    let fixture = fixture();
    let mut run = fixture.start(["up", "shared.toml", "--set", "train.epochs=1000", "--set", &limit()]);
    run.wait_for_line("step ");
    let path = fixture.run_folder().join("roles/embedding-server-0.json");
    let told: Value = serde_json::from_slice(&std::fs::read(path).expect("announced")).expect("JSON");
    let admin = told["admin"].as_str().expect("an address");
    let since = Instant::now();
    let metrics = loop {
        let metrics = http_get(admin, "/metrics");
        if metric(&metrics, r#"table_ids_total{server="0",table="shared",what="promoted"}"#) > 0 {
            break metrics;
        }
        assert!(since.elapsed() < PATIENCE, "no row came back from the cold tier in {PATIENCE:?}:\n{metrics}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let bytes = metric(&metrics, r#"table_bytes{server="0",table="shared"}"#);
    assert!(bytes <= MEMORY * 5 / 4, "{bytes} bytes where {MEMORY} are allowed");
    assert!(metric(&metrics, r#"table_ids_total{server="0",table="shared",what="evicted"}"#) > 0);
    assert!(metric(&metrics, r#"cold_rows_total{call="read",server="0"}"#) > 0);
    assert!(http_get(admin, "/readyz").starts_with("HTTP/1.1 200"));
    run.signal(Signal::INT);
    assert_eq!(run.finish().code(), Some(130));
    assert!(!fixture.path("cold/server-0").exists(), "the rows on disk outlived their server");
}

/// A metric of an embedding server, by name and labels.
fn metric(text: &str, name: &str) -> u64 {
    let value =
        text.lines().find_map(|line| line.strip_prefix("zagros_embedding_")?.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in\n{text}"))
}
