//! Printing that survives a closed pipe: `zagros … | head` closes it, and that is no error. The standard macros would
//! panic.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};

/// Prints a line on standard output, styled if that is a terminal.
#[macro_export]
macro_rules! out {
    () => { $crate::print::line_out(format_args!("")) };
    ($($text:tt)+) => { $crate::print::line_out(format_args!($($text)+)) };
}

/// Prints a line on standard error, styled if that is a terminal.
#[macro_export]
macro_rules! err {
    ($($text:tt)+) => { $crate::print::line_err(format_args!($($text)+)) };
}

/// Prints a line about progress for a person, on standard error. It is a log line with `--log-json`, and is not printed
/// with `--quiet`.
#[macro_export]
macro_rules! note {
    ($($text:tt)+) => { $crate::print::line_note(format_args!($($text)+)) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteMode {
    /// Lines for a person.
    Shown,
    /// Log lines in JSON, for a program.
    Logged,
    /// Only warnings and errors.
    Hidden,
}

/// The choice of this process's command line.
static NOTES: AtomicU8 = AtomicU8::new(0);
const ALL: [NoteMode; 3] = [NoteMode::Shown, NoteMode::Logged, NoteMode::Hidden];

pub fn note_mode() -> NoteMode {
    ALL[usize::from(NOTES.load(Ordering::Relaxed))]
}

pub(crate) fn tell_notes(how: NoteMode) {
    NOTES.store(how as u8, Ordering::Relaxed);
}

/// The function behind [`note!`](crate::note).
pub fn line_note(text: Arguments<'_>) {
    match note_mode() {
        NoteMode::Shown => line_err(text),
        NoteMode::Logged => tracing::info!("{text}"),
        NoteMode::Hidden => {}
    }
}

/// The function behind [`out!`](crate::out).
pub fn line_out(text: Arguments<'_>) {
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// The function behind [`err!`](crate::err).
pub fn line_err(text: Arguments<'_>) {
    let _ = writeln!(anstream::stderr(), "{text}");
}
