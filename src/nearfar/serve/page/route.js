// parseHash('#/sample/3?label=2') returns {name: 'sample', rest: ['3'], query: new URLSearchParams('label=2')}.
export function parseHash(hash) {
  const [path, query] = hash.replace(/^#\/?/, '').split('?');
  const [name = '', ...rest] = path.split('/');
  return {name, rest: rest.map(decodeURIComponent), query: new URLSearchParams(query)};
}
