/* The browser of samples: filters, groups side by side, tokens coloured by what is known of them. */

const PER_PAGE = 12;
const filters = { run: 0, split: "train", step: "", status: "", verdict: "", low: "", high: "", text: "", alone: false, colour: "none" };
let visible = PER_PAGE;
let matching = [];

const splitName = (split) => (split === "train" ? "training" : `evaluation ${split.replace(/^eval_/, "")}`);
const responseOf = (sample) => sample.text;
const groupsOf = () => RUNS[filters.run].samples.groups;

function matches(sample) {
  if (filters.status && sample.status !== filters.status) return false;
  if (filters.verdict && sample.verdict !== filters.verdict) return false;
  if (filters.low !== "" && !(sample.reward !== null && sample.reward >= Number(filters.low))) return false;
  if (filters.high !== "" && !(sample.reward !== null && sample.reward <= Number(filters.high))) return false;
  return true;
}

function hasText(group, sample) {
  if (!filters.text) return true;
  const wanted = filters.text.toLowerCase();
  return [responseOf(sample), group.prompt, group.label, sample.metadata || ""].some((text) => text.toLowerCase().includes(wanted));
}

function applyFilters() {
  const candidates = groupsOf().filter((group) => group.split === filters.split && (filters.step === "" || group.step === Number(filters.step)));
  matching = candidates
    .map((group) => ({ group, hits: new Set(group.samples.map((s, i) => (matches(s) && hasText(group, s) ? i : -1)).filter((i) => i >= 0)) }))
    .filter(({ hits }) => hits.size);
  visible = PER_PAGE;
  showGroups();
}

function showGroups() {
  const found = matching.reduce((total, { hits }) => total + hits.size, 0);
  fill("samples-count", found ? `${plural(found, "sample")} in ${plural(matching.length, "group")}` : "No sample matches. ", found ? null : el("button", { type: "button", onclick: resetFilters }, "Clear the filters"));
  fill("groups", matching.slice(0, visible).map(({ group, hits }) => groupCard(group, hits)));
  document.getElementById("more").hidden = matching.length <= visible;
}

function rewardColour(group, sample) {
  if (sample.reward === null) return "none";
  const rewards = known(group.samples.map((each) => each.reward));
  const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
  if (low === high) return "flat";
  const place = (sample.reward - low) / (high - low);
  return place > 0.66 ? "high" : place < 0.34 ? "low" : "middle";
}

function groupCard(group, hits) {
  const rewards = known(group.samples.map((sample) => sample.reward));
  const mean = rewards.length ? `mean reward ${number(rewards.reduce((a, b) => a + b, 0) / rewards.length)}` : "no reward";
  const samples = group.samples.map((sample, index) => ({ sample, hit: hits.has(index) })).filter(({ hit }) => hit || !filters.alone);
  return el(
    "article",
    { class: "group" },
    el("header", {}, el("h3", {}, `${group.split === "train" ? `Rollout ${group.step}` : `After ${plural(group.step, "rollout")}`}, group ${group.id ?? "–"}`), el("span", { class: "quiet" }, `${plural(group.samples.length, "sample")} · ${mean}`)),
    el("div", { class: "prompt" }, el("span", { class: "label" }, "prompt"), el("pre", { tabindex: group.prompt.length > 600 ? 0 : null }, group.prompt)),
    group.label ? el("div", { class: "prompt" }, el("span", { class: "label" }, "label"), el("pre", {}, group.label)) : null,
    el("div", { class: "side" }, samples.map(({ sample, hit }) => sampleCard(group, sample, hit && hits.size < group.samples.length)))
  );
}

function sampleCard(group, sample, marked) {
  const facts = [`${plural(sample.length, "token")}`];
  if (sample.tokens && sample.tokens.advantage !== undefined) facts.push(`advantage ${signed(sample.tokens.advantage)}`);
  if (sample.versions) facts.push(`weights ${sample.versions.join(", ")}`);
  if (sample.index !== null && sample.index !== undefined) facts.push(`index ${sample.index}`);
  const label = sample.verdict === sample.status ? sample.status : `${sample.status} · ${sample.verdict}`;
  const odd = ["failed", "removed", "trained", "evaluated"].includes(sample.verdict) ? sample.verdict : "dropped";
  return el(
    "section",
    { class: `sample${marked ? " hit" : ""}`, "aria-label": `Sample ${sample.index ?? ""}` },
    el("header", {}, el("b", { class: `reward ${rewardColour(group, sample)}` }, sample.reward === null ? "no reward" : number(sample.reward)), el("span", { class: `verdict ${odd}` }, label)),
    el("p", { class: "quiet" }, facts.join(" · ")),
    response(sample),
    sample.rewards ? el("p", { class: "quiet" }, "rewards ", el("code", {}, sample.rewards)) : null,
    sample.hooks ? el("p", { class: "quiet" }, "hooks ", el("code", {}, sample.hooks)) : null,
    sample.metadata ? el("p", { class: "quiet" }, "metadata ", el("code", {}, sample.metadata)) : null
  );
}

