//! How a source file looks.

use std::path::Path;

use zagros_tests::{repository, sources};

/// A file longer than this does more than one thing.
const LONGEST: usize = 500;

#[test]
fn every_file_says_what_it_is_for() {
    for (path, text) in sources(".") {
        assert!(text.starts_with("//! "), "{} must open with //!", path.display());
    }
}

#[test]
fn no_file_is_too_long() {
    for (path, text) in sources(".") {
        let lines = text.lines().count();
        assert!(lines <= LONGEST, "{} has {lines} lines, at most {LONGEST}: split it", path.display());
    }
}

#[test]
fn torch_is_named_in_one_folder() {
    for (path, text) in sources("dense-worker/src") {
        let inside = path.components().any(|part| part.as_os_str() == "model");
        let named = text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "tch");
        assert!(inside || !named, "{} names tch outside dense-worker/src/model", path.display());
    }
}

#[test]
fn nothing_is_left_unfinished_or_ignored() {
    // Written in two parts so that this file does not find itself.
    let marks = [concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("#[ig", "nore"), concat!("FIX", "ME")];
    for (path, text) in sources(".") {
        for mark in marks {
            assert!(!text.contains(mark), "{}: {mark}", path.display());
        }
    }
}

#[test]
fn between_a_third_and_a_half_of_the_lines_are_tests() {
    let (mut tests, mut all) = (0, 0);
    for (path, text) in sources(".") {
        let lines = text.lines().count();
        all += lines;
        // Unit tests close a file, so what follows the mark is test.
        let unit = text.lines().position(|line| line == "#[cfg(test)]").map_or(0, |start| lines - start);
        tests += if is_test_file(&path) { lines } else { unit };
    }
    let share = tests * 100 / all;
    assert!((33..=50).contains(&share), "{tests} of {all} lines are tests, {share} %");
}

/// Whole files of tests, and of what only tests use.
fn is_test_file(path: &Path) -> bool {
    let names = ["tests", "benches", "tests.rs", "testing", "testing.rs", "fixture.rs", "properties.rs"];
    let path = path.strip_prefix(repository()).unwrap_or(path);
    path.iter().any(|part| names.iter().any(|name| part == *name))
}
