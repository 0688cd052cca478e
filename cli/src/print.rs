//! Printing that survives its reader: `zagros … | head` closes the pipe, which is no error of ours.
//! (The standard macros panic then.)

/// A line on standard output, styled where that is a terminal.
macro_rules! out {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(anstream::stdout(), $($text)*);
    }};
}

/// A line on standard error, styled where that is a terminal.
macro_rules! err {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(anstream::stderr(), $($text)*);
    }};
}

pub(crate) use {err, out};
