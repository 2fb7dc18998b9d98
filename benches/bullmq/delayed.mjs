// 6000 jobs are delayed until one instant, and each POSTs to a sink.
//
// node delayed.mjs add PORT COUNT INSTANT    adds the jobs; the instant is in ms since 1970
// node delayed.mjs work PORT URL CONCURRENCY delivers them until it is ended
import http from 'node:http';
import { Queue, Worker } from 'bullmq';

const [role, port, ...rest] = process.argv.slice(2);
const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };

async function add([count, instant]) {
    const queue = new Queue('timers', { connection });
    const number = (n) => String(n).padStart(7, '0');
    const job = (_, n) => ({
        name: 'report-due',
        data: { device: `pump-${number(n)}`, command: 'on' },
        opts: { jobId: `timer-${number(n)}`, delay: Number(instant) - Date.now(), removeOnComplete: true },
    });
    await queue.addBulk(Array.from({ length: Number(count) }, job));
    await queue.close();
}

function work([url, concurrency]) {
    const agent = new http.Agent({ keepAlive: true, maxSockets: Number(concurrency) });
    const post = (job) => new Promise((delivered, failed) => {
        const headers = { 'content-type': 'application/json', 'webhook-id': job.id };
        const request = http.request(url, { method: 'POST', agent, headers }, (answer) => {
            answer.resume();
            answer.on('end', delivered);
        });
        request.on('error', failed);
        request.end(JSON.stringify(job.data));
    });
    const worker = new Worker('timers', post, { connection, concurrency: Number(concurrency) });
    worker.on('ready', () => console.log('ready'));
    worker.on('failed', (job, error) => console.error(`job ${job?.id}: ${error.message}`));
}

await { add, work }[role](rest);
