// Hands a timeline to Perfetto in another tab of the browser, which answers PING with PONG.

const PERFETTO_PATIENCE = 20_000;
const EVERY = 200;

/** The spans as Chrome trace events; units of a plan's clock count as milliseconds. */
export function traceOf({ lanes, keys, spans, words, unit }) {
  const microseconds = unit === "s" ? 1e6 : 1e3;
  const groups = [...new Set(lanes.map(({ group }) => group))];
  const named = lanes.flatMap(({ group, name }, tid) => [
    { ph: "M", name: "process_name", pid: groups.indexOf(group), args: { name: group || "timeline" } },
    { ph: "M", name: "thread_name", pid: groups.indexOf(group), tid, args: { name } }]);
  const events = spans.map(([tid, key, start, stop, at]) => ({ ph: "X", name: words[at],
    cat: keys[key].name, pid: groups.indexOf(lanes[tid].group), tid, ts: start * microseconds,
    dur: (stop - start) * microseconds }));
  return { traceEvents: [...named, ...events], displayTimeUnit: "ms" };
}

export function openInPerfetto(data) {
  const opened = window.open(data.perfetto);
  if (!opened) return;
  const buffer = new TextEncoder().encode(JSON.stringify(traceOf(data))).buffer;
  const asking = setInterval(() => opened.postMessage("PING", data.perfetto), EVERY);
  const stop = () => {
    clearInterval(asking);
    window.removeEventListener("message", answered);
  };
  const answered = (event) => {
    if (event.source !== opened || event.data !== "PONG") return;
    stop();
    opened.postMessage({ perfetto: { buffer, title: "mimokit" } }, data.perfetto);
  };
  window.addEventListener("message", answered);
  setTimeout(stop, PERFETTO_PATIENCE);
}
