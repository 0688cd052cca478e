//! The last error in a role's log.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes at the end of a log that are read.
const TAIL: u64 = 64 << 10;
/// The most characters of the error.
const LONGEST: usize = 300;

/// The text of the last error; `None` where the log has none, or cannot be read.
#[must_use]
pub fn last_error(log: &Path) -> Option<String> {
    let tail = tail(log).ok()?;
    let error = tail.lines().rev().find_map(error_of)?;
    Some(error.chars().take(LONGEST).collect())
}

fn tail(log: &Path) -> io::Result<String> {
    let mut file = File::open(log)?;
    let start = file.metadata()?.len().saturating_sub(TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The error of a line: a log line of that level, or the first line of a printed error.
fn error_of(line: &str) -> Option<&str> {
    let is_json = line.contains("\"level\":\"ERROR\"");
    let text_after = |mark: &str| line.split_once(mark).map(|(_, text)| text.trim());
    text_after(" ERROR ").or_else(|| text_after("× ")).or_else(|| is_json.then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_found_in_text_in_json_and_as_it_is_printed() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("a.log");
        let error = |text: &str| {
            std::fs::write(&log, text).unwrap();
            last_error(&log)
        };
        assert_eq!(last_error(&folder.path().join("none")), None);
        assert_eq!(error("T INFO fine\n"), None);
        assert_eq!(error("T ERROR one\nT INFO x\nT  ERROR two\nT INFO y\n").as_deref(), Some("two"));
        assert_eq!(error("T INFO x\nT   × the run failed\nT   │ because\n").as_deref(), Some("the run failed"));
        assert!(error("T {\"level\":\"ERROR\",\"message\":\"m\"}").unwrap().contains("\"m\""));
        assert_eq!(error(&"T ERROR x\n".repeat(20_000)).as_deref(), Some("x"));
        assert_eq!(error(&format!("T ERROR {}", "é".repeat(1000))).unwrap().chars().count(), LONGEST);
    }
}
