//! Damaged files: whatever happens to one of them while no server runs, the next server has the same rows, or it does not start and
//! names a file. A row is never another one without a word.

use Damage::{Flip, Missing, Truncated, Zeros};

use super::*;
use crate::storage;
use crate::testing::{load_request, save_request};

/// Files that say nothing about rows.
const OF_NOBODY: [&str; 3] = ["lock", "LOCK", "spare-"];
const SIZES: LogSizes = LogSizes { segment: 32 << 10, tail: 64 << 20 };

#[derive(Clone, Copy, Debug)]
enum Damage {
    /// A bit at this thousandth of the file.
    Flip(usize),
    Truncated(usize),
    Zeros,
    Missing,
}

const DAMAGES: [Damage; 8] =
    [Flip(20), Flip(500), Flip(990), Truncated(0), Truncated(400), Truncated(990), Zeros, Missing];

impl Damage {
    fn apply(self, path: &Path) {
        let mut bytes = fs::read(path).unwrap();
        let place = |thousandth: usize| bytes.len() * thousandth / 1000;
        match self {
            Self::Missing => return fs::remove_file(path).unwrap(),
            Self::Flip(thousandth) if !bytes.is_empty() => {
                let place = place(thousandth);
                bytes[place] ^= 4;
            }
            Self::Truncated(thousandth) => bytes.truncate(place(thousandth)),
            Self::Flip(_) => {}
            Self::Zeros => bytes.fill(0),
        }
        fs::write(path, bytes).unwrap();
    }
}

fn files_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => all.extend(files_below(&entry)),
            false => _ = all.insert(entry.clone(), fs::read(&entry).unwrap()),
        }
    }
    all
}

fn put_back(folder: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) {
    let _ = fs::remove_dir_all(folder);
    for (path, content) in files {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

fn is_of_nobody(path: &Path) -> bool {
    OF_NOBODY.iter().any(|prefix| name(path).starts_with(prefix))
}

/// A server with a base, a tail of several segments, and rows in its cold tier of before and after the base.
fn trained() -> (LogFixture, BTreeMap<PathBuf, Vec<u8>>) {
    let home = LogFixture::new("memory = \"256KiB\"");
    let service = home.start_with(SIZES).unwrap();
    let push_some = |first: u64, seq: u64| {
        push_both(&service, &(first..first + 250).collect::<Vec<_>>(), seq, 1.0);
    };
    (0..24).for_each(|turn| push_some(250 * turn, turn + 1));
    write_base(&service);
    (0..8).for_each(|turn| push_some(125 * turn, 100 + turn));
    let evicted: u64 = service.tables.iter().map(|table| table.event_counts().evicted).sum();
    assert!(evicted > 1000 && home.files("segment-").len() > 2, "{evicted} rows have left memory");
    drop(service);
    let files = files_below(&home.folder.path().join("runs"));
    (home, files)
}

/// What a run knows of a server: its rows, its lineage, and which pushes it has.
type Known = (Slots, Option<zagros_protocol::Lineage>, bool);

fn start(home: &LogFixture) -> Result<Known, String> {
    let service = home.start_with(SIZES).map_err(|error| with_causes(&error))?;
    let rows = rows(&service);
    let is_duplicate = push(&service, &push_of(&[(ITEM, &[1])], 107, 1.0)).map(|answer| answer.duplicate);
    Ok((rows, service.lineage(), is_duplicate.map_err(|refusal| refusal.message)?))
}

/// The folder of a log and that of its cold tier.
#[test]
fn a_damaged_file_of_a_server_is_harmless_or_named() {
    let (home, files) = trained();
    let runs = home.folder.path().join("runs");
    let expected = start(&home).unwrap();
    assert!(expected.2 && expected.0.len() == 12_000);
    put_back(&runs, &files);
    let (mut refused, mut wrong) = (BTreeSet::new(), Vec::new());
    let mut try_start = |what: String, names: &[String]| {
        match start(&home) {
            Err(error) if names.iter().any(|name| error.contains(name)) => _ = refused.insert(names[0].clone()),
            Err(error) => wrong.push(format!("{what} is not named: {error}")),
            // The coordinator refuses rows of another lineage (invariant MB-6).
            Ok((_, lineage, _)) if lineage != expected.1 => {}
            Ok(found) if found == expected => {}
            Ok((rows, _, is_duplicate)) => {
                let differing = expected.0.iter().filter(|(key, row)| rows.get(key) != Some(row)).count();
                wrong.push(format!("{what}: {differing} rows differ, and the last push is known: {is_duplicate}"));
            }
        }
        put_back(&runs, &files);
    };
    for path in files.keys() {
        // A part that is missing, or a base without its manifest, may be named by the file that needs it.
        let mut names = vec![name(path)];
        if name(path) == "manifest.json" {
            names.push("segment-0000000000000000.log".to_owned());
        }
        if name(path).starts_with("segment-") {
            names.push("is missing: the log is needed from lsn".to_owned());
        }
        if path.parent().unwrap().ends_with("cold-server-0") && name(path) == "log" {
            names.push("cold-server-0".to_owned());
        }
        for damage in DAMAGES {
            damage.apply(path);
            try_start(format!("{} after {damage:?}", path.display()), &names);
        }
    }
    let all: Vec<&PathBuf> = files.keys().filter(|path| !is_of_nobody(path)).collect();
    for pair in all.windows(2) {
        let [first, second] = pair else { continue };
        fs::write(first, &files[*second]).unwrap();
        fs::write(second, &files[*first]).unwrap();
        let names = [name(first), name(second), "cold-server-0".to_owned()];
        try_start(format!("{} exchanged for {}", first.display(), second.display()), &names);
    }
    assert!(wrong.is_empty(), "{} of {} files:\n{}", wrong.len(), files.len(), wrong.join("\n"));
    let needed: BTreeSet<String> = files.keys().filter(|path| !is_of_nobody(path)).map(|path| name(path)).collect();
    let missed: Vec<_> = needed.difference(&refused).collect();
    assert!(missed.iter().all(|name| name.ends_with(".rows")), "no damage of these is ever noticed: {missed:?}");
}

/// Rows that a checkpoint has saved.
#[test]
fn a_damaged_file_of_a_checkpoint_is_named() {
    let (home, service) = LogFixture::started("");
    push_both(&service, &(0..300).collect::<Vec<_>>(), 1, 1.0);
    let folder = home.folder.path().join("saved");
    fs::create_dir(&folder).unwrap();
    let digests = storage::save(&service, &save_request(&folder), |_| ()).unwrap().files;
    let (saved, expected) = (files_below(&folder), rows(&service));
    let load = || storage::load(&service, &load_request(&folder, digests.clone()));
    load().unwrap();
    assert_eq!(rows(&service), expected);
    for path in saved.keys() {
        for damage in DAMAGES {
            damage.apply(path);
            let refusal = load().expect_err(&format!("{} after {damage:?}", path.display()));
            assert!(refusal.message.contains(&name(path)), "{damage:?}: {refusal}");
            put_back(&folder, &saved);
            assert_eq!(rows(&service), expected, "nothing is loaded of a damaged file");
        }
    }
}
