//! Why a folder could not be used: what was wanted, where, why, and what to do.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use zagros_plumbing::disk;

/// Why a folder could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("cannot {what} {}: {source}; {}", path.display(), disk::advice(source))]
    Disk {
        /// `write`, `read`, …
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// Text that names no folder.
    #[error("{text:?} names no folder: {reason}; give a path, or s3://bucket/prefix")]
    Place {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The object store refused or did not answer.
    #[error("cannot {what} {place} ({endpoint}): {reason}; {}", problem.help())]
    Bucket {
        /// `write`, `read`, …
        what: &'static str,
        /// The object or prefix, `s3://bucket/key`.
        place: String,
        /// Whom was asked.
        endpoint: String,
        /// What kind of failure it is.
        problem: StoreProblem,
        /// In the store's words, without what it says of credentials.
        reason: String,
    },
}

/// What kind of failure of an object store, by what helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreProblem {
    /// Credentials, region or rights.
    Refused,
    /// There is no such bucket.
    NoBucket,
    /// There is no such object.
    Missing,
    /// It does not answer, or says that it cannot.
    Away,
    /// The same, and the environment has no credentials: the machine's own may be what does not answer.
    Keyless,
    /// The environment asks for something that cannot be.
    Environment,
    /// More than an object can hold.
    TooLarge,
}

/// Whose fault a failure is: programs give each an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Names, rights or credentials are wrong.
    Setting,
    /// What was asked for is not there.
    Missing,
    /// The store does not answer.
    Away,
    /// The disk, or more than a store can hold.
    Machine,
}

impl StoreProblem {
    fn help(self) -> &'static str {
        match self {
            Self::Refused => {
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION in the environment, and that the key may \
                 list, get, put and delete there"
            }
            Self::NoBucket => "make the bucket, or correct the name after s3://",
            Self::Missing => "it may have been deleted, or never been finished",
            Self::Away => {
                "is the store running, and is AWS_ENDPOINT_URL right? `cluster.timeout_seconds` of a job, or `--timeout` of a \
                 command, waits longer"
            }
            Self::Keyless => {
                "there is no AWS_ACCESS_KEY_ID in the environment, so that the role of this machine or pod was asked for: \
                 set it and AWS_SECRET_ACCESS_KEY, or give the machine a role; else, is AWS_ENDPOINT_URL right?"
            }
            Self::Environment => "correct the environment and start again",
            Self::TooLarge => "use more embedding servers",
        }
    }
}

impl StoreError {
    /// Whether what was asked for is not there.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Disk { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Self::Bucket { problem, .. } => *problem == StoreProblem::Missing,
            Self::Place { .. } => false,
        }
    }

    /// Whose fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Place { .. } => Fault::Setting,
            Self::Disk { .. } => Fault::Machine,
            Self::Bucket { problem, .. } => match problem {
                StoreProblem::Refused | StoreProblem::NoBucket | StoreProblem::Environment => Fault::Setting,
                StoreProblem::Missing => Fault::Missing,
                StoreProblem::Away | StoreProblem::Keyless => Fault::Away,
                StoreProblem::TooLarge => Fault::Machine,
            },
        }
    }

    /// As an I/O error, for what reads and writes files wherever they are.
    pub(crate) fn into_io(self) -> io::Error {
        let kind = match &self {
            Self::Bucket { problem: StoreProblem::Away | StoreProblem::Keyless, .. } => io::ErrorKind::NotConnected,
            error if error.is_missing() => io::ErrorKind::NotFound,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }
}

/// What a store answered, in few words. Its own may repeat the request with all that was signed.
pub(crate) fn explain(error: &object_store::Error) -> (StoreProblem, String) {
    let mut innermost: &dyn Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let (whole, innermost) = (error.to_string(), innermost.to_string());
    let code = code(&whole).or_else(|| code(&innermost)).map(str::to_owned);
    let problem = match (error, code.as_deref()) {
        (_, Some("NoSuchBucket")) => StoreProblem::NoBucket,
        (_, Some("AuthorizationHeaderMalformed" | "ExpiredToken" | "InvalidToken" | "PermanentRedirect")) => {
            StoreProblem::Refused
        }
        (object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }, _) => {
            StoreProblem::Refused
        }
        (object_store::Error::NotFound { .. }, _) => StoreProblem::Missing,
        _ => StoreProblem::Away,
    };
    let reason = match (problem, code) {
        (StoreProblem::Refused, Some(code)) => format!("the request was refused ({code})"),
        (StoreProblem::Refused, None) => "the request was refused".to_owned(),
        (StoreProblem::NoBucket, _) => "there is no such bucket".to_owned(),
        (StoreProblem::Missing, _) => "it is not there".to_owned(),
        (_, Some(code)) => format!("the store answered {code}"),
        // No document of the store's: the transport's own words.
        (_, None) => innermost.lines().next().unwrap_or_default().chars().take(200).collect(),
    };
    (problem, reason)
}

/// That nothing came back in time.
pub(crate) fn no_answer(timeout: Duration) -> (StoreProblem, String) {
    (StoreProblem::Away, format!("no answer for {:.1} s", timeout.as_secs_f64()))
}

/// The code in the XML of an answer.
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
    fn what_a_store_says_of_credentials_is_not_repeated() {
        let document = "<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIA1</AWSAccessKeyId></Error>";
        let error = object_store::Error::PermissionDenied { path: "a/b".into(), source: answered(document) };
        let (problem, reason) = explain(&error);
        assert_eq!(
            (problem, reason.as_str()),
            (StoreProblem::Refused, "the request was refused (SignatureDoesNotMatch)")
        );
    }

    #[test]
    fn failures_are_distinguished_by_what_helps() {
        let not_found = |document| object_store::Error::NotFound { path: String::new(), source: answered(document) };
        let generic = |document| object_store::Error::Generic { store: "S3", source: answered(document) };
        let problem = |error: object_store::Error| explain(&error).0;
        assert_eq!(problem(not_found("<Code>NoSuchBucket</Code>")), StoreProblem::NoBucket);
        assert_eq!(problem(not_found("<Code>NoSuchKey</Code>")), StoreProblem::Missing);
        assert_eq!(problem(generic("<Code>ExpiredToken</Code>")), StoreProblem::Refused);
        assert_eq!(explain(&generic("<Code>SlowDown</Code>")).1, "the store answered SlowDown");
        assert_eq!(
            explain(&generic("connection refused\nmore")),
            (StoreProblem::Away, "connection refused".to_owned())
        );
    }

    #[test]
    fn whose_fault_it_is_goes_with_what_helps() {
        let bucket = |problem| StoreError::Bucket {
            what: "write",
            place: "s3://models/a".to_owned(),
            endpoint: "http://127.0.0.1:9".to_owned(),
            problem,
            reason: String::new(),
        };
        let faults = [
            StoreProblem::Refused,
            StoreProblem::NoBucket,
            StoreProblem::Missing,
            StoreProblem::Away,
            StoreProblem::TooLarge,
        ]
        .map(|problem| bucket(problem).fault());
        assert_eq!(faults, [Fault::Setting, Fault::Setting, Fault::Missing, Fault::Away, Fault::Machine]);
        assert_eq!(StoreError::Place { text: "gs://a".to_owned(), reason: "" }.fault(), Fault::Setting);
    }
}
