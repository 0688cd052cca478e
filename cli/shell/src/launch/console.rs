//! The destination of the lines of `up` and its children: the screen, and a short memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::print::{NoteMode, note_mode};
use crate::{err, note};
use owo_colors::{AnsiColors, OwoColorize};
use serde_json::{Map, Value};

const KEPT: usize = 200;

/// The console. All processes' lines go through it.
#[derive(Clone, Debug, Default)]
pub struct RunConsole(Arc<Mutex<ConsoleState>>);

#[derive(Debug, Default)]
struct ConsoleState {
    is_silent: bool,
    /// The last lines, with their process.
    last: VecDeque<ConsoleLine>,
}

#[derive(Clone, Debug)]
struct ConsoleLine {
    /// Name and colour of a child; `None` for lines of `up` itself.
    who: Option<(String, AnsiColors)>,
    text: String,
    /// Whether the line is shown with `--quiet` too.
    is_warning: bool,
}

impl ConsoleLine {
    fn print(&self) {
        match (&self.who, note_mode()) {
            (Some((name, _)), NoteMode::Logged) => err!("{}", with_role(name, &self.text)),
            (Some((name, color)), _) => err!("{:<19}│ {}", name.color(*color), self.text),
            (None, NoteMode::Logged) if self.is_warning => tracing::warn!("{}", self.text),
            (None, NoteMode::Hidden) if self.is_warning => err!("{}", self.text),
            (None, _) => note!("{}", self.text),
        }
    }

    fn plain(&self) -> String {
        match &self.who {
            Some((name, _)) => format!("{name:<19}│ {}", self.text),
            None => self.text.clone(),
        }
    }
}

impl RunConsole {
    /// Prints a line of `up` itself.
    pub fn print_line(&self, text: String) {
        self.put(ConsoleLine { who: None, text, is_warning: false });
    }

    /// Prints a line of `up` itself, also with `--quiet`.
    pub fn print_warning(&self, text: String) {
        self.put(ConsoleLine { who: None, text, is_warning: true });
    }

    pub fn print_child_line(&self, name: &str, color: AnsiColors, text: &str) {
        self.put(ConsoleLine { who: Some((name.to_owned(), color)), text: text.to_owned(), is_warning: false });
    }

    /// Prints nothing.
    #[must_use]
    pub fn silent() -> Self {
        Self(Arc::new(Mutex::new(ConsoleState { is_silent: true, ..ConsoleState::default() })))
    }

    /// The last lines, oldest first, without colours.
    pub fn last_lines(&self) -> Vec<String> {
        self.state().last.iter().map(ConsoleLine::plain).collect()
    }

    fn put(&self, said: ConsoleLine) {
        let mut state = self.state();
        if !state.is_silent {
            // Under the lock, so that lines keep their order.
            said.print();
        }
        if state.last.len() == KEPT {
            state.last.pop_front();
        }
        state.last.push_back(said);
    }

    fn state(&self) -> MutexGuard<'_, ConsoleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
mod tests {
    use super::*;

    #[test]
    fn a_childs_line_in_json_names_the_child() {
        let line = with_role("dense worker 0", r#"{"level":"WARN","message":"slow"}"#);
        assert_eq!(line, r#"{"level":"WARN","message":"slow","role":"dense worker 0"}"#);
        let plain: Value = serde_json::from_str(&with_role("coordinator", "half a line")).unwrap();
        assert_eq!((&plain["message"], &plain["role"]), (&"half a line".into(), &"coordinator".into()));
    }

    #[test]
    fn the_last_lines_are_remembered() {
        let console = RunConsole::silent();
        console.print_line("before".to_owned());
        console.print_child_line("dense worker 0", AnsiColors::Green, "step 1");
        assert_eq!(console.last_lines(), ["before", "dense worker 0     │ step 1"]);
        for number in 0..KEPT {
            console.print_line(number.to_string());
        }
        assert_eq!(console.last_lines().len(), KEPT);
    }
}
