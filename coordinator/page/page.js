// Draws the coordinator's status. Text is inserted as text only, so the name of a job is never markup.

function make(name, attributes = {}, children = []) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function show(id, text) {
  const element = document.getElementById(id);
  element.hidden = !text;
  element.textContent = text ?? "";
  return element;
}

// Words and signs, because some people cannot tell the colours apart.
const STATES = {
  waiting: ["◌ waiting", "warn"],
  training: ["● training", "busy"],
  finished: ["✓ finished", "good"],
  interrupted: ["■ interrupted", "warn"],
  failed: ["✕ failed", "bad"],
};
const MEMBER_STATES = { alive: ["● alive", "good"], left: ["■ left", "soft"], lost: ["✕ lost", "bad"], away: ["◌ away", "bad"] };
// These stages follow each other in a step. Together they are the time of training.
const STEP_STAGES = [
  ["waiting", "waiting for rows"],
  ["gather", "gather"],
  ["dense", "network"],
  ["reduce", "other workers"],
  ["scatter", "scatter"],
];
const BACKGROUND_STAGES = ["parse", "dedup", "lookup", "push"];

const rate = (value) => `${count(value)}/s`;
const charts = {
  throughput: new Chart({ id: "throughput", title: "Throughput", unit: "samples a second", format: rate, empty: "no step yet" }),
  loss: new Chart({
    id: "loss", title: "Loss", unit: "mean log loss, nats", format: (value) => value.toFixed(4), empty: "no step yet",
    legend: [["line", "blue", "training"], ["dot", "orange", "held-out part"]],
  }),
  auc: new Chart({
    id: "auc", title: "AUC", unit: "1 is perfect, 0.5 is chance", format: (value) => value.toFixed(4), empty: "no click and no-click seen yet",
    legend: [["line", "blue", "training, each sample before it was learned from"], ["dot", "orange", "held-out part"]],
  }),
  staleness: new Chart({
    id: "staleness", title: "Staleness", unit: "batches", format: (value) => String(value), empty: "no step yet",
    legend: [["line", "blue", "largest of the time"], ["dash", "", "bound"]],
  }),
};

function header(run) {
  const [word, tone] = STATES[run.state] ?? [run.state, "warn"];
  document.getElementById("job").textContent = run.job;
  const state = show("state", word);
  state.className = `state ${tone}`;
  const epoch = `epoch ${Math.min(run.epoch + 1, run.epochs)} of ${run.epochs}`;
  show("lead", `${epoch} · step ${exact(run.step)} · ${count(run.samples)} samples · running for ${duration(run.elapsed_seconds)}`);
  const reason = show("reason", run.reason);
  reason.className = run.state === "failed" ? "note bad" : "note";
  document.title = `${word} ${percent(done(run))} – ${run.job}`;
}

// The completed share of all epochs.
function done(run) {
  if (run.state === "finished") return 1;
  return run.splits > 0 ? (run.epoch + run.splits_done / run.splits) / run.epochs : 0;
}

function warnings(run) {
  const list = document.getElementById("warnings");
  const known = [...list.children].map((item) => item.textContent);
  // Replaced only if it changed; otherwise a screen reader would read it repeatedly.
  if (JSON.stringify(known) !== JSON.stringify(run.warnings)) {
    list.replaceChildren(...run.warnings.map((text) => make("li", {}, [text])));
  }
}

// What the hang doctor says of the run: what is wrong, who waits for whom, and what to do.
let shownFindings = "";

function findings(run) {
  const found = run.diagnosis.findings;
  const now = JSON.stringify(found.map((finding) => [finding.what, finding.why, finding.next]));
  if (now === shownFindings) return;
  shownFindings = now;
  document.getElementById("doctor").hidden = found.length === 0;
  const item = (finding) =>
    make("li", { class: finding.severity }, [
      make("b", {}, [finding.what]),
      make("ul", {}, finding.why.map((line) => make("li", {}, [line]))),
      make("p", {}, [make("span", { class: "soft" }, ["next: "]), finding.next]),
    ]);
  document.getElementById("findings").replaceChildren(...found.map(item));
}

