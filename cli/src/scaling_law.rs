//! `zagros scaling-law`: trains a family of sizes, fits a law to it, and forecasts the next size.
//!
//! ```text
//!  speed of two sizes ─► plan within --budget (family.json) ─► zagros train JOB --set model.size=… (a process for each size and seed)
//!                                                                    │ log loss after 1/8, 1/4, 1/2 and all of the rows
//!  report.html, scaling-law.json ◄── verification.json ◄── next size ◄── forecast.json ◄── zagros_experiments: law, interval
//! ```
//!
//! The run folders hold what was measured, and the plan says which runs there are. So the same command goes on after any end, and trains
//! no run twice. The forecast is durable before the next size is trained.

mod analysis;
mod charts;
mod member;
mod report;
mod setup;

use tokio::time::Instant;
use zagros_experiments::scaling::{Family, ForecastDecision};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Exit, Failure, OrFailure, note, watch_signals};

use self::analysis::{FamilyAnalysis, FamilyPlan, ForecastVerification};
use self::member::{FamilyMember, MemberPoint};
use self::setup::FamilySetup;
use crate::args::ScalingLawArgs;
use crate::report::interrupt_exit;
use crate::train_process::{FOREVER, TrainingEnd, lock_folder};

/// Part of the budget that a plan may use: a short run is not exact.
const PLANNED: f64 = 0.85;

/// After an error, what was measured stays.
pub(crate) async fn run(args: ScalingLawArgs) -> Result<Exit, Failure> {
    let started = Instant::now();
    let setup = FamilySetup::load(&args)?;
    let Some(_lock) = lock_folder(&setup.folder)? else {
        let what = format!("another process trains a family in {}", setup.folder.display());
        return Err(Failure::usage(what, "wait for it, or train another family: --folder FOLDER"));
    };
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    let plan = tokio::select! {
        plan = plan(&setup, &args) => plan?,
        () = shutdown.requested() => return Ok(interrupt_exit(&signals)),
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

/// The plan of an earlier command, or a new one.
async fn plan(setup: &FamilySetup, args: &ScalingLawArgs) -> Result<FamilyPlan, Failure> {
    if let Some(plan) = FamilyPlan::read(setup)? {
        note!("going on with the family in {}", setup.folder.display());
        return Ok(plan);
    }
    let speed = member::measure(setup).await?;
    let request = setup.family_request(speed.held_out, args.verify);
    let family = if args.budget.is_zero() {
        Family::without_budget(&request, &speed.cost)
    } else {
        let family = Family::within_budget(&request, &speed.cost, args.budget.as_secs_f64() * PLANNED);
        family.or_exit(Exit::Usage)?
    };
    FamilyPlan::write(setup, speed.cost, speed.held_out, family)
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
    let truth = member.measured_points(setup).and_then(|points| points.last().cloned());
    if let (Some(truth), Some(forecast)) = (truth, &analysis.forecast) {
        let verification = ForecastVerification::new(forecast, &truth);
        analysis::write_json(&setup.folder.join(analysis::VERIFICATION), &verification)?;
        analysis.verification = Some(verification);
    }
    Ok(end)
}
