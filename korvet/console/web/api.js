// Requests to the broker's ops port, each with a time limit; and the token, which is kept only in this page.

const SECONDS_MAX = 12;

let token = null;

/** A request failed; `status` is that of HTTP, 0 without an answer. */
export class Failed extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Read data. */
export async function ask(path, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null);
  const query = new URLSearchParams(given).toString();
  return exchange(`/api/${path}${query ? `?${query}` : ""}`, { signal });
}

/** Change something, with the token. */
export async function change(method, path, body) {
  return exchange(`/api/${path}`, {
    method,
    headers: { "Content-Type": "application/json", ...authorization(token) },
    body: JSON.stringify(body),
  });
}

/** Return whether the broker is ready, and why not. */
export async function readiness() {
  // 503 says why it is not ready: that is an answer too.
  const response = await answered("/readyz", {});
  return response.json();
}

/** Use a token for changes from now on, if the broker accepts it. */
export async function unlock(given) {
  await exchange("/api/session", { headers: authorization(given) });
  token = given;
}

/** Forget the token. */
export function lock() {
  token = null;
}

/** Whether there is a token. */
export function unlocked() {
  return token !== null;
}

function authorization(given) {
  return given === null ? {} : { Authorization: `Bearer ${given}` };
}

async function exchange(path, options) {
  const response = await answered(path, options);
  let data = null;
  try {
    data = await response.json();
  } catch {
    throw new Failed(response.status, `invalid response (HTTP ${response.status})`);
  }
  if (response.ok) return data;
  if (response.status === 401) lock();
  throw new Failed(response.status, data.error ?? `request failed (HTTP ${response.status})`);
}

async function answered(path, { signal, ...options }) {
  const late = AbortSignal.timeout(SECONDS_MAX * 1000);
  const signals = signal ? AbortSignal.any([signal, late]) : late;
  try {
    return await fetch(path, { cache: "no-store", credentials: "same-origin", redirect: "error", ...options, signal: signals });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Failed(0, late.aborted ? "the broker did not answer in time" : "the broker cannot be reached");
  }
}
