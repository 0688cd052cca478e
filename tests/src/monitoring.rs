//! What the tests of `monitoring/` share: Prometheus' programs, and the dashboards.

use std::path::PathBuf;

use serde_json::Value;

/// `prometheus` or `promtool`, or `None` after saying that the test skips. With `CI=true` a missing one is a failure.
pub fn prometheus_tool(name: &str) -> Option<PathBuf> {
    let path = super::repository().join(".deps/prometheus").join(name);
    if path.exists() {
        return Some(path);
    }
    let needed = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!needed, "CI needs {name} in .deps/prometheus: sh scripts/fetch_prometheus.sh");
    eprintln!("skipped: no {name} in .deps/prometheus (sh scripts/fetch_prometheus.sh)");
    None
}

/// The committed dashboards by name, at least one.
pub fn dashboards() -> Vec<(String, Value)> {
    let folder = super::repository().join("monitoring/grafana/dashboards");
    let mut found: Vec<(String, Value)> = std::fs::read_dir(folder)
        .expect("there are dashboards")
        .map(|entry| {
            let path = entry.expect("readable").path();
            let text = std::fs::read_to_string(&path).expect("a dashboard is UTF-8");
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            (name, serde_json::from_str(&text).expect("a dashboard is JSON"))
        })
        .collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(!found.is_empty(), "no dashboards");
    found
}
