// pg-boss: its worker with default settings, and a loop of fetch and complete with 100 jobs at a time.
import pg from 'pg';
import { drained, fill, finish, postgres, rate, namespace, starts, tasks } from './common.mjs';

const module = await import('pg-boss');
const PgBoss = module.PgBoss ?? module.default;
const boss = new PgBoss({ connectionString: postgres, schema: namespace });
boss.on('error', () => {});
await boss.start();
await boss.createQueue('noop');

const addOne = (payload = { sent: 0 }) => boss.send('noop', payload);
const many = (count) => Array.from({ length: count }, () => ({ name: 'noop', data: { sent: 0 } }));
const addMany = (count) => (boss.insert.length > 1 ? boss.insert('noop', many(count)) : boss.insert(many(count)));
const client = new pg.Client({ connectionString: postgres });
await client.connect();
const empty = () => client.query(`DELETE FROM ${namespace}.job`);

let done = 0;
const waits = [];
const handler = async (jobs) => {
  for (const { data } of jobs) {
    if (data.sent > 0) waits.push(performance.now() - data.sent);
    done += 1;
  }
};

const figures = {};
figures.enqueue = await rate(1, () => addOne());
figures.bulk = await rate(100, () => addMany(100));
await empty();

await fill(tasks, addMany);
const byWorker = drained(tasks, () => done);
await boss.work('noop', handler);
figures.drainDefault = await byWorker;
await boss.offWork('noop');
await empty();

await fill(tasks, addMany);
const byLoop = drained(tasks, () => done);
for (;;) {
  const jobs = await boss.fetch('noop', { batchSize: 100 });
  if (!jobs || jobs.length === 0) break;
  await boss.complete('noop', jobs.map((job) => job.id));
  done += jobs.length;
}
figures.drainTuned = await byLoop;

await boss.work('noop', { batchSize: 100, pollingIntervalSeconds: 0.5 }, handler);
Object.assign(figures, await starts(waits, addOne));
await boss.stop({ graceful: false });
await client.query(`DROP SCHEMA ${namespace} CASCADE`);
finish(figures);
