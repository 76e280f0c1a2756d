/* Curves on uPlot. One run: a colour for each metric. Several: a colour for each run, a dash for each metric. */

const SYNC = uPlot.sync("vime");
const DASHES = [[], [6, 4], [2, 3], [9, 3, 2, 3]];
const shownRuns = new Set(RUNS.map((_, index) => index));
let smoothing = 1;
let drawn = [];

function smoothed(values, window) {
  if (window <= 1) return values;
  const result = [];
  const recent = [];
  for (const value of values) {
    if (value !== null && value !== undefined) {
      recent.push(value);
      if (recent.length > window) recent.shift();
      result.push(recent.reduce((a, b) => a + b, 0) / recent.length);
    } else result.push(null);
  }
  return result;
}

/* Shares of groups, which no metric holds as such. */
function derived(run) {
  if (run.derived) return run.derived;
  const { series, steps } = run.curves;
  const at = (key, index) => (series[key] ? series[key][index] || 0 : 0);
  const flat = Object.keys(series).filter((key) => key.startsWith("rollout/zero_std/count_"));
  const of = (value) => steps.map((_, index) => {
    const groups = at("rollout/groups_kept", index) + at("rollout/groups_dropped", index);
    return groups ? value(index) / groups : null;
  });
  run.derived = {
    equal: of((index) => flat.reduce((total, key) => total + at(key, index), 0)),
    dropped: of((index) => at("rollout/groups_dropped", index)),
  };
  return run.derived;
}

/* The lines of a chart that have data: {run, key, label, values}. */
function linesOf(chart) {
  const lines = [];
  RUNS.forEach((run, index) => {
    if (!shownRuns.has(index)) return;
    chart.series(run).forEach(([key, label], place) => {
      let values = run.curves.series[key] || derived(run)[key];
      if (!values || !known(values).length) return;
      if (chart.scale) values = values.map((value) => (value === null ? null : value * chart.scale));
      if (chart.log) values = values.map((value) => (value !== null && value > 0 ? value : null));
      if (!known(values).length) return;
      lines.push({ run: index, place, steps: run.curves.steps, values, label: RUNS.length > 1 ? `${run.name} · ${label}` : label });
    });
  });
  return lines;
}

function styleOf(line) {
  const colour = RUNS.length > 1 ? line.run : line.place;
  return { colour, dash: RUNS.length > 1 ? DASHES[line.place % DASHES.length] : [] };
}

function figure(chart) {
  const lines = linesOf(chart);
  if (!lines.length) return null;
  const values = lines.map(() => el("b", {}, ""));
  const keys = lines.map((line, index) => {
    const { colour, dash } = styleOf(line);
    const swatch = el("i", { class: dash.length ? "dashed" : "", style: `--swatch: ${runColour(colour)}` });
    return el("li", {}, swatch, el("span", {}, line.label), values[index]);
  });
  const plot = el("div", { class: "plot", role: "img", "aria-label": describe(chart, lines) });
  const box = el(
    "figure",
    { class: "chart" },
    el("figcaption", {}, el("strong", {}, chart.title), el("span", { class: "unit" }, chart.unit || ""), chart.help ? el("p", {}, chart.help) : null),
    plot,
    el("ul", { class: "legend" }, keys)
  );
  drawn.push({ box, plot, lines, chart, values, chartObject: null });
  return box;
}

function describe(chart, lines) {
  const ends = lines.map((line) => {
    const there = known(line.values);
    return `${line.label}: first ${number(there[0])}, last ${number(there[there.length - 1])}`;
  });
  return `${chart.title}${chart.unit ? `, ${chart.unit}` : ""}, by rollout. ${ends.join("; ")}`;
}

