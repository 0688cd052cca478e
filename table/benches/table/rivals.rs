//! Other data structures for rows, with the same requests. Each must end with the table's rows, bit for bit.

use std::hash::BuildHasherDefault;

use dashmap::DashMap;
use hashbrown::{HashMap, HashTable};
use parking_lot::Mutex;
use zagros_table::{RequestBuffers, WeightType, run_wide};
use zagros_zip::ZipEq;

use crate::limits::{EPSILON, LR};
use crate::workload::{Ids, RequestShape, Requests, id_of};
use crate::{Plan, best, filled, gradients};

/// Stripes of the rivals with stripes: as many as a table has.
const STRIPES: usize = zagros_table::DEFAULT_STRIPES;

/// A hash that returns its argument. The ids are already random, so no rival pays for hashing.
#[derive(Default)]
struct AsItIs(u64);

type Build = BuildHasherDefault<AsItIs>;

/// Rows by id: `[weights | accumulator]`.
trait Rows {
    fn insert(&mut self, id: u64, row: &[f32]);

    fn lookup(&self, ids: &[u64], dim: usize, out: &mut [f32]);

    fn update(&mut self, ids: &[u64], dim: usize, gradients: &[f32]);
}

struct DashBoxes(DashMap<u64, Box<[f32]>, Build>);

/// Slots in one array. A dashmap finds their numbers.
struct DashSlots(DashMap<u64, usize, Build>, Vec<f32>);

struct Boxes(HashMap<u64, Box<[f32]>, Build>);

/// Stripes with a lock each: a hashbrown table of ids and slots, and an array.
struct Stripes(Vec<Mutex<Stripe>>);

#[derive(Default)]
struct Stripe {
    slots: HashTable<(u64, usize)>,
    rows: Vec<f32>,
}

pub(crate) fn run(plan: &Plan) {
    let rows = plan.rows.min(500_000);
    println!("\n{rows} rows, Zipf ids; million rows a second      lookup   update (Adagrad)");
    let shape = RequestShape { requests: plan.shape.requests.min(16), ..plan.shape };
    for dim in &plan.dims {
        let requests = Requests::new(Ids::Zipf, rows, shape);
        let ids = requests.ids();
        let gradients = gradients(ids[0].len() * dim);
        let want = measure_table(plan, rows, *dim, &ids, &gradients);
        let rivals: [(&str, Box<dyn Rows>); 4] = [
            ("dashmap of boxed rows", Box::new(DashBoxes(DashMap::default()))),
            ("dashmap of slots", Box::new(DashSlots(DashMap::default(), Vec::new()))),
            ("hashbrown of boxed rows", Box::new(Boxes(HashMap::default()))),
            ("stripes of hashbrown tables", Box::new(Stripes((0..STRIPES).map(|_| Mutex::default()).collect()))),
        ];
        for (name, mut rival) in rivals {
            (0..rows).for_each(|row| rival.insert(id_of(row), &vec![0.0; 2 * dim]));
            let found = measure(plan, name, rival.as_mut(), *dim, &ids, &gradients);
            assert_eq!(found, want, "{name}: the rows are not the table's");
        }
    }
}

fn measure_table(plan: &Plan, rows: usize, dim: usize, ids: &[Vec<u64>], gradients: &[f32]) -> Vec<f32> {
    let mut scratch = RequestBuffers::new();
    let table = filled(rows, dim, WeightType::F32, &mut scratch);
    let mut out = vec![0.0; gradients.len()];
    let lookup = best(plan.passes, ids, |ids| {
        table.lookup(ids, zagros_table::LookupMode::Train, &mut out, &mut scratch).expect("lengths agree");
    });
    let update = best(plan.passes, ids, |ids| {
        table.push(ids, gradients, 0, &mut scratch).expect("lengths agree");
    });
    report("the table", dim, lookup, update);
    table.lookup(&ids[0], zagros_table::LookupMode::Train, &mut out, &mut scratch).expect("lengths agree");
    out
}

fn measure(plan: &Plan, name: &str, rival: &mut dyn Rows, dim: usize, ids: &[Vec<u64>], gradients: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; gradients.len()];
    let lookup = best(plan.passes, ids, |ids| rival.lookup(ids, dim, &mut out));
    let update = best(plan.passes, ids, |ids| {
        run_wide(
            #[inline(always)]
            || rival.update(ids, dim, gradients),
        );
    });
    report(name, dim, lookup, update);
    rival.lookup(&ids[0], dim, &mut out);
    out
}

