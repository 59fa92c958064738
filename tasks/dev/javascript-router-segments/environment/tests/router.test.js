const assert = require('node:assert/strict');
const { Router } = require('../lib/router.js');

function build() {
  return new Router()
    .add('GET', '/', 'home')
    .add('GET', '/users/:id', 'user')
    .add('POST', '/users/:id', 'change')
    .add('GET', '/files/*path', 'file');
}

test('finds literal paths', () => {
  assert.equal(build().find('GET', '/').handler, 'home');
  assert.equal(build().find('GET', '/nothing'), null);
});

test('finds parameters', () => {
  assert.deepEqual(build().find('GET', '/users/7').params, { id: '7' });
});

test('a rest parameter takes many segments', () => {
  assert.deepEqual(build().find('GET', '/files/a/b/c.txt').params, { path: 'a/b/c.txt' });
});

test('the method counts', () => {
  assert.equal(build().find('POST', '/users/7').handler, 'change');
  assert.equal(build().find('DELETE', '/users/7'), null);
});

test('reads the query', () => {
  assert.deepEqual(build().find('GET', '/users/7?tab=posts&page=2').query, { tab: 'posts', page: '2' });
});

test('lists allowed methods', () => {
  assert.deepEqual(build().allowed('/users/7'), ['GET', 'POST']);
});

test('names with spaces are decoded', () => {
  assert.deepEqual(build().find('GET', '/users/ada%20l').params, { id: 'ada l' });
});
