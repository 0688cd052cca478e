//! How Kubernetes writes names and amounts, as regular expressions.

/// Name of most objects: Secrets, claims, classes.
pub(super) const NAME: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
pub(super) const LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
pub(super) const IMAGE: &str = r"^\S+$";
pub(super) const LABEL_VALUE: &str = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
/// Key of a label, an annotation or a node's label, with or without a prefix.
pub(super) const LABEL_KEY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// Name of a variable, as every version of Kubernetes since 1.29 takes it.
pub(super) const VARIABLE: &str = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$";
/// An amount that is not negative: `2`, `500m`, `64Gi`, `1e3`.
pub(super) const AMOUNT: &str = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$";
