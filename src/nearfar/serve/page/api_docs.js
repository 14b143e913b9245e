// Shows the OpenAPI description of the JSON API as a page.
import {h} from './dom.js';

const view = document.getElementById('view');
const openapi = await (await fetch('/api/openapi.json')).json();

const typeOf = schema => {
  if (!schema) return '';
  if (schema.$ref) return schema.$ref.split('/').at(-1);
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(' or ');
  if (schema.enum) return schema.enum.map(value => JSON.stringify(value)).join(' or ');
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === 'array')
    return schema.prefixItems ? `[${schema.prefixItems.map(typeOf).join(', ')}]` : `list of ${typeOf(schema.items)}`;
  if (schema.type === 'object' && schema.additionalProperties) return `map to ${typeOf(schema.additionalProperties)}`;
  return schema.format ?? schema.type ?? 'any';
};
const limitsOf = schema =>
  ['minimum', 'maximum', 'default']
    .filter(key => schema?.[key] !== undefined && schema[key] !== null)
    .map(key => `${key} ${schema[key]}`)
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
        rows.map(([name, type, description]) =>
          h('tr', {}, h('th', {scope: 'row'}, name), h('td', {}, type), h('td', {}, description ?? '')),
        ),
      ),
    ),
  );

function operation(path, method, {description, parameters = [], requestBody, responses}) {
  const body = requestBody
    ? Object.entries(requestBody.content).map(([type, {schema}]) => ['body', type, typeOf(schema)])
    : [];
  const results = Object.entries(responses)
    .filter(([status]) => status !== '422')
    .map(([status, {content}]) => [
      `→ ${status}`,
      Object.entries(content ?? {})
        .map(([type, {schema}]) => `${type} ${typeOf(schema)}`)
        .join(', ') || 'empty',
    ]);
  const rows = parameters.map(parameter => [
    parameter.name,
    typeOf(parameter.schema),
    [parameter.description, limitsOf(parameter.schema)].filter(Boolean).join('; '),
  ]);
  return h(
    'article.operation',
    {},
    h('h3', {}, h('code', {}, `${method.toUpperCase()} ${path}`)),
    h('p', {}, description ?? ''),
    rows.length || body.length ? table([...rows, ...body]) : null,
    table(results),
  );
}

view.append(
  ...Object.entries(openapi.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, description]) => operation(path, method, description)),
  ),
  h('h2', {}, 'Objects'),
  ...Object.entries(openapi.components.schemas)
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
