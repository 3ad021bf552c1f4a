// BullMQ: one Worker in one process. Its jobs are kept when they are completed, as is its default.

const { Queue, Worker } = require('bullmq');
const { order, job, post, serve, fail } = require('./common.js');

const connection = { host: '127.0.0.1', port: order.redis_port, maxRetriesPerRequest: null };
const BATCH = 1000;
let completed = 0;

async function main() {
  const queue = new Queue('bench', { connection });
  for (let first = 0; first < order.events; first += BATCH) {
    const numbers = Array.from({ length: Math.min(BATCH, order.events - first) }, (_, n) => first + n);
    await queue.addBulk(numbers.map((number) => ({ name: 'post', data: job(number) })));
  }
  const worker = new Worker('bench', (task) => post(`msg_${task.id}`, task.data), {
    connection,
    concurrency: order.concurrency,
    autorun: false,
  });
  worker.on('error', (error) => console.error(error));
  await worker.waitUntilReady();
  const begin = () =>
    new Promise((resolve, reject) => {
      // The event comes after Redis has moved the job.
      worker.on('completed', () => { if (++completed === order.events) resolve(); });
      worker.on('failed', (_, error) => reject(error));
      worker.run().catch(reject);
    });
  await serve(begin, () => completed);
}

main().catch(fail);
