// What every peer shares: the order that the runner gives, the signed POST, and the talk with the runner.
//
// The runner passes one JSON argument. The peer commits its jobs, prints "ready" with its pid, waits for
// "go", and prints "done N" when N jobs are settled, or at "stop", when N are. It ends with its input:
// till then its CPU time can be read.

const crypto = require('node:crypto');
const readline = require('node:readline');
const { Agent } = require('undici');

const order = JSON.parse(process.argv[2]);
const key = Buffer.from(order.secret, 'base64');
const agent = new Agent({ connections: order.concurrency, pipelining: 1 });

/** A job's data: the address and the body, which is stored as the extension stores an event's payload. */
function job(number) {
  const bare = JSON.stringify({ number, filler: '' }).length;
  return {
    url: order.urls[number % order.urls.length],
    body: { number, filler: 'x'.repeat(order.body_bytes - bare) },
  };
}

/** One POST, signed as Standard Webhooks asks; an answer other than 2xx is an error. */
async function post(id, { url, body }) {
  const text = JSON.stringify(body);
  const timestamp = Math.floor(Date.now() / 1000);
  const signature = crypto.createHmac('sha256', key).update(`${id}.${timestamp}.${text}`).digest('base64');
  const { origin, pathname } = new URL(url);
  const { statusCode, body: answer } = await agent.request({
    origin,
    path: pathname,
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      'webhook-id': id,
      'webhook-timestamp': String(timestamp),
      'webhook-signature': `v1,${signature}`,
    },
    body: text,
  });
  await answer.dump();
  if (statusCode < 200 || statusCode > 299) throw new Error(`status ${statusCode}`);
}

/** Runs `begin` at "go"; it resolves when all is settled. `settled` tells how many are. */
async function serve(begin, settled) {
  console.log(`ready ${process.pid}`);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (line === 'stop') console.log(`done ${settled()}`);
    if (line === 'go') begin().then(() => console.log(`done ${settled()}`), fail);
  }
  process.exit(0);
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

module.exports = { order, job, post, serve, fail };
