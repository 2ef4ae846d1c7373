// The chat box: a conversation that lives in this tab, streamed, with thinking and tool calls.
import { byId, element, events, seconds, send } from "./api.js";

const EXAMPLE_TOOL = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather for a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string", description: "The city name" } },
      required: ["city"],
    },
  },
}];

const log = byId("log");
let messages = []; // as the API takes them
let running = null; // AbortController of the answer that is being written

function announce(text) {
  byId("chat-status").textContent = text;
}

// Follows the end of the conversation unless the user has scrolled away from it.
function keepEndInView(change) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function addMessage(kind, ...children) {
  log.querySelector(".empty")?.remove();
  const message = element("div", { className: `message ${kind}` }, ...children);
  keepEndInView(() => log.append(message));
  return message;
}

// One answer on the page while it arrives.
class AnswerView {
  constructor() {
    this.root = addMessage("assistant", element("span", { className: "hidden-text" }, "Answer: "));
    this.calls = [];
    this.deltas = []; // not shown yet
    this.frame = null;
  }

  // What arrives between two frames is shown at once: laying a long answer out for each of its
  // pieces would keep the page from hearing its user.
  add(delta) {
    this.deltas.push(delta);
    this.frame ??= requestAnimationFrame(() => this.show());
  }

  show() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    keepEndInView(() => {
      for (const { content, reasoning_content: thought, tool_calls: calls } of this.deltas) {
        if (thought) this.addThought(thought);
        if (content) this.addContent(content);
        for (const call of calls ?? []) this.addCall(call);
      }
    });
    this.deltas = [];
  }

  // Text is appended to one node, so that nothing is laid out twice and nothing becomes markup.
  append(name, make, piece) {
    if (!this[name]) {
      this[name] = document.createTextNode("");
      this.root.append(make(element("div", { className: "text" }, this[name])));
    }
    this[name].appendData(piece);
  }

  addThought(piece) {
    this.append("thought", (text) => {
      this.thoughtBox = element("details", { className: "thought", open: true },
        element("summary", {}, "Thinking"), text);
      return this.thoughtBox;
    }, piece);
  }

  addContent(piece) {
    if (!this.content && this.thoughtBox) this.thoughtBox.open = false;
    this.append("content", (text) => text, piece);
  }

  addCall({ index, id, function: { name, arguments: piece } = {} }) {
    if (!this.calls[index]) {
      const call = { id, name, text: document.createTextNode("") };
      call.box = element("div", { className: "call" },
        element("strong", {}, `Calls ${name}`), element("pre", {}, call.text));
      this.calls[index] = call;
      this.root.append(call.box);
    }
    this.calls[index].text.appendData(piece ?? "");
  }

  addFault(text) {
    keepEndInView(() => this.root.append(element("p", { className: "fault", role: "alert" }, text)));
  }

  addFacts(text) {
    keepEndInView(() => this.root.append(element("p", { className: "facts" }, text)));
  }

  message() {
    const made = { role: "assistant", content: this.content?.data ?? "" };
    if (this.thought) made.reasoning_content = this.thought.data;
    if (this.calls.length > 0) {
      made.tool_calls = this.calls.map(({ id, name, text }) => (
        { id, type: "function", function: { name, arguments: text.data } }));
    }
    return made;
  }

  // Asks the user for what the tools would answer; goes on when all of it is there.
  askForResults(goOn) {
    const fields = this.calls.map(({ name, box }) => {
      const field = element("input", { className: "result", placeholder: `Result of ${name}` });
      field.setAttribute("aria-label", `Result of ${name}`);
      box.append(field);
      return field;
    });
    const button = element("button", { type: "submit" }, "Send results");
    const form = element("form", { className: "row" }, button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (running) return;
      form.remove();
      fields.forEach((field, i) => {
        field.disabled = true;
        messages.push({ role: "tool", tool_call_id: this.calls[i].id, content: field.value });
      });
      goOn();
    });
    for (const field of fields) {
      field.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !event.isComposing) form.requestSubmit();
      });
    }
    keepEndInView(() => this.root.append(form));
    fields[0].focus();
  }
}

