//! How a source file looks, and what none may contain.

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

/// Folders that carry ids, rows or gradients. `Iterator::zip` hides a missing item there: sequences are paired by `zip_eq`, which
/// refuses two that differ in length (invariant DP-2).
const CHECKED: &[&str] =
    &["protocol", "plumbing/src/grpc", "embedding-server/src", "embedding-server/client", "embedding-server/tests"];

#[test]
fn the_data_path_pairs_only_sequences_of_equal_length() {
    // Written in two parts so that this file does not find itself.
    let banned = [concat!(".zi", "p("), concat!("iter::zi", "p")];
    for folder in CHECKED {
        for (path, text) in sources(folder) {
            for (number, line) in text.lines().enumerate() {
                let found = banned.iter().find(|banned| line.contains(**banned));
                let line = number + 1;
                assert!(
                    found.is_none(),
                    "{}:{line}: zip ends with the shorter one; use zip_eq of zagros-zip",
                    path.display()
                );
            }
        }
    }
}

/// Durations, which Rust writes as a person does: `3.2s`.
const DURATIONS: [&str; 5] = ["silence", "pause", "timeout", "idle", "TIMEOUT"];
const CALLS: [&str; 5] = ["trace!(", "debug!(", "info!(", "warn!(", "error!("];

/// Fields of the log calls in a text that are written as Rust's debug output.
fn debug_fields(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (start, call) in CALLS.iter().flat_map(|call| text.match_indices(call)) {
        let arguments = &text[start + call.len()..];
        let end = arguments.find(");").unwrap_or(arguments.len());
        // Before the message, which may ask something.
        let fields = arguments[..end].split('"').next().unwrap_or_default();
        let debug = fields.split(',').filter_map(|field| field.split_once('?').map(|(_, name)| name.trim()));
        found.extend(debug.filter(|name| !DURATIONS.contains(name)).map(str::to_owned));
    }
    found
}

/// Log lines are words and numbers: what a type looks like to its author is no reader's business.
#[test]
fn no_log_line_shows_how_a_type_is_written() {
    for (path, text) in sources(".") {
        let found = debug_fields(&text);
        assert!(found.is_empty() || path.ends_with("tidy/sources.rs"), "{}: Debug output of {found:?}", path.display());
    }
}

#[test]
fn debug_fields_are_found_over_several_lines() {
    let text = "info!(server = 1, ?ended, \"stopping\"); warn!(\n    ?silence,\n    error = ?error,\n    \"why?\"\n);";
    assert_eq!(debug_fields(text), ["ended", "error"]);
    assert_eq!(debug_fields("warn!(%error, \"why?\");"), [""; 0]);
}

/// The only crate that makes servers and channels. Tests of other crates may.
const DOOR: &str = "protocol/transport/src/proof";

/// Every gRPC port asks for proof of membership (invariant MB-7): no other crate makes a server or a channel of its own.
#[test]
fn servers_and_channels_are_made_behind_the_proof_alone() {
    let mut doors = 0;
    for folder in ["cli", "coordinator", "dense-worker", "embedding-server", "k8s", "plumbing", "protocol", "python"] {
        for (path, text) in sources(folder) {
            let path = path.display().to_string();
            if path.contains("/tests/") || path.contains("/benches/") || path.contains("/generated/") {
                continue;
            }
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let makers = [
                "grpc::server_builder()",
                "grpc::channel_endpoint(",
                "connect_lazy()",
                "Endpoint::from",
                "transport::Server;",
            ];
            let found = makers.into_iter().find(|maker| code.contains(maker));
            let is_door = path.contains(DOOR) || path.ends_with("plumbing/src/grpc.rs");
            assert!(found.is_none() || is_door, "{path} has {found:?}: use zagros_transport::serve and open_channel");
            doors += usize::from(found.is_some());
        }
    }
    assert_eq!(doors, 1 + 1, "the check finds what is there");
}
