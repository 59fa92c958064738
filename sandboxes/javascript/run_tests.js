'use strict';
// Run the tests of a repository and report each; started as `node run_tests.js`.
//
//     node run_tests.js [--report FILE NONCE_FILE] [TEST_FILE ...]   (default: every tests/**/*.test.{js,cjs,mjs,ts})
//
// A test file calls the global `test(name, fn)`; `fn` may be async; `test.skip(name, fn)` reports a skip. Failures are
// whatever `fn` throws (node:assert or an Error). All files run in one process, in order of their names.
// With --report: JSON lines {"id", "status", "message"} closed by {"end": n, "seal": …}; NONCE_FILE is read and removed
// before any test. Without: one line for each failure and a summary.
// Exit code: 0 all passed, 1 something failed or broke (an early process.exit included), 2 nothing to run.
// TypeScript files are transpiled as they are loaded, unchecked, by the package that the `tsc` on PATH belongs to.
//
// It isn't a sandbox, but code under test can't change results in passing: node:assert is frozen, results are kept as
// text in a closure and made without a method that a prototype could lend, and behind each file's tests one must fail.

const fs = require('fs');
const path = require('path');
const Module = require('module');

const MESSAGE_LIMIT = 600;
const TEST_FILE = /\.test\.(js|cjs|mjs|ts)$/;
const root = process.cwd();
// Taken before any code of the repository runs.
const { readFileSync, readdirSync, unlinkSync, openSync, writeSync, closeSync } = fs;
const digest = require('crypto').createHash('sha256');
const addToDigest = digest.update.bind(digest);
const closeDigest = digest.digest.bind(digest);
const print = process.stdout.write.bind(process.stdout);
const leave = process.reallyExit.bind(process);
const { stringify } = JSON;
const { apply } = Reflect;
const compile = Module.prototype._compile;
const NativePromise = Promise;
const assert = require('assert');
Object.freeze(assert);
Object.freeze(assert.strict);

let isComplete = false;
process.reallyExit = (code) => leave(isComplete ? code : 1);
process.on('exit', () => {
  if (!isComplete) {
    print('ERROR the test process ended by an early exit\n');
    process.exitCode = 1;
  }
});

function findTestFiles(folder) {
  let entries;
  try {
    entries = readdirSync(folder, { withFileTypes: true });
  } catch {
    return [];
  }
  entries.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
  return entries.flatMap((entry) => {
    const file = path.join(folder, entry.name);
    if (entry.isDirectory()) return entry.name === 'node_modules' ? [] : findTestFiles(file);
    return TEST_FILE.test(entry.name) ? [file] : [];
  });
}

// The innermost line of the repository in the stack, as " (file:line)".
function placeOf(error) {
  const lines = String((error && error.stack) || '').split('\n');
  for (const line of lines) {
    const match = /\(?(?:file:\/\/)?(\/[^()]*):(\d+):\d+\)?$/.exec(line);
    if (match && match[1].startsWith(root + path.sep)) return ` (${path.relative(root, match[1])}:${match[2]})`;
  }
  return '';
}

function describe(error) {
  if (error && error.code === 'ERR_ASSERTION') {
    if (!error.generatedMessage) return error.message;
    if ('expected' in error && /strictEqual|deepEqual|equal/i.test(error.operator || '') && !/^not/.test(error.operator)) {
      return `expected ${show(error.expected)}, got ${show(error.actual)}`;
    }
    return error.message.split('\n')[0] + placeOf(error);
  }
  const text = error instanceof Error ? `${error.name}: ${error.message}` : `thrown ${show(error)}`;
  return text + placeOf(error);
}

function show(value) {
  return require('util').inspect(value, { depth: 4, breakLength: Infinity, maxArrayLength: 20, maxStringLength: 200 });
}

let transpile = null; // (source, file name) -> JavaScript

