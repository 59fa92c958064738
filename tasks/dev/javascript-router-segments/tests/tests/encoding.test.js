const assert = require('node:assert/strict');
const { Router } = require('../lib/router.js');

function build() {
  return new Router()
    .add('GET', '/objects/:id', 'object')
    .add('GET', '/files/*path', 'file')
    .add('GET', '/café', 'café')
    .add('GET', '/*all', 'all');
}

function only(pattern) {
  return new Router().add('GET', pattern, 'it');
}

test('an encoded slash does not cut a segment', () => {
  assert.deepEqual(only('/objects/:id').find('GET', '/objects/a%2Fb').params, { id: 'a/b' });
});

test('an encoded question mark does not start a query', () => {
  const found = build().find('GET', '/objects/what%3F');
  assert.deepEqual(found.params, { id: 'what?' });
  assert.deepEqual(found.query, {});
});

test('a segment is decoded once', () => {
  assert.deepEqual(build().find('GET', '/objects/100%2525').params, { id: '100%25' });
});

test('a query is decoded once', () => {
  assert.deepEqual(build().find('GET', '/objects/7?q=a%26b&r=%252F').query, { q: 'a&b', r: '%2F' });
});

test('a literal is compared with the decoded segment', () => {
  assert.equal(build().find('GET', '/caf%C3%A9').handler, 'café');
});

test('a rest is decoded segment by segment', () => {
  assert.deepEqual(build().find('GET', '/files/a%20b/c%3Fd').params, { path: 'a b/c?d' });
});

test('a malformed segment matches nothing', () => {
  for (const url of ['/objects/50%', '/objects/%zz', '/files/ok/%E0%A4%A', '/%']) {
    assert.equal(build().find('GET', url), null, url);
    assert.deepEqual(build().allowed(url), [], url);
  }
});

test('a malformed query stays as it is and harms nobody', () => {
  const found = build().find('GET', '/objects/7?x=%zz');
  assert.deepEqual(found.params, { id: '7' });
  assert.deepEqual(found.query, { x: '%zz' });
});

test('a fragment is dropped and an encoded one is not', () => {
  assert.deepEqual(build().find('GET', '/objects/7#top').params, { id: '7' });
  assert.deepEqual(build().find('GET', '/objects/7?q=1#top').query, { q: '1' });
  assert.deepEqual(build().find('GET', '/objects/c%23').params, { id: 'c#' });
  assert.deepEqual(build().find('GET', '/objects/7#a?b=c').query, {});
});

test('plain paths are found as before', () => {
  assert.deepEqual(build().find('GET', '/files/a/b.txt').params, { path: 'a/b.txt' });
  assert.deepEqual(build().find('GET', '/objects/7?x=1').query, { x: '1' });
});
