//! The limit of the memory: the same rows in one plain array, with prefetching. In one variant the position of a row is
//! known. In the other a random cache line must be read first, as in every index that is larger than the caches.
//! The table beside it. The speed of a shared machine's memory changes from minute to minute, so both sides take each request
//! in turn, and only their ratio counts.

use std::time::Instant;

use zagros_table::memory::{Arena, MemoryBlock};
use zagros_table::{LookupMode, RequestBuffers, Table, WeightType, prefetch, run_wide};
use zagros_zip::ZipEq;

use crate::workload::{Ids, Requests};
use crate::{Plan, filled, gradients};

/// A row is prefetched this many rows before its use.
const AHEAD: usize = 16;
/// Settings of the Adagrad update.
pub(crate) const LR: f32 = 0.01;
pub(crate) const EPSILON: f32 = 1e-8;

/// Rows per cache line of the index, as in the table's index.
const ROWS_A_LINE: usize = 4;
const LINE: usize = 16;

/// How the position of a row is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    Known,
    /// A random cache line must be read first.
    Indexed,
}

/// Slots `[weights | accumulator]` in one array.
pub(crate) struct Plain {
    slots: MemoryBlock,
    /// Cache lines of zeros. Each must be read to know that it is zero.
    index: MemoryBlock,
    dim: usize,
}

impl Plain {
    pub(crate) fn new(rows: usize, dim: usize) -> Self {
        let arena = Arena::new();
        let zeros = |words: usize| {
            let mut memory = arena.take_block(words);
            memory.as_floats_mut().fill(0.0);
            memory
        };
        Self { slots: zeros(rows * 2 * dim), index: zeros((rows / ROWS_A_LINE + 1) * LINE), dim }
    }

    /// Random gather: copies the weights of each row to consecutive memory.
    pub(crate) fn gather(&self, places: Places, rows: &[usize], out: &mut [f32]) {
        run_wide(
            #[inline(always)]
            || match (self.dim, places) {
                (16, Places::Known) => self.gather_by::<16, false>(rows, out),
                (64, Places::Known) => self.gather_by::<64, false>(rows, out),
                (16, Places::Indexed) => self.gather_by::<16, true>(rows, out),
                (64, Places::Indexed) => self.gather_by::<64, true>(rows, out),
                (dim, _) => panic!("no plain loop for dim {dim}"),
            },
        );
    }

    /// Random read-modify-write: one Adagrad update of each row.
    pub(crate) fn update(&mut self, places: Places, rows: &[usize], gradients: &[f32]) {
        run_wide(
            #[inline(always)]
            || match (self.dim, places) {
                (16, Places::Known) => self.update_by::<16, false>(rows, gradients),
                (64, Places::Known) => self.update_by::<64, false>(rows, gradients),
                (16, Places::Indexed) => self.update_by::<16, true>(rows, gradients),
                (64, Places::Indexed) => self.update_by::<64, true>(rows, gradients),
                (dim, _) => panic!("no plain loop for dim {dim}"),
            },
        );
    }

    #[inline(always)]
    fn gather_by<const DIM: usize, const INDEXED: bool>(&self, rows: &[usize], out: &mut [f32]) {
        let slots = self.slots.as_floats();
        let (out, _) = out.as_chunks_mut::<DIM>();
        for position in 0..rows.len() {
            self.ask_ahead::<INDEXED>(rows, position, |place| prefetch(&slots[place * 2 * DIM..][..DIM]));
            let place = self.place::<INDEXED>(rows[position]);
            out[position].copy_from_slice(&slots[place * 2 * DIM..][..DIM]);
        }
    }

    #[inline(always)]
    fn update_by<const DIM: usize, const INDEXED: bool>(&mut self, rows: &[usize], gradients: &[f32]) {
        let (gradients, _) = gradients.as_chunks::<DIM>();
        for position in 0..rows.len() {
            let slots = self.slots.as_floats();
            self.ask_ahead::<INDEXED>(rows, position, |place| prefetch(&slots[place * 2 * DIM..][..2 * DIM]));
            let place = self.place::<INDEXED>(rows[position]);
            let (weights, sums) = self.slots.as_floats_mut()[place * 2 * DIM..][..2 * DIM].split_at_mut(DIM);
            adagrad::<DIM>(weights, sums, &gradients[position]);
        }
    }

    /// Prefetches a row some rows before its use, and its index line as many rows earlier.
    #[inline(always)]
    fn ask_ahead<const INDEXED: bool>(&self, rows: &[usize], position: usize, ask: impl Fn(usize)) {
        if INDEXED && let Some(row) = rows.get(position + 2 * AHEAD) {
            prefetch(&self.index.words()[self.line(*row)..][..LINE]);
        }
        if let Some(row) = rows.get(position + AHEAD) {
            ask(self.place::<INDEXED>(*row));
        }
    }

    #[inline(always)]
    fn place<const INDEXED: bool>(&self, row: usize) -> usize {
        if INDEXED { row + self.index.words()[self.line(row)] as usize } else { row }
    }

