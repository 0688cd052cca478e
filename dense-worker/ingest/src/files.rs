//! From the paths of a job to data files, and their checks before the first step. A path is a file, a folder or a pattern.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glob::{MatchOptions, Pattern, PatternError, glob_with};
use walkdir::{DirEntry, WalkDir};
use zagros_job::Job;
use zagros_store::{ObjectUrl, StoredObject};
use zagros_zip::ZipEq;

use crate::columnar::groups::UsedColumn;
use crate::columnar::kind::ValueKind;
use crate::formats::DataContent;
use crate::parse::BlockParser;
use crate::parse::bad::{BadBudget, LISTED};
use crate::parse::sink::NullSink;
use crate::read::layout::FileLayout;
use crate::read::reader::{BlockReader, RowBlock};
use crate::source::{InputFile, is_stdin, object_url, open_bucket};
use crate::{DataPart, FileInfo, IngestError, WholeFiles};

/// Text of a file that is parsed before the first step: a few hundred rows, a millisecond.
const FIRST_BYTES: usize = 64 << 10;

/// Finds the files that `paths` name (files, folders, patterns), and checks each: it exists, is a file, is not empty, can be
/// read, and has the job's columns.
pub fn find_files(job: &Job, paths: &[PathBuf]) -> Result<Vec<FileInfo>, IngestError> {
    let paths = expand_paths(paths)?;
    let (mut infos, mut first) = (Vec::with_capacity(paths.len()), None);
    for path in &paths {
        let (info, layout) = look_at(job, path)?;
        infos.push(info);
        match &first {
            Some(first) => same_columns(first, &layout)?,
            None => first = Some(layout),
        }
    }
    Ok(infos)
}

/// Parses the first rows of every file. A wrong label, separator or number of fields in any file, also in a test file, is
/// therefore reported before the first step.
///
/// # Errors
/// When more rows of `part` are malformed than the job tolerates.
pub fn check_first_rows(job: &Job, files: &[FileInfo], part: DataPart) -> Result<(), IngestError> {
    let job = Arc::new(job.clone());
    let mut parser = BlockParser::new(&job, part);
    let mut bad = BadBudget::new(&job.data, LISTED);
    for file in files {
        let whole = Box::new(WholeFiles::new(std::slice::from_ref(file)));
        let mut reader = BlockReader::new(Arc::clone(&job), whole, FIRST_BYTES, Arc::default());
        let Some(RowBlock { layout, content, place, .. }) = reader.next_block(Vec::new())? else { continue };
        let outcome = parser.parse(&layout, &content, &mut NullSink)?;
        bad.add(&outcome, &layout, place)?;
    }
    Ok(())
}

/// Refuses held-out files in which a column holds another kind of data than in the training files. Of each list the first file is
/// looked at: [`find_files`] compares the others with it.
pub fn check_same_types(job: &Job, train: &[FileInfo], held_out: &[FileInfo]) -> Result<(), IngestError> {
    let (Some(train), Some(held_out)) = (train.first(), held_out.first()) else { return Ok(()) };
    if train.path == held_out.path || !DataContent::from_format(&job.data.format).has_columns() {
        return Ok(());
    }
    let layout = |file: &FileInfo| FileLayout::read(job, &file.path, &Arc::default());
    same_columns(&layout(train)?, &layout(held_out)?)
}

fn look_at(job: &Job, path: &Path) -> Result<(FileInfo, FileLayout), IngestError> {
    if InputFile::open(path)?.1 == 0 {
        return Err(IngestError::bad_file(path, "it is empty; remove it from the job file or write it again"));
    }
    let layout = FileLayout::read(job, path, &Arc::default())?;
    Ok((FileInfo { path: path.into(), bytes: layout.bytes, splittable: layout.is_splittable() }, layout))
}

/// Refuses a column that holds another kind of data than in the first file. A column without any value agrees with every kind.
fn same_columns(first: &FileLayout, other: &FileLayout) -> Result<(), IngestError> {
    let (Some(expected), Some(found)) = (&first.row_groups, &other.row_groups) else { return Ok(()) };
    let words = |column: &UsedColumn| {
        let lists = if column.is_list() { "lists of " } else { "" };
        format!("{lists}{}", column.kind.plain_name())
    };
    for (expected, found) in expected.columns.iter().zip_eq(&found.columns) {
        let is_empty = |column: &UsedColumn| column.kind == ValueKind::Nothing;
        if words(expected) != words(found) && !is_empty(expected) && !is_empty(found) {
            return Err(IngestError::bad_file(
                &other.path,
                format!(
                    "column \"{}\" holds {} here and {} in {}; write both files with one type, or train on them one by one",
                    found.name,
                    words(found),
                    words(expected),
                    first.path.display()
                ),
            ));
        }
    }
    Ok(())
}

/// Characters that make a path a pattern.
const WILDCARDS: [char; 3] = ['*', '?', '['];

