//! Answers for programs.

use std::io::{ErrorKind, Write};

use crate::exit::{Exit, Failure};

/// Prints a whole answer for a program on standard output. A failed write is an error, because half an answer must not look
/// like success. A reader that closed the pipe wants no more.
pub fn print_answer(text: &str) -> Result<(), Failure> {
    answer_to(anstream::stdout(), text)
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
