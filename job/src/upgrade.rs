//! Keys that are no more, and keys with another name. Job files in saved models, checkpoints and run folders keep them.
//!
//! ```text
//! a value that means what a job without the key means  ─► goes in silence
//! any other value                                      ─► goes, and a sentence names what has its place
//! ```

use crate::document::{KeyEntry, KeyPath, TomlNode, TomlValue};
use crate::shape::TAG;

struct RemovedKey {
    /// The tables around the key, with dots; `*` is each entry of a table or each item of a list.
    tables: &'static str,
    key: &'static str,
    /// What has its place.
    now: &'static str,
    /// Whether a value means what a job without the key means; with the other keys of its table.
    is_same: fn(&TomlValue, &[KeyEntry]) -> bool,
}

const HALF_LIFE: &str = "after 10000 steps a use counts half. With another number, rows leave memory in another order";
const FAILURE: &str = "a count is too high by more than `error` with probability 0.01. With another one, some ids get \
                       their row earlier or later";

const REMOVED: [RemovedKey; 10] = [
    RemovedKey {
        tables: "cluster",
        key: "min_servers",
        now: "a run that loses a server for good is resumed from its newest checkpoint",
        is_same: |_, _| false,
    },
    RemovedKey {
        tables: "train",
        key: "lookahead",
        now: "a batch is hinted 2 batches before its lookup",
        is_same: |value, _| is_number(value, 2.0),
    },
    RemovedKey {
        tables: "train",
        key: "staleness_total",
        now: "each worker has `train.staleness`",
        is_same: |_, _| false,
    },
    RemovedKey {
        tables: "features.categorical.*",
        key: "pool_at",
        now: "rows are added up wherever fewer bytes are sent. Sums of the servers and of the worker differ by rounding",
        is_same: |value, keys| is_text(value, "auto") || keys.iter().any(|entry| entry.key == "weights"),
    },
    RemovedKey {
        tables: "eval",
        key: "group_samples",
        now: "GAUC is measured on at most 10,000,000 samples",
        is_same: |value, _| is_number(value, 10_000_000.0),
    },
    RemovedKey {
        tables: "output",
        key: "tensorboard",
        now: "TensorBoard events are always written",
        is_same: |value, _| matches!(value, TomlValue::Boolean(true)),
    },
    RemovedKey { tables: "embedding.evict", key: "half_life", now: HALF_LIFE, is_same: is_half_life },
    RemovedKey { tables: "tables.*.evict", key: "half_life", now: HALF_LIFE, is_same: is_half_life },
    RemovedKey { tables: "embedding.admission", key: "failure", now: FAILURE, is_same: is_failure },
    RemovedKey { tables: "tables.*.admission", key: "failure", now: FAILURE, is_same: is_failure },
];

fn is_half_life(value: &TomlValue, _: &[KeyEntry]) -> bool {
    is_number(value, 10_000.0)
}

/// Exact counts are never too high.
fn is_failure(value: &TomlValue, keys: &[KeyEntry]) -> bool {
    let is_sketch = keys.iter().any(|entry| entry.key == "counter" && is_text(&entry.node.value, "count_min"));
    !is_sketch || is_number(value, 0.01)
}

/// Numbers of job files are f32 at most, where they are no integers.
fn is_number(value: &TomlValue, expected: f64) -> bool {
    match value {
        TomlValue::Integer(integer) => *integer as f64 == expected,
        TomlValue::Float(number) => *number as f32 == expected as f32,
        _ => false,
    }
}

fn is_text(value: &TomlValue, expected: &str) -> bool {
    matches!(value, TomlValue::Text(text) if text == expected)
}

/// Keys of rows that lie in `eviction` now, and their names there. Each time to live is a key of `ttl`.
const EVICTION: [(&str, &str); 5] = [
    ("evict", "order"),
    ("small_norm", "small_norm"),
    ("victims", "target"),
    ("ttl_steps", "steps"),
    ("ttl_seconds", "seconds"),
];

/// Gathers the keys of [`EVICTION`]. A table of `[tables]` replaced single ones of `[embedding]`, or both times to live. It replaces the whole
/// `eviction` now, so it gets those that it did not replace.
fn gather_eviction(document: &mut TomlNode) {
    let mut common = Vec::new();
    for_each_table(document, &["embedding"], &KeyPath::default(), &mut |_, entries| {
        gather_keys(entries, &[]);
        if let Some(TomlValue::Table(keys)) = find_value(entries, "eviction") {
            common.clone_from(keys);
        }
    });
    for_each_table(document, &["tables", "*"], &KeyPath::default(), &mut |_, entries| gather_keys(entries, &common));
}

