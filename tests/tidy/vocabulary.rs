//! One vocabulary: words that docs/glossary.md has retired name nothing any more.

use std::collections::BTreeMap;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use zagros_tests::{short, sources};

/// Words that no identifier has. An identifier `split_at` has the words `split` and `at`.
const RETIRED: [&str; 27] = [
    "baggage",
    "begun",
    "card",
    "cards",
    "cutter",
    "debt",
    "debts",
    "doorkeeper",
    "errand",
    "errands",
    "furthest",
    "haunt",
    "meeting",
    "meetings",
    "parcel",
    "parcels",
    "resolution",
    "seat",
    "seats",
    "sighted",
    "sighting",
    "standing",
    "standings",
    "team",
    "telling",
    "told",
    "unsettled",
];

/// Words that name no type and no file: in a sentence they have a plain sense.
const RETIRED_NAMES: [&str; 14] = [
    "apart",
    "course",
    "cut",
    "cuts",
    "elsewhere",
    "home",
    "marks",
    "pass",
    "passes",
    "rest",
    "settle",
    "tending",
    "together",
    "visit",
];

/// Words and phrases that no sentence needs, in any sense.
const UNWRITTEN: [&str; 18] = [
    "anybody",
    "baggage",
    "cutter",
    "doorkeeper",
    "errand",
    "errands",
    "everybody",
    "furthest",
    "left out",
    "meeting",
    "meetings",
    "nobody",
    "parcel",
    "seat",
    "somebody",
    "told",
    "unsettled",
    "whoever",
];

/// Files that name the retired words to retire them.
const EXEMPT: [&str; 3] = ["tests/tidy/vocabulary.rs", "docs/glossary.md", "CHANGELOG.md"];

fn is_exempt(path: &Path) -> bool {
    EXEMPT.iter().any(|exempt| path.ends_with(exempt))
}

/// By retired word: where it is, as `file: identifier`.
type Found = BTreeMap<&'static str, Vec<String>>;

fn total(found: &Found) -> usize {
    found.values().map(Vec::len).sum()
}

/// A few places of each word: enough to begin with.
fn summary(found: &Found) -> String {
    let line = |(word, places): (&&str, &Vec<String>)| {
        format!("{word} ({}): {}", places.len(), places.iter().take(4).cloned().collect::<Vec<_>>().join(", "))
    };
    found.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn identifiers(tokens: TokenStream, found: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(identifier) => found.push(identifier.to_string()),
            TokenTree::Group(group) => identifiers(group.stream(), found),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// `HTTPServerName2` and `http_server_name2` have the words `http`, `server`, `name2`.
fn words(identifier: &str) -> Vec<String> {
    let letters: Vec<char> = identifier.chars().collect();
    let mut words = vec![String::new()];
    for (at, letter) in letters.iter().enumerate() {
        let after_lower = at > 0 && letters[at - 1].is_lowercase();
        let before_lower = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        let in_upper = at > 0 && letters[at - 1].is_uppercase();
        if *letter == '_' || (letter.is_uppercase() && (after_lower || (in_upper && before_lower))) {
            words.push(String::new());
        }
        words.last_mut().expect("never empty").extend(letter.to_lowercase().filter(|letter| *letter != '_'));
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn no_identifier_has_a_retired_word() {
    let mut found = Found::new();
    for (path, text) in sources(".").into_iter().filter(|(path, _)| !is_exempt(path)) {
        let short = short(&path);
        let mut names = Vec::new();
        identifiers(text.parse().unwrap_or_else(|error| panic!("{short}: {error}")), &mut names);
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        names.extend(stem.clone());
        names.sort_unstable();
        names.dedup();
        for name in names.iter() {
            let names_something = stem.as_ref() == Some(name) || name.starts_with(char::is_uppercase);
            let of_names = RETIRED_NAMES.iter().filter(|_| names_something);
            for word in RETIRED.iter().chain(of_names).filter(|word| words(name).iter().any(|other| other == *word)) {
                found.entry(word).or_default().push(format!("{short}: {name}"));
            }
        }
    }
    assert!(found.is_empty(), "{} identifiers; docs/glossary.md has the terms:\n{}", total(&found), summary(&found));
}

#[test]
fn no_sentence_has_a_retired_word() {
    let mut found = Found::new();
    let files = sources(".")
        .into_iter()
        .chain(zagros_tests::files_that_end_in(".md"))
        .chain(zagros_tests::files_that_end_in(".proto"));
    for (path, text) in files.filter(|(path, _)| !is_exempt(path)) {
        let short = short(&path);
        for (number, line) in text.lines().enumerate() {
            for word in UNWRITTEN.iter().filter(|word| has_word(line, word)) {
                found.entry(word).or_default().push(format!("{short}:{}", number + 1));
            }
        }
    }
    assert!(found.is_empty(), "{} places; docs/glossary.md has the terms:\n{}", total(&found), summary(&found));
}

/// As a word of its own, however it is written.
fn has_word(line: &str, word: &str) -> bool {
    let line = line.to_lowercase();
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(start, _)| {
        let (before, after) = (line[..start].chars().next_back(), line[start + word.len()..].chars().next());
        !is_letter(before) && !is_letter(after)
    })
}

#[test]
fn words_are_found_in_every_style() {
    assert_eq!(words("HTTPServer_nameX"), ["http", "server", "name", "x"]);
    assert_eq!(words("is_LeftOut"), ["is", "left", "out"]);
    assert!(has_word("It is Told.", "told") && !has_word("untold", "told") && !has_word("told_by", "told"));
}
