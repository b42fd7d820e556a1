"use strict";
// Draws the charts from the JSON beside it, sorts tables and copies them. Names are data: they become text nodes, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const hidden = new Set(); // methods that are switched off, on the whole page

// ── Making elements ──────────────────────────────────────────────────────────────────────────────────────────────────────

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function number(value, digits) {
  if (value === null || value === undefined) return "–";
  const text = value.toFixed(digits ?? digitsFor([value]));
  return text.replace(/\B(?=(\d{3})+(?!\d))(?<!\.\d*)/g, ",").replace("-", "−");
}
function digitsFor(values) { // whole numbers from 100 on, three places below 10
  const size = values.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0);
  return size >= 100 ? 0 : size >= 10 ? 1 : 3;
}
function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toFixed(2)}M`.replace("-", "−");
  if (size >= 1e4) return `${+(value / 1e3).toFixed(1)}k`.replace("-", "−");
  return String(+value.toPrecision(6)).replace("-", "−");
}
// A name that fits: the beginning and the end of a long one, which is where methods differ.
function fitted(name, room) {
  const most = Math.max(6, Math.floor(room / 6.9));
  return name.length <= most ? name : `${name.slice(0, 4).trimEnd()}…${name.slice(5 - most)}`;
}
const place = (name) => Math.max(0, data.methods.findIndex((method) => method === name));
const known = (name) => data.methods.includes(name);
const paint = (index) => `var(--m${index % 8})`;
const colour = (name) => (known(name) ? paint(place(name)) : "var(--soft)");
const dash = (name) => (place(name) >= 8 ? "7 3" : null); // beyond eight methods a colour comes again, dashed

// ── Scales ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

function ticks(low, high, count) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const steps = [1, 2, 2.5, 5, 10].map((factor) => factor * power);
  const off = (step) => Math.abs(Math.log(step / raw));
  const step = steps.reduce((best, candidate) => (off(candidate) < off(best) ? candidate : best));
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) found.push(value);
  return found;
}
function extent(values, pad) {
  const found = values.filter((value) => Number.isFinite(value));
  if (!found.length) return [0, 1];
  let low = Infinity, high = -Infinity;
  for (const value of found) { low = Math.min(low, value); high = Math.max(high, value); }
  const room = (high - low || Math.abs(high) || 1) * pad;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}
const scale = ([low, high], [from, to]) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);
const line = (points, x, y) => points.map(([a, b], index) => `${index ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");

// A frame with axes: returns the drawing, its scales and the group to draw in.
function frame({ width, height, xs, ys, left = 44, label, xTicks = 4, yTicks = 4, unit = "" }) {
  const right = 12, top = 8, bottom = unit ? 42 : 28;
  const x = scale(xs, [left, width - right]), y = scale(ys, [height - bottom, top]);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0, "aria-label": label });
  for (const value of ticks(...ys, yTicks)) {
    root.append(
      svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, tick(value)),
    );
  }
  for (const value of ticks(...xs, xTicks)) {
    const near = x(value) > width - right - 14; // the last one would be cut off
    root.append(svg("text", { x: near ? width - right : x(value), y: height - bottom + 17, "text-anchor": near ? "end" : "middle" }, tick(value)));
  }
  if (unit) root.append(svg("text", { x: width - right, y: height - bottom + 33, "text-anchor": "end" }, unit));
  root.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  return { root, x, y, left, right: width - right, top, bottom: height - bottom };
}

// ── The tip: one for the page ────────────────────────────────────────────────────────────────────────────────────────────

const tipLine = (name, text, small) =>
  html("p", {}, html("i", { style: `background:${typeof name === "number" ? paint(name) : colour(name)}` }),
    html("span", {}, html("b", {}, typeof name === "number" ? "" : `${name} `), text, small ? html("small", {}, ` ${small}`) : null));

