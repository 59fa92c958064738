'use strict';

// A compiled pattern is a list of parts: { kind: 'literal' | 'param' | 'rest', text }.
function compile(pattern) {
  if (!pattern.startsWith('/')) throw new Error(`a pattern starts with "/": ${pattern}`);
  const segments = pattern.split('/').slice(1);
  return segments.map((segment, index) => {
    if (segment.startsWith(':')) return { kind: 'param', text: segment.slice(1) };
    if (segment.startsWith('*')) {
      if (index !== segments.length - 1) throw new Error(`"*" must come last: ${pattern}`);
      return { kind: 'rest', text: segment.slice(1) };
    }
    return { kind: 'literal', text: segment };
  });
}

// The parameters if `path` matches, else null.
function match(parts, path) {
  const segments = path.split('/').slice(1);
  const params = {};
  for (let index = 0; index < parts.length; index += 1) {
    const { kind, text } = parts[index];
    if (kind === 'rest') {
      params[text] = segments.slice(index).join('/');
      return params;
    }
    if (index >= segments.length) return null;
    if (kind === 'literal' && segments[index] !== text) return null;
    if (kind === 'param') params[text] = segments[index];
  }
  return segments.length === parts.length ? params : null;
}

module.exports = { compile, match };