function bar(parts, kind = "") {
  const strip = make("div", { class: `bar ${kind}` });
  for (const [style, share] of parts) {
    const part = make("i", { class: style });
    part.style.width = `${(share * 100).toFixed(2)}%`;
    strip.append(part);
  }
  return strip;
}

function tile(id, name, value, more) {
  return make("div", { class: "tile", id }, [make("div", { class: "name" }, [name]), make("b", {}, [value]), ...more.filter(Boolean).map((one) => (typeof one === "string" ? make("div", { class: "more" }, [one]) : one))]);
}

function tiles(run) {
  const workers = run.members.map((member) => member.progress).filter(Boolean);
  const last = run.evaluations[run.evaluations.length - 1];
  const point = run.history[run.history.length - 1];
  const loss = workers.length > 0 ? workers.reduce((sum, worker) => sum + (worker.loss ?? NaN), 0) / workers.length : NaN;
  const auc = workers.find((worker) => worker.auc !== null)?.auc ?? point?.auc;
  const staleness = Math.max(0, ...workers.map((worker) => worker.staleness));
  const most = Math.max(0, ...workers.map((worker) => worker.staleness_max));
  const splits = run.splits || 1;
  const held = run.splits_held > 0 ? `, ${run.splits_held} under way` : "";
  const part = last?.part || "held-out";
  const progress = bar([["done", run.splits_done / splits], ["held", Math.min(run.splits_held, splits - run.splits_done) / splits]]);
  document.getElementById("tiles").replaceChildren(
    tile("progress", `epoch ${Math.min(run.epoch + 1, run.epochs)} of ${run.epochs}`, percent(run.splits_done / splits), [progress, `${run.splits_done} of ${run.splits} splits done${held}`, ...(run.scale ? [run.scale.text] : [])]),
    tile("speed", "throughput", rate(run.samples_per_second), ["samples, all workers"]),
    tile("nats", "loss", measure(loss), [last ? `${part} ${measure(last.logloss)}` : "smoothed, training"]),
    tile("area", last ? `${part} AUC` : "AUC so far", measure(last ? last.auc : auc), [last ? `after step ${exact(last.step)}; training ${measure(auc)}` : "training, before learning"]),
    tile("stale", "staleness", `${staleness} of ${run.staleness_bound}`, [`batches; at most ${most} so far`]),
  );
}

function curves(run) {
  const of = (key) => run.history.map((point) => [point.seconds, point[key]]);
  const scored = (key) => run.evaluations.map((evaluation) => [when(run.history, evaluation.step), evaluation[key]]);
  const heldOut = (key) => ({ colour: "orange", dots: true, name: "held-out", points: scored(key) });
  const { axes } = run;
  charts.throughput.show([{ colour: "blue", area: true, points: of("samples_per_second") }], axes.throughput, axes.time);
  charts.loss.show([{ colour: "blue", points: of("loss") }, heldOut("logloss")], axes.loss, axes.time);
  charts.auc.show([{ colour: "blue", points: of("auc") }, heldOut("auc")], axes.auc, axes.time);
  charts.staleness.show([{ colour: "blue", area: true, points: of("staleness") }], axes.staleness, axes.time, run.staleness_bound);
}

// The time of a step, as far as the history shows it. Evaluations have only their step.
function when(history, step) {
  const later = history.find((point) => point.step >= step);
  return (later ?? history[history.length - 1])?.seconds ?? 0;
}

function facts(pairs) {
  return make("dl", { class: "facts" }, pairs.map(([name, value]) => make("div", {}, [make("dt", {}, [name]), make("dd", {}, [value])])));
}

function memberHead(member, name) {
  const isQuiet = member.state === "alive" && member.silent_seconds >= 3;
  const [word, tone] = isQuiet ? [`◌ silent for ${duration(member.silent_seconds)}`, "warn"] : MEMBER_STATES[member.state] ?? [member.state, "warn"];
  return make("header", {}, [make("h3", {}, [name]), make("span", { class: tone }, [word])]);
}

