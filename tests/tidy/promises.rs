//! Tables of promises in docs: each test that they name exists. ARCHITECTURE.md numbers the invariants; the code cites them where it
//! enforces or breaks them.
//! The committed code of messages and services is what the proto files generate (docs/adr/0002).
//! The cluster of containers ends as `zagros up` does: compose stops a service before those that it depends on.

use std::collections::BTreeSet;
use std::{env, fs};

use serde_json::Value;
use zagros_tests::{files_that_end_in, read, repository, sources};

/// Pages with tables of faults, promises and tests.
const PAGES: [&str; 2] = ["docs/reliability.md", "docs/security.md"];
const FEWEST: usize = 30;

#[test]
fn every_fault_in_the_docs_names_a_test_that_exists() {
    let tests = tests_of_all_crates();
    let mut faults = 0;
    for (path, text) in files_that_end_in(".md") {
        let path = path.display().to_string();
        if !PAGES.iter().any(|page| path.ends_with(page)) {
            continue;
        }
        for row in rows_with_tests(&text) {
            let names: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
            assert!(!names.is_empty() || row.trim() == "the same", "{path}: a fault without a test: {row}");
            for name in names {
                assert!(tests.contains(name), "{path} names the test {name}, which does not exist");
            }
            faults += 1;
        }
    }
    assert!(faults >= FEWEST, "only {faults} faults have a promise and a test");
}

/// The last cells of the rows of tables whose last column is `test`.
fn rows_with_tests(text: &str) -> Vec<&str> {
    let mut rows = Vec::new();
    let mut is_table = false;
    for line in text.lines() {
        let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        if !line.starts_with('|') {
            is_table = false;
        } else if last.trim() == "test" {
            is_table = true;
        } else if is_table && !last.trim().starts_with("--") {
            rows.push(last);
        }
    }
    rows
}

/// Names of functions that are tests: a `#[test]` or `#[tokio::test]` stands above them.
pub(crate) fn tests_of_all_crates() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, text) in sources(".") {
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some(name) = line.split("fn ").nth(1).filter(|_| is_test) {
                names.extend(name.split('(').next().map(str::to_owned));
                is_test = false;
            }
        }
    }
    names
}

fn numbers() -> BTreeSet<String> {
    let text = read("ARCHITECTURE.md");
    let bold = text.lines().filter_map(|line| line.strip_prefix("- **")?.split_once("**"));
    bold.map(|(number, _)| number.to_owned()).filter(|number| number.contains('-')).collect()
}

#[test]
fn every_invariant_is_cited_in_code() {
    let numbers = numbers();
    assert!(numbers.len() >= 10, "found {numbers:?}");
    let all: Vec<String> = sources(".").into_iter().map(|(_, text)| text).collect();
    for number in &numbers {
        assert!(all.iter().any(|text| text.contains(number.as_str())), "{number} is cited nowhere");
    }
}

#[test]
fn every_citation_exists() {
    let numbers = numbers();
    let prefixes: BTreeSet<&str> = numbers.iter().filter_map(|number| number.split('-').next()).collect();
    for (path, text) in sources(".") {
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
            let Some((prefix, digits)) = word.split_once('-') else { continue };
            let is_citation = prefixes.contains(prefix) && digits.chars().all(|c| c.is_ascii_digit());
            assert!(!is_citation || numbers.contains(word), "{}: {word} is not in ARCHITECTURE.md", path.display());
        }
    }
}

/// By their paths from the folder `protocol` on: messages, then services.
const GENERATED_FILES: [(&str, &str); 4] = [
    ("generated/zagros.control.v1.rs", include_str!(concat!(env!("OUT_DIR"), "/messages/zagros.control.v1.rs"))),
    ("generated/zagros.datapath.v1.rs", include_str!(concat!(env!("OUT_DIR"), "/messages/zagros.datapath.v1.rs"))),
    (
        "transport/generated/zagros.control.v1.rs",
        include_str!(concat!(env!("OUT_DIR"), "/services/zagros.control.v1.rs")),
    ),
    (
        "transport/generated/zagros.datapath.v1.rs",
        include_str!(concat!(env!("OUT_DIR"), "/services/zagros.datapath.v1.rs")),
    ),
];

/// `UPDATE_PROTO=1` writes it anew.
#[test]
fn committed_code_is_what_the_proto_files_generate() {
    for (path, code) in GENERATED_FILES {
        let path = repository().join("protocol").join(path);
        if env::var_os("UPDATE_PROTO").is_some() {
            fs::write(&path, code).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == code,
            "{} is not what protocol/proto generates: run UPDATE_PROTO=1 cargo test --release -p zagros-tests -- tidy::messages",
            path.display()
        );
    }
}

fn services() -> Vec<(String, Value)> {
    let file: Value = serde_saphyr::from_str(&read("docker/compose.yaml")).expect("it is YAML");
    let services = file["services"].as_object().expect("it has services");
    services.iter().map(|(name, service)| (name.clone(), service.clone())).collect()
}

#[test]
fn containers_end_in_the_order_of_workers_servers_coordinator() {
    let services = services();
    let is_role = |name: &str| name.starts_with("server-") || name == "coordinator";
    let needed = |of: &str| -> Vec<&str> {
        let roles = services.iter().map(|(name, _)| name.as_str()).filter(|name| is_role(name));
        roles.filter(|name| if of.starts_with("worker-") { true } else { *name == "coordinator" }).collect()
    };
    let roles: Vec<_> =
        services.iter().filter(|(name, _)| name.starts_with("worker-") || name.starts_with("server-")).collect();
    assert_eq!(roles.len(), 5, "three servers and two workers");
    for (name, service) in roles {
        for other in needed(name) {
            let condition = service["depends_on"][other]["condition"].as_str();
            assert_eq!(condition, Some("service_started"), "{name} does not depend on {other}");
        }
    }
}

/// Half a minute is killed in the midst of a checkpoint of large tables.
#[test]
fn every_role_has_the_time_that_a_checkpoint_may_take() {
    for (name, service) in services() {
        if name.starts_with("worker-") || name.starts_with("server-") || name == "coordinator" {
            let grace = service["stop_grace_period"].as_str();
            assert_eq!(grace, Some("${ZAGROS_STOP_GRACE:-10m}"), "{name}");
        }
    }
}

/// What a role needs to come back is on a volume. A role that has ended well is not started again.
#[test]
fn roles_come_back_with_what_they_had_and_not_after_their_end() {
    let services = services();
    for (name, limit) in [("coordinator", 3), ("server-0", 10), ("worker-0", 3)] {
        let (_, service) = services.iter().find(|(service, _)| service == name).expect("the role is there");
        assert_eq!(service["restart"].as_str(), Some(format!("on-failure:{limit}").as_str()), "{name}");
        let volumes = service["volumes"].as_array().expect("it has volumes");
        assert!(volumes.iter().any(|volume| volume == "runs:/runs"), "{name}");
    }
    let (_, coordinator) = services.iter().find(|(name, _)| name == "coordinator").expect("the role is there");
    let command: Vec<&str> =
        coordinator["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert!(command.windows(2).any(|words| words == ["--journal", "/runs/journal"]), "{command:?}");
    let job = read("docker/job.toml");
    assert!(job.contains("durability = \"process\"\nlog_folder = \"/runs/"), "{job}");
}
