// The page's behaviour: a chat over /v1/chat/completions, and a live view of /status. Text of the model is only ever set
// as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const messages = [];          // [{role, content}] as the API takes them
let running = null;           // the AbortController of the answer that is coming
let rates = [];               // tokens per second, one sample a second
let model = "";

function headers() {
  const key = $("key").value.trim();
  return key ? {"Content-Type": "application/json", "Authorization": "Bearer " + key} : {"Content-Type": "application/json"};
}

// What went wrong with the last question stays until the next one, whatever the live view says meanwhile.
const troubles = {question: "", status: ""};
function trouble(text, of = "question") {
  troubles[of] = text || "";
  const shown = [troubles.question, troubles.status].filter((each) => each).join(" · ");
  $("trouble").textContent = shown;
  $("trouble").hidden = !shown;
}

async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return response.status + " " + response.statusText;
  }
}

function addMessage(role, text) {
  const item = document.createElement("li");
  item.className = role;
  const parts = {};
  for (const name of ["reasoning", "body", "calls", "foot"]) {
    parts[name] = document.createElement("div");
    parts[name].className = name;
    parts[name].hidden = true;
    item.append(parts[name]);
  }
  $("messages").append(item);
  if (text) show(parts.body, text);
  item.scrollIntoView({block: "end"});
  return {item, parts};
}

function show(element, text) {
  element.textContent = text;
  element.hidden = !text;
}

// Calls onData with the data of each server-sent event.
async function readEvents(response, onData) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    pending += value;
    let end;
    while ((end = pending.indexOf("\n\n")) >= 0) {
      for (const line of pending.slice(0, end).split("\n")) {
        if (line.startsWith("data: ")) onData(line.slice(6));
      }
      pending = pending.slice(end + 2);
    }
  }
}

// Arguments with line breaks, where they are whole.
function callText(call) {
  let text = call.function.arguments;
  try {
    text = JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    // It is still coming, or it is no JSON.
  }
  return call.function.name + "(" + text + ")";
}

// Behind a call, what is typed is its result.
function addQuestion(text) {
  const last = messages[messages.length - 1];
  const calls = last && last.role === "assistant" && last.tool_calls || [];
  for (const call of calls) messages.push({role: "tool", tool_call_id: call.id, name: call.function.name, content: text});
  if (!calls.length) messages.push({role: "user", content: text});
  return Math.max(calls.length, 1);
}

async function ask(text) {
  let tools = null;
  try {
    if ($("tools").value.trim()) tools = JSON.parse($("tools").value);
  } catch (error) {
    return trouble("Tools: " + error.message);
  }
  const asked = addQuestion(text);
  addMessage("user", text);
  const answer = addMessage("assistant", "");
  const system = $("system").value.trim();
  const request = {
    stream: true, stream_options: {include_usage: true},
    messages: system ? [{role: "system", content: system}, ...messages] : messages,
  };
  if (model) request.model = model;
  if (tools) request.tools = tools;
  if ($("temperature").value) request.temperature = Number($("temperature").value);
  if ($("max-tokens").value) request.max_tokens = Number($("max-tokens").value);
  running = new AbortController();
  $("send").hidden = true;
  $("stop").hidden = false;
  trouble("");
  const begin = performance.now();
  let first = 0, last = 0, tokens = 0, content = "", reasoning = "", reason = "", usage = null;
  const calls = [];
  const foot = () => {
    const speed = tokens > 1 ? ((tokens - 1) / (last - first) * 1000).toFixed(1) + " tokens/s · " : "";
    const start = first ? ((first - begin) / 1000).toFixed(2) + " s to the first · " : "";
    const cached = usage && usage.prompt_tokens_details.cached_tokens ? " · " + usage.prompt_tokens_details.cached_tokens + " cached" : "";
    show(answer.parts.foot, speed + start + (usage ? usage.completion_tokens : tokens) + " tokens" + cached + (reason ? " · " + reason : ""));
  };
  try {
    const response = await fetch("/v1/chat/completions",
      {method: "POST", headers: headers(), body: JSON.stringify(request), signal: running.signal});
    if (!response.ok) throw new Error(await errorOf(response));
    await readEvents(response, (data) => {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) usage = chunk.usage;
      for (const choice of chunk.choices) {
        const delta = choice.delta || {};
        const thought = delta.reasoning_content || delta.reasoning || "";
        for (const piece of delta.tool_calls || []) {
          const call = calls[piece.index] ||= {id: piece.id, type: "function", function: {name: "", arguments: ""}};
          call.function.name += piece.function.name || "";
          call.function.arguments += piece.function.arguments || "";
        }
        if (thought || delta.content || delta.tool_calls) {
          last = performance.now();
          if (!first) first = last;
          ++tokens;
        }
        reasoning += thought;
        content += delta.content || "";
        if (choice.finish_reason) reason = choice.finish_reason;
      }
      const near = window.innerHeight + window.scrollY > document.body.scrollHeight - 80;
      show(answer.parts.reasoning, reasoning);
      show(answer.parts.body, content);
      show(answer.parts.calls, calls.map(callText).join("\n"));
      foot();
      if (near) answer.item.scrollIntoView({block: "end"});
    });
  } catch (error) {
    if (error.name === "AbortError") reason = "stopped";
    else trouble(error.message);
  }
  foot();
  if (content || reasoning || calls.length) {
    const message = {role: "assistant", content};
    if (reasoning) message.reasoning_content = reasoning;
    if (calls.length) message.tool_calls = calls;
    messages.push(message);
  } else {
    messages.splice(-asked);
    answer.item.remove();
  }
  running = null;
  $("send").hidden = false;
  $("stop").hidden = true;
  $("text").focus();
}

