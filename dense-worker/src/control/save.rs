//! What is saved: the rows of all embedding servers and the dense network, in a folder whose manifest names each file.

mod best_states;
mod calibrators;
mod forgotten;
mod manifest;
mod outputs;
mod replaced_files;
mod row_servers;
mod saved_model;

pub(super) use best_states::{BestStates, StateInventory};
pub(super) use calibrators::ModelCalibrators;
pub use forgotten::{forget_rows, note_forgotten};
pub(super) use manifest::damaged;
pub use manifest::{FileRecord, MANIFEST, Manifest};
pub use replaced_files::CopiedFiles;
pub(super) use row_servers::{RowServers, on_all, storage_error, wire_encoding};
pub use saved_model::JOB;
pub(super) use saved_model::{
    DENSE, LoadMode, MODEL, OPTIMIZER, SavedModel, TrainedModel, WrittenModel, parse_job, prepare_folder, save_rows,
    write_files,
};
