//! Suggestions: "did you mean".

use crate::document::{KeyPath, TomlNode, TomlValue};
use crate::error::SourceText;

/// Similarity (Jaro–Winkler, 0 to 1) above which a name counts as a misspelling of another.
const ALIKE: f64 = 0.8;

pub(crate) fn help_with_key(found: &str, known: &[&str]) -> String {
    help(found, known, "`", "the keys here are")
}

/// Help for a name that refers to nothing. `others` introduces the list of existing names.
pub(crate) fn help_with_name(found: &str, known: &[&str], others: &str) -> String {
    help(found, known, "\"", others)
}

/// Help for a setting with text in place of a list or table: `64,32`, `{kind=dcnv2}`.
pub(crate) fn help_with_setting(node: &TomlNode, path: &KeyPath) -> Option<String> {
    let TomlValue::Text(text) = &node.value else { return None };
    if node.at.source.file {
        return None;
    }
    let toml = as_toml(text)?;
    Some(format!("give the value as TOML, in single quotes for the shell: '{path}={toml}'"))
}

fn help(found: &str, known: &[&str], quote: &str, others: &str) -> String {
    match nearest_name(found, known) {
        Some(near) => format!("did you mean {quote}{near}{quote}?"),
        None => {
            let known: Vec<String> = known.iter().map(|name| format!("{quote}{name}{quote}")).collect();
            format!("{others} {}", known.join(", "))
        }
    }
}

#[must_use]
pub fn nearest_name<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let found = found.to_lowercase().replace('-', "_");
    let score = |name: &str| strsim::jaro_winkler(&found, &name.to_lowercase());
    let best = known.iter().map(|name| (score(name), *name)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= ALIKE).then_some(best.1)
}

/// Guesses the TOML of a value that lost brackets or quotes: shells make `{kind=dcnv2}` of `--set model={kind="dcnv2"}`. `None` if it is no list or table, or stays invalid.
fn as_toml(text: &str) -> Option<String> {
    let text = text.trim();
    let listed = if text.starts_with(['[', '{']) { text.to_owned() } else { format!("[{text}]") };
    if !listed.contains([',', '{', '[']) || text.is_empty() || (listed != text && !text.contains(',')) {
        return None;
    }
    let quoted = quote_words(&listed);
    TomlNode::parse(&SourceText::override_setting("", &format!("x={quoted}"))).ok().map(|_| quoted)
}

fn quote_words(text: &str) -> String {
    let mut quoted = String::new();
    let mut word = String::new();
    for c in text.chars() {
        if "[]{},=".contains(c) {
            quoted.push_str(&spaced(&word, c == '='));
            word.clear();
            quoted.push(c);
        } else {
            word.push(c);
        }
    }
    quoted + &word
}

/// A word between two signs, with the blanks around it.
fn spaced(text: &str, is_key: bool) -> String {
    let word = text.trim();
    let is_value = word.parse::<f64>().is_ok() || matches!(word, "true" | "false") || word.starts_with(['"', '\'']);
    if word.is_empty() || is_key || is_value {
        return text.to_owned();
    }
    text.replace(word, &format!("\"{word}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 5] = ["batch_size", "epochs", "staleness", "seed", "threads"];

    #[test]
    fn a_misspelling_is_recognised() {
        let found = ["batchsize", "Batch-Size", "epoch", "stalness"].map(|found| help_with_key(found, &KEYS));
        let meant = ["batch_size", "batch_size", "epochs", "staleness"].map(|meant| format!("did you mean `{meant}`?"));
        assert_eq!(found, meant);
    }

    #[test]
    fn something_else_gets_the_list() {
        assert_eq!(help_with_key("color", &["lr", "epsilon"]), "the keys here are `lr`, `epsilon`");
        assert_eq!(help_with_name("", &["sum", "mean"], "the choices are"), "the choices are \"sum\", \"mean\"");
    }

    #[test]
    fn lists_get_brackets_and_words_quotes() {
        let meant = |text| as_toml(text).unwrap_or_default();
        assert_eq!(meant("64,32"), "[64,32]");
        assert_eq!(meant("C1, C2"), "[\"C1\", \"C2\"]");
        assert_eq!(meant("{kind=dcnv2}"), "{kind=\"dcnv2\"}");
        let meant_table = meant("{kind = dcnv2, hidden = [64, 32], trust = true}");
        assert_eq!(meant_table, "{kind = \"dcnv2\", hidden = [64, 32], trust = true}");
        for text in ["", "fast", "{", "[[", "a=b", "{a}", "64,32]"] {
            assert_eq!(as_toml(text), None, "{text}");
        }
    }
}
