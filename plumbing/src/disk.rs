//! Advice about a file that cannot be written or read.

use std::io::{self, ErrorKind};

/// The next step, by the error of the operating system.
#[must_use]
pub fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room there, or name a folder on another disk",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "let this user write there, or name another folder"
        }
        ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::AlreadyExists => {
            "move the file or folder that is in the way, or name another folder"
        }
        ErrorKind::NotFound => "check whether it was moved or deleted",
        _ => "check the disk",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_own_advice() {
        // Linux error numbers: no space, not permitted, is a folder, input/output error.
        let advised = [28, 13, 21, 5].map(|number| next_step(&io::Error::from_raw_os_error(number)));
        assert!(advised[0].starts_with("make room") && advised[1].starts_with("let this user"), "{advised:?}");
        assert!(advised[2].starts_with("move the file or folder") && advised[3] == "check the disk", "{advised:?}");
    }
}
