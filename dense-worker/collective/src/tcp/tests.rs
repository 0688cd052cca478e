//! Groups over TCP: their sums, ranks that are gone or stand still, and strangers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::TcpRendezvous;
use super::greeting::{LineKind, WaitLimit, dial};
use crate::testing::{self, LATE, place};
use crate::{CollectiveError, CollectiveGroup, GroupInterrupt, GroupLane, ProcessGroupConfig, Rendezvous};

fn end() -> TcpRendezvous {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    TcpRendezvous::new(listener, address).unwrap()
}

/// The ranks of a run, each with its place in the first group.
fn ends(world: usize) -> Vec<(TcpRendezvous, ProcessGroupConfig)> {
    let ends: Vec<TcpRendezvous> = (0..world).map(|_| end()).collect();
    let addresses: Vec<String> = ends.iter().map(|end| end.address().to_owned()).collect();
    let places = |rank| ProcessGroupConfig { run: 0xa11, addresses: addresses.clone(), ..place(rank, world, "") };
    ends.into_iter().enumerate().map(|(rank, end)| (end, places(rank))).collect()
}

fn form((end, place): &(TcpRendezvous, ProcessGroupConfig)) -> Box<dyn CollectiveGroup> {
    end.form_group(place).unwrap()
}

/// The place, with another timeout.
fn patient(place: &ProcessGroupConfig, timeout: Duration) -> ProcessGroupConfig {
    ProcessGroupConfig { timeout, ..place.clone() }
}

#[test]
fn sums_equal_a_plain_sum_for_all_worlds_and_lengths() {
    testing::check_against_plain_sums(|| |_| Box::new(end()) as Box<dyn Rendezvous>, 5);
}

#[test]
fn bytes_of_any_length_are_gathered() {
    let ends = ends(3);
    let mine = |rank: usize| vec![rank as u8; [0, 1 << 20, (5 << 19) + 3][rank]];
    for all in testing::ranks(3, |rank| form(&ends[rank]).all_gather(&mine(rank)).unwrap()) {
        assert!(all == (0..3).map(mine).collect::<Vec<_>>());
    }
}

#[test]
fn a_rank_that_leaves_is_named_at_once_and_the_next_generation_forms_without_it() {
    let ends = ends(3);
    let started = Instant::now();
    testing::ranks(3, |rank| {
        let mut group = form(&ends[rank]);
        if rank == 2 {
            return;
        }
        let error = group.all_reduce_sum(&mut [1.0; 100_000]).unwrap_err();
        assert_eq!(error.missing_ranks(), [2], "{error}");
        let again = group.barrier().unwrap_err();
        assert!(again.to_string().contains("has failed before") && again.missing_ranks() == [2], "{again}");
        let (end, place) = &ends[rank];
        let addresses = place.addresses[..2].to_vec();
        let next = ProcessGroupConfig { world: 2, generation: 2, addresses, ..place.clone() };
        assert_eq!(end.form_group(&next).unwrap().all_gather(&[rank as u8]).unwrap(), [[0], [1]]);
    });
    assert!(started.elapsed() < LATE / 2, "{:?}", started.elapsed());
}

#[test]
fn a_rank_that_stands_still_is_named_by_all_others_after_the_timeout() {
    let ends = ends(3);
    let gathered = testing::ranks(3, |rank| {
        let (end, place) = &ends[rank];
        let mut group = end.form_group(&patient(place, Duration::from_secs(1))).unwrap();
        if rank != 2 {
            let error = group.all_reduce_sum(&mut [1.0; 100_000]).unwrap_err();
            assert_eq!(error.missing_ranks(), [2], "{error}");
            assert!(error.to_string().starts_with("rank 2 did not take part in an all-reduce for "), "{error}");
        }
        // Rank 2 holds the first group still.
        let next = ProcessGroupConfig { generation: 2, ..place.clone() };
        end.form_group(&next).unwrap().all_gather(&[rank as u8]).unwrap()
    });
    assert_eq!(gathered, vec![vec![vec![0], vec![1], vec![2]]; 3]);
}

#[test]
fn a_rank_that_never_comes_is_named_with_its_address() {
    let mut ends = ends(3);
    let (end, place) = ends.remove(1);
    // Rank 0 listens, and forms no group. Rank 2 is gone.
    ends.truncate(1);
    let error = end.form_group(&patient(&place, Duration::from_millis(300))).err().unwrap();
    assert_eq!(error.missing_ranks(), [0, 2]);
    let text = error.to_string();
    assert!(
        text.starts_with("ranks 0, 2 did not take part in forming the group for ") && text.contains("in time"),
        "{text}"
    );
    assert!([0, 2].iter().all(|rank| text.contains(place.rank_address(*rank))), "{text}");
    let next = ProcessGroupConfig { generation: 2, world: 2, ..patient(&place, Duration::from_millis(300)) };
    drop(ends);
    let error = end.form_group(&next).err().unwrap();
    assert!(
        error.missing_ranks() == [0] && error.to_string().contains(&format!("{} (", place.addresses[0])),
        "{error}"
    );
}

