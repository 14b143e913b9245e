// The OpenAPI description as a page, without anything from elsewhere.
import {h} from './dom.js';

const view = document.getElementById('view');
const described = await (await fetch('/api/openapi.json')).json();

const typeOf = schema => {
  if (!schema) return '';
  if (schema.$ref) return schema.$ref.split('/').at(-1);
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(' or ');
  if (schema.enum) return schema.enum.map(each => JSON.stringify(each)).join(' or ');
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === 'array')
    return schema.prefixItems ? `[${schema.prefixItems.map(typeOf).join(', ')}]` : `list of ${typeOf(schema.items)}`;
  if (schema.type === 'object' && schema.additionalProperties) return `table of ${typeOf(schema.additionalProperties)}`;
  return schema.format ?? schema.type ?? 'any';
};
const range = schema =>
  [
    ['minimum', 'from'],
    ['maximum', 'to'],
    ['default', 'default'],
  ]
    .filter(([key]) => schema?.[key] !== undefined && schema[key] !== null)
    .map(([key, word]) => `${word} ${schema[key]}`)
    .join(', ');
const table = rows =>
  h(
    'div.wide',
    {},
    h(
      'table.settings',
      {},
      h(
        'tbody',
        {},
        rows.map(([name, type, what]) =>
          h('tr', {}, h('th', {scope: 'row'}, name), h('td', {}, type), h('td', {}, what ?? '')),
        ),
      ),
    ),
  );

function operation(path, method, {description, parameters = [], requestBody, responses}) {
  const body = requestBody
    ? Object.entries(requestBody.content).map(([kind, {schema}]) => ['body', kind, typeOf(schema)])
    : [];
  const given = Object.entries(responses)
    .filter(([code]) => code !== '422')
    .map(([code, {content}]) => [
      code,
      Object.entries(content ?? {})
        .map(([kind, {schema}]) => `${kind} ${typeOf(schema)}`)
        .join(', ') || 'nothing',
    ]);
  const rows = parameters.map(each => [
    each.name,
    typeOf(each.schema),
    [each.description, range(each.schema)].filter(Boolean).join('; '),
  ]);
  return h(
    'article.operation',
    {},
    h('h3', {}, h('code', {}, `${method.toUpperCase()} ${path}`)),
    h('p', {}, description ?? ''),
    rows.length || body.length ? table([...rows, ...body]) : null,
    table(given.map(([code, what]) => [`→ ${code}`, what])),
  );
}

view.append(
  ...Object.entries(described.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, each]) => operation(path, method, each)),
  ),
  h('h2', {}, 'What the names stand for'),
  ...Object.entries(described.components.schemas)
    .filter(([, {properties}]) => properties)
    .map(([name, {description, properties}]) =>
      h(
        'article.operation',
        {id: name},
        h('h3', {}, name),
        h('p', {}, description ?? ''),
        table(Object.entries(properties).map(([key, schema]) => [key, typeOf(schema)])),
      ),
    ),
);
