//! Exit codes, the form of errors (what, where, why, next step), and answers for programs.

use std::error::Error;
use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;

use clap::Parser;
use miette::{MietteHandlerOpts, Report, ReportHandler};
use serde::Serialize;
use zagros_plumbing::{disk, exit_codes};

use crate::err;
use crate::print::{NoteMode, note_mode};

/// How a command ended. Scripts and the operator depend on the numbers ([`exit_codes`], docs/exit-codes.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Success,
    Internal,
    Usage,
    Data,
    Cluster,
    Diverged,
    Storage,
    Fenced,
    Unhealthy,
    /// The command ended after SIGINT or SIGTERM, and finished its step first.
    Signal(u8),
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Self::Success => exit_codes::SUCCESS,
            Self::Internal => exit_codes::INTERNAL,
            Self::Usage => exit_codes::USAGE,
            Self::Data => exit_codes::DATA,
            Self::Cluster => exit_codes::CLUSTER,
            Self::Diverged => exit_codes::DIVERGED,
            Self::Storage => exit_codes::STORAGE,
            Self::Fenced => exit_codes::FENCED,
            Self::Unhealthy => exit_codes::UNHEALTHY,
            Self::Signal(code) => code,
        }
    }

    /// The meaning of an exit code of another zagros process.
    pub fn meaning(code: i32) -> &'static str {
        exit_codes::code_meaning(code).unwrap_or("unknown exit code")
    }
}

#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    report: Report,
}

impl Failure {
    pub fn new(exit: Exit, report: impl Into<Report>) -> Self {
        Self { exit, report: report.into() }
    }

    /// A one-line error and what to do about it.
    pub fn with_help(exit: Exit, what: impl fmt::Display, help: impl fmt::Display) -> Self {
        Self::new(exit, miette::miette!(help = help.to_string(), "{what}"))
    }

    /// A wrong command line or job file, and what to do about it.
    pub fn usage(what: impl fmt::Display, help: impl fmt::Display) -> Self {
        Self::with_help(Exit::Usage, what, help)
    }

    pub fn unwritable(path: &Path, error: &std::io::Error) -> Self {
        Self::with_help(Exit::Storage, format!("cannot write {}: {error}", path.display()), disk::next_step(error))
    }

    /// A library's error, with those of its causes that its message does not contain.
    pub fn from_error(exit: Exit, error: impl Error) -> Self {
        let mut chain = vec![error.to_string()];
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !chain.iter().any(|shown| shown.contains(&text)) {
                chain.push(text);
            }
            cause = error.source();
        }
        let innermost = miette::miette!("{}", chain.pop().unwrap_or_default());
        Self::new(exit, chain.into_iter().rev().fold(innermost, |report, text| report.wrap_err(text)))
    }

    pub fn exit_status(&self) -> Exit {
        self.exit
    }

    #[must_use]
    pub fn with_advice(self, more: impl fmt::Display) -> Self {
        let messages: Vec<String> = self.report.chain().map(ToString::to_string).collect();
        let help = self.report.help().map_or_else(|| more.to_string(), |help| format!("{help}; {more}"));
        Self::with_help(self.exit, messages.join(": "), help)
    }

    /// Logs the error as a warning. Nothing ends.
    pub fn log_warning(self, what: &str) {
        tracing::warn!(error = %self.report, "{what}");
    }

    /// Prints the error on standard error and returns the exit code.
    fn print(self) -> Exit {
        match note_mode() {
            NoteMode::Logged => self.log(),
            NoteMode::Shown | NoteMode::Hidden => err!("{:?}", self.report),
        }
        self.exit
    }

    /// Logs the error as one line, for a program.
    fn log(&self) {
        let messages: Vec<String> = self.report.chain().map(ToString::to_string).collect();
        let help = self.report.help().map(|help| help.to_string());
        tracing::error!(exit_code = self.exit.code(), help = help.as_deref(), "{}", messages.join(": "));
    }
}

/// The command line. One that is wrong, or asks for help only, ends the process.
pub fn parse_arguments<A: Parser>() -> A {
    A::try_parse().unwrap_or_else(|error| {
        // The reader of the output may be gone.
        let _ = error.print();
        end(error.exit_code())
    })
}

/// Runs a program's command to its end, and ends the process with its exit code.
pub fn run_to_exit(command: impl FnOnce() -> Result<Exit, Failure>) -> ! {
    install_printer();
    let exit = command().unwrap_or_else(Failure::print);
    end(exit.code().into())
}

