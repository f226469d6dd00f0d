#!/usr/bin/env node
// A leasehold worker in Node, with nothing but fetch.
//
//     LEASEHOLD_URL=http://127.0.0.1:7420 LEASEHOLD_API_TOKEN=lh_... node worker.mjs sums
//
// It takes tasks from a queue, keeps its leases alive with one request for all of them, and says how each attempt ended.
// With --until-empty it ends when there is nothing left to do.

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";

const URL = process.env.LEASEHOLD_URL ?? "http://127.0.0.1:7420";
const [SLOTS, TTL, WAIT] = [4, 30, 20];
const [queue, ...rest] = process.argv.slice(2).filter((argument) => argument !== "--until-empty");
if (!queue || queue.startsWith("-") || rest.length > 0) {
  console.error("usage: worker.mjs QUEUE [--until-empty]");
  process.exit(1);
}
const untilEmpty = process.argv.includes("--until-empty");
const about = { id: randomUUID(), host: hostname(), pid: process.pid, version: "worker.mjs", queues: [queue], slots: SLOTS };
const held = new Map(); // id -> { token, progress, stop: AbortController }

// The work itself: replace it. `signal` is aborted when there is no use in going on.
async function handle(task, signal, tell) {
  let [sum, done] = [0, 0];
  for (const number of task.payload.numbers) {
    signal.throwIfAborted();
    sum += number;
    tell({ done: ++done, of: task.payload.numbers.length });
  }
  return { sum, by: "node" };
}

async function call(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (process.env.LEASEHOLD_API_TOKEN) headers.Authorization = `Bearer ${process.env.LEASEHOLD_API_TOKEN}`;
  const signal = AbortSignal.timeout((WAIT + 30) * 1000);
  const answer = await fetch(URL + path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const json = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(json.detail), { code: json.code });
  return json;
}

// One request for all leases, three times in their life, so that one that is late costs nothing.
async function beat() {
  const tasks = [...held].map(([id, { token, progress }]) => ({ id, token, progress }));
  try {
    const answer = await call("/api/v1/tasks/heartbeat", { worker: about, ttlSeconds: TTL, tasks });
    for (const { id, kept, cancel } of answer.tasks) {
      if (!kept) held.get(id)?.stop.abort("lost");
      else if (cancel) held.get(id)?.stop.abort("asked");
    }
  } catch (error) {
    console.error("a heartbeat did not get through:", error.message);
  }
}

async function work(task) {
  const stop = new AbortController();
  const mine = { token: task.token, progress: null, stop };
  held.set(task.id, mine);
  let [end, more] = ["complete", {}];
  try {
    more = { result: await handle(task, stop.signal, (progress) => (mine.progress = progress)) };
  } catch (error) {
    if (stop.signal.aborted) end = stop.signal.reason === "asked" ? "abort" : "release";
    else [end, more] = ["fail", { error: String(error) }];
  }
  try {
    // Nothing is changed by an old token: whoever has the task now is safe from us.
    await call(`/api/v1/tasks/${task.id}/${end}`, { token: task.token, ...more });
  } catch (error) {
    console.error(task.id, "was not settled:", error.code ?? error.message);
  }
  held.delete(task.id);
}

const pulse = setInterval(beat, (TTL * 1000) / 3);
const atWork = new Set();
for (;;) {
  if (atWork.size >= SLOTS) await Promise.race(atWork);
  let tasks = [];
  try {
    const ask = { worker: { ...about, busy: atWork.size }, max: SLOTS - atWork.size, ttlSeconds: TTL };
    const path = `/api/v1/queues/${encodeURIComponent(queue)}/lease`;
    ({ tasks } = await call(path, { ...ask, waitSeconds: untilEmpty ? 0 : WAIT }));
  } catch (error) {
    console.error("no tasks could be asked for:", error.message);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  for (const task of tasks) {
    const attempt = work(task).finally(() => atWork.delete(attempt));
    atWork.add(attempt);
  }
  if (untilEmpty && tasks.length === 0) {
    if (atWork.size === 0) break;
    await Promise.race(atWork);
  }
}
clearInterval(pulse);
