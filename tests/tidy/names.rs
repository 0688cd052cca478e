//! A name says what it names: few types share theirs with another module's, and no function and no local is a
//! preposition.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};
use zagros_tests::{short, sources};

use super::syntax::crates;

const MOST: usize = 10;

const PREPOSITIONS: [&str; 25] = [
    "about", "above", "after", "against", "ahead", "apart", "around", "as", "at", "before", "beside", "between",
    "beyond", "by", "for", "in", "of", "on", "over", "to", "together", "under", "with", "within", "without",
];

#[test]
fn few_types_share_their_name() {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for name in crates().iter().flat_map(|syntax| syntax.modules.values()).flat_map(|module| &module.types) {
        *count.entry(name.clone()).or_default() += 1;
    }
    let all: usize = count.values().sum();
    assert!(all > 500, "the check sees types: {all}");
    let shared: BTreeMap<&String, &usize> = count.iter().filter(|(_, count)| **count > 1).collect();
    let sharing: usize = shared.values().copied().sum();
    assert!(
        sharing * 100 <= all * MOST,
        "{sharing} of {all} types share their name, at most {MOST} %: give each a second word: {shared:?}"
    );
}

#[derive(Default)]
struct FoundNames {
    functions: Vec<String>,
    locals: Vec<String>,
}

impl FoundNames {
    fn read(&mut self, tokens: TokenStream) {
        let mut keyword = String::new();
        for token in tokens {
            match token {
                TokenTree::Ident(name) if name == "mut" && keyword == "let" => {}
                TokenTree::Ident(name) => {
                    match keyword.as_str() {
                        "fn" => self.functions.push(name.to_string()),
                        "let" => self.locals.push(name.to_string()),
                        _ => {}
                    }
                    keyword = name.to_string();
                }
                TokenTree::Group(group) => {
                    self.read(group.stream());
                    keyword.clear();
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => keyword.clear(),
            }
        }
    }
}

fn prepositions(names: &[String]) -> Vec<&String> {
    names.iter().filter(|name| PREPOSITIONS.contains(&name.as_str())).collect()
}

#[test]
fn no_function_and_no_local_is_named_by_a_preposition() {
    let (mut all, mut found) = (0, Vec::new());
    for (path, text) in sources(".") {
        let short = short(&path);
        let mut names = FoundNames::default();
        names.read(text.parse().unwrap_or_else(|error| panic!("{short}: {error}")));
        all += names.functions.len() + names.locals.len();
        let named = [prepositions(&names.functions), prepositions(&names.locals)].concat();
        found.extend(named.into_iter().map(|name| format!("{short}: {name}")));
    }
    assert!(all > 10_000, "the check sees names: {all}");
    assert!(found.is_empty(), "{} names; say what each does or holds:\n{}", found.len(), found.join("\n"));
}

#[test]
fn names_are_found_behind_their_keywords() {
    let mut names = FoundNames::default();
    names.read("fn of(at: u8) { let mut before = |after| { let to_be = at; }; let (x, y) = z; }".parse().unwrap());
    assert_eq!((names.functions, &names.locals), (vec!["of".to_owned()], &vec!["before".into(), "to_be".into()]));
    assert_eq!(prepositions(&names.locals), ["before"]);
}
