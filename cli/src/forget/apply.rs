//! Does what a plan says. Each step leaves every save whole, and may be done again.

use std::collections::BTreeSet;

use zagros_rows::snapshot::ForgottenIds;
use zagros_scoring::Manifest;
use zagros_shell::Failure;

use super::audit::note_removed;
use super::plan::{clean_run, is_row_file};
use super::{ForgetPlace, ForgetPlan};
use crate::resume::failed;
use crate::rewrite::Rewrite;
use crate::saved::refused;

/// `progress` is called between two steps, with the bytes of rows that the last one copied. The same command continues after an error.
pub(crate) fn apply(
    place: &ForgetPlace,
    plan: &ForgetPlan,
    wanted: &ForgottenIds,
    progress: &dyn Fn(u64),
) -> Result<(), Failure> {
    let saves = plan.saves.iter().map(|plan| &plan.planned).collect();
    let rewrite = Rewrite { copies: &plan.copies, saves, change: wanted, progress };
    let sealed = rewrite.write_files()?;
    note_removed(&place.named, wanted, &plan.saves, &sealed)?;
    rewrite.replace_manifests(&sealed)?;
    progress(0);
    place.run().map_or(Ok(()), |run| clean_run(run, wanted))?;
    delete_unnamed(place, progress)?;
    place.remove_left();
    Ok(())
}

/// Deletes files of rows that no manifest of the place names: those that were copied, and those that a process left that ended
/// before it was done.
fn delete_unnamed(place: &ForgetPlace, progress: &dyn Fn(u64)) -> Result<(), Failure> {
    let mut named = BTreeSet::new();
    for save in &place.saves {
        let manifest = Manifest::read(save).map_err(failed)?;
        let files = manifest.row_files.iter().filter_map(|file| save.locate_file(file));
        named.extend(files.map(|(folder, name)| (folder.to_string(), name.to_owned())));
    }
    for folder in place.saves.iter().chain(&place.others) {
        for name in folder.file_names().map_err(refused)?.into_iter().filter(|name| is_row_file(name)) {
            if !named.contains(&(folder.to_string(), name.clone())) {
                progress(0);
                folder.delete_file(&name).map_err(refused)?;
            }
        }
    }
    Ok(())
}
