//! Logs of the roles of `zagros up`. They are in the folder of the run, and `zagros logs` reads them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::ValueEnum;
use zagros_shell::launch::{earlier_log, split_time};

/// The level of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum LogLevel {
    /// Everything.
    Trace,
    /// Details for finding a fault.
    Debug,
    /// The work of a role.
    Info,
    /// A person should look at it.
    Warn,
    /// It ends a role.
    Error,
}

impl LogLevel {
    /// The level of a line without its time, as text or as a JSON object. The printed error that ends a role has the level
    /// of errors. A line without a level is shown at every level.
    pub(crate) fn from_line(text: &str) -> Self {
        let text = text.trim_start();
        let is_upper = |word: &&str| word.bytes().all(|byte| byte.is_ascii_uppercase());
        let in_json = || text.split("\"level\":\"").nth(1)?.split('"').next();
        let word = if text.starts_with('{') { in_json() } else { text.split_whitespace().next() };
        let is_printed_error = text.starts_with("Error:") || text.starts_with(['×', '│', '╰', '├']);
        let named = word.filter(is_upper).and_then(|word| Self::from_str(word, true).ok());
        named.unwrap_or(if is_printed_error { Self::Error } else { Self::Info })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) time: SystemTime,
    /// The time as written.
    pub(crate) stamp: String,
    pub(crate) level: LogLevel,
    pub(crate) text: String,
}

impl LogLine {
    /// Parses a line of a log file; `None` if it does not start with a time, such as half a line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (time, stamp, text) = split_time(line)?;
        let text = text.trim_start().to_owned();
        Some(Self { time, stamp: stamp.to_owned(), level: LogLevel::from_line(&text), text })
    }
}

#[derive(Debug)]
pub(crate) struct LogSource {
    /// `dense worker 0`.
    pub(crate) name: String,
    path: PathBuf,
    read: u64,
    /// The start of a line whose end is not written yet.
    rest: Vec<u8>,
}

