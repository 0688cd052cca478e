//! Checks of a job's data files before the first step.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zagros_job::Job;
use zagros_zip::ZipEq;

use crate::columnar::groups::UsedColumn;
use crate::columnar::kind::ValueKind;
use crate::find::expand_paths;
use crate::formats::DataContent;
use crate::parse::BlockParser;
use crate::parse::bad_budget::{BadBudget, LISTED};
use crate::parse::sink::NullSink;
use crate::read::layout::FileLayout;
use crate::read::reader::{BlockReader, RowBlock};
use crate::source::InputFile;
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
        return Err(IngestError::EmptyFile { path: path.into() });
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
            return Err(IngestError::ColumnChanged {
                path: other.path.clone(),
                column: found.name.clone(),
                found: words(found),
                expected: words(expected),
                first: first.path.clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

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
}
