//! Divides a machine's cores if the job does not.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    pub cores: usize,
    pub workers: usize,
    /// Embedding servers on it, one process each; 0 if they are in a worker's process, or alone on their machine.
    pub servers: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPlan {
    pub parse: usize,
    /// Threads of the dense network inside a step of one dense worker.
    pub torch: usize,
    /// Threads of one embedding server that serve requests.
    pub server: usize,
}

impl Machine {
    pub fn this() -> Self {
        Self { cores: core_count(), workers: 1, servers: 0 }
    }

    /// Each worker parses with one thread, or with two on more than four cores. From three cores on, one core is for
    /// embedding rows and network traffic; separate servers share an eighth of the cores instead. The rest is for the
    /// dense network.
    pub fn plan_threads(&self) -> ThreadPlan {
        let (workers, rows) = (self.workers.max(1), self.for_rows());
        let parse = if self.cores / workers <= 4 { 1 } else { 2 };
        let torch = (self.cores.saturating_sub(rows) / workers).saturating_sub(parse).max(1);
        let server = rows.checked_div(self.servers).unwrap_or(self.cores);
        ThreadPlan { parse, torch, server: server.max(1) }
    }

    fn for_rows(&self) -> usize {
        match self.servers {
            _ if self.cores <= 2 => 0,
            0 => 1,
            // The two threads of each worker come first.
            _ => (self.cores / 8).clamp(1, self.cores.saturating_sub(2 * self.workers).max(1)),
        }
    }

    pub fn describe_plan(&self, plan: &ThreadPlan) -> String {
        let workers = self.workers.max(1);
        let rows = (self.servers * plan.server).min(self.for_rows().max(plan.server));
        let mut line = format!("{} dense + {} parse", plan.torch, plan.parse);
        if workers > 1 {
            line = format!("{workers} workers × ({line})");
        }
        line += &match self.servers {
            0 => String::new(),
            1 => format!(" + {rows} server"),
            servers => format!(" + {rows} for {servers} servers"),
        };
        let threads = workers * (plan.torch + plan.parse) + rows;
        line += &format!(" of {} core{}", self.cores, if self.cores == 1 { "" } else { "s" });
        if threads > self.cores {
            line += &format!("; {threads} threads share them, which slows each down");
        }
        line
    }
}

/// Cores that this process may use; 1 if the system does not say.
pub fn core_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(cores: usize, workers: usize, servers: usize) -> [usize; 3] {
        let ThreadPlan { torch, parse, server } = Machine { cores, workers, servers }.plan_threads();
        [torch, parse, server]
    }

    #[test]
    fn one_process_keeps_a_core_for_rows_from_three_on() {
        let torch: Vec<usize> = (0..=4).map(|cores| plan(cores, 1, 0)[0]).collect();
        assert_eq!(torch, [1, 1, 1, 1, 2]);
        assert!((0..=4).all(|cores| plan(cores, 1, 0)[1] == 1));
        // A server that is alone on its machine has all cores.
        assert_eq!(plan(64, 1, 0), [61, 2, 64]);
    }

    #[test]
    fn processes_share_the_cores_of_their_machine() {
        let plans = [plan(4, 1, 1), plan(4, 1, 2), plan(4, 2, 1), plan(16, 2, 2), plan(64, 4, 4), plan(1, 3, 5)];
        assert_eq!(plans, [[2, 1, 1], [2, 1, 1], [1, 1, 1], [5, 2, 1], [12, 2, 2], [1, 1, 1]]);
    }

    #[test]
    fn every_part_has_a_thread_and_no_core_is_given_twice_if_there_are_enough() {
        for cores in 0..300 {
            for (workers, servers) in (1..9).flat_map(|workers| (0..9).map(move |servers| (workers, servers))) {
                let machine = Machine { cores, workers, servers };
                let [torch, parse, server] = plan(cores, workers, servers);
                assert!(torch >= 1 && parse >= 1 && server >= 1, "{machine:?}");
                let given = workers * (torch + parse) + machine.for_rows();
                // A worker needs two threads, and the rows need one.
                assert!(given <= cores.max(2 * workers + 1), "{machine:?}: {given}");
                assert!(servers == 0 || server * servers <= machine.for_rows().max(servers), "{machine:?}");
            }
        }
    }

    #[test]
    fn the_line_has_the_threads_of_each_part_and_says_when_they_are_too_many() {
        let reported = |cores, workers, servers| {
            let machine = Machine { cores, workers, servers };
            machine.describe_plan(&machine.plan_threads())
        };
        assert_eq!(reported(4, 1, 1), "2 dense + 1 parse + 1 server of 4 cores");
        assert_eq!(reported(3, 1, 0), "1 dense + 1 parse of 3 cores");
        assert_eq!(reported(64, 4, 4), "4 workers × (12 dense + 2 parse) + 8 for 4 servers of 64 cores");
        let slowed =
            "2 workers × (1 dense + 1 parse) + 1 for 2 servers of 4 cores; 5 threads share them, which slows each down";
        assert_eq!(reported(4, 2, 2), slowed);
        let asked = ThreadPlan { torch: 9, parse: 1, server: 1 };
        let described = Machine { cores: 4, workers: 1, servers: 0 }.describe_plan(&asked);
        let end = "9 dense + 1 parse of 4 cores; 10 threads share them, which slows each down";
        assert!(described.ends_with(end), "{described}");
    }
}
