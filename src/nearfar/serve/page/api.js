// Requests to the JSON API.

// An error with a message for the user.
export class ApiError extends Error {}

// Returns the response, or null if its status is 202, which means that the result is not ready.
async function checkResponse(response) {
  if (response.ok && response.status !== 202) return response;
  let detail = response.statusText;
  try {
    detail = (await response.json()).detail;
  } catch {
    // The body is not JSON, so the status text is shown.
  }
  if (response.status === 202) return null;
  throw new ApiError(
    response.status === 401 ? 'The token is missing or wrong: open the full address that the server printed.' : detail,
  );
}

async function request(path, options) {
  try {
    return await checkResponse(await fetch(path, options));
  } catch (error) {
    if (error instanceof ApiError || error.name === 'AbortError') throw error;
    throw new ApiError('The server does not respond. Check that it is still running.');
  }
}

export const getJson = async (path, signal) => (await request(path, {signal})).json();

export async function putJson(path, value) {
  await request(path, {method: 'PUT', body: JSON.stringify(value), headers: {'content-type': 'application/json'}});
}

// Searches with an image (a Blob), or with strokes, a vector or a text (an object).
export async function postSearch(body, parameters, signal) {
  const isFile = body instanceof Blob;
  const type = isFile ? body.type || 'application/octet-stream' : 'application/json';
  const options = {method: 'POST', body: isFile ? body : JSON.stringify(body), headers: {'content-type': type}, signal};
  return (await request(`/api/search?${new URLSearchParams(parameters)}`, options)).json();
}

// Polls once a second until the server has computed the result.
export async function getWhenReady(path, signal, {binary = false} = {}) {
  for (;;) {
    const response = await request(path, {signal});
    if (response) return binary ? response.arrayBuffer() : response.json();
    await new Promise(resolve => setTimeout(resolve, 1000));
    signal?.throwIfAborted();
  }
}

// Returns the figures of an HTML document. Scripts in a document that is parsed this way do not run.
export function getFigures(path) {
  return new Promise((resolve, reject) => {
    const http = new XMLHttpRequest();
    http.open('GET', path);
    http.responseType = 'document';
    http.onload = () =>
      http.status === 200
        ? resolve([...http.response.querySelectorAll('figure')])
        : reject(new ApiError('The figures could not be loaded.'));
    http.onerror = () => reject(new ApiError('The server does not respond.'));
    http.send();
  });
}