    /// The first word of the index line of a row. The line is random.
    #[inline(always)]
    fn line(&self, row: usize) -> usize {
        let random = (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let lines = self.index.words().len() / LINE;
        ((u128::from(random) * lines as u128) >> 64) as usize * LINE
    }
}

#[inline(always)]
fn adagrad<const DIM: usize>(weights: &mut [f32], sums: &mut [f32], gradient: &[f32; DIM]) {
    let (Ok(weights), Ok(sums)) = (<&mut [f32; DIM]>::try_from(weights), <&mut [f32; DIM]>::try_from(sums)) else {
        return;
    };
    for index in 0..DIM {
        sums[index] += gradient[index] * gradient[index];
        weights[index] -= LR * gradient[index] / (sums[index].sqrt() + EPSILON);
    }
}

/// One side of a comparison. It makes the request of the given number.
type Side<'a> = Box<dyn FnMut(usize) + 'a>;

/// Million rows per second of three sides that took requests in turn.
#[derive(Clone, Copy)]
struct Rates {
    plain: f64,
    indexed: f64,
    table: f64,
}

/// A table, and the requests for it and for plain arrays.
struct Bench<'a> {
    plan: &'a Plan,
    dim: usize,
    requests: Requests,
    ids: Vec<Vec<u64>>,
    gradients: Vec<f32>,
    table: Table,
}

pub(crate) fn run(plan: &Plan) {
    println!(
        "{} rows, fastest of {} passes, one thread; million rows a second and the table's share",
        plan.rows, plan.passes
    );
    println!("known: a gather, or Adagrad's read-modify-write, in an array whose places are known");
    println!("indexed: the same where a random cache line must be read to know a place\n");
    println!("dim ids      what       known       indexed   table   bytes/row");
    for dim in &plan.dims {
        for ids in [Ids::Uniform, Ids::Zipf] {
            Bench::new(plan, *dim, ids).print(ids);
        }
    }
}

impl<'a> Bench<'a> {
    fn new(plan: &'a Plan, dim: usize, ids: Ids) -> Self {
        let requests = Requests::new(ids, plan.rows, plan.shape);
        let ids = requests.ids();
        let gradients = gradients(requests.rows[0].len() * dim);
        let table = filled(plan.rows, dim, WeightType::F32, &mut RequestBuffers::new());
        Self { plan, dim, requests, ids, gradients, table }
    }

    fn print(&self, ids: Ids) {
        let [lookup, update] = self.plain_rates();
        let bytes = self.table.memory_bytes() as f64 / self.plan.rows as f64;
        let ids = format!("{ids:?}").to_lowercase();
        for (what, rates) in [("lookup", lookup), ("update", update)] {
            let [known, indexed] =
                [rates.plain, rates.indexed].map(|of| format!("{of:6.1} {:3.0} %", 100.0 * rates.table / of));
            println!("{:3} {ids:<8} {what} {known}  {indexed}  {:6.1}  {bytes:7.1}", self.dim, rates.table);
        }
    }

    fn plain_rates(&self) -> [Rates; 2] {
        let mut plain = Plain::new(self.plan.rows, self.dim);
        let lookups = self.lookups(&plain);
        let updates = self.updates(&mut plain);
        self.check(&plain);
        [lookups, updates]
    }

    fn lookups(&self, plain: &Plain) -> Rates {
        let mut scratch = RequestBuffers::new();
        let [mut known, mut indexed, mut out] = [0; 3].map(|_| vec![0.0; self.gradients.len()]);
        let rows = &self.requests.rows;
        self.in_turn([
            Box::new(|request| plain.gather(Places::Known, &rows[request], &mut known)),
            Box::new(|request| plain.gather(Places::Indexed, &rows[request], &mut indexed)),
            Box::new(|request| {
                let ids = &self.ids[request];
                self.table.lookup(ids, LookupMode::Train, &mut out, &mut scratch).expect("lengths agree");
            }),
        ])
    }

    fn updates(&self, plain: &mut Plain) -> Rates {
        let (plain, mut scratch) = (std::cell::RefCell::new(plain), RequestBuffers::new());
        let (rows, gradients) = (&self.requests.rows, &self.gradients);
        // The array takes each gradient once, like the table.
        let nothing = vec![0.0; gradients.len()];
        self.in_turn([
            Box::new(|request| plain.borrow_mut().update(Places::Known, &rows[request], gradients)),
            Box::new(|request| plain.borrow_mut().update(Places::Indexed, &rows[request], &nothing)),
            Box::new(|request| {
                self.table.push(&self.ids[request], gradients, 0, &mut scratch).expect("lengths agree");
            }),
        ])
    }

    /// The sides make each request in turn. A request counts with its fastest pass.
    fn in_turn(&self, mut sides: [Side<'_>; 3]) -> Rates {
        let mut fastest = vec![[f64::INFINITY; 3]; self.ids.len()];
        for _ in 0..self.plan.passes {
            for (request, fastest) in fastest.iter_mut().enumerate() {
                for (side, fastest) in sides.iter_mut().zip_eq(fastest) {
                    let start = Instant::now();
                    side(request);
                    *fastest = fastest.min(start.elapsed().as_secs_f64());
                }
            }
        }
        let rows: usize = self.ids.iter().map(Vec::len).sum();
        let [plain, indexed, table] =
            [0, 1, 2].map(|side| rows as f64 / 1e6 / fastest.iter().map(|fastest| fastest[side]).sum::<f64>());
        Rates { plain, indexed, table }
    }

    fn check(&self, plain: &Plain) {
        let mut scratch = RequestBuffers::new();
        let [mut want, mut found] = [0; 2].map(|_| vec![0.0; self.gradients.len()]);
        for (rows, ids) in self.requests.rows.iter().zip_eq(&self.ids) {
            plain.gather(Places::Known, rows, &mut want);
            self.table.lookup(ids, LookupMode::Train, &mut found, &mut scratch).expect("lengths agree");
            assert!(want == found, "the table's rows are not the plain array's");
        }
        assert_eq!(self.table.row_count(), self.plan.rows);
    }
}
