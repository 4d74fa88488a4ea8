"use strict";
// The chat page: one conversation, streamed. Text from the model only ever becomes text nodes.

const at = (id) => document.getElementById(id);
const turns = [];           // {role, content} of the conversation so far
let model = "", running = null;

async function connect() {
  try {
    const answer = await fetch("v1/models");
    if (!answer.ok) throw new Error(await reason(answer));
    const found = (await answer.json()).data[0];
    model = found.id;
    at("model").textContent = model;
    at("status").textContent = `ready, context ${found.context_length} tokens`;
    if (!found.chats) {
      at("mode").value = "completion";
      at("mode").querySelector("[value=chat]").disabled = true;
      at("status").textContent += "; no chat template, so it completes texts";
    }
  } catch (fault) {
    at("status").textContent = `not connected: ${fault.message}`;
  }
}

async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `status ${answer.status}`;
  }
}

function show(role, text) {
  const turn = document.createElement("article"), head = document.createElement("h2"), body = document.createElement("pre");
  turn.className = `turn ${role}` + (at("mode").value === "completion" ? " code" : "");
  head.textContent = { user: "You", assistant: model, fault: "Error" }[role];
  body.textContent = text;
  turn.append(head, body);
  at("turns").append(turn);
  follow(true);
  return body;
}

function follow(always) {
  const box = at("turns");
  if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 80) box.scrollTop = box.scrollHeight;
}

function parameters() {
  const found = { model, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  for (const name of ["max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"])
    if (at(name).value !== "") found[name] = Number(at(name).value);
  if (at("stop_text").value) found.stop = at("stop_text").value;
  return found;
}

// The values of an event stream's data lines. An event may come in parts, and several in one.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts)
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

async function answer(path, body, into) {
  const begin = performance.now();
  let first = 0, count = 0, text = "", note = "";
  running = new AbortController();
  at("send").disabled = true;
  at("turns").ariaBusy = "true";  // it is read out once it is there
  at("stop").disabled = false;
  const rate = () => {
    const seconds = (performance.now() - first) / 1000;
    const speed = count > 1 && seconds > 0 ? `${((count - 1) / seconds).toFixed(0)} tokens/s, ` : "";
    const wait = `first after ${((first - begin) / 1000).toFixed(2)} s`;
    at("rate").textContent = first ? `${speed}${count} tokens, ${wait}${note}` : note;
  };
  try {
    const got = await fetch(path, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: running.signal,
    });
    if (!got.ok) throw new Error(await reason(got));
    for await (const event of events(got.body)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) count = event.usage.completion_tokens;
      for (const choice of event.choices) {
        const piece = choice.delta ? choice.delta.content || "" : choice.text;
        if (!piece) continue;
        first ||= performance.now();
        text += piece;
        into.append(piece);
        follow(false);
        rate();
      }
    }
  } catch (fault) {
    if (fault.name === "AbortError") note = " (stopped)";
    else show("fault", fault.message);
  } finally {
    running = null;
    at("turns").ariaBusy = "false";
    rate();
    at("send").disabled = false;
    at("stop").disabled = true;
    at("input").focus();
  }
  return text;
}

async function send() {
  const text = at("input").value;
  if (!text.trim() || running || !model) return;
  at("input").value = "";
  show("user", text);
  const into = show("assistant", "");
  if (at("mode").value === "completion") {
    into.textContent = text;
    await answer("v1/completions", { ...parameters(), prompt: text }, into);
    return;
  }
  turns.push({ role: "user", content: text });
  const system = at("system").value.trim();
  const messages = system ? [{ role: "system", content: system }, ...turns] : [...turns];
  const said = await answer("v1/chat/completions", { ...parameters(), messages }, into);
  if (said) turns.push({ role: "assistant", content: said });
  else turns.pop();
}

at("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
at("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); at("form").requestSubmit(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && running) running.abort(); });
at("stop").addEventListener("click", () => running && running.abort());
at("clear").addEventListener("click", () => {
  if (running) running.abort();
  turns.length = 0;
  at("turns").replaceChildren();
  at("rate").textContent = "";
  at("input").focus();
});
connect().then(() => at("input").focus());
