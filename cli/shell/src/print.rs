//! Printing that survives its reader: `zagros … | head` closes the pipe, which is no error of ours.
//! (The standard macros panic then.)

use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};

/// A line on standard output, styled where that is a terminal.
#[macro_export]
macro_rules! out {
    () => { $crate::print::line_out(format_args!("")) };
    ($($text:tt)+) => { $crate::print::line_out(format_args!($($text)+)) };
}

/// A line on standard error, styled where that is a terminal.
#[macro_export]
macro_rules! err {
    ($($text:tt)+) => { $crate::print::line_err(format_args!($($text)+)) };
}

/// A line that shows a person the progress: on standard error as it is, a log line with `--log-json`, and nothing
/// with `--quiet`.
#[macro_export]
macro_rules! note {
    ($($text:tt)+) => { $crate::print::line_note(format_args!($($text)+)) };
}

/// Whether progress is shown, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notes {
    /// Lines for a person.
    Shown,
    /// Log lines in JSON, for a program.
    Logged,
    /// Warnings and errors alone.
    Hidden,
}

/// Of this process, as its command line has it.
static NOTES: AtomicU8 = AtomicU8::new(0);
const ALL: [Notes; 3] = [Notes::Shown, Notes::Logged, Notes::Hidden];

/// How this process shows progress.
#[must_use]
pub fn notes() -> Notes {
    ALL[usize::from(NOTES.load(Ordering::Relaxed))]
}

/// Sets how progress is shown from now on.
pub(crate) fn tell_notes(how: Notes) {
    NOTES.store(how as u8, Ordering::Relaxed);
}

/// What [`note!`](crate::note) does.
pub fn line_note(text: Arguments<'_>) {
    match notes() {
        Notes::Shown => line_err(text),
        Notes::Logged => tracing::info!("{text}"),
        Notes::Hidden => {}
    }
}

/// What [`out!`](crate::out) does.
pub fn line_out(text: Arguments<'_>) {
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// What [`err!`](crate::err) does.
pub fn line_err(text: Arguments<'_>) {
    let _ = writeln!(anstream::stderr(), "{text}");
}
