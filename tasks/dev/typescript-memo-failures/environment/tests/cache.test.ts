import assert from 'node:assert/strict';
import { Cache } from '../src/cache';
import { ManualClock } from '../src/clock';

test('remembers and forgets', () => {
  const cache = new Cache<number>({ capacity: 2, ttl: 10 });
  cache.set('a', 1);
  assert.equal(cache.get('a'), 1);
  cache.delete('a');
  assert.equal(cache.get('a'), undefined);
});

test('the least recently used goes first', () => {
  const cache = new Cache<number>({ capacity: 2, ttl: 10 });
  cache.set('a', 1);
  cache.set('b', 2);
  cache.get('a');
  cache.set('c', 3);
  assert.deepEqual([cache.get('a'), cache.get('b'), cache.get('c')], [1, undefined, 3]);
});

test('entries expire', () => {
  const clock = new ManualClock();
  const cache = new Cache<number>({ capacity: 2, ttl: 10, clock });
  cache.set('a', 1);
  clock.advance(9);
  assert.equal(cache.get('a'), 1);
  clock.advance(1);
  assert.equal(cache.get('a'), undefined);
});

test('a capacity below one is refused', () => {
  assert.throws(() => new Cache<number>({ capacity: 0, ttl: 10 }), RangeError);
});
