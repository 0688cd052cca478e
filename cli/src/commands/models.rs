//! `zagros models`: the built-in networks and the sizes that they come in.

use zagros_job::threads::Machine;
use zagros_plumbing::memory::MemoryLimit;
use zagros_shell::{Exit, Failure, OrInternal, out, print_answer};

use crate::args::ModelsArgs;
use crate::models::rate::TrainingSpeed;
use crate::models::{ModelTable, print};

pub(crate) fn run(args: &ModelsArgs) -> Result<Exit, Failure> {
    let speed = TrainingSpeed::choose(args.flops, &Machine::this())?;
    let table = ModelTable::new(args, &speed, MemoryLimit::of_this_process())?;
    if args.json {
        print_answer(&serde_json::to_string_pretty(&table).or_internal()?)?;
    } else {
        out!("{}", print::text(&table).trim_end());
    }
    Ok(Exit::Success)
}
