//! Every gRPC port asks for proof of membership (invariant MB-7): no other crate makes a server or a channel of its own.

use zagros_tests::sources;

/// The only crate that makes servers and channels. Tests of other crates may.
const DOOR: &str = "protocol/transport/src/proof";

#[test]
fn servers_and_channels_are_made_behind_the_proof_alone() {
    let mut doors = 0;
    for folder in
        ["bench", "cli", "coordinator", "dense-worker", "embedding-server", "k8s", "plumbing", "protocol", "python"]
    {
        for (path, text) in sources(folder) {
            let path = path.display().to_string();
            if path.contains("/tests/") || path.contains("/benches/") || path.contains("/generated/") {
                continue;
            }
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let makers = [
                "grpc::server_builder()",
                "grpc::channel_endpoint(",
                "connect_lazy()",
                "Endpoint::from",
                "transport::Server;",
            ];
            let found = makers.into_iter().find(|maker| code.contains(maker));
            let is_door = path.contains(DOOR) || path.ends_with("plumbing/src/grpc.rs");
            assert!(found.is_none() || is_door, "{path} has {found:?}: use zagros_transport::serve and open_channel");
            doors += usize::from(found.is_some());
        }
    }
    assert_eq!(doors, 1 + 1, "the check finds what is there");
}
