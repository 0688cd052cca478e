//! Keys that have another name now. Job files inside of checkpoints and saved models keep the earlier one.

use crate::document::{Node, Value};

/// Section, earlier name, name now.
const RENAMED: [(&str, &str, &str); 1] = [("cluster", "patience_seconds", "timeout_seconds")];

/// Gives each key of an earlier name its name of now; a sentence for each. A document that has both keys keeps the earlier one, which
/// the check then reports as unknown.
pub(crate) fn apply(document: &mut Node) -> Vec<String> {
    let renamed = RENAMED.into_iter().filter(|(section, before, now)| rename(document, section, before, now));
    renamed.map(|(section, before, now)| format!("`{section}.{before}` is now `{section}.{now}`")).collect()
}

fn rename(document: &mut Node, section: &str, before: &str, now: &str) -> bool {
    let Value::Table(sections) = &mut document.value else { return false };
    let Some(section) = sections.iter_mut().find(|entry| entry.key == section) else { return false };
    let Value::Table(keys) = &mut section.node.value else { return false };
    if keys.iter().any(|entry| entry.key == now) {
        return false;
    }
    let Some(entry) = keys.iter_mut().find(|entry| entry.key == before) else { return false };
    now.clone_into(&mut entry.key);
    true
}
