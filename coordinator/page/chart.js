// Curves over time as inline SVG, with a value under the pointer.

const SVG = "http://www.w3.org/2000/svg";
// In pixels, so that labels have the same size on a phone and on a desktop.
const SIZE = { height: 210, left: 48, right: 12, top: 10, bottom: 36 };

function draw(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Where a value lies on an axis: 0 at its low end, 1 at its high end. This page keeps points that the coordinator has merged
// with their neighbours; those stay inside the frame.
function share({ low, high }, value) {
  return Math.min(Math.max((value - low) / (high - low), 0), 1);
}

// A figure that redraws its curves at each `show`.
class Chart {
  constructor(options) {
    this.options = options;
    this.figure = make("figure", { id: options.id });
    this.tip = make("div", { class: "tip", hidden: "" });
    this.body = make("div");
    const caption = make("figcaption", {}, [make("h3", {}, [options.title]), make("p", {}, [options.unit])]);
    if (options.legend) caption.append(this.legend(options.legend));
    this.figure.append(caption, this.body, this.tip);
    this.figure.addEventListener("pointermove", (event) => this.point(event));
    this.figure.addEventListener("pointerleave", () => this.forget());
    this.show([]);
  }

  legend(entries) {
    const entry = ([shape, colour, name]) => make("span", {}, [make("i", { class: `${shape} ${colour}` }), name]);
    return make("div", { class: "legend" }, entries.map(entry));
  }

  // Series of { colour, dots, points: [[seconds, value]] }, drawn on the axes that the coordinator computed; a bound is a
  // dashed line.
  show(series, axis, time, bound) {
    this.series = series.map((one) => ({ ...one, points: one.points.filter((point) => Number.isFinite(point[1])) }));
    const all = this.series.flatMap((one) => one.points);
    if (all.length < 2 || !axis || !time) {
      this.svg = null;
      this.body.replaceChildren(make("p", { class: "empty" }, [this.options.empty]));
      return;
    }
    [this.axis, this.time] = [axis, time];
    this.width = Math.max(240, this.body.clientWidth || 560);
    const last = all.reduce((last, point) => (point[0] > last[0] ? point : last));
    const label = `${this.options.title}: ${this.options.format(last[1])} ${this.options.unit}`;
    this.svg = draw("svg", { viewBox: `0 0 ${this.width} ${SIZE.height}`, role: "img", "aria-label": label });
    this.axes();
    if (bound !== undefined) {
      const y = this.y(bound);
      this.svg.append(draw("line", { class: "bound", x1: SIZE.left, x2: this.width - SIZE.right, y1: y, y2: y }));
    }
    this.series.forEach((one) => this.curve(one));
    this.cross = draw("line", { class: "cross", y1: SIZE.top, y2: SIZE.height - SIZE.bottom, visibility: "hidden" });
    this.svg.append(this.cross);
    this.body.replaceChildren(this.svg);
    if (this.pointed !== undefined) this.mark();
  }

  x(seconds) {
    return SIZE.left + share(this.time, seconds) * (this.width - SIZE.left - SIZE.right);
  }

  y(value) {
    return SIZE.top + (1 - share(this.axis, value)) * (SIZE.height - SIZE.top - SIZE.bottom);
  }

  axes() {
    const [right, bottom] = [this.width - SIZE.right, SIZE.height - SIZE.bottom];
    for (const tick of this.axis.ticks) {
      const y = this.y(tick.at);
      this.svg.append(draw("line", { class: "grid", x1: SIZE.left, x2: right, y1: y, y2: y }));
      this.svg.append(draw("text", { x: SIZE.left - 6, y: y + 3.5, "text-anchor": "end" }, tick.label));
    }
    for (const tick of this.time.ticks) {
      this.svg.append(draw("text", { x: this.x(tick.at), y: bottom + 15, "text-anchor": "middle" }, tick.label));
    }
    this.svg.append(draw("line", { class: "axis", x1: SIZE.left, x2: right, y1: bottom, y2: bottom }));
    const middle = (SIZE.left + right) / 2;
    this.svg.append(draw("text", { x: middle, y: SIZE.height - 4, "text-anchor": "middle" }, `${this.time.unit} since the start`));
  }

  curve({ colour, dots, area, points }) {
    const places = points.map(([time, value]) => `${this.x(time).toFixed(1)},${this.y(value).toFixed(1)}`);
    if (area && places.length > 1) {
      const bottom = SIZE.height - SIZE.bottom;
      const ends = [this.x(points[0][0]), this.x(points[points.length - 1][0])];
      this.svg.append(draw("polygon", { class: "area", points: `${ends[0]},${bottom} ${places.join(" ")} ${ends[1]},${bottom}` }));
    }
    this.svg.append(draw("polyline", { class: `curve ${colour}`, points: places.join(" ") }));
    if (dots) points.forEach(([time, value]) => this.svg.append(draw("circle", { class: colour, cx: this.x(time), cy: this.y(value), r: 4 })));
  }

  point(event) {
    if (!this.svg) return;
    const box = this.svg.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * this.width;
    const { low, high } = this.time;
    const time = low + ((place - SIZE.left) / (this.width - SIZE.left - SIZE.right)) * (high - low);
    this.pointed = Math.min(Math.max(time, low), high);
    this.mark();
  }

  // The values at the pointer, shown beside it.
  mark() {
    const near = (points) => points.reduce((best, point) => (Math.abs(point[0] - this.pointed) < Math.abs(best[0] - this.pointed) ? point : best));
    const found = this.series.filter((one) => one.points.length > 0).map((one) => [one, near(one.points)]);
    const [, [time]] = found[0];
    const said = found.filter(([one]) => !one.dots || found.length === 1).map(([, [, value]]) => this.options.format(value));
    const dots = found.filter(([one]) => one.dots && found.length > 1).map(([one, [, value]]) => `${one.name} ${this.options.format(value)}`);
    this.cross.setAttribute("x1", this.x(time));
    this.cross.setAttribute("x2", this.x(time));
    this.cross.setAttribute("visibility", "visible");
    this.tip.textContent = [`${duration(time)}: ${said.join(", ")}`, ...dots].join(" · ");
    this.tip.hidden = false;
    const left = (this.x(time) / this.width) * this.figure.clientWidth;
    this.tip.style.left = `${Math.max(4, Math.min(left + 12, this.figure.clientWidth - this.tip.offsetWidth - 4))}px`;
  }

  forget() {
    this.pointed = undefined;
    this.tip.hidden = true;
    this.cross?.setAttribute("visibility", "hidden");
  }
}
