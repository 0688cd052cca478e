//! Journals with damage in any file: what is read is what was written, or the folder is refused by name.

use std::fs;

use super::tests::{bytes, core, inputs, journal_time, play};
use super::*;

/// Places in a file that are damaged in turn, at most.
const PLACES: usize = 6;

/// A journal that has been opened several times, with a snapshot: inputs are in tables of RocksDB and in its log.
fn filled(folder: &Path) -> (Core, u64) {
    let mut live = core();
    let (mut journal, _) = InputJournal::open(folder).unwrap();
    journal.begin_run(&live, journal_time(0)).unwrap();
    let inputs = inputs(29);
    play(&mut journal, &mut live, &inputs[..10]);
    journal.take_snapshot(&live, journal_time(1000)).unwrap();
    play(&mut journal, &mut live, &inputs[10..20]);
    drop(journal);
    let (mut journal, _) = InputJournal::open(folder).unwrap();
    play(&mut journal, &mut live, &inputs[20..]);
    (live, 20)
}

fn file_names(folder: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into());
    let mut names: Vec<PathBuf> = names.collect();
    names.sort();
    names
}

/// Every kind of damage to the content of one file. `None` is a file that is missing.
fn damages(content: &[u8]) -> Vec<(String, Option<Vec<u8>>)> {
    let mut damages = vec![("is missing".to_owned(), None)];
    let step = content.len().div_ceil(PLACES).max(1);
    for at in (0..content.len()).step_by(step).chain(content.len().checked_sub(1)) {
        let mut flipped = content.to_vec();
        flipped[at] ^= 4;
        damages.push((format!("is flipped at {at}"), Some(flipped)));
    }
    for at in [0, content.len() / 2, content.len().saturating_sub(3)] {
        damages.push((format!("is cut at {at}"), Some(content[..at].to_vec())));
        let mut zeros = content.to_vec();
        zeros[at..].fill(0);
        damages.push((format!("has zeros from {at} on"), Some(zeros)));
    }
    damages
}

#[test]
fn damage_in_any_file_is_harmless_or_named_and_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let (live, inputs) = filled(&whole);
    let names = file_names(&whole);
    let content: Vec<_> = names.iter().map(|name| fs::read(whole.join(name)).unwrap()).collect();
    let mut refused = Vec::new();
    let mut check = |what: String, changes: &[(usize, Option<Vec<u8>>)]| {
        let damaged = folder.path().join("damaged");
        fs::create_dir(&damaged).unwrap();
        for (index, name) in names.iter().enumerate() {
            let change = changes.iter().find(|(changed, _)| *changed == index);
            let content = change.map_or(Some(&content[index]), |(_, content)| content.as_ref());
            content.into_iter().for_each(|content| fs::write(damaged.join(name), content).unwrap());
        }
        match InputJournal::open(&damaged) {
            Ok((_, recovered)) => {
                let recovered = recovered.unwrap_or_else(|| panic!("{what}: the run is forgotten"));
                assert_eq!((recovered.inputs, bytes(&recovered.core)), (inputs, bytes(&live)), "{what}");
            }
            Err(error) => {
                assert!(error.to_string().contains(damaged.to_str().unwrap()), "{what}: {error}");
                refused.push(what);
            }
        }
        fs::remove_dir_all(&damaged).unwrap();
    };
    for (index, name) in names.iter().enumerate() {
        for (what, change) in damages(&content[index]) {
            check(format!("{} {what}", name.display()), &[(index, change)]);
        }
        for other in (index + 1..names.len()).step_by(3) {
            let swapped = [(index, Some(content[other].clone())), (other, Some(content[index].clone()))];
            check(format!("{} and {} are swapped", name.display(), names[other].display()), &swapped);
        }
    }
    for name in names.iter().filter(|name| name.extension().is_some_and(|ending| ending == "log" || ending == "sst")) {
        let name = name.display().to_string();
        assert!(refused.iter().any(|what| what.starts_with(&name) && what.contains("flipped")), "{name}: {refused:?}");
    }
}

/// A process that is killed while it writes an input leaves a part of it, which never took effect.
#[test]
fn an_input_that_is_torn_anywhere_is_dropped_unless_it_took_effect() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let (mut live, _) = filled(&whole);
    let (mut journal, _) = InputJournal::open(&whole).unwrap();
    let is_log = |name: &PathBuf| name.extension().is_some_and(|ending| ending == "log");
    let log = file_names(&whole).into_iter().rfind(is_log).unwrap();
    let more = inputs(33).split_off(30);
    play(&mut journal, &mut live, &more[..3]);
    let (mark, length) = (fs::read(whole.join(END_FILE)).unwrap(), fs::metadata(whole.join(&log)).unwrap().len());
    play(&mut journal, &mut live, &more[3..]);
    drop(journal);
    let content = fs::read(whole.join(&log)).unwrap();
    let open = |cut: usize, mark: Option<&[u8]>| {
        let torn = folder.path().join("torn");
        fs::create_dir(&torn).unwrap();
        for name in file_names(&whole) {
            fs::copy(whole.join(&name), torn.join(&name)).unwrap();
        }
        fs::write(torn.join(&log), &content[..cut]).unwrap();
        mark.into_iter().for_each(|mark| fs::write(torn.join(END_FILE), mark).unwrap());
        let opened = InputJournal::open(&torn).map(|(_, recovered)| recovered.unwrap().inputs);
        fs::remove_dir_all(&torn).unwrap();
        opened
    };
    for cut in (length as usize..content.len()).step_by(7) {
        assert_eq!(open(cut, Some(&mark)).unwrap(), 23, "cut at {cut}");
        let refused = open(cut, None).unwrap_err().to_string();
        assert!(refused.contains("damaged at input 33: 34 inputs took effect"), "cut at {cut}: {refused}");
    }
    assert_eq!(open(content.len(), Some(&mark)).unwrap(), 24, "killed before the mark");
}

#[test]
fn a_journal_whose_beginning_or_end_was_killed_is_of_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("journal");
    filled(&folder);
    let (journal, _) = InputJournal::open(&folder).unwrap();
    journal.forget_end().unwrap();
    drop(journal);
    let (mut journal, recovered) = InputJournal::open(&folder).unwrap();
    assert!(recovered.is_none());
    journal.begin_run(&core(), journal_time(0)).unwrap();
    drop(journal);
    assert!(InputJournal::open(&folder).unwrap().1.is_some());
}
