// What the programs of all peers in this folder share: how much is asked for, and how it is measured.

export const postgres = process.env.LEASEHOLD_BENCH_POSTGRES;
export const redis = process.env.LEASEHOLD_BENCH_REDIS;
export const tasks = Number(process.env.PEER_TASKS ?? 10000);
const seconds = Number(process.env.PEER_SECONDS ?? 0.5);
const startSeconds = Number(process.env.PEER_START_SECONDS ?? 2);

/** A name of its own on a server. */
export const space = `peer_${process.pid}`;

/** A backlog that is not worked off by then counts as far as it got. */
const PATIENCE_MS = 8000;
const EVERY_MS = 20;

export const sleep = (millis) => new Promise((done) => setTimeout(done, millis));

/** Calls one after the other for a while; tasks per second. */
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

/** Adds so many, 100 with each call. */
export async function fill(total, addMany) {
  for (let added = 0; added < total; added += 100) await addMany(100);
}

/** From now until so many are done, or the patience is over; tasks per second. */
export async function drained(total, done) {
  const begun = performance.now();
  const before = done();
  while (done() - before < total && performance.now() - begun < PATIENCE_MS) await sleep(2);
  return ((done() - before) * 1000) / (performance.now() - begun);
}

/** Adds tasks that say when they were added, 50 a second; `waits` is filled by the handler. */
export async function starts(waits, add) {
  await sleep(500);
  waits.length = 0;
  const ticks = Math.ceil((startSeconds * 1000) / EVERY_MS);
  const begun = performance.now();
  for (let tick = 0; tick < ticks; tick += 1) {
    await sleep(Math.max(0, begun + tick * EVERY_MS - performance.now()));
    await add({ sent: performance.now() });
  }
  const end = performance.now() + PATIENCE_MS;
  while (waits.length < ticks && performance.now() < end) await sleep(10);
  waits.sort((a, b) => a - b);
  const at = (part) => waits[Math.min(waits.length - 1, Math.floor(waits.length * part))];
  return { p50Millis: at(0.5), p99Millis: at(0.99) };
}

/** The one line that is read, and the end: some peers keep timers that nobody waits for. */
export function finish(figures) {
  process.stdout.write(`${JSON.stringify(figures)}\n`, () => process.exit(0));
}
