//! Paths of the data path's calls, for clients that are not generated.

/// Path of `Embedding.Lookup`.
pub const LOOKUP: &str = "/zagros.datapath.v1.Embedding/Lookup";
/// Path of `Embedding.Push`.
pub const PUSH: &str = "/zagros.datapath.v1.Embedding/Push";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::embedding_server::SERVICE_NAME;

    #[test]
    fn paths_are_those_of_the_service() {
        assert_eq!((LOOKUP, PUSH), (&format!("/{SERVICE_NAME}/Lookup")[..], &format!("/{SERVICE_NAME}/Push")[..]));
    }
}
