//! Rows in each number format of weights: bytes, and the time of lookups and pushes beside f32. The tables take each request in
//! turn, so only the ratios count.

use std::time::Instant;

use zagros_table::{LookupMode, RequestBuffers, Table, WeightType};
use zagros_zip::ZipEq;

use crate::workload::{Ids, Requests};
use crate::{Plan, filled, gradients};

/// Rows that fit into the L2 cache.
const CACHED_ROWS: usize = 2_000;

/// Seconds of all lookups and of all pushes, each with its fastest pass.
type Times = [f64; 2];

pub(crate) fn run(plan: &Plan) {
    println!("\nnanoseconds a row (times f32); Adagrad, uniform ids, one thread");
    println!("dim      rows  weights   bytes/row         lookup           push");
    for dim in &plan.dims {
        for rows in [CACHED_ROWS, plan.rows] {
            print(plan, *dim, rows);
        }
    }
}

fn print(plan: &Plan, dim: usize, rows: usize) {
    let requests = Requests::new(Ids::Uniform, plan.rows, plan.shape);
    let ids = requests.ids();
    let tables = WeightType::ALL.map(|element| filled(rows, dim, element, &mut RequestBuffers::new()));
    let times = in_turn(plan, &tables, &ids);
    let count: usize = ids.iter().map(Vec::len).sum();
    let exact = times[0];
    for (table, times) in tables.iter().zip_eq(&times) {
        let bytes = table.memory_bytes() as f64 / rows as f64;
        let cell = |time: f64, exact: f64| format!("{:7.1} ({:4.2})", time * 1e9 / count as f64, time / exact);
        let [lookup, push] = [0, 1].map(|call| cell(times[call], exact[call]));
        println!("{dim:3} {rows:9}  {:7} {bytes:11.1} {lookup} {push}", table.weight_type().name());
    }
    check(&tables, &ids[0]);
}

fn in_turn(plan: &Plan, tables: &[Table; 4], ids: &[Vec<u64>]) -> [Times; 4] {
    let dim = tables[0].dim();
    let (gradients, mut out) = (gradients(ids[0].len() * dim), vec![0.0; ids[0].len() * dim]);
    let mut scratch = RequestBuffers::new();
    let mut fastest = vec![[[f64::INFINITY; 2]; 4]; ids.len()];
    // Each push has random words of its own.
    let mut step = 0;
    for _ in 0..plan.passes {
        for (ids, fastest) in ids.iter().zip_eq(&mut fastest) {
            for (table, fastest) in tables.iter().zip_eq(&mut *fastest) {
                let start = Instant::now();
                table.lookup(ids, LookupMode::Train, &mut out, &mut scratch).expect("lengths agree");
                fastest[0] = fastest[0].min(start.elapsed().as_secs_f64());
            }
            for (table, fastest) in tables.iter().zip_eq(fastest) {
                let start = Instant::now();
                table.push(ids, &gradients, step, &mut scratch).expect("lengths agree");
                fastest[1] = fastest[1].min(start.elapsed().as_secs_f64());
            }
            step += 1;
        }
    }
    let sum = |table: usize, call: usize| fastest.iter().map(|fastest| fastest[table][call]).sum::<f64>();
    [0, 1, 2, 3].map(|table| [sum(table, 0), sum(table, 1)])
}

/// Narrow rows have learned what exact ones have.
fn check(tables: &[Table; 4], ids: &[u64]) {
    let weights = tables.each_ref().map(|table| {
        let mut out = vec![0.0; ids.len() * table.dim()];
        table.lookup(ids, LookupMode::Read, &mut out, &mut RequestBuffers::new()).expect("lengths agree");
        out
    });
    let [exact, narrow @ ..] = weights;
    let size: f32 = exact.iter().map(|weight| weight.abs()).sum();
    for (weights, table) in narrow.iter().zip_eq(&tables[1..]) {
        let error: f32 = weights.iter().zip_eq(&exact).map(|(weight, exact)| (weight - exact).abs()).sum();
        assert!(error < 0.05 * size, "{}: {error} of {size}", table.weight_type().name());
    }
}
