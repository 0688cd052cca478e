//! Errors of talking to Kubernetes, and their remedies.

use std::sync::Arc;

use kube::core::Status;

use crate::names::MANAGER;

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {what}: {}", words(source))]
    Kube {
        /// `apply Service ctr-1-server`.
        what: String,
        #[source]
        source: Arc<kube::Error>,
    },
    #[error("the {kind} of the cluster are not listed after {seconds} s; the operator tries again")]
    Unlisted { kind: String, seconds: u64 },
    #[error("a HybridJob without name or namespace cannot be carried out")]
    Unnamed,
    /// This operator does not lead, and why.
    #[error("the lease {MANAGER} {cause}")]
    LeaseLost { cause: String },
    #[error(
        "Kubernetes' API server does not answer within {seconds} s ({what}); check the address in KUBECONFIG and the network"
    )]
    Unanswered { what: String, seconds: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorRemedy {
    /// Try again soon and report nothing: another writer was faster.
    Again,
    /// Try again later: the network or the API server failed.
    Later,
    /// Report the error to the user under this reason, and wait for a change.
    Report(&'static str),
}

impl Error {
    pub fn failed_to(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Kube { what, source: Arc::new(source) }
    }

    pub fn remedy(&self) -> ErrorRemedy {
        match self {
            Self::Kube { source, .. } => remedy(source),
            _ => ErrorRemedy::Later,
        }
    }

    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if status(source).is_some_and(|status| status.code == 404))
    }

    /// Whether Kubernetes refused the object itself.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if status(source).is_some_and(|status| status.code == 422))
    }

    /// Whether a person has to act before the same request can succeed.
    pub fn needs_a_person(&self) -> bool {
        matches!(self.remedy(), ErrorRemedy::Report(_))
    }

    pub fn is_conflict(&self) -> bool {
        self.remedy() == ErrorRemedy::Again
    }
}

fn remedy(error: &kube::Error) -> ErrorRemedy {
    let Some(status) = status(error) else { return ErrorRemedy::Later };
    match status.code {
        409 => ErrorRemedy::Again,
        // Kubernetes refuses an exceeded quota with the code of a missing permission.
        403 if status.message.contains("exceeded quota") => ErrorRemedy::Report("QuotaExceeded"),
        403 if status.message.contains("being terminated") => ErrorRemedy::Report("NamespaceTerminating"),
        401 | 403 => ErrorRemedy::Report("Forbidden"),
        404 => ErrorRemedy::Report("KindMissing"),
        400 | 422 => ErrorRemedy::Report("Refused"),
        _ => ErrorRemedy::Later,
    }
}

fn status(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

/// Kubernetes' own words, with the next step if there is a general one.
fn words(error: &kube::Error) -> String {
    let Some(status) = status(error) else { return error.to_string() };
    let help = match remedy(error) {
        ErrorRemedy::Report("Forbidden") => {
            "; give the operator's service account this permission (k8s/manifests/rbac.yaml)"
        }
        ErrorRemedy::Report("KindMissing") => {
            "; its custom resource definition is not installed, or the namespace is gone"
        }
        ErrorRemedy::Report("QuotaExceeded") => "; raise the quota of the namespace or make the job smaller",
        _ => "",
    };
    format!("{}{help}", status.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16, message: &str) -> Error {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        Error::failed_to("apply Service ctr-1-server")(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn each_answer_has_its_remedy() {
        let denied = error(403, "services is forbidden: User \"op\" cannot patch resource \"services\"");
        assert_eq!(denied.remedy(), ErrorRemedy::Report("Forbidden"));
        let text = denied.to_string();
        assert!(text.starts_with("cannot apply Service ctr-1-server: services is forbidden"));
        assert!(text.contains("rbac.yaml"));
        assert_eq!(error(403, "exceeded quota: ads").remedy(), ErrorRemedy::Report("QuotaExceeded"));
        assert_eq!(error(409, "").remedy(), ErrorRemedy::Again);
        assert_eq!(error(422, "").remedy(), ErrorRemedy::Report("Refused"));
        assert_eq!(error(503, "").remedy(), ErrorRemedy::Later);
        assert!(error(404, "").is_missing() && !error(422, "").is_missing() && error(422, "").is_refused());
        assert_eq!(Error::Unnamed.remedy(), ErrorRemedy::Later);
    }
}
