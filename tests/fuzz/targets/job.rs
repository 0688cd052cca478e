//! Job files that a person typed.

use std::path::Path;

use bolero::check;
use zagros_job::{Job, Overrides};

const GOOD: &str = include_str!("../../../examples/quickstart.toml");

fn parse(text: &str) -> Option<Job> {
    match Job::parse(text, Path::new("examples/job.toml"), &Overrides::none()) {
        Ok(job) => Some(job),
        Err(errors) => {
            assert!(!errors.to_string().is_empty(), "a refusal says why");
            None
        }
    }
}

#[test]
fn any_text_is_a_job_or_says_why_not() {
    check!().with_type::<String>().for_each(|text| {
        parse(text);
    });
}

/// A good file with some bytes changed, left out or doubled.
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
