//! ARCHITECTURE.md numbers the invariants; the code cites them where it enforces or breaks them.

use std::collections::BTreeSet;

use zagros_tests::{repository, sources};

fn numbers() -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
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
