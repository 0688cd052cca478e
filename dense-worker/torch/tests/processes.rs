//! Ranks in separate processes, one of which is killed. The others learn within seconds which one, and form a group of the
//! next generation without it. This program starts itself again as each rank.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use zagros_collective::{CollectiveError, CollectiveGroup, ProcessGroupConfig, Rendezvous};
use zagros_job::CollectiveKind;
use zagros_torch::StoreRendezvous;

/// Only a test that fails waits this long.
const LATE: Duration = Duration::from_secs(60);
/// Set in a process that is a rank.
const RANK: &str = "ZAGROS_COLLECTIVE_TEST_RANK";

fn main() {
    if let Ok(rank) = std::env::var(RANK) {
        return play(rank.parse().expect("a rank"));
    }
    for (name, test) in [
        ("a_killed_rank_is_named_within_seconds", a_killed_rank_is_named_within_seconds as fn()),
        ("a_killed_rank_0_is_named_though_it_served_the_store", a_killed_rank_0_is_named),
        ("a_stopped_rank_is_named_after_the_timeout", a_stopped_rank_is_named_after_the_timeout),
    ] {
        test();
        println!("test {name} ... ok");
    }
}

fn a_killed_rank_is_named_within_seconds() {
    let mut ranks = Rank::start_all(3);
    form(&mut ranks, 1, LATE);
    ranks[0].ask("sum");
    ranks[1].ask("sum");
    ranks[2].signal(Signal::KILL);
    let started = Instant::now();
    assert_eq!([ranks[0].answer(), ranks[1].answer()], ["missing [2]", "missing [2]"]);
    assert!(started.elapsed() < LATE / 2, "{:?}", started.elapsed());
    ranks.truncate(2);
    form(&mut ranks, 2, LATE);
    sum(&mut ranks);
}

fn a_killed_rank_0_is_named() {
    let mut ranks = Rank::start_all(3);
    form(&mut ranks, 1, LATE);
    sum(&mut ranks);
    ranks[1].ask("sum");
    ranks[2].ask("sum");
    ranks[0].signal(Signal::KILL);
    assert_eq!([ranks[1].answer(), ranks[2].answer()], ["missing [0]", "missing [0]"]);
}

fn a_stopped_rank_is_named_after_the_timeout() {
    for stopped in [0, 1] {
        let mut ranks = Rank::start_all(2);
        form(&mut ranks, 1, Duration::from_secs(1));
        sum(&mut ranks);
        ranks[stopped].signal(Signal::STOP);
        ranks[1 - stopped].ask("sum");
        assert_eq!(ranks[1 - stopped].answer(), format!("missing [{stopped}]"));
    }
}

fn form(ranks: &mut [Rank], generation: u64, timeout: Duration) {
    let (world, store) = (ranks.len(), ranks[0].address.clone());
    for rank in ranks.iter_mut() {
        rank.ask(&format!("meet {world} {generation} {} {store}", timeout.as_millis()));
    }
    for rank in ranks {
        assert_eq!(rank.answer(), "met");
    }
}

fn sum(ranks: &mut [Rank]) {
    let world = ranks.len();
    ranks.iter_mut().for_each(|rank| rank.ask("sum"));
    for rank in ranks {
        assert_eq!(rank.answer(), format!("sum {world}"));
    }
}

/// A process that is one rank. It gets one command per line.
struct Rank {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    address: String,
}

impl Rank {
    fn start_all(world: usize) -> Vec<Self> {
        (0..world).map(Self::start).collect()
    }

    fn start(rank: usize) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut start = Command::new(program);
        start.env(RANK, rank.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = start.spawn().expect("a rank starts");
        let orders = process.stdin.take().expect("piped");
        let mut answers = BufReader::new(process.stdout.take().expect("piped"));
        let address = line(&mut answers);
        Self { process, orders, answers, address }
    }

    fn ask(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the rank listens");
    }

    fn answer(&mut self) -> String {
        line(&mut self.answers)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id().cast_signed()).expect("a process id");
        kill_process(pid, signal).expect("the rank is there");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

/// The process of a rank: reads commands, writes answers.
fn play(rank: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    println!("{address}");
    let rendezvous = StoreRendezvous::new(listener, address, CollectiveKind::Gloo).expect("a good address");
    let mut group: Option<Box<dyn CollectiveGroup>> = None;
    for order in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = order.split(' ').collect();
        let answer = match words.as_slice() {
            ["meet", world, generation, timeout, store] => {
                let number = |text: &str| text.parse::<u64>().expect("a number");
                let place = ProcessGroupConfig {
                    rank,
                    world: number(world) as usize,
                    generation: number(generation),
                    addresses: vec![(*store).to_owned()],
                    timeout: Duration::from_millis(number(timeout)),
                    ..ProcessGroupConfig::default()
                };
                group = None;
                rendezvous.form_group(&place).map(|met| group = Some(met)).map(|()| "met".to_owned())
            }
            _ => group.as_mut().map_or_else(|| panic!("no group"), |group| sum_of_ones(group.as_mut())),
        };
        println!("{}", answer.unwrap_or_else(|error| format!("missing {:?}", error.missing_ranks())));
    }
}

fn sum_of_ones(group: &mut dyn CollectiveGroup) -> Result<String, CollectiveError> {
    // So long that the ranks are in the middle of the call for a while.
    let mut values = vec![1.0; 1 << 20];
    group.all_reduce_sum(&mut values)?;
    Ok(format!("sum {}", values[1 << 19]))
}
