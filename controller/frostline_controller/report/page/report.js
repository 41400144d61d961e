// A slider over the run that draws which worker held which units. Plain JavaScript, no network.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("occupancy-data").textContent);
  const picture = document.getElementById("occupancy");
  const slider = document.getElementById("step-slider");
  const readout = document.getElementById("readout");
  const news = document.getElementById("news");
  const playButton = document.getElementById("play");
  if (!data.segments.length || !slider) return;
  const first = data.segments[0][0], last = data.segments[data.segments.length - 1][1];
  const REPLICAS_MAX = 16;
  const HUES = [24, 268, 150, 340, 50, 200, 300, 100];

  const make = (name, attributes, parent, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    parent.appendChild(node);
    return node;
  };
  const segmentAt = (step) => data.segments.find((s) => step <= s[1]) || data.segments[data.segments.length - 1];
  const readingAt = (step) => data.readings.find((r) => step <= r[0]) || data.readings[data.readings.length - 1];

  function drawCell(box, unit, frozen, hue) {
    const learning = `fill:hsl(${hue} 70% 56% / .30);stroke:hsl(${hue} 62% 52%)`;
    const style = (frozen ? "fill:var(--ice);stroke:var(--frost-line)" : learning) + ";stroke-width:1.3";
    const group = make("g", {"class": frozen ? "unit frozen" : "unit"}, picture);
    make("title", {}, group, `${data.units[unit]} (unit ${unit}): ${frozen ? "frozen" : "learning"}`);
    const body = {x: box.x + 1.5, y: box.y, width: Math.max(1, box.width - 3), height: box.height, rx: 5, style: style};
    make("rect", body, group);
    if (box.width > 26) {
      const names = {0: "emb", [data.units.length - 1]: "head"};
      const place = {x: box.x + box.width / 2, y: box.y + box.height / 2 + 4, "text-anchor": "middle", "font-size": 11.5,
        style: "fill:var(--ink)"};
      make("text", place, group, (frozen && box.width > 44 ? "\u2744 " : "") + (names[unit] || unit));
    }
  }

  function drawReplica(plan, replica, top, freezePoint, geometry) {
    const label = {x: 0, y: top + geometry.row / 2, "font-size": 12.5, style: "fill:var(--ink);font-weight:600"};
    make("text", label, picture, `replica ${replica}`);
    const leaves = plan.leaves.length > replica + 1 ? `leaves ${plan.leaves[replica]}\u2013${plan.leaves[replica + 1] - 1}` : "";
    make("text", {x: 0, y: top + geometry.row / 2 + 15, "font-size": 10.5, style: "fill:var(--muted)"}, picture, leaves);
    for (let stage = 0; stage + 1 < plan.bounds.length; stage++) {
      const low = plan.bounds[stage], high = plan.bounds[stage + 1];
      const worker = data.workers[plan.replicas[replica][stage]];
      const x = geometry.left + low * geometry.unit, width = (high - low) * geometry.unit;
      const hue = HUES[plan.pp_ranks[stage] % HUES.length];
      const group = make("g", {"class": "stage"}, picture);
      make("title", {}, group, `${worker.label} = ${worker.id}: stage ${stage}, units ${low} to ${high - 1}`);
      make("rect", {x: x, y: top + 2, width: width, height: geometry.row - 12, rx: 8, style: "fill:transparent"}, group);
      make("text", {x: x + 3, y: top + 13, "font-size": 11, style: `fill:hsl(${hue} 62% 52%);font-weight:650`}, group,
        width > 60 ? `${worker.label} \u00b7 stage ${stage}` : worker.label);
      for (let unit = low; unit < high; unit++) {
        const box = {x: geometry.left + unit * geometry.unit, y: top + 18, width: geometry.unit, height: geometry.row - 30};
        drawCell(box, unit, unit < freezePoint, hue);
      }
    }
  }

  function draw(step) {
    const [from, to, planIndex, freezePoint] = segmentAt(step);
    const plan = data.plans[planIndex];
    picture.replaceChildren();
    const width = 1040, left = 92;
    if (!plan) {
      picture.setAttribute("viewBox", `0 0 ${width} 40`);
      const place = {x: 0, y: 24, "font-size": 13, style: "fill:var(--muted)"};
      make("text", place, picture, "plans.jsonl does not hold this generation");
      return;
    }
    const shown = Math.min(plan.replicas.length, REPLICAS_MAX), members = plan.replicas.flat();
    const outside = data.workers.filter((_, i) => !members.includes(i)).map((w) => w.label);
    const notes = [];
    if (plan.replicas.length > shown) notes.push(`and ${plan.replicas.length - shown} more replicas alike`);
    const more = outside.length > 24 ? " \u2026" : "";
    if (outside.length) notes.push(`not in this generation: ${outside.slice(0, 24).join(", ")}${more}`);
    // The tallest shape of the run sets the height, so that the page does not jump while the slider moves.
    const rows = Math.max(...data.plans.map((p) => Math.min(p.replicas.length, REPLICAS_MAX)));
    picture.setAttribute("viewBox", `0 0 ${width} ${rows * 62 + 24}`);
    const geometry = {left: left, unit: (width - left) / data.units.length, row: Math.min(104, rows * 62 / shown)};
    for (let replica = 0; replica < shown; replica++) drawReplica(plan, replica, replica * geometry.row, freezePoint, geometry);
    make("text", {x: left, y: shown * geometry.row + 14, "font-size": 12, style: "fill:var(--muted)"}, picture, notes.join("; "));
    picture.setAttribute("aria-label", `Step ${step}: ${plan.shape}, ` +
      `${freezePoint} of ${data.units.length} units frozen`);
    tell(step, plan, freezePoint, from, to);
  }

  function tell(step, plan, freezePoint, from, to) {
    const reading = readingAt(step);
    const facts = [["step", step], ["generation", plan.generation], ["shape", plan.shape],
      ["freeze point", `${freezePoint} / ${data.units.length}`], ["schedule", plan.schedule]];
    if (reading[1] !== null) facts.push(["loss", reading[1].toPrecision(4)]);
    if (reading[2]) facts.push(["samples/s", Math.round(reading[2]).toLocaleString("en")]);
    if (reading[4]) facts.push(["cache hits", `${Math.round(100 * reading[3] / reading[4])} %`]);
    readout.replaceChildren(...facts.map(([name, value]) => {
      const item = document.createElement("span"), strong = document.createElement("b");
      strong.textContent = value;
      item.append(`${name} `, strong);
      return item;
    }));
    slider.setAttribute("aria-valuetext", facts.map((fact) => fact.join(" ")).join(", "));
    const recent = data.events.filter((event) => event.step <= step).pop();
    news.replaceChildren();
    if (recent) {
      const strong = document.createElement("b");
      strong.textContent = `step ${recent.step}, ${recent.kind.replace("_", " ")}`;
      news.append(strong, `: ${recent.reason}`);
    }
  }

  slider.min = first; slider.max = last; slider.value = first;
  const changes = [...new Set(data.segments.map((segment) => segment[0]))];
  const go = (step) => { slider.value = step; draw(Number(slider.value)); };
  slider.addEventListener("input", () => { stop(); draw(Number(slider.value)); });
  document.getElementById("previous").addEventListener("click", () =>
    { stop(); go([...changes].reverse().find((step) => step < Number(slider.value)) ?? first); });
  document.getElementById("next").addEventListener("click", () =>
    { stop(); go(changes.find((step) => step > Number(slider.value)) ?? last); });
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; playButton.textContent = "Play"; };
  playButton.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (Number(slider.value) >= last) go(first);
    playButton.textContent = "Pause";
    const stride = Math.max(1, Math.round((last - first) / 200));
    timer = setInterval(() => {
      if (Number(slider.value) >= last) return stop();
      go(Math.min(last, Number(slider.value) + stride));
    }, 60);
  });
  const ticks = document.getElementById("ticks");
  for (const event of data.events) {
    if (event.step < first || event.step > last) continue;
    const tick = document.createElement("i");
    tick.className = event.kind;
    tick.title = `step ${event.step}: ${event.kind}`;
    tick.style.left = `${100 * (event.step - first) / Math.max(1, last - first)}%`;
    ticks.appendChild(tick);
  }
  draw(first);
})();