// What the settings say, as members of a request. Throws SyntaxError for tools that are no JSON.
function settings() {
  const body = { thinking: { type: byId("thinking").checked ? "enabled" : "disabled" } };
  const temperature = byId("temperature").value;
  const maxTokens = byId("max-tokens").value;
  const tools = byId("tools").value.trim();
  if (temperature !== "") body.temperature = Number(temperature);
  if (maxTokens !== "") body.max_tokens = Number(maxTokens);
  if (tools !== "") body.tools = JSON.parse(tools);
  return body;
}

function requestBody() {
  const system = byId("system").value.trim();
  const opening = system === "" ? [] : [{ role: "system", content: system }];
  return JSON.stringify({
    ...settings(),
    messages: [...opening, ...messages],
    stream: true,
    stream_options: { include_usage: true },
  });
}

function facts({ sentAt, firstAt, lastAt, usage, reason }) {
  const parts = [];
  if (usage) parts.push(`${usage.completion_tokens} tokens`);
  if (firstAt) parts.push(`first after ${seconds((firstAt - sentAt) / 1000)}`);
  if (usage && lastAt > firstAt && usage.completion_tokens > 1) {
    const rate = ((usage.completion_tokens - 1) * 1000) / (lastAt - firstAt);
    parts.push(`${Math.round(rate).toLocaleString("en")} tokens/s`);
  }
  if (reason === "length") parts.push("cut at the limit");
  return parts.join(", ");
}

async function receive(view, signal) {
  const times = { sentAt: performance.now() };
  const response = await send("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: requestBody(),
    signal,
  });
  try {
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) times.usage = event.usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      const { content, reasoning_content: thought, tool_calls: calls } = choice.delta ?? {};
      if (content || thought || calls) {
        times.lastAt = performance.now();
        times.firstAt ??= times.lastAt;
        view.add(choice.delta);
      }
      if (choice.finish_reason) times.reason = choice.finish_reason;
    }
  } finally {
    view.show();
  }
  return times;
}

function showRunning(isRunning) {
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
  log.setAttribute("aria-busy", String(isRunning)); // read aloud when complete, not by pieces
}

async function answer() {
  const view = new AnswerView();
  running = new AbortController();
  showRunning(true);
  announce("The model answers");
  try {
    const times = await receive(view, running.signal);
    view.addFacts(facts(times));
    messages.push(view.message());
    announce(`Answer complete: ${facts(times)}`);
    if (times.reason === "tool_calls") view.askForResults(answer);
  } catch (fault) {
    const isStopped = fault.name === "AbortError";
    // What was said so far stays part of the conversation, but not half a call.
    if (isStopped && view.content) messages.push({ role: "assistant", content: view.content.data });
    if (isStopped) view.addFacts("Stopped");
    else view.addFault(fault.message);
    announce(isStopped ? "Stopped" : "");
  }
  running = null;
  showRunning(false);
}

// A question that got no answer would make two turns of the user in a row.
function dropUnanswered() {
  while (messages.length > 0 && messages.at(-1).role !== "assistant") messages.pop();
  if (messages.at(-1)?.tool_calls) {
    messages.pop();
    dropUnanswered();
  }
}

function submit() {
  const box = byId("message");
  const text = box.value.trim();
  if (text === "" || running) return;
  dropUnanswered();
  log.querySelectorAll(".message form").forEach((form) => form.remove());
  box.value = "";
  addMessage("user", element("span", { className: "hidden-text" }, "You: "),
    element("div", { className: "text" }, text));
  log.scrollTop = log.scrollHeight;
  messages.push({ role: "user", content: text });
  answer();
}

function reset() {
  running?.abort();
  messages = [];
  log.replaceChildren(element("p", { className: "muted empty" }, "A new conversation."));
  byId("message").focus();
}

export function startChat() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  byId("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("new-chat").addEventListener("click", reset);
  byId("example-tool").addEventListener("click", () => {
    byId("tools").value = JSON.stringify(EXAMPLE_TOOL, null, 2);
  });
}
