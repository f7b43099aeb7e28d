"use strict";
// Everything of the wire goes into the page as text (textContent): no markup is ever parsed.
(() => {
const get = (id) => document.getElementById(id);
const put = (node, text) => { text = String(text); if (node.textContent !== text) node.textContent = text; };
const show = (node, yes) => { if (node.hidden === yes) node.hidden = !yes; };
const make = (name, text, parent) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
};
const WINDOW_MS = 60_000, CHANGES_MAX = 500;
const lasts = (s) => s === null || s === undefined ? "-" : s < 0.0005 ? "0 s" : s < 1 ? `${+(s * 1000).toPrecision(2)} ms` :
  s < 90 ? `${+s.toPrecision(3)} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 129600 ? `${+(s / 3600).toFixed(1)} h` :
  `${Math.round(s / 86400)} d`;
const bytesText = (n) => n < 1024 ? `${n} B` : n < 2 ** 20 ? `${(n / 1024).toFixed(1)} KiB` :
  n < 2 ** 30 ? `${(n / 2 ** 20).toFixed(1)} MiB` : `${(n / 2 ** 30).toFixed(1)} GiB`;
const count = (n) => n.toLocaleString("en").replaceAll(",", "\u202f");
const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
const kind = (state) => ({ ACTIVE: "active", PASSIVE: "passive", PRIMARY: "starting", BACKUP: "starting",
  ERROR: "error" })[state] || "unknown";

// --- one moment after another -----------------------------------------------------------------------------

let past = [], bounds = [], node = "";
// Per lane: when which state began.
let lanes = { here: [], peer: [] };

const remember = (lane, at, state) => {
  const last = lane[lane.length - 1];
  if (last && last.state === state) return;
  lane.push({ at, state });
  if (lane.length > CHANGES_MAX) lane.shift();
};

const quantile = (counts, part) => {
  const total = counts.reduce((a, b) => a + b, 0);
  if (!total) return null;
  let sum = 0;
  for (let i = 0; i < counts.length; i++) {
    if (sum + counts[i] >= total * part) {
      const low = i ? bounds[i - 1] : 0, high = i < bounds.length ? bounds[i] : low;
      return low + (high - low) * (total * part - sum) / counts[i];
    }
    sum += counts[i];
  }
  return null;
};

// Several at once, as during a rolling upgrade, with how many workers each has.
const version = (versions) => {
  const all = Object.entries(versions);
  return all.length < 2 ? all.map(([name]) => name).join("") : all.map(([name, n]) => `${name || "none"} ×${count(n)}`).join(", ");
};

const figures = (service, at) => {
  const first = past.find((each) => each.services.has(service.service));
  const before = first && first.services.get(service.service);
  const seconds = first ? (at - first.at) / 1000 : 0;
  const counts = before && seconds > 0
    ? service.latency_counts.map((n, i) => Math.max(0, n - before.latency_counts[i])) : service.latency_counts;
  const ends = (each) => each.answered + (each.declined || 0) + each.failed + each.expired + each.poisoned + each.lost;
  const bad = service.failed + service.expired + service.poisoned + service.lost + service.refused;
  return {
    name: service.service, workers: service.workers, idle: service.idle, queued: service.queued,
    flight: service.in_flight, wait: service.oldest_waiting_s, bad, p50: quantile(counts, 0.5),
    p99: quantile(counts, 0.99), rate: seconds > 0 ? Math.max(0, ends(service) - ends(before)) / seconds : null,
    isBad: (service.queued > 0 && !service.workers) || service.stuck > 0,
    about: service.description, version: version(service.versions || {}),
    isMixed: Object.keys(service.versions || {}).length > 1,
  };
};

// --- nodes ------------------------------------------------------------------------------------------------

const list = (dl, facts) => {
  const shown = facts.filter((fact) => fact[1] !== null && fact[1] !== undefined && fact[1] !== "");
  while (dl.children.length > 2 * shown.length) dl.lastChild.remove();
  shown.forEach(([name, value], i) => {
    put(dl.children[2 * i] || make("dt", "", dl), name);
    put(dl.children[2 * i + 1] || make("dd", "", dl), value);
  });
};

const card = (id, title, state, facts) => {
  const article = get(id);
  put(article.querySelector("h2"), title);
  const word = article.querySelector(".state");
  put(word, state.word);
  word.className = `state ${state.kind}`;
  list(article.querySelector("dl"), facts);
};

const nodes = (state) => {
  const pair = state.pair, loop = state.loop, quorum = pair.quorum;
  card("here", `${pair.role} (this node)`, { word: pair.state, kind: kind(pair.state) }, [
    ["epoch", pair.epoch || "none yet"], ["highest epoch seen", pair.epoch_seen],
    ["serves", state.broker.is_serving ? "yes" : "no"], ["ready", state.readiness.is_ready ? "yes" : "no"],
    ["runs for", loop && lasts(loop.uptime_s)], ["run", pair.node],
    ["CPU time", loop && lasts(loop.cpu_s)], ["loop's worst lag", loop && lasts(loop.lag_max_s)],
    ["connections", loop && loop.connections && count(loop.connections.count)],
  ]);
  const fresh = pair.is_peer_fresh, said = pair.peer_state;
  const word = pair.is_peer_gone ? "GONE" : said === null ? "NEVER HEARD" : fresh ? said : "SILENT";
  card("peer", `${pair.role === "primary" ? "backup" : "primary"} (peer)`,
    { word, kind: fresh ? kind(said) : "unknown" }, [
    ["last said", fresh ? "" : said], ["last heard", pair.peer_age_s === null ? "never" : `${lasts(pair.peer_age_s)} ago`],
    ["counts as silent after", lasts(pair.failover_timeout_s)], ["messages", count(pair.peer_messages)],
    ["times gone", pair.peers_gone], ["store heard", state.store && (state.store.is_peer_heard ? "yes" : "no")],
  ]);
  show(get("arbiter"), Boolean(quorum));
  if (quorum) {
    card("arbiter", "arbiter", { word: quorum.is_arbiter_heard ? "HEARD" : pair.drained_why ? "NOT ASKED" : "SILENT",
      kind: quorum.is_arbiter_heard ? "passive" : "unknown" }, [
      ["endpoint", quorum.arbiter], ["this node has the majority", quorum.has_majority ? "yes" : "no"],
      ["its ballot", quorum.is_arbiter_granting ? "granted" : "not granted"], ["majorities lost", quorum.majorities_lost],
    ]);
  }
};

const notes = (state, services) => {
  const found = (state.findings || []).map((each) => `${each.service ? `Service ${each.service}: ` : ""}${each.why}: ${each.do} ` +
    `(for ${lasts(each.for_s)}${each.alert ? `, runbook: ${each.alert}` : ""})`);
  if (state.pair.is_held) found.push("The peer is silent, and the pause keeps this node from serving.");
  if (state.broker.is_draining) found.push("This node drains.");
  for (const each of state.fronts) if (each.error) found.push(`Front ${each.name}: ${each.error}`);
  for (const each of services) if (each.stuck) found.push(`Service ${each.service}: ${each.stuck} workers are stuck.`);
  for (const each of services) if (each.bound) found.push(`Service ${each.service}: ${each.bound}.`);
  const place = get("notes"), shown = found.slice(0, 12);
  while (place.children.length > shown.length) place.lastChild.remove();
  shown.forEach((text, i) => put(place.children[i] || make("li", "", place), text));
  show(place, shown.length > 0);
};

// --- timeline ---------------------------------------------------------------------------------------------

const timeline = (now) => {
  const svg = get("timeline"), all = [...lanes.here, ...lanes.peer];
  if (!all.length) return;
  const first = Math.min(...all.map((each) => each.at)), since = Math.max(first, now - 12 * 3600_000);
  const x = (at) => 1000 * (Math.max(at, since) - since) / Math.max(now - since, 1000);
  const parts = [];
  Object.values(lanes).forEach((lane, i) => {
    const known = lane.length ? lane[0].at : now;
    if (known > since) parts.push([0, 4 + 32 * i, x(known), "before"]);
  });
  Object.values(lanes).forEach((lane, i) => lane.forEach((each, j) => {
    const until = j + 1 < lane.length ? lane[j + 1].at : now;
    if (until >= since) parts.push([x(each.at), 4 + 32 * i, Math.max(x(until) - x(each.at), 1.5), kind(each.state)]);
  }));
  while (svg.children.length > parts.length) svg.lastChild.remove();
  parts.forEach(([left, top, width, name], i) => {
    let rect = svg.children[i];
    if (!rect) svg.append(rect = document.createElementNS("http://www.w3.org/2000/svg", "rect"));
    for (const [key, value] of Object.entries({ x: left, y: top, width, height: 24, class: name })) rect.setAttribute(key, value);
  });
  const pale = Object.values(lanes).some((lane) => lane.length && lane[0].at > since + 1000) ? ", pale: not known" : "";
  put(get("span"), `above this node, below its peer, ${lasts((now - since) / 1000)}${pale}`);
  put(get("scale").firstChild, clock(since));
  const last = (lane) => lane.length ? lane[lane.length - 1].state : "unknown";
  svg.setAttribute("aria-label", `This node is ${last(lanes.here)}, its peer ${last(lanes.peer)}; the list of changes says since when.`);
};

const changes = (history) => {
  const own = lanes.here.map((each) => ({ at: each.at, text: `this node: ${each.state}` }));
  const told = history.map((each) => ({ at: each.at / 1000, text: `${each.old} → ${each.new}, epoch ${each.epoch}: ${each.text}` +
    (each.waited_us ? ` Requests waited for at most ${lasts(each.waited_us / 1e6)}.` : "") }));
  const peers = lanes.peer.map((each) => ({ at: each.at, text: `peer: ${each.state}` }));
  const all = [...(told.length ? told : own), ...peers].sort((a, b) => b.at - a.at).slice(0, 50), place = get("changes");
  while (place.children.length > all.length) place.lastChild.remove();
  all.forEach((each, i) => put(place.children[i] || make("li", "", place), `${new Date(each.at).toLocaleString([], { hour12: false })} ${each.text}`));
};

// --- services ---------------------------------------------------------------------------------------------

const COLUMNS = [
  ["name", "service", String], ["queued", "queued", count], ["flight", "in flight", count], ["workers", "workers", count],
  ["idle", "idle", count], ["rate", "ended/s", (n) => n === null ? "-" : n < 10 ? n.toFixed(1) : count(Math.round(n))],
  ["p50", "p50", lasts], ["p99", "p99", lasts], ["wait", "oldest waits", lasts], ["bad", "ended badly", count],
  ["version", "version", (text) => text || "-"],
];
let sort = { column: 0, isUp: true }, shown = [];
const rows = new Map();

const order = (a, b) => {
  const key = COLUMNS[sort.column][0], x = a[key] ?? -1, y = b[key] ?? -1;
  const way = x < y ? -1 : x > y ? 1 : 0;
  return (sort.isUp ? way : -way) || (a.name < b.name ? -1 : 1);
};

const table = () => {
  const body = document.querySelector("tbody"), wanted = get("filter").value.toLowerCase();
  const found = shown.filter((each) => each.name.toLowerCase().includes(wanted)).sort(order);
  const names = new Set(found.map((each) => each.name));
  for (const [name, row] of rows) if (!names.has(name)) { row.remove(); rows.delete(name); }
  found.forEach((each, i) => {
    let row = rows.get(each.name);
    if (!row) {
      rows.set(each.name, row = make("tr"));
      for (const [, title] of COLUMNS) make("td", "", row).dataset.name = title;
      make("span", "", row.firstChild);
      make("small", "", row.firstChild);
    }
    COLUMNS.forEach(([key, , text], j) => put(j ? row.children[j] : row.firstChild.firstChild, text(each[key])));
    put(row.firstChild.lastChild, each.about || "");
    row.lastChild.className = each.isMixed ? "starting" : "";
    row.className = each.isBad ? "bad" : "";
    if (body.children[i] !== row) body.insertBefore(row, body.children[i] || null);
  });
};

const heads = () => {
  const row = document.querySelector("thead tr");
  COLUMNS.forEach(([, title], i) => {
    const head = row.children[i] || make("th", undefined, row);
    head.scope = "col";
    if (!head.firstChild) {
      make("button", title, head).type = "button";
      head.firstChild.addEventListener("click", () => {
        sort = { column: i, isUp: sort.column === i ? !sort.isUp : i === 0 };
        heads();
        table();
      });
    }
    const choice = get("sort").children[i] || make("option", title, get("sort"));
    choice.selected = sort.column === i;
    if (sort.column === i) head.setAttribute("aria-sort", sort.isUp ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
};

// --- parts ------------------------------------------------------------------------------------------------

const parts = (state) => {
  const store = state.store, journal = state.journal, security = state.security, disk = store && store.disk;
  const cards = [];
  if (store) {
    cards.push(["Durable store", [
      ["plays", store.is_leading ? "leads" : store.trouble ? "waits" : "follows"], ["copies", store.copies],
      ["pending", count(store.pending)], ["of them at the broker", count(store.running)],
      ["oldest pending", lasts(store.oldest_pending_s)], ["answered", count(store.answered)],
      ["dead letters", count(store.dead)], ["follower behind", `${count(store.lag_entries)} entries, ${lasts(store.lag_s)}`],
      ["bodies", `${bytesText(store.octets)} of ${bytesText(store.octets_max)}`],
      ["disk", disk && (disk.is_in_memory ? `none: ${bytesText(disk.file_bytes)} in memory, lost when both nodes have ended`
        : `${bytesText(disk.file_bytes)}, ${bytesText(disk.free_bytes)} free`)],
      ["sync, mean", disk && disk.commits ? lasts(disk.sync_sum_s / Math.max(1, disk.sync_counts.reduce((a, b) => a + b, 0))) : ""],
    ]]);
  }
  const running = (store && store.progress) || [];
  if (running.length) {
    const line = ({ done, total, text }) => count(done) + (total === null ? "" : ` of ${count(total)}`) + (text && `: ${text}`);
    cards.push(["Progress of durable requests", running.map((each) => [`${each.service} ${each.id}`, line(each.progress)])]);
  }
  for (const front of state.fronts) {
    const words = (counts) => Object.entries(counts).map(([name, n]) => [name, count(n)]);
    cards.push([`Front ${front.name}`, [...words(front.peers), ...words(front.levels), ...words(front.counts)]]);
  }
  if (security) {
    const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);
    cards.push(["Security", [
      ["connections", security.is_on ? "encrypted, authenticated" : "open to everybody who reaches the node"],
      ["principals", security.principals], ["admitted", count(security.admitted)], ["refused", count(sum(security.refusals))],
    ]]);
  }
  if (journal) {
    cards.push(["Journal", [["directory", journal.directory], ["records", count(journal.records)],
      ["dropped", count(journal.dropped)], ["errors", count(journal.errors)]]]);
  }
  const drops = Object.entries(state.broker.drops);
  if (drops.length) cards.push(["Dropped messages", drops.map(([reason, n]) => [reason, count(n)])]);
  const place = get("parts");
  while (place.children.length > cards.length) place.lastChild.remove();
  cards.forEach(([title, facts], i) => {
    let article = place.children[i];
    if (!article) { article = make("article", undefined, place); make("h2", "", article); make("dl", "", article); }
    put(article.firstChild, title);
    list(article.lastChild, facts);
  });
};

// --- the stream -------------------------------------------------------------------------------------------

const draw = (view) => {
  const state = view.state, pair = state.pair, at = view.at_ms, services = state.broker.services;
  if (node !== pair.node) { past = []; lanes = { here: [], peer: [] }; node = pair.node; }
  bounds = view.latency_bounds_s;
  while (past.length && past[0].at < at - WINDOW_MS) past.shift();
  const history = state.history;
  if (!lanes.here.length) for (const each of history) remember(lanes.here, each.at / 1000, each.new);
  if (!lanes.peer.length) for (const each of state.peer_history) remember(lanes.peer, each.at / 1000, each.state);
  remember(lanes.here, at, pair.state);
  remember(lanes.peer, at, pair.is_peer_fresh ? pair.peer_state : "SILENT");
  document.title = `${pair.state} · ${pair.role} · ${pair.pair} · bstar`;
  put(get("pair"), pair.pair);
  put(get("why"), `The ${pair.role} is ${pair.state}: ${state.readiness.why}`);
  put(get("version"), `bstar ${state.version}, ${clock(at)}`);
  nodes(state);
  notes(state, services);
  timeline(at);
  changes(history);
  shown = services.map((each) => figures(each, at));
  put(get("sum"), `${count(services.length + view.services_hidden)}, ${count(state.broker.workers)} workers, ` +
    `${count(state.broker.queued)} queued (${bytesText(state.broker.queued_bytes)}), ${count(state.broker.in_flight)} in flight, ` +
    `${count(state.broker.clients)} clients`);
  put(get("hidden"), `${count(view.services_hidden)} quieter services are not shown.`);
  show(get("hidden"), view.services_hidden > 0);
  table();
  parts(state);
  past.push({ at, services: new Map(services.map((each) => [each.service, each])) });
};

let heardAt = 0, pause = 1000;
const stale = (text) => {
  put(get("stale"), text);
  show(get("stale"), text !== "");
  document.body.classList.toggle("is-stale", text !== "");
};

const listen = () => {
  const source = new EventSource("/events");
  source.onmessage = (event) => { heardAt = Date.now(); pause = 1000; stale(""); draw(JSON.parse(event.data)); };
  source.addEventListener("trouble", (event) => { heardAt = Date.now(); stale(`The node hangs: ${JSON.parse(event.data).why}`); });
  source.onerror = () => {
    source.close();
    stale(heardAt ? `This node does not answer; what is shown is of ${clock(heardAt)}.` : "This node does not answer.");
    setTimeout(listen, pause);
    pause = Math.min(2 * pause, 10_000);
  };
};
setInterval(() => { if (heardAt && Date.now() - heardAt > 5000) stale(`No news since ${clock(heardAt)}.`); }, 1000);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && event.target !== get("filter")) { event.preventDefault(); get("filter").focus(); }
  if (event.key === "Escape" && event.target === get("filter")) { get("filter").value = ""; table(); }
});
get("filter").addEventListener("input", table);
get("sort").addEventListener("change", () => {
  const column = get("sort").selectedIndex;
  sort = { column, isUp: column === 0 };
  heads();
  table();
});
heads();
listen();
})();
