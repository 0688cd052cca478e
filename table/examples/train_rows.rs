//! An embedding table in a process of your own: a lookup creates rows, a push trains them.
//!
//! `cargo run --release -p zagros-table --example train_rows`

use std::error::Error;

use zagros_table::{Initializer, LookupMode, Optimizer, RequestBuffers, Table, TableConfig};
use zagros_zip::ZipEq;

const DIM: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let config = TableConfig {
        dim: DIM,
        init: Initializer::Uniform { bound: 0.1 },
        optimizer: Optimizer::Sgd { lr: 0.5, momentum: 0.0, l2: 0.0 },
        ..TableConfig::default()
    };
    // The first value of a row is a function of the seed, the table's number and the id.
    let table = Table::new(42, 0, &config)?;
    // The working memory of requests. Each thread keeps its own from request to request.
    let mut buffers = RequestBuffers::new();

    // Any 64-bit number is an id. A lookup for training creates the rows that are missing.
    let ids = [7, 1 << 40];
    let mut first = vec![0.0; ids.len() * DIM];
    let report = table.lookup(&ids, LookupMode::Train, &mut first, &mut buffers)?;
    println!("{} rows created, the first is {:?}", report.created, &first[..DIM]);

    // One gradient for each id, in the order of the ids. Step 0 of training decides the learning rate.
    let gradients = vec![0.2; ids.len() * DIM];
    table.push(&ids, &gradients, 0, &mut buffers)?;

    // A lookup for reading changes nothing: an id that has no row answers with its first values.
    let mut updated = vec![0.0; ids.len() * DIM];
    table.lookup(&ids, LookupMode::Read, &mut updated, &mut buffers)?;
    println!("after a step with lr 0.5 the first is {:?}", &updated[..DIM]);
    assert!(updated.iter().zip_eq(&first).all(|(updated, first)| (first - updated - 0.1).abs() < 1e-6));
    assert_eq!(table.row_count(), ids.len());
    Ok(())
}