function response(sample) {
  const text = responseOf(sample);
  const values = tokenValues(sample);
  if (filters.colour === "none" || !values) {
    const missing = filters.colour !== "none" ? el("p", { class: "quiet" }, missingText(sample)) : null;
    return el("div", {}, el("pre", { class: "text", tabindex: text.length > 600 ? 0 : null }, text || el("span", { class: "quiet" }, "(empty)")), missing);
  }
  const { texts, log_probs: engine, differences, mask } = sample.tokens;
  const spans = texts.map((piece, index) => {
    const value = values[index];
    const facts = [JSON.stringify(piece)];
    if (engine) facts.push(`engine log-prob ${number(engine[index])}`);
    if (differences && differences[index] !== null) facts.push(`trainer ${signed(differences[index])}`);
    if (mask && !mask[index]) facts.push("not trained");
    if (value !== null && filters.colour === "advantage") facts.push(`advantage ${signed(value)}`);
    return el("span", { style: value === null ? null : `background: ${shade(value)}`, class: mask && !mask[index] ? "masked" : null, title: facts.join(", ") }, piece.replaceAll("\n", "⏎\n"));
  });
  const left = sample.tokens.left_out;
  return el("div", {}, el("pre", { class: "text tokens", tabindex: texts.length > 150 ? 0 : null }, spans), left ? el("p", { class: "quiet" }, `The last ${plural(left, "token")} are not on this page.`) : null);
}

/* A number for each token, or null where this page has none. */
function tokenValues(sample) {
  const tokens = sample.tokens;
  if (!tokens) return null;
  if (filters.colour === "difference") return tokens.differences || null;
  if (filters.colour === "log_prob") return tokens.log_probs || null;
  if (tokens.advantages) return tokens.advantages;
  if (tokens.advantage === undefined) return null;
  return tokens.texts.map((_, index) => (tokens.mask && !tokens.mask[index] ? null : tokens.advantage));
}

function missingText(sample) {
  if (!sample.tokens) return "Its tokens are not on this page.";
  if (filters.colour === "advantage") return "It was not trained on: no advantages.";
  if (filters.colour === "difference") return "The trainer's log-probs were not recorded for it.";
  return "There are no log-probs of it.";
}

/* Blue for more, orange for less; for a log-prob, the darker the less likely. */
function shade(value) {
  if (filters.colour === "log_prob") return `rgb(var(--less) / ${Math.min(0.75, -value / 6).toFixed(2)})`;
  const full = filters.colour === "advantage" ? 2 : differenceScale();
  const strength = Math.min(0.75, (0.75 * Math.abs(value)) / full);
  return `rgb(var(${value >= 0 ? "--more" : "--less"}) / ${strength.toFixed(2)})`;
}

const scales = new Map();
function differenceScale() {
  if (!scales.has(filters.run)) {
    const all = groupsOf().flatMap((group) => group.samples.flatMap((sample) => known(sample.tokens && sample.tokens.differences).map(Math.abs)));
    all.sort((a, b) => a - b);
    scales.set(filters.run, all.length ? Math.max(all[Math.floor(0.99 * (all.length - 1))], 1e-9) : 1);
  }
  return scales.get(filters.run);
}

function colourNote() {
  const notes = {
    none: "",
    advantage: "Blue: advantage above 0; orange: below; full colour at 2.",
    difference: `Trainer minus engine. Blue: the trainer finds the token likelier; orange: less likely; full colour at ${number(differenceScale())} (99th percentile of what is shown).`,
    log_prob: "The engine's log-prob: the darker, the less likely the token was; full colour at −6.",
  };
  fill("colour-note", notes[filters.colour]);
}

