/* Puts the page together, and keeps the charts in step with its width, its colours and the choices made on it. */

function showCurves() {
  drawn = drawn.filter((item) => item.box.closest("#time-body"));
  const parts = CHARTS.map(({ part, charts }) => {
    const figures = charts.map(figure).filter(Boolean);
    return figures.length ? el("div", {}, el("h3", {}, part), el("div", { class: "grid" }, figures)) : null;
  });
  fill("charts", parts);
  const averaged = RUNS.filter((run) => run.curves.each > 1).map((run) => `${run.name}: each point is the mean of ${run.curves.each} rollouts.`);
  fill("curves-note", averaged.join(" "));
  showAllMetrics();
  drawAll();
}

function showAllMetrics() {
  const details = document.getElementById("all-metrics");
  const keys = [...new Set(RUNS.flatMap((run) => Object.keys(run.curves.series)))].sort();
  details.querySelector("summary").textContent = `All ${keys.length} metrics by their names`;
  if (!details.open) return;
  drawn = drawn.filter((item) => !item.box.closest("#all-charts"));
  const wanted = document.getElementById("metric-filter").value.toLowerCase();
  const shown = keys.filter((key) => key.toLowerCase().includes(wanted));
  fill("all-charts", shown.map((key) => figure({ title: key, series: () => [[key, "value"]], sparse: key.startsWith("eval/") })));
  drawAll();
}

function showControls() {
  const longest = Math.max(...RUNS.map((run) => run.curves.steps.length));
  const windows = [1, 5, 10, 25, 50, 100].filter((window) => window === 1 || window * 3 <= longest);
  smoothing = windows.filter((window) => window * 12 <= longest).pop() || 1;
  const select = document.getElementById("smoothing");
  select.replaceChildren(...windows.map((window) => el("option", { value: window, selected: window === smoothing }, window === 1 ? "none" : `mean of ${window}`)));
  select.addEventListener("change", () => {
    smoothing = Number(select.value);
    redraw();
  });
  if (RUNS.length > 1) {
    fill(
      "runs-shown",
      RUNS.map((run, index) => {
        const box = el("input", { type: "checkbox", checked: true });
        box.addEventListener("change", () => {
          if (box.checked) shownRuns.add(index);
          else shownRuns.delete(index);
          showCurves();
        });
        return el("label", { class: "run check", style: `--swatch: ${runColour(index)}` }, box, run.name);
      })
    );
  }
  document.getElementById("all-metrics").addEventListener("toggle", showAllMetrics);
  document.getElementById("metric-filter").addEventListener("input", showAllMetrics);
}

showHead();
showAlerts();
showFigures();
showAbout();
showControls();
showCurves();
chooseRun("funnel-run", "Run whose samples are counted", showFunnel);
chooseRun("time-run", "Run whose time is shown", showTime);
showSamples();

let width = window.innerWidth;
let waiting = 0;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(redraw, 120);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
window.matchMedia("print").addEventListener("change", redraw);
