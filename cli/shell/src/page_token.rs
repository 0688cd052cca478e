//! The token of the live page, from the environment, because every user of a machine sees its command lines.

use std::ffi::OsString;
use std::net::SocketAddr;

use zagros_plumbing::admin::{PageAccess, PageToken};
use zagros_transport::Credentials;

use crate::exit::{Exit, Failure};

const TOKEN: &str = "ZAGROS_PAGE_TOKEN";
const FILE: &str = "ZAGROS_PAGE_TOKEN_FILE";

/// The value of `ZAGROS_PAGE_TOKEN`, or the content of the file that `ZAGROS_PAGE_TOKEN_FILE` names. An empty value counts
/// as none.
pub(crate) fn from_environment() -> Result<Option<PageToken>, Failure> {
    find(|name| std::env::var_os(name))
}

/// Who may read the HTTP port of a role at this address. On an address that other machines reach, a reader needs the
/// token: the given one, or the one that is derived from the run's secret.
pub(crate) fn page_access(address: SocketAddr, token: Option<PageToken>, credentials: &Credentials) -> PageAccess {
    let derived = || PageToken::parse(&credentials.page_token().filter(|_| !address.ip().is_loopback())?).ok();
    match token.or_else(derived) {
        // The job asks for no proof: `cluster.insecure`.
        None if !address.ip().is_loopback() => PageAccess::Anyone,
        token => PageAccess::new(address, token),
    }
}

fn find(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<PageToken>, Failure> {
    let given = |name| variable(name).filter(|value| !value.is_empty());
    let (name, text) = match (given(TOKEN), given(FILE)) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            let what = format!("{TOKEN} and {FILE} are both set");
            return Err(Failure::with_help(Exit::Usage, what, "set one of them"));
        }
        (Some(text), None) => (TOKEN, text.to_string_lossy().into_owned()),
        (None, Some(file)) => (FILE, read(&file)?),
    };
    let token = PageToken::parse(text.trim()).map_err(|error| {
        let help =
            "make one with: openssl rand -hex 16, or unset the variable for a random one in the coordinator's log";
        Failure::with_help(Exit::Usage, format!("{name}: {error}"), help)
    })?;
    Ok(Some(token))
}

fn read(file: &OsString) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| {
        let what = format!("{FILE}: cannot read {}: {error}", file.display());
        Failure::with_help(Exit::Usage, what, "check that the secret is mounted there and may be read")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "0123456789abcdef";

    fn found(pairs: &[(&str, &str)]) -> Result<Option<PageToken>, String> {
        let variable =
            |name: &str| pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value));
        find(variable).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn a_token_comes_from_a_variable_or_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, format!("{GOOD}\n")).unwrap();
        let token = PageToken::parse(GOOD).unwrap();
        assert_eq!(found(&[]), Ok(None));
        assert_eq!(found(&[(TOKEN, ""), (FILE, "")]), Ok(None));
        assert_eq!(found(&[(TOKEN, GOOD)]), Ok(Some(token.clone())));
        assert_eq!(found(&[(FILE, file.to_str().unwrap())]), Ok(Some(token)));
    }

    #[test]
    fn a_port_that_other_machines_reach_has_the_token_of_the_runs_secret() {
        let (here, all) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        let secret = Credentials::Secret(zagros_transport::RoleKey::random());
        let own = PageToken::parse(GOOD).unwrap();
        let token = |address, token, credentials| match page_access(address, token, credentials) {
            PageAccess::Token { token, .. } => Ok(token.expose_secret().to_owned()),
            other => Err(format!("{other:?}")),
        };
        assert_eq!(token(here, None, &secret), Err("ThisMachine".to_owned()));
        assert_eq!(token(all, None, &secret), Ok(secret.page_token().unwrap()));
        assert_eq!(token(all, Some(own.clone()), &secret), Ok(GOOD.to_owned()));
        assert_eq!(token(here, Some(own), &Credentials::Open), Ok(GOOD.to_owned()));
        assert_eq!(token(all, None, &Credentials::Open), Err("Anyone".to_owned()));
    }

    #[test]
    fn an_invalid_token_is_reported_with_its_variable() {
        let refusal = |pairs: &[(&str, &str)]| found(pairs).unwrap_err();
        assert!(refusal(&[(TOKEN, "hunter2")]).contains("ZAGROS_PAGE_TOKEN: the token of the page has 7 characters"));
        assert!(refusal(&[(TOKEN, GOOD), (FILE, "x")]).contains("both set"));
        assert!(refusal(&[(FILE, "/nowhere/token")]).contains("cannot read /nowhere/token"));
    }
}