/// `*` stands for a part of one name, as in a shell, and not for a hidden name.
const MATCHES: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// The files that `paths` name, in the order of the paths. A folder stands for all files below it, in the order of their
/// names, and a pattern for all files and folders that match it. A prefix of a store is a folder, and an object is a file. In both, empty files are passed over, and in folders also
/// names that begin with a dot or an underscore: programs that write data in parts name their marks and unfinished files so.
pub(crate) fn expand_paths(paths: &[PathBuf]) -> Result<Vec<PathBuf>, IngestError> {
    let mut found = Vec::with_capacity(paths.len());
    for path in paths {
        if is_stdin(path) {
            found.push(path.clone());
            continue;
        }
        if let Some(url) = object_url(path) {
            found.extend(objects_in_store(path, &url)?);
            continue;
        }
        match (fs::metadata(path), path.to_str()) {
            (Ok(metadata), _) if metadata.is_dir() => {
                found.extend(require_files(files_below(path)?, path, "is a folder without data files")?)
            }
            // A file whose name has wildcards comes first.
            (Err(_), Some(text)) if text.contains(WILDCARDS) => {
                found.extend(require_files(matching_files(path, text)?, path, "matches no data file")?)
            }
            // A file, or something else that opening it will tell.
            _ => found.push(path.clone()),
        }
    }
    Ok(found)
}

fn require_files(files: Vec<PathBuf>, path: &Path, reason: &'static str) -> Result<Vec<PathBuf>, IngestError> {
    if files.is_empty() {
        return Err(IngestError::NoDataFiles { path: path.into(), reason: reason.into() });
    }
    Ok(files)
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>, IngestError> {
    let is_data = |entry: &DirEntry| entry.depth() == 0 || !is_mark(entry);
    let entries = WalkDir::new(folder).follow_links(true).sort_by_file_name().into_iter().filter_entry(is_data);
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(folder, error.path(), error.to_string()))?;
        let metadata = entry.metadata().map_err(|error| unreadable(folder, error.path(), error.to_string()))?;
        if metadata.is_file() && metadata.len() > 0 {
            files.push(entry.into_path());
        }
    }
    Ok(files)
}

/// The objects that a key, a prefix or a pattern of keys stands for.
fn objects_in_store(path: &Path, ObjectUrl { root, key }: &ObjectUrl) -> Result<Vec<PathBuf>, IngestError> {
    let bucket = open_bucket(root)?;
    if !bucket.has_list() {
        // The URL of a web server is one file.
        return Ok(vec![path.to_owned()]);
    }
    if !key.is_empty() && !key.ends_with('/') && bucket.find(key)?.is_some() {
        return Ok(vec![path.to_owned()]);
    }
    let pattern =
        key.find(WILDCARDS).map(|_| Pattern::new(key)).transpose().map_err(|error| no_pattern(path, &error))?;
    // All keys below the last slash before the first wildcard.
    let prefix = match key.find(WILDCARDS) {
        Some(wildcard) => key[..wildcard].rsplit_once('/').map_or("", |(prefix, _)| prefix),
        None => key,
    };
    let is_wanted = |object: &StoredObject| {
        let relative_key = object.key[prefix.trim_matches('/').len()..].trim_start_matches('/');
        match &pattern {
            _ if object.bytes == 0 => false,
            None => !relative_key.split('/').any(|part| part.starts_with(['.', '_'])),
            Some(pattern) => matches_above(pattern, &object.key),
        }
    };
    let wanted = bucket.list_below(prefix)?.into_iter().filter(is_wanted);
    let files = wanted.map(|object| format!("{root}/{}", object.key).into()).collect();
    require_files(
        files,
        path,
        if pattern.is_some() { "matches no object" } else { "is neither an object nor a prefix of objects" },
    )
}

/// Whether a key matches, or a folder that it is in: then the names below are not those of marks.
fn matches_above(pattern: &Pattern, key: &str) -> bool {
    let ends = key.match_indices('/').map(|(at, _)| at).chain([key.len()]);
    let is_mark = |rest: &str| rest.split('/').any(|part| part.starts_with(['.', '_']));
    ends.into_iter()
        .any(|end| pattern.matches_with(&key[..end], MATCHES) && !is_mark(key[end..].trim_start_matches('/')))
}

/// Whether a name is that of a mark (`_SUCCESS`), of a folder of unfinished files (`_temporary`), or hidden.
fn is_mark(entry: &DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(b".") || entry.file_name().as_encoded_bytes().starts_with(b"_")
}

/// The files that match a pattern, and those of the folders that do.
fn matching_files(path: &Path, pattern: &str) -> Result<Vec<PathBuf>, IngestError> {
    let mut files = Vec::new();
    for entry in glob_with(pattern, MATCHES).map_err(|error| no_pattern(path, &error))? {
        let entry = entry.map_err(|error| unreadable(path, Some(error.path()), error.error().to_string()))?;
        match fs::metadata(&entry) {
            Ok(metadata) if metadata.is_dir() => files.extend(files_below(&entry)?),
            Ok(metadata) if metadata.len() == 0 => {}
            _ => files.push(entry),
        }
    }
    Ok(files)
}

fn no_pattern(path: &Path, error: &PatternError) -> IngestError {
    let reason = format!("is not a pattern: {} at character {}", error.msg, error.pos + 1);
    IngestError::NoDataFiles { path: path.into(), reason }
}

