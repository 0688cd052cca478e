//! What is saved: the rows of all embedding servers and the dense network, in a folder whose manifest names each file.

mod best_states;
mod forgotten;
mod outputs;
mod saved_model;

pub(super) use best_states::{BestStates, StateInventory};
pub use forgotten::{forget_rows, note_forgotten};
pub(super) use saved_model::{
    MODEL, TrainedModel, WrittenModel, load_model, load_rows, on_all, open_model, prepare_folder, read_file, save_rows,
    storage_error, wire_encoding, write_files,
};
