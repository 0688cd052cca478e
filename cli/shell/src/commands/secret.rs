//! `secret`: makes the secret of a run, and the keys of its roles, for runs that `zagros up` does not start.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use zagros_transport::{Credentials, PeerRole, RoleKey};

use crate::args::{SecretArgs, SecretCommand};
use crate::credentials::{from_environment, read, write_secret};
use crate::exit::{Exit, Failure, print_answer};
use crate::note;

pub(super) fn run(args: SecretArgs) -> Result<Exit, Failure> {
    match args.command {
        SecretCommand::New { folder, keep } => make(&folder, keep)?,
        SecretCommand::Token { file } => print_token(file.as_deref())?,
    }
    Ok(Exit::Success)
}

/// One file per role, each in a folder of its own, so that a machine or a container can be given one of them.
fn make(folder: &Path, keep: bool) -> Result<(), Failure> {
    let file = |role: PeerRole| folder.join(role.name()).join("key");
    let whole = file(PeerRole::Coordinator);
    let secret = match whole.exists() {
        false => RoleKey::random(),
        true if keep => of_file(&whole)?,
        true => {
            let what = format!("{} is there already", whole.display());
            return Err(Failure::usage(what, "name another folder, or keep it with --keep"));
        }
    };
    for role in PeerRole::ALL {
        let key = secret.derive_key(role).ok_or_else(|| not_whole(&whole))?;
        write_secret(&file(role), &key)?;
    }
    write_token(&folder.join("metrics").join("token"), &secret.page_token())?;
    note!(
        "{}: the run's secret, and a key for each role; give each process the key of its own role with \
         ZAGROS_RUN_SECRET_FILE",
        folder.display()
    );
    Ok(())
}

/// Opens metrics and the live page, and nothing else. Prometheus runs as another user.
fn write_token(path: &Path, token: &str) -> Result<(), Failure> {
    let written = || {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        OpenOptions::new().write(true).create(true).truncate(true).open(path)?.write_all(token.as_bytes())
    };
    written().map_err(|error| {
        let what = format!("cannot write {}: {error}", path.display());
        Failure::with_help(Exit::Storage, what, "check that this user may write to the folder")
    })
}

fn print_token(file: Option<&Path>) -> Result<(), Failure> {
    let credentials = file.map_or_else(from_environment, |file| read("FILE", file))?;
    let token = credentials.page_token().ok_or_else(|| {
        let help = "name the file, such as roles/secret in the folder of a run of `zagros up`";
        Failure::usage("no secret is given", help)
    })?;
    print_answer(&token)
}

fn of_file(path: &Path) -> Result<RoleKey, Failure> {
    match read("FOLDER", path)? {
        Credentials::Secret(key) => Ok(key),
        Credentials::Open => Err(not_whole(path)),
    }
}

fn not_whole(path: &Path) -> Failure {
    let what = format!("{} is not the secret of a whole run", path.display());
    Failure::usage(what, "name another folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(folder: &Path, role: PeerRole) -> RoleKey {
        of_file(&folder.join(role.name()).join("key")).unwrap()
    }

    #[test]
    fn each_role_has_a_key_of_one_secret_and_a_secret_is_kept_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        make(folder, false).unwrap();
        let secret = key(folder, PeerRole::Coordinator);
        for role in PeerRole::ALL {
            assert_eq!(Some(key(folder, role)), secret.derive_key(role));
        }
        assert_eq!(std::fs::read_to_string(folder.join("metrics/token")).unwrap(), secret.page_token());
        assert!(format!("{:?}", make(folder, false).unwrap_err()).contains("is there already"));
        make(folder, true).unwrap();
        assert_eq!(key(folder, PeerRole::Coordinator), secret);
    }
}
