//! Keys that are no more. Job files in saved models, checkpoints and run folders keep them.

use crate::document::{TomlNode, TomlValue};

const REMOVED: [(&str, &str, &str); 1] =
    [("cluster", "min_servers", "a run that loses a server for good is resumed from its newest checkpoint")];

/// Takes out keys that are no more. Returns a sentence for each.
pub(crate) fn remove_keys(document: &mut TomlNode) -> Vec<String> {
    let TomlValue::Table(tables) = &mut document.value else { return Vec::new() };
    let mut notes = Vec::new();
    for (table, key, now) in REMOVED {
        let found = tables.iter_mut().find(|entry| entry.key == table);
        let Some(TomlValue::Table(entries)) = found.map(|entry| &mut entry.node.value) else { continue };
        if let Some(place) = entries.iter().position(|entry| entry.key == key) {
            entries.remove(place);
            notes.push(format!("`{table}.{key}` has no effect any more: {now}"));
        }
    }
    notes
}
