// Shared by the programs of all peers in this folder: settings and measurements.

export const postgres = process.env.LEASEHOLD_BENCH_POSTGRES;
export const redis = process.env.LEASEHOLD_BENCH_REDIS;
export const tasks = Number(process.env.PEER_TASKS ?? 10000);
const seconds = Number(process.env.PEER_SECONDS ?? 0.5);
const startSeconds = Number(process.env.PEER_START_SECONDS ?? 2);

/** Separate namespace on a server. */
export const namespace = `peer_${process.pid}`;

/** Timeout of a drain; a backlog that is not drained by then counts as far as it got. */
const TIMEOUT_MS = 8000;
const INTERVAL_MS = 20;

export const sleep = (millis) => new Promise((done) => setTimeout(done, millis));

/** Repeats a call for a while; returns tasks per second. */
export async function rate(batch, call) {
  await call();
  const begun = performance.now();
  let calls = 0;
  while (performance.now() - begun < seconds * 1000) {
    await call();
    calls += 1;
  }
  return (calls * batch * 1000) / (performance.now() - begun);
}

/** Enqueues `total` tasks, 100 with each call. */
export async function fill(total, addMany) {
  for (let added = 0; added < total; added += 100) await addMany(100);
}

/** Waits until `total` tasks are done or the timeout has passed; returns tasks per second. */
export async function drained(total, done) {
  const begun = performance.now();
  const before = done();
  while (done() - before < total && performance.now() - begun < TIMEOUT_MS) await sleep(2);
  return ((done() - before) * 1000) / (performance.now() - begun);
}

/** Enqueues tasks that contain their enqueue time, 50 per second; the handler fills `waits`. */
export async function starts(waits, add) {
  await sleep(500);
  waits.length = 0;
  const ticks = Math.ceil((startSeconds * 1000) / INTERVAL_MS);
  const begun = performance.now();
  for (let tick = 0; tick < ticks; tick += 1) {
    await sleep(Math.max(0, begun + tick * INTERVAL_MS - performance.now()));
    await add({ sent: performance.now() });
  }
  const end = performance.now() + TIMEOUT_MS;
  while (waits.length < ticks && performance.now() < end) await sleep(10);
  waits.sort((a, b) => a - b);
  const at = (part) => waits[Math.min(waits.length - 1, Math.floor(waits.length * part))];
  return { p50Millis: at(0.5), p99Millis: at(0.99) };
}

/** Prints the result line and exits, because some peers keep timers running. */
export function finish(figures) {
  process.stdout.write(`${JSON.stringify(figures)}\n`, () => process.exit(0));
}
