//! A child's lines: printed behind its name in its colour, the last few kept for the obituary.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use owo_colors::{AnsiColors, OwoColorize};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use zagros_shell::err;

const KEPT: usize = 12;

/// The last lines of a process.
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

    /// Indented, for an error message.
    pub(crate) fn indented(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(|line| format!("    {line}\n")).collect()
    }
}

/// Name and colour of a child on the screen.
#[derive(Clone, Debug)]
pub(crate) struct Prefix {
    pub(crate) name: String,
    pub(crate) color: AnsiColors,
    /// Lines are kept, and none is printed.
    pub(crate) silent: bool,
}

impl Prefix {
    /// Copies lines until the stream closes. Bytes that are not UTF-8 are shown as �.
    pub(crate) async fn copy(self, stream: impl AsyncRead + Unpin, last: LastLines) {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).await.is_ok_and(|bytes| bytes > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if !self.silent {
                err!("{:<19}│ {text}", self.name.color(self.color));
            }
            last.keep(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_last_lines_are_kept() {
        let last = LastLines::default();
        let prefix = Prefix { name: "test".into(), color: AnsiColors::Cyan, silent: false };
        let text: String = (0..100).map(|number| format!("line {number}\n")).collect();
        prefix.copy(text.as_bytes(), last.clone()).await;
        let kept = last.indented();
        assert_eq!(kept.lines().count(), KEPT);
        assert!(kept.starts_with("    line 88\n") && kept.ends_with("    line 99\n"), "{kept}");
    }
}
