//! Sentences of the docs that deny something ("cannot", "never", "not yet"): each names the test that changes when it
//! becomes false.
//!
//! `denials.tsv` has a line for each, `page⇥start of the sentence⇥test`, or `page⇥start of the sentence⇥-⇥reason` where
//! no test could change. Decision records are of their day and do not count.

use std::collections::BTreeSet;

use zagros_tests::{files_that_end_in, read, short};

use super::promises::tests_of_all_crates;

const LIST: &str = "tests/tidy/denials.tsv";
/// Words by which a sentence counts, in lower case.
const WORDS: [&str; 12] = [
    "cannot",
    "can't",
    "impossible",
    "never",
    "no way to",
    "not built",
    "not for you",
    "not possible",
    "not supported",
    "not there",
    "not yet",
    "there is no",
];
/// Words of a start that the test proposes, if so many are enough to tell it from others.
const WORDS_OF_A_START: usize = 5;

#[derive(Debug, PartialEq)]
struct PageDenial {
    page: String,
    sentence: String,
}

#[derive(Debug)]
struct ListedDenial<'a> {
    page: &'a str,
    start: &'a str,
    test: &'a str,
    reason: &'a str,
}

impl ListedDenial<'_> {
    /// The sentence that is its start, or else those that start with it.
    fn sentences<'a>(&self, denials: &'a [PageDenial]) -> Vec<&'a PageDenial> {
        let here =
            || denials.iter().filter(|denial| denial.page == self.page && denial.sentence.starts_with(self.start));
        match here().find(|denial| denial.sentence == self.start) {
            Some(whole) => vec![whole],
            None => here().collect(),
        }
    }
}

#[test]
fn every_denial_in_the_docs_names_the_test_that_would_change() {
    let text = read(LIST);
    let (denials, entries) = (denials(), parse(&text));
    assert!(denials.len() >= 50, "the check sees sentences: {}", denials.len());
    let listed: Vec<&PageDenial> = entries.iter().flat_map(|entry| entry.sentences(&denials)).collect();
    let new = denials.iter().filter(|denial| !listed.contains(denial));
    let lines: Vec<String> = new.map(|denial| new_line(denial, &denials)).collect();
    assert!(
        lines.is_empty(),
        "{} sentences of the docs say that something cannot be, or never is, and are not in {LIST}. Check each against the code. Then add these \
         lines, with the name of the test that would have to change when the sentence becomes false in place of TEST, or with `-`, a tab \
         and the reason why there is none (the sentence is about the world, or is advice):\n{}",
        lines.len(),
        lines.join("\n")
    );
}

#[test]
fn every_line_of_the_list_is_about_one_sentence_and_a_test_that_exists() {
    let (text, denials, tests) = (read(LIST), denials(), all_tests());
    let problems: Vec<String> = parse(&text).iter().filter_map(|entry| problem(entry, &denials, &tests)).collect();
    assert!(problems.is_empty(), "{LIST}:\n{}", problems.join("\n"));
}

fn problem(entry: &ListedDenial<'_>, denials: &[PageDenial], tests: &BTreeSet<String>) -> Option<String> {
    let ListedDenial { page, start, test, reason } = entry;
    let what = match entry.sentences(denials).len() {
        0 => format!("no sentence with one of {WORDS:?} starts like this any more: remove the line, or mend its start"),
        1 if *test == "-" && reason.is_empty() => "`-` needs a tab and the reason why no test would change".to_owned(),
        1 if *test != "-" && !tests.contains(*test) => {
            format!("there is no test {test}: name the test that shows the sentence, or `-` and a reason")
        }
        1 => return None,
        count => format!("{count} sentences start like this: make the start longer"),
    };
    Some(format!("{page}: {start:?}: {what}"))
}

fn all_tests() -> BTreeSet<String> {
    let mut tests = tests_of_all_crates();
    for (_, text) in files_that_end_in(".py") {
        let functions = text.lines().filter_map(|line| line.trim_start().strip_prefix("def test_"));
        tests.extend(functions.filter_map(|rest| rest.split('(').next()).map(|name| format!("test_{name}")));
    }
    tests
}

/// The docs say that no program answers single requests.
#[test]
fn no_command_serves_single_requests() {
    let commands = read("docs/cli.md");
    let served = commands.lines().find(|line| line.starts_with("### `zagros serve"));
    assert_eq!(served, None, "the docs say that there is none: {LIST} has the sentences that name this test");
}

fn parse(text: &str) -> Vec<ListedDenial<'_>> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(parse_line).collect()
}

