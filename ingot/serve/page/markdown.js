"use strict";
// Markdown as nodes. marked (marked.js) only takes the text apart; here each piece becomes an element of a kind named
// below, with text nodes in it. HTML in an answer stays text, a link leads to http(s) or is no link, an image is a link.

const BLOCKS = { paragraph: "p", blockquote: "blockquote", strong: "strong", em: "em", del: "del" };

function renderMarkdown(into, text) {
  let pieces;
  try {
    pieces = marked.lexer(text);
  } catch {  // nested deeper than the stack
    into.replaceChildren(text);
    return;
  }
  const made = document.createDocumentFragment();
  addAll(made, pieces);
  into.replaceChildren(made);
}

function element(name, content) {
  const made = document.createElement(name);
  if (Array.isArray(content)) addAll(made, content);
  else if (content !== undefined) made.append(content);
  return made;
}

function addAll(into, pieces) {
  for (const piece of pieces) into.append(...made(piece));
}

function made(piece) {
  if (BLOCKS[piece.type]) return [element(BLOCKS[piece.type], piece.tokens)];
  switch (piece.type) {
    case "space": case "def": return [];
    case "heading": return [element(`h${Math.min(piece.depth + 2, 6)}`, piece.tokens)];
    case "code": return [codeBox(piece.text)];
    case "codespan": return [element("code", piece.text)];
    case "br": case "hr": return [element(piece.type)];
    case "checkbox": return [piece.checked ? "☑ " : "☐ "];
    case "list": return [list(piece)];
    case "table": return [table(piece)];
    case "link": return [link(piece.href, piece.tokens)];
    case "image": return [link(piece.href, piece.text || piece.href)];
    case "text": return piece.tokens ? [element("span", piece.tokens)] : [piece.text];
    case "escape": return [piece.text];
    default: return [piece.raw];  // html, and what a later marked may know
  }
}

function codeBox(text) {
  const box = element("pre", text);
  box.tabIndex = 0;  // so that keys can scroll it
  return box;
}

function list(piece) {
  const found = element(piece.ordered ? "ol" : "ul");
  if (piece.ordered && piece.start !== 1) found.start = piece.start;
  for (const item of piece.items) found.append(element("li", item.tokens));
  return found;
}

function table(piece) {
  const found = element("table");
  for (const [kind, cells] of [["th", piece.header], ...piece.rows.map((row) => ["td", row])]) {
    const row = element("tr");
    for (const cell of cells) row.append(element(kind, cell.tokens));
    found.append(row);
  }
  return found;
}

function link(address, content) {
  let to = null;
  try {
    to = new URL(address);
  } catch { /* no address by itself: there is nothing here that it could lead to */ }
  if (!to || !["http:", "https:"].includes(to.protocol)) return element("span", content);
  const found = element("a", content);
  found.href = to.href;
  found.rel = "noopener noreferrer";
  found.target = "_blank";
  found.title = to.href;  // where it leads, whatever it says
  return found;
}
