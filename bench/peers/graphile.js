// graphile-worker: one pool in one process, with the batching that its page on performance recommends. A
// job that is completed is deleted, so a job that is gone is settled.

const { Client } = require('pg');
const { Logger, run, runMigrations } = require('graphile-worker');
const { order, job, post, serve, fail } = require('./common.js');

const quiet = new Logger(() => (level, message) => { if (level === 'error') console.error(message); });
const BATCH = 1000;
let posted = 0;

async function main() {
  const connectionString = order.database;
  await runMigrations({ connectionString, logger: quiet });
  const client = new Client({ connectionString });
  await client.connect();
  for (let first = 0; first < order.events; first += BATCH) {
    const jobs = Array.from({ length: Math.min(BATCH, order.events - first) }, (_, n) => ({
      identifier: 'post',
      payload: job(first + n),
    }));
    await client.query(
      `SELECT graphile_worker.add_jobs(array(
           SELECT json_populate_record(null::graphile_worker.job_spec, spec)
           FROM json_array_elements($1::json) spec))`,
      [JSON.stringify(jobs)],
    );
  }
  const left = async () => {
    const { rows } = await client.query('SELECT count(*)::int AS jobs FROM graphile_worker._private_jobs');
    return rows[0].jobs;
  };

  let settled = 0;
  const begin = async () => {
    const all = new Promise((resolve) => {
      const taskList = {
        post: async (payload, { job: { id } }) => {
          await post(`msg_${id}`, payload);
          if (++posted === order.events) resolve();
        },
      };
      run({
        taskList,
        preset: {
          worker: {
            connectionString,
            maxPoolSize: 20,
            logger: quiet,
            concurrentJobs: order.concurrency,
            localQueue: { size: order.concurrency + 1 },
            completeJobBatchDelay: 0,
            failJobBatchDelay: 0,
          },
        },
        noHandleSignals: true,
      }).catch(fail);
    });
    await all;
    // The last batches are still on their way to the table.
    while ((await left()) > 0) await new Promise((resolve) => setTimeout(resolve, 5));
    settled = order.events;
  };
  await serve(begin, () => settled || posted);
}

main().catch(fail);
