const assert = require('node:assert/strict');
const { parseQuery } = require('../lib/query.js');

test('plus is a space', () => {
  assert.deepEqual(parseQuery('q=a+b'), { q: 'a b' });
});

test('a value may hold an equals sign', () => {
  assert.deepEqual(parseQuery('x=1=2'), { x: '1=2' });
});

test('what cannot be decoded stays as it is', () => {
  assert.deepEqual(parseQuery('x=%zz'), { x: '%zz' });
});
