"use strict";
// The chat page: one conversation, streamed. Text from the model only ever becomes text nodes.

const at = (id) => document.getElementById(id);
let turns = [];             // {role, content} of the conversation so far
let model = "", running = null;

async function connect() {
  try {
    const answer = await fetch("v1/models");
    if (!answer.ok) throw new Error(await reason(answer));
    const found = (await answer.json()).data[0];
    model = found.id;
    at("model").textContent = model;
    document.title = `${model} – ingot`;
    at("status").className = "";
    at("status").textContent = `ready, context ${found.context_length.toLocaleString("en")} tokens`;
    if (!found.chats) {
      at("mode").value = "completion";
      at("mode").querySelector("[value=chat]").disabled = true;
      at("status").textContent += "; no chat template, so it completes texts";
    }
  } catch (fault) {
    at("status").className = "bad";
    at("status").textContent = `not connected: ${fault.message}`;
    setTimeout(connect, 3000);
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
  const turn = document.createElement("article"), head = document.createElement("h2"), body = document.createElement("div");
  turn.className = `turn ${role}`;
  head.textContent = { user: "You", assistant: model, whole: model, fault: "Error" }[role];
  body.className = "said";
  body.append(text);
  turn.append(head, body);
  at("welcome").hidden = true;
  at("turns").append(turn);
  follow();
  return body;
}

// Text with the code between fences in boxes of its own; the last fence may still be open.
function render(into, text) {
  into.replaceChildren();
  text.split(/^[ \t]*```.*(?:\n|$)/m).forEach((part, i) => {
    if (!part) return;
    if (i % 2 === 0) return into.append(part);
    const box = document.createElement("pre");
    box.tabIndex = 0;  // so that keys can scroll it
    box.append(part);
    into.append(box);
  });
}

function following() {
  const box = at("turns");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 80;
}

function follow() {
  at("turns").scrollTop = at("turns").scrollHeight;
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

// The answer's text as far as it came, which `write` shows in `into` behind `before`; how it went stands below.
async function answer(path, body, into, before, write) {
  const begin = performance.now();
  let first = 0, firstCount = 0, count = 0, text = "", note = "", failed = null;
  running = new AbortController();
  at("send").disabled = true;
  at("turns").ariaBusy = "true";  // it is read out once it is there
  at("stop").disabled = false;
  const rate = () => {
    const speed = (count - firstCount) / (performance.now() - first) * 1000;  // the first piece may be of many
    const shown = count > firstCount && isFinite(speed) ? `${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s, ` : "";
    const wait = `first after ${((first - begin) / 1000).toFixed(2)} s`;
    at("rate").textContent = first ? `${shown}${count} tokens, ${wait}${note}` : note;
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
        if (!first) [first, firstCount] = [performance.now(), count];
        text += piece;
        const still = following();
        write(into, before + text);
        if (still) follow();
        rate();
      }
    }
  } catch (fault) {
    if (fault.name === "AbortError") note = ", stopped";
    else failed = fault;
  }
  running = null;
  at("turns").ariaBusy = "false";
  rate();
  at("send").disabled = false;
  at("stop").disabled = true;
  if (at("rate").textContent) {
    const line = document.createElement("p");
    line.className = "note";
    line.textContent = at("rate").textContent;
    into.after(line);
    at("rate").textContent = "";
  }
  if (!text && !before) into.parentNode.remove();
  if (failed) show("fault", failed.message);
  else follow();
  at("input").focus();
  return text;
}

async function send() {
  const text = at("input").value;
  if (!text.trim() || running || !model) return;
  at("input").value = "";
  if (at("mode").value === "completion") {
    const into = show("whole", text);
    await answer("v1/completions", { ...parameters(), prompt: text }, into, text, (into, text) => into.replaceChildren(text));
    return;
  }
  const asked = show("user", text).parentNode;
  const talk = turns, system = at("system").value.trim();
  talk.push({ role: "user", content: text });
  const messages = system ? [{ role: "system", content: system }, ...talk] : [...talk];
  const said = await answer("v1/chat/completions", { ...parameters(), messages }, show("assistant", ""), "", render);
  if (said) talk.push({ role: "assistant", content: said });
  else {
    talk.pop();
    asked.remove();
    if (talk === turns) at("input").value ||= text;  // to be mended
    follow();
  }
}

at("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
at("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); at("form").requestSubmit(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && running) running.abort(); });
at("stop").addEventListener("click", () => running && running.abort());
at("clear").addEventListener("click", () => {
  if (running) running.abort();
  turns = [];
  at("turns").replaceChildren(at("welcome"));
  at("welcome").hidden = false;
  at("rate").textContent = "";
  at("input").focus();
});
connect().then(() => at("input").focus());
