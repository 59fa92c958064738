import assert from 'node:assert/strict';
import { ManualClock } from '../src/clock';
import { memoizeAsync } from '../src/memo';

test('asks once', async () => {
  let calls = 0;
  const load = memoizeAsync(async (id) => `${id}${++calls}`, { capacity: 5, ttl: 10 });
  assert.equal(await load('a'), 'a1');
  assert.equal(await load('a'), 'a1');
  assert.equal(await load('b'), 'b2');
});

test('overlapping calls share one', async () => {
  let calls = 0;
  const load = memoizeAsync(async () => ++calls, { capacity: 5, ttl: 10 });
  assert.deepEqual(await Promise.all([load('a'), load('a')]), [1, 1]);
});

test('asks again after forget and after expiry', async () => {
  const clock = new ManualClock();
  let calls = 0;
  const load = memoizeAsync(async () => ++calls, { capacity: 5, ttl: 10, clock });
  await load('a');
  load.forget('a');
  assert.equal(await load('a'), 2);
  clock.advance(10);
  assert.equal(await load('a'), 3);
});
