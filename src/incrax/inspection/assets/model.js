// The data, and the arithmetic of dependence: which equations a change reaches, and what is known of a call with it.

const data = JSON.parse(document.getElementById('data').textContent);
const eqs = data.equations;
const numEquations = eqs.set.length;
const always = BigInt(data.function.always);
const sets = eqs.sets.map(BigInt);
const outlooks = new Map(data.outlooks.map(o => [BigInt(o.mask), { ...o, mask: BigInt(o.mask) }]));
const full = data.leaves.reduce((mask, leaf) => mask | leafMask(leaf), 0n);

/** The bits of one input, all its elements. */
function leafMask(leaf) {
  return ((1n << BigInt(leaf.width)) - 1n) << BigInt(leaf.offset);
}

/** The bit of one element of a small array. */
function elementMask(leaf, k) {
  return 1n << BigInt(leaf.offset + k);
}

/** Names of the inputs that bits stand for: whole inputs, or elements of them. */
function namesOf(mask) {
  const found = [];
  for (const leaf of data.leaves) {
    const own = leafMask(leaf), part = mask & own;
    if (!part) continue;
    if (part === own) { found.push(leaf.path); continue; }
    const elements = [];
    for (let k = 0; k < leaf.width; k++) if (part & elementMask(leaf, k)) elements.push(k);
    if (elements.length > 3) found.push(`${elements.length} of ${leaf.width} in ${leaf.path}`);
    else for (const k of elements) found.push(`${leaf.path}[${k}]`);
  }
  return found;
}

const MAX_NAME = 64;

/** A long name without its middle; the list of inputs has it whole. */
function shortened(name) {
  return name.length > MAX_NAME ? `${name.slice(0, MAX_NAME / 2)}…${name.slice(1 - MAX_NAME / 2)}` : name;
}

/** The same as text, cut after a few. */
function shownNames(mask, limit = 3) {
  if (mask && mask === full && data.leaves.length > 1) return 'all inputs';
  const names = namesOf(mask).map(shortened);
  if (!names.length) return 'no input';
  return names.length > limit ? `${names.slice(0, limit).join(', ')} and ${names.length - limit} more` : names.join(', ');
}

const reachedCache = new Map();

/** Which equations a change reaches: 1 for each that it does. */
function reach(change) {
  if (reachedCache.has(change)) return reachedCache.get(change);
  const isReached = sets.map(mask => Boolean(mask & (change | (change ? always : 0n))));
  const found = Uint8Array.from(eqs.set, set => isReached[set] ? 1 : 0);
  if (reachedCache.size > 500) reachedCache.clear();
  reachedCache.set(change, found);
  return found;
}

/** Sums over the equations that are marked. */
function sums(marks) {
  const total = { num: 0, flops: 0, transcendentals: 0, seconds: 0 };
  for (let n = 0; n < numEquations; n++) {
    if (!marks[n]) continue;
    total.num += 1;
    total.flops += eqs.flops[n];
    total.transcendentals += eqs.transcendentals[n];
    total.seconds += eqs.seconds[n];
  }
  return total;
}

const everything = sums(new Uint8Array(numEquations).fill(1));

/** The clean equations whose results reached ones read. */
function frontier(reached) {
  const found = new Uint8Array(numEquations);
  for (let n = 0; n < numEquations; n++) {
    if (reached[n]) for (const m of eqs.reads[n]) if (!reached[m]) found[m] = 1;
  }
  return found;
}

function marksOf(ranges) {
  const found = new Uint8Array(numEquations);
  for (const [first, last] of ranges) found.fill(1, first, last + 1);
  return found;
}

/** What a call that changes these inputs would do; the numbers of `explain` where it was asked, else what is certain. */
function outlookOf(change) {
  const known = outlooks.get(change);
  if (known) return { ...known, ranMarks: marksOf(known.ran), loadedMarks: marksOf(known.loaded), isKnown: true };
  if (!outlooks.size) return certain('whole', 'first call with this signature', new Uint8Array(numEquations).fill(1));
  if (!sums(reach(change)).num) return certain('saved outputs', 'no input changed that a result depends on', new Uint8Array(numEquations));
  if (data.function.planner === 'cost planner') {
    return certain('whole', 'seen for the first time', new Uint8Array(numEquations).fill(1));
  }
  const name = data.function.planner === 'minimal planner' ? 'plan' : 'segments';
  return certain(name, 'by dependence alone: calls with this combination were not looked at', reach(change));
}

function certain(servedBy, why, marks) {
  const ran = sums(marks), loaded = servedBy === 'plan' ? frontier(marks) : new Uint8Array(numEquations);
  return {
    served_by: servedBy, why, num_ran: ran.num, num_derived: 0, flops_ran: ran.flops,
    flops_avoided: everything.flops - ran.flops, transcendentals_ran: ran.transcendentals,
    transcendentals_avoided: everything.transcendentals - ran.transcendentals, num_loaded: sums(loaded).num,
    loaded_bytes: d3.sum(loaded, (mark, n) => mark ? eqs.bytes[n] : 0), num_filled: 0, seconds: {}, count: 0,
    ranMarks: marks, loadedMarks: loaded, isKnown: false,
  };
}

/** How each equation is coloured: an index into `STATES`. */
function statesOf(change, view) {
  const reached = reach(change);
  const isEngine = view === 'engine';
  const outlook = isEngine ? outlookOf(change) : null;
  const loaded = isEngine ? outlook.loadedMarks : frontier(reached);
  const ran = isEngine ? outlook.ranMarks : reached;
  const found = new Uint8Array(numEquations);
  for (let n = 0; n < numEquations; n++) {
    found[n] = ran[n] ? (reached[n] ? 0 : 1) : loaded[n] ? 2 : 3;
  }
  return found;
}

const STATES = [
  { name: 'run', sign: '▶', reach: 'reached: runs again', engine: 'runs, and is reached' },
  { name: 'extra', sign: '◇', reach: '', engine: 'runs, although it is not reached' },
  { name: 'load', sign: '■', reach: 'not reached, but read: its saved value can be loaded', engine: 'saved value is loaded' },
  { name: 'clean', sign: '', reach: 'not reached', engine: 'does not run' },
];
