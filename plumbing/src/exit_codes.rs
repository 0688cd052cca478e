//! The exit codes of all programs. Programs, the operator's retries and the test of docs/exit-codes.md use this table.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode {
    /// The code. From 128 on it is 128 plus the number of the signal that ended the process.
    pub code: u8,
    /// The meaning, as a continuation of "ended with 3".
    pub meaning: &'static str,
    /// Whether another attempt may succeed without a change by a person.
    pub is_retryable: bool,
}

pub const SUCCESS: u8 = 0;
/// A bug, or an unforeseen failure of the machine.
pub const INTERNAL: u8 = 1;
/// The command line or the job file is wrong.
pub const USAGE: u8 = 2;
/// Data is missing or malformed.
pub const DATA: u8 = 3;
/// Another process is lost, late or of another version, or a port is taken.
pub const CLUSTER: u8 = 4;
pub const DIVERGED: u8 = 5;
/// A disk is full, or a folder or file cannot be written or read.
pub const STORAGE: u8 = 6;
/// The process was silent for too long, and was fenced.
pub const FENCED: u8 = 7;
/// `zagros doctor` found something that needs a person.
pub const UNHEALTHY: u8 = 8;

pub const EXIT_CODES: [ExitCode; 15] = [
    final_code(SUCCESS, "finished"),
    retryable_code(INTERNAL, "internal error"),
    final_code(USAGE, "the command line or the job file is wrong"),
    final_code(DATA, "data is missing or malformed"),
    retryable_code(CLUSTER, "another process was gone, late, or of another version"),
    final_code(DIVERGED, "training diverged"),
    final_code(STORAGE, "a disk is full, or a folder cannot be written"),
    retryable_code(FENCED, "fenced: it was silent for longer than its lease"),
    final_code(UNHEALTHY, "the doctor found trouble"),
    retryable_code(130, "interrupted"),
    retryable_code(134, "crashed"),
    retryable_code(135, "crashed"),
    retryable_code(137, "killed"),
    retryable_code(139, "crashed"),
    retryable_code(143, "asked to stop"),
];

const fn final_code(code: u8, meaning: &'static str) -> ExitCode {
    ExitCode { code, meaning, is_retryable: false }
}

const fn retryable_code(code: u8, meaning: &'static str) -> ExitCode {
    ExitCode { code, meaning, is_retryable: true }
}

/// The meaning of an exit code. `None` for a code that no Zagros program uses.
pub fn code_meaning(code: i32) -> Option<&'static str> {
    EXIT_CODES.iter().find(|known| i32::from(known.code) == code).map(|known| known.meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_listed_once_and_in_order() {
        assert!(EXIT_CODES.is_sorted_by(|one, next| one.code < next.code));
        assert_eq!((code_meaning(3), code_meaning(99)), (Some("data is missing or malformed"), None));
    }

    /// The page has one row for each code, and no other rows.
    #[test]
    fn the_page_lists_these_codes() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/exit-codes.md");
        let page = std::fs::read_to_string(page).unwrap();
        let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
        let numbers = cells.flat_map(|cell| cell.split(|c: char| !c.is_ascii_digit()));
        let mut listed: Vec<u8> = numbers.filter_map(|code| code.parse().ok()).collect();
        listed.sort_unstable();
        assert_eq!(listed, EXIT_CODES.map(|known| known.code));
    }
}
