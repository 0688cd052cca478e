//! The repository's files, and what lies beside them: real data, Prometheus' programs.

use std::path::{Path, PathBuf};

use serde_json::Value;

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the checkout").to_owned()
}

/// The text of a file of the checkout.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A path as seen from the checkout.
pub fn short(path: &Path) -> String {
    path.strip_prefix(repository()).unwrap_or(path).display().to_string()
}

/// Rust files below a folder of the checkout, with their text; built, downloaded and generated folders skipped.
pub fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    files_in(folder, ".rs")
}

/// Files of the checkout whose name ends so, with their text; built, downloaded and generated folders skipped.
pub fn files_that_end_in(ending: &str) -> Vec<(PathBuf, String)> {
    files_in(".", ending)
}

fn files_in(folder: &str, ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let root = repository();
    let mut folders = vec![if folder == "." { root } else { root.join(folder) }];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the checkout is readable") {
            let path = entry.expect("an entry is readable").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir()
                && !name.starts_with('.')
                && !["target", "data", "runs", "generated"].contains(&name.as_str())
            {
                folders.push(path);
            } else if name.ends_with(ending) {
                let text = std::fs::read_to_string(&path).expect("a source file is UTF-8");
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "no file {ending} below {folder}");
    found
}

/// A real data set, which is not part of the checkout.
pub fn real_data(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("ZAGROS_DATA").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| repository().join("../shared/data"));
    find_or_skip(&folder, name, "set ZAGROS_DATA to the folder that has it")
}

/// `prometheus` or `promtool`.
pub fn prometheus_tool(name: &str) -> Option<PathBuf> {
    find_or_skip(&repository().join(".deps/prometheus"), name, "sh scripts/fetch_prometheus.sh")
}

/// `None` after saying that the test skips. With `CI=true` what is missing is a failure, so that CI cannot turn green by
/// testing nothing.
fn find_or_skip(folder: &Path, name: &str, help: &str) -> Option<PathBuf> {
    let path = folder.join(name);
    if path.exists() {
        return Some(path);
    }
    let needed = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!needed, "CI needs {name} in {} ({help})", folder.display());
    eprintln!("skipped: no {name} in {} ({help})", folder.display());
    None
}

/// The committed dashboards by name, at least one.
pub fn dashboards() -> Vec<(String, Value)> {
    let folder = repository().join("monitoring/grafana/dashboards");
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

/// Title of its panel and expression of every query of a dashboard.
pub fn dashboard_queries(dashboard: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array();
        for target in targets.into_iter().flatten() {
            found.push((title.clone(), target["expr"].as_str().expect("an expression").to_owned()));
        }
    }
    found
}
