//! The page of a run, `report.html`: one file that opens offline. It is made from the files in the run folder.

mod record;

use std::path::PathBuf;

use indicatif::{HumanBytes, HumanCount};
use zagros_dense_worker::{Evaluation, RunFolder, RunSummary};
use zagros_plumbing::chart::html::escape_html;
use zagros_plumbing::chart::{Chart, ChartSeries};
use zagros_scoring::TrainingOutcome;
use zagros_shell::{CommandReport, Failure, ReportTable, write_file};
use zagros_store::hide_secrets;

use self::record::{EpochMeasures, ScoredPart, TrainingStep};
use crate::measures;

pub(crate) use self::record::RunRecord;

/// Writes the page into the run folder. Returns its path.
pub(crate) fn write(folder: &RunFolder) -> Result<PathBuf, Failure> {
    let record = RunRecord::read(folder)?;
    let path = folder.path().join("report.html");
    write_file(&path, page(&record))?;
    Ok(path)
}

fn page(record: &RunRecord) -> String {
    let mut page = CommandReport::default();
    if let Some(summary) = &record.summary {
        page.add_lead(&lead(summary));
        summary.choice.iter().chain(&summary.advice).for_each(|note| _ = page.add_note(note));
    } else {
        let steps = HumanCount(record.steps.last().map_or(0, |step| step.step));
        page.add_lead(&format!("No summary: the run failed or still runs; the last recorded step is {steps}"));
    }
    if record.unread > 0 {
        page.add_lead(&format!("{} line(s) of metrics.jsonl could not be read and are skipped", record.unread));
    }
    page.add_html(tiles(record));
    page.add_title("Curves").add_figures(charts(record).iter().map(Chart::render_figure));
    page.add_title("Held-out parts").add_table(evaluations(record));
    if let Some(summary) = &record.summary {
        page.add_title("Labels").add_table(measures::target_table(&summary.targets));
        measures::add_slices(&mut page, &summary.slices);
    }
    page.add_title("Epochs: training rows, each scored before it was learned from").add_table(epochs(record));
    page.add_title("Where the time went").add_html(stages(record));
    page.add_title("Machine");
    if let Some(summary) = &record.summary {
        page.add_facts(machine(summary));
    }
    page.add_title("Job, with every default").add_html(job(record));
    page.add_title("Files").add_html(files(record));
    page.render_page(&record.name)
}

/// `trained on 20,000 samples in 40 steps, 1.2 s`
pub(crate) fn lead(summary: &RunSummary) -> String {
    let verb = if summary.outcome == TrainingOutcome::Finished { "trained on" } else { "stopped after" };
    let (samples, steps) = (HumanCount(summary.samples), HumanCount(summary.steps));
    format!("{verb} {samples} samples in {steps} steps, {:.1} s", summary.seconds)
}

fn tiles(record: &RunRecord) -> String {
    let Some(summary) = &record.summary else { return String::new() };
    let measure = |name: &'static str, value: Option<f64>| value.map(|value| (name, format!("{value:.4}")));
    let test = summary.evaluation.as_ref();
    let validation = summary.validation.as_ref();
    let baselines = summary.baselines.unwrap_or_default();
    let tiles = [
        measure("test AUC", test.and_then(|measures| measures.auc)),
        measure("test GAUC", test.and_then(|measures| measures.gauc)),
        measure("test logloss", test.and_then(|measures| measures.logloss)),
        measure("logistic regression AUC", baselines.logistic_auc),
        measure("logloss of the prevalence alone", baselines.prevalence_logloss),
        measure("validation AUC", validation.and_then(|measures| measures.auc)),
        measure("test RMSE", test.and_then(|measures| measures.rmse)),
        measure("test accuracy", test.and_then(|measures| measures.accuracy)),
        Some(("samples a second", HumanCount(summary.samples_per_second as u64).to_string())),
        Some(("rows created", HumanCount(summary.rows).to_string())),
        Some(("of embeddings", HumanBytes(summary.table_bytes).to_string())),
    ];
    let tile = |(name, value): (&str, String)| format!("<div><b>{}</b><span>{name}</span></div>", escape_html(&value));
    format!("<div class=\"tiles\">{}</div>\n", tiles.into_iter().flatten().map(tile).collect::<String>())
}

type StepFigure = fn(&TrainingStep) -> Option<f64>;
type PartMeasure = fn(&Evaluation) -> Option<f64>;

