// BullMQ: its worker with default settings, one job at a time, and with a concurrency of 100.
import { Queue, Worker } from 'bullmq';
import { drained, fill, finish, rate, redis, namespace, starts, tasks } from './common.mjs';

const { hostname, port } = new URL(redis);
const connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null };
const queue = new Queue('noop', { connection, prefix: namespace });
queue.on('error', () => {});

const addOne = (payload = { sent: 0 }) => queue.add('noop', payload);
const addMany = (count) =>
  queue.addBulk(Array.from({ length: count }, () => ({ name: 'noop', data: { sent: 0 } })));
const empty = () => queue.obliterate({ force: true, count: 100000 });

let done = 0;
const waits = [];
const handler = async ({ data }) => {
  if (data.sent > 0) waits.push(performance.now() - data.sent);
};
async function work(options) {
  const worker = new Worker('noop', handler, { connection, prefix: namespace, autorun: false, ...options });
  worker.on('completed', () => (done += 1));
  worker.on('error', () => {});
  await worker.waitUntilReady();
  // Closing the worker cuts its connections, which must not end the measurement.
  worker.run().catch(() => {});
  return worker;
}

const figures = {};
figures.enqueue = await rate(1, () => addOne());
figures.bulk = await rate(100, () => addMany(100));
await empty();
for (const [name, options] of [['drainDefault', {}], ['drainTuned', { concurrency: 100 }]]) {
  await fill(tasks, addMany);
  const drain = drained(tasks, () => done);
  const worker = await work(options);
  figures[name] = await drain;
  await worker.close();
  await empty();
}
const worker = await work({ concurrency: 100 });
Object.assign(figures, await starts(waits, addOne));
await worker.close();
await empty();
finish(figures);