#[test]
fn a_rank_that_is_known_to_be_gone_is_not_waited_for() {
    let ends = ends(2);
    let (end, place) = &ends[0];
    let place = patient(place, Duration::from_secs(3600));
    let interrupt = place.interrupt.clone();
    thread::spawn(move || interrupt.set());
    let error = end.form_group(&place).err().unwrap();
    assert!(error.missing_ranks() == [1] && error.to_string().contains("was interrupted"), "{error}");
}

#[test]
fn an_interrupt_ends_a_call_before_its_timeout() {
    let ends = ends(2);
    let (tell_end, ended) = mpsc::channel::<()>();
    let (tell_end, ended) = (Mutex::new(Some(tell_end)), Mutex::new(ended));
    testing::ranks(2, |rank| {
        let (end, place) = &ends[rank];
        let mut group = end.form_group(&patient(place, Duration::from_secs(3600))).unwrap();
        if rank == 1 {
            // Stays in the group without a call until the other rank has given up.
            let _ = ended.lock().unwrap().recv_timeout(LATE);
            return;
        }
        thread::spawn({
            let interrupt = place.interrupt.clone();
            move || interrupt.set()
        });
        let error = group.all_reduce_sum(&mut [1.0; 1000]).unwrap_err();
        assert!(error.missing_ranks() == [1] && error.to_string().contains("was interrupted"), "{error}");
        let again = group.all_gather(&[1]).unwrap_err();
        assert!(again.to_string().contains("has failed before"), "{again}");
        tell_end.lock().unwrap().take();
    });
}

#[test]
fn sums_in_flight_end_with_the_group() {
    let ends = ends(2);
    testing::ranks(2, |rank| {
        let mut group = form(&ends[rank]);
        if rank == 1 {
            return group.barrier().unwrap();
        }
        let barrier = group.start_all_reduce_sum(vec![0.0]).unwrap();
        let sums: Vec<_> = (0..3).map(|_| group.start_all_reduce_sum(vec![1.0; 100_000]).unwrap()).collect();
        assert_eq!(group.wait(barrier).unwrap(), [0.0]);
        // The first one is given up.
        for pending in sums.into_iter().skip(1) {
            let error = group.wait(pending).unwrap_err();
            assert!(error.to_string().contains("has failed before") && error.missing_ranks() == [1], "{error}");
        }
    });
}

/// A scanner of ports, a program that speaks something else, and workers of other runs and groups.
#[test]
fn strangers_and_ranks_of_other_groups_change_nothing() {
    let ends = ends(2);
    let (first, place) = &ends[0];
    let connect = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(first.address()).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let _strangers = [connect(b""), connect(b"zagros 1"), connect(&[7; 1000])];
    let short = ProcessGroupConfig { rank: 1, ..patient(place, Duration::from_secs(1)) };
    let others = [
        ProcessGroupConfig { run: 0xb0b, ..short.clone() },
        ProcessGroupConfig { generation: 2, ..short.clone() },
        ProcessGroupConfig { lane: GroupLane::Layers, ..short.clone() },
        ProcessGroupConfig { world: 3, ..short },
    ];
    let others = others.map(|place| thread::spawn(move || end().form_group(&place).err().unwrap()));
    let gathered = testing::ranks(2, |rank| {
        // The first rank sees the others before the second one comes.
        thread::sleep(Duration::from_millis(200 * rank as u64));
        form(&ends[rank]).all_gather(&[rank as u8]).unwrap()
    });
    assert_eq!(gathered, [[[0], [1]], [[0], [1]]]);
    for other in others {
        let error = other.join().unwrap();
        assert_eq!(error.missing_ranks().first(), Some(&0), "{error}");
    }
}

#[test]
fn ranks_with_other_numbers_of_values_fail_together_and_none_is_missing() {
    let ends = ends(2);
    let errors = testing::ranks(2, |rank| form(&ends[rank]).all_reduce_sum(&mut vec![1.0; 3 + 2 * rank]).unwrap_err());
    assert!(errors.iter().any(|error| error.to_string().contains("bytes where")), "{errors:?}");
    assert!(errors.iter().all(|error| matches!(error, CollectiveError::Broken { .. })), "{errors:?}");
}

/// It says that it has 2^60 bytes, and sends five.
#[test]
fn a_length_that_is_not_true_takes_no_memory() {
    let ends = ends(2);
    let failed = testing::ranks(2, |rank| {
        if rank == 0 {
            return form(&ends[0]).all_gather(b"abc").err();
        }
        let limit = WaitLimit::new(LATE, GroupInterrupt::default());
        let [mut values, _roll] = LineKind::ALL.map(|kind| dial(&ends[1].1, (0, kind), &limit).unwrap());
        for number in [8, 1_u64 << 60, 5] {
            values.write_all(&number.to_le_bytes()).unwrap();
        }
        values.write_all(b"hello").unwrap();
        // Stays until the other rank has given up.
        values.set_read_timeout(Some(LATE)).unwrap();
        let _ = values.read_to_end(&mut Vec::new());
        None
    });
    let error = failed[0].as_ref().unwrap();
    assert!(error.to_string().contains("5 bytes where 1048576 were due"), "{error}");
}

#[test]
fn an_invalid_address_is_refused() {
    for wrong in ["", "host", ":1", "host:x"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = TcpRendezvous::new(listener, wrong.to_owned()).unwrap_err();
        assert!(error.to_string().contains("is not host:port"), "{error}");
    }
}
