"use strict";
// The table of running requests, asked for every second while the page is looked at.

const at = (id) => document.getElementById(id);

function row(found) {
  const made = document.createElement("tr");
  const rate = found.tokens_per_s === null ? "–" : found.tokens_per_s.toFixed(1);
  for (const value of [found.id, found.route, found.seconds.toFixed(1), found.answers, found.tokens, rate]) {
    const cell = document.createElement("td");
    cell.textContent = value;
    made.append(cell);
  }
  return made;
}

async function look() {
  try {
    if (!document.hidden) {
      const got = await fetch("status.json");
      if (!got.ok) throw new Error(`status ${got.status}`);
      const found = await got.json();
      at("model").textContent = found.model;
      at("rows").replaceChildren(...found.requests.map(row));
      at("empty").hidden = found.requests.length > 0;
      at("status").className = found.status === "ok" ? "" : "bad";
      at("status").textContent = `${found.status}; ${found.running} answers run, ${found.waiting} wait; ` +
        `${found.tokens_per_s.toFixed(1)} tokens/s; cache ${(100 * found.kv_use).toFixed(0)} %` +
        (found.left_out ? `; ${found.left_out} requests are not shown` : "");
    }
  } catch (fault) {
    at("status").className = "bad";
    at("status").textContent = `not connected: ${fault.message}`;
  }
  setTimeout(look, 1000);
}
look();