function drawRates() {
  const canvas = $("rate"), context = canvas.getContext("2d");
  const width = canvas.width = canvas.clientWidth, height = canvas.height;
  const most = Math.max(1, ...rates), color = getComputedStyle($("send")).color;
  context.clearRect(0, 0, width, height);
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = 2;
  context.beginPath();
  rates.forEach((rate, i) => {
    const x = width - (rates.length - 1 - i) * width / 119, y = height - 4 - rate / most * (height - 22);
    i ? context.lineTo(x, y) : context.moveTo(x, y);
  });
  context.stroke();
  context.font = "12px system-ui";
  context.fillText(most.toFixed(0) + " tokens/s", 6, 14);
}

function row(cells) {
  const line = document.createElement("tr");
  for (const text of cells) {
    const cell = document.createElement("td");
    cell.textContent = text;
    line.append(cell);
  }
  return line;
}

function showStatus(status) {
  model = status.model;
  $("model").textContent = status.model;
  const numbers = {
    "Running": status.running + " of " + status.max_seqs, "Waiting": status.waiting, "Tokens per second": status.tokens_per_second,
    "Last step": status.step_prompt_tokens + " prompt + " + status.step_decode_tokens + " decode",
    "Prefix cache": status.cache_query_tokens ? (100 * status.cache_hit_tokens / status.cache_query_tokens).toFixed(0) + " % hits" : "–",
    "Generated": status.generated_tokens, "Prompt tokens": status.prompt_tokens, "Steps": status.steps,
    "Preemptions": status.preemptions, "Connections": status.connections, "Context": status.context,
  };
  $("numbers").replaceChildren(...Object.entries(numbers).map(([name, value]) => {
    const box = document.createElement("div"), term = document.createElement("dt"), text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value;
    box.append(term, text);
    return box;
  }));
  $("groups").replaceChildren(...status.kv_groups.map((group) => {
    const box = document.createElement("div"), bar = document.createElement("div"), part = document.createElement("i");
    box.className = "group";
    box.textContent = `${group.name}: ${group.blocks_used} of ${group.blocks} blocks of ${group.block_tokens} tokens, ${group.blocks_cached} more cached`;
    bar.className = "bar";
    part.style.setProperty("width", 100 * group.blocks_used / Math.max(group.blocks, 1) + "%");
    bar.append(part);
    box.append(bar);
    return box;
  }));
  $("requests").replaceChildren(...status.requests.map((r) => row(
    [r.id, (r.age_ms / 1000).toFixed(1) + " s", `${r.prompt_computed} of ${r.prompt_tokens}`, r.generated_tokens])));
  rates.push(status.tokens_per_second);
  rates = rates.slice(-120);
  if (!$("live").hidden) drawRates();
}

async function poll() {
  try {
    const response = await fetch("/status", {headers: headers()});
    if (response.ok) showStatus(await response.json());
    trouble(response.ok ? "" : await errorOf(response), "status");
  } catch {
    trouble("The server does not answer.", "status");
  }
  setTimeout(poll, document.hidden ? 5000 : 1000);
}

function view(name) {
  for (const each of ["chat", "live"]) {
    $(each).hidden = each !== name;
    $("show-" + each).setAttribute("aria-pressed", each === name);
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running) return;
  $("text").value = "";
  ask(text);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
$("stop").addEventListener("click", () => running && running.abort());
$("clear").addEventListener("click", () => {
  if (running) running.abort();
  messages.length = 0;
  $("messages").replaceChildren();
});
$("show-chat").addEventListener("click", () => view("chat"));
$("show-live").addEventListener("click", () => view("live"));
$("key").value = sessionStorage.getItem("key") || "";
$("key").addEventListener("change", () => sessionStorage.setItem("key", $("key").value.trim()));
poll();
