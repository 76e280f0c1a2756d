"use strict";
/* Numbers as text, and elements. Text only ever becomes a text node: what a model wrote is never read as HTML. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const COLOURS = 8;

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

function fill(id, ...children) {
  document.getElementById(id).replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 0.001 || size >= 1e7) return value.toExponential(1).replace("e+", "e").replaceAll("-", "−");
  const text = size >= 1000 ? Math.round(value).toLocaleString("en-US") : size >= 100 ? value.toFixed(1) : size >= 1 ? value.toFixed(2) : value.toFixed(3);
  return (text.includes(".") ? text.replace(/\.?0+$/, "") : text).replace("-", "−");
}

function tick(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 0.001) return value.toExponential(1).replace(".0e", "e").replaceAll("-", "−");
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`.replace("-", "−");
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`.replace("-", "−");
  return String(+value.toPrecision(4)).replace("-", "−");
}

const count = (value) => Math.round(value || 0).toLocaleString("en-US");
const signed = (value) => (value > 0 ? "+" : "") + number(value);
const share = (value) => (value > 0 && value < 0.001 ? "<0.1%" : `${+(100 * value).toFixed(1)}%`);

function seconds(value) {
  if (value < 0.001) return `${number(value * 1000)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${+value.toFixed(1)} s`;
  const minutes = Math.floor(Math.round(value) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(value) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const known = (values) => (values || []).filter((value) => value !== null);
const plural = (n, one, more) => `${count(n)} ${n === 1 ? one : more || `${one}s`}`;

/* The data sets of evaluations. A name may have a slash in it, which eval/NAME/... has too: its other metrics tell. */
function evaluationNames(run) {
  const { series } = run.curves;
  return Object.keys(series)
    .filter((key) => key.startsWith("eval/") && (`${key}-truncated_ratio` in series || (!key.slice(5).includes("/") && !/-(truncated_ratio|pass@\d+)$/.test(key))))
    .map((key) => key.slice(5));
}

function runColour(index) {
  return `var(--c${index % COLOURS})`;
}

function cssColour(index, alpha) {
  const colour = getComputedStyle(document.documentElement).getPropertyValue(`--c${index % COLOURS}`).trim();
  return alpha === undefined ? colour : colour + Math.round(alpha * 255).toString(16).padStart(2, "0");
}

function cssValue(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
