//! `zagros scaling-law`: trains a family of sizes, fits a law to it, and forecasts the next size.
//!
//! ```text
//!  speed of two sizes ─► plan within --budget (journal.jsonl) ─► a member for each size and seed
//!                                                                    │ log loss after 1/8, 1/4, 1/2 and all of the rows
//!  report.html, scaling-law.json ◄── verification.json ◄── next size ◄── forecast.json ◄── zagros_experiments: law, interval
//! ```
//!
//! The run folders hold what was measured, and the journal holds the plan. The forecast is durable before the next size is trained.

mod analysis;
mod charts;
mod member;
mod report;
mod setup;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use zagros_experiments::scaling::{Family, FamilyRequest, ForecastDecision, RunCost};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Exit, Failure, OrFailure, note, watch_signals};

use self::analysis::FamilyAnalysis;
use self::member::{FamilyMember, MemberPoint};
use self::setup::FamilySetup;
use crate::args::ScalingLawArgs;
use crate::experiment::{ExperimentJournal, FOREVER, TrainingEnd};
use crate::report::interrupt_exit;

/// Part of the budget that a plan may use: a short run is not exact.
const PLANNED: f64 = 0.85;

/// What is trained. Made once for a folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct FamilyPlan {
    /// As it was measured.
    cost: RunCost,
    family: Family,
}

/// After an error, what was measured stays.
pub(crate) async fn run(args: ScalingLawArgs) -> Result<Exit, Failure> {
    let started = Instant::now();
    let setup = FamilySetup::load(&args)?;
    let _lock = setup.base.lock_folder()?;
    let (mut journal, mut plans) = ExperimentJournal::open::<FamilyPlan>(&setup.base, &setup.identity())?;
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    let plan = match plans.pop() {
        Some(plan) => {
            note!("going on with the family in {}", setup.base.folder.display());
            plan
        }
        None => match new_plan(&setup, &args, &shutdown).await? {
            Some(plan) => {
                journal.append(&plan)?;
                plan
            }
            None => return Ok(interrupt_exit(&signals)),
        },
    };
    report::print_plan(&setup, &plan);
    let deadline = started + if args.budget.is_zero() { FOREVER } else { args.budget };
    let members: Vec<FamilyMember> = plan.family.runs.iter().map(|run| FamilyMember::from_run(&setup, run)).collect();
    let mut end = member::train(&setup, &members, &shutdown, deadline).await?;
    let points: Vec<MemberPoint> =
        members.iter().filter_map(|member| member.measured_points(&setup)).flatten().collect();
    let mut analysis = FamilyAnalysis::fit(&setup, &plan, points);
    if end == TrainingEnd::Over {
        analysis.keep_forecast(&setup)?;
        let is_made = analysis.forecast.as_ref().is_some_and(|kept| kept.forecast.decision == ForecastDecision::Made);
        if args.verify && is_made {
            end = verify(&setup, &mut analysis, &shutdown, deadline).await?;
        }
    }
    report::write(&setup, &plan, &analysis)?;
    Ok(end.note_exit(&signals))
}

/// `None` if a signal asked for the end.
async fn new_plan(
    setup: &FamilySetup,
    args: &ScalingLawArgs,
    shutdown: &Shutdown,
) -> Result<Option<FamilyPlan>, Failure> {
    let Some(speed) = member::measure_speed(setup, shutdown).await? else { return Ok(None) };
    let request = FamilyRequest { held_out: speed.held_out, ..setup.request.clone() };
    let budget = if args.budget.is_zero() { f64::INFINITY } else { args.budget.as_secs_f64() * PLANNED };
    let family = Family::within_budget(&request, &speed.cost, budget).or_exit(Exit::Usage)?;
    Ok(Some(FamilyPlan { cost: speed.cost, family }))
}

/// Trains the next size, and compares it with its forecast, which is durable by now.
async fn verify(
    setup: &FamilySetup,
    analysis: &mut FamilyAnalysis,
    shutdown: &Shutdown,
    deadline: Instant,
) -> Result<TrainingEnd, Failure> {
    let member = FamilyMember::next(setup, &analysis.shares);
    note!("training the next size, {}", setup.next.size);
    let end = member::train(setup, std::slice::from_ref(&member), shutdown, deadline).await?;
    analysis.verify(&member, setup);
    if let Some(verification) = &analysis.verification {
        analysis::write_json(&setup.base.folder.join(analysis::VERIFICATION), verification)?;
    }
    Ok(end)
}