fn charts(record: &RunRecord) -> [Chart; 5] {
    let training = |value: StepFigure| {
        let point = |step: &TrainingStep| Some((step.step as f64, value(step)?));
        ChartSeries {
            name: "training",
            colour: 0,
            dots: false,
            points: record.steps.iter().filter_map(point).collect(),
        }
    };
    // The held-out parts have a dot for each evaluation.
    let scored = |title, subtitle, value: StepFigure, measure: PartMeasure| {
        let [validation, test] = held_out(record, measure);
        let mark = record.chosen.map(|step| (step, "the model"));
        Chart { title, subtitle, series: vec![training(value), validation, test], mark, ..Chart::default() }
    };
    let counted = |title, subtitle, value: StepFigure| {
        let series = vec![training(value)];
        Chart { title, subtitle, series, from_zero: true, ..Chart::default() }
    };
    let of_samples = "training over about 100,000 samples, each scored before it was learned from";
    let mut auc = scored("AUC", of_samples, |step| step.auc_so_far, |measures| measures.auc);
    let [validation, test] = held_out(record, |measures| measures.gauc);
    let grouped = if validation.points.is_empty() { test } else { validation };
    auc.series.push(ChartSeries { name: "GAUC", colour: 3, ..grouped });
    let of_steps = "mean binary cross-entropy, nats; training over about 100 steps";
    let clicks = "predicted clicks per real one; 1 is right";
    let earlier = "earlier batches whose gradients were not acknowledged at the lookup";
    let rate: StepFigure = |step| (step.samples_per_second > 0.0).then_some(step.samples_per_second);
    [
        scored("Loss", of_steps, |step| Some(step.loss_smoothed), |measures| measures.logloss),
        auc,
        scored("Calibration", clicks, |step| step.calibration, |measures| measures.calibration),
        counted("Throughput", "samples a second, over 5 s", rate),
        counted("Staleness", earlier, |step| Some(f64::from(step.staleness))),
    ]
}

fn held_out(record: &RunRecord, measure: PartMeasure) -> [ChartSeries; 2] {
    [("validation", 1), ("test", 2)].map(|(name, colour)| {
        let point = |scored: &ScoredPart| Some((scored.step as f64, measure(&scored.evaluation)?));
        ChartSeries { name, colour, dots: true, points: record.of_part(name).filter_map(point).collect() }
    })
}

const MEASURES: [&str; 6] = ["AUC", "GAUC", "logloss", "norm. entropy", "calibration", "samples"];

fn evaluations(record: &RunRecord) -> ReportTable {
    let is_model = |scored: &ScoredPart| scored.part == "validation" && record.chosen == Some(scored.step);
    let rows = record.evaluations.iter().map(|scored| measured(scored.part.clone(), scored.step, &scored.evaluation));
    let table = ReportTable::new(&[&["part", "after step"][..], &MEASURES].concat(), rows.collect());
    ReportTable { best: record.evaluations.iter().position(is_model), shows_end: true, ..table }
}

fn epochs(record: &RunRecord) -> ReportTable {
    let row = |epoch: &EpochMeasures| measured((epoch.epoch + 1).to_string(), epoch.step, &epoch.training);
    let rows = record.epochs.iter().map(row).collect();
    ReportTable { shows_end: true, ..ReportTable::new(&[&["epoch", "to step"][..], &MEASURES].concat(), rows) }
}

fn measured(name: String, step: u64, of: &Evaluation) -> Vec<String> {
    let measures = [of.auc, of.gauc, of.logloss, of.normalised_entropy, of.calibration];
    let measures = measures.map(|value| measures::decimal(value, 4)).into_iter();
    [name, HumanCount(step).to_string()]
        .into_iter()
        .chain(measures)
        .chain([HumanCount(of.samples).to_string()])
        .collect()
}

fn stages(record: &RunRecord) -> String {
    let Some(summary) = &record.summary else { return String::new() };
    let stages = named_stages(summary);
    let most = stages.iter().map(|stage| stage.2).fold(f64::MIN_POSITIVE, f64::max);
    let row = |(name, what, seconds): &(&str, &str, f64)| {
        let (width, share) = (seconds / most * 100.0, seconds / summary.seconds.max(f64::MIN_POSITIVE) * 100.0);
        format!(
            "<tr><td title=\"{what}\">{name}</td><td>{seconds:.2} s</td><td>{share:.0} %</td>\
             <td class=\"bar\"><i style=\"width:{width:.1}%\"></i></td></tr>\n"
        )
    };
    let rows: String = stages.iter().map(row).collect();
    format!(
        "<p class=\"lead\">Seconds in each stage, and as a share of the {:.1} s of training. Stages overlap, so they add up \
         to more.</p><div class=\"card\"><table><tr><th>stage</th><th>time</th><th>share</th><th></th></tr>\n{rows}\
         </table></div>",
        summary.seconds
    )
}

