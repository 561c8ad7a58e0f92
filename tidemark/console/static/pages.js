// The pages but that of records: each makes nodes of an answer of /api/.

import { ago, badge, bytes, cards, count, el, notes, notice, svg, table, text, time, troubled }
  from "./dom.js";

export function link(to, ...parts) {
  return `#/${[to, ...parts.map((part) => encodeURIComponent(part))].join("/")}`;
}

const topicLink = (row) => el("a", { href: link("topic", row.topic) }, row.topic);
const nodes = (ids) => (ids && ids.length ? ids.join(", ") : "–");

function search(path, parameters, label) {
  const input = el("input", {
    type: "search", name: "contains", value: parameters.contains, placeholder: "part of a name",
  });
  const go = (event) => {
    event.preventDefault();
    location.hash = input.value ? `${path}?contains=${encodeURIComponent(input.value)}` : path;
  };
  return el("form", { role: "search", onsubmit: go },
    el("label", {}, label, input), el("button", { type: "submit" }, "Search"));
}

export function overview(data) {
  const wrong = [];
  if (data.offline) wrong.push(`${count(data.offline)} partitions have no leader`);
  if (data.under_replicated) {
    wrong.push(`${count(data.under_replicated)} partitions lack replicas in sync`);
  }
  if (data.fenced) wrong.push(`${count(data.fenced)} brokers are fenced`);
  if (data.failed_directories) {
    wrong.push(`${count(data.failed_directories)} log directories have failed`);
  }
  return [
    el("h1", {}, "Overview"),
    notes(data),
    wrong.length
      ? notice(data.offline ? "bad" : "warn", "This needs a look", wrong.join("; "))
      : notice("good", "Nothing is wrong here", "Every partition is led and fully replicated."),
    cards([
      ["Brokers", count(data.brokers), data.fenced ? `${count(data.fenced)} fenced` : "all active"],
      ["Topics", count(data.topics), `and ${count(data.internal_topics)} internal`],
      ["Partitions", count(data.partitions), `${count(data.not_preferred)} not on preferred leader`],
      ["Without a leader", troubled(data.offline)],
      ["Under-replicated", troubled(data.under_replicated, "warn")],
      ["Groups", count(data.groups)],
      ["On disk", bytes(data.bytes), "of leaders"],
      ["In the tier", bytes(data.remote_bytes)],
      ["Active controller", text(data.controller)],
      ["Cluster", el("code", {}, data.cluster_id), `version ${data.version}`, true],
    ]),
  ];
}

export function brokers(data) {
  const state = (row) => badge(row.state, row.state === "active" ? "good" : "bad");
  const disk = (row) =>
    row.state === "online"
      ? badge("online", "good")
      : [badge(row.state, "bad"), " ", row.message];
  return [
    el("h1", {}, "Brokers"),
    notes(data),
    table("brokers", "Brokers", [
      { title: "Broker", key: "broker" },
      { title: "Address", key: "address" },
      { title: "Rack", key: "rack" },
      { title: "State", key: "state", show: state },
      { title: "Leads", key: "leads", number: true },
      { title: "Replicas", key: "replicas", number: true },
      { title: "In sync", key: "in_sync", number: true },
      { title: "On disk", key: "bytes", number: true, show: (row) => bytes(row.bytes) },
    ], data.brokers, "No broker is registered yet"),
    el("h2", {}, "Log directories"),
    table("directories", "Log directories", [
      { title: "Broker", key: "broker" },
      { title: "Directory", key: "directory", show: (row) => el("code", {}, row.directory) },
      { title: "State", key: "state", show: disk },
      { title: "Replicas", key: "replicas", number: true },
      { title: "Free", key: "usable_bytes", number: true, show: (row) => bytes(row.usable_bytes) },
      { title: "Size", key: "total_bytes", number: true, show: (row) => bytes(row.total_bytes) },
    ], data.directories, "No broker told of its directories"),
  ];
}

export function topics(data, _, parameters) {
  return [
    el("h1", {}, "Topics"),
    search("#/topics", parameters, "Topics with"),
    notes(data),
    table("topics", "Topics", [
      { title: "Topic", key: "topic", show: topicLink },
      { title: "Partitions", key: "partitions", number: true },
      { title: "Replication", key: "replication", number: true },
      { title: "No leader", key: "offline", number: true, show: (row) => troubled(row.offline) },
      { title: "Under-replicated", key: "under_replicated", number: true,
        show: (row) => troubled(row.under_replicated, "warn") },
      { title: "Offsets", key: "records", number: true },
      { title: "On disk", key: "bytes", number: true, show: (row) => bytes(row.bytes) },
      { title: "In the tier", key: "remote_bytes", number: true,
        show: (row) => bytes(row.remote_bytes) },
    ], data.topics, parameters.contains ? "No topic has that in its name" : "No topics yet"),
  ];
}

