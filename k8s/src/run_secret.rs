//! The secret of a job's run (docs/security.md): a Secret with a key for each role and the token of the HTTP ports.
//!
//! Made once for each HybridJob, and never changed: processes of a run would no longer know each other. Its name has a
//! part of the owner's uid, so a HybridJob that is made again under its name has another Secret.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use zagros_plumbing::admin::PageToken;
use zagros_transport::{Credentials, PeerRole, RoleKey};

use crate::build::owned_metadata;
use crate::cluster::JobClient;
use crate::crd::HybridJob;
use crate::error::Error;
use crate::names::{PodRole, SECRET_TOKEN, secret_name};

/// Key of the clients' key, which a person gives to `zagros status`.
const CLIENT: &str = "client";

/// What the operator needs of a Secret: to ask the coordinator how the run is doing, and to ask it for another number of servers.
#[derive(Clone, Debug, Default)]
pub struct RunAccess {
    pub token: Option<PageToken>,
    /// The proof that a call of the coordinator is allowed.
    pub credentials: Credentials,
}

fn secret(owner: &HybridJob, run: &RoleKey) -> Secret {
    let roles = [
        (PodRole::Coordinator.short_name(), PeerRole::Coordinator),
        (PodRole::Server.short_name(), PeerRole::EmbeddingServer),
        (PodRole::Worker.short_name(), PeerRole::DenseWorker),
        (CLIENT, PeerRole::Client),
    ];
    // The run's secret is the key of the highest role, so there is a key for each role.
    let keys = roles.into_iter().filter_map(|(entry, role)| Some((entry, run.derive_key(role)?.expose_secret())));
    let data = keys
        .chain([(SECRET_TOKEN, run.page_token())])
        .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
    Secret {
        metadata: owned_metadata(owner, secret_name(owner)),
        data: Some(data.collect()),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

impl JobClient {
    /// Makes the Secret unless it is there. Returns what of it can be read.
    pub async fn run_secret(&self, owner: &HybridJob) -> Result<RunAccess, Error> {
        let (name, api) = (secret_name(owner), self.api::<Secret>());
        let read = async || api.get_opt(&name).await.map_err(Error::failed_to(format!("read Secret {name}")));
        if let Some(found) = read().await? {
            return Ok(RunAccess::from_secret(&found));
        }
        let made = api.create(&PostParams::default(), &secret(owner, &RoleKey::random())).await;
        match made.map_err(Error::failed_to(format!("make Secret {name}"))) {
            Ok(made) => Ok(RunAccess::from_secret(&made)),
            // Another operator was faster.
            Err(error) if error.is_conflict() => {
                Ok(read().await?.as_ref().map(RunAccess::from_secret).unwrap_or_default())
            }
            Err(error) => Err(error),
        }
    }
}

impl RunAccess {
    fn from_secret(secret: &Secret) -> Self {
        let text = |key: &str| {
            let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
            std::str::from_utf8(bytes).ok()
        };
        let token = text(SECRET_TOKEN).and_then(PageToken::parse);
        let key = text(PodRole::Coordinator.short_name()).and_then(|key| RoleKey::parse(key).ok());
        Self { token, credentials: key.map_or(Credentials::Open, Credentials::Secret) }
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;

    use super::*;
    use crate::fixture::hybrid_job;

    #[test]
    fn each_role_has_its_own_key_and_the_owner_keeps_the_secret() {
        let (job, run) = (hybrid_job(), RoleKey::random());
        let made = secret(&job, &run);
        assert_eq!(made.metadata.name.as_deref(), Some("ctr.run.11111111"));
        assert_eq!(made.metadata.owner_references.as_ref().unwrap()[0].uid, job.uid().unwrap());
        assert_eq!(made.immutable, Some(true));
        let text = |key: &str| String::from_utf8(made.data.as_ref().unwrap()[key].0.clone()).unwrap();
        for (entry, role) in [
            ("coordinator", PeerRole::Coordinator),
            ("server", PeerRole::EmbeddingServer),
            ("worker", PeerRole::DenseWorker),
            ("client", PeerRole::Client),
        ] {
            assert_eq!(RoleKey::parse(&text(entry)).unwrap().role(), role, "{entry}");
            assert_eq!(text(entry), run.derive_key(role).unwrap().expose_secret(), "{entry}");
        }
        let access = RunAccess::from_secret(&made);
        assert_eq!(access.token.unwrap().expose_secret(), run.page_token());
        assert!(matches!(access.credentials, Credentials::Secret(key) if key == run));
        assert_eq!(made.data.as_ref().unwrap().len(), 5);
    }
}