fn report(name: &str, dim: usize, lookup: f64, update: f64) {
    println!("  dim {dim:2}  {name:<32} {lookup:8.1} {update:8.1}");
}

impl Rows for DashBoxes {
    fn insert(&mut self, id: u64, row: &[f32]) {
        self.0.insert(id, row.into());
    }

    fn lookup(&self, ids: &[u64], dim: usize, out: &mut [f32]) {
        for (id, out) in ids.iter().zip_eq(out.chunks_exact_mut(dim)) {
            out.copy_from_slice(&self.0.get(id).expect("it was inserted")[..dim]);
        }
    }

    fn update(&mut self, ids: &[u64], dim: usize, gradients: &[f32]) {
        for (id, gradient) in ids.iter().zip_eq(gradients.chunks_exact(dim)) {
            adagrad(&mut self.0.get_mut(id).expect("it was inserted"), gradient);
        }
    }
}

impl Rows for DashSlots {
    fn insert(&mut self, id: u64, row: &[f32]) {
        self.0.insert(id, self.1.len());
        self.1.extend_from_slice(row);
    }

    fn lookup(&self, ids: &[u64], dim: usize, out: &mut [f32]) {
        for (id, out) in ids.iter().zip_eq(out.chunks_exact_mut(dim)) {
            let start = *self.0.get(id).expect("it was inserted");
            out.copy_from_slice(&self.1[start..][..dim]);
        }
    }

    fn update(&mut self, ids: &[u64], dim: usize, gradients: &[f32]) {
        for (id, gradient) in ids.iter().zip_eq(gradients.chunks_exact(dim)) {
            let start = *self.0.get(id).expect("it was inserted");
            adagrad(&mut self.1[start..][..2 * dim], gradient);
        }
    }
}

impl Rows for Boxes {
    fn insert(&mut self, id: u64, row: &[f32]) {
        self.0.insert(id, row.into());
    }

    fn lookup(&self, ids: &[u64], dim: usize, out: &mut [f32]) {
        for (id, out) in ids.iter().zip_eq(out.chunks_exact_mut(dim)) {
            out.copy_from_slice(&self.0[id][..dim]);
        }
    }

    fn update(&mut self, ids: &[u64], dim: usize, gradients: &[f32]) {
        for (id, gradient) in ids.iter().zip_eq(gradients.chunks_exact(dim)) {
            adagrad(self.0.get_mut(id).expect("it was inserted"), gradient);
        }
    }
}

impl Rows for Stripes {
    fn insert(&mut self, id: u64, row: &[f32]) {
        let mut stripe = self.0[id as usize % STRIPES].lock();
        let start = stripe.rows.len();
        stripe.slots.insert_unique(id, (id, start), |(id, _)| *id);
        stripe.rows.extend_from_slice(row);
    }

    fn lookup(&self, ids: &[u64], dim: usize, out: &mut [f32]) {
        for (id, out) in ids.iter().zip_eq(out.chunks_exact_mut(dim)) {
            let stripe = self.0[*id as usize % STRIPES].lock();
            out.copy_from_slice(&stripe.rows[stripe.start(*id)..][..dim]);
        }
    }

    fn update(&mut self, ids: &[u64], dim: usize, gradients: &[f32]) {
        for (id, gradient) in ids.iter().zip_eq(gradients.chunks_exact(dim)) {
            let mut stripe = self.0[*id as usize % STRIPES].lock();
            let start = stripe.start(*id);
            adagrad(&mut stripe.rows[start..][..2 * dim], gradient);
        }
    }
}

impl Stripe {
    fn start(&self, id: u64) -> usize {
        self.slots.find(id, |(other, _)| *other == id).expect("it was inserted").1
    }
}

impl std::hash::Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("ids are numbers");
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

#[inline(always)]
fn adagrad(row: &mut [f32], gradient: &[f32]) {
    let (weights, sums) = row.split_at_mut(gradient.len());
    for index in 0..gradient.len() {
        sums[index] += gradient[index] * gradient[index];
        weights[index] -= LR * gradient[index] / (sums[index].sqrt() + EPSILON);
    }
}
