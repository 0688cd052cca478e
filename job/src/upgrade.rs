//! Keys that are no more. Job files in saved models, checkpoints and run folders keep them.

use crate::document::{Node, Value};

/// Paths of keys, `*` for any key of a table, and what is in the place of each.
const REMOVED: [(&str, &str); 1] =
    [("cluster.min_servers", "a run that loses a server for good is resumed from its newest checkpoint")];

/// Takes out keys that are no more. Returns a sentence for each.
pub(crate) fn apply(document: &mut Node) -> Vec<String> {
    let mut notes = Vec::new();
    for (path, now) in REMOVED {
        let path: Vec<&str> = path.split('.').collect();
        let mut removed = Vec::new();
        remove(document, &path, "", &mut removed);
        notes.extend(removed.into_iter().map(|key| format!("`{key}` has no effect any more: {now}")));
    }
    notes
}

/// Removes the values at `path` below `node`, and notes the path of each. `prefix` is the path of `node`, with a dot behind it.
fn remove(node: &mut Node, path: &[&str], prefix: &str, removed: &mut Vec<String>) {
    let (Value::Table(entries), Some((first, below))) = (&mut node.value, path.split_first()) else { return };
    entries.retain_mut(|entry| {
        if *first != "*" && entry.key != *first {
            return true;
        }
        let key = format!("{prefix}{}", entry.key);
        if below.is_empty() {
            removed.push(key);
            return false;
        }
        remove(&mut entry.node, below, &format!("{key}."), removed);
        true
    });
}
