//! The log file of one role. Each line starts with its time. A full file is replaced by a new one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes after which a file is renamed and a new one starts. An earlier renamed file is deleted.
const MOST: u64 = 16 << 20;

/// The most characters of a time: `2026-11-22T02:09:29.123456Z`.
const LONGEST_TIME: usize = 30;

/// In the folder of a run.
pub const FOLDER: &str = "logs";

#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    most: u64,
}

impl LogFile {
    /// Appends to `path`. Makes its folder if there is none.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        Self::bounded(path, MOST)
    }

    fn bounded(path: PathBuf, most: u64) -> io::Result<Self> {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let file = append(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, file, bytes, most })
    }

    /// Adds a line. Adds the time if the line does not start with one.
    pub fn append_line(&mut self, text: &str) -> io::Result<()> {
        self.line_at(text, SystemTime::now())
    }

    fn line_at(&mut self, text: &str, now: SystemTime) -> io::Result<()> {
        if self.bytes >= self.most {
            std::fs::rename(&self.path, earlier_log(&self.path))?;
            (self.file, self.bytes) = (append(&self.path)?, 0);
        }
        let line = match split_time(text) {
            Some(_) => format!("{text}\n"),
            None => format!("{} {text}\n", humantime::format_rfc3339_micros(now)),
        };
        self.file.write_all(line.as_bytes())?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// The file with the lines before those of `path`.
pub fn earlier_log(path: &Path) -> PathBuf {
    path.with_extension("1.log")
}

/// The time at the start of a line, its text, and the rest of the line; `None` for a line without a time.
pub fn split_time(line: &str) -> Option<(SystemTime, &str, &str)> {
    let end = line.find(' ').unwrap_or(line.len());
    let (stamp, text) = line.split_at(end);
    if stamp.len() > LONGEST_TIME || !stamp.ends_with('Z') {
        return None;
    }
    Some((humantime::parse_rfc3339(stamp).ok()?, stamp, text))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_line_has_a_time_and_old_lines_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs/dense-worker-0.log");
        let mut log = LogFile::bounded(path.clone(), 60).unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        log.line_at("2026-11-22T02:09:29.123456Z  INFO training starts", now).unwrap();
        log.line_at("step 1", now).unwrap();
        let first = "2026-11-22T02:09:29.123456Z  INFO training starts\n1970-01-01T00:00:01.500000Z step 1\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        log.line_at("step 2", now).unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(&earlier_log(&path)), first);
        assert_eq!(read(&path), "1970-01-01T00:00:01.500000Z step 2\n");
        // Another process of the same role continues the file.
        drop(log);
        LogFile::open(path.clone()).unwrap().line_at("step 3", now).unwrap();
        assert_eq!(read(&path).lines().count(), 2);
        assert_eq!(earlier_log(&path), folder.path().join("logs/dense-worker-0.1.log"));
    }
}
