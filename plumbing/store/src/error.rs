//! Errors of a folder: the operation, the place, the cause, and the next step.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use zagros_plumbing::disk;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {what} {}: {source}; {}", path.display(), disk::next_step(source))]
    Disk { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{text:?} is not a folder: {reason}; give a path, or s3://bucket/prefix")]
    Place { text: String, reason: &'static str },
    #[error("cannot {what} {place} ({endpoint}): {reason}; {}", problem.help(place))]
    Bucket {
        what: &'static str,
        /// The object or prefix, such as `s3://bucket/key`.
        place: String,
        endpoint: String,
        problem: StoreProblem,
        /// The message of the store, without anything about credentials.
        reason: String,
    },
}

/// Kinds of failures of an object store, by their next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreProblem {
    /// Credentials, region or rights are wrong.
    Refused,
    NoBucket,
    Missing,
    /// The store does not answer, or cannot serve.
    Away,
    /// As `Away`, and the environment has no credentials. The failure may be a request for the machine's own
    /// credentials.
    Keyless,
    Environment,
    /// The content is larger than an object may be.
    TooLarge,
    /// A web server sends files only as a whole.
    NoRanges,
}

/// The cause of a failure. Programs map each cause to an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// Names, rights or credentials are wrong.
    Setting,
    Missing,
    /// The store does not answer.
    Away,
    /// The disk failed, or the content is too large for the store.
    Machine,
}

impl StoreProblem {
    fn help(self, place: &str) -> &'static str {
        let scheme = place.split("://").next().unwrap_or_default();
        match self {
            Self::NoRanges => "download the file, or serve it by a server that answers requests for ranges",
            Self::Refused | Self::Keyless if scheme == "gs" => {
                "check GOOGLE_APPLICATION_CREDENTIALS (the file of a service account) in the environment, whether its key has expired, and \
                 that it may list and get there"
            }
            Self::Refused | Self::Keyless if scheme == "az" => {
                "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN) in the environment, whether the \
                 token has expired, and that it may list and read there"
            }
            Self::Refused if scheme.starts_with("http") => {
                "check the URL; if it is signed, its signature may have expired: make a new one"
            }
            Self::Away if scheme != "s3" => "check the address and that the server runs",
            Self::NoBucket if scheme != "s3" => "make the bucket, or correct its name in the URL",
            Self::Missing if scheme != "s3" => "check the URL",
            Self::Refused => {
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION in the environment, whether they have expired, and that the key may \
                 list and get there, and for checkpoints and models put and delete"
            }
            Self::NoBucket => "make the bucket, or correct the name after s3://",
            Self::Missing => "check whether it was deleted, or never completed",
            Self::Away => {
                "check that the store runs and that AWS_ENDPOINT_URL is right; `cluster.timeout_seconds` of a job, or `--timeout` of a \
                 command, waits longer"
            }
            Self::Keyless => {
                "there is no AWS_ACCESS_KEY_ID in the environment, so the role of this machine or pod was requested: \
                 set it and AWS_SECRET_ACCESS_KEY, or give the machine a role; if the role exists, check AWS_ENDPOINT_URL"
            }
            Self::Environment => "correct the environment and start again",
            Self::TooLarge => "use more embedding servers",
        }
    }
}

impl StoreError {
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Disk { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Self::Bucket { problem, .. } => *problem == StoreProblem::Missing,
            Self::Place { .. } => false,
        }
    }

    pub fn fault(&self) -> StoreFault {
        match self {
            Self::Place { .. } => StoreFault::Setting,
            Self::Disk { .. } => StoreFault::Machine,
            Self::Bucket { problem, .. } => match problem {
                StoreProblem::Refused | StoreProblem::NoBucket | StoreProblem::Environment => StoreFault::Setting,
                StoreProblem::Missing => StoreFault::Missing,
                StoreProblem::Away | StoreProblem::Keyless => StoreFault::Away,
                StoreProblem::TooLarge | StoreProblem::NoRanges => StoreFault::Machine,
            },
        }
    }

    /// The error as an I/O error, for code that reads and writes files of any kind.
    pub(crate) fn into_io(self) -> io::Error {
        let kind = match &self {
            Self::Bucket { problem: StoreProblem::Away | StoreProblem::Keyless, .. } => io::ErrorKind::NotConnected,
            error if error.is_missing() => io::ErrorKind::NotFound,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }
}