/// Without the destructors of libraries. Those of libtorch take a fifth of a second to give back memory that goes anyway.
fn end(code: i32) -> ! {
    // The readers of the output may be gone.
    let _ = (std::io::stdout().flush(), std::io::stderr().flush());
    signal_hook::low_level::exit(code)
}

/// Sets the form of errors: lines are broken only for a person at a terminal. For a log, a script and `up` they stay whole,
/// because no reader finds a path that is cut in two.
fn install_printer() {
    let is_terminal = std::io::stderr().is_terminal();
    let handler = move |_: &_| -> Box<dyn ReportHandler> {
        Box::new(MietteHandlerOpts::new().wrap_lines(is_terminal).break_words(false).build())
    };
    // Refused only if there is a hook already, and this is the first.
    let _ = miette::set_hook(Box::new(handler));
}

/// A library's error as the end of a command.
pub trait OrFailure<T>: Sized {
    fn or_exit(self, exit: Exit) -> Result<T, Failure>;

    /// For results whose error can only be a bug or a fault of the machine.
    fn or_internal(self) -> Result<T, Failure> {
        self.or_exit(Exit::Internal)
    }
}

impl<T, E: Error> OrFailure<T> for Result<T, E> {
    fn or_exit(self, exit: Exit) -> Result<T, Failure> {
        self.map_err(|error| Failure::from_error(exit, error))
    }
}

/// Prints a whole answer for a program on standard output. A failed write is an error, because half an answer must not look
/// like success. A reader that closed the pipe wants no more.
pub fn print_answer(text: &str) -> Result<(), Failure> {
    answer_to(anstream::stdout(), text)
}

/// Prints figures: as one JSON object in a line, or for people by `print`.
pub fn print_figures<T: Serialize>(figures: &T, json: bool, print: impl FnOnce(&T)) -> Result<Exit, Failure> {
    print_either(json.then(|| serde_json::to_string(figures)), || print(figures))
}

/// As [`print_figures`], with JSON that people read too.
pub fn print_report<T: Serialize>(report: &T, json: bool, print: impl FnOnce(&T)) -> Result<Exit, Failure> {
    print_either(json.then(|| serde_json::to_string_pretty(report)), || print(report))
}

fn print_either(json: Option<serde_json::Result<String>>, print: impl FnOnce()) -> Result<Exit, Failure> {
    match json {
        Some(text) => print_answer(&text.or_internal()?)?,
        None => print(),
    }
    Ok(Exit::Success)
}

fn answer_to(mut stream: impl Write, text: &str) -> Result<(), Failure> {
    match writeln!(stream, "{text}").and_then(|()| stream.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let what = format!("cannot write to standard output: {error}");
            Err(Failure::with_help(Exit::Internal, what, "check the disk that it goes to"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the disk is full")]
    struct Inner;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot save: {source}")]
    struct Outer {
        source: Inner,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the run failed")]
    struct Outermost(#[source] Outer);

    #[test]
    fn a_cause_that_was_shown_is_not_shown_again() {
        let failure = Failure::from_error(Exit::Internal, Outermost(Outer { source: Inner }));
        let messages: Vec<String> = failure.report.chain().map(ToString::to_string).collect();
        assert_eq!(messages, ["the run failed", "cannot save: the disk is full"]);
    }

    #[test]
    fn advice_is_added_to_the_help() {
        let killed = Failure::with_help(Exit::Cluster, "it was killed", "did memory run out?");
        let chain = Failure::from_error(Exit::Internal, Outermost(Outer { source: Inner }));
        for (failure, advice, exit, what, help) in [
            (killed, "start it again", Exit::Cluster, "it was killed", "did memory run out?; start it again"),
            (chain, "make room", Exit::Internal, "the run failed: cannot save: the disk is full", "make room"),
        ] {
            let failure = failure.with_advice(advice);
            assert_eq!((failure.exit_status(), failure.report.to_string()), (exit, what.to_owned()));
            assert_eq!(failure.report.help().unwrap().to_string(), help);
        }
    }

    struct Broken(ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_answer_that_is_lost_is_a_failure_unless_nobody_wants_it() {
        assert!(answer_to(Vec::new(), "{}").is_ok());
        assert!(answer_to(Broken(ErrorKind::BrokenPipe), "{}").is_ok());
        assert!(answer_to(Broken(ErrorKind::StorageFull), "{}").is_err());
    }
}
