//! The description of a table in a file's header. It must agree before a table loads rows.

use zagros_snapshot::TableHeader;
use zagros_table::Table;

use crate::EmbeddingService;

/// Describes table `number` of the service.
pub(super) fn describe_table(service: &EmbeddingService, number: usize) -> TableHeader {
    let config = &service.configs[number];
    let table = service.tables.iter().nth(number);
    TableHeader {
        name: service.names[number].clone(),
        number: number as u32,
        dim: config.dim,
        element: config.element.name().to_owned(),
        width: config.stride(),
        state: config.optimizer.state_layout().to_owned(),
        access: table.and_then(Table::access_layout),
        counter: table.and_then(Table::counter_layout),
    }
}

/// The difference that prevents a load of rows saved under `there`. Access metadata and frequency counts may differ:
/// they start anew.
pub(super) fn find_difference(there: &TableHeader, here: &TableHeader) -> Option<String> {
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
