//! The token of the live page, from the environment, because every user of a machine sees its command lines.

use std::ffi::OsString;

use zagros_coordinator::PageToken;

use crate::exit::{Exit, Failure};

const TOKEN: &str = "ZAGROS_PAGE_TOKEN";
const FILE: &str = "ZAGROS_PAGE_TOKEN_FILE";

/// The value of `ZAGROS_PAGE_TOKEN`, or the content of the file that `ZAGROS_PAGE_TOKEN_FILE` names. An empty value counts
/// as none.
pub(crate) fn from_environment() -> Result<Option<PageToken>, Failure> {
    find(|name| std::env::var_os(name))
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
    fn an_invalid_token_is_reported_with_its_variable() {
        let refusal = |pairs: &[(&str, &str)]| found(pairs).unwrap_err();
        assert!(refusal(&[(TOKEN, "hunter2")]).contains("ZAGROS_PAGE_TOKEN: the token of the page has 7 characters"));
        assert!(refusal(&[(TOKEN, GOOD), (FILE, "x")]).contains("both set"));
        assert!(refusal(&[(FILE, "/nowhere/token")]).contains("cannot read /nowhere/token"));
    }
}
