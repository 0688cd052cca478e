//! Files on a disk: only regular ones are opened, and advice about one that cannot be written or read.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// The next step, by the error of the operating system.
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

/// Opens a regular file only. A name in a job may lead to anything: opening a pipe without a writer waits for ever, and some
/// devices never end. The call never blocks.
pub fn open_file(path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "it is a folder, a pipe or a device, but must be a regular file"))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_own_advice() {
        // Linux error numbers: no space, not permitted, is a folder, input/output error.
        let advised = [28, 13, 21, 5].map(|number| next_step(&io::Error::from_raw_os_error(number)));
        assert!(advised[0].starts_with("make room") && advised[1].starts_with("let this user"), "{advised:?}");
        assert!(advised[2].starts_with("move the file or folder") && advised[3] == "check the disk", "{advised:?}");
    }

    /// Invariant WT-1: opening a pipe without a writer in the usual way never returns.
    #[test]
    fn only_regular_files_are_opened_and_no_open_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, file) = (folder.path().join("pipe"), folder.path().join("file"));
        mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        std::fs::write(&file, "content").unwrap();
        for path in [&pipe, folder.path(), Path::new("/dev/zero")] {
            assert_eq!(open_file(path).unwrap_err().kind(), ErrorKind::InvalidInput, "{}", path.display());
        }
        let mut content = String::new();
        open_file(&file).unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
        assert_eq!(open_file(&folder.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
