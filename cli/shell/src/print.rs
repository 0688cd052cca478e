//! Printing that survives its reader: `zagros … | head` closes the pipe, which is no error of ours.
//! (The standard macros panic then.)

use std::fmt::Arguments;
use std::io::Write;

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

/// What [`out!`](crate::out) does.
pub fn line_out(text: Arguments<'_>) {
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// What [`err!`](crate::err) does.
pub fn line_err(text: Arguments<'_>) {
    let _ = writeln!(anstream::stderr(), "{text}");
}
