// The connection: events of the coordinator until the run ends, and the message when none arrive.

// The most points that this page keeps. With more, every second one is dropped.
const MOST_POINTS = 1200;
// Events arrive each second. After this time without one, the connection is lost.
const SILENCE_MS = 5000;

let run = null;
let heard = Date.now();
let ended = false;
let source = null;

function adopt(next, isWhole) {
  if (run && !isWhole) {
    next.history = run.history.concat(next.history);
    if (next.evaluations.length === 0) next.evaluations = run.evaluations;
    if (next.history.length > MOST_POINTS) next.history = next.history.filter((_, index) => index % 2 === 1);
  }
  run = next;
  heard = Date.now();
  header(run);
  show("scale", run.scale ? run.scale.text : "");
  warnings(run);
  findings(run);
  tiles(run);
  curves(run);
  servers(run);
  workers(run);
  tables(run);
  show("connection", "");
  show("updated", `updated ${new Date(heard).toLocaleTimeString()}`);
}

function finish() {
  ended = true;
  source.close();
  const how = run.reason ? `${run.state}: ${run.reason}` : run.state;
  const note = show("ended", `The run is over: ${how}. This is its last state; nothing more will come. The run's own page is report.html in its folder.`);
  note.className = run.state === "finished" ? "note good" : "note bad";
  show("reason", "");
}

function connect() {
  source = new EventSource("events");
  source.addEventListener("whole", (event) => adopt(JSON.parse(event.data), true));
  source.addEventListener("next", (event) => adopt(JSON.parse(event.data), false));
  source.addEventListener("end", (event) => {
    adopt(JSON.parse(event.data), true);
    finish();
  });
  source.addEventListener("error", () => {
    // The browser tries again by itself unless it was refused.
    if (source.readyState === EventSource.CLOSED && !ended) setTimeout(connect, 5000);
  });
}

function watch() {
  const silence = Date.now() - heard;
  if (ended || silence < SILENCE_MS) return;
  const since = new Date(heard).toLocaleTimeString();
  const what = run ? `Connection lost since ${since} (${duration(silence / 1000)})` : `No answer since ${since}`;
  show("connection", `${what}: the coordinator does not answer, or too many browsers watch this run. The figures below are old; trying again.`);
}

// The token is no longer needed: the browser has a cookie. Without the token, the address can be shared.
if (location.search) history.replaceState(null, "", location.pathname);
document.getElementById("charts").append(...Object.values(charts).map((chart) => chart.figure));
setInterval(watch, 1000);
// Charts are drawn for their present width. After the end no event redraws them.
addEventListener("resize", () => run && curves(run));
connect();
