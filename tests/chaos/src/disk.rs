//! A disk that takes no more: `RLIMIT_FSIZE` is zero for a while, so each write to a file fails with EFBIG. It hits one
//! process alone.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use zagros_plumbing::durable;

use crate::processes::is_ours;

/// Whether a process may write to files. Errors are passed over: the process may have ended.
pub(crate) fn allow_writes(pid: u32, may_write: bool) {
    let Some(process) = Pid::from_raw(pid.cast_signed()).filter(|_| is_ours(pid)) else { return };
    let limit = if may_write { None } else { Some(0) };
    let _ = prlimit(Some(process), Resource::Fsize, Rlimit { current: limit, maximum: None });
}

/// Starts `program` without the signal of a write beyond the limit, which would end the process, as no disk does.
pub(crate) fn without_signal(program: &Path, folder: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;

    let path = folder.join("start.sh");
    let quoted = program.display().to_string().replace('\'', "'\\''");
    let text = format!("#!/bin/sh\ntrap '' XFSZ\nexec '{quoted}' \"$@\"\n");
    durable::write(&path, text.as_bytes())?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A shell that writes to a file whenever it gets a line.
    #[test]
    fn writes_fail_and_go_on_and_the_process_lives() {
        use std::io::{BufRead, BufReader, Write};
        let folder = tempfile::tempdir().unwrap();
        let program = without_signal(Path::new("/bin/sh"), folder.path()).unwrap();
        let script = "while read line; do if echo $line 2>/dev/null >> out; then echo good; else echo bad; fi; done";
        let mut child = Command::new(program)
            .args(["-c", script])
            .current_dir(folder.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (mut ask, mut answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut written = |child: u32, may_write| {
            allow_writes(child, may_write);
            ask.write_all(b"x\n").unwrap();
            let mut line = String::new();
            answers.read_line(&mut line).unwrap();
            line.trim() == "good"
        };
        let answered: Vec<bool> = [true, false, true].map(|may_write| written(child.id(), may_write)).to_vec();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(answered, [true, false, true]);
    }
}