function draw(item) {
  const { plot, lines, chart, values } = item;
  if (!plot.clientWidth || item.chartObject) return;
  const tables = lines.map((line) => [line.steps, line.values]);
  const raw = tables.length > 1 ? uPlot.join(tables) : tables[0];
  const window = chart.sparse ? 1 : smoothing;
  const dotted = raw[0].length <= 40 || chart.sparse;
  const series = [{}];
  const data = [raw[0]];
  lines.forEach((line, index) => {
    const { colour, dash } = styleOf(line);
    const shared = { spanGaps: true, dash, points: { show: dotted && window === 1, size: 5, fill: cssColour(colour) } };
    if (window > 1) {
      series.push({ ...shared, points: { show: false }, dash: [], stroke: cssColour(colour, 0.28), width: 1 });
      data.push(raw[index + 1]);
    }
    series.push({ ...shared, stroke: cssColour(colour), width: 2 });
    data.push(smoothed(raw[index + 1], window));
  });
  const perLine = window > 1 ? 2 : 1;
  const single = raw[0].length === 1;
  const show = (at) =>
    values.forEach((node, index) => {
      const column = data[(index + 1) * perLine];
      let place = at === null || at === undefined ? column.length - 1 : at;
      while (place > 0 && (column[place] === null || column[place] === undefined)) place -= 1;
      node.textContent = number(column[place]) + (chart.percent ? "%" : "");
    });
  const axis = { stroke: cssValue("--quiet"), grid: { stroke: cssValue("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const options = {
    width: plot.clientWidth,
    height: 210,
    padding: [10, 14, 0, 0],
    legend: { show: false },
    cursor: { y: false, sync: { key: SYNC.key, setSeries: false }, points: { size: 6 }, drag: { x: true, y: false } },
    scales: {
      x: { time: false, range: single ? (u, low) => [low - 1, low + 1] : undefined },
      y: { distr: chart.log ? 3 : 1, range: chart.log ? undefined : rangeOf(chart) },
    },
    axes: [
      { ...axis, label: "rollout", labelSize: 18, labelFont: "12px system-ui, sans-serif", labelGap: 0, size: 26, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5], space: 46 },
      {
        ...axis,
        values: (u, splits) => splits.map((value) => (value === null ? null : tick(value) + (chart.percent ? "%" : ""))),
        size: (u, labels) => Math.max(34, 14 + 7 * Math.max(0, ...(labels || []).map((label) => (label || "").length))),
      },
    ],
    series,
    hooks: { setCursor: [(u) => show(u.cursor.idx)] },
  };
  item.chartObject = new uPlot(options, data, plot);
  show(null);
}

/* A flat curve sits in the middle of a small range, and a share never reaches beyond 0 to 100%. */
function rangeOf(chart) {
  return (u, low, high) => {
    if (low === null) return [0, 1];
    if (low === high && (chart.zero || chart.percent) && low >= 0) return [0, low ? low * 1.5 : chart.percent ? 5 : 1];
    if (low === high) return [low - (Math.abs(low) || 1) * 0.5, high + (Math.abs(high) || 1) * 0.5];
    const pad = (high - low) * 0.08;
    const bottom = low >= 0 && (chart.zero || low < 0.35 * high) ? 0 : low - pad;
    return [bottom, chart.percent ? Math.min(100, high + pad) : high + pad];
  };
}

function drawAll() {
  for (const item of drawn) if (item.box.isConnected) draw(item);
}

function redraw() {
  for (const item of drawn) {
    if (item.chartObject) item.chartObject.destroy();
    item.chartObject = null;
  }
  drawAll();
}

const CHARTS = [
  {
    part: "Learning",
    charts: [
      {
        title: "Reward",
        unit: "mean per sample",
        series: (run) => {
          const { series } = run.curves;
          const [kept, all] = [series["rollout/reward_kept"], series["rollout/reward_all"]];
          if (!kept) return [["rollout/raw_reward", "reward"]];
          const same = !all || all.every((value, index) => value === kept[index]);
          return same ? [["rollout/reward_kept", "reward"]] : [["rollout/reward_kept", "trained on"], ["rollout/reward_all", "all finished"]];
        },
      },
      { title: "Evaluation", unit: "mean reward", sparse: true, series: (run) => evaluationNames(run).map((name) => [`eval/${name}`, name]) },
      { title: "Entropy", unit: "nats per token", zero: true, series: () => [["train/entropy_loss", "entropy"]] },
    ],
  },
  {
    part: "Responses",
    charts: [
      {
        title: "Response length",
        unit: "tokens",
        series: () => [["rollout/response_len/mean", "mean"], ["rollout/response_len/max", "longest"], ["rollout/response_len/min", "shortest"]].slice(0, RUNS.length > 1 ? 1 : 3),
      },
      { title: "Cut-off responses", unit: "% of samples", percent: true, scale: 100, zero: true, series: () => [["rollout/truncated_ratio", "cut off"]] },
      {
        title: "Groups without a signal",
        unit: "% of groups",
        percent: true,
        scale: 100,
        zero: true,
        series: (run) => (run.curves.series["rollout/groups_kept"] ? [["equal", "one reward throughout"], ["dropped", "dropped by filters"]] : []),
      },
    ],
  },
  {
    part: "Optimizer",
    charts: [
      { title: "KL divergence", unit: "nats per token", zero: true, series: () => [["train/ppo_kl", "from the old policy"], ["train/kl_loss", "from the reference"]] },
      { title: "Clip fraction", unit: "% of tokens", percent: true, scale: 100, zero: true, series: () => [["train/pg_clipfrac", "clipped"]] },
      {
        title: "Log-prob difference",
        unit: "nats per token, log scale",
        log: true,
        series: () => [["train/train_rollout_logprob_abs_diff", "trainer against engine"]],
      },
      { title: "Gradient norm", unit: "before clipping", zero: true, series: () => [["train/grad_norm", "norm"]] },
      { title: "Loss", series: () => [["train/loss", "loss"]] },
      { title: "Learning rate", zero: true, series: () => [["train/lr", "learning rate"]] },
    ],
  },
];
const TIME_CHARTS = [
  {
    title: "Time of a rollout and its training",
    unit: "seconds",
    zero: true,
    series: () =>
      [["perf/step_time", "all"], ["perf/rollout_time", "rollout"], ["perf/train_time", "training"], ["perf/sync_time", "weight sync"], ["perf/reward_time", "rewards (within rollout)"]].slice(0, RUNS.length > 1 ? 1 : 5),
  },
  { title: "Generation speed", unit: "tokens per second", zero: true, series: () => [["rollout/tokens_per_second", "speed"]] },
];
