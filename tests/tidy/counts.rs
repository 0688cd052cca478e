//! What grows unseen: each count has a bound, where the tree stands. A bound falls when the tree does better, and never rises.

use std::collections::BTreeMap;

use quote::ToTokens;
use syn::{Attribute, FnArg, ImplItem, Item, Signature, TraitItem, Type, Visibility};
use zagros_tests::{files_that_end_in, short};

use super::syntax::{attributes, is_for_tests, product_files};

/// Thousands of code lines of the product, without tests, comments and blanks, by folder of the root.
const LINES: [(&str, usize); 10] = [
    ("cli", 22),
    ("coordinator", 8),
    ("dense-worker", 30),
    ("embedding-server", 15),
    ("job", 8),
    ("k8s", 6),
    ("network", 4),
    ("plumbing", 4),
    ("protocol", 2),
    ("table", 8),
];
/// Percent of the public functions whose name is one word.
const ONE_WORD: usize = 29;
/// Percent of the files of the product with fewer than 40 lines.
const SHORT_FILES: usize = 8;
/// Functions with a tuple among their parameters: a pair has no names.
const TUPLES: usize = 100;
const RECORDS: usize = 39;

#[derive(Default)]
struct FoundFunctions {
    public: usize,
    one_word: Vec<String>,
    tuples: Vec<String>,
    echoes: Vec<String>,
}

impl FoundFunctions {
    fn add(&mut self, signature: &Signature, is_public: bool, attributes: &[Attribute]) {
        let name = signature.ident.to_string();
        self.public += usize::from(is_public);
        if is_public && !name.contains('_') {
            self.one_word.push(name.clone());
        }
        let is_tuple = |input: &syn::FnArg| matches!(input, FnArg::Typed(typed) if is_tuple(&typed.ty));
        if signature.inputs.iter().any(is_tuple) {
            self.tuples.push(name.clone());
        }
        if is_echo(&name, &doc_lines(attributes)) {
            self.echoes.push(name);
        }
    }

    fn add_items(&mut self, items: &[Item]) {
        let is_public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            match item {
                Item::Fn(item) => self.add(&item.sig, is_public(&item.vis), &item.attrs),
                Item::Mod(item) => self.add_items(item.content.as_ref().map_or(&[], |(_, items)| items)),
                Item::Trait(item) => {
                    for item in &item.items {
                        let TraitItem::Fn(item) = item else { continue };
                        self.add(&item.sig, false, &item.attrs);
                    }
                }
                Item::Impl(item) => {
                    for item in &item.items {
                        let ImplItem::Fn(item) = item else { continue };
                        self.add(&item.sig, is_public(&item.vis), &item.attrs);
                    }
                }
                _ => {}
            }
        }
    }
}

fn is_tuple(kind: &Type) -> bool {
    match kind {
        Type::Tuple(tuple) => !tuple.elems.is_empty(),
        Type::Reference(reference) => is_tuple(&reference.elem),
        _ => false,
    }
}

fn doc_lines(attributes: &[Attribute]) -> Vec<String> {
    let docs = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
    docs.filter_map(|attribute| Some(attribute.meta.require_name_value().ok()?.value.to_token_stream().to_string()))
        .collect()
}

/// Whether a comment of one line has no word that the name has not.
fn is_echo(name: &str, doc: &[String]) -> bool {
    const SMALL: [&str; 14] =
        ["a", "an", "the", "of", "to", "in", "its", "this", "is", "if", "with", "for", "and", "whether"];
    let [line] = doc else { return false };
    let stem = |word: &str| word.trim_end_matches('s').trim_end_matches('e').to_lowercase();
    let named: Vec<String> = name.split('_').map(stem).collect();
    let mut words = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase);
    words.all(|word| SMALL.contains(&word.as_str()) || named.contains(&stem(&word)))
}

#[test]
fn functions_of_the_product_are_named_typed_and_described() {
    let mut found = FoundFunctions::default();
    for file in product_files() {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        found.add_items(&syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())).items);
    }
    assert!(found.public > 1000, "the check sees functions: {}", found.public);
    let (one_word, public) = (found.one_word.len(), found.public);
    assert!(
        one_word * 100 <= public * ONE_WORD,
        "{one_word} of {public} public functions have one word for a name, at most {ONE_WORD} %"
    );
    let tuples = &found.tuples;
    assert!(tuples.len() <= TUPLES, "{} functions take a tuple, at most {TUPLES}: {tuples:?}", tuples.len());
    let echoes = &found.echoes;
    assert!(echoes.is_empty(), "{} comments say what the name below them says: {echoes:?}", echoes.len());
}

#[test]
fn an_echo_has_no_word_of_its_own() {
    let is_echo = |name: &str, doc: &[&str]| is_echo(name, &doc.iter().map(|&line| line.into()).collect::<Vec<_>>());
    assert!(is_echo("read_rows", &[" Reads the rows."]) && is_echo("bytes", &["The bytes"]));
    assert!(
        !is_echo("read_rows", &[" Reads rows of one bucket."]) && !is_echo("read_rows", &["Reads rows.", "Twice."])
    );
    assert!(!is_echo("read_rows", &[]));
}

#[test]
fn no_folder_of_the_product_grows() {
    let (mut lines, mut files, mut short_files) = (BTreeMap::<String, usize>::new(), 0, 0);
    for file in product_files() {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let folder = short(&file).split('/').next().unwrap_or_default().to_owned();
        *lines.entry(folder).or_default() += product.lines().filter(is_code).count();
        files += 1;
        short_files += usize::from(text.lines().count() < 40);
    }
    for (folder, most) in LINES {
        let has = lines.remove(folder).unwrap_or_default();
        assert!(has > 0, "the check sees {folder}");
        assert!(has <= most * 1000, "{folder} has {has} lines of code, at most {most},000");
    }
    assert!(
        short_files * 100 <= files * SHORT_FILES,
        "{short_files} of {files} files have fewer than 40 lines, at most {SHORT_FILES} %"
    );
}

#[test]
fn every_record_of_a_decision_has_a_state() {
    let mut records = files_that_end_in(".md");
    records.retain(|(path, _)| short(path).starts_with("docs/adr/") && !path.ends_with("index.md"));
    assert!((20..=RECORDS).contains(&records.len()), "{} records, at most {RECORDS}", records.len());
    for (path, text) in records {
        let state = text.lines().find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default();
        let is_state = ["Accepted · ", "Superseded by "].iter().any(|begin| state.starts_with(begin));
        assert!(is_state, "{} begins with no state (Accepted · DATE): {state}", short(&path));
    }
}