function showTip(box, x, y, ...lines) {
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const size = tip.getBoundingClientRect();
  const left = box.left + x + 14 + size.width > innerWidth ? box.left + x - size.width - 14 : box.left + x + 14;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, Math.min(box.top + y - size.height / 2, innerHeight - size.height - 8))}px`;
}
const hideTip = () => { tip.hidden = true; };
addEventListener("scroll", hideTip, { passive: true });
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

// A cursor that goes from one of the places on the x axis to the next, by pointer or arrow keys.
function cursor(drawing, places, describe) {
  if (!places.length) return;
  const { root, x, top, bottom } = drawing;
  const rule = svg("line", { class: "cursor off", y1: top, y2: bottom });
  const dots = svg("g", { class: "off" });
  root.append(rule, dots);
  let at = places.length - 1;
  const show = () => {
    const value = places[at], { lines, points } = describe(value);
    rule.setAttribute("x1", x(value));
    rule.setAttribute("x2", x(value));
    dots.replaceChildren(...points.map(({ name, y }) => svg("circle", { cx: x(value), cy: y, r: 3.6, fill: colour(name) })));
    rule.classList.remove("off");
    dots.classList.remove("off");
    const box = root.getBoundingClientRect();
    showTip(box, x(value) * (box.width / root.viewBox.baseVal.width), box.height / 2, ...lines);
  };
  const hide = () => { rule.classList.add("off"); dots.classList.add("off"); hideTip(); };
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    const here = (event.clientX - box.left) * (root.viewBox.baseVal.width / box.width);
    at = places.reduce((best, value, index) => (Math.abs(x(value) - here) < Math.abs(x(places[best]) - here) ? index : best), 0);
    show();
  });
  root.addEventListener("pointerleave", hide);
  root.addEventListener("blur", hide);
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = Math.max(0, Math.min(places.length - 1, at + step));
    show();
  });
}

// ── Learning curves ──────────────────────────────────────────────────────────────────────────────────────────────────────

function curves({ data: chart }, panel, width) {
  const height = Math.max(190, Math.min(240, width * 0.62));
  const all = panel.methods.flatMap((method) => method.seeds.flatMap((seed) => seed.points));
  const ends = panel.bands.flatMap((band) => [band.mean - (band.std ?? 0), band.mean + (band.std ?? 0)]);
  const xs = extent([0, ...all.map((point) => point[0]), ...panel.bands.map((band) => band.at)], 0);
  const ys = extent([...all.map((point) => point[1]), ...ends], 0.05);
  const label = `${panel.title}: ${chart.y} over ${chart.unit}, ${panel.methods.map((method) => method.name).join(", ")}`;
  const drawing = frame({ width, height, xs, ys, label, unit: chart.unit });
  const { root, x, y } = drawing;
  const labels = [];
  for (const band of panel.bands) {
    const group = series(band.name, band.label), apart = chart.apart ? " apart" : "";
    if (band.std) {
      const top = y(Math.min(ys[1], band.mean + band.std)), bottom = y(Math.max(ys[0], band.mean - band.std));
      group.append(
        svg("rect", { class: `band${apart}`, x: drawing.left, width: Math.max(0, x(band.at) - drawing.left), y: top, height: bottom - top, fill: colour(band.name) }),
        svg("line", { class: "bandend", x1: x(band.at), x2: x(band.at), y1: top, y2: bottom, stroke: colour(band.name) }),
      );
    }
    group.append(svg("line", { class: "bandmean", x1: drawing.left, x2: x(band.at), y1: y(band.mean), y2: y(band.mean), stroke: colour(band.name) }));
    const height = freeHeight(y(band.mean) - 4, labels, drawing);
    labels.push(height);
    group.append(svg("text", { class: "bandlabel", x: drawing.left + 4, y: height, style: `fill:${colour(band.name)}` }, band.label));
    root.append(group);
  }
  for (const method of [...panel.methods].reverse()) {
    const group = series(method.name, method.name), stroke = colour(method.name);
    for (const seed of method.seeds) {
      group.append(seed.points.length > 1
        ? svg("path", { class: "seed", d: line(seed.points, x, y), stroke })
        : svg("circle", { class: "seed", cx: x(seed.points[0][0]), cy: y(seed.points[0][1]), r: 2, style: `fill:${stroke}` }));
    }
    const whole = method.mean.filter((point) => point[2] === method.seeds.length);
    const firstPart = method.mean.findIndex((point, index) => index && point[2] < method.seeds.length);
    if (whole.length > 1) group.append(svg("path", { class: "mean", d: line(whole, x, y), stroke, "stroke-dasharray": dash(method.name) }));
    else if (whole.length) group.append(svg("circle", { cx: x(whole[0][0]), cy: y(whole[0][1]), r: 3.4, fill: stroke }));
    if (firstPart > 0) {
      group.append(svg("path", { class: "mean part", d: line(method.mean.slice(Math.max(0, firstPart - 1)), x, y), stroke }));
    }
    root.append(group);
  }
  const places = [...new Set(panel.methods.flatMap((method) => method.mean.map((point) => point[0])))].sort((a, b) => a - b);
  cursor(drawing, places, (time) => {
    const lines = [html("p", {}, html("b", {}, `${number(time, 0)} ${chart.unit}`))], points = [];
    for (const method of panel.methods.filter((candidate) => !hidden.has(candidate.name))) {
      const mean = method.mean.find((point) => point[0] === time);
      if (!mean) continue;
      const values = method.seeds.flatMap((seed) => seed.points.filter((point) => point[0] === time).map((point) => point[1]));
      const seeds = mean[2]; // of the curves some points are not drawn, so there may be fewer values than seeds
      const few = seeds === 1 ? "one seed" : values.length < seeds ? `of ${seeds} seeds`
        : seeds > 6 ? `of ${seeds} seeds, ${number(Math.min(...values))} to ${number(Math.max(...values))}`
        : `of ${values.map((value) => number(value)).join(", ")}`;
      lines.push(tipLine(method.name, number(mean[1]), few));
      points.push({ name: method.name, y: y(mean[1]) });
    }
    for (const band of panel.bands.filter((candidate) => candidate.at === time && !hidden.has(candidate.name))) {
      const text = band.std === null ? number(band.mean) : `${number(band.mean)} ± ${number(band.std)}`;
      lines.push(html("p", {}, html("small", {}, `${band.label}: ${text}${chart.apart ? ` (${chart.apart})` : ""}`)));
    }
    return { lines, points };
  });
  return root;
}

// Where a label does not lie on another: as near as possible to where it belongs, and within the frame.
function freeHeight(wanted, taken, { top, bottom }) {
  const inside = (height) => height >= top + 8 && height <= bottom - 2;
  const free = (height) => inside(height) && taken.every((other) => Math.abs(other - height) >= 11);
  const start = Math.min(bottom - 3, Math.max(top + 9, wanted));
  for (let step = 0; step < bottom - top; step += 1) {
    if (free(start - step)) return start - step;
    if (free(start + step)) return start + step;
  }
  return start;
}

function series(name, title) {
  const group = svg("g", { class: "series", "data-method": place(name), "data-name": title });
  group.dataset.known = known(name);
  if (hidden.has(name)) group.classList.add("off");
  return group;
}

// ── Intervals ────────────────────────────────────────────────────────────────────────────────────────────────────────────

function intervals(chart, panel, width) {
  const rowHeight = 24, right = 50;
  const left = Math.min(width * 0.42, Math.max(60, 10 + 7 * Math.max(...panel.rows.map((row) => row.name.length))));
  const height = panel.rows.length * rowHeight + 30;
  const values = panel.rows.flatMap((row) => [row.value, row.low, row.high]).filter((value) => value !== null);
  const xs = extent(values, 0.08), digits = digitsFor(values);
  const x = scale(xs, [left, width - right]);
  const label = `${panel.title}: ${panel.rows.map((row) => `${row.name} ${number(row.value)}`).join(", ")}`;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  for (const value of ticks(...xs, width < 320 ? 3 : 4)) {
    root.append(
      svg("line", { class: "grid", x1: x(value), x2: x(value), y1: 2, y2: height - 24 }),
      svg("text", { x: x(value), y: height - 8, "text-anchor": "middle" }, tick(value)),
    );
  }
  panel.rows.forEach((row, index) => {
    const middle = index * rowHeight + rowHeight / 2 + 2, group = series(row.name, row.name);
    group.append(
      svg("rect", { x: 0, y: middle - rowHeight / 2, width, height: rowHeight, fill: "transparent" }),
      svg("text", { class: "name", x: left - 8, y: middle + 4, "text-anchor": "end" }, fitted(row.name, left - 8)),
    );
    if (row.low !== null) group.append(svg("line", { class: "range", x1: x(row.low), x2: x(row.high), y1: middle, y2: middle, stroke: colour(row.name) }));
    if (row.value !== null) {
      group.append(
        svg("circle", { cx: x(row.value), cy: middle, r: 4.2, fill: colour(row.name) }),
        svg("text", { class: "value", x: width - 2, y: middle + 4, "text-anchor": "end" }, number(row.value, digits)),
      );
    }
    group.addEventListener("pointermove", (event) => showTip({ left: 0, top: 0 }, event.clientX, event.clientY,
      tipLine(row.name, number(row.value, digits), row.low === null ? "" : `${number(row.low, digits)} to ${number(row.high, digits)}`)));
    group.addEventListener("pointerleave", hideTip);
    root.append(group);
  });
  return root;
}

// ── Performance profile ──────────────────────────────────────────────────────────────────────────────────────────────────

function profile({ data: chart }, panel, width) {
  const height = Math.max(220, Math.min(340, width * 0.45)), thresholds = chart.thresholds;
  const xs = [thresholds[0], thresholds[thresholds.length - 1]];
  const label = `${chart.y} of each ${chart.x}: ${chart.methods.map((method) => method.name).join(", ")}`;
  const drawing = frame({ width, height, xs, ys: [0, 1], label, xTicks: width < 400 ? 4 : 8, unit: chart.x });
  const { root, x, y } = drawing;
  for (const method of [...chart.methods].reverse()) {
    const group = series(method.name, method.name), along = (values) => thresholds.map((value, index) => [value, values[index]]);
    if (method.low.every((value) => value !== null)) {
      const area = line(along(method.high), x, y) + line(along(method.low).reverse(), x, y).replace("M", "L") + "Z";
      group.append(svg("path", { class: "band", style: "opacity:.16", d: area, fill: colour(method.name) }));
    }
    group.append(svg("path", { class: "mean", d: line(along(method.value), x, y), stroke: colour(method.name), "stroke-dasharray": dash(method.name) }));
    root.append(group);
  }
  cursor(drawing, thresholds, (value) => {
    const index = thresholds.indexOf(value), visible = chart.methods.filter((method) => !hidden.has(method.name));
    const share = (part) => `${Math.round(part * 100)} %`;
    return {
      lines: [html("p", {}, html("b", {}, `above ${number(value, 2)}`)), ...visible.map((method) =>
        tipLine(method.name, share(method.value[index]), method.low[index] === null ? "" : `${share(method.low[index])} to ${share(method.high[index])}`))],
      points: visible.map((method) => ({ name: method.name, y: y(method.value[index]) })),
    };
  });
  return root;
}

// ── Bars ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

function bars({ data: chart }, panel, width) {
  const rowHeight = 26, right = 64;
  const left = Math.min(width * 0.4, Math.max(60, 10 + 7 * Math.max(...chart.rows.map((row) => row.name.length))));
  const groups = [...new Set(chart.rows.map((row) => row.group))];
  const height = chart.rows.length * rowHeight + groups.length * 26 + 8;
  const total = (row) => row.values.reduce((sum, value) => sum + value, 0);
  const x = scale([0, Math.max(...chart.rows.map(total))], [left, width - right]);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": chart.rows.map((row) => `${row.group} ${row.name}: ${number(total(row))} ${chart.unit}`).join("; ") });
  let top = 0;
  for (const group of groups) {
    root.append(svg("text", { x: 0, y: top + 18 }, group));
    top += 26;
    for (const row of chart.rows.filter((candidate) => candidate.group === group)) {
      root.append(svg("text", { class: "name", x: left - 8, y: top + 16, "text-anchor": "end" }, fitted(row.name, left - 8)));
      let sum = 0;
      row.values.forEach((value, index) => {
        const single = chart.parts.length === 1, fillColour = single ? colour(row.name) : paint(index);
        const part = svg("rect", { x: x(sum), width: Math.max(0, x(sum + value) - x(sum) - (single ? 0 : 1)), y: top + 4, height: rowHeight - 8, rx: 2, fill: fillColour });
        part.addEventListener("pointermove", (event) => showTip({ left: 0, top: 0 }, event.clientX, event.clientY,
          html("p", {}, html("i", { style: `background:${fillColour}` }), html("span", {}, html("b", {}, `${chart.parts[index]} `),
            `${number(value)} ${chart.unit}`, html("small", {}, ` ${Math.round((value / total(row)) * 100)} %`)))));
        part.addEventListener("pointerleave", hideTip);
        root.append(part);
        sum += value;
      });
      root.append(svg("text", { class: "value", x: x(sum) + 6, y: top + 16 }, duration(sum)));
      top += rowHeight;
    }
  }
  return root;
}
function duration(value) {
  return value >= 5400 ? `${number(value / 3600, 1)} h` : value >= 90 ? `${number(value / 60, 1)} min` : `${number(value, 1)} s`;
}

// ── Putting them in place ────────────────────────────────────────────────────────────────────────────────────────────────

const kinds = { curves, intervals, profile, bars };

function methodsOf(chart) {
  const panels = chart.data.panels ?? [];
  const names = [...(chart.data.methods ?? []), ...panels.flatMap((panel) => panel.methods ?? panel.rows)].map((entry) => entry.name);
  return [...new Set(names)].filter(known).sort((a, b) => place(a) - place(b));
}

function legend(key, chart) {
  const holder = document.querySelector(`[data-legend="${key}"]`);
  if (chart.kind === "bars") {
    if (chart.data.parts.length > 1) {
      holder.append(...chart.data.parts.map((part, index) => html("span", {}, html("i", { style: `background:${paint(index)}` }), part)));
    }
    return;
  }
  if (chart.kind === "intervals") return; // its rows have names
  for (const name of methodsOf(chart)) {
    const button = html("button", { type: "button", "aria-pressed": "true", "data-switch": place(name) },
      html("i", { style: `background:${colour(name)}` }), name);
    button.addEventListener("click", () => toggle(name));
    holder.append(button);
  }
}

function toggle(name) {
  hidden.has(name) ? hidden.delete(name) : hidden.add(name);
  const index = place(name);
  for (const group of document.querySelectorAll(`.kind-curves [data-method="${index}"][data-known="true"], .kind-profile [data-method="${index}"][data-known="true"]`)) {
    group.classList.toggle("off", hidden.has(name));
  }
  for (const button of document.querySelectorAll(`[data-switch="${index}"]`)) button.setAttribute("aria-pressed", String(!hidden.has(name)));
}

function place_chart(key, chart) {
  const holder = document.querySelector(`[data-chart="${key}"]`);
  legend(key, chart);
  const panels = chart.data.panels ?? [{ title: "" }];
  if (panels.length === 4) holder.classList.add("two-by-two");
  holder.replaceChildren(...panels.map((panel) => {
    const heading = panel.title || panel.hint || chart.data.apart
      ? html("h3", {}, panel.title, panel.bands?.length && chart.data.apart
        ? html("small", { class: "apart" }, chart.data.apart) : html("small", {}, panel.hint ?? ""))
      : null;
    const box = html("div", { class: "panel" }, heading), canvas = html("div");
    box.append(canvas);
    let drawn = 0;
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width < 40 || width === drawn) return;
      drawn = width;
      canvas.replaceChildren(kinds[chart.kind](chart, panel, width));
    }).observe(canvas);
    return box;
  }));
}
for (const [key, chart] of Object.entries(data.charts)) place_chart(key, chart);

// ── A chart as a file ────────────────────────────────────────────────────────────────────────────────────────────────────

// What the style sheet decides. A saved chart must look the same without it.
const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity"];
const FONTS = ["font-family", "font-size", "font-weight"];

function looks(element, names) {
  const style = getComputedStyle(element);
  const value = (name) => style.getPropertyValue(name).replace("rgba(0, 0, 0, 0)", "none"); // some programs draw that black
  return Object.fromEntries(names.map((name) => [name, value(name)]));
}

// A copy with its looks as attributes. It leaves out everything that is switched off.
function standalone(element) {
  const copy = element.cloneNode(false);
  for (const name of element.getAttributeNames()) {
    if (/^(class|style|role|tabindex|data-.*)$/.test(name)) copy.removeAttribute(name);
  }
  fill(copy, looks(element, element.localName === "text" ? [...LOOKS, ...FONTS] : LOOKS), []);
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) copy.append(child.cloneNode());
    else if (getComputedStyle(child).display !== "none") copy.append(standalone(child));
  }
  return copy;
}

// The legend and all panels of a figure in one drawing, each where it is on the page.
function drawingOf(figure) {
  const panels = figure.querySelector(".panels").getBoundingClientRect(), key = figure.querySelector(".legend");
  const top = key.hasChildNodes() ? key.getBoundingClientRect().top : panels.top;
  const { left, width } = panels, height = panels.bottom - top;
  const box = (element) => {
    const found = element.getBoundingClientRect();
    return { x: found.left - left, y: found.top - top, width: found.width, height: found.height };
  };
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height },
    svg("title", {}, figure.querySelector("figcaption span").textContent));
  for (const dot of figure.querySelectorAll(".legend :not([aria-pressed=false]) > i")) {
    const text = dot.nextSibling, { x, y, width: size } = box(dot), middle = y + size / 2;
    root.append(
      svg("circle", { cx: x + size / 2, cy: middle, r: size / 2, fill: getComputedStyle(dot).backgroundColor }),
      svg("text", { x: x + 1.5 * size, y: middle + 4, fill: getComputedStyle(dot.parentNode).color, ...looks(dot.parentNode, FONTS) }, text.textContent),
    );
  }
  for (const heading of figure.querySelectorAll(".panel h3, .panel h3 small")) {
    const text = [...heading.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE).map((child) => child.data).join("");
    const { x, y, height: tall } = box(heading);
    if (text) root.append(svg("text", { x, y: y + tall - 4, fill: getComputedStyle(heading).color, ...looks(heading, FONTS) }, text));
  }
  for (const panel of figure.querySelectorAll(".panel svg")) root.append(fill(standalone(panel), box(panel), []));
  return root;
}

for (const button of document.querySelectorAll("[data-save]")) {
  button.addEventListener("click", () => {
    const page = document.documentElement, scheme = page.dataset.scheme;
    page.dataset.scheme = "light"; // for white paper; the change is not seen, as the page is not painted in between
    const text = new XMLSerializer().serializeToString(drawingOf(button.closest("figure")));
    if (scheme) page.dataset.scheme = scheme; else delete page.dataset.scheme;
    const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    html("a", { href: address, download: `${button.dataset.save}.svg` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000); // the browser may ask where to save it first
  });
}

// ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

const order = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
for (const table of document.querySelectorAll(".table table")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const numeric = head.classList.contains("number");
    const before = head.getAttribute("aria-sort");
    const up = before === "none" ? !numeric : before === "descending"; // of numbers the largest first
    const value = (row) => (numeric ? (row.cells[column].dataset.value === undefined ? null : Number(row.cells[column].dataset.value)) : row.cells[column].textContent);
    const rows = [...body.rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // what is missing stays last
      return (numeric ? a - b : order.compare(a, b)) * (up ? 1 : -1);
    });
    heads.forEach((other) => other.setAttribute("aria-sort", other === head ? (up ? "ascending" : "descending") : "none"));
    body.append(...rows.map(([, row]) => row));
  }));
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page from a file may not be allowed to: the old way
    const area = html("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
const spoken = document.getElementById("spoken"); // screen readers say what it holds
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    await copy(data.tables[button.dataset.table][button.dataset.copy]);
    const menu = button.closest("details"), title = menu.querySelector("summary");
    menu.open = false;
    title.focus(); // the button that had it is gone
    title.textContent = "copied";
    spoken.textContent = `Copied ${button.textContent}.`;
    setTimeout(() => { title.textContent = "copy"; spoken.textContent = ""; }, 1600);
  });
}
addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll(".copy[open]")) if (!menu.contains(event.target)) menu.open = false;
});

// ── Contents and scheme ──────────────────────────────────────────────────────────────────────────────────────────────────

const links = new Map([...document.querySelectorAll(".toc a")].map((link) => [link.getAttribute("href").slice(1), link]));
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links.values()) link.classList.remove("here");
    links.get(entry.target.id)?.classList.add("here");
  }
}, { rootMargin: "-10% 0px -75% 0px" });
for (const section of document.querySelectorAll("main > section")) watcher.observe(section);
if (matchMedia("(max-width: 62rem)").matches) document.querySelector(".toc details").open = false;

document.getElementById("scheme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.scheme ? root.dataset.scheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.scheme = dark ? "light" : "dark";
});

// ── Wide tables and paper ────────────────────────────────────────────────────────────────────────────────────────────────

for (const box of document.querySelectorAll(".scroll")) {
  const frame = box.parentElement, hint = frame.previousElementSibling;
  const update = () => {
    hint.hidden = box.scrollWidth <= box.clientWidth + 1;
    frame.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  new ResizeObserver(update).observe(box);
  box.addEventListener("scroll", update, { passive: true });
}
const folded = () => [...document.querySelectorAll("main details:not(.copy):not([open])")];
let opened = [];
addEventListener("beforeprint", () => { opened = folded(); for (const part of opened) part.open = true; });
addEventListener("afterprint", () => { for (const part of opened) part.open = false; });
