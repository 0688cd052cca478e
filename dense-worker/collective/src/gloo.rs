//! A group across processes: c10d's Gloo, its ranks found through a store that rank 0 serves.
//!
//! Every rank writes a key when it comes, and another one when a call fails: so who is missing is known by name. The
//! store has neither password nor encryption; keep its port inside the cluster's network.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::guard::within;
use crate::sys::{Group, Store};
use crate::{Alone, Collective, CollectiveError, Pending, Place, Rendezvous, Sum};

/// How often the keys of others are looked for.
const POLL: Duration = Duration::from_millis(5);
/// How long the others have to say that they are still there, once a call has failed. Their own call fails at the same
/// time: the group's connections are closed by then.
const ROLL_CALL: Duration = Duration::from_secs(2);

/// The call that a step waits in.
const SUM: &str = "an all-reduce";

/// How a worker of its own process meets the others.
#[derive(Debug)]
pub struct GlooRendezvous {
    address: String,
    host: String,
    /// Taken by the store, should this be rank 0; another than rank 0 never uses it.
    listener: Mutex<Option<TcpListener>>,
    /// The one that is served here, for all groups to come.
    served: Mutex<Option<Arc<Store>>>,
}

impl GlooRendezvous {
    /// `address` is the `host:port` at which the others reach `listener`.
    ///
    /// # Errors
    /// [`CollectiveError::Address`] when it is no such address.
    pub fn new(listener: TcpListener, address: String) -> Result<Self, CollectiveError> {
        let (host, _) = split(&address)?;
        Ok(Self { host, address, listener: Mutex::new(Some(listener)), served: Mutex::new(None) })
    }

    fn open(&self, place: &Place, left: Duration) -> Result<Arc<Store>, CollectiveError> {
        if place.rank != 0 {
            return Self::connect(place, left);
        }
        let mut served = self.served.lock();
        if let Some(store) = &*served {
            return Ok(Arc::clone(store));
        }
        let (host, port) = split(&self.address)?;
        let listener = self.listener.lock().take();
        let opened = within(left, move || Store::open(&host, port, listener, left));
        let opened = opened.unwrap_or_else(|| Err(format!("it could not be connected to within {left:.1?}")));
        let store = opened.map_err(|reason| CollectiveError::Address { address: self.address.clone(), reason })?;
        Ok(Arc::clone(served.insert(Arc::new(store))))
    }

    fn connect(place: &Place, left: Duration) -> Result<Arc<Store>, CollectiveError> {
        let started = Instant::now();
        let (host, port) = split(&place.store)?;
        let opened = within(left, move || Store::open(&host, port, None, left));
        let opened = opened.unwrap_or_else(|| Err("it does not answer".to_owned()));
        opened.map(Arc::new).map_err(|reason| CollectiveError::Missing {
            ranks: vec![0],
            call: "forming the group",
            waited: started.elapsed(),
            reason: format!("{} ({reason})", place.store),
        })
    }
}

impl Rendezvous for GlooRendezvous {
    fn address(&self) -> &str {
        &self.address
    }

    fn meet(&self, place: &Place) -> Result<Box<dyn Collective>, CollectiveError> {
        const CALL: &str = "forming the group";
        if place.world <= 1 {
            return Ok(Box::new(Alone));
        }
        let started = Instant::now();
        let left = || place.patience.saturating_sub(started.elapsed());
        let store = self.open(place, left())?;
        let roll = Roll { store, prefix: format!("group {}/", place.generation), rank: place.rank, world: place.world };
        let absent = roll.call("here", left());
        if !absent.is_empty() {
            let (waited, reason) = (started.elapsed(), "not here in time".to_owned());
            return Err(CollectiveError::Missing { ranks: absent, call: CALL, waited, reason });
        }
        let formed = {
            let (roll, host, patience) = (roll.clone(), self.host.clone(), place.patience);
            let form = move || Group::form(&roll.store, &roll.prefix, (roll.rank, roll.world), &host, patience);
            within(left().max(ROLL_CALL), form).unwrap_or_else(|| Err("connecting takes too long".to_owned()))
        };
        match formed {
            Ok(group) => Ok(Box::new(Gloo { group: Some(group), roll, first: None })),
            Err(reason) => Err(roll.post_mortem(CALL, started, reason)),
        }
    }
}

/// Who is there, by the keys in the store.
#[derive(Clone, Debug)]
struct Roll {
    store: Arc<Store>,
    prefix: String,
    rank: usize,
    world: usize,
}

