//! One reading thread and several parsing threads. The rows keep the order of the files.
//!
//! Blocks are dealt to the parsers in turn and taken back in turn. The order therefore needs no numbers. The depth of the
//! channels bounds the memory, whatever a parser's speed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};
use rustix::time::{ClockId, clock_gettime};
use zagros_job::Job;

use crate::error::panic_text;
use crate::parse::BlockParser;
use crate::parse::bad::{BadBudget, ParseOutcome};
use crate::parse::sink::RowSink;
use crate::read::layout::FileLayout;
use crate::read::reader::{BlockBody, BlockReader, RowBlock, RowPlace};
use crate::{DataPart, FileInfo, IngestError, SplitSource, WholeFiles};

/// Blocks waiting before and after each parser.
const DEPTH: usize = 2;

/// How often a blocked thread checks whether it was cancelled.
const POLL: Duration = Duration::from_millis(50);

/// Size of a block's text: large enough for a cheap hand-over, small enough for the cache.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;

pub(crate) struct PipelineConfig {
    pub(crate) job: Arc<Job>,
    pub(crate) part: DataPart,
    pub(crate) splits: Box<dyn SplitSource>,
    pub(crate) block_bytes: usize,
    pub(crate) cancel: Arc<AtomicBool>,
}

impl PipelineConfig {
    pub(crate) fn whole_files(job: &Arc<Job>, part: DataPart, files: &[FileInfo]) -> Self {
        let (job, splits, cancel) = (Arc::clone(job), Box::new(WholeFiles::new(files)), Arc::default());
        Self { job, part, splits, block_bytes: BLOCK_BYTES, cancel }
    }

