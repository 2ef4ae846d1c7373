// Requests to this server, with the key that the user gave for this tab.

const KEY_NAME = "nibble-api-key";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY_NAME, key);
}

async function faultOf(response) {
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not ours: a proxy's page. The status says enough.
  }
  return new ApiError(response.status, message);
}

// Throws ApiError for every status but 200, and what fetch throws when nothing answers.
export async function send(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(KEY_NAME);
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (!response.ok) throw await faultOf(response);
  return response;
}

// The JSON payloads of a stream of events, up to its end.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, "the answer was cut off");
    text += value;
    const complete = text.split("\n\n");
    text = complete.pop();
    for (const event of complete) {
      if (!event.startsWith("data: ")) continue;
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

// Makes an element. Text is set as text, never as markup.
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  const { dataset = {}, ...others } = properties;
  Object.assign(made, others);
  Object.assign(made.dataset, dataset);
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

export function seconds(value) {
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  return value < 100 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${Math.round(value / 60)} min`;
}
