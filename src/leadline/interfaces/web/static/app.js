"use strict";
// What the page does beyond htmx: sliders, uploads, plots, live jobs and the chat.
(() => {
  const base = document.body.dataset.base;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = ["#00857d", "#c2591b", "#5b5bd6", "#a8811a", "#b23a6f", "#4b7f2e", "#7a7f85"];

  // Sliders step through powers of two; the leftmost says nothing.
  const showSlider = (slider) => {
    const power = Number(slider.value);
    const value = power < 0 ? "" : String(2 ** power);
    slider.form.elements[slider.dataset.power].value = value;
    const output = slider.closest("label").querySelector("output");
    if (output) output.textContent = value || "usual";
    slider.setAttribute("aria-valuetext", value || "usual");
  };
  document.querySelectorAll("[data-power]").forEach(showSlider);
  document.addEventListener("input", (event) => {
    if (event.target.dataset && event.target.dataset.power) showSlider(event.target);
  }, true);

  // Uploads: the answer names the file as a workload.
  const upload = async (address, content) => {
    const status = document.getElementById("uploaded");
    status.textContent = "uploading …";
    const answer = await fetch(address, {method: "PUT", body: content, headers: {"Content-Type": "application/octet-stream"}});
    const document_ = await answer.json();
    if (!answer.ok) { status.textContent = document_.detail; return; }
    status.textContent = "uploaded";
    const field = document.getElementById("workload");
    field.value = document_.workload;
    field.dispatchEvent(new Event("input", {bubbles: true}));
  };
  const file = document.querySelector("[data-upload]");
  if (file) file.addEventListener("change", () => {
    if (file.files.length) upload(file.dataset.upload + encodeURIComponent(file.files[0].name), file.files[0]);
  });
  const usePasted = document.querySelector("[data-use-pasted]");
  if (usePasted) usePasted.addEventListener("click", () => {
    const text = document.querySelector("[data-paste]");
    upload(text.dataset.paste, text.value);
  });

  // Plots
  const axis = (label, format) => ({
    label, stroke: color("--quiet"), grid: {stroke: color("--line")}, ticks: {stroke: color("--line")}, size: 64,
    values: (_, ticks) => ticks.map((tick) => tick === null ? "" : format(tick)),
  });
  const seconds = (value) => value >= 172800 ? `${+(value / 86400).toPrecision(3)} d` : value >= 7200 ? `${+(value / 3600).toPrecision(3)} h`
    : value >= 120 ? `${+(value / 60).toPrecision(3)} min` : `${+value.toPrecision(3)} s`;
  const gibibytes = (value) => `${+(value / 2 ** 30).toPrecision(3)} GiB`;
  const clock = (value) => new Date(value * 1000).toLocaleString([], {month: "short", day: "numeric", hour: "2-digit", minute: "2-digit"});
  const size = (element) => ({width: Math.max(280, element.clientWidth), height: 260});
  const plain = {legend: {show: false}, cursor: {drag: {x: false, y: false}}};

  const drawFront = (element) => {
    const points = JSON.parse(element.dataset.points);
    const choose = (index) => {
      document.querySelectorAll("tr.chosen").forEach((row) => row.classList.remove("chosen"));
      const row = document.getElementById(`option-${points[index].row}`);
      if (row) { row.classList.add("chosen"); row.scrollIntoView({block: "center"}); row.nextElementSibling.querySelector("details").open = true; }
    };
    const times = points.map((point) => point.time), costs = points.map((point) => point.cost);
    const spread = (values) => Math.max(...values) > 30 * Math.min(...values) ? 3 : 1;
    const plot = new uPlot({
      ...size(element), ...plain, scales: {x: {time: false, distr: spread(times)}, y: {distr: spread(costs)}},
      axes: [axis("time", seconds), axis("cost", (value) => String(+value.toPrecision(3)))],
      series: [{}, {stroke: null, points: {show: true, size: 9, fill: palette[0], stroke: palette[0]}, paths: () => null},
               {stroke: palette[1], width: 2, points: {show: true, size: 9, fill: palette[1], stroke: palette[1]}, spanGaps: true}],
    }, [times, costs, points.map((point) => point.front ? point.cost : null)], element);
    plot.over.addEventListener("click", () => { if (plot.cursor.idx !== null) choose(plot.cursor.idx); });
  };
  const drawMemory = (element) => {
    const series = JSON.parse(element.dataset.series);
    const names = Object.keys(series.held);
    let below = series.share.map(() => 0);
    const stacked = names.map((name) => { below = below.map((value, at) => value + series.held[name][at]); return below; });
    new uPlot({
      ...size(element), legend: {show: true, live: false}, cursor: plain.cursor, scales: {x: {time: false}},
      axes: [axis("share of the step", (value) => `${Math.round(value * 100)} %`), axis("memory", gibibytes)],
      series: [{}, ...names.map((name, at) => ({label: name, stroke: palette[at % palette.length], fill: palette[at % palette.length] + "55"})).reverse(),
               ...(series.limit ? [{label: "the device", stroke: color("--bad"), dash: [6, 4]}] : [])],
    }, [series.share, ...stacked.reverse(), ...(series.limit ? [series.share.map(() => series.limit)] : [])], element);
  };
  const drawBand = (element) => {
    const series = JSON.parse(element.dataset.series);
    new uPlot({
      ...size(element), ...plain, axes: [axis("", clock), {...axis("end", clock), size: 110}],
      series: [{}, {stroke: palette[0]}, {stroke: palette[0], dash: [4, 4]}, {stroke: palette[0], dash: [4, 4]}],
      bands: [{series: [3, 2], fill: palette[0] + "33"}],
    }, [series.at, series.point, series.low, series.high], element);
  };
  const drawLines = (element) => {
    const series = JSON.parse(element.dataset.series);
    new uPlot({
      ...size(element), ...plain, scales: {x: {time: false}}, axes: [axis(series.x_label, String), axis(series.y_label, (value) => String(+value.toPrecision(3)))],
      series: [{}, {stroke: palette[0], width: 2}],
    }, [series.x, series.y], element);
  };
  const drawers = {front: drawFront, memory: drawMemory, band: drawBand, lines: drawLines};
  const draw = (root) => root.querySelectorAll("[data-plot]").forEach((element) => {
    if (!element.firstChild) drawers[element.dataset.plot](element);
  });
  document.body.addEventListener("htmx:afterSettle", (event) => draw(event.target.parentNode || document));
  draw(document);

  // Live jobs: one stream; each change asks the server for the part again.
  if (document.querySelector("[data-live=jobs]")) {
    const stream = new EventSource(`${base}api/v1/events`);
    stream.addEventListener("jobs", () => htmx.trigger(document.body, "refresh"));
    window.addEventListener("pagehide", () => stream.close());
  }

  // Chat: parts of an answer come as lines of JSON.
  const ask = document.querySelector("[data-chat]");
  const conversation = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (ask) ask.addEventListener("submit", async (event) => {
    event.preventDefault();
    const talk = document.getElementById("talk");
    const add = (tag, className, text) => {
      const element = document.createElement(tag);
      element.className = className;
      element.textContent = text;
      talk.append(element);
      element.scrollIntoView({block: "end"});
      return element;
    };
    const question = ask.elements.question.value;
    ask.elements.question.value = "";
    add("p", "question", question);
    const answer = await fetch(ask.dataset.chat, {method: "POST", body: JSON.stringify({question, window: conversation}), headers: {"Content-Type": "application/json"}});
    if (!answer.ok) { add("p", "error", (await answer.json()).detail); return; }
    const save = document.getElementById("save");
    save.href = `${ask.dataset.chat.replace(/ask$/, "")}${conversation}.md`;
    save.hidden = false;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", words = null;
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const part = JSON.parse(line);
        if (part.kind === "words") { words = words || add("p", "", ""); words.textContent += part.text; continue; }
        words = null;
        add(part.kind === "note" ? "p" : "pre", part.kind === "note" ? "quiet" : "", (part.kind === "call" ? "$ " : "") + part.text);
      }
    }
  });
})();
