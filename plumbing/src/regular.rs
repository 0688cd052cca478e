//! Opens regular files only. A name in a job may lead to anything: opening a pipe without a writer waits for ever, and
//! some devices never end.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// The call never blocks.
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
