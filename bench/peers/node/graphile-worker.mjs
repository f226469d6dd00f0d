// graphile-worker: jobs from its utilities, drained by its runner with default settings and with batched completion.
import { Logger, makeWorkerUtils, run } from 'graphile-worker';
import pg from 'pg';
import { drained, fill, finish, postgres, rate, namespace, starts, tasks } from './common.mjs';

const pool = new pg.Pool({ connectionString: postgres, max: 30 });
const utils = await makeWorkerUtils({ pgPool: pool, schema: namespace });
await utils.migrate();

const addOne = (payload = { sent: 0 }) => utils.addJob('noop', payload);
const addMany = (count) =>
  utils.addJobs(Array.from({ length: count }, () => ({ identifier: 'noop', payload: { sent: 0 } })));
const empty = () => pool.query(`DELETE FROM ${namespace}._private_jobs`);

let done = 0;
const waits = [];
const taskList = {
  noop: async ({ sent }) => {
    if (sent > 0) waits.push(performance.now() - sent);
    done += 1;
  },
};
const logger = new Logger(() => () => {});
const start = (options) =>
  run({ pgPool: pool, schema: namespace, taskList, noHandleSignals: true, logger, ...options });
const tuned = {
  preset: {
    worker: {
      concurrentJobs: 24,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
};

const figures = {};
figures.enqueue = await rate(1, () => addOne());
figures.bulk = await rate(100, () => addMany(100));
await empty();
for (const [name, options] of [['drainDefault', {}], ['drainTuned', tuned]]) {
  await fill(tasks, addMany);
  const work = drained(tasks, () => done);
  const runner = await start(options);
  figures[name] = await work;
  await runner.stop();
  await empty();
}
const runner = await start({});
Object.assign(figures, await starts(waits, addOne));
await runner.stop();
await pool.query(`DROP SCHEMA ${namespace} CASCADE`);
finish(figures);
