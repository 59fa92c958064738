'use strict';

const { compile, match } = require('./pattern.js');
const { parseQuery } = require('./query.js');

class Router {
  constructor() {
    this.routes = [];
  }

  // Later routes don't replace earlier ones: the first that matches is found.
  add(method, pattern, handler) {
    this.routes.push({ method, parts: compile(pattern), handler });
    return this;
  }

  find(method, url) {
    const { path, query } = split(url);
    for (const route of this.routes) {
      if (route.method !== method) continue;
      const params = match(route.parts, path);
      if (params) return { handler: route.handler, params, query: parseQuery(query) };
    }
    return null;
  }

  // The methods that some route answers for this path, sorted, each once.
  allowed(url) {
    const { path } = split(url);
    const methods = this.routes.filter((route) => match(route.parts, path)).map((route) => route.method);
    return [...new Set(methods)].sort();
  }
}

function split(url) {
  const decoded = decodeURIComponent(url);
  const mark = decoded.indexOf('?');
  if (mark < 0) return { path: decoded, query: '' };
  return { path: decoded.slice(0, mark), query: decoded.slice(mark + 1) };
}

module.exports = { Router };