export function topic(data) {
  const leader = (row) => (row.leader === null ? badge("none", "bad") : String(row.leader));
  const inSync = (row) =>
    row.isr.length < row.replicas.length ? badge(nodes(row.isr), "warn") : nodes(row.isr);
  return [
    el("h1", {}, data.topic, " ", el("span", { class: "quiet" }, `id ${data.topic_id}`)),
    notes(data),
    table(`topic ${data.topic}`, "Partitions", [
      { title: "Partition", key: "partition" },
      { title: "Leader", key: "leader", show: leader },
      { title: "Epoch", key: "leader_epoch", number: true },
      { title: "Replicas", of: (row) => nodes(row.replicas) },
      { title: "In sync", of: (row) => nodes(row.isr), show: inSync },
      { title: "Log start", key: "log_start", number: true },
      { title: "High watermark", key: "high_watermark", number: true },
      { title: "Log end", key: "log_end", number: true },
      { title: "On disk", key: "bytes", number: true, show: (row) => bytes(row.bytes) },
      { title: "Records", of: (row) => row.partition,
        show: (row) => el("a", { href: link("records", data.topic, row.partition),
          "aria-label": `Browse partition ${row.partition}` }, "browse") },
    ], data.rows, "The topic has no partitions"),
    el("h2", {}, "Settings of the topic"),
    table("configs", "Settings", [
      { title: "Setting", key: "name", show: (row) => el("code", {}, row.name) },
      { title: "Value", key: "value", show: (row) => el("code", {}, row.value) },
    ], { rows: data.configs, rows_left_out: 0 }, "It has the brokers' defaults"),
  ];
}

export function tier(data, _, parameters) {
  return [
    el("h1", {}, "Tier"),
    search("#/tier", parameters, "Topics with"),
    notes(data),
    table("tier", "Tiered partitions", [
      { title: "Topic", key: "topic", show: topicLink },
      { title: "Partition", key: "partition" },
      { title: "Log start", key: "log_start", number: true },
      { title: "Local from", key: "local_start", number: true },
      { title: "Tiered to", key: "tiered_to", number: true },
      { title: "Log end", key: "log_end", number: true },
      { title: "In the tier", key: "remote_bytes", number: true,
        show: (row) => bytes(row.remote_bytes) },
      { title: "Local", key: "local_bytes", number: true, show: (row) => bytes(row.local_bytes) },
      { title: "To copy", key: "lag_bytes", number: true,
        show: (row) => (row.lag_bytes ? badge(bytes(row.lag_bytes), "warn") : bytes(row.lag_bytes)) },
    ], data.partitions, "No topic has remote.storage.enable=true"),
  ];
}

export function groups(data, _, parameters) {
  return [
    el("h1", {}, "Groups"),
    search("#/groups", parameters, "Groups with"),
    table("groups", "Groups", [
      { title: "Group", key: "group",
        show: (row) => el("a", { href: link("group", row.group) }, row.group) },
      { title: "State", key: "state",
        show: (row) => badge(row.state, row.state === "Stable" ? "good" : "") },
      { title: "Type", key: "type" },
      { title: "Partitions", key: "partitions", number: true },
      { title: "Lag", key: "lag", number: true },
    ], data.groups, parameters.contains ? "No group has that in its id" : "No groups yet"),
  ];
}

export function group(data) {
  return [
    el("h1", {}, data.group),
    cards([
      ["State", text(data.state)],
      ["Lag", count(data.lag), "offsets"],
      ["Members", count(data.members.rows.length)],
      ["Group epoch", count(data.epoch), data.assignor],
    ]),
    el("h2", {}, "Offsets"),
    table(`group ${data.group}`, "Offsets", [
      { title: "Topic", key: "topic", show: topicLink },
      { title: "Partition", key: "partition" },
      { title: "Offset", key: "offset", number: true },
      { title: "End", key: "end", number: true },
      { title: "Lag", key: "lag", number: true },
      { title: "Client", key: "client" },
      { title: "Member", key: "member", show: (row) => el("code", {}, text(row.member)) },
    ], data.partitions, "The group has neither offsets nor partitions"),
    el("h2", {}, "Members"),
    table(`members ${data.group}`, "Members", [
      { title: "Member", key: "member", show: (row) => el("code", {}, row.member) },
      { title: "Client", key: "client" },
      { title: "Host", key: "host" },
      { title: "Epoch", key: "epoch", number: true },
      { title: "Subscribed to", key: "subscribed" },
      { title: "Partitions", key: "assigned", number: true },
      { title: "To have", key: "target", number: true },
    ], data.members, "Nobody is in the group"),
  ];
}

