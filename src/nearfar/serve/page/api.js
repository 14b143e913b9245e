// The JSON API; `Failed` is what the server, or its absence, says.
export class Failed extends Error {}

async function answer(response) {
  if (response.ok && response.status !== 202) return response;
  let detail = response.statusText;
  try {
    detail = (await response.json()).detail;
  } catch {
    /* not JSON: the status line has to do */
  }
  if (response.status === 202) return null;
  throw new Failed(
    response.status === 401 ? 'The token is missing: open the address that the server printed.' : detail,
  );
}

async function ask(path, options) {
  try {
    return await answer(await fetch(path, options));
  } catch (error) {
    if (error instanceof Failed || error.name === 'AbortError') throw error;
    throw new Failed('The server does not answer. Is it still running?');
  }
}

export const get = async (path, signal) => (await ask(path, {signal})).json();

export async function put(path, value) {
  await ask(path, {method: 'PUT', body: JSON.stringify(value), headers: {'content-type': 'application/json'}});
}

export async function search(body, parameters, signal) {
  const query = new URLSearchParams(parameters);
  const plain = body instanceof Blob;
  const type = plain ? body.type || 'application/octet-stream' : 'application/json';
  const options = {method: 'POST', body: plain ? body : JSON.stringify(body), headers: {'content-type': type}, signal};
  return (await ask(`/api/search?${query}`, options)).json();
}

// what is being made answers 202 until it is there
export async function patient(path, signal, {binary = false, waiting = () => {}} = {}) {
  for (;;) {
    const found = await ask(path, {signal});
    if (found) return binary ? found.arrayBuffer() : found.json();
    waiting();
    await new Promise(done => setTimeout(done, 1000));
    signal?.throwIfAborted();
  }
}

// the curves are figures of the report: parsed as a document, in which nothing runs
export function figures(path) {
  return new Promise((done, fail) => {
    const request = new XMLHttpRequest();
    request.open('GET', path);
    request.responseType = 'document';
    request.onload = () =>
      request.status === 200 ? done([...request.response.querySelectorAll('figure')]) : fail(new Failed('no curves'));
    request.onerror = () => fail(new Failed('The server does not answer.'));
    request.send();
  });
}
