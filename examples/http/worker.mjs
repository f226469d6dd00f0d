#!/usr/bin/env node
// A leasehold worker in Node, with nothing but fetch.
//
//     LEASEHOLD_URL=http://127.0.0.1:7420 LEASEHOLD_API_TOKEN=lh_... node worker.mjs sums
//
// It leases tasks from a queue, renews all its leases with one heartbeat, and reports the result of each attempt.
// With --until-empty it ends when no task is left.

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
const ended = new Set(); // "id token" of attempts that ended here and may not be settled

// The work itself: replace it. `signal` is aborted when the attempt must end.
async function handle(task, signal, report) {
  let [sum, done] = [0, 0];
  for (const number of task.payload.numbers) {
    signal.throwIfAborted();
    sum += number;
    report({ done: ++done, of: task.payload.numbers.length });
  }
  return { sum, by: "node" };
}

async function call(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (process.env.LEASEHOLD_API_TOKEN) headers.Authorization = `Bearer ${process.env.LEASEHOLD_API_TOKEN}`;
  const signal = AbortSignal.timeout((WAIT + 30) * 1000);
  const method = body === undefined ? "GET" : "POST";
  const answer = await fetch(URL + path, { method, headers, body: JSON.stringify(body), signal });
  const json = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(json.detail), { code: json.code });
  return json;
}

// Sends a heartbeat for all leases every third of their ttl, so that one late heartbeat loses no lease.
async function heartbeat() {
  const tasks = [...held].map(([id, { token, progress }]) => ({ id, token, progress }));
  try {
    const answer = await call("/api/v1/tasks/heartbeat", { worker: about, ttlSeconds: TTL, tasks });
    for (const { id, kept, cancel } of answer.tasks) {
      if (!kept) held.get(id)?.stop.abort("lost");
      else if (cancel) held.get(id)?.stop.abort("asked");
    }
  } catch (error) {
    console.error("a heartbeat failed:", error.message);
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
  const attempt = `${task.id} ${task.token}`;
  ended.add(attempt);
  try {
    // The server refuses an old token: if another worker has the task now, this request changes nothing.
    await call(`/api/v1/tasks/${task.id}/${end}`, { token: task.token, ...more });
    ended.delete(attempt);
  } catch (error) {
    console.error(task.id, "was not settled:", error.code ?? error.message);
  }
  held.delete(task.id);
}

// Finds the tasks of a lease whose answer was lost: otherwise each of them would lose an attempt.
async function find() {
  const ask = { worker: about, ttlSeconds: TTL };
  const { worker } = await call("/api/v1/tasks/heartbeat", ask); // with a token, the server changes the id
  const known = new Set(held.keys());
  const query = new URLSearchParams({ queue, state: "running", worker });
  const running = (await call(`/api/v1/tasks?${query}`)).tasks;
  const tasks = running.filter(({ id, token }) => !known.has(id) && !ended.has(`${id} ${token}`));
  const leases = tasks.map(({ id, token }) => ({ id, token }));
  const answer = await call("/api/v1/tasks/heartbeat", { ...ask, tasks: leases });
  return tasks.filter((_, number) => answer.tasks[number].kept);
}

const heartbeats = setInterval(heartbeat, (TTL * 1000) / 3);
const attempts = new Set();
let inDoubt = false; // whether a lease request has failed: the server may have leased tasks
for (;;) {
  if (attempts.size >= SLOTS) await Promise.race(attempts);
  let tasks = [];
  try {
    if (inDoubt) tasks = (await find()).slice(0, SLOTS - attempts.size);
    const request = { worker: { ...about, busy: attempts.size }, max: SLOTS - attempts.size, ttlSeconds: TTL };
    const path = `/api/v1/queues/${encodeURIComponent(queue)}/lease`;
    if (tasks.length === 0) ({ tasks } = await call(path, { ...request, waitSeconds: untilEmpty ? 0 : WAIT }));
    inDoubt = false;
  } catch (error) {
    inDoubt = true;
    console.error("no tasks could be leased:", error.message);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  for (const task of tasks) {
    const attempt = work(task).finally(() => attempts.delete(attempt));
    attempts.add(attempt);
  }
  if (untilEmpty && tasks.length === 0 && !inDoubt) {
    if (attempts.size === 0) break;
    await Promise.race(attempts);
  }
}
clearInterval(heartbeats);
