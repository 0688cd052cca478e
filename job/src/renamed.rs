//! Keys that have another name now. Job files inside of checkpoints and saved models keep the earlier one.

use crate::document::{Node, Value};

/// Any key of a table whose keys the user chooses.
const ANY: &str = "*";

/// Path of a table, earlier name of one of its keys, name now.
const RENAMED: [(&[&str], &str, &str); 3] = [
    (&["cluster"], "patience_seconds", "timeout_seconds"),
    (&["embedding", "admission"], "sightings", "min_count"),
    (&["tables", ANY, "admission"], "sightings", "min_count"),
];

/// Renames each key with an earlier name. Returns a sentence for each. If a table has both keys, the earlier one stays, and the
/// check reports it as unknown.
pub(crate) fn apply(document: &mut Node) -> Vec<String> {
    let mut notes = Vec::new();
    for (tables, before, now) in RENAMED {
        rename(document, tables, "", (before, now), &mut notes);
    }
    notes
}

/// Renames a key in every table at the path `tables` below `node`. `prefix` is the path of `node`, with a dot behind it.
fn rename(node: &mut Node, tables: &[&str], prefix: &str, names: (&str, &str), notes: &mut Vec<String>) {
    let Value::Table(keys) = &mut node.value else { return };
    let Some((table, below)) = tables.split_first() else {
        let (before, now) = names;
        if keys.iter().any(|entry| entry.key == now) {
            return;
        }
        if let Some(entry) = keys.iter_mut().find(|entry| entry.key == before) {
            now.clone_into(&mut entry.key);
            notes.push(format!("`{prefix}{before}` is now `{prefix}{now}`"));
        }
        return;
    };
    for entry in keys.iter_mut().filter(|entry| *table == ANY || entry.key == *table) {
        let prefix = format!("{prefix}{}.", entry.key);
        rename(&mut entry.node, below, &prefix, names, notes);
    }
}
