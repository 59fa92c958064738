import assert from 'node:assert';
import { add } from '../src/add';

test('adds', () => assert.equal(add(2, 3), 5));
test('adds nothing', () => assert.equal(add(2, 0), 2));
