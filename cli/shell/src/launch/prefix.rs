//! The lines of a child: printed with its name in its colour, written to its log file, and the last few kept for an error
//! message.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use owo_colors::AnsiColors;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use crate::launch::console::RunConsole;

/// Lines that an error message shows.
const KEPT: usize = 12;

#[derive(Clone, Debug, Default)]
pub(crate) struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    fn keep(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub(crate) fn indented(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(|line| format!("    {line}\n")).collect()
    }
}

/// The destination of children's lines.
#[derive(Clone, Debug, Default)]
pub struct ChildOutput {
    pub console: RunConsole,
    pub logs: Option<PathBuf>,
}

impl ChildOutput {
    /// The folder of the run that these children belong to, where it is known.
    pub(crate) fn run(&self) -> Option<PathBuf> {
        self.logs.as_ref()?.parent().map(PathBuf::from)
    }

    /// The log of a role. If it cannot be written, one line says so, and the role continues.
    pub(crate) fn open_log(&self, file_name: &str) -> Option<Arc<Mutex<LogFile>>> {
        let path = self.logs.as_ref()?.join(format!("{file_name}.log"));
        match LogFile::open(path.clone()) {
            Ok(log) => Some(Arc::new(Mutex::new(log))),
            Err(error) => {
                self.console.print_warning(format!("no log is written to {}: {error}", path.display()));
                None
            }
        }
    }
}

/// Name and colour of a child on the screen, and its log.
#[derive(Clone, Debug)]
pub(crate) struct LinePrefix {
    pub(crate) name: String,
    pub(crate) color: AnsiColors,
    pub(crate) output: ChildOutput,
    pub(crate) log: Option<Arc<Mutex<LogFile>>>,
}

impl LinePrefix {
    /// Copies lines until the stream closes. Bytes that are not UTF-8 are shown as �.
    pub(crate) async fn copy_lines(mut self, stream: impl AsyncRead + Unpin, last: LastLines) {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).await.is_ok_and(|bytes| bytes > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            self.output.console.print_child_line(&self.name, self.color, &text);
            self.write(&text);
            last.keep(text);
        }
    }

    /// Writes a line to the log. A full disk ends only the log.
    fn write(&mut self, text: &str) {
        let Some(log) = &self.log else { return };
        let written = log.lock().unwrap_or_else(PoisonError::into_inner).append_line(text, SystemTime::now());
        if let Err(error) = written {
            self.output.console.print_warning(format!("the log of {} ends here: {error}", self.name));
            self.log = None;
        }
    }
}

/// Bytes after which a file is renamed and a new one starts. An earlier renamed file is deleted.
const MOST: u64 = 16 << 20;

/// The most characters of a time: `2026-11-22T02:09:29.123456Z`.
const LONGEST_TIME: usize = 30;

/// In the folder of a run.
pub const LOG_FOLDER: &str = "logs";

/// The log file of one role. Each line starts with its time. A full file is replaced by a new one.
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
    fn append_line(&mut self, text: &str, now: SystemTime) -> io::Result<()> {
        if self.bytes >= self.most {
            std::fs::rename(&self.path, earlier_log(&self.path))?;
            (self.file, self.bytes) = (append(&self.path)?, 0);
        }
        let line = if starts_with_time(text) {
            format!("{text}\n")
        } else {
            format!("{} {text}\n", humantime::format_rfc3339_micros(now))
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
fn earlier_log(path: &Path) -> PathBuf {
    path.with_extension("1.log")
}

fn starts_with_time(line: &str) -> bool {
    let stamp = line.split(' ').next().unwrap_or_default();
    stamp.len() <= LONGEST_TIME && stamp.ends_with('Z') && humantime::parse_rfc3339(stamp).is_ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn only_the_last_lines_are_kept() {
        let last = LastLines::default();
        let prefix =
            LinePrefix { name: "test".into(), color: AnsiColors::Cyan, output: ChildOutput::default(), log: None };
        let text: String = (0..100).map(|number| format!("line {number}\n")).collect();
        prefix.copy_lines(text.as_bytes(), last.clone()).await;
        let kept = last.indented();
        assert_eq!(kept.lines().count(), KEPT);
        assert!(kept.starts_with("    line 88\n") && kept.ends_with("    line 99\n"), "{kept}");
    }

    #[tokio::test]
    async fn every_line_is_in_the_log_of_its_role_and_a_log_that_cannot_be_written_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let output = ChildOutput { logs: Some(folder.path().join("logs")), ..ChildOutput::default() };
        let log = output.open_log("dense-worker-0");
        let prefix = LinePrefix { name: "test".into(), color: AnsiColors::Cyan, output, log };
        prefix.copy_lines("one\ntwo\n".as_bytes(), LastLines::default()).await;
        let written = std::fs::read_to_string(folder.path().join("logs/dense-worker-0.log")).unwrap();
        assert!(written.lines().count() == 2 && written.ends_with("Z two\n"), "{written}");
        let file = folder.path().join("logs/dense-worker-0.log");
        let blocked = ChildOutput { logs: Some(file), ..ChildOutput::default() };
        assert!(blocked.open_log("x").is_none());
        let said = blocked.console.said_lines();
        assert!(said[0].starts_with("no log is written to"), "{said:?}");
    }

    #[test]
    fn every_line_has_a_time_and_old_lines_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs/dense-worker-0.log");
        let mut log = LogFile::bounded(path.clone(), 60).unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        log.append_line("2026-11-22T02:09:29.123456Z  INFO training starts", now).unwrap();
        log.append_line("step 1", now).unwrap();
        let first = "2026-11-22T02:09:29.123456Z  INFO training starts\n1970-01-01T00:00:01.500000Z step 1\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        log.append_line("step 2", now).unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(&earlier_log(&path)), first);
        assert_eq!(read(&path), "1970-01-01T00:00:01.500000Z step 2\n");
        // Another process of the same role continues the file.
        drop(log);
        LogFile::open(path.clone()).unwrap().append_line("step 3", now).unwrap();
        assert_eq!(read(&path).lines().count(), 2);
        assert_eq!(earlier_log(&path), folder.path().join("logs/dense-worker-0.1.log"));
    }
}
