//! One line of a log: time, level, text.

use std::time::SystemTime;

use clap::ValueEnum;
use zagros_launch::split_time;

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
    const ALL: [(Self, &'static str); 5] = [
        (Self::Trace, "TRACE"),
        (Self::Debug, "DEBUG"),
        (Self::Info, "INFO"),
        (Self::Warn, "WARN"),
        (Self::Error, "ERROR"),
    ];

    /// The level of a line without its time, as text or as a JSON object. The printed error that ends a role has the level
    /// of errors. A line without a level is shown at every level.
    pub(crate) fn from_line(text: &str) -> Self {
        let text = text.trim_start();
        let named = |word: &str| Self::ALL.into_iter().find(|(_, name)| *name == word).map(|(level, _)| level);
        let in_json = || text.split("\"level\":\"").nth(1)?.split('"').next();
        let word = if text.starts_with('{') { in_json() } else { text.split_whitespace().next() };
        let is_printed_error = text.starts_with("Error:") || text.starts_with(['×', '│', '╰', '├']);
        word.and_then(named).unwrap_or(if is_printed_error { Self::Error } else { Self::Info })
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

#[cfg(test)]
mod tests {
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
}
