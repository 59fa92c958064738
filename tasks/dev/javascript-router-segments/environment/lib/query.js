'use strict';

// { key: value } of a query string; the last of equal keys wins.
function parseQuery(text) {
  const query = {};
  for (const pair of text.split('&')) {
    if (pair === '') continue;
    const [key, ...rest] = pair.split('=');
    query[decode(key)] = decode(rest.join('='));
  }
  return query;
}

function decode(text) {
  try {
    return decodeURIComponent(text.replace(/\+/g, ' '));
  } catch {
    return text;
  }
}

module.exports = { parseQuery };