fn parse_line(line: &str) -> ListedDenial<'_> {
    let mut cells = line.split('\t');
    let [page, start, test] = [(); 3].map(|()| cells.next().unwrap_or_default());
    assert!(!start.is_empty() && !test.is_empty(), "{LIST}: a line has a page, a start and a test: {line:?}");
    ListedDenial { page, start, test, reason: cells.next().unwrap_or_default() }
}

/// The line of a sentence that has none.
fn new_line(denial: &PageDenial, all: &[PageDenial]) -> String {
    let PageDenial { page, sentence } = denial;
    let ends = sentence.match_indices(' ').map(|(at, _)| at).chain([sentence.len()]);
    let is_its_own = |start: &&str| {
        all.iter().all(|other| other == denial || other.page != *page || !other.sentence.starts_with(start))
    };
    let start = ends.skip(WORDS_OF_A_START - 1).map(|end| &sentence[..end]).find(is_its_own).unwrap_or(sentence);
    format!("{page}\t{start}\tTEST")
}

/// All denials, a sentence that a page has twice once.
fn denials() -> Vec<PageDenial> {
    let mut denials = Vec::new();
    for (path, text) in files_that_end_in(".md") {
        let page = short(&path);
        if page == "README.md" || page.starts_with("docs/") && !page.starts_with("docs/adr/") {
            let sentences: BTreeSet<String> =
                sentences(&text).into_iter().filter(|sentence| denies(sentence)).collect();
            denials.extend(sentences.into_iter().map(|sentence| PageDenial { page: page.clone(), sentence }));
        }
    }
    denials
}

/// Whether it has one of the words. Names such as `a_table_never_shrinks` have none.
fn denies(sentence: &str) -> bool {
    let sentence = sentence.to_lowercase();
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
    WORDS.iter().any(|word| {
        sentence.match_indices(word).any(|(at, _)| {
            !is_part(sentence[..at].chars().next_back()) && !is_part(sentence[at + word.len()..].chars().next())
        })
    })
}

/// The sentences of a page: of its paragraphs, items and cells of tables, each on one line. Code is skipped.
fn sentences(page: &str) -> Vec<String> {
    let (mut blocks, mut is_code) = (vec![String::new()], false);
    for line in page.lines().map(str::trim) {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let item = line.strip_prefix("- ").or(number.strip_prefix(". ").filter(|_| number != line));
        if is_code || line.is_empty() || line.starts_with("```") {
            blocks.push(String::new());
        } else if line.starts_with('|') {
            blocks.extend(line.split(" |").map(|cell| cell.trim_matches(['|', ' ']).to_owned()));
            blocks.push(String::new());
        } else if line.starts_with('#') {
            blocks.extend([line.to_owned(), String::new()]);
        } else if let Some(text) = item {
            blocks.push(text.to_owned());
        } else if let Some(block) = blocks.last_mut() {
            block.push(' ');
            block.push_str(line);
        }
    }
    blocks.iter().flat_map(|block| split(block)).collect()
}

/// A sentence ends before a blank that follows a full stop, a question or an exclamation mark, also one in brackets or bold.
fn split(block: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut start = 0;
    for (at, _) in block.match_indices(' ').chain([(block.len(), "")]) {
        let sentence = &block[start..at];
        if at == block.len() || sentence.trim_end_matches(['*', ')', '"', '`']).ends_with(['.', '?', '!']) {
            sentences.push(sentence.trim().to_owned());
            start = at;
        }
    }
    sentences
}

#[test]
fn sentences_are_found_over_lines_and_in_cells_and_not_in_code() {
    let page = "# One\n\nIt cannot\nfly. It\nwalks.\n\n- **Never.** It `can't`\n  swim (never).\n\n| a | is not yet | x |\n```\ncannot\n```\n";
    let found: Vec<String> = sentences(page).into_iter().filter(|sentence| denies(sentence)).collect();
    assert_eq!(found, ["It cannot fly.", "**Never.**", "It `can't` swim (never).", "is not yet"]);
    assert!(
        !denies("`it_never_ends` and [34](adr/0034-never-emptied.md) of a Never-married") && denies("It NEVER ends.")
    );
    let denial = |sentence: &str| PageDenial { page: "p".to_owned(), sentence: sentence.to_owned() };
    let all = ["It never goes to the left.", "It never goes to the right."].map(denial);
    assert_eq!(new_line(&all[0], &all), "p\tIt never goes to the left.\tTEST");
}