/// The logs in a folder, by name.
pub(crate) fn find_sources(folder: &Path) -> io::Result<Vec<LogSource>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // `dense-worker-0.1.log` has the earlier lines of `dense-worker-0.log`.
        if let Some(role) = name.strip_suffix(".log").filter(|role| !role.contains('.')) {
            found.push(LogSource { name: role.replace('-', " "), path, read: 0, rest: Vec::new() });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

impl LogSource {
    /// Whether it is the log of this role and index, as far as these are given.
    pub(crate) fn is_of(&self, role: Option<&str>, index: Option<u32>) -> bool {
        let (of, number) = match self.name.rsplit_once(' ') {
            Some((of, number)) if number.parse::<u32>().is_ok() => (of, number.parse().ok()),
            _ => (self.name.as_str(), None),
        };
        role.is_none_or(|role| role == of) && (index.is_none() || number == index)
    }

    /// All present lines, those of the older file first. [`Self::read_new`] returns later ones.
    pub(crate) fn read_all(&mut self) -> io::Result<impl Iterator<Item = LogLine> + use<>> {
        let older = match File::open(earlier_log(&self.path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            file => Some(file?),
        };
        let newer = File::open(&self.path)?;
        self.read = newer.metadata()?.len();
        let lines = |file: File, most: u64| {
            BufReader::new(file.take(most)).split(b'\n').map_while(Result::ok).filter_map(|line| parse(&line))
        };
        Ok(older.map(|file| lines(file, u64::MAX)).into_iter().flatten().chain(lines(newer, self.read)))
    }

    /// Whole lines that were added since the last call.
    pub(crate) fn read_new(&mut self) -> io::Result<Vec<LogLine>> {
        let mut file = File::open(&self.path)?;
        let mut added = Vec::new();
        if file.metadata()?.len() < self.read {
            // The file was renamed: the last lines before that are at the end of the renamed file.
            let mut older = File::open(earlier_log(&self.path))?;
            older.seek(SeekFrom::Start(self.read))?;
            older.read_to_end(&mut added)?;
            self.read = 0;
        }
        file.seek(SeekFrom::Start(self.read))?;
        self.read += file.read_to_end(&mut added)? as u64;
        self.rest.extend(added);
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        Ok(lines.split(|byte| *byte == b'\n').filter_map(parse).collect())
    }
}

fn parse(line: &[u8]) -> Option<LogLine> {
    LogLine::parse(&String::from_utf8_lossy(line))
}

/// Lines of several sources, each in order, merged in the order of time. Each line comes with the index of its source.
pub(crate) fn merge_by_time(sources: Vec<impl Iterator<Item = LogLine>>) -> impl Iterator<Item = (usize, LogLine)> {
    let mut sources: Vec<_> = sources.into_iter().map(Iterator::peekable).collect();
    std::iter::from_fn(move || {
        let times = sources.iter_mut().enumerate().filter_map(|(index, lines)| Some((lines.peek()?.time, index)));
        let (_, next) = times.min()?;
        sources[next].next().map(|line| (next, line))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_line_is_parsed() {
        let line = LogLine::parse("2026-11-22T02:09:29.123456Z  WARN server is slow").unwrap();
        assert_eq!((line.stamp.as_str(), line.level), ("2026-11-22T02:09:29.123456Z", LogLevel::Warn));
        assert_eq!(line.text, "WARN server is slow");
        assert_eq!(humantime::format_rfc3339_micros(line.time).to_string(), line.stamp);
        for half in ["", "slow", "2026-11-22", "2026-13-45T00:00:00Z x", "yesterdayZ x"] {
            assert_eq!(LogLine::parse(half), None, "{half}");
        }
    }

    #[test]
    fn levels_are_found_in_text_in_json_and_in_printed_errors() {
        for (text, level) in [
            ("INFO training starts", LogLevel::Info),
            ("step 12  epoch 1/3", LogLevel::Info),
            ("INFORMAL", LogLevel::Info),
            ("{\"timestamp\":\"2026\",\"level\":\"ERROR\",\"message\":\"x\"}", LogLevel::Error),
            ("{\"level\":\"DEBUG\"}", LogLevel::Debug),
            ("  × the run failed", LogLevel::Error),
            ("  │ because", LogLevel::Error),
            ("Error:   × the run failed", LogLevel::Error),
            ("TRACE x", LogLevel::Trace),
        ] {
            assert_eq!(LogLevel::from_line(text), level, "{text}");
        }
        assert!(LogLevel::Warn < LogLevel::Error && LogLevel::Info < LogLevel::Warn);
    }

    fn texts(lines: impl IntoIterator<Item = LogLine>) -> Vec<String> {
        lines.into_iter().map(|line| line.text).collect()
    }

    fn line(second: u32, text: &str) -> String {
        format!("2026-11-22T02:00:{second:02}.000000Z {text}\n")
    }

    #[test]
    fn roles_are_distinguished_by_their_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in
            ["coordinator.log", "dense-worker-0.log", "dense-worker-0.1.log", "dense-worker-11.log", "notes.txt"]
        {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = find_sources(folder.path()).unwrap();
        let names: Vec<&str> = found.iter().map(|source| source.name.as_str()).collect();
        assert_eq!(names, ["coordinator", "dense worker 0", "dense worker 11"]);
        let count = |role, index| found.iter().filter(|source| source.is_of(role, index)).count();
        let worker = Some("dense worker");
        assert_eq!((count(None, None), count(worker, None), count(worker, Some(11))), (3, 2, 1));
        assert_eq!((count(None, Some(0)), count(Some("coordinator"), None), count(Some("worker"), None)), (1, 1, 0));
    }

    #[test]
    fn lines_of_all_files_come_in_the_order_of_time() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
        write("a.1.log", line(1, "a1"));
        write("a.log", line(4, "a4") + "half a line\n" + &line(5, "a5"));
        write("b.log", line(2, "b2") + &line(4, "b4") + &line(9, "b9"));
        let mut sources = find_sources(folder.path()).unwrap();
        let all = sources.iter_mut().map(|source| source.read_all().unwrap()).collect();
        assert_eq!(texts(merge_by_time(all).map(|(_, line)| line)), ["a1", "b2", "a4", "b4", "a5", "b9"]);
    }

    #[test]
    fn added_lines_are_found_once_also_when_a_file_is_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let add = |text: &str| {
            File::options().create(true).append(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
        };
        add(&line(1, "one"));
        let mut source = find_sources(folder.path()).unwrap().remove(0);
        assert_eq!(texts(source.read_all().unwrap()), ["one"]);
        assert!(source.read_new().unwrap().is_empty());
        let two = line(2, "two");
        let (start, end) = two.split_at(10);
        add(start);
        assert!(source.read_new().unwrap().is_empty(), "half a line was returned");
        add(end);
        add(&line(3, "three"));
        assert_eq!(texts(source.read_new().unwrap()), ["two", "three"]);
        add(&line(4, "four"));
        std::fs::rename(&path, earlier_log(&path)).unwrap();
        add(&line(5, "five"));
        assert_eq!(texts(source.read_new().unwrap()), ["four", "five"]);
    }
}
