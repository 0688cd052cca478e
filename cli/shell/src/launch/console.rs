//! The destination of the lines of `up` and its children.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::print::{NoteMode, note_mode};
use crate::{err, note};
use owo_colors::{AnsiColors, OwoColorize};
use serde_json::{Map, Value};

/// The console. All processes' lines go through it, one at a time.
#[derive(Clone, Debug, Default)]
pub struct RunConsole {
    is_silent: bool,
    /// Held while a line is printed. In tests it keeps what was said, oldest first.
    said: Arc<Mutex<Vec<String>>>,
}

impl RunConsole {
    pub fn silent() -> Self {
        Self { is_silent: true, ..Self::default() }
    }

    /// Prints a line of `up` itself.
    pub fn print_line(&self, text: String) {
        self.print(&text, || note!("{text}"));
    }

    /// Prints a line of `up` itself, also with `--quiet`.
    pub fn print_warning(&self, text: String) {
        self.print(&text, || match note_mode() {
            NoteMode::Logged => tracing::warn!("{text}"),
            NoteMode::Shown | NoteMode::Hidden => err!("{text}"),
        });
    }

    pub fn print_child_line(&self, name: &str, color: AnsiColors, text: &str) {
        self.print(text, || match note_mode() {
            NoteMode::Logged => err!("{}", with_role(name, text)),
            NoteMode::Shown | NoteMode::Hidden => err!("{:<19}│ {text}", name.color(color)),
        });
    }

    fn print(&self, text: &str, print: impl FnOnce()) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_silent {
            print();
        }
        if cfg!(test) {
            said.push(text.to_owned());
        }
    }
}

/// A child's log line in JSON, with its role. Another line becomes a JSON object.
fn with_role(name: &str, text: &str) -> String {
    let line = serde_json::from_str::<Map<String, Value>>(text);
    let mut line = line.unwrap_or_else(|_| {
        let now = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        let fields = [("timestamp", now), ("level", "INFO".to_owned()), ("message", text.to_owned())];
        fields.into_iter().map(|(key, value)| (key.to_owned(), Value::String(value))).collect()
    });
    line.insert("role".to_owned(), Value::String(name.to_owned()));
    Value::Object(line).to_string()
}

#[cfg(test)]
impl RunConsole {
    pub(crate) fn said_lines(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_line_in_json_names_the_child() {
        let line = with_role("dense worker 0", r#"{"level":"WARN","message":"slow"}"#);
        assert_eq!(line, r#"{"level":"WARN","message":"slow","role":"dense worker 0"}"#);
        let plain: Value = serde_json::from_str(&with_role("coordinator", "half a line")).unwrap();
        assert_eq!((&plain["message"], &plain["role"]), (&"half a line".into(), &"coordinator".into()));
    }
}
