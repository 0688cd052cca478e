//! How workers in separate processes find each other: through c10d's store, which rank 0 serves.
//!
//! The store has neither password nor encryption. Keep its port inside the cluster's network.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::c10d::connector::BackendConnector;
use crate::c10d::processes::ProcessRank;
use crate::c10d::roll::RankRoll;
use crate::c10d::sys::RendezvousStore;
use crate::c10d::within::run_within_unless;
use zagros_collective::{
    CollectiveError, CollectiveGroup, GroupInterrupt, ProcessGroupConfig, ROLL_CALL, Rendezvous, SingleRank,
    split_address,
};
use zagros_job::CollectiveKind;

/// The rendezvous of a worker in its own process.
#[derive(Debug)]
pub struct StoreRendezvous {
    address: String,
    host: String,
    connector: BackendConnector,
    /// The listener for the store, if this is rank 0. Other ranks never use it.
    listener: Mutex<Option<TcpListener>>,
    /// The store that is served here, for this group and later ones.
    served: Mutex<Option<Arc<RendezvousStore>>>,
}

impl StoreRendezvous {
    /// `address` is the `host:port` at which the others reach `listener`.
    ///
    /// # Errors
    /// [`CollectiveError::Address`] when it is not a valid address, [`CollectiveError::Backend`] when this program or this
    /// machine lacks the backend.
    pub fn new(listener: TcpListener, address: String, backend: CollectiveKind) -> Result<Self, CollectiveError> {
        let (host, _) = split_address(&address)?;
        let connector = BackendConnector::open(backend)?;
        Ok(Self { host, address, connector, listener: Mutex::new(Some(listener)), served: Mutex::new(None) })
    }

    fn open_store(&self, place: &ProcessGroupConfig, left: Duration) -> Result<Arc<RendezvousStore>, CollectiveError> {
        if place.rank != 0 {
            return Self::connect_to_store(place, left);
        }
        let mut served = self.served.lock();
        if let Some(store) = &*served {
            // The connection of this rank to its own store may have broken. The store serves on, at the same address.
            return if store.has_key("any").is_ok() {
                Ok(Arc::clone(store))
            } else {
                Self::connect_to_store(place, left)
            };
        }
        let (host, port) = split_address(&self.address)?;
        let listener = self.listener.lock().take();
        let opened =
            run_within_unless(&place.interrupt, left, move || RendezvousStore::open(&host, port, listener, left));
        let opened = opened.unwrap_or_else(|| Err(format!("it could not be connected to within {left:.1?}")));
        let store = opened.map_err(|reason| CollectiveError::Address { address: self.address.clone(), reason })?;
        Ok(Arc::clone(served.insert(Arc::new(store))))
    }

    fn connect_to_store(place: &ProcessGroupConfig, left: Duration) -> Result<Arc<RendezvousStore>, CollectiveError> {
        let started = Instant::now();
        let (host, port) = split_address(place.rank_address(0))?;
        let opened = run_within_unless(&place.interrupt, left, move || RendezvousStore::open(&host, port, None, left));
        let opened = opened.unwrap_or_else(|| Err("it does not answer".to_owned()));
        opened.map(Arc::new).map_err(|reason| {
            let (waited, reason) = (started.elapsed(), format!("{} ({reason})", place.rank_address(0)));
            CollectiveError::Missing { ranks: vec![0], call: "forming the group", waited, reason }
        })
    }
}

impl Rendezvous for StoreRendezvous {
    fn address(&self) -> &str {
        &self.address
    }

    fn transport(&self) -> &'static str {
        "c10d"
    }

    fn form_group(&self, place: &ProcessGroupConfig) -> Result<Box<dyn CollectiveGroup>, CollectiveError> {
        const CALL: &str = "forming the group";
        if place.world <= 1 {
            return Ok(Box::new(SingleRank));
        }
        let started = Instant::now();
        let left = || place.timeout.saturating_sub(started.elapsed());
        let store = self.open_store(place, left())?;
        // The prefix keeps ranks with another backend, and of another run, out of this group.
        let (backend, ProcessGroupConfig { run, generation, lane, .. }) = (self.connector.backend(), place);
        let prefix = format!("{backend:?} run {run:x} group {generation} {lane:?}/");
        let roll = RankRoll { store, prefix, rank: place.rank, world: place.world };
        let absent = roll.call_roll("here", left(), &place.interrupt);
        if !absent.is_empty() {
            let reason = if place.interrupt.is_set() { GroupInterrupt::REASON } else { "not here in time" };
            let (waited, reason) = (started.elapsed(), reason.to_owned());
            return Err(CollectiveError::Missing { ranks: absent, call: CALL, waited, reason });
        }
        let formed = {
            let (connector, roll) = (self.connector, roll.clone());
            let (host, timeout) = (self.host.clone(), place.timeout);
            let form = move || connector.form_group(&roll, &host, timeout);
            // A minimum even for a late last rank: CUDA alone takes seconds to start.
            let least = if connector.backend() == CollectiveKind::Nccl { timeout } else { ROLL_CALL };
            let formed = run_within_unless(&place.interrupt, left().max(least), form);
            formed.unwrap_or_else(|| Err("connecting takes too long".to_owned()))
        };
        match formed {
            Ok(group) => Ok(Box::new(ProcessRank::new(group, roll, self.connector.backend(), place.interrupt.clone()))),
            Err(reason) => Err(roll.post_mortem(CALL, started, reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c10d::testing::place;
    use crate::c10d::tests::end;

    #[test]
    fn a_rank_that_never_comes_is_named_after_the_timeout() {
        let rank = end(CollectiveKind::Gloo);
        let place = ProcessGroupConfig { timeout: Duration::from_millis(300), ..place(0, 3, rank.address()) };
        let error = rank.form_group(&place).err().unwrap();
        assert_eq!(error.missing_ranks(), [1, 2]);
        assert!(error.to_string().contains("forming the group"), "{error}");
    }

    /// Regression: a rank that formed a group waited for a lost rank until its timeout.
    #[test]
    fn a_rank_that_is_known_to_be_gone_is_not_waited_for() {
        let rank = end(CollectiveKind::Gloo);
        let place = ProcessGroupConfig { timeout: Duration::from_secs(3600), ..place(0, 2, rank.address()) };
        let interrupt = place.interrupt.clone();
        std::thread::spawn(move || interrupt.set());
        let error = rank.form_group(&place).err().unwrap();
        assert!(error.missing_ranks() == [1] && error.to_string().contains("was interrupted"), "{error}");
    }

    #[test]
    fn a_rank_0_that_accepts_and_never_answers_is_named() {
        // Accepts connections into its backlog and never answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let store = listener.local_addr().unwrap().to_string();
        let place = ProcessGroupConfig { timeout: Duration::from_millis(300), ..place(1, 2, &store) };
        let error = end(CollectiveKind::Gloo).form_group(&place).err().unwrap();
        assert_eq!(error.missing_ranks(), [0]);
        assert!(error.to_string().contains(&store), "{error}");
    }

    #[test]
    fn an_invalid_address_is_refused() {
        assert_eq!(split_address("[::1]:80").unwrap(), ("::1".to_owned(), 80));
        for wrong in ["", "host", ":1", "host:x"] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let error = StoreRendezvous::new(listener, wrong.to_owned(), CollectiveKind::Gloo).unwrap_err();
            assert!(error.to_string().contains("is not host:port"), "{error}");
        }
    }
}
