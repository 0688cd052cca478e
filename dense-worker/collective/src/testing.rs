//! Helpers for the tests of both kinds of group.

use std::thread;
use std::time::Duration;

use zagros_collective::{CollectiveGroup, ProcessGroupConfig, Rendezvous};
use zagros_zip::ZipEq;

/// Long enough for a busy machine. Only a test that fails waits this long.
pub(crate) const LATE: Duration = Duration::from_secs(60);

/// A rank of a group of the first generation, whose ranks all are at one address.
pub(crate) fn place(rank: usize, world: usize, address: &str) -> ProcessGroupConfig {
    let addresses = vec![address.to_owned(); world];
    ProcessGroupConfig { rank, world, generation: 1, addresses, timeout: LATE, ..ProcessGroupConfig::default() }
}

/// Plays every rank on its own thread. Returns their answers, by rank.
pub(crate) fn ranks<T: Send>(world: usize, play: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..world)
            .map(|rank| {
                scope.spawn({
                    let play = &play;
                    move || play(rank)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// The values of a rank: integers, whose sums are exact in any order.
fn values(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|index| ((rank + 1) * (index % 97)) as f32).collect()
}

/// Sums and gathers of several worlds and lengths against plain ones. `rendezvous` makes a new rendezvous:
/// one end per rank, at most `most`.
pub(crate) fn check_against_plain_sums<Ends>(rendezvous: impl Fn() -> Ends, most: usize)
where
    Ends: Fn(usize) -> Box<dyn Rendezvous>,
{
    for world in 1..=most {
        let ends = rendezvous();
        let ends: Vec<_> = (0..world).map(ends).collect();
        let addresses: Vec<String> = ends.iter().map(|end| end.address().to_owned()).collect();
        ranks(world, |rank| {
            let place = ProcessGroupConfig { addresses: addresses.clone(), ..place(rank, world, "") };
            let mut group = ends[rank].form_group(&place).unwrap();
            assert_eq!((group.rank(), group.world_size()), (rank, world));
            for length in [0, 1, 7, 1000, 300_000] {
                check(group.as_mut(), length);
            }
        });
    }
}

fn check(group: &mut dyn CollectiveGroup, length: usize) {
    let (rank, world) = (group.rank(), group.world_size());
    let mut sums = values(rank, length);
    group.all_reduce_sum(&mut sums).unwrap();
    let plain: Vec<f32> = values((1..=world).sum::<usize>() - 1, length);
    assert_eq!(sums, plain, "rank {rank} of {world}, {length} values");

    // Several sums at once, waited for in another order than they were started in.
    let started: Vec<_> =
        (1..=3).map(|part| group.start_all_reduce_sum(values(rank, length / part)).unwrap()).collect();
    for (part, pending) in [1, 2, 3].into_iter().zip_eq(started).rev() {
        assert_eq!(group.wait(pending).unwrap(), plain[..length / part], "rank {rank} of {world}, {length} / {part}");
    }

    let bytes = |rank: usize| vec![rank as u8; rank * length % 1013];
    assert_eq!(group.all_gather(&bytes(rank)).unwrap(), (0..world).map(bytes).collect::<Vec<_>>());
    check_parts(group, length);
    group.barrier().unwrap();
}

/// Parts of different lengths behind some values that belong to no rank, on each rank another number; the first rank's part is empty.
fn check_parts(group: &mut dyn CollectiveGroup, length: usize) {
    let (rank, world) = (group.rank(), group.world_size());
    let start = 2 + rank;
    let ends = (0..=world).map(|of| length * of * of.saturating_sub(1) / (world * world));
    let bounds: Vec<usize> = ends.map(|end| start + end).collect();
    let placed = |values: Vec<f32>| [vec![-1.0; start], values].concat();
    let (own, end) = (bounds[rank]..bounds[rank + 1], bounds[world]);
    let plain = placed(values((1..=world).sum::<usize>() - 1, length));
    let sums = group.reduce_scatter_sum(placed(values(rank, length)), &bounds).unwrap();
    assert_eq!(sums[own.clone()], plain[own.clone()], "rank {rank} of {world}, {length} values");
    let mut mine = vec![-1.0; start + length];
    mine[own.clone()].copy_from_slice(&plain[own]);
    let all = group.all_gather_parts(mine, &bounds).unwrap();
    assert_eq!(all[..end], plain[..end], "rank {rank} of {world}, {length} values");
    assert!(all[end..].iter().all(|value| *value == -1.0));
    if world > 1 {
        let refused = group.all_gather_parts(vec![0.0], &[0, 2]).unwrap_err();
        assert!(refused.to_string().contains("parts"), "{refused}");
    }
}
