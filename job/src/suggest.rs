//! Suggestions: "did you mean".

use crate::document::{KeyPath, TomlNode, TomlValue};

/// Similarity (Jaro–Winkler, 0 to 1) above which a name counts as a misspelling of another.
const ALIKE: f64 = 0.8;

pub(crate) fn help_with_key(found: &str, known: &[&str]) -> String {
    help(found, known, "`", "the keys here are")
}

/// Help for a name that refers to nothing. `others` introduces the list of existing names.
pub(crate) fn help_with_name(found: &str, known: &[&str], others: &str) -> String {
    help(found, known, "\"", others)
}

/// Help for a setting with text in place of a list or table: `64,32`, or `{kind=dcnv2}`, of which the shell took the quotes.
pub(crate) fn help_with_setting(node: &TomlNode, path: &KeyPath) -> Option<String> {
    let TomlValue::Text(text) = &node.value else { return None };
    let is_list_or_table = !node.at.source.file && text.contains([',', '{', '[']);
    is_list_or_table.then(|| {
        format!("give the value as TOML, in single quotes for the shell, such as '{path}=[64, 32]' or '{path}={{ key = \"word\" }}'")
    })
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

pub fn nearest_name<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let found = found.to_lowercase().replace('-', "_");
    let score = |name: &str| strsim::jaro_winkler(&found, &name.to_lowercase());
    let best = known.iter().map(|name| (score(name), *name)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= ALIKE).then_some(best.1)
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
}
