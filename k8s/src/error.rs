//! What can go wrong while talking to Kubernetes, and what is done about it.

use std::sync::Arc;

use kube::core::Status;

/// An error of the operator.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error("cannot {what}: {}", words(source))]
    Kube {
        /// `apply Service ctr-1-server`.
        what: String,
        /// Why.
        #[source]
        source: Arc<kube::Error>,
    },
    /// A cache of watched objects was not filled in time.
    #[error("the {kind} of the cluster are not listed yet after {seconds} s; it is tried again")]
    Unlisted {
        /// Plural of the kind.
        kind: String,
        /// How long was waited.
        seconds: u64,
    },
    /// An object without a namespace or a name.
    #[error("a HybridJob without name or namespace cannot be carried out")]
    Unnamed,
    /// Another operator leads now.
    #[error(
        "the lease {lease} is held by {holder}: this operator stops, and waits for its turn when it is started anew"
    )]
    Deposed {
        /// Name of the lease.
        lease: String,
        /// Who holds it.
        holder: String,
    },
    /// The lease could not be renewed in time.
    #[error("the lease {lease} could not be renewed for {seconds} s, last because: {cause}")]
    LeaseLost {
        /// Name of the lease.
        lease: String,
        /// How long it was tried.
        seconds: u64,
        /// The last failure.
        cause: String,
    },
}

/// What is done about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Try again soon and report nothing: another writer was faster.
    Again,
    /// Try again later: the network, the API server.
    Later,
    /// Report the error to the user under this reason, and wait for a change.
    Report(&'static str),
}

impl Error {
    /// Wraps a failed request.
    pub fn of(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Kube { what, source: Arc::new(source) }
    }

    /// What is to be done.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Kube { source, .. } => remedy(source),
            Self::Unlisted { .. } | Self::Unnamed | Self::Deposed { .. } | Self::LeaseLost { .. } => Remedy::Later,
        }
    }

    /// Whether what was asked for does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if status(source).is_some_and(|status| status.code == 404))
    }

    /// Whether Kubernetes refused the object itself.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if status(source).is_some_and(|status| status.code == 422))
    }

    /// Whether somebody has to act before the same request can succeed.
    #[must_use]
    pub fn needs_a_person(&self) -> bool {
        matches!(self.remedy(), Remedy::Report(_))
    }

    /// Whether someone changed the object meanwhile.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.remedy() == Remedy::Again
    }
}

fn remedy(error: &kube::Error) -> Remedy {
    let Some(status) = status(error) else { return Remedy::Later };
    match status.code {
        409 => Remedy::Again,
        // A quota is refused with the code of a missing permission.
        403 if status.message.contains("exceeded quota") => Remedy::Report("QuotaExceeded"),
        403 if status.message.contains("being terminated") => Remedy::Report("NamespaceTerminating"),
        401 | 403 => Remedy::Report("Forbidden"),
        404 => Remedy::Report("KindMissing"),
        400 | 422 => Remedy::Report("Refused"),
        _ => Remedy::Later,
    }
}

fn status(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

/// Kubernetes' own words, with the next step where it is always the same.
fn words(error: &kube::Error) -> String {
    let Some(status) = status(error) else { return error.to_string() };
    let help = match remedy(error) {
        Remedy::Report("Forbidden") => {
            "; give the operator's service account this permission (k8s/manifests/rbac.yaml)"
        }
        Remedy::Report("KindMissing") => "; its custom resource definition is not installed, or the namespace is gone",
        Remedy::Report("QuotaExceeded") => "; raise the quota of the namespace or make the job smaller",
        _ => "",
    };
    format!("{}{help}", status.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16, message: &str) -> Error {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        Error::of("apply Service ctr-1-server")(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn each_answer_has_its_remedy() {
        let denied = error(403, "services is forbidden: User \"op\" cannot patch resource \"services\"");
        assert_eq!(denied.remedy(), Remedy::Report("Forbidden"));
        let text = denied.to_string();
        assert!(
            text.starts_with("cannot apply Service ctr-1-server: services is forbidden") && text.contains("rbac.yaml")
        );
        assert_eq!(error(403, "exceeded quota: ads").remedy(), Remedy::Report("QuotaExceeded"));
        assert_eq!(error(409, "").remedy(), Remedy::Again);
        assert_eq!(error(422, "").remedy(), Remedy::Report("Refused"));
        assert_eq!(error(503, "").remedy(), Remedy::Later);
        assert!(error(404, "").is_missing() && !error(422, "").is_missing() && error(422, "").is_refused());
        assert_eq!(Error::Unnamed.remedy(), Remedy::Later);
    }
}