/// The store's answer in few words. The store's own message may repeat the request with its signature.
pub(crate) fn explain_error(error: &object_store::Error) -> (StoreProblem, String) {
    let mut innermost: &dyn Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let (whole, innermost) = (error.to_string(), innermost.to_string());
    let code = code(&whole).or_else(|| code(&innermost)).map(str::to_owned);
    let problem = match (error, code.as_deref()) {
        (_, Some("NoSuchBucket")) => StoreProblem::NoBucket,
        // A list that is denied is not a `PermissionDenied` of object_store.
        (
            _,
            Some(
                "AccessDenied"
                | "AuthenticationFailed"
                | "AuthorizationFailure"
                | "AuthorizationHeaderMalformed"
                | "ExpiredToken"
                | "InvalidToken"
                | "PermanentRedirect",
            ),
        ) => StoreProblem::Refused,
        (object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }, _) => {
            StoreProblem::Refused
        }
        (object_store::Error::NotFound { .. }, _) => StoreProblem::Missing,
        (object_store::Error::NotSupported { .. }, _) => StoreProblem::NoRanges,
        // The errors of a web server are not divided by kind.
        _ if ["401 Unauthorized", "403 Forbidden"].iter().any(|status| whole.contains(status)) => StoreProblem::Refused,
        _ => StoreProblem::Away,
    };
    let reason = match (problem, code) {
        (StoreProblem::Refused, Some(code)) => format!("the request was refused ({code})"),
        (StoreProblem::Refused, None) => "the request was refused".to_owned(),
        (StoreProblem::NoBucket, _) => "there is no such bucket".to_owned(),
        (StoreProblem::Missing, _) => "the object does not exist".to_owned(),
        (StoreProblem::NoRanges, _) => "the server sends files only as a whole".to_owned(),
        (_, Some(code)) => format!("the store answered {code}"),
        // Without an answer of the store, the message of the transport.
        (_, None) => innermost.lines().next().unwrap_or_default().chars().take(200).collect(),
    };
    (problem, reason)
}

pub(crate) fn no_answer(timeout: Duration) -> (StoreProblem, String) {
    (StoreProblem::Away, format!("no answer for {:.1} s", timeout.as_secs_f64()))
}

/// The error code in the XML of an answer.
fn code(text: &str) -> Option<&str> {
    let (_, after) = text.split_once("<Code>")?;
    after.split_once("</Code>").map(|(code, _)| code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(document: &str) -> Box<dyn Error + Send + Sync> {
        document.into()
    }

    #[test]
    fn messages_of_a_store_about_credentials_are_not_repeated() {
        let document = "<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIA1</AWSAccessKeyId></Error>";
        let error = object_store::Error::PermissionDenied { path: "a/b".into(), source: answered(document) };
        let (problem, reason) = explain_error(&error);
        assert_eq!((problem, &reason[..]), (StoreProblem::Refused, "the request was refused (SignatureDoesNotMatch)"));
    }

    #[test]
    fn failures_are_distinguished_by_their_next_step() {
        let not_found = |document| object_store::Error::NotFound { path: String::new(), source: answered(document) };
        let generic = |document| object_store::Error::Generic { store: "S3", source: answered(document) };
        let problem = |error: object_store::Error| explain_error(&error).0;
        assert_eq!(problem(not_found("<Code>NoSuchBucket</Code>")), StoreProblem::NoBucket);
        assert_eq!(problem(not_found("<Code>NoSuchKey</Code>")), StoreProblem::Missing);
        assert_eq!(problem(generic("<Code>ExpiredToken</Code>")), StoreProblem::Refused);
        assert_eq!(problem(generic("<Code>AccessDenied</Code>")), StoreProblem::Refused);
        assert_eq!(explain_error(&generic("<Code>SlowDown</Code>")).1, "the store answered SlowDown");
        let (away, reason) = explain_error(&generic("connection refused\nmore"));
        assert_eq!((away, &reason[..]), (StoreProblem::Away, "connection refused"));
    }

    #[test]
    fn the_cause_follows_from_the_kind_of_failure() {
        let bucket = |problem| {
            let (place, endpoint, reason) =
                ("s3://models/a".to_owned(), "http://127.0.0.1:9".to_owned(), String::new());
            StoreError::Bucket { what: "write", place, endpoint, problem, reason }
        };
        for (problem, fault) in [
            (StoreProblem::Refused, StoreFault::Setting),
            (StoreProblem::NoBucket, StoreFault::Setting),
            (StoreProblem::Missing, StoreFault::Missing),
            (StoreProblem::Away, StoreFault::Away),
            (StoreProblem::TooLarge, StoreFault::Machine),
        ] {
            assert_eq!(bucket(problem).fault(), fault, "{problem:?}");
        }
        assert_eq!(StoreError::Place { text: "gs://a".to_owned(), reason: "" }.fault(), StoreFault::Setting);
    }
}
