//! A user's network: a TorchScript module of (numeric, embeddings) → logits. It is trained like any other.
//!
//! Loading a module runs code of its author. The job must therefore say that the module is trusted, and give its
//! SHA-256. The loaded bytes are the hashed bytes. The module's parameters are trained and saved under their own names,
//! with `_` for `.`. Its buffers (running statistics) are saved too: see [`crate::layers::ModuleBuffers`].

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

use sha2::{Digest, Sha256};
use tch::nn::VarStore;
use tch::{Kind, Tensor};
use zagros_model::ModelError;

use crate::error::{TorchError, TorchResult};
use crate::int;
use crate::layers::{ModuleBuffers, is_number};
use crate::script::ScriptModule;

#[derive(Debug)]
pub(crate) struct TorchScript {
    /// Switched between training and evaluation for each batch. Only one thread uses it.
    module: RefCell<ScriptModule>,
    seed: u64,
    /// Seed of libtorch's generator for the next forward.
    draws: u64,
    outputs: usize,
}

/// libtorch has one generator for the process. A thread that sets its seed draws before another thread sets it.
static GENERATOR: Mutex<()> = Mutex::new(());

/// A process says once that the format is deprecated, however many networks it makes.
static DEPRECATED: Once = Once::new();

impl TorchScript {
    /// Reads the module and adds its parameters and buffers to the variables. `seed` and the step seed libtorch's
    /// generator, from which dropout inside the module draws.
    ///
    /// # Errors
    /// When the file cannot be read, has another hash than `sha256` (lower-case hexadecimal), or is not a module.
    pub(crate) fn load(
        file: &Path,
        sha256: &str,
        seed: u64,
        (variables, outputs): (&VarStore, usize),
    ) -> TorchResult<(Self, ModuleBuffers)> {
        let script = |reason: String| TorchError::from(ModelError::Script { file: file.to_owned(), reason });
        let bytes = fs::read(file).map_err(|error| script(format!("cannot be read: {error}")))?;
        let found = hexadecimal(&Sha256::digest(&bytes));
        if found != sha256 {
            return Err(script(format!("has the SHA-256 {found}, model.sha256 says {sha256}; is it the right file?")));
        }
        let is_none = |reason: String| script(format!("is not a TorchScript module: {}", first_line(&reason)));
        let module = ScriptModule::load(&bytes, variables.device()).map_err(is_none)?;
        let root = variables.root();
        let add = |(name, tensor): (String, Tensor), learned| root.add(&name.replace('.', "_"), tensor, learned);
        for parameter in module.parameters().map_err(is_none)? {
            let learned = parameter.1.requires_grad();
            drop(add(parameter, learned));
        }
        let mut buffers = Vec::new();
        for (name, buffer) in module.buffers().map_err(is_none)? {
            let kind = buffer.f_kind()?;
            if !is_number(kind) {
                return Err(script(format!("has a buffer {name} of {kind:?}, which cannot be saved")));
            }
            // A tensor that repeats one value in place of many cannot be written to.
            let buffer = buffer.f_contiguous()?;
            drop(add((name.clone(), buffer.shallow_clone()), false));
            buffers.push((name, buffer));
        }
        if variables.trainable_variables().is_empty() {
            return Err(script("has no parameter to train".to_owned()));
        }
        DEPRECATED.call_once(|| {
            tracing::warn!(
                "{} is a TorchScript module, a format that PyTorch has deprecated; a network of your own trains from Python with \
                 zagros.EmbeddingBags (docs/how-to/own-model.md)",
                file.display()
            );
        });
        Ok((Self { module: RefCell::new(module), seed, draws: seed, outputs }, ModuleBuffers::new(buffers)))
    }

    /// Drops other units from now on.
    pub(crate) fn drop_by(&mut self, seed: u64) {
        self.seed = seed;
    }

    pub(crate) fn draw_for(&mut self, step: u64) {
        self.draws = self.seed.wrapping_add(step);
    }

    /// Gives the next forward copies of the buffers.
    pub(crate) fn lend_buffers(&self, buffers: &ModuleBuffers) -> TorchResult {
        let mut module = self.module.borrow_mut();
        for copy in buffers.named_copies() {
            let (name, copy) = copy?;
            module.set_buffer(name, &copy).map_err(TorchError::script_failed)?;
        }
        Ok(())
    }

    /// The buffers after the last forward, in their order.
    pub(crate) fn left_buffers(&self) -> TorchResult<Vec<Tensor>> {
        let buffers = self.module.borrow().buffers().map_err(TorchError::script_failed)?;
        Ok(buffers.into_iter().map(|(_, buffer)| buffer).collect())
    }

    /// `[batch, numeric]` and `[batch, ΣD]` to `[batch, outputs]`.
    pub(crate) fn forward(&self, numeric: &Tensor, embeddings: &Tensor, training: bool) -> TorchResult<Tensor> {
        let mut module = self.module.borrow_mut();
        let failed = |reason: String| TorchError::script_failed(cause(&reason));
        module.train(training).map_err(failed)?;
        let generator = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
        if training {
            tch::manual_seed(self.draws.cast_signed());
        }
        let logits = module.forward(&[numeric, embeddings]).map_err(failed)?;
        drop(generator);
        let (batch, outputs) = (numeric.size()[0], int(self.outputs));
        let (shape, kind) = (logits.size(), logits.f_kind()?);
        let fits = shape == [batch, outputs] || (outputs == 1 && shape == [batch]);
        if !fits || kind != Kind::Float {
            let what = format!("{kind:?} {shape:?} for a batch of {batch}");
            let expected =
                if outputs == 1 { "[batch] or [batch, 1]".to_owned() } else { format!("[batch, {outputs}]") };
            return Err(ModelError::ScriptOutput { what, expected }.into());
        }
        Ok(logits.f_reshape([batch, outputs])?)
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first line: libtorch appends a trace of its own functions.
fn first_line(reason: &str) -> String {
    reason.lines().next().unwrap_or_default().to_owned()
}

/// The error at the end of a trace through the module. Hints may follow it.
fn cause(reason: &str) -> String {
    let mut lines = reason.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines.clone().rfind(|line| line.contains("Error: "));
    error.or_else(|| lines.next_back()).unwrap_or_default().to_owned()
}
