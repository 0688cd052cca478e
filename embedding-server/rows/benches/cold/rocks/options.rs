//! RocksDB's settings for rows: small values of nearly random bits, read one by one in random order, mostly by ids that
//! the store has never seen.

use rocksdb::{BlockBasedIndexType, BlockBasedOptions, Cache, DBCompressionType, DataBlockIndexType, Options};

/// Bytes of a block. One row costs a read of one block, because its neighbours in the file are rows of other ids.
const BLOCK: usize = 4 << 10;
/// Bytes of a write buffer, of which there are two. A full write buffer becomes a file.
const WRITE_BUFFER: usize = 16 << 20;
/// Bytes of the block cache.
const CACHE: usize = 32 << 20;
/// Bytes of write buffers and block cache together.
pub(crate) const MEMORY: usize = 2 * WRITE_BUFFER + CACHE;
/// Open files. Each needs a descriptor, and a process often has only 1024.
const OPEN_FILES: i32 = 512;

/// For trained f32 rows with Adagrad state, LZ4 saves 0.2 % and Zstandard saves 9 %, but reads with Zstandard are half as
/// fast.
pub(crate) fn build(compression: DBCompressionType) -> Result<Options, rocksdb::Error> {
    let mut options = Options::default();
    options.create_if_missing(true);
    // The cache counts hits and misses.
    options.enable_statistics();
    options.set_write_buffer_size(WRITE_BUFFER);
    // One buffer fills while the other is written. Writers wait for the disk only if both are full.
    options.set_max_write_buffer_number(2);
    // Most requested ids are in no buffer. A bloom filter of a fiftieth of the buffer's size finds this out sooner.
    options.set_memtable_prefix_bloom_ratio(0.02);
    options.set_memtable_whole_key_filtering(true);
    options.set_max_background_jobs(2);
    options.set_max_open_files(OPEN_FILES);
    // The bits of weights are nearly random. `cargo bench -p zagros-rows --bench cold` shows the gain of each kind.
    options.set_compression_type(compression);
    // Ids come in random order, so each merge rewrites all files that it touches. Wide levels keep this rewriting
    // low.
    options.set_max_bytes_for_level_base(4 * WRITE_BUFFER as u64);
    options.set_target_file_size_base(WRITE_BUFFER as u64);
    options.set_level_compaction_dynamic_level_bytes(true);
    // Pages are written to disk one MiB at a time. Written all at once, they would delay readers.
    options.set_bytes_per_sync(1 << 20);
    // Reads use the system's page cache, which takes memory that nothing else uses. Direct reads would need a cache
    // of the same size in this process.
    options.set_advise_random_on_open(true);
    // RocksDB's own text log is kept small.
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_stats_dump_period_sec(0);
    options.set_block_based_table_factory(&blocks()?);
    Ok(options)
}

fn blocks() -> Result<BlockBasedOptions, rocksdb::Error> {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_size(BLOCK);
    blocks.set_block_cache(&Cache::new_lru_cache(CACHE)?);
    // With ten bits per row, 1 % of the missing ids cause a read. Every level has a filter, also the last one,
    // because a row is often requested before it exists.
    blocks.set_bloom_filter(10.0, false);
    // Filters and indices are loaded in pieces and count as cache, so memory stays bounded for any number of rows.
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    blocks.set_partition_filters(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    blocks.set_pin_top_level_index_and_filter(true);
    // A lookup in a block is for one row, never for a range.
    blocks.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    blocks.set_format_version(5);
    Ok(blocks)
}
