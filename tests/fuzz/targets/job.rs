//! Job files that a person typed.

use std::path::Path;

use bolero::check;
use miette::{GraphicalReportHandler, GraphicalTheme};
use zagros_job::{Job, JobErrors, Overrides};

const GOOD: &str = include_str!("../../../examples/quickstart.toml");

fn parse(text: &str) -> Option<Job> {
    parse_with(text, &Overrides::none())
}

fn parse_with(text: &str, overrides: &Overrides) -> Option<Job> {
    Job::parse(text, Path::new("examples/job.toml"), overrides).map_err(|errors| show(&errors)).ok()
}

/// A refusal says why, on a page that a person can read, whatever the text is.
fn show(errors: &JobErrors) {
    let mut page = String::new();
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::none()).with_width(100);
    handler.render_report(&mut page, errors).expect("it is shown");
    let plain = errors.plain_text();
    assert!(!errors.problems().is_empty() && page.len() < 200_000 && plain.len() < 100_000, "{} bytes", page.len());
}

/// Pieces of job files, repeated: long lines, deep brackets, many problems.
#[test]
fn repeated_pieces_are_a_job_or_are_refused_on_one_page() {
    const PIECES: [&str; 16] =
        ["[", "]", "{", "}", "a", ".", " = ", "\n", "'", "\"", "\"\"\"", ",", "é", "[data]\n", "[[data.train]]\n", "#"];
    check!().with_iterations(200).with_type::<Vec<(u8, u16)>>().for_each(|pieces| {
        let piece =
            |(piece, times): &(u8, u16)| PIECES[usize::from(*piece) % PIECES.len()].repeat(usize::from(times % 9_000));
        let text: String = pieces.iter().take(8).map(piece).collect();
        parse(&text);
    });
}

#[test]
fn any_setting_is_taken_or_refused_on_one_page() {
    check!().with_iterations(400).with_type::<(String, u16)>().for_each(|(value, times)| {
        let value = value.repeat(usize::from(times % 2_000));
        parse_with(GOOD, &Overrides::sets([format!("model.hidden={value}"), format!("{value}=1")]));
    });
}

#[test]
fn any_text_is_a_job_or_says_why_not() {
    check!().with_type::<String>().for_each(|text| {
        parse(text);
    });
}

/// A good file with some bytes changed, skipped or doubled.
#[test]
fn a_damaged_job_is_a_job_that_reads_back_or_says_why_not() {
    check!().with_iterations(400).with_type::<Vec<(u16, u8, u8)>>().for_each(|edits| {
        let mut bytes = GOOD.as_bytes().to_vec();
        for (place, kind, byte) in edits.iter().take(6) {
            let place = usize::from(*place) % bytes.len();
            match kind % 3 {
                0 => bytes[place] = *byte,
                1 => drop(bytes.remove(place)),
                _ => bytes.insert(place, bytes[place]),
            }
        }
        let Some(job) = std::str::from_utf8(&bytes).ok().and_then(parse) else { return };
        let again = parse(&job.to_toml()).expect("a resolved job loads again");
        assert_eq!(again.fingerprint(), job.fingerprint());
    });
}
