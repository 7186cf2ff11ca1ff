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

/** What the server refused, or that it could not be asked. code: as in its error body, or UNREACHABLE, LOST; status: of
 * HTTP, 0 without an answer. The words are the server's or ours, never the browser's. */
export class ApiError extends Error {
  constructor(message, code, status) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

export const UNREACHABLE = "unreachable";
export const LOST = "lost";
const lost = () => new ApiError("The connection to the server was lost before the answer was complete.", LOST, 0);

export const isAbort = (fault) => fault.name === "AbortError";

/** Send a request; return the Response. Throws ApiError, or AbortError if the signal says so. */
export async function send(path, { body, method = body ? "POST" : "GET", signal } = {}) {
  const headers = { ...(body && { "Content-Type": "application/json" }) };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  } catch (fault) {
    if (isAbort(fault)) throw fault;
    throw new ApiError("The server cannot be reached. Is it running?", UNREACHABLE, 0);
  }
  if (response.ok) return response;
  const error = (await response.json().catch(() => ({}))).error ?? {};
  throw new ApiError(error.message ?? `The server answered with HTTP status ${response.status}.`, error.code, response.status);
}

/** Return what is read of a response. Throws as send(). */
async function orLost(reading) {
  try {
    return await reading;
  } catch (fault) {
    throw isAbort(fault) ? fault : lost();
  }
}

export const getJson = async (path, options) => orLost((await send(path, options)).json());
export const getText = async (path, options) => orLost((await send(path, options)).text());

/** Yield the events of a stream, parsed; comments are left out. Throws ApiError, also for an error event. */
export async function* events(path, options) {
  const response = await send(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (true) {
    const { value, done } = await orLost(reader.read());
    if (done) return;
    text += value;
    const blocks = text.split(/\r?\n\r?\n/);
    text = blocks.pop();
    for (const line of blocks.flatMap((block) => block.split(/\r?\n/))) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new ApiError(event.error.message, event.error.code, response.status);
      yield event;
    }
  }
}
