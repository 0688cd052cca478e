//! Saved models of tests.

use std::sync::Arc;

use tempfile::TempDir;
use zagros_job::{Job, ServerTable};
use zagros_model::Backend;
use zagros_rows::snapshot::{RowBatch, SnapshotHeader, SnapshotWriter, TableHeader, TableTime, file_name};
use zagros_store::Folder;
use zagros_zip::number_from;

use crate::manifest::{FileRecord, MANIFEST, Manifest};
use crate::rows::{ModelRows, RowSource};
use crate::saved_model::{DENSE, JOB, SavedModel};
use crate::scorer::make_network;

pub(crate) struct SavedFixture {
    /// It is deleted with this.
    pub(crate) folder: TempDir,
    pub(crate) saved: SavedModel,
    pub(crate) job: Job,
}

pub(crate) fn saved_value(table: usize, id: u64, place: usize) -> f32 {
    ((table * 31 + id as usize * 7 + place * 13) % 101) as f32 / 50.0 - 1.0
}

/// Saves a model with these rows, each by its table and id, and the first weights of the network.
pub(crate) fn save_model(job: Job, rows: &[(usize, u64)]) -> SavedFixture {
    let folder = tempfile::tempdir().unwrap();
    let disk = Folder::on_disk(folder.path());
    let row_file = file_name(0, 1);
    let no_rows: Arc<dyn RowSource> = Arc::new(ModelRows::empty(&job).unwrap());
    let weights = make_network(&job, Backend::default(), &no_rows).unwrap().scoring_safetensors().unwrap();
    let contents = [(&*row_file, row_content(&job, rows)), (DENSE, weights), (JOB, job.to_toml().into_bytes())];
    contents.iter().for_each(|(name, content)| disk.write(name, content).unwrap());
    let files = contents.iter().map(|(name, content)| FileRecord::new(name, content)).collect();
    let (row_files, count) = (vec![row_file.clone()], rows.len() as u64);
    let manifest = Manifest { row_files, rows: count, ..Manifest::of_test(DENSE, files) };
    disk.write(MANIFEST, &manifest.into_sealed().1).unwrap();
    SavedFixture { saved: SavedModel::open(&disk).unwrap(), folder, job }
}

fn row_content(job: &Job, rows: &[(usize, u64)]) -> Vec<u8> {
    let (tables, buckets) = (job.server_tables(), job.cluster.buckets);
    let table_header = |(number, table): (u32, &ServerTable)| TableHeader::new(&table.name, number, &table.config);
    let header = SnapshotHeader {
        release: "0".to_owned(),
        servers: 1,
        buckets,
        owned: vec![[0, buckets]],
        tables: number_from(0, &tables).map(table_header).collect(),
        ..SnapshotHeader::default()
    };
    let mut content = Vec::new();
    let mut writer = SnapshotWriter::start(&mut content, header).unwrap();
    for (table, ServerTable { config, .. }) in number_from(0, &tables) {
        let own = rows.iter().filter(|(owner, _)| *owner == table as usize);
        let ids: Vec<u64> = own.map(|(_, id)| *id).collect();
        let slot = |id: &u64| {
            let weights = (0..config.dim).map(|place| saved_value(table as usize, *id, place).to_bits());
            weights.chain(std::iter::repeat(0)).take(config.stride()).collect::<Vec<u32>>()
        };
        let slots = ids.iter().flat_map(slot).collect();
        writer.write_rows(table, &RowBatch { ids, slots, access: Vec::new() }).unwrap();
    }
    writer.write_clock(TableTime { steps: 1, seconds: 1 }).unwrap();
    writer.finish().unwrap();
    content
}