fn unreadable(path: &Path, place: Option<&Path>, reason: String) -> IngestError {
    IngestError::Unreadable { path: place.unwrap_or(path).into(), source: std::io::Error::other(reason) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::fixture;

    #[test]
    fn sizes_and_compression_are_reported() {
        let (folder, path) = fixture::file("some text\n");
        let zipped = folder.path().join("zipped");
        fs::write(&zipped, fixture::gzip(b"some text\n")).unwrap();
        let found = find_files(&fixture::criteo(), &[path.clone(), zipped.clone()]).unwrap();
        let bytes = fs::metadata(&zipped).unwrap().len();
        let expected =
            [FileInfo { path, bytes: 10, splittable: true }, FileInfo { path: zipped, bytes, splittable: false }];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_path_that_is_not_a_readable_file_is_refused() {
        let (folder, empty) = fixture::file("");
        let missing = folder.path().join("missing.txt");
        let (_other, lacking) = fixture::file("click,age,tags\n1,2,x\n");
        for (path, expected) in [
            (&*missing, "missing.txt: No such file"),
            (&empty, "is empty; remove it from the job file or write it again"),
            (folder.path(), "is a folder without data files"),
            (&lacking, "no column \"city\""),
        ] {
            let error = find_files(&fixture::delimited(|_| ()), &[path.into()]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_first_rows_of_every_file_are_checked_against_the_limit() {
        let (folder, good) = fixture::file("click,age,city,tags\n1,2,x,y\n");
        let bad = folder.path().join("bad.csv");
        fs::write(&bad, "click,age,city,tags\n1,2,x,y\n5,2,x,y\n").unwrap();
        let mut job = fixture::delimited(|_| ());
        let infos = find_files(&job, &[good, bad]).unwrap();
        let error = check_first_rows(&job, &infos, DataPart::All).unwrap_err().to_string();
        assert!(error.contains("bad.csv:3:1: expected"), "{error}");
        check_first_rows(&job, &infos[..1], DataPart::All).unwrap();
        job.data.max_bad_rows = 1;
        check_first_rows(&job, &infos, DataPart::All).unwrap();
    }

    /// A folder with these files, a byte each; empty if their name ends in `0`.
    fn folder(names: &[&str]) -> TempDir {
        let folder = TempDir::new().unwrap();
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, if name.ends_with('0') { "" } else { "x" }).unwrap();
        }
        folder
    }

    fn found(folder: &TempDir, names: &[&str]) -> Result<Vec<String>, String> {
        let paths: Vec<_> = names.iter().map(|name| folder.path().join(name)).collect();
        let files = expand_paths(&paths).map_err(|error| error.to_string())?;
        let name = |path: &PathBuf| path.strip_prefix(folder.path()).unwrap().display().to_string();
        Ok(files.iter().map(name).collect())
    }

    #[test]
    fn a_folder_or_pattern_without_files_is_refused() {
        let folder = folder(&["empty/_SUCCESS", "none/part-0"]);
        for (name, reason) in [
            ("empty", "is a folder without data files"),
            ("none", "is a folder without data files"),
            ("*.csv", "matches no data file"),
            ("a[", "is not a pattern: invalid range pattern"),
        ] {
            let error = found(&folder, &[name]).unwrap_err();
            assert!(error.contains(&format!("{name} {reason}")), "{error}");
        }
    }

    #[test]
    fn a_folder_that_holds_itself_is_an_error_and_no_endless_walk() {
        let folder = folder(&["a/x"]);
        std::os::unix::fs::symlink(folder.path(), folder.path().join("a/loop")).unwrap();
        let error = found(&folder, &["."]).unwrap_err();
        assert!(error.contains("cannot read") && error.contains("loop"), "{error}");
    }

    #[test]
    fn paths_and_patterns_stand_for_the_files_below_them() {
        let below = ["b/part-1", "b/part-0", "b/_SUCCESS", "b/_temporary/x", ".hidden", "a/x/part-2", "c"];
        let matching = ["d-2/x", "d-1/y", "d-1/_z", "part-1.csv", "part-2.csv", "part-2.csv.bak", "part-.csv0"];
        for (files, paths, expected) in [
            (&below[..], &["."][..], &["a/x/part-2", "b/part-1", "c"][..]),
            (&below, &["c", "b", "c"], &["c", "b/part-1", "c"]),
            (&matching, &["part-*.csv"], &["part-1.csv", "part-2.csv"]),
            (&matching, &["part-[2-9].csv", "d-?"], &["part-2.csv", "d-1/y", "d-2/x"]),
            (&matching, &["**/y"], &["d-1/y"]),
            // A name with wildcards is that file, and a file that does not exist is left to be opened.
            (&["a[1].csv", "a1.csv"], &["a[1].csv"], &["a[1].csv"]),
            (&[], &["missing.csv"], &["missing.csv"]),
        ] {
            assert_eq!(found(&folder(files), paths).unwrap(), expected, "{paths:?}");
        }
    }
}
