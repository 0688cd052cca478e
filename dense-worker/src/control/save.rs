//! What is saved: the rows of all embedding servers and the dense network, in a folder whose manifest names each file.

mod best_states;
mod forgotten;
mod outputs;
mod row_servers;
mod saved_model;

pub(super) use best_states::{BestStates, StateInventory};
pub use forgotten::{forget_rows, note_forgotten};
pub(super) use row_servers::{RowServers, on_all, storage_error, wire_encoding};
pub(super) use saved_model::{
    MODEL, TrainedModel, WrittenModel, load_model, load_rows, open_model, prepare_folder, read_file, save_rows,
    write_files,
};
