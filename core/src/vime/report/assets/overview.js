/* All that stands above and below the curves: alerts, key figures, the funnel, the time. */

function showHead() {
  const one = RUNS.length === 1;
  fill("title", one ? RUNS[0].name : `${RUNS.length} runs`);
  const ended = one && RUNS[0].ended ? `, last line ${new Date(RUNS[0].ended * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })}` : "";
  fill("subtitle", one ? `${plural(RUNS[0].rollouts, "rollout")} in ${seconds(RUNS[0].seconds)}${ended}` : RUNS.map((run) => run.name).join(" · "));
  fill("footer", `Written by vime ${new Date(DATA.made * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })}. The page holds all that it shows and loads nothing. Charts: uPlot (MIT).`);
}

function showAlerts() {
  const items = RUNS.flatMap((run, index) => run.alerts.map((alert) => ({ run, index, alert })));
  if (!items.length) {
    fill("alerts", el("p", { class: "notice good" }, "No alerts: none of the usual troubles is in the metrics."));
    return;
  }
  const rows = items.map(({ run, index, alert }) => {
    const last = run.curves.steps[run.curves.steps.length - 1];
    const until = alert.last_step === alert.step ? `rollout ${alert.step}` : `rollouts ${alert.step} to ${alert.last_step}`;
    const now = alert.last_step >= last - 1;
    return el(
      "li",
      {},
      el("p", { class: "what" }, el("strong", {}, alert.what[0].toUpperCase() + alert.what.slice(1)), RUNS.length > 1 ? el("span", { class: "run", style: `--swatch: ${runColour(index)}` }, run.name) : null),
      el("p", { class: "quiet" }, el("code", {}, alert.metric), ` ${number(alert.value)}, threshold ${number(alert.threshold)} · ${until}${now ? ", to the end" : ", then over"}`),
      el("p", {}, `What to do: ${alert.look_at}${/[?.]$/.test(alert.look_at) ? "" : "."}`)
    );
  });
  fill("alerts", el("div", { class: "notice bad" }, el("h2", {}, plural(items.length, "alert")), el("ul", {}, rows)));
}

function firstAndLast(run, key, size) {
  const values = known(run.curves.series[key]);
  if (!values.length) return null;
  const mean = (part) => part.reduce((a, b) => a + b, 0) / part.length;
  const n = Math.min(size, Math.ceil(values.length / 2));
  return [mean(values.slice(0, n)), mean(values.slice(-n)), n];
}

function card(label, value, note) {
  return el("div", { class: "card" }, el("span", { class: "label" }, label), el("span", { class: "value" }, value), el("span", { class: "quiet" }, note || ""));
}

function change(pair) {
  return pair[0] === pair[1] ? number(pair[1]) : `${number(pair[0])} → ${number(pair[1])}`;
}

function cardsOf(run) {
  const cards = [];
  const reward = firstAndLast(run, "rollout/raw_reward", 5);
  if (reward) cards.push(card("Reward", change(reward), reward[2] > 1 ? `first and last ${reward[2]} rollouts` : "first and last rollout"));
  for (const name of evaluationNames(run).slice(0, 4)) {
    const pair = firstAndLast(run, `eval/${name}`, 1);
    cards.push(card(`Evaluation ${name}`, change(pair), pair[0] === pair[1] ? "" : signed(pair[1] - pair[0])));
  }
  const made = (run.totals["rollout/samples_generated"] || 0) + (run.totals["rollout/samples_from_buffer"] || 0);
  const trained = run.totals["rollout/samples_trained"];
  if (made && trained !== undefined) cards.push(card("Samples trained", count(trained), `${share(trained / made)} of ${count(made)}`));
  const step = run.totals["perf/step_time"];
  if (step) cards.push(card("Time of a rollout", seconds(step / Math.max(run.rollouts, 1)), "mean, with its training"));
  return cards;
}

function showFigures() {
  fill("figures", RUNS.map((run, index) => el("div", {}, RUNS.length > 1 ? el("h3", { class: "run", style: `--swatch: ${runColour(index)}` }, run.name) : null, el("div", { class: "cards" }, cardsOf(run)))));
}

function showAbout() {
  const labels = [...new Set(RUNS.flatMap((run) => Object.keys(run.about)))];
  if (!labels.length) return;
  const different = (label) => RUNS.length > 1 && new Set(RUNS.map((run) => run.about[label])).size > 1;
  const head = RUNS.length > 1 ? el("thead", {}, el("tr", {}, el("td"), RUNS.map((run) => el("th", { scope: "col" }, run.name)))) : null;
  const rows = labels.map((label) => el("tr", { class: different(label) ? "different" : "" }, el("th", { scope: "row" }, label), RUNS.map((run) => el("td", {}, run.about[label] || "–"))));
  fill("about", el("details", { open: RUNS.length > 1 }, el("summary", {}, RUNS.length > 1 ? "What was run, and what differs" : "What was run"), el("div", { class: "scroll" }, el("table", { class: "about" }, head, el("tbody", {}, rows)))));
}

function chooseRun(id, name, show) {
  if (RUNS.length > 1) {
    const options = RUNS.map((run, index) => el("option", { value: index }, run.name));
    const choice = el("select", { onchange: (event) => show(RUNS[event.target.value]), "aria-label": name }, options);
    fill(id, el("label", {}, "Run ", choice));
  }
  show(RUNS[0]);
}