function choice(name, label, options, onchange) {
  const select = el("select", { name, id: `filter-${name}` }, options.map(([value, text]) => el("option", { value, selected: String(filters[name]) === String(value) }, text)));
  select.addEventListener("change", () => {
    filters[name] = name === "run" ? Number(select.value) : select.value;
    onchange();
  });
  return el("label", {}, label, select);
}

function field(name, label, attributes) {
  const input = el("input", { name, id: `filter-${name}`, value: filters[name], autocomplete: "off", ...attributes });
  input.addEventListener("input", () => {
    filters[name] = attributes.type === "checkbox" ? input.checked : input.value;
    applyFilters();
  });
  return el("label", { class: attributes.type === "checkbox" ? "check" : "" }, attributes.type === "checkbox" ? [input, label] : [label, input]);
}

function tally(groups, key) {
  const counts = new Map();
  for (const group of groups) for (const sample of group.samples) counts.set(sample[key], (counts.get(sample[key]) || 0) + 1);
  return [["", "any"], ...[...counts].sort((a, b) => b[1] - a[1]).map(([value, n]) => [value, `${value} (${count(n)})`])];
}

function showFilters() {
  const groups = groupsOf();
  const splits = [...new Set(groups.map((group) => group.split))];
  if (!splits.includes(filters.split)) filters.split = splits[0] || "train";
  const ofSplit = groups.filter((group) => group.split === filters.split);
  const steps = [...new Set(ofSplit.map((group) => group.step))].sort((a, b) => a - b);
  const narrow = { step: steps.map(String), status: ofSplit.flatMap((g) => g.samples.map((s) => s.status)), verdict: ofSplit.flatMap((g) => g.samples.map((s) => s.verdict)) };
  for (const [name, values] of Object.entries(narrow)) if (!values.includes(filters[name])) filters[name] = "";
  const colours = [["none", "nothing"], ["advantage", "advantage"], ["difference", "log-prob difference"], ["log_prob", "log-prob"]];
  fill(
    "filters",
    RUNS.length > 1 ? choice("run", "Run", RUNS.map((run, index) => [index, run.name]), refreshFilters) : null,
    choice("split", "From", splits.map((split) => [split, splitName(split)]), refreshFilters),
    choice("step", "Rollout", [["", "any"], ...steps.map((step) => [step, String(step)])], applyFilters),
    choice("status", "Status", tally(ofSplit, "status"), applyFilters),
    choice("verdict", "Verdict", tally(ofSplit, "verdict"), applyFilters),
    field("low", "Reward from", { type: "number", step: "any" }),
    field("high", "to", { type: "number", step: "any" }),
    field("text", "Text contains", { type: "search", spellcheck: "false" }),
    choice("colour", "Colour tokens by", colours, () => {
      colourNote();
      showGroups();
    }),
    field("alone", "matching samples only", { type: "checkbox", checked: filters.alone }),
    el("button", { type: "button", onclick: resetFilters }, "Clear"),
    el("p", { id: "colour-note", class: "quiet", "aria-live": "polite" })
  );
  colourNote();
}

function refreshFilters() {
  showFilters();
  showSamplesNote();
  applyFilters();
}

function resetFilters() {
  Object.assign(filters, { step: "", status: "", verdict: "", low: "", high: "", text: "", alone: false });
  refreshFilters();
}

function showSamplesNote() {
  const { note, shown, total, rollouts_shown: rollouts, rollouts_total: all } = RUNS[filters.run].samples;
  const text = note || (shown === total ? `All ${count(total)} samples that the run wrote.` : `A choice, to keep the page small: ${count(shown)} of ${count(total)} samples, as whole groups, from ${count(rollouts)} of ${count(all)} rollouts and from evaluations. Groups with different rewards, with failures and of each drop reason come first, so shares seen here are not those of the run. All are in the run's folder samples/.`);
  const { unreadable } = RUNS[filters.run].samples;
  fill("samples-note", text, unreadable.length ? ` Not readable, and left out: ${unreadable.join(", ")}.` : "");
}

function showSamples() {
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("more").addEventListener("click", () => {
    const first = visible;
    visible += PER_PAGE;
    showGroups();
    const next = document.querySelectorAll(".group")[first];
    if (next) {
      next.setAttribute("tabindex", "-1");
      next.focus();
    }
  });
  showSamplesNote();
  if (!groupsOf().length && RUNS.length === 1) {
    document.getElementById("filters").hidden = true;
    return;
  }
  showFilters();
  applyFilters();
}