function servers(run) {
  const all = run.members.filter((member) => member.role === "embedding server");
  const most = Math.max(1, ...all.map((member) => member.load?.bytes ?? 0));
  const buckets = Math.max(1, all.reduce((sum, member) => sum + member.buckets, 0));
  const card = (member) => {
    const load = member.load ?? { rows: 0, bytes: 0, under_way: 0, hit_rate: null, lookup_seconds_p99: null };
    const waiting = run.members.flatMap((other) => other.waits).filter((wait) => wait.server === member.index);
    const slow = Math.max(0, ...waiting.map((wait) => wait.oldest_seconds));
    const note = slow > 0 ? [make("p", { class: "warn" }, [`⚠ its oldest request has waited ${slow.toFixed(1)} s`])] : [];
    return make("article", { class: "card" }, [
      memberHead(member, `server ${member.index}`),
      bar([["done", load.bytes / most]]),
      facts([
        ["memory", bytes(load.bytes)],
        ["rows", count(load.rows)],
        [`buckets (${percent(member.buckets / buckets)})`, count(member.buckets)],
        ["hit rate", percent(load.hit_rate, load.hit_rate > 0.99 && load.hit_rate < 1 ? 1 : 0)],
        ["lookup p99", Number.isFinite(load.lookup_seconds_p99) ? `≤ ${shortTime(load.lookup_seconds_p99)}` : "–"],
        ["under way", exact(load.under_way)],
      ]),
      ...note,
    ]);
  };
  document.getElementById("servers").replaceChildren(...(all.length > 0 ? all.map(card) : [make("p", { class: "soft" }, ["none has joined yet"])]));
}

function stages(progress) {
  const stages = progress.stages;
  if (!stages) return [];
  const total = STEP_STAGES.reduce((sum, [key]) => sum + stages[key], 0) || 1;
  const parts = STEP_STAGES.map(([key], index) => [`s${index}`, stages[key] / total]);
  const legend = STEP_STAGES.map(([key, name], index) => make("span", {}, [make("i", { class: `s${index}` }), `${name} `, make("b", {}, [percent(stages[key] / total)])]));
  const each = (key) => `${key} ${shortTime(stages[key] / Math.max(1, progress.step))}`;
  return [
    bar(parts, "thick"),
    make("div", { class: "stages" }, legend),
    make("p", { class: "stages" }, [`in the background, a batch: ${BACKGROUND_STAGES.map(each).join(", ")}`]),
  ];
}

function workers(run) {
  const all = run.members.filter((member) => member.role === "dense worker");
  const card = (member) => {
    const progress = member.progress;
    const waits = member.waits.map((wait) => `server ${wait.server} (${wait.oldest_seconds.toFixed(1)} s)`);
    const note = waits.length > 0 ? [make("p", { class: "warn" }, [`⚠ waits for ${waits.join(", ")}`])] : [];
    const numbers = progress
      ? [facts([["step", exact(progress.step)], ["speed", rate(progress.samples_per_second)], ["loss", measure(progress.loss)]]), ...stages(progress)]
      : [make("p", { class: "soft" }, ["no step yet"])];
    return make("article", { class: "card" }, [memberHead(member, `worker ${member.index}`), ...numbers, ...note]);
  };
  document.getElementById("workers").replaceChildren(...(all.length > 0 ? all.map(card) : [make("p", { class: "soft" }, ["none has joined yet"])]));
}

function table(titles, rows, nothing) {
  if (rows.length === 0) return make("p", { class: "soft" }, [nothing]);
  const line = (kind, cells) => make("tr", {}, cells.map((cell) => make(kind, {}, [cell])));
  return make("table", {}, [make("thead", {}, [line("th", titles)]), make("tbody", {}, rows.map((cells) => line("td", cells)))]);
}

function tables(run) {
  const every = run.checkpoint_every_seconds;
  const none = every ? `none yet; the job asks for one every ${duration(every)}` : "the job asks for none by time";
  const marks = run.checkpoints.map((mark) => [exact(mark.step), `${duration(mark.age_seconds)} ago`]).reverse().slice(0, 6);
  document.getElementById("checkpoints").replaceChildren(table(["after step", "complete"], marks, none));
  const scored = run.evaluations.slice(-6).reverse();
  const row = (one) => [one.part || "held-out", exact(one.step), measure(one.auc), measure(one.logloss), count(one.samples)];
  document.getElementById("evaluations").replaceChildren(table(["part", "after step", "AUC", "logloss", "samples"], scored.map(row), "none yet"));
}