// Lets require() load .ts files; raises if there is no tsc, rather than run nothing.
function loadTypeScript() {
  const folders = (process.env.PATH || '').split(path.delimiter);
  const tsc = folders.map((folder) => path.join(folder, 'tsc')).find((file) => fs.existsSync(file));
  if (!tsc) throw new Error('no tsc on PATH: install TypeScript');
  const ts = require(path.join(path.dirname(fs.realpathSync(tsc)), '..', 'lib', 'typescript.js'));
  const compilerOptions = {
    module: ts.ModuleKind.CommonJS,
    target: ts.ScriptTarget.ES2022,
    esModuleInterop: true,
    inlineSourceMap: true,
  };
  process.setSourceMapsEnabled(true);
  require.extensions['.ts'] = (module, fileName) => {
    module._compile(transpile(fs.readFileSync(fileName, 'utf8'), fileName), fileName);
  };
  transpile = (source, fileName) => {
    const output = ts.transpileModule(source, { compilerOptions, fileName, reportDiagnostics: true });
    const problem = output.diagnostics[0];
    if (problem) {
      const line = source.slice(0, problem.start).split('\n').length;
      const text = ts.flattenDiagnosticMessageText(problem.messageText, ' ');
      throw new SyntaxError(`${text} (${path.relative(root, fileName)}:${line})`);
    }
    return output.outputText;
  };
}

// All test files, read before any code of the repository runs: a chain of {file, full, text, code, problem, next}.
let testFiles = null;

function readTestFile(file, next) {
  const one = { file, full: path.resolve(root, file), text: textOf(file), code: '', problem: null, next };
  try {
    if (one.text === null) throw new Error("can't be read");
    if (file.endsWith('.ts')) one.code = transpile(one.text, one.full);
    // A strict function's caller is nobody's to see.
    else one.code = `'use strict';${one.text.replace(/^#!.*/, '')}`;
  } catch (error) {
    one.problem = error;
  }
  return one;
}

// With a report they are away while code runs that could read them.
function hide() {
  for (let one = testFiles; one !== null; one = one.next) if (one.text !== null) unlinkSync(one.full);
  process.on('exit', putBack);
}

// What somebody else put there stays, to be found.
const putBackOne = ({ full, text }) => writeReport(full, text, 'wx');

function putBack() {
  for (let one = testFiles; one !== null; one = one.next) {
    try {
      if (one.text !== null) putBackOne(one);
    } catch (error) {
      process.stderr.write(`run_tests: ${error.message}\n`);
    }
  }
}

// As require() would, if the file were there.
function load({ full, code }) {
  const module = new Module(full, null);
  module.filename = full;
  module.paths = Module._nodeModulePaths(path.dirname(full));
  Module._cache[full] = module;
  apply(compile, module, [code, full]);
}

async function loadModule(one, isAway) {
  if (isAway) putBackOne(one);
  try {
    return await import(require('url').pathToFileURL(one.full).href);
  } finally {
    if (isAway) unlinkSync(one.full);
  }
}

let register = null; // of the file that is being run
const test = Object.freeze(
  Object.assign((name, fn) => register(name, fn, false), { skip: (name, fn) => register(name, fn, true) }),
);
Object.defineProperty(globalThis, 'test', { value: test });

// As `promise` settles, but rejects when nothing is left that could settle it: node would end there without a word.
// It takes part in no `then` or `race` that the code under test may have replaced.
function settled(promise) {
  return new NativePromise((resolve, reject) => {
    process.removeAllListeners('beforeExit');
    process.once('beforeExit', () => reject(new Error('waits for something that never happens')));
    (async () => {
      try {
        await promise;
        resolve();
      } catch (error) {
        reject(error);
      }
    })();
  });
}

async function outcomeOf(fn) {
  try {
    const result = fn();
    if (result && typeof result.then === 'function') await settled(result);
    return { status: 'passed', message: '' };
  } catch (error) {
    return { status: error && error.code === 'ERR_ASSERTION' ? 'failed' : 'error', message: describe(error) };
  }
}

// SHA-256 of the nonce, a newline and the text: who changes the report later can't say the same of it.
function seal(nonce, text) {
  addToDigest(`${nonce}\n${text}`);
  return closeDigest('hex');
}

