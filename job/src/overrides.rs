//! Settings that override the job file: `--set train.seed=3`, and `ZAGROS__TRAIN__SEED=3` in the environment.

use std::ffi::OsString;
use std::sync::Arc;

use crate::document::{KeyEntry, TomlNode, TomlValue};
use crate::error::{JobProblem, SourcePlace, SourceText};

pub const ENVIRONMENT_PREFIX: &str = "ZAGROS__";

/// Settings of the environment apply first, so arguments win. All are checked like the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Arguments `key=value`. The key is dotted as in TOML. The value is TOML; if it does not parse, it is text.
    sets: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Overrides {
    pub fn none() -> Self {
        Self::default()
    }

    /// `sets` are the values of `--set`. Of `environment` (`std::env::vars_os()`), the variables with
    /// [`ENVIRONMENT_PREFIX`] count. Their names are read in lower case, so a key with capitals, such as the name of a
    /// table, needs `--set`.
    pub fn new(sets: Vec<String>, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let ours = |(name, value): (OsString, OsString)| {
            let name = name.into_string().ok().filter(|name| name.starts_with(ENVIRONMENT_PREFIX))?;
            Some((name, value.to_string_lossy().into_owned()))
        };
        let mut environment: Vec<_> = environment.into_iter().filter_map(ours).collect();
        environment.sort();
        Self { sets, environment }
    }

    pub fn sets<S: Into<String>>(sets: impl IntoIterator<Item = S>) -> Self {
        Self { sets: sets.into_iter().map(Into::into).collect(), environment: Vec::new() }
    }

    pub(crate) fn apply(&self, root: &mut TomlNode) -> Result<(), Vec<JobProblem>> {
        let environment = self.environment.iter().map(|(name, value)| from_environment(name, value));
        let arguments =
            self.sets.iter().map(|argument| OverrideSetting::parse(&SourceText::override_setting("--set", argument)));
        let mut problems = Vec::new();
        for setting in environment.chain(arguments) {
            match setting {
                Ok(setting) => put(root, &setting.keys, setting.value),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

struct OverrideSetting {
    keys: Vec<(String, SourcePlace)>,
    value: TomlNode,
}

impl OverrideSetting {
    fn parse(source: &Arc<SourceText>) -> Result<Self, JobProblem> {
        let text = source.text();
        let split = equals_sign(text).ok_or_else(|| malformed(source, "has no `=`"))?;
        let keys = keys(source, split).ok_or_else(|| malformed(source, "has no key before `=`"))?;
        Ok(Self { value: value(source, split + 1, keys.len()), keys })
    }
}

fn from_environment(name: &str, value: &str) -> Result<OverrideSetting, JobProblem> {
    let key = name.strip_prefix(ENVIRONMENT_PREFIX).unwrap_or(name).to_lowercase().replace("__", ".");
    OverrideSetting::parse(&SourceText::override_setting(
        &format!("environment variable {name}"),
        &format!("{key}={value}"),
    ))
}

fn malformed(source: &Arc<SourceText>, why: &str) -> JobProblem {
    let place = SourcePlace { source: Arc::clone(source), span: 0..source.text().len() };
    JobProblem::new(format!("setting `{}` {why}", source.text()))
        .at_place(place, "here")
        .help("write it like train.seed=3")
}

fn equals_sign(text: &str) -> Option<usize> {
    let mut quote = None;
    for (position, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (None, b'=') => return Some(position),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), byte) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

fn keys(source: &Arc<SourceText>, split: usize) -> Option<Vec<(String, SourcePlace)>> {
    let probe = SourceText::override_setting("", &format!("{}=0", &source.text()[..split]));
    let mut node = TomlNode::parse(&probe).ok()?;
    let mut keys = Vec::new();
    while let TomlValue::Table(entries) = node.value {
        let [entry] = <[KeyEntry; 1]>::try_from(entries).ok()?;
        // The probe starts with the same text, so its spans fit the source.
        keys.push((entry.key, SourcePlace { source: Arc::clone(source), span: entry.key_at.span }));
        node = entry.node;
    }
    Some(keys)
}

/// The value after the `=`: TOML if it parses, otherwise text. Paths and words therefore need no quotes.
fn value(source: &Arc<SourceText>, start: usize, depth: usize) -> TomlNode {
    let text = &source.text()[start..];
    let place = SourcePlace { source: Arc::clone(source), span: start..source.text().len() };
    let only = |node: TomlNode| match node.value {
        TomlValue::Table(entries) => <[KeyEntry; 1]>::try_from(entries).ok().map(|[entry]| entry.node),
        _ => None,
    };
    let parsed = (0..depth).try_fold(TomlNode::parse(source).ok(), |node, _| node.and_then(only).map(Some));
    parsed.flatten().unwrap_or_else(|| TomlNode { value: TomlValue::Text(text.to_owned()), at: place })
}

/// Replaces the value at a dotted key. Makes missing tables on the way, in place of other values.
fn put(node: &mut TomlNode, keys: &[(String, SourcePlace)], value: TomlNode) {
    let [(key, key_at), rest @ ..] = keys else {
        *node = value;
        return;
    };
    if !matches!(node.value, TomlValue::Table(_)) {
        *node = TomlNode { value: TomlValue::Table(Vec::new()), at: key_at.clone() };
    }
    let TomlValue::Table(entries) = &mut node.value else { return };
    let position = entries.iter().position(|entry| entry.key == *key).unwrap_or_else(|| {
        let node = TomlNode { value: TomlValue::Table(Vec::new()), at: key_at.clone() };
        entries.push(KeyEntry { key: key.clone(), key_at: key_at.clone(), node });
        entries.len() - 1
    });
    put(&mut entries[position].node, rest, value);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const FILE: &str = "name = 'a'\n[train]\nseed = 1\nepochs = 2\n[model]\nkind = 'ffnn'\nhidden = [1]\n";

    fn applied(overrides: &Overrides) -> Result<serde_json::Value, Vec<String>> {
        let mut root = TomlNode::parse(&SourceText::job_file("job.toml", FILE)).unwrap();
        let result = overrides.apply(&mut root);
        result.map(|()| root.to_json()).map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    fn set(setting: &str) -> serde_json::Value {
        applied(&Overrides::sets([setting])).unwrap()
    }

    #[test]
    fn a_value_is_toml_when_it_parses_and_text_when_not() {
        assert_eq!(set("train.seed=3")["train"], json!({"seed": 3, "epochs": 2}));
        assert_eq!(set("train.seed = 0x10")["train"]["seed"], json!(16));
        assert_eq!(set("data.train=/a/b c=d.txt")["data"]["train"], json!("/a/b c=d.txt"));
        assert_eq!(set("data.train=['x', \"y\"]")["data"]["train"], json!(["x", "y"]));
        assert_eq!(set("train.mode=sync")["train"]["mode"], json!("sync"));
        assert_eq!(set("name=")["name"], json!(""));
    }

    #[test]
    fn a_table_replaces_the_old_one_and_a_dotted_key_changes_one_value() {
        assert_eq!(set("model={kind='dlrm'}")["model"], json!({"kind": "dlrm"}));
        assert_eq!(set("model.kind=dlrm")["model"], json!({"kind": "dlrm", "hidden": [1]}));
        assert_eq!(set("tables.'a.b'.dim=4")["tables"], json!({"a.b": {"dim": 4}}));
    }

    #[test]
    fn a_setting_cannot_smuggle_in_another() {
        assert_eq!(set("train.seed=3\nepochs=9")["train"], json!({"seed": "3\nepochs=9", "epochs": 2}));
    }

    #[test]
    fn arguments_win_over_the_environment() {
        let environment = [("ZAGROS__TRAIN__SEED", "5"), ("ZAGROS__TRAIN__EPOCHS", "7"), ("HOME", "/root")];
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        let found = applied(&Overrides::new(vec!["train.seed=6".to_owned()], environment)).unwrap();
        assert_eq!(found["train"], json!({"seed": 6, "epochs": 7}));
    }

    #[test]
    fn malformed_settings_are_all_named() {
        let found = applied(&Overrides::sets(["train.seed", "=3", "a b=1"])).unwrap_err();
        let expected = [
            "setting `train.seed` has no `=`",
            "setting `=3` has no key before `=`",
            "setting `a b=1` has no key before `=`",
        ];
        assert_eq!(found, expected);
    }

    proptest! {
        #[test]
        fn no_text_panics(setting in r#"[a-c."'= \[\]{}0-9\n\\é]{0,24}"#) {
            let _ = applied(&Overrides::sets([setting]));
        }
    }
}
