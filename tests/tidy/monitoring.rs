//! Alerts, runbook, dashboards, and the page of metrics agree with each other.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use zagros_tests::{dashboard_queries, dashboards, prometheus_tool, read, repository};

/// What follows `mark` at the start of a line, once its spaces are gone.
fn texts_after<'a>(text: &'a str, mark: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix(mark)).collect()
}

fn alerts() -> BTreeSet<String> {
    let alerts: BTreeSet<String> =
        texts_after(&read("monitoring/rules/alerts.yml"), "- alert: ").into_iter().map(str::to_owned).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    alerts
}

fn promtool_tests() -> String {
    ["roles", "servers", "storage", "training"].map(|name| read(&format!("monitoring/tests/{name}.yml"))).concat()
}

/// Names of ours in an expression.
fn metrics(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.starts_with("zagros_") || word.starts_with("process_"))
}

#[test]
fn every_alert_has_an_entry_in_the_runbook_and_the_other_way_round() {
    let entries: BTreeSet<String> =
        texts_after(&read("docs/runbook.md"), "### Zagros").into_iter().map(|name| format!("Zagros{name}")).collect();
    assert_eq!(entries, alerts());
    let rules = read("monitoring/rules/alerts.yml");
    for alert in alerts() {
        let link = format!("runbook_url: docs/runbook.md#{}\n", alert.to_lowercase());
        assert!(rules.contains(&link), "{alert} lacks {link}");
    }
    for field in ["summary: ", "description: ", "labels: { severity: "] {
        assert_eq!(texts_after(&rules, field).len(), alerts().len(), "each alert has one {field:?}");
    }
}

#[test]
fn every_exit_code_has_an_entry_in_the_runbook() {
    let codes = read("docs/exit-codes.md");
    let codes = codes.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse::<u8>().ok());
    let runbook = read("docs/runbook.md");
    let mut found = 0;
    for code in codes.filter(|code| *code != 0) {
        found += 1;
        assert!(runbook.contains(&format!("### Exit code {code}\n")), "exit code {code} has no entry");
    }
    assert_eq!(found, 12);
}

/// An alert that is asked for only where it should be silent, or only where it should fire, is half tested.
#[test]
fn every_alert_is_tested_to_fire_and_not_to_fire() {
    let tests = promtool_tests();
    for alert in alerts() {
        let silent = format!("- {{ alertname: {alert}, eval_time: ");
        assert!(tests.contains(&format!("- alertname: {alert}\n")), "{alert} is not tested to fire");
        assert!(tests.contains(&silent), "{alert} is not tested to be silent");
    }
}

#[test]
fn rules_pass_their_tests() {
    let Some(promtool) = prometheus_tool("promtool") else { return };
    let run = |arguments: &[&str]| {
        let done = Command::new(&promtool).args(arguments).current_dir(repository()).output().expect("promtool starts");
        let said = [done.stdout, done.stderr].concat();
        assert!(done.status.success(), "promtool {arguments:?}:\n{}", String::from_utf8_lossy(&said));
    };
    run(&["check", "config", "monitoring/prometheus.yml"]);
    let tests = ["roles", "servers", "storage", "training"].map(|name| format!("monitoring/tests/{name}.yml"));
    run(&[&["test", "rules"], &tests.each_ref().map(String::as_str)[..]].concat());
}

#[test]
fn dashboards_are_what_their_description_makes() {
    let mut check = Command::new("python3");
    check.args(["scripts/dashboards.py", "--check"]).current_dir(repository());
    let done = check.output().expect("python3 starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn rules_and_dashboards_name_metrics_that_exist() {
    let page = read("docs/metrics.md");
    let families: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let known = |name: &str| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        families.contains(name) || histogram.is_some_and(|family| families.contains(family))
    };
    let queries =
        dashboards().into_iter().flat_map(|(_, dashboard)| dashboard_queries(&dashboard)).map(|(_, query)| query);
    let rules = ["recording", "alerts"].map(|name| read(&format!("monitoring/rules/{name}.yml")));
    let mut found = 0;
    for text in queries.chain(rules).chain([promtool_tests()]) {
        for name in metrics(&text) {
            found += 1;
            assert!(known(name), "{name} is not in docs/metrics.md");
        }
    }
    assert!(found > 150, "{found}");
}

#[test]
fn a_dashboard_has_what_grafana_and_people_need() {
    let mut uids = BTreeSet::new();
    for (name, dashboard) in dashboards() {
        assert!(uids.insert(dashboard["uid"].as_str().expect("a uid").to_owned()), "{name}");
        assert!(dashboard["schemaVersion"].as_u64() >= Some(39), "{name}");
        let variables = dashboard["templating"]["list"].as_array().expect("variables");
        let kinds: Vec<_> = variables.iter().map(|variable| (&variable["name"], &variable["type"])).collect();
        assert_eq!(kinds[0], (&Value::from("datasource"), &Value::from("datasource")), "{name}");
        assert!(kinds.contains(&(&Value::from("run"), &Value::from("query"))), "{name}");
        check_panels(&name, &dashboard);
    }
    let expected = ["cluster", "coordinator", "dense-worker", "embedding-server"].map(|uid| format!("zagros-{uid}"));
    assert_eq!(uids, expected.into_iter().collect());
}

#[track_caller]
fn check_panels(name: &str, dashboard: &Value) {
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{name}, {title}: the id is taken");
        let grid = &panel["gridPos"];
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| grid[key].as_u64().expect("a place"));
        assert!(x + w <= 24, "{name}, {title}: too wide");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(places.insert(place), "{name}, {title}: overlaps another at {place:?}");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{name}, {title}");
        assert!(!panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default().is_empty(), "{name}, {title}");
        let description = panel["description"].as_str().unwrap_or_default();
        assert!(description.len() > 8 && description.ends_with('.'), "{name}, {title}: {description:?}");
        assert!(!panel["targets"].as_array().expect("queries").is_empty(), "{name}, {title}");
    }
    for (title, query) in dashboard_queries(dashboard) {
        assert!(query.contains("$run"), "{name}, {title}: of all runs at once");
    }
}
