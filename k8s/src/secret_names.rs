//! Names of a HybridJob's Secret and of its entries ([`crate::run_secret`]).

use kube::ResourceExt;

use crate::crd::HybridJob;
use crate::names::PodRole;

/// Key of the token that opens `/metrics`, `/status` and the live page, in a HybridJob's Secret.
pub const SECRET_TOKEN: &str = "token";
/// Characters of the owner's uid in the name of its Secret.
const UID_CHARACTERS: usize = 8;

/// Name of a HybridJob's Secret. The name of a HybridJob has no dot, so this is no other HybridJob's.
#[must_use]
pub fn secret_name(owner: &HybridJob) -> String {
    let uid: String = owner.uid().unwrap_or_default().chars().take(UID_CHARACTERS).collect();
    format!("{}.run.{uid}", owner.name_any()).trim_end_matches('.').to_owned()
}

#[must_use]
pub fn secret_entry(role: PodRole) -> &'static str {
    role.short_name()
}
