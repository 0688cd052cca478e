//! Compares the table with the limit of the memory. The speed of a shared machine's memory changes from minute to minute,
//! so both sides take each request in turn, and only their ratio counts.

use std::time::Instant;

use zagros_table::{LookupMode, RequestBuffers, Table, WeightType};
use zagros_zip::ZipEq;

use crate::limits::{Places, Plain};
use crate::workload::{Ids, Requests};
use crate::{Plan, filled, gradients};

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

    /// Rates of lookups and of updates.
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