impl Roll {
    /// Says that this rank is there and waits for the others to do so; those who did not in time, ascending. When
    /// the store itself does not answer, that is rank 0, which serves it.
    fn call(&self, word: &'static str, time: Duration) -> Vec<usize> {
        let roll = self.clone();
        let absent = within(time + POLL * 20, move || roll.absent(word, time));
        let absent = absent.and_then(Result::ok).unwrap_or_else(|| vec![0]);
        // The store of a rank 0 that is this one may break too; but this rank is here.
        absent.into_iter().filter(|rank| *rank != self.rank).collect()
    }

    fn absent(&self, word: &str, time: Duration) -> Result<Vec<usize>, String> {
        let started = Instant::now();
        let key = |rank: usize| format!("{}{word}/{rank}", self.prefix);
        self.store.set(&key(self.rank))?;
        let mut absent: Vec<usize> = (0..self.world).collect();
        loop {
            let mut still = Vec::new();
            for rank in absent {
                if !self.store.has(&key(rank))? {
                    still.push(rank);
                }
            }
            if still.is_empty() || started.elapsed() >= time {
                return Ok(still);
            }
            absent = still;
            thread::sleep(POLL);
        }
    }

    /// Why a call failed: the ranks that do not answer to their names.
    fn post_mortem(&self, call: &'static str, started: Instant, reason: String) -> CollectiveError {
        let waited = started.elapsed();
        match self.call("failed", ROLL_CALL) {
            ranks if ranks.is_empty() => CollectiveError::Broken { call, waited, reason },
            ranks => CollectiveError::Missing { ranks, call, waited, reason },
        }
    }
}

/// One rank of a group of processes.
struct Gloo {
    /// None once a call has failed.
    group: Option<Group>,
    roll: Roll,
    first: Option<CollectiveError>,
}

impl Gloo {
    fn run<T>(
        &mut self,
        call: &'static str,
        work: impl FnOnce(&mut Group) -> Result<T, String>,
    ) -> Result<T, CollectiveError> {
        let started = Instant::now();
        let Some(group) = &mut self.group else { return Err(self.failed_before()) };
        let reason = match work(group) {
            Ok(done) => return Ok(done),
            Err(reason) => reason,
        };
        // Closes every connection, so that whoever still waits in this call learns of it at once.
        self.group = None;
        let error = self.roll.post_mortem(call, started, reason);
        self.first = Some(error.clone());
        Err(error)
    }

    fn failed_before(&self) -> CollectiveError {
        let unknown = || CollectiveError::Broken {
            call: "an earlier call",
            waited: Duration::ZERO,
            reason: "it did not say why".to_owned(),
        };
        CollectiveError::Failed { first: Box::new(self.first.clone().unwrap_or_else(unknown)) }
    }

    /// Every rank's part, padded to the length of `mine`.
    fn gather_padded(&mut self, mine: &mut [u8]) -> Result<Vec<u8>, CollectiveError> {
        let mut all = vec![0; mine.len() * self.roll.world];
        if !mine.is_empty() {
            self.run("a gather", |group| group.all_gather(mine, &mut all))?;
        }
        Ok(all)
    }
}

impl Collective for Gloo {
    fn rank(&self) -> usize {
        self.roll.rank
    }

    fn world(&self) -> usize {
        self.roll.world
    }

    fn start_all_reduce_sum(&mut self, values: Vec<f32>) -> Result<Pending, CollectiveError> {
        if values.is_empty() {
            return Ok(Pending(Sum::Done(values)));
        }
        Ok(Pending(Sum::Work(self.run(SUM, |group| group.start_all_reduce(values))?)))
    }

    fn wait(&mut self, pending: Pending) -> Result<Vec<f32>, CollectiveError> {
        match pending.0 {
            Sum::Done(values) => Ok(values),
            Sum::Work(work) => self.run(SUM, |_| work.wait()),
            Sum::Call(..) => Err(CollectiveError::foreign()),
        }
    }

    fn broadcast(&mut self, root: usize, values: &mut [f32]) -> Result<(), CollectiveError> {
        if values.is_empty() {
            return Ok(());
        }
        self.run("a broadcast", |group| group.broadcast(root, values))
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let lengths = self.gather_padded(&mut (mine.len() as u64).to_le_bytes())?;
        let lengths: Vec<usize> =
            lengths.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes) as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut padded = mine.to_vec();
        padded.resize(longest, 0);
        let all = self.gather_padded(&mut padded)?;
        Ok((0..).zip(lengths).map(|(rank, length): (usize, _)| all[rank * longest..][..length].to_vec()).collect())
    }
}

