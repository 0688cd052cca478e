//! `zagros forget`: removes rows by their ids from saved models and checkpoints, and from the servers of a run that trains
//! ([`live`]).
//!
//! ```text
//! places ──► plan ──────────────────────────► apply
//! folders    which files name the ids,        1 copies without the ids, beside the files ([`crate::rewrite`])
//! and the    which are copied, how many       2 the audit file
//! run's lock rows each manifest has then      3 the manifests, each whole
//!                                             4 files that no manifest names are deleted
//! ```
//!
//! A kill before step 3 leaves the old saves, after it the new ones, in between some of each: every save is whole (invariants
//! CK-1, CK-4, CK-6). The same command then finishes: it plans anew, and step 4 also deletes what an earlier process left.

mod apply;
mod live;
mod places;
mod plan;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use zagros_ingest::hash_value;
use zagros_shell::Failure;

use crate::args::{ForgetArgs, parse_id};

pub(crate) use apply::{AUDIT, apply};
pub(crate) use live::{LiveRemoval, forget_live};
pub(crate) use places::ForgetPlace;
pub(crate) use plan::{ForgetPlan, SavePlan};

/// The ids that the command line names, at least one: themselves, by values as in the data, or in files of either.
pub(crate) fn wanted_ids(args: &ForgetArgs) -> Result<BTreeSet<u64>, Failure> {
    let mut ids: BTreeSet<u64> = args.id.iter().copied().collect();
    ids.extend(args.value.iter().map(|value| hash_value(value.as_bytes())));
    if let Some(path) = &args.ids {
        ids.extend(parse_ids(&read(path)?, path)?);
    }
    if let Some(path) = &args.values {
        ids.extend(lines(&read(path)?).map(|(_, value)| hash_value(value.as_bytes())));
    }
    if ids.is_empty() {
        let help = "name a file with --values FILE or --ids FILE, one a line, or a single one with --value or --id";
        return Err(Failure::usage("no id is named", help));
    }
    Ok(ids)
}

fn parse_ids(text: &str, path: &Path) -> Result<Vec<u64>, Failure> {
    let parse = |(number, line): (usize, &str)| {
        parse_id(line.trim()).map_err(|error| {
            let what = format!("{}:{number}: {line:?} is no id: {error}", path.display());
            Failure::usage(what, "values as they are written in the data belong to --values FILE")
        })
    };
    lines(text).map(parse).collect()
}

/// Lines that are not empty, with their numbers from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(number, line)| (number + 1, line)).filter(|(_, line)| !line.is_empty())
}

fn read(path: &Path) -> Result<String, Failure> {
    let read = match path == Path::new("-") {
        true => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        false => std::fs::read_to_string(path),
    };
    read.map_err(|error| {
        let what = format!("{} cannot be read: {error}", path.display());
        Failure::usage(what, "it is a text file (UTF-8) with one id or value a line")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_decimal_or_hexadecimal_and_a_wrong_line_is_named() {
        let path = Path::new("gone.txt");
        assert_eq!(parse_ids("5\r\n\n 0xff \n", path).unwrap(), [5, 255]);
        assert_eq!(lines(" a\r\nb \n").map(|(_, value)| value).collect::<Vec<_>>(), [" a", "b "]);
        let refused = format!("{:?}", parse_ids("5\n\nu17\n", path).unwrap_err());
        assert!(refused.contains("gone.txt:3") && refused.contains("--values FILE"), "{refused}");
    }
}
