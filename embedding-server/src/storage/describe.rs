//! What a table's rows look like, for a file's header: what must agree before rows are taken over.

use zagros_snapshot::TableHeader;
use zagros_table::Table;

use crate::EmbeddingService;

/// Describes table `number`, which the service has.
pub(super) fn describe(service: &EmbeddingService, number: usize) -> TableHeader {
    let config = &service.configs[number];
    let table = service.tables.iter().nth(number);
    TableHeader {
        name: service.names[number].clone(),
        number: number as u32,
        dim: config.dim,
        element: config.element.name().to_owned(),
        width: config.stride(),
        state: config.optimizer.layout().to_owned(),
        access: table.and_then(Table::access_layout),
        counter: table.and_then(Table::counter_layout),
    }
}

/// What keeps rows saved under `there` from being read here; marks and frequency counts do not: they can start anew.
pub(super) fn difference(there: &TableHeader, here: &TableHeader) -> Option<String> {
    let shape = |table: &TableHeader| (table.dim, table.element.clone(), table.width, table.state.clone());
    if shape(there) == shape(here) {
        return None;
    }
    let reported = |table: &TableHeader| {
        let TableHeader { dim, element, width, state, .. } = table;
        format!("dim {dim} of {element} with {width} words of {state} a row")
    };
    Some(format!("table `{}` has {} there, and {} here", there.name, reported(there), reported(here)))
}
