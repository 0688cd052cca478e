//! `zagros forget`: removes rows by their ids from saved models and checkpoints, and from the servers of a run that trains.

use std::path::Path;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, ProgressBar};
use serde_json::json;
use zagros_job::is_dense_table;
use zagros_rows::snapshot::ForgottenIds;
use zagros_shell::{Exit, Failure, live_coordinator, out, print_answer};

use crate::args::ForgetArgs;
use crate::forget::{AUDIT, ForgetPlace, ForgetPlan, LiveRemoval, SavePlan, apply, forget_live, wanted_ids};

/// Ids that are printed of those that were not found.
const SHOWN: usize = 10;

pub(crate) async fn run(args: ForgetArgs) -> Result<Exit, Failure> {
    let args = &args;
    if is_dense_table(&args.table) {
        let what = format!("{} holds weights of the dense network, and no rows of ids", args.table);
        return Err(Failure::usage(what, "name a table of features"));
    }
    let wanted = ForgottenIds { table: args.table.clone(), ids: wanted_ids(args)? };
    for model in &args.models {
        match live_coordinator(model)? {
            None => forget(model, args, &wanted)?,
            Some(coordinator) => {
                let how = (args.dry_run, Duration::from_secs(args.timeout));
                let removal = forget_live(model, &coordinator, &wanted, how).await?;
                print_live(model, removal, &wanted, args)?;
            }
        }
    }
    Ok(Exit::Success)
}

fn forget(model: &Path, args: &ForgetArgs, wanted: &ForgottenIds) -> Result<(), Failure> {
    let place = ForgetPlace::find(model, Duration::from_secs(args.timeout))?;
    let plan = ForgetPlan::prepare(&place, wanted)?;
    if args.dry_run {
        return print(&place, &plan, wanted, args);
    }
    let bar = ProgressBar::new(plan.copied_bytes());
    let applied = apply(&place, &plan, wanted, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    applied?;
    print(&place, &plan, wanted, args)
}

fn print(place: &ForgetPlace, plan: &ForgetPlan, wanted: &ForgottenIds, args: &ForgetArgs) -> Result<(), Failure> {
    let missing = plan.missing_ids(wanted);
    let is_changed = plan.saves.iter().any(SavePlan::is_changed);
    if args.json {
        let report = json!({
            "model": place.named.to_string(),
            "table": wanted.table,
            "ids": wanted.ids.len(),
            "dry_run": args.dry_run,
            "saves": plan.saves.iter().map(in_json).collect::<Vec<_>>(),
            "missing": missing.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        return print_answer(&report.to_string());
    }
    let ids = HumanCount(wanted.ids.len() as u64);
    out!("{}: {ids} id(s) of table {}", place.named, wanted.table);
    let others = |ids: usize, what: &str| match ids {
        0 => String::new(),
        ids => format!(", {} {what}", HumanCount(ids as u64)),
    };
    for save in &plan.saves {
        let counts = others(save.counts.len(), "frequency count(s)");
        let listed = others(save.vocabulary.len(), "id(s) in a vocabulary");
        let verb = if args.dry_run { "would be removed" } else { "removed" };
        out!("  {}: {} row(s){counts}{listed} {verb}", save.planned.from, HumanCount(save.rows.len() as u64));
    }
    if !missing.is_empty() {
        let shown: Vec<String> = missing.iter().take(SHOWN).map(ToString::to_string).collect();
        let more = if missing.len() > SHOWN { ", …" } else { "" };
        let count = HumanCount(missing.len() as u64);
        out!("  {count} id(s) have no row in any of these: {}{more}", shown.join(", "));
        if args.values.is_none() && args.value.is_empty() {
            out!(
                "  an id is the hash of a value in the data; --values and --value take values as they are in the data"
            );
        }
    }
    if args.dry_run {
        out!("  {} of files would be copied without these rows; nothing has changed", HumanBytes(plan.copied_bytes()));
    } else if is_changed {
        out!("  what was removed is in {}/{AUDIT}", place.named);
    }
    Ok(())
}

fn in_json(save: &SavePlan) -> serde_json::Value {
    json!({
        "save": save.planned.from.to_string(),
        "rows": save.rows.len(),
        "counts": save.counts.len(),
        "vocabulary": save.vocabulary.len(),
        "files": save.changed_files(),
    })
}

/// What became of the ids in a run that trains, and what is left of them.
fn print_live(run: &Path, removal: LiveRemoval, wanted: &ForgottenIds, args: &ForgetArgs) -> Result<(), Failure> {
    let LiveRemoval { removed, plan } = removal;
    // A checkpoint that the run deletes meanwhile cannot be read.
    let holding = |plan: ForgetPlan| plan.saves.into_iter().filter(SavePlan::is_changed).collect::<Vec<_>>();
    let holding = plan.map(holding);
    let (run, ids) = (run.display(), HumanCount(wanted.ids.len() as u64));
    if args.json {
        let report = json!({
            "model": run.to_string(),
            "table": wanted.table,
            "ids": wanted.ids.len(),
            "dry_run": args.dry_run,
            "trains": true,
            "removed": removed.map(|removed| removed.len()),
            "still_held_by": holding.ok().map(|saves| saves.iter().map(in_json).collect::<Vec<_>>()),
        });
        return print_answer(&report.to_string());
    }
    out!("{run} trains: {ids} id(s) of table {}", wanted.table);
    match removed {
        None => out!("  the run would remove their rows; nothing has changed"),
        Some(removed) => {
            let rows = HumanCount(removed.len() as u64);
            out!("  the embedding servers have removed {rows} of them, for good; the list is in {run}/{AUDIT}");
            out!("  an id that the data name again begins as a new row");
        }
    }
    match holding {
        Ok(saves) if saves.is_empty() => {
            out!("  no checkpoint holds them");
        }
        Ok(saves) => {
            saves.iter().for_each(|save| out!("  still in {}, which was saved before", save.planned.from));
            out!(
                "  give the same command when the run is over: it removes them there. A run that resumes from one loads none of them"
            );
        }
        Err(_) => out!("  give the same command when the run is over: it removes them from checkpoints of before"),
    }
    Ok(())
}
