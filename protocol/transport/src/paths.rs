//! Paths of the data path's calls, for clients that are not generated.

pub const LOOKUP: &str = "/zagros.datapath.v1.Embedding/Lookup";
pub const PUSH: &str = "/zagros.datapath.v1.Embedding/Push";
pub const HINT: &str = "/zagros.datapath.v1.Embedding/Hint";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::embedding_server::SERVICE_NAME;

    #[test]
    fn paths_are_those_of_the_service() {
        let path = |call: &str| format!("/{SERVICE_NAME}/{call}");
        assert_eq!([LOOKUP, PUSH, HINT], ["Lookup", "Push", "Hint"].map(path));
    }
}