    /// Gives the rows to `take`, block by block in their order, until it answers that it wants no more. Counts the malformed rows of the
    /// blocks before. Rows go to clones of `empty`.
    pub(crate) fn read_all<S: RowSink + Clone>(
        self,
        empty: &S,
        bad: &mut BadBudget,
        mut take: impl FnMut(&ParsedBlock<S>) -> Result<bool, IngestError>,
    ) -> Result<(), IngestError> {
        let mut pipeline = ParsePipeline::start(self, empty)?;
        while let Some(parsed) = pipeline.next()? {
            if !take(&parsed)? {
                break;
            }
            bad.add(&parsed.outcome, &parsed.layout, parsed.place)?;
            pipeline.recycle(parsed.sink);
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct ParsedBlock<S> {
    pub(crate) sink: S,
    pub(crate) outcome: ParseOutcome,
    pub(crate) layout: Arc<FileLayout>,
    pub(crate) place: RowPlace,
    pub(crate) bytes: u64,
    pub(crate) completes: Option<u64>,
    pub(crate) is_whole_file: bool,
}

/// Parsed blocks, in file order.
#[derive(Debug)]
pub(crate) struct ParsePipeline<S> {
    parsed: Vec<Receiver<ChannelMessage<ParsedBlock<S>>>>,
    turn: usize,
    spare_sinks: Sender<S>,
    cpu: CpuTotal,
    cancel: Arc<AtomicBool>,
}

/// A message of a channel. An error, and `None`, end their channel.
type ChannelMessage<T> = Result<Option<T>, IngestError>;

impl<S: RowSink + Clone> ParsePipeline<S> {
    /// Starts the threads. Rows go to clones of `sink`, which is empty.
    pub(crate) fn start(config: PipelineConfig, sink: &S) -> Result<Self, IngestError> {
        let PipelineConfig { job, part, splits, block_bytes, cancel } = config;
        let parsers = job.data.threads.max(1);
        let cpu = CpuTotal::default();
        let (spare_texts, texts) = bounded(parsers * DEPTH);
        let (spare_sinks, sinks) = bounded(parsers * DEPTH);
        let (mut inputs, mut parsed) = (Vec::new(), Vec::new());
        for number in 0..parsers {
            let (input, blocks) = bounded(DEPTH);
            let (output, parsed_blocks) = bounded(DEPTH);
            inputs.push(input);
            parsed.push(parsed_blocks);
            let mut parser = ParserThread {
                rows: BlockParser::new(&job, part),
                empty: sink.clone(),
                spare_sinks: sinks.clone(),
                spare_texts: spare_texts.clone(),
            };
            let (mut clock, cancel) = (cpu.clock(), Arc::clone(&cancel));
            spawn(format!("parser-{number}"), move || parser.run(&blocks, &output, &mut clock, &cancel))?;
        }
        let reader = BlockReader::new(job, splits, block_bytes, Arc::clone(&cancel));
        let (mut clock, flag) = (cpu.clock(), Arc::clone(&cancel));
        spawn("reader".into(), move || read(reader, &inputs, &texts, &mut clock, &flag))?;
        Ok(Self { parsed, turn: 0, spare_sinks, cpu, cancel })
    }

    /// The rows of the next block; `None` at the end of the splits.
    pub(crate) fn next(&mut self) -> Result<Option<ParsedBlock<S>>, IngestError> {
        match receive(&self.parsed[self.turn], &self.cancel) {
            Some(message) => {
                self.turn = (self.turn + usize::from(is_item(&message))) % self.parsed.len();
                message
            }
            None if self.cancel.load(Ordering::Relaxed) => Err(IngestError::Cancelled),
            None => Err(died("parser", PathBuf::new(), &"no last words")),
        }
    }

    /// Takes back the memory of a parsed block's rows.
    pub(crate) fn recycle(&self, mut sink: S) {
        sink.clear();
        // A full channel means that there is enough spare memory.
        let _ = self.spare_sinks.try_send(sink);
    }
}

impl<S> ParsePipeline<S> {
    /// Processor time of the threads so far, seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        Duration::from_nanos(self.cpu.0.load(Ordering::Relaxed)).as_secs_f64()
    }
}

struct ParserThread<S> {
    rows: BlockParser,
    empty: S,
    spare_sinks: Receiver<S>,
    spare_texts: Sender<Vec<u8>>,
}

impl<S: RowSink + Clone> ParserThread<S> {
    fn run(
        &mut self,
        blocks: &Receiver<ChannelMessage<RowBlock>>,
        output: &Sender<ChannelMessage<ParsedBlock<S>>>,
        clock: &mut CpuClock,
        cancel: &AtomicBool,
    ) {
        while let Some(message) = receive(blocks, cancel) {
            let message = message.and_then(|block| block.map(|block| self.parse(block)).transpose());
            clock.tick();
            let goes_on = is_item(&message);
            if !send(output, message, cancel) || !goes_on {
                return;
            }
        }
    }

    fn parse(&mut self, block: RowBlock) -> Result<ParsedBlock<S>, IngestError> {
        let mut sink = self.spare_sinks.try_recv().unwrap_or_else(|_| self.empty.clone());
        let RowBlock { layout, content, bytes, place, completes, is_whole_file } = block;
        let parsed = catch_unwind(AssertUnwindSafe(|| self.rows.parse(&layout, &content, &mut sink)));
        let outcome = parsed.map_err(|panic| died("parser", layout.path.clone(), panic.as_ref()))??;
        if let BlockBody::Lines(lines) = content {
            let _ = self.spare_texts.try_send(lines.text);
        }
        Ok(ParsedBlock { sink, outcome, layout, place, bytes, completes, is_whole_file })
    }
}

fn read(
    mut reader: BlockReader,
    inputs: &[Sender<ChannelMessage<RowBlock>>],
    spare_texts: &Receiver<Vec<u8>>,
    clock: &mut CpuClock,
    cancel: &AtomicBool,
) {
    for input in inputs.iter().cycle() {
        let text = spare_texts.try_recv().unwrap_or_default();
        let next = catch_unwind(AssertUnwindSafe(|| reader.next_block(text)));
        let message = next.unwrap_or_else(|panic| Err(died("reader", reader.current_path(), panic.as_ref())));
        clock.tick();
        let goes_on = is_item(&message);
        if !send(input, message, cancel) || !goes_on {
            return;
        }
    }
}

fn is_item<T>(message: &ChannelMessage<T>) -> bool {
    matches!(message, Ok(Some(_)))
}

/// Waits for a message; `None` if none will come.
fn receive<T>(channel: &Receiver<T>, cancel: &AtomicBool) -> Option<T> {
    while !cancel.load(Ordering::Relaxed) {
        match channel.recv_timeout(POLL) {
            Ok(message) => return Some(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}

/// Waits for room; false if the receiver is gone or the pipeline is cancelled.
fn send<T>(channel: &Sender<T>, mut message: T, cancel: &AtomicBool) -> bool {
    while !cancel.load(Ordering::Relaxed) {
        match channel.send_timeout(message, POLL) {
            Ok(()) => return true,
            Err(SendTimeoutError::Timeout(back)) => message = back,
            Err(SendTimeoutError::Disconnected(_)) => return false,
        }
    }
    false
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<(), IngestError> {
    let spawned = thread::Builder::new().name(name.clone()).spawn(body);
    spawned.map(drop).map_err(|source| IngestError::Spawn { thread: name, source })
}

fn died(thread: &str, path: PathBuf, panic: &(dyn Any + Send)) -> IngestError {
    IngestError::ThreadDied { thread: thread.into(), path, reason: panic_text(panic).to_owned() }
}

/// Processor time of all threads, nanoseconds.
#[derive(Clone, Debug, Default)]
struct CpuTotal(Arc<AtomicU64>);

struct CpuClock {
    total: CpuTotal,
    last: Duration,
}

impl CpuTotal {
    fn clock(&self) -> CpuClock {
        CpuClock { total: self.clone(), last: Duration::ZERO }
    }
}

impl CpuClock {
    /// Adds the processor time of the calling thread since the last tick (for the first: since the thread started).
    fn tick(&mut self) {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
        let used = now.saturating_sub(self.last);
        self.last = now;
        self.total.0.fetch_add(used.as_nanos() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::fixture;

    #[derive(Clone, Debug)]
    struct Touchy;

    impl RowSink for Touchy {
        fn numeric(&mut self, _: usize, _: Option<f64>) {}
        fn id(&mut self, _: usize, id: u64) {
            assert_ne!(id, crate::hash_value(b"boom"), "cannot stand this");
        }
        fn commit(&mut self, _: &[f32], _: Option<f32>) {}
        fn abandon(&mut self) {}
        fn clear(&mut self) {}
    }

    fn pipeline(splits: Box<dyn SplitSource>, cancel: &Arc<AtomicBool>) -> ParsePipeline<Touchy> {
        let job = Arc::new(fixture::delimited(|_| ()));
        let config = PipelineConfig { job, part: DataPart::All, splits, block_bytes: 16, cancel: Arc::clone(cancel) };
        ParsePipeline::start(config, &Touchy).unwrap()
    }

    #[test]
    fn a_panic_in_a_parser_names_the_file() {
        let (_folder, path) = fixture::file("click,age,city,tags\n1,2,x,y\n1,2,boom,y\n1,2,x,y\n");
        let mut pipeline = pipeline(fixture::deal_splits(fixture::whole(&path)), &Arc::default());
        let error = std::iter::from_fn(|| pipeline.next().transpose()).find_map(Result::err).unwrap().to_string();
        for part in ["parser thread stopped unexpectedly while reading", "data.txt", "cannot stand this"] {
            assert!(error.contains(part), "no {part} in {error}");
        }
    }

    #[test]
    fn a_panic_in_a_source_is_an_error() {
        let splits = fixture::make_splits(|| panic!("no splits today"));
        let error = pipeline(splits, &Arc::default()).next().unwrap_err().to_string();
        assert!(error.contains("no splits today"), "{error}");
    }

    /// Whether the reading thread dropped its source within a time that every healthy machine meets.
    fn ends(alive: &Arc<()>) -> bool {
        let started = Instant::now();
        while Arc::strong_count(alive) > 1 && started.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(5));
        }
        Arc::strong_count(alive) == 1
    }

    #[test]
    fn dropping_and_cancelling_the_pipeline_end_its_threads() {
        let (_folder, path) = fixture::file("click,age,city,tags\n1,2,x,y\n");
        for cancels in [false, true] {
            let (alive, cancel) = (Arc::new(()), Arc::default());
            let (task, held) = (fixture::whole(&path).remove(0), Arc::clone(&alive));
            // The same file again and again.
            let splits = fixture::make_splits(move || {
                let _held = &held;
                Ok(Some(task.clone()))
            });
            let mut pipeline = pipeline(splits, &cancel);
            assert!(pipeline.next().unwrap().is_some());
            if cancels {
                cancel.store(true, Ordering::Relaxed);
                assert!(matches!(pipeline.next(), Err(IngestError::Cancelled)));
                assert!(ends(&alive), "cancelled");
            } else {
                drop(pipeline);
                assert!(ends(&alive), "dropped");
            }
        }
    }
}
