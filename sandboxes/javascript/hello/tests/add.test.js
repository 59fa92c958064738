const assert = require('node:assert');
const { add } = require('../src/add');

test('adds', () => assert.equal(add(2, 3), 5));
test('adds nothing', () => assert.equal(add(2, 0), 2));