function bar(label, value, whole, { kind = "", text = null, indent = false, note = "" } = {}) {
  return el(
    "tr",
    { class: indent ? "indent" : "" },
    el("th", { scope: "row" }, label.replace(/([_/·])/g, "$1\u200b"), note ? el("span", { class: "quiet" }, note) : null),
    el("td", { class: "bar" }, el("i", { class: kind, style: `width: ${whole ? Math.min(100, (100 * value) / whole) : 0}%` })),
    el("td", { class: "num" }, text || count(value)),
    el("td", { class: "num quiet" }, whole ? share(value / whole) : "")
  );
}

function startingWith(totals, prefix) {
  return Object.entries(totals).filter(([key]) => key.startsWith(prefix)).map(([key, value]) => [key.slice(prefix.length), value]).sort((a, b) => b[1] - a[1]);
}

function showFunnel(run) {
  const at = (name) => run.totals[`rollout/${name}`] || 0;
  if (!("rollout/samples_generated" in run.totals)) {
    fill("funnel-body", el("p", { class: "quiet" }, "This run logged no sample counts."));
    return;
  }
  const [made, buffered] = [at("samples_generated"), at("samples_from_buffer")];
  const whole = made + buffered;
  const ends = [
    ["trained", at("samples_trained"), "good", ""],
    ["removed", at("removed_samples"), "warm", "in the batch, without a gradient"],
    ["filtered", at("samples_filtered"), "warm", "with their whole group"],
    ["failed", at("samples_failed"), "bad", "no answer or no reward, for good"],
    ["aborted", at("samples_aborted"), "cool", "unfinished when the batch was full"],
    ["back to the buffer", at("samples_to_buffer"), "cool", "finished, and not needed yet"],
    ["stale", at("samples_stale"), "cool", "too old, out of the buffer"],
  ];
  const rows = [bar("generated", made, whole)];
  if (buffered) rows.push(bar("from the buffer", buffered, whole));
  for (const [label, value, kind, note] of ends) {
    if (!value && !["trained", "filtered", "failed"].includes(label)) continue;
    rows.push(bar(label, value, whole, { kind, note }));
    if (label === "filtered") {
      for (const [reason, groups] of startingWith(run.totals, "rollout/dynamic_filter/drop_")) rows.push(bar(reason, groups, at("groups_dropped"), { kind: "warm", indent: true, text: plural(groups, "group") }));
    }
    if (label === "failed") {
      for (const [reason, errors] of startingWith(run.totals, "rollout/reward_errors/")) rows.push(bar(`reward ${reason}`, errors, whole, { kind: "bad", indent: true, text: plural(errors, "call") }));
    }
  }
  const sum = ends.reduce((total, [, value]) => total + value, 0);
  const adds = Math.abs(sum - whole) < 0.5 ? `Every sample is accounted for: ${count(whole)} came, ${count(sum)} ended above.` : `${count(whole)} samples came and ${count(sum)} are counted as ended: a rollout function of one's own, or log lines that are missing.`;
  const retries = at("retries") ? ` ${plural(at("retries"), "retry", "retries")} are not counted as samples.` : "";
  fill("funnel-body", el("table", { class: "bars" }, el("tbody", {}, rows)), el("p", { class: "quiet" }, adds + retries));
}

function showTime(run) {
  const at = (name) => run.totals[`perf/${name}_time`] || 0;
  const whole = at("step");
  const parts = [["rollout", at("rollout"), "cool"], ["training", at("train"), "good"], ["weight sync", at("sync"), "warm"]];
  const other = Math.max(0, whole - parts.reduce((total, [, value]) => total + value, 0));
  const tables = [];
  if (whole) {
    const rows = [...parts, ["the rest", other, ""]].map(([label, value, kind]) => bar(label, value, whole, { kind, text: seconds(value) }));
    tables.push(el("div", {}, el("h3", {}, "Of all rollouts"), el("table", { class: "bars" }, el("tbody", {}, rows)), el("p", { class: "quiet" }, "Without start-up, evaluations and checkpoints.")));
  }
  const hooks = startingWith(run.totals, "hooks/").map(([name, value]) => [name.replace(/_ms$/, ""), value / 1000]);
  const most = hooks.length ? hooks[0][1] : 0;
  const hookRows = hooks.map(([name, value]) => {
    const row = bar(name.replace(/\/(?=[^/]*$)/, " · "), value, most, { kind: "cool", text: seconds(value) });
    row.lastChild.textContent = `${seconds(value / Math.max(run.rollouts, 1))} a rollout`;
    return row;
  });
  const body = hookRows.length ? el("table", { class: "bars" }, el("tbody", {}, hookRows)) : el("p", { class: "quiet" }, "No plugin hook was timed.");
  tables.push(el("div", {}, el("h3", {}, "In the hooks of plugins"), body, hookRows.length ? el("p", { class: "quiet" }, "Calls at the same time are added up, so that hooks can take longer than the clock.") : null));
  fill("time-body", el("div", { class: "two" }, tables), el("div", { class: "grid" }, TIME_CHARTS.map(figure)));
  drawAll();
}