fn gather_keys(entries: &mut Vec<KeyEntry>, common: &[KeyEntry]) {
    let name = |entry: &KeyEntry| EVICTION.iter().find(|(old, _)| *old == entry.key).map(|(_, name)| *name);
    let Some(KeyEntry { key_at, node, .. }) = entries.iter().find(|entry| name(entry).is_some()).cloned() else {
        return;
    };
    let table = |key: &str, keys: Vec<KeyEntry>| KeyEntry {
        key: key.to_owned(),
        key_at: key_at.clone(),
        node: TomlNode { value: TomlValue::Table(keys), at: node.at.clone() },
    };
    let old: Vec<KeyEntry> = entries.extract_if(.., |entry| name(entry).is_some()).collect();
    let renamed = old.into_iter().map(|entry| KeyEntry { key: name(&entry).unwrap_or_default().to_owned(), ..entry });
    let (ages, mut keys): (Vec<_>, Vec<_>) =
        renamed.partition(|entry| matches!(entry.key.as_str(), "steps" | "seconds"));
    let has_ttl = !ages.is_empty();
    let ages: Vec<_> = ages.into_iter().filter(|age| !is_number(&age.node.value, 0.0)).collect();
    if !ages.is_empty() {
        keys.push(table("ttl", ages));
    }
    let given = |keys: &[KeyEntry], key: &str| keys.iter().any(|entry| entry.key == key) || has_ttl && key == "ttl";
    let inherited: Vec<_> = common.iter().filter(|entry| !given(&keys, &entry.key)).cloned().collect();
    keys.extend(inherited);
    match entries.iter_mut().find(|entry| entry.key == "eviction").map(|entry| &mut entry.node.value) {
        Some(TomlValue::Table(present)) => present.extend(keys),
        _ => entries.push(table("eviction", keys)),
    }
}

/// `counter` was a word, and the error of a sketch a key beside it.
fn describe_counter(entries: &mut Vec<KeyEntry>) {
    let errors: Vec<KeyEntry> = entries.extract_if(.., |entry| entry.key == "error").collect();
    let Some(counter) = entries.iter_mut().find(|entry| entry.key == "counter") else { return };
    let TomlValue::Text(word) = &counter.node.value else { return };
    let errors = errors.into_iter().filter(|_| word == "count_min");
    let kind = KeyEntry { key: TAG.to_owned(), ..counter.clone() };
    counter.node.value = TomlValue::Table(std::iter::once(kind).chain(errors).collect());
}

fn find_value<'a>(entries: &'a [KeyEntry], key: &str) -> Option<&'a TomlValue> {
    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node.value)
}

/// Takes out keys that are no more, and gives others their names of today. Returns a sentence for each that meant something else than a job without it.
pub(crate) fn upgrade_keys(document: &mut TomlNode) -> Vec<String> {
    let mut notes = Vec::new();
    for removed in &REMOVED {
        let steps: Vec<&str> = removed.tables.split('.').collect();
        for_each_table(document, &steps, &KeyPath::default(), &mut |path, entries| {
            let Some(place) = entries.iter().position(|entry| entry.key == removed.key) else { return };
            let value = entries.remove(place).node.value;
            if !(removed.is_same)(&value, entries) {
                notes.push(format!("`{}` has no effect any more: {}", path.key(removed.key), removed.now));
            }
        });
    }
    gather_eviction(document);
    for tables in [&["embedding", "admission"][..], &["tables", "*", "admission"]] {
        for_each_table(document, tables, &KeyPath::default(), &mut |_, entries| describe_counter(entries));
    }
    notes
}

