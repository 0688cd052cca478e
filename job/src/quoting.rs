//! Guesses the TOML of a value that lost brackets or quotes: shells make `{kind=dcnv2}` of `--set
//! model={kind="dcnv2"}`.

use crate::document::TomlNode;
use crate::error::SourceText;

/// The text with the missing brackets and quotes; `None` if it is no list or table, or stays invalid.
pub(crate) fn as_toml(text: &str) -> Option<String> {
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

    #[test]
    fn lists_get_brackets_and_words_quotes() {
        let meant = |text| as_toml(text).unwrap_or_default();
        assert_eq!(meant("64,32"), "[64,32]");
        assert_eq!(meant("C1, C2"), "[\"C1\", \"C2\"]");
        assert_eq!(meant("{kind=dcnv2}"), "{kind=\"dcnv2\"}");
        assert_eq!(
            meant("{kind = dcnv2, hidden = [64, 32], trust = true}"),
            "{kind = \"dcnv2\", hidden = [64, 32], trust = true}"
        );
        for text in ["", "fast", "{", "[[", "a=b", "{a}", "64,32]"] {
            assert_eq!(as_toml(text), None, "{text}");
        }
    }
}
