'use strict';
// Run the tests of a repository and report each; started as `node run_tests.js`.
//
//     node run_tests.js [--report FILE NONCE] [TEST_FILE ...]   (default: every tests/**/*.test.{js,cjs,mjs,ts})
//
// A test file calls the global `test(name, fn)`; `fn` may be async; `test.skip(name, fn)` reports a skip. Failures are
// whatever `fn` throws (node:assert or an Error). All files run in one process, in order of their names.
// With --report: JSON lines {"id", "status", "message"} closed by {"end": n, "nonce": NONCE}. Without: one line for each failure and a
// summary. Exit code: 0 all passed, 1 something failed or broke (an early process.exit included), 2 nothing to run.
// TypeScript files are transpiled as they are loaded, unchecked, by the package that the `tsc` on PATH belongs to.
// It isn't a sandbox: it only sees to it that leaving early can't look like success.

const fs = require('fs');
const path = require('path');

const MESSAGE_LIMIT = 600;
const TEST_FILE = /\.test\.(js|cjs|mjs|ts)$/;
const root = process.cwd();
// Taken before any code of the repository runs.
const { writeFileSync, readdirSync } = fs;
const print = process.stdout.write.bind(process.stdout);
const leave = process.reallyExit.bind(process);
const { stringify } = JSON;

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
    const source = fs.readFileSync(fileName, 'utf8');
    const output = ts.transpileModule(source, { compilerOptions, fileName, reportDiagnostics: true });
    const problem = output.diagnostics[0];
    if (problem) {
      const line = source.slice(0, problem.start).split('\n').length;
      const text = ts.flattenDiagnosticMessageText(problem.messageText, ' ');
      throw new SyntaxError(`${text} (${path.relative(root, fileName)}:${line})`);
    }
    module._compile(output.outputText, fileName);
  };
}

// Rejects when nothing is left that could settle a promise: node would end there without a word.
function whenIdle() {
  return new Promise((_, reject) => {
    process.removeAllListeners('beforeExit');
    process.once('beforeExit', () => reject(new Error('waits for something that never happens')));
  });
}

async function runFile(file, records) {
  const cases = [];
  const names = new Set();
  const register = (name, fn, isSkipped) => {
    name = String(name);
    if (names.has(name)) throw new Error(`two tests are named ${stringify(name)}`);
    names.add(name);
    cases.push({ name, fn, isSkipped });
  };
  globalThis.test = Object.assign((name, fn) => register(name, fn, false), {
    skip: (name, fn) => register(name, fn, true),
  });
  const add = (id, status, message) => records.push({ id, status, message: message.slice(0, MESSAGE_LIMIT) });
  try {
    const full = path.resolve(root, file);
    if (file.endsWith('.mjs')) await import(require('url').pathToFileURL(full).href);
    else require(full);
  } catch (error) {
    add(file, 'error', describe(error));
    return;
  }
  for (const { name, fn, isSkipped } of cases) {
    const id = `${file}::${name}`;
    if (isSkipped) {
      add(id, 'skipped', '');
      continue;
    }
    try {
      const result = fn();
      if (result && typeof result.then === 'function') await Promise.race([result, whenIdle()]);
      add(id, 'passed', '');
    } catch (error) {
      add(id, error && error.code === 'ERR_ASSERTION' ? 'failed' : 'error', describe(error));
    }
  }
}

function summary(records) {
  const lines = [];
  const counts = { failed: 0, error: 0, passed: 0, skipped: 0 };
  for (const { id, status, message } of records) {
    counts[status] += 1;
    if (status === 'failed') lines.push(`FAIL ${id.slice(id.indexOf('::') + 2)}: ${message}`);
    if (status === 'error') lines.push(`ERROR ${id.slice(id.indexOf('::') < 0 ? 0 : id.indexOf('::') + 2)}: ${message}`);
  }
  const total = Object.keys(counts).filter((status) => counts[status]).map((status) => `${counts[status]} ${status}`);
  lines.push((counts.failed || counts.error ? '' : 'ok ') + total.join(', '));
  return lines.join('\n') + '\n';
}

async function main(args) {
  let report = null;
  let nonce = '';
  if (args[0] === '--report') {
    if (args.length < 3) return usage('--report needs a file name and a nonce');
    [, report, nonce, ...args] = args;
  }
  process.argv.length = 2;
  const files = args.length ? args.map((file) => path.relative(root, path.resolve(root, file))) : findTestFiles('tests');
  if (!files.length) return usage('no tests/**/*.test.{js,cjs,mjs,ts} below the current directory');
  if (files.some((file) => file.endsWith('.ts'))) loadTypeScript();
  const records = [];
  for (const file of files) await runFile(file, records);
  isComplete = true;
  if (report !== null) {
    const lines = records.map((record) => stringify(record));
    writeFileSync(report, lines.concat(stringify({ end: records.length, nonce })).join('\n') + '\n');
  } else {
    print(summary(records));
  }
  return records.length && records.every(({ status }) => status === 'passed' || status === 'skipped') ? 0 : 1;
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
