"use strict";
// The chat page: one conversation, streamed. Text from the model only ever becomes text nodes (markdown.js).

const ROOM = 4;             // this part of the context is kept free for an answer, as `ingot chat` does
const GO_ON = "Go on.";

const at = (id) => document.getElementById(id);
let turns = [];             // of the conversation: {asked, said, size, nodes}; size: tokens, as far as they are known
let model = "", context = 0, plain = false, running = null;

async function connect() {
  try {
    const answer = await fetch("v1/models");
    if (!answer.ok) throw new Error((await problem(answer)).message);
    const found = (await answer.json()).data[0];
    model = found.id;
    context = found.context_length;
    plain = Boolean(found.plain_template);
    at("model").textContent = model;
    document.title = `${model} – ingot`;
    at("status").className = "";
    at("status").textContent = `ready, context ${context.toLocaleString("en")} tokens`;
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

async function problem(answer) {
  try {
    return (await answer.json()).error;
  } catch {
    return { message: `status ${answer.status}`, code: null };
  }
}

function show(role, text) {
  const turn = document.createElement("article"), head = document.createElement("h2"), body = document.createElement("div");
  turn.className = `turn ${role}${plain && role === "assistant" ? " code" : ""}`;
  head.textContent = { user: "You", assistant: model, whole: model, fault: "Error" }[role];
  body.className = "said";
  body.append(text);
  turn.append(head, body);
  at("welcome").hidden = true;
  at("turns").append(turn);
  follow();
  return body;
}

// A line of the page's own, between turns or below one.
function remark(into, text) {
  const line = document.createElement("p");
  line.className = "note";
  line.textContent = text;
  into.append(line);
  return line;
}

function button(into, text, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", act);
  into.append(made);
}

// A model that was not trained to chat writes what it likes, code for the most part: its text stays as it is.
function render(into, text) {
  if (plain) into.replaceChildren(text);
  else renderMarkdown(into, text);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    at("rate").textContent = "copied";
  } catch {
    at("rate").textContent = "the browser does not let this page copy: select the text";
  }
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

// The answer as far as it came, which `write` shows in `into` behind `before`; how it went stands below.
// {text, reason, tokens: of prompt and answer, code: of a refusal, which is not shown when it is one of `quiet`}
async function answer(path, body, into, before, write, quiet = []) {
  const begin = performance.now();
  let first = 0, firstCount = 0, count = 0, text = "", note = "", failed = null, reason = null, tokens = 0, drawn = 0;
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
  const draw = () => {
    drawn = 0;
    const still = following();
    write(into, before + text);
    if (still) follow();
    rate();
  };
  try {
    const got = await fetch(path, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: running.signal,
    });
    if (!got.ok) throw await problem(got);
    for await (const event of events(got.body)) {
      if (event.error) throw event.error;
      if (event.usage) [count, tokens] = [event.usage.completion_tokens, event.usage.total_tokens];
      for (const choice of event.choices) {
        reason = choice.finish_reason || reason;
        const piece = choice.delta ? choice.delta.content || "" : choice.text;
        if (!piece) continue;
        if (!first) [first, firstCount] = [performance.now(), count];
        text += piece;
        drawn ||= requestAnimationFrame(draw);  // once for each picture, however many pieces come
      }
    }
  } catch (fault) {
    if (fault.name === "AbortError") note = ", stopped";
    else failed = fault;
  }
  cancelAnimationFrame(drawn);
  if (text) draw();
  running = null;
  at("turns").ariaBusy = "false";
  rate();
  at("send").disabled = false;
  at("stop").disabled = true;
  const how = at("rate").textContent;
  at("rate").textContent = "";
  if (how) remark(into.parentNode, how);
  if (!text && !before) into.parentNode.remove();
  if (failed && !quiet.includes(failed.code)) show("fault", failed.message);
  else follow();
  at("input").focus();
  return { text, reason, tokens, code: failed && failed.code };
}

// Why an answer ended before its own end, and a button that goes on where there is room.
function cut(into, found, goOn) {
  if (found.reason !== "length") return;
  if (found.tokens >= context) remark(into, `the context of ${context.toLocaleString("en")} tokens is full: the answer ends here`);
  else remark(into, "cut: it has reached “Most tokens”");
  if (goOn) button(into.querySelector(".tools"), "Go on", goOn);
}

async function complete(text, into = null) {
  const body = into || show("whole", text), box = body.parentNode;
  const found = await answer("v1/completions", { ...parameters(), prompt: text }, body, text, (into, text) => into.replaceChildren(text));
  const whole = text + found.text, tools = box.appendChild(element("p"));
  tools.className = "tools";
  button(tools, "Copy", () => copy(whole));
  cut(box, found, found.tokens < context && (() => {
    if (running) return;
    box.querySelectorAll(".note, .tools").forEach((node) => node.remove());
    complete(whole, body);
  }));
}

function messages(kept, text) {
  const system = at("system").value.trim(), found = system ? [{ role: "system", content: system }] : [];
  for (const turn of kept) found.push({ role: "user", content: turn.asked }, { role: "assistant", content: turn.said });
  return [...found, { role: "user", content: text }];
}

// The turns that leave room for an answer, the oldest left out; how many tokens a text has is known once it was sent.
function fitting(kept, text) {
  const room = Math.min(Number(at("max_tokens").value) || context, Math.floor(context / ROOM));
  const used = (turns) => turns.reduce((sum, turn) => sum + turn.size, Math.ceil(text.length / 4));
  let found = kept;
  while (found.length && used(found) > context - room) found = found.slice(1);
  return found;
}

async function chat(text) {
  const asked = show("user", text).parentNode, talk = turns;
  let kept = fitting(talk.filter((turn) => !turn.dropped), text), found, into;
  for (;;) {
    into = show("assistant", "");
    const body = { ...parameters(), messages: messages(kept, text) };
    found = await answer("v1/chat/completions", body, into, "", render, kept.length ? ["context_length_exceeded"] : []);
    if (found.code !== "context_length_exceeded" || !kept.length) break;
    kept = kept.slice(1);
  }
  if (talk !== turns) return;  // a new conversation has begun
  if (!found.text) {
    asked.remove();
    at("input").value ||= text;  // to be mended
    follow();
    return;
  }
  const left = talk.filter((turn) => !turn.dropped && !kept.includes(turn));
  for (const turn of left) turn.dropped = true;
  const box = into.parentNode;
  if (left.length) {
    const say = `the context of ${context.toLocaleString("en")} tokens is full: the oldest ${left.length} turn(s) are no longer in it`;
    asked.before(remark(at("turns"), say));
  }
  const before = kept.reduce((sum, turn) => sum + turn.size, 0);
  const turn = { asked: text, said: found.text, size: Math.max(0, found.tokens - before), nodes: [asked, box], dropped: false };
  talk.push(turn);
  const tools = box.appendChild(element("p"));
  tools.className = "tools";
  button(tools, "Copy", () => copy(turn.said));
  button(tools, "Regenerate", () => back(turn, () => chat(turn.asked)));
  const mine = asked.appendChild(element("p"));
  mine.className = "tools";
  button(mine, "Copy", () => copy(turn.asked));
  button(mine, "Edit", () => back(turn, () => { at("input").value = turn.asked; at("input").focus(); }));
  cut(box, found, () => { if (!running) chat(GO_ON); });
  follow();
}

// Takes a turn and all after it out of the conversation, then goes on from there.
function back(turn, then) {
  const i = turns.indexOf(turn);
  if (running || i < 0) return;
  for (let node = turn.nodes[0]; node;) {
    const next = node.nextSibling;
    node.remove();
    node = next;
  }
  turns.splice(i);
  then();
}

async function send() {
  const text = at("input").value;
  if (!text.trim() || running || !model) return;
  at("input").value = "";
  if (at("mode").value === "completion") await complete(text);
  else await chat(text);
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