// writeFileSync would call what `fs` holds by now.
function writeReport(file, text, flags = 'w') {
  const descriptor = openSync(file, flags);
  writeSync(descriptor, text);
  closeSync(descriptor);
}

const mustFail = async () => assert.strictEqual(0, 1, 'must fail');

// Strings and numbers alone: no method of an object comes between a result and the report.
const tally = { report: '', lines: '', count: 0, failed: 0, error: 0, passed: 0, skipped: 0 };

function add(id, status, message) {
  const text = message.slice(0, MESSAGE_LIMIT);
  tally.report += `{"id": ${stringify(id)}, "status": ${stringify(status)}, "message": ${stringify(text)}}\n`;
  tally.count += 1;
  tally[status] += 1;
  const name = id.slice(id.indexOf('::') < 0 ? 0 : id.indexOf('::') + 2);
  if (status === 'failed') tally.lines += `FAIL ${name}: ${text}\n`;
  if (status === 'error') tally.lines += `ERROR ${name}: ${text}\n`;
}

function textOf(file) {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return null;
  }
}

async function runFile(one, isAway) {
  const { file } = one;
  const first = { next: null }; // a chain, since an array's places can be given setters
  let last = first;
  const names = new Set();
  register = (name, fn, isSkipped) => {
    name = String(name);
    if (names.has(name)) throw new Error(`two tests are named ${stringify(name)}`);
    names.add(name);
    last = last.next = { name, fn, isSkipped, next: null };
  };
  try {
    if (one.problem !== null) throw one.problem;
    if (file.endsWith('.mjs')) await loadModule(one, isAway);
    else load(one);
  } catch (error) {
    add(file, 'error', describe(error));
    return;
  }
  for (let at = first.next; at !== null; at = at.next) {
    const { status, message } = at.isSkipped ? { status: 'skipped', message: '' } : await outcomeOf(at.fn);
    add(`${file}::${at.name}`, status, message);
  }
}

function summary() {
  const total = ['failed', 'error', 'passed', 'skipped'].filter((status) => tally[status]);
  const counts = total.map((status) => `${tally[status]} ${status}`).join(', ');
  return `${tally.lines}${tally.failed || tally.error ? '' : 'ok '}${counts}\n`;
}

async function main(args) {
  let report = null;
  let nonce = '';
  if (args[0] === '--report') {
    if (args.length < 3) return usage("--report needs a file name and a nonce's file");
    report = args[1];
    nonce = readFileSync(args[2], 'utf8').trim();
    unlinkSync(args[2]);
    args = args.slice(3);
  }
  process.argv.length = 2;
  const files = args.length ? args.map((file) => path.relative(root, path.resolve(root, file))) : findTestFiles('tests');
  if (!files.length) return usage('no tests/**/*.test.{js,cjs,mjs,ts} below the current directory');
  if (files.some((file) => file.endsWith('.ts'))) loadTypeScript();
  for (const file of files.reverse()) testFiles = readTestFile(file, testFiles);
  if (report !== null) hide();
  let isGenuine = true;
  for (let one = testFiles; one !== null; one = one.next) {
    await runFile(one, report !== null);
    isGenuine = (await outcomeOf(mustFail)).status === 'failed' && isGenuine;
  }
  if (report !== null) putBack();
  isComplete = true;
  if (!isGenuine) print('ERROR a test that must fail did not: the code changes how tests are judged\n');
  else if (report === null) print(summary());
  else writeReport(report, `${tally.report}{"end": ${tally.count}, "seal": ${stringify(seal(nonce, tally.report))}}\n`);
  return isGenuine && tally.count > 0 && tally.failed + tally.error === 0 ? 0 : 1;
}

function usage(problem) {
  isComplete = true;
  process.stderr.write(`run_tests: ${problem}\n`);
  return 2;
}

main(process.argv.slice(2)).then(
  (code) => leave(code), // at once: a timer or a socket that the tests left open doesn't hold the run
  (error) => {
    process.stderr.write(`run_tests: ${error && error.stack}\n`);
    leave(1);
  },
);
