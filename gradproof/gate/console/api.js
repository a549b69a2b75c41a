// Requests to the gate. The token is in sessionStorage and in the Authorization header, and nowhere else.

const KEPT = "gradproof-gate-token";
export const events = new EventTarget();
let ahead = 0; // milliseconds by which the gate's clock is ahead of this one

export class ApiError extends Error {
  /** `status` is 0 where no answer came. */
  constructor(message, status, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEPT) ?? "",
  keep: (value) => sessionStorage.setItem(KEPT, value),
  forget: () => sessionStorage.removeItem(KEPT),
};

/** The gate's time in seconds since 1970, by which questions expire. */
export const gateTime = () => (Date.now() + ahead) / 1000;

function address(path, query) {
  const pairs = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return pairs.length ? `${path}?${new URLSearchParams(pairs)}` : path;
}

/** The JSON of an answer; ApiError says in one sentence why there is none. */
export async function request(method, path, { body, query = {}, seconds = 30, signal } = {}) {
  const used = token.get();
  const limit = AbortSignal.timeout(seconds * 1000);
  const headers = { Authorization: `Bearer ${used}`, ...(body ? { "Content-Type": "application/json" } : {}) };
  let response, answer;
  try {
    response = await fetch(address(path, query), {
      method, headers, body: body && JSON.stringify(body), signal: signal ? AbortSignal.any([signal, limit]) : limit,
      cache: "no-store", credentials: "omit", redirect: "error",
    });
    noteClock(response.headers.get("Date"));
    answer = await response.json().catch(() => ({}));
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(limit.aborted ? "The gate did not answer in time." : "The gate cannot be reached.", 0);
  }
  if (response.ok) return answer;
  if (response.status === 401 && used === token.get()) events.dispatchEvent(new CustomEvent("signed-out"));
  const retry = Number(response.headers.get("Retry-After")) || 0;
  throw new ApiError(sentence(answer.error, response.status), response.status, retry);
}

function sentence(error, status) {
  if (typeof error !== "string" || !error) return `The gate answered with status ${status}.`;
  const text = error[0].toUpperCase() + error.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

function noteClock(date) {
  const difference = Date.parse(date ?? "") - Date.now();
  // The header counts whole seconds: a smaller difference says nothing.
  if (Number.isFinite(difference)) ahead = Math.abs(difference) < 2000 ? 0 : difference;
}

export const get = (path, query, more = {}) => request("GET", path, { query, ...more });
export const post = (path, body, more = {}) => request("POST", path, { body, ...more });
export const put = (path, body) => request("PUT", path, { body });
export const remove = (path) => request("DELETE", path);