/// Host, without brackets, and port.
fn split(address: &str) -> Result<(String, u16), CollectiveError> {
    let wrong = || CollectiveError::Address { address: address.to_owned(), reason: "it is not host:port".to_owned() };
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().map_err(|_| wrong())?;
    if host.is_empty() { Err(wrong()) } else { Ok((host.to_owned(), port)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, place};

    fn end() -> GlooRendezvous {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        GlooRendezvous::new(listener, address).unwrap()
    }

    #[test]
    fn it_equals_a_plain_sum_for_all_worlds_and_lengths() {
        testing::check_against_plain_sums(|| |_| Box::new(end()) as Box<dyn Rendezvous>);
    }

    #[test]
    fn who_never_comes_is_named_after_the_patience() {
        let rank = end();
        let place = Place { patience: Duration::from_millis(300), ..place(0, 3, rank.address()) };
        let error = rank.meet(&place).err().unwrap();
        assert_eq!(error.missing(), [1, 2]);
        assert!(error.to_string().contains("forming the group"), "{error}");
    }

    #[test]
    fn a_rank_0_that_accepts_and_never_answers_is_named() {
        // Accepts connections into its backlog and never answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let store = listener.local_addr().unwrap().to_string();
        let place = Place { patience: Duration::from_millis(300), ..place(1, 2, &store) };
        let error = end().meet(&place).err().unwrap();
        assert_eq!(error.missing(), [0]);
        assert!(error.to_string().contains(&store), "{error}");
    }

    #[test]
    fn who_does_not_come_to_a_call_is_named_and_the_next_group_forms() {
        let ends = [end(), end(), end()];
        let store = ends[0].address().to_owned();
        let after = testing::ranks(3, |rank| {
            let short = Place { patience: Duration::from_millis(500), ..place(rank, 3, &store) };
            let mut group = ends[rank].meet(&short).unwrap();
            if rank != 2 {
                let error = group.all_reduce_sum(&mut [1.0; 1000]).unwrap_err();
                assert_eq!(error.missing(), [2], "{error}");
                let again = group.barrier().unwrap_err();
                assert!(again.to_string().contains("has failed before") && again.missing() == [2], "{again}");
            }
            // Rank 2 still holds its end of the first group.
            let mut next = ends[rank].meet(&Place { generation: 2, ..place(rank, 3, &store) }).unwrap();
            next.all_gather(&[rank as u8]).unwrap()
        });
        assert_eq!(after, vec![vec![vec![0], vec![1], vec![2]]; 3]);
    }

    #[test]
    fn sums_under_way_end_with_the_group_and_their_memory_is_left_alone() {
        let ends = [end(), end()];
        let store = ends[0].address().to_owned();
        testing::ranks(2, |rank| {
            let short = Place { patience: Duration::from_millis(500), ..place(rank, 2, &store) };
            let mut group = ends[rank].meet(&short).unwrap();
            if rank == 1 {
                group.barrier().unwrap();
                return;
            }
            let barrier = group.start_all_reduce_sum(vec![0.0]).unwrap();
            let sums: Vec<_> = (0..4).map(|_| group.start_all_reduce_sum(vec![1.0; 100_000]).unwrap()).collect();
            assert_eq!(group.wait(barrier).unwrap(), [0.0]);
            let mut sums = sums.into_iter();
            // Given up; the next ones have failed.
            drop(sums.next());
            let error = group.wait(sums.next().unwrap()).unwrap_err();
            assert!(matches!(error, CollectiveError::Broken { .. } | CollectiveError::Missing { .. }), "{error}");
            let again = group.wait(sums.next().unwrap()).unwrap_err();
            assert!(again.to_string().contains("has failed before"), "{again}");
            assert!(group.start_all_reduce_sum(vec![1.0]).is_err());
        });
    }

    #[test]
    fn what_is_no_address_is_refused() {
        assert_eq!(split("[::1]:80").unwrap(), ("::1".to_owned(), 80));
        for wrong in ["", "host", ":1", "host:x"] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let error = GlooRendezvous::new(listener, wrong.to_owned()).unwrap_err();
            assert!(error.to_string().contains("is not host:port"), "{error}");
        }
    }
}
