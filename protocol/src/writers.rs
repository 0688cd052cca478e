//! Writers of pushes. A dense worker is one by its member id; where weights of the dense network are streamed it is a second one,
//! whose pushes have numbers of their own: a batch has one push of gradients of rows, and one or more for each layer.

/// The bit that tells a worker's second writer from its first. No member id has it.
const TILES: u64 = 1 << 63;

/// The writer of a member that pushes gradients of the dense network.
#[must_use]
pub fn tile_writer(member: u64) -> u64 {
    member | TILES
}

#[must_use]
pub fn member_of_writer(writer: u64) -> u64 {
    writer & !TILES
}

/// Whether the numbers of a writer's pushes count batches. Those of a second writer grow faster.
#[must_use]
pub fn counts_batches(writer: u64) -> bool {
    writer & TILES == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_two_writers() {
        let member = 2 << 32 | 7;
        assert_ne!(tile_writer(member), member);
        assert_eq!((member_of_writer(member), member_of_writer(tile_writer(member))), (member, member));
        assert!(counts_batches(member) && !counts_batches(tile_writer(member)));
    }
}
