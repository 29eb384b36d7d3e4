"use strict";
// What the pages do on top of htmx: sliders, uploads, plots, live jobs and the chat.
(() => {
  const base = document.body.dataset.base;
  const JSON_TYPE = "application/json";

  // Problems: an answer that is an error, or none at all.
  const problem = document.getElementById("problem");
  const say = (text) => { problem.textContent = text; problem.hidden = !text; };
  const detailOf = (text, status) => {
    try { return JSON.parse(text).detail; } catch { return `The server answered with an error (${status}).`; }
  };
  const silence = "The server does not answer. Check that leadline web still runs.";
  document.body.addEventListener("htmx:responseError", ({detail}) => say(detailOf(detail.xhr.responseText, detail.xhr.status)));
  document.body.addEventListener("htmx:sendError", () => say(silence));
  document.body.addEventListener("htmx:afterOnLoad", ({detail}) => { if (detail.successful) say(""); });

  // Sliders: each steps through values of a field, the leftmost through none.
  const stepsOf = (slider) => ["", ...slider.dataset.steps.split(" ")];
  const sliderOf = (field) => document.querySelector(`[data-slides="${CSS.escape(field.name || "")}"]`);
  const nearest = (steps, value) => {
    const same = steps.indexOf(value.trim());
    return same >= 0 ? same : steps.findLastIndex((step) => step && Number(step) <= Number(value));
  };
  // While a slider moves, the answer is about the places shown; when it rests, about all.
  const REST_MS = 600;
  let rests = null, places = [];
  const askAll = (form) => { clearTimeout(rests); if (form.elements.shown) form.elements.shown.value = ""; };
  const slide = (form) => {
    askAll(form);
    const rows = [...document.querySelectorAll("[data-place]")];
    if (rows.length) places = rows.map((row) => row.dataset.place);  // none are shown if nothing fits
    form.elements.shown.value = places.join();
    htmx.trigger(form, "slide");
    rests = setTimeout(() => { askAll(form); htmx.trigger(form, "rest"); }, REST_MS);
  };
  document.addEventListener("submit", ({target}) => askAll(target), true);
  document.addEventListener("input", (event) => {
    const {target} = event, {form} = target;
    if (form && !target.dataset.slides) askAll(form);
    if (target.dataset.slides) {
      event.stopPropagation();  // the form would wait as after a letter
      const value = stepsOf(target)[target.value];
      form.elements[target.dataset.slides].value = value;
      target.setAttribute("aria-valuetext", value || "not set");
      slide(form);
    } else if (sliderOf(target)) {
      const slider = sliderOf(target), at = nearest(stepsOf(slider), target.value);
      if (at >= 0) slider.value = at;
      slider.setAttribute("aria-valuetext", target.value || "not set");
    } else if (target.dataset.finds) {
      const words = target.value.toLowerCase();
      document.querySelectorAll(target.dataset.finds).forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(words); });
    }
  }, true);

  // Uploads: the answer names the file as a workload.
  const upload = async (address, content) => {
    const status = document.getElementById("uploaded");
    status.textContent = "uploading …";
    try {
      const answer = await fetch(address, {method: "PUT", body: content, headers: {"Content-Type": "application/octet-stream"}});
      const text = await answer.text();
      if (!answer.ok) { status.textContent = detailOf(text, answer.status); return; }
      const field = document.getElementById("workload");
      field.value = JSON.parse(text).workload;
      status.textContent = "uploaded";
      htmx.trigger(field.form, "rest");
    } catch { status.textContent = silence; }
  };
  const file = document.querySelector("[data-upload]");
  if (file) {
    file.addEventListener("change", () => {
      if (file.files.length) upload(file.dataset.upload + encodeURIComponent(file.files[0].name), file.files[0]);
      file.value = "";  // the same file may be uploaded again
    });
    const pasted = document.querySelector("[data-paste]");
    document.getElementById("use-pasted").addEventListener("click", () => upload(pasted.dataset.paste, pasted.value));
  }

  // Plots
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = (at) => color(`--plot-${at % 7 + 1}`);
  const short = (value) => String(+value.toPrecision(3));
  const percent = (value) => `${short(value)} %`;
  // One unit for all values of an axis, so that its ticks are round.
  const unitOf = (units, values) => units.find(([size]) => Math.max(...values) >= 2 * size) || units.at(-1);
  const timeUnit = (values) => unitOf([[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]], values);
  const memoryUnit = (values) => unitOf([[2 ** 30, "GiB"], [2 ** 20, "MiB"]], values);
  const clock = (moments) => {
    const day = Math.max(...moments) - Math.min(...moments) < 86400 ? {} : {month: "short", day: "numeric"};
    return (value) => new Date(value * 1000).toLocaleString([], {...day, hour: "2-digit", minute: "2-digit", hourCycle: "h23"});
  };
  const axis = (label, format, more = {}) => ({
    label, stroke: color("--quiet"), grid: {stroke: color("--line"), width: 1}, ticks: {stroke: color("--line"), width: 1}, size: 70, labelSize: 22,
    values: (_, ticks) => ticks.map((tick) => tick === null ? "" : format(tick)), ...more,
  });
  const along = (label, format) => axis(label, format, {size: 40, space: 70});
  const dots = (at) => ({stroke: palette(at), paths: () => null, points: {show: true, size: 8, fill: palette(at), stroke: palette(at)}});
  const spread = (values) => Math.min(...values) > 0 && Math.max(...values) > 8 * Math.min(...values) ? 3 : 1;  // 3 is logarithmic

  const choose = (point) => {
    document.querySelectorAll("tr.chosen").forEach((row) => row.classList.remove("chosen"));
    const row = document.getElementById(`option-${point.row}`), why = row.nextElementSibling;
    row.classList.add("chosen");
    why.querySelector("details").open = true;
    row.scrollIntoView({block: "center"});
    why.querySelector("summary").focus({preventScroll: true});
  };
  const front = (element, points) => {
    const [size, unit] = timeUnit(points.map((point) => point.time));
    const times = points.map((point) => point.time / size), costs = points.map((point) => point.cost);
    const shown = document.createElement("p");
    shown.className = "quiet shown";
    shown.setAttribute("aria-live", "polite");
    let at = null;
    const show = (index) => {
      at = index;
      const point = points[index];
      if (point) shown.textContent = `${point.name}: ${short(times[index])} ${unit}, ${short(point.cost)} ${element.dataset.currency}`;
    };
    element.addEventListener("keydown", (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (step) {
        event.preventDefault();
        const next = at === null ? 0 : Math.min(points.length - 1, Math.max(0, at + step));
        plot.setCursor({left: plot.valToPos(times[next], "x"), top: plot.valToPos(costs[next], "y")});
        show(next);
      } else if (event.key === "Enter" && at !== null) choose(points[at]);
    });
    const near = (u) => {  // the nearest point in both directions, not only along the time
      let best = null, least = 30 ** 2;
      points.forEach((point, index) => {
        const apart = (u.valToPos(times[index], "x") - u.cursor.left) ** 2 + (u.valToPos(point.cost, "y") - u.cursor.top) ** 2;
        if (apart < least) { best = index; least = apart; }
      });
      return best;
    };
    const plot = new uPlot({
      scales: {x: {time: false, distr: spread(times)}, y: {distr: spread(costs)}},
      axes: [along(`time, ${unit}`, short), axis(`cost, ${element.dataset.currency}`, short)],
      series: [{}, dots(0), {...dots(1), paths: uPlot.paths.linear(), width: 2, spanGaps: true}],
      hooks: {setCursor: [(u) => { if (u.cursor.left >= 0 && u.cursor.event) show(near(u)); }]},
      ...shared(element),
    }, [times, costs, points.map((point) => point.front ? point.cost : null)], element);
    plot.over.addEventListener("click", () => { if (at !== null) choose(points[at]); });
    element.append(shown);
    return plot;
  };
  const memory = (element, series) => {
    const names = Object.keys(series.held), [size, unit] = memoryUnit(series.reserved);
    let below = series.share.map(() => 0);
    const stacked = names.map((name) => { below = below.map((value, at) => value + series.held[name][at] / size); return below; });
    const areas = names.map((name, at) => ({label: name, stroke: palette(at), fill: palette(at), width: 1, points: {show: false}}));
    const top = series.capacity && series.peak > series.capacity / 3 ? series.capacity : null;  // else it would flatten the plot
    const lines = [{label: "reserved", stroke: color("--text"), width: 1, points: {show: false}},
                   ...(top ? [{label: "capacity", stroke: color("--bad"), dash: [6, 4], points: {show: false}}] : [])];
    return new uPlot({
      ...shared(element), legend: {show: true, live: false},
      scales: {x: {time: false}, y: {range: (_, __, most) => [0, most * 1.05]}},
      axes: [along("share of the step", (value) => percent(100 * value)), axis(`memory, ${unit}`, short)],
      series: [{}, ...areas.reverse(), ...lines],
    }, [series.share, ...stacked.reverse(), series.reserved.map((value) => value / size), ...(top ? [series.share.map(() => top / size)] : [])], element);
  };
  const spans = [1, 5, 15, 30, 60, 120, 240, 720, 1440, 2880, 7200, 14400].map((minutes) => 60 * minutes);
  const ends = (element, series) => new uPlot({
    ...shared(element), axes: [along("decided", clock(series.at)), axis("predicted end", clock([...series.low, ...series.high]), {size: 80, incrs: spans})],
    series: [{}, {stroke: palette(0), width: 2}, {stroke: palette(0), dash: [4, 4]}, {stroke: palette(0), dash: [4, 4]}],
    bands: [{series: [3, 2], fill: `${palette(0)}33`}],
  }, [series.at, series.point, series.low, series.high], element);
  const learning = (element, series) => new uPlot({
    ...shared(element), scales: {x: {time: false}, y: {distr: spread(series.error)}},
    axes: [{...along("completed run", short), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]}, axis("error", percent)],
    series: [{}, dots(0), {stroke: palette(1), width: 2, points: {show: false}}],
  }, [series.run, series.error, series.recent], element);
  const measured = (element, series) => {
    const distr = spread([...series.measured, ...series.predicted]), [size, unit] = (series.quantity.endsWith("_bytes") ? memoryUnit : timeUnit)(series.measured);
    const [x, y] = [series.measured, series.predicted].map((values) => values.map((value) => value / size));
    return new uPlot({
      ...shared(element), scales: {x: {time: false, distr}, y: {distr}},
      axes: [along(`measured, ${unit}`, short), axis(`predicted, ${unit}`, short)],
      series: [{}, dots(0), {stroke: color("--quiet"), dash: [6, 4], points: {show: false}}],
    }, [x, y, x], element);
  };
  const metric = (element, series) => new uPlot({
    ...shared(element), axes: [along("end of the run", clock(series.at)), axis("value", short)],
    series: [{}, {stroke: palette(0), width: 2, points: {show: true, size: 6}}],
  }, [series.at, series.value], element);
  const plots = {front, memory, ends, learning, measured, metric}, drawn = new Map();
  const room = (element) => ({width: Math.max(240, element.clientWidth), height: 280});
  const shared = (element) => ({...room(element), legend: {show: false}, cursor: {drag: {x: false, y: false}}});
  const resized = new ResizeObserver((entries) => entries.forEach(({target}) => {
    const plot = drawn.get(target);
    if (plot && plot.width !== room(target).width) plot.setSize(room(target));
  }));
  const draw = () => {
    drawn.forEach((plot, element) => { if (!element.isConnected) { plot.destroy(); resized.unobserve(element); drawn.delete(element); } });
    document.querySelectorAll("[data-plot]").forEach((element) => {
      if (drawn.has(element)) return;
      drawn.set(element, plots[element.dataset.plot](element, JSON.parse(element.dataset.series)));
      resized.observe(element);
    });
    document.querySelectorAll(".log").forEach((log) => { log.scrollTop = log.scrollHeight; });
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    drawn.forEach((plot, element) => { plot.destroy(); element.replaceChildren(); });
    drawn.clear();
    draw();
  });
  draw();

  // A part that is swapped keeps its open details.
  let opened = [];
  const keepers = () => [...document.querySelectorAll("details[data-keep]")];
  document.body.addEventListener("htmx:beforeSwap", () => { opened = keepers().filter((each) => each.open).map((each) => each.dataset.keep); });
  document.body.addEventListener("htmx:afterSettle", () => {
    keepers().forEach((each) => { if (opened.includes(each.dataset.keep)) each.open = true; });
    draw();
  });

  // Live jobs: one stream; a change asks the server for the part again, not all its readers at the same moment.
  if (document.querySelector("[data-live=jobs]")) {
    const stream = new EventSource(`${base}api/v1/events`), WAITS_MS = 2000;
    let due = 0;
    stream.addEventListener("jobs", () => {
      due ||= setTimeout(() => { due = 0; htmx.trigger(document.body, "refresh"); }, WAITS_MS * Math.random());
    });
    window.addEventListener("pagehide", () => stream.close());
  }

  // Chat: parts of an answer come as lines of JSON.
  const ask = document.querySelector("[data-chat]");
  if (ask) {
    const talk = document.getElementById("talk"), save = document.getElementById("save");
    const conversation = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    const add = (tag, className, text) => {
      const element = document.createElement(tag);
      element.className = className;
      element.textContent = text;
      talk.append(element);
      element.scrollIntoView({block: "end"});
      return element;
    };
    const parts = async function* (body) {
      const reader = body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (let {done, value} = await reader.read(); !done; {done, value} = await reader.read()) {
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        yield* lines.map((line) => JSON.parse(line));
      }
    };
    const answer = async (question) => {
      const reply = await fetch(ask.dataset.chat, {method: "POST", body: JSON.stringify({question, window: conversation}), headers: {"Content-Type": JSON_TYPE}});
      if (!reply.ok) { add("p", "error", detailOf(await reply.text(), reply.status)); return; }
      save.href = `${ask.dataset.chat.replace(/ask$/, "")}${conversation}.md`;
      save.hidden = false;
      let words = null;
      for await (const part of parts(reply.body)) {
        if (part.kind === "words") { words = words || add("p", "words", ""); words.textContent += part.text; continue; }
        words = null;
        if (part.kind === "note") add("p", "quiet", part.text);
        else add("pre", part.kind, (part.kind === "call" ? "$ " : "") + part.text).tabIndex = 0;
      }
    };
    ask.addEventListener("submit", async (event) => {
      event.preventDefault();
      const field = ask.elements.question, question = field.value;
      field.value = "";
      add("p", "question", question);
      ask.setAttribute("aria-busy", "true");
      try { await answer(question); } catch { add("p", "error", silence); }
      ask.removeAttribute("aria-busy");
    });
  }
})();