const colourOf = (leader) => (leader === null ? "fn" : `f${leader % 6}`);
const nameOf = (leader) => (leader === null ? "no leader" : `node ${leader}`);

function chart(changes) {
  const began = changes[0].began_ms;
  const span = Math.max(1, changes[changes.length - 1].ended_ms - began);
  const leaders = [...new Set(changes.map((one) => one.leader))];
  return [
    svg("svg", { class: "timeline", viewBox: "0 0 1000 10", preserveAspectRatio: "none",
      role: "img", "aria-label": `Leaders of the quorum during ${ago(span)}` },
      changes.map((one) =>
        svg("rect", { class: `${colourOf(one.leader)} edge`, y: 0, height: 10,
          x: (1000 * (one.began_ms - began)) / span,
          width: Math.max(1.5, (1000 * (one.ended_ms - one.began_ms)) / span) },
          svg("title", {}, `${nameOf(one.leader)}, epoch ${one.epoch}, ${time(one.began_ms)}`)))),
    el("div", { class: "legend" }, leaders.map((leader) =>
      el("span", {}, svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" },
        svg("rect", { class: colourOf(leader), width: 12, height: 12, rx: 3 })), nameOf(leader)))),
  ];
}

export function quorum(data) {
  const changes = data.timeline.changes;
  const role = (row) => badge(row.role, row.role === "leader" ? "good" : "");
  const isSilent = (row) => row.fetched_ms_ago === null || row.fetched_ms_ago > 10000;
  const damage = (row) => (row.damage === "none" ? "none" : badge(row.damage, "bad"));
  return [
    el("h1", {}, "Quorum"),
    cards([
      ["Leader", data.leader === null ? badge("none", "bad") : text(data.leader)],
      ["Epoch", count(data.epoch)],
      ["High watermark", count(data.high_watermark)],
      ["Elections seen", count(Math.max(0, new Set(changes.map((one) => one.epoch)).size - 1)),
        "since the console started"],
    ]),
    el("h2", {}, "Voters and observers"),
    table("quorum", "Voters and observers", [
      { title: "Node", key: "node" },
      { title: "Role", key: "role", show: role },
      { title: "Address", key: "address" },
      { title: "Log end", key: "log_end", number: true },
      { title: "Lag", key: "lag", number: true },
      { title: "Last fetch", key: "fetched_ms_ago", number: true,
        show: (row) => (isSilent(row) ? badge(row.fetched_ms_ago === null ? "not seen" : ago(row.fetched_ms_ago), "warn")
          : ago(row.fetched_ms_ago)) },
      { title: "Caught up", key: "caught_up_ms_ago", number: true,
        show: (row) => ago(row.caught_up_ms_ago) },
      { title: "Damage", key: "damage", show: damage },
    ], data.replicas, "The quorum told of no replica"),
    el("h2", {}, "Timeline"),
    changes.length ? chart(changes) : el("p", { class: "quiet" }, "The quorum was not seen yet"),
    data.timeline.forgotten
      ? el("p", { class: "quiet" }, `${count(data.timeline.forgotten)} earlier changes are forgotten`)
      : null,
    changes.length
      ? table("timeline", "Changes of the quorum", [
          { title: "Seen at (UTC)", key: "began_ms", show: (row) => time(row.began_ms) },
          { title: "Epoch", key: "epoch", number: true },
          { title: "Leader", of: (row) => nameOf(row.leader) },
          { title: "For", of: (row) => row.ended_ms - row.began_ms, number: true,
            show: (row) => ago(row.ended_ms - row.began_ms) },
          { title: "High watermark", key: "high_watermark", number: true },
          { title: "Voters", of: (row) => nodes(row.voters) },
        ], { rows: [...changes].reverse(), rows_left_out: 0 }, "")
      : null,
  ];
}
