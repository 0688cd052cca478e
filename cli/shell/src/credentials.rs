//! The run's secret of a process: from the environment, because every user of a machine sees its command lines; or from
//! the run folder, for the commands that ask a run of this machine.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use zagros_transport::{Credentials, RoleKey};

use crate::exit::{Exit, Failure};

/// The secret itself.
pub const SECRET: &str = "ZAGROS_RUN_SECRET";
pub const SECRET_FILE: &str = "ZAGROS_RUN_SECRET_FILE";

/// Longest content of a file with a secret.
const MOST: u64 = 4096;

/// The access that the environment gives: [`SECRET`] or [`SECRET_FILE`]. An empty value counts as none.
/// Both set, a file that others may read, and a text that is no secret are refused.
pub fn from_environment() -> Result<Credentials, Failure> {
    find(|name| std::env::var_os(name))
}

fn find(variable: impl Fn(&str) -> Option<OsString>) -> Result<Credentials, Failure> {
    let given = |name| variable(name).filter(|value| !value.is_empty());
    match (given(SECRET), given(SECRET_FILE)) {
        (None, None) => Ok(Credentials::Open),
        (Some(_), Some(_)) => {
            Err(Failure::usage(format!("{SECRET} and {SECRET_FILE} are both set"), "set one of them"))
        }
        (Some(text), None) => parse(SECRET, &text),
        (None, Some(file)) => read(SECRET_FILE, Path::new(&file)),
    }
}

fn parse(name: &str, text: &OsStr) -> Result<Credentials, Failure> {
    let key = RoleKey::parse(&text.to_string_lossy()).map_err(|error| {
        let help = "make one with `zagros secret new FOLDER`; `zagros up` makes one by itself (docs/security.md)";
        Failure::usage(format!("{name}: {error}"), help)
    })?;
    Ok(Credentials::Secret(key))
}

/// Reads a secret from a file that other users cannot read. `name` is what named the file.
pub(crate) fn read(name: &str, path: &Path) -> Result<Credentials, Failure> {
    let shown = path.display();
    let failed = |error: std::io::Error| {
        let what = format!("{name}: cannot read {shown}: {error}");
        Failure::usage(what, "check that the secret is mounted there and that this user may read it")
    };
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.permissions().mode() & 0o007 != 0 {
        let what = format!("{name}: every user of this machine may read or write {shown}, so it is no secret");
        return Err(Failure::usage(what, format!("chmod 600 {shown}, and make a new secret")));
    }
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text).map_err(failed)?;
    parse(name, OsStr::new(&text))
}

/// The file in a run folder that `zagros up` writes the run's secret to.
pub fn secret_file(run: &Path) -> PathBuf {
    run.join("roles").join("secret")
}

/// Writes a key to a new file that only this user may read. Replaces an earlier one.
pub fn write_secret(path: &Path, key: &RoleKey) -> Result<(), Failure> {
    let written = || {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // A file that is there keeps its mode when it is opened, and may be a link to another place.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        writeln!(file, "{}", key.expose_secret())?;
        file.sync_all()
    };
    written().map_err(|error| {
        let what = format!("cannot write the run's secret to {}: {error}", path.display());
        Failure::with_help(Exit::Storage, what, "check that the folder exists and that this user may write to it")
    })
}

/// The access to a run of this machine: that of the environment, otherwise the secret in the run folder.
pub(crate) fn of_run(run: &Path) -> Result<Credentials, Failure> {
    let access = from_environment()?;
    let file = secret_file(run);
    if access.is_checked() || !file.exists() {
        return Ok(access);
    }
    read("the run's secret", &file)
}

#[cfg(test)]
mod tests {
    use zagros_transport::PeerRole;

    use super::*;

    fn digits() -> String {
        "0123456789abcdef".repeat(4)
    }

    fn found(pairs: &[(&str, &str)]) -> Result<Option<RoleKey>, String> {
        let variable =
            |name: &str| pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value));
        match find(variable) {
            Ok(Credentials::Open) => Ok(None),
            Ok(Credentials::Secret(key)) => Ok(Some(key)),
            Err(failure) => Err(format!("{failure:?}")),
        }
    }

    #[test]
    fn a_secret_comes_from_a_variable_or_from_a_file_of_this_user() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/secret");
        let key = RoleKey::parse(&digits()).unwrap().derive_key(PeerRole::DenseWorker).unwrap();
        write_secret(&file, &key).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let path = file.to_str().unwrap();
        assert_eq!(found(&[]), Ok(None));
        assert_eq!(found(&[(SECRET, ""), (SECRET_FILE, "")]), Ok(None));
        assert_eq!(found(&[(SECRET, &digits())]), Ok(Some(RoleKey::parse(&digits()).unwrap())));
        assert_eq!(found(&[(SECRET_FILE, path)]), Ok(Some(key)));
        let exposed = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            found(&[(SECRET_FILE, path)]).unwrap_err()
        };
        assert!(exposed(0o644).contains("every user of this machine may read"));
        assert!(exposed(0o602).contains("chmod 600"));
    }

    #[test]
    fn a_secret_that_replaces_a_link_does_not_follow_it() {
        let folder = tempfile::tempdir().unwrap();
        let (file, other) = (folder.path().join("secret"), folder.path().join("other"));
        std::fs::write(&other, "mine").unwrap();
        std::os::unix::fs::symlink(&other, &file).unwrap();
        write_secret(&file, &RoleKey::random()).unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
        assert!(read("test", &file).unwrap().is_checked());
    }

    #[test]
    fn an_invalid_secret_is_reported_with_its_variable_and_without_its_value() {
        let refusal = |pairs: &[(&str, &str)]| found(pairs).unwrap_err();
        let said = refusal(&[(SECRET, "hunter2")]);
        assert!(said.contains("ZAGROS_RUN_SECRET: a run secret is 64 hexadecimal digits"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
        assert!(refusal(&[(SECRET, &digits()), (SECRET_FILE, "x")]).contains("both set"));
        assert!(refusal(&[(SECRET_FILE, "/nowhere/secret")]).contains("cannot read /nowhere/secret"));
    }
}
