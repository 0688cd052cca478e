//! Tables of promises in docs: each test that they name exists. ARCHITECTURE.md numbers the invariants; the code cites them where it
//! enforces or breaks them.

use std::collections::BTreeSet;

use zagros_tests::{files_that_end_in, read, sources};

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
