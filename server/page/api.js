/** Talk to the server that this page is from, and to nothing else. */

const KEY = "reprise.key";

/** The API key that the user gave, "" if none. It stays in this tab unless the user wants it kept. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "",
  set(value, isKept) {
    sessionStorage.setItem(KEY, value);
    if (isKept) localStorage.setItem(KEY, value);
    else localStorage.removeItem(KEY);
  },
};

/** What the server refused. code: as in its error body; status: of HTTP, 0 if it cannot be reached. */
export class ApiError extends Error {
  constructor(message, code, status) {
    super(message);
    this.code = code;
    this.status = status;
  }

  get needsKey() {
    return this.status === 401;
  }
}

/** Send a request; return the Response. Throws ApiError, or AbortError if the signal says so. */
export async function send(path, { body, method = body ? "POST" : "GET", signal } = {}) {
  const headers = { ...(body && { "Content-Type": "application/json" }) };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    throw new ApiError("The server cannot be reached. Is it running?", "unreachable", 0);
  }
  if (response.ok) return response;
  const error = (await response.json().catch(() => ({}))).error ?? {};
  throw new ApiError(error.message ?? `${response.status} ${response.statusText}`, error.code, response.status);
}

export const getJson = async (path, options) => (await send(path, options)).json();

/** Yield the events of a stream, parsed, and comments as {comment}. Throws ApiError for an error event. */
export async function* events(path, options) {
  const response = await send(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split(/\r?\n\r?\n/);
    text = blocks.pop();
    for (const line of blocks.flatMap((block) => block.split(/\r?\n/))) {
      if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new ApiError(event.error.message, event.error.code, response.status);
      yield event;
    }
  }
}
