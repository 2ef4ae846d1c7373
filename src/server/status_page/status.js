// The numbers of the page: asks /status/data once a second while the page is visible.
import { ApiError, byId, element, seconds, send } from "./api.js";

const INTERVAL_MS = 1000;
const NUM_SAMPLES = 60;

const STATES = {
  connecting: "Connecting",
  ready: "Ready",
  draining: "Shutting down",
  loading: "Loading",
  locked: "Key needed",
  unreachable: "Unreachable",
};

let previous = null; // the last answer with the time of its arrival
const rates = { output: [], prompt: [] };
let shownKernels = "";

function setText(id, text) {
  const target = byId(id);
  // Unchanged text must not wake screen readers.
  if (target.textContent !== String(text)) target.textContent = text;
}

export function showState(state) {
  document.querySelector(".state").dataset.state = state;
  setText("state", STATES[state]);
}

function age(value) {
  if (value < 60) return `${Math.floor(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  return value < 172800 ? `${Math.floor(value / 3600)} h` : `${Math.floor(value / 86400)} d`;
}

function perSecond(value) {
  return value < 10 && value > 0 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}

function drawSpark(id, values) {
  const highest = Math.max(...values, 1);
  const x = (i) => (120 * (NUM_SAMPLES - values.length + i)) / (NUM_SAMPLES - 1);
  const points = values.map((value, i) => `${x(i).toFixed(1)},${(27 - (26 * value) / highest).toFixed(1)}`);
  document.querySelector(`#${id} polyline`).setAttribute("points", points.join(" "));
}

function addRate(name, total, before, elapsed) {
  const value = Math.max(0, (total - before) / elapsed);
  rates[name].push(value);
  if (rates[name].length > NUM_SAMPLES) rates[name].shift();
  setText(`${name}-rate`, perSecond(value));
  drawSpark(`${name}-spark`, rates[name]);
}

function showRates(data, now) {
  if (previous && data.uptime_seconds > previous.data.uptime_seconds) {
    const elapsed = (now - previous.now) / 1000;
    const before = previous.data.totals;
    addRate("output", data.totals.generation_tokens, before.generation_tokens, elapsed);
    addRate("prompt", data.totals.prompt_tokens, before.prompt_tokens, elapsed);
  }
  previous = { data, now };
}

function percent(share) {
  return share > 0 && share < 0.1 ? (share * 100).toFixed(1) : String(Math.round(share * 100));
}

function showLoad(load, totals) {
  setText("running", load.running);
  setText("queued", load.queued);
  setText("connections", load.connections);
  setText("longest-gap", load.longest_gap_ms > 0 ? `longest gap ${seconds(load.longest_gap_ms / 1000)}` : "");
  const share = load.kv_pages_total > 0 ? load.kv_pages_used / load.kv_pages_total : 0;
  setText("kv-share", percent(share));
  setText("kv-pages", `${load.kv_pages_used} of ${load.kv_pages_total} pages, ${load.kv_pages_cached} cached`);
  byId("kv-meter").value = share;
  const asked = totals.prefix_query_tokens;
  setText("prefix-hits", asked > 0 ? `${percent(totals.prefix_hit_tokens / asked)}% from the prefix cache` : "");
}

function recentRow(request) {
  const number = (text) => element("td", { className: "number" }, text);
  const left = request.completion_tokens === 0 && request.prompt_tokens === 0;
  const prompt = request.cached_tokens > 0 ? `${request.prompt_tokens} (${request.cached_tokens} cached)`
    : String(request.prompt_tokens);
  const first = (request.queue_ms + request.prefill_ms) / 1000;
  return element("tr", {},
    element("td", {}, `${age(request.seconds_ago)} ago`),
    element("td", { dataset: { outcome: request.outcome } }, request.outcome.replace("_", " ")),
    number(left ? "" : prompt),
    number(left ? "" : String(request.completion_tokens)),
    number(left ? "" : seconds(first)),
    number(seconds(request.total_ms / 1000)));
}

function showRecent(requests) {
  byId("recent").replaceChildren(...requests.map(recentRow));
  byId("recent-empty").hidden = requests.length > 0;
}

// One entry per kernel and reason, with the layers that share it.
function showKernels(kernels) {
  const text = JSON.stringify(kernels);
  if (text === shownKernels) return;
  shownKernels = text;
  const groups = new Map();
  for (const { layer_class: layer, kernel, reason } of kernels) {
    const name = `${kernel}\n${reason}`;
    if (!groups.has(name)) groups.set(name, { kernel, reason, layers: [] });
    groups.get(name).layers.push(layer);
  }
  byId("kernels").replaceChildren(...[...groups.values()].map(({ kernel, reason, layers }) =>
    element("li", {},
      element("code", {}, kernel),
      element("p", {}, layers.join(", ")),
      element("p", {}, `Why: ${reason}`))));
}

function show(data) {
  const name = data.model.names[0];
  setText("model", name);
  if (document.title !== `${name} - Nibble`) document.title = `${name} - Nibble`;
  setText("facts", `Nibble ${data.version}, up ${age(data.uptime_seconds)}, ` +
    `${data.model.max_model_len.toLocaleString("en")} tokens of context`);
  showState(data.state);
  showRates(data, performance.now());
  showLoad(data.load, data.totals);
  showRecent(data.recent);
  showKernels(data.kernels);
}

async function update(onLocked) {
  try {
    show(await (await send("status/data")).json());
    byId("key-form").hidden = true;
  } catch (fault) {
    previous = null;
    const isLocked = fault instanceof ApiError && fault.status === 401;
    const isLoading = fault instanceof ApiError && fault.status === 503;
    showState(isLocked ? "locked" : isLoading ? "loading" : "unreachable");
    if (isLocked) onLocked(fault);
  }
}

// Updates for as long as the page lives; waits for wake() while a key is missing.
export function startStatus(onLocked) {
  let timer = 0;
  let isLocked = false;
  const tick = async () => {
    clearTimeout(timer);
    if (!document.hidden && !isLocked) {
      await update((fault) => {
        isLocked = true;
        onLocked(fault);
      });
    }
    timer = setTimeout(tick, INTERVAL_MS);
  };
  document.addEventListener("visibilitychange", () => {
    previous = null; // the pause would look like a lull
  });
  tick();
  return {
    wake() {
      isLocked = false;
      tick();
    },
  };
}
