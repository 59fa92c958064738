import assert from 'node:assert/strict';
import { ManualClock } from '../src/clock';
import { memoizeAsync } from '../src/memo';

interface Call {
  argument: string;
  resolve: (value: string) => void;
  reject: (error: Error) => void;
}

// A function whose calls are answered by hand.
function manual(): { calls: Call[]; fn: (argument: string) => Promise<string> } {
  const calls: Call[] = [];
  const fn = (argument: string) =>
    new Promise<string>((resolve, reject) => {
      calls.push({ argument, resolve, reject });
    });
  return { calls, fn };
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

test('a failure is not remembered', async () => {
  const { calls, fn } = manual();
  const load = memoizeAsync(fn, { capacity: 5, ttl: 100 });
  const first = load('a');
  const second = load('a');
  calls[0].reject(new Error('down'));
  await assert.rejects(first, /down/);
  await assert.rejects(second, /down/);
  const third = load('a');
  assert.equal(calls.length, 2);
  calls[1].resolve('fine');
  assert.equal(await third, 'fine');
  assert.equal(await load('a'), 'fine');
  assert.equal(calls.length, 2);
});

test('a plain exception becomes a rejected promise and is not remembered', async () => {
  let calls = 0;
  const load = memoizeAsync<number>(
    () => {
      calls += 1;
      throw new Error(`bad ${calls}`);
    },
    { capacity: 5, ttl: 100 },
  );
  await assert.rejects(load('a'), /bad 1/);
  await assert.rejects(load('a'), /bad 2/);
});

test('an answer lives its full time from its arrival', async () => {
  const clock = new ManualClock();
  const { calls, fn } = manual();
  const load = memoizeAsync(fn, { capacity: 5, ttl: 60, clock });
  const first = load('a');
  clock.advance(50);
  calls[0].resolve('slow');
  await first;
  await settled();
  clock.advance(59);
  assert.equal(await load('a'), 'slow');
  clock.advance(1);
  void load('a');
  assert.equal(calls.length, 2);
});

test('a request under way is shared however long it takes', async () => {
  const clock = new ManualClock();
  const { calls, fn } = manual();
  const load = memoizeAsync(fn, { capacity: 5, ttl: 60, clock });
  const first = load('a');
  clock.advance(500);
  const second = load('a');
  assert.equal(calls.length, 1);
  calls[0].resolve('late');
  assert.deepEqual(await Promise.all([first, second]), ['late', 'late']);
});

test('a forgotten request does not bring its answer back', async () => {
  const { calls, fn } = manual();
  const load = memoizeAsync(fn, { capacity: 5, ttl: 100 });
  const old = load('a');
  load.forget('a');
  const fresh = load('a');
  assert.equal(calls.length, 2);
  calls[1].resolve('new');
  assert.equal(await fresh, 'new');
  calls[0].resolve('old');
  assert.equal(await old, 'old');
  await settled();
  assert.equal(await load('a'), 'new');
  assert.equal(calls.length, 2);
});

test('a forgotten request that fails leaves the newer one alone', async () => {
  const { calls, fn } = manual();
  const load = memoizeAsync(fn, { capacity: 5, ttl: 100 });
  const old = load('a');
  load.forget('a');
  const fresh = load('a');
  calls[0].reject(new Error('down'));
  await assert.rejects(old, /down/);
  await settled();
  assert.equal(load('a') !== undefined && calls.length, 2);
  calls[1].resolve('new');
  assert.equal(await fresh, 'new');
  assert.equal(await load('a'), 'new');
});

test('a request under way is not pushed out', async () => {
  const { calls, fn } = manual();
  const load = memoizeAsync(fn, { capacity: 1, ttl: 100 });
  const slow = load('slow');
  const other = load('other');
  calls[1].resolve('o');
  await other;
  await settled();
  void load('slow');
  assert.equal(calls.length, 2);
  calls[0].resolve('s');
  assert.equal(await slow, 's');
});

test('use decides what is pushed out', async () => {
  let calls = 0;
  const load = memoizeAsync(async (id) => `${id}${++calls}`, { capacity: 2, ttl: 100 });
  await load('a');
  await load('b');
  await load('a');
  await load('c');
  assert.equal(await load('a'), 'a1');
  assert.equal(await load('b'), 'b4');
});

test('an answer may be undefined', async () => {
  let calls = 0;
  const load = memoizeAsync<undefined>(
    async () => {
      calls += 1;
      return undefined;
    },
    { capacity: 2, ttl: 100 },
  );
  await load('a');
  await load('a');
  assert.equal(calls, 1);
});

test('a failure that everybody handles raises nothing elsewhere', async () => {
  const seen: unknown[] = [];
  const listener = (reason: unknown) => seen.push(reason);
  process.on('unhandledRejection', listener);
  const { calls, fn } = manual();
  const load = memoizeAsync(fn, { capacity: 2, ttl: 100 });
  const only = load('a');
  calls[0].reject(new Error('down'));
  await assert.rejects(only, /down/);
  await settled();
  await settled();
  process.off('unhandledRejection', listener);
  assert.deepEqual(seen, []);
});
