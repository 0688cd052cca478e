//! How a machine's cores are shared when the job does not say.

/// Threads of the two parts of a dense worker that burn CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPlan {
    /// Parser threads.
    pub parse: usize,
    /// Threads of the dense network inside a step.
    pub torch: usize,
}

/// Shares `cores`: one parser on small machines, two on larger ones, a core for embedding rows and the network
/// traffic from three cores on, the rest to the dense network. At least one thread each.
#[must_use]
pub fn plan(cores: usize) -> ThreadPlan {
    let parse = if cores <= 4 { 1 } else { 2 };
    let rows = usize::from(cores > 2);
    ThreadPlan { parse, torch: cores.saturating_sub(parse + rows).max(1) }
}

/// Cores that this process may use; 1 when the system does not tell.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_machines_keep_one_parser() {
        let torch: Vec<usize> = (0..=4).map(|cores| plan(cores).torch).collect();
        assert_eq!(torch, [1, 1, 1, 1, 2]);
        assert!((0..=4).all(|cores| plan(cores).parse == 1));
    }

    #[test]
    fn no_core_is_given_twice_on_larger_machines() {
        for cores in 3..512 {
            let ThreadPlan { parse, torch } = plan(cores);
            assert!(parse >= 1 && torch >= 1 && parse + torch < cores.max(3), "{cores}: {parse} + {torch}");
        }
        assert_eq!(plan(64), ThreadPlan { parse: 2, torch: 61 });
    }
}