fn named_stages(summary: &RunSummary) -> [(&'static str, &'static str, f64); 10] {
    let stages = &summary.stages;
    [
        ("parse", "processor time of reading and parsing", stages.parse),
        ("dedup", "finding unique ids", stages.dedup),
        ("lookup", "from request to rows", stages.lookup),
        ("gather", "rows to the network's input", stages.gather),
        ("dense", "forward, backward, optimiser", stages.dense),
        ("layers", "of dense: waiting for streamed weights", stages.layers),
        ("other workers", "waiting for the other workers and summing gradients with them", stages.reduce),
        ("scatter", "gradients to unique rows", stages.scatter),
        ("push", "from gradients to acknowledgement", stages.push),
        ("waiting", "no batch was ready", stages.waiting),
    ]
}

fn machine(summary: &RunSummary) -> Vec<(&'static str, String)> {
    let (machine, unknown) = (&summary.machine, || "not known".to_owned());
    let bytes = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| HumanBytes(bytes).to_string());
    vec![
        ("processor", machine.processor.clone().unwrap_or_else(unknown)),
        ("cores", machine.cores.to_string()),
        ("memory", bytes(machine.memory_bytes)),
        ("most memory held", bytes(summary.peak_rss_bytes)),
        ("cost of training", summary.cost.in_words().unwrap_or_else(unknown)),
    ]
}

fn job(record: &RunRecord) -> String {
    if record.job.is_empty() {
        return String::new();
    }
    format!(
        "<details class=\"card\"><summary>job.toml</summary><pre>{}</pre></details>",
        escape_html(&hide_secrets(&record.job))
    )
}

fn files(record: &RunRecord) -> String {
    let link = |name: &String| format!("<a href=\"{0}\">{0}</a>", escape_html(name));
    let model = record.summary.as_ref().and_then(|summary| summary.model.clone());
    // A model in the run folder is already among the files.
    let model_place =
        model.filter(|model| model.contains('/')).map(|model| format!("model in {}", escape_html(&model)));
    let links: Vec<String> = record.files.iter().map(link).chain(model_place).collect();
    if links.is_empty() { String::new() } else { format!("<p>{}</p>", links.join(" · ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64) -> TrainingStep {
        let (auc_so_far, calibration) = (Some(0.5 + step as f64 / 1000.0), Some(1.0));
        TrainingStep { step, samples_per_second: 1e5, loss_smoothed: 0.5, auc_so_far, calibration, staleness: 1 }
    }

    fn scored(step: u64, part: &str) -> ScoredPart {
        let evaluation = Evaluation { samples: 10, auc: Some(0.75), gauc: Some(0.625), ..Evaluation::default() };
        ScoredPart { step, part: part.to_owned(), evaluation }
    }

    #[test]
    fn a_run_that_failed_still_has_its_curves() {
        let record = RunRecord { name: "<run>".to_owned(), steps: (1..50).map(step).collect(), ..RunRecord::default() };
        let page = page(&record);
        assert!(page.contains("No summary: the run failed or still runs; the last recorded step is 49"), "{page}");
        assert!(page.contains("<h1>&lt;run&gt;</h1>") && !page.contains("<run>"));
        assert_eq!(page.matches("<figure>").count(), 5);
        for absent in ["Where the time went", "Held-out parts", "Epochs", "Files"] {
            assert!(!page.contains(&format!("<h2>{absent}")), "{absent}");
        }
    }

    #[test]
    fn evaluations_are_listed_and_that_of_the_model_is_marked() {
        let evaluations = vec![scored(10, "validation"), scored(20, "validation"), scored(20, "test")];
        let steps = (1..30).map(step).collect();
        let job = "a = \"<b>\"\ntrain = \"https://me:word@host/a.csv?sig=secret\"\n".to_owned();
        let files = vec!["summary.json".to_owned()];
        let page = page(&RunRecord { evaluations, steps, chosen: Some(10), job, files, ..RunRecord::default() });
        let best = "<tr class=\"best\"><td>validation</td><td>10</td><td>0.7500</td><td>0.6250</td>";
        assert_eq!(page.matches(best).count(), 1);
        assert_eq!(page.matches("class=\"best\"").count(), 1);
        assert!(page.contains(">the model</text>") && page.contains("GAUC</span>"));
        assert!(page.contains("https://host/a.csv?…") && !page.contains("word") && !page.contains("sig="));
        assert!(page.contains("a = &quot;&lt;b&gt;&quot;") && page.contains("<a href=\"summary.json\">"));
    }
}
