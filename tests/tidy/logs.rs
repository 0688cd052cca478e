//! Log lines are words and numbers: what a type looks like to its author is no reader's business.

use zagros_tests::sources;

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

#[test]
fn no_log_line_shows_how_a_type_is_written() {
    for (path, text) in sources(".") {
        let found = debug_fields(&text);
        assert!(found.is_empty() || path.ends_with("tidy/logs.rs"), "{}: Debug output of {found:?}", path.display());
    }
}

#[test]
fn debug_fields_are_found_over_several_lines() {
    let text = "info!(server = 1, ?ended, \"stopping\"); warn!(\n    ?silence,\n    error = ?error,\n    \"why?\"\n);";
    assert_eq!(debug_fields(text), ["ended", "error"]);
    assert_eq!(debug_fields("warn!(%error, \"why?\");"), [""; 0]);
}