fn for_each_table(
    node: &mut TomlNode,
    steps: &[&str],
    path: &KeyPath,
    act: &mut dyn FnMut(&KeyPath, &mut Vec<KeyEntry>),
) {
    match (steps, &mut node.value) {
        ([], TomlValue::Table(entries)) => act(path, entries),
        (["*", rest @ ..], TomlValue::Table(entries)) => {
            for KeyEntry { key, node, .. } in entries {
                for_each_table(node, rest, &path.key(key), act);
            }
        }
        (["*", rest @ ..], TomlValue::List(items)) => {
            for (index, item) in items.iter_mut().enumerate() {
                for_each_table(item, rest, &path.index(index), act);
            }
        }
        ([step, rest @ ..], TomlValue::Table(entries)) => {
            if let Some(entry) = entries.iter_mut().find(|entry| entry.key == *step) {
                for_each_table(&mut entry.node, rest, &path.key(step), act);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::SourceText;
    use crate::fixture::{CRITEO, DELIMITED, job};

    /// Keys of a saved job, as an earlier build wrote their defaults.
    const DEFAULTS: &str = "[features]\nlabel = 'y'\ncategorical = [{ column = 'a', separator = '|', pool_at = 'auto' }, \
        { column = 'b', separator = '|', weights = 'c', pool_at = 'worker' }]\n[train]\nlookahead = 2\n\
        [eval]\ngroup_samples = 10000000\n[output]\ntensorboard = true\n\
        [embedding]\nadmission = { kind = 'count', counter = 'exact', failure = 0.25 }\n\
        evict = { kind = 'lfu', half_life = 10000 }\n\
        [tables.a]\nadmission = { kind = 'count', counter = 'count_min', error = 0.125, failure = 0.009999999776482582 }\n";
    /// As they are written now, without the keys of which only the defaults were saved.
    const WITHOUT: &str = "[features]\nlabel = 'y'\ncategorical = [{ column = 'a', separator = '|' }, \
        { column = 'b', separator = '|', weights = 'c' }]\n\
        [embedding]\nadmission = { kind = 'count' }\neviction = { order = { kind = 'lfu' } }\n\
        [tables.a]\nadmission = { kind = 'count', counter = { kind = 'count_min', error = 0.125 } }\n";

    fn notes(text: &str) -> Vec<String> {
        upgrade_keys(&mut TomlNode::parse(&SourceText::job_file("job.toml", text)).unwrap())
    }

    #[test]
    fn values_that_every_job_has_now_go_in_silence() {
        assert_eq!(notes(DEFAULTS), [""; 0]);
        assert_eq!(job(DELIMITED, DEFAULTS), job(DELIMITED, WITHOUT));
    }

    #[test]
    fn other_values_load_and_say_what_has_their_place() {
        let text =
            DEFAULTS.replace("'auto'", "'server'").replace("lookahead = 2", "lookahead = 0\nstaleness_total = 9");
        let text = text.replace("10000000", "1000").replace("= true", "= false").replace("10000 }", "64 }");
        let text = text.replace("0.25", "0.5").replace("0.009999999776482582", "0.001");
        let found = notes(&text);
        let keys: Vec<&str> = found.iter().filter_map(|note| note.split('`').nth(1)).collect();
        let expected = "train.lookahead train.staleness_total features.categorical[0].pool_at eval.group_samples output.tensorboard \
            embedding.evict.half_life tables.a.admission.failure";
        assert_eq!(keys.join(" "), expected, "{found:?}");
        assert_eq!(job(DELIMITED, &text), job(DELIMITED, WITHOUT));
    }

    /// As saved jobs have them: every key with its default, or some of them.
    #[test]
    fn keys_of_eviction_become_one_table() {
        let defaults = "[embedding]\nttl_steps = 0\nttl_seconds = 0\nsmall_norm = 0.0\nvictims = 'cold'\nevict = { kind = 'lru' }\n";
        assert_eq!(notes(defaults), [""; 0]);
        assert_eq!(job(CRITEO, defaults), job(CRITEO, ""));
        let old = "[embedding]\nttl_steps = 7\nvictims = 'drop'\n[tables.C1]\nevict = { kind = 'lfu', half_life = 10000 }\n\
            [tables.C2]\nttl_seconds = 9\nsmall_norm = 0.5\n[tables.C3]\nttl_steps = 0\n[tables.C4]\nclip_norm = 1\n";
        let now = "[embedding]\neviction = { ttl = { steps = 7 }, target = 'drop' }\n\
            [tables.C1]\neviction = { order = { kind = 'lfu' }, ttl = { steps = 7 }, target = 'drop' }\n\
            [tables.C2]\neviction = { ttl = { seconds = 9 }, small_norm = 0.5, target = 'drop' }\n\
            [tables.C3]\neviction = { target = 'drop' }\n[tables.C4]\nclip_norm = 1\n";
        assert_eq!(notes(old), [""; 0]);
        assert_eq!(job(CRITEO, old), job(CRITEO, now));
    }
}
