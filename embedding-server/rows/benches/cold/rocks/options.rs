//! RocksDB's settings for rows: small values of nearly random bits, read one by one in random order, mostly by ids that
//! the store has never seen.

use rocksdb::{BlockBasedIndexType, BlockBasedOptions, Cache, DBCompressionType, DataBlockIndexType, Options};

/// Bytes of a block. One row costs a read of one block, because its neighbours in the file are rows of other ids.
const BLOCK: usize = 4 << 10;
/// The smallest and the largest write buffer in bytes. A full write buffer becomes a file.
const WRITE_BUFFER: std::ops::RangeInclusive<usize> = 1 << 20..=256 << 20;
/// Open files. Each needs a descriptor, and a process often has only 1024.
const OPEN_FILES: i32 = 512;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RocksOptions {
    /// Bytes of write buffers and block cache together, at least 4 MiB.
    pub(crate) memory: usize,
    pub(crate) compression: Compression,
    /// Background threads that write and merge files, at least 2.
    pub(crate) jobs: usize,
}

/// How rows are packed on disk. For trained f32 rows with Adagrad state, LZ4 saves 0.2 % and Zstandard saves 9 %, but
/// reads with Zstandard are half as fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    /// LZ4: fast, finds repeated bytes.
    Lz4,
    /// Zstandard: slower, also finds unevenly distributed bytes.
    Zstd,
}

impl Default for RocksOptions {
    fn default() -> Self {
        Self { memory: 64 << 20, compression: Compression::None, jobs: 2 }
    }
}

impl RocksOptions {
    /// Bytes of one write buffer. Two buffers and the cache share the memory.
    fn write_buffer(&self) -> usize {
        (self.memory / 4).clamp(*WRITE_BUFFER.start(), *WRITE_BUFFER.end())
    }

    fn cache(&self) -> usize {
        self.memory.saturating_sub(2 * self.write_buffer()).max(2 << 20)
    }

    pub(crate) fn bound(&self) -> usize {
        2 * self.write_buffer() + self.cache()
    }

    pub(crate) fn build(&self) -> Result<Options, rocksdb::Error> {
        let mut options = Options::default();
        options.create_if_missing(true);
        // The cache counts hits and misses.
        options.enable_statistics();
        self.set_buffers(&mut options);
        self.set_files(&mut options);
        options.set_block_based_table_factory(&self.blocks()?);
        Ok(options)
    }

    fn set_buffers(&self, options: &mut Options) {
        options.set_write_buffer_size(self.write_buffer());
        // One buffer fills while the other is written. Writers wait for the disk only if both are full.
        options.set_max_write_buffer_number(2);
        // Most requested ids are in no buffer. A bloom filter of a fiftieth of the buffer's size finds this out sooner.
        options.set_memtable_prefix_bloom_ratio(0.02);
        options.set_memtable_whole_key_filtering(true);
    }

    fn set_files(&self, options: &mut Options) {
        options.set_max_background_jobs(self.jobs.max(2) as i32);
        options.set_max_open_files(OPEN_FILES);
        // The bits of weights are nearly random. `cargo bench -p zagros-rows --bench cold` shows the gain of each kind.
        options.set_compression_type(match self.compression {
            Compression::None => DBCompressionType::None,
            Compression::Lz4 => DBCompressionType::Lz4,
            Compression::Zstd => DBCompressionType::Zstd,
        });
        // Ids come in random order, so each merge rewrites all files that it touches. Wide levels keep this rewriting
        // low.
        options.set_max_bytes_for_level_base(4 * self.write_buffer() as u64);
        options.set_target_file_size_base(self.write_buffer() as u64);
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
    }

    fn blocks(&self) -> Result<BlockBasedOptions, rocksdb::Error> {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_size(BLOCK);
        blocks.set_block_cache(&Cache::new_lru_cache(self.cache())?);
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
}
