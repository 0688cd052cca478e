//! One table and several threads, each with its own requests.

use std::sync::Barrier;
use std::time::Instant;

use zagros_table::{LookupMode, RequestBuffers, Table, WeightType};

use crate::limits::{Places, Plain};
use crate::workload::{Ids, Requests};
use crate::{Plan, filled, gradients};

const THREADS: [usize; 3] = [1, 2, 4];

pub(crate) fn run(plan: &Plan) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("\n{} rows, Zipf ids, {cores} cores; million rows a second of all threads (times one thread)", plan.rows);
    println!("dim threads     gather limit            lookup              push");
    for dim in &plan.dims {
        let requests = Requests::new(Ids::Zipf, plan.rows, plan.shape);
        let gathers = gather_limit(plan, *dim, &requests);
        let table = filled(plan.rows, *dim, WeightType::F32, &mut RequestBuffers::new());
        let ids = requests.ids();
        let lookups = THREADS.map(|threads| fastest_rate(plan.passes, threads, &ids, || lookup(&table)));
        let pushes = THREADS.map(|threads| fastest_rate(plan.passes, threads, &ids, || push(&table, ids[0].len())));
        for (index, threads) in THREADS.into_iter().enumerate() {
            let [gather, lookup, push] = [gathers, lookups, pushes].map(|rates| scaled(&rates, index));
            println!("{dim:3} {threads:7} {gather} {lookup} {push}");
        }
        assert_eq!(table.row_count(), plan.rows);
    }
}

fn gather_limit(plan: &Plan, dim: usize, requests: &Requests) -> [f64; 3] {
    let plain = Plain::new(plan.rows, dim);
    let gather = || {
        let mut out = vec![0.0; requests.rows[0].len() * dim];
        let plain = &plain;
        move |rows: &Vec<usize>| plain.gather(Places::Known, rows, &mut out)
    };
    THREADS.map(|threads| fastest_rate(plan.passes, threads, &requests.rows, gather))
}

fn lookup(table: &Table) -> impl FnMut(&Vec<u64>) + Send {
    let (mut out, mut scratch) = (Vec::new(), RequestBuffers::new());
    move |ids| {
        out.resize(ids.len() * table.dim(), 0.0);
        table.lookup(ids, LookupMode::Train, &mut out, &mut scratch).expect("lengths agree");
    }
}

fn push(table: &Table, rows: usize) -> impl FnMut(&Vec<u64>) + Send {
    let (gradients, mut scratch) = (gradients(rows * table.dim()), RequestBuffers::new());
    move |ids| {
        table.push(ids, &gradients, 0, &mut scratch).expect("lengths agree");
    }
}

/// Million rows per second of all threads in the fastest pass. Each thread goes through all requests, from its own
/// start.
fn fastest_rate<T, W>(passes: usize, threads: usize, requests: &[Vec<T>], worker: impl Fn() -> W) -> f64
where
    T: Sync,
    W: FnMut(&Vec<T>) + Send,
{
    let (barrier, mut workers) = (Barrier::new(threads), (0..threads).map(|_| worker()).collect::<Vec<_>>());
    let pass = |number: usize, work: &mut W| {
        barrier.wait();
        let start = Instant::now();
        let (before, after) = requests.split_at(number * requests.len() / threads);
        after.iter().chain(before).for_each(&mut *work);
        barrier.wait();
        start.elapsed().as_secs_f64()
    };
    let fastest = std::thread::scope(|scope| {
        let all =
            |(number, work): (usize, &mut W)| (0..passes).map(|_| pass(number, work)).fold(f64::INFINITY, f64::min);
        let handles: Vec<_> = workers.iter_mut().enumerate().map(|worker| scope.spawn(move || all(worker))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic")).fold(f64::INFINITY, f64::min)
    });
    let rows: usize = requests.iter().map(Vec::len).sum();
    (threads * rows) as f64 / 1e6 / fastest
}

fn scaled(rates: &[f64; 3], index: usize) -> String {
    format!("{:10.1} ({:4.2})", rates[index], rates[index] / rates[0])
}
