// The data, and the arithmetic of dependence: which equations a change reaches, and what is known of a call with it.

const data = JSON.parse(document.getElementById('data').textContent);
const eqs = data.equations;
const numEquations = eqs.set.length;
const always = BigInt(data.function.always);
const sets = eqs.sets.map(BigInt);
const outlooks = new Map(data.outlooks.map(o => [BigInt(o.mask), { ...o, mask: BigInt(o.mask) }]));
const leafMasks = new Map(data.leaves.map(leaf => [leaf, ((1n << BigInt(leaf.width)) - 1n) << BigInt(leaf.offset)]));
const full = [...leafMasks.values()].reduce((mask, own) => mask | own, 0n);
const slices = data.slices.map(slice => ({ ...slice, mask: BigInt(slice.mask) & full }));
const leafAt = [];
data.leaves.forEach((leaf, index) => { for (let k = 0; k < leaf.width; k++) leafAt[leaf.offset + k] = index; });

/** The bits of one input, all its elements. */
function leafMask(leaf) {
  return leafMasks.get(leaf);
}

/** The numbers of the bits that are set, the lowest first: of many inputs, much faster than one test for each. */
function eachBit(mask, visit) {
  const digits = mask.toString(16);
  for (let k = digits.length - 1, bit = 0; k >= 0; k--, bit += 4) {
    for (let rest = parseInt(digits[k], 16), b = bit; rest; rest >>= 1, b++) if (rest & 1) visit(b);
  }
}

/** The bit of one element of a small array. */
function elementMask(leaf, k) {
  return 1n << BigInt(leaf.offset + k);
}

/** Names of the inputs that bits stand for: whole inputs, or elements of them. */
function namesOf(mask) {
  const elements = new Map();
  eachBit(mask, bit => {
    const leaf = data.leaves[leafAt[bit]];
    if (!leaf) return;
    if (!elements.has(leaf)) elements.set(leaf, []);
    elements.get(leaf).push(bit - leaf.offset);
  });
  return [...elements].flatMap(([leaf, part]) => {
    if (part.length === leaf.width) return leaf.path;
    return part.length > 3 ? `${part.length} of ${leaf.width} in ${leaf.path}` : part.map(k => `${leaf.path}[${k}]`);
  });
}

const MAX_NAME = 64;

/** A long name without its middle; the list of inputs has it whole. */
function shortened(name) {
  return name.length > MAX_NAME ? `${name.slice(0, MAX_NAME / 2)}…${name.slice(1 - MAX_NAME / 2)}` : name;
}

/** The same as text, cut after a few. */
function shownNames(mask, limit = 3) {
  if (mask && mask === full && data.leaves.length > 1) return 'all inputs';
  const names = namesOf(mask);
  if (!names.length) return 'no input';
  const first = names.slice(0, limit).map(shortened).join(', ');
  return names.length > limit ? `${first} and ${names.length - limit} more` : first;
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

/** What each group of equations with the same dependence, and each input, costs: equations and seconds. */
function worksOf() {
  const nothing = () => ({ num: 0, seconds: 0 });
  const add = (to, of) => { to.num += of.num; to.seconds += of.seconds; };
  const bySet = sets.map(nothing), byLeaf = data.leaves.map(nothing);
  for (let n = 0; n < numEquations; n++) add(bySet[eqs.set[n]], { num: 1, seconds: eqs.seconds[n] });
  sets.forEach((mask, s) => {
    if (mask & always) { for (const work of byLeaf) add(work, bySet[s]); return; }
    let last = -1;  // the bits of an input lie side by side
    eachBit(mask, bit => {
      const index = leafAt[bit];
      if (index !== undefined && index !== last) add(byLeaf[last = index], bySet[s]);
    });
  });
  return { bySet, byLeaf };
}

const works = worksOf();
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
function outlookOf(change, slice = -1) {
  const known = slice < 0 ? outlooks.get(change) : slices[slice];
  if (known) return { ...known, ranMarks: marksOf(known.ran), rowMarks: marksOf(known.by_rows), loadedMarks: marksOf(known.loaded), isKnown: true };
  if (!outlooks.size) return certain('whole', 'first call with this signature', new Uint8Array(numEquations).fill(1));
  if (!sums(reach(change)).num) return certain('saved outputs', 'no input changed that a result depends on', new Uint8Array(numEquations));
  if (data.function.planner === 'cost planner') {
    return certain('whole', 'no plan was made yet', new Uint8Array(numEquations).fill(1));
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
    loaded_bytes: d3.sum(loaded, (mark, n) => mark ? eqs.bytes[n] : 0), num_filled: 0, seconds: {}, count: 0, rows: '',
    ranMarks: marks, rowMarks: new Uint8Array(numEquations), loadedMarks: loaded, isKnown: false,
  };
}

/** How each equation is coloured: an index into `STATES`. */
function statesOf({ change, view, slice }) {
  const reached = reach(change);
  const { ranMarks: ran, rowMarks: byRows, loadedMarks: loaded } = view === 'engine' ? outlookOf(change, slice)
    : { ranMarks: reached, rowMarks: new Uint8Array(numEquations), loadedMarks: frontier(reached) };
  const found = new Uint8Array(numEquations);
  for (let n = 0; n < numEquations; n++) {
    found[n] = byRows[n] ? ROWS : ran[n] ? (reached[n] ? RUN : EXTRA) : loaded[n] ? LOAD : CLEAN;
  }
  return found;
}

const [RUN, ROWS, EXTRA, LOAD, CLEAN] = d3.range(5);

const STATES = [
  { name: 'run', sign: '▶', reach: 'reached: runs again', engine: 'runs, and is reached' },
  { name: 'rows', sign: '≡', reach: '', engine: 'runs by rows, for those that changed' },
  { name: 'extra', sign: '◇', reach: '', engine: 'runs, although it is not reached' },
  { name: 'load', sign: '■', reach: 'not reached, but read: its saved value can be loaded', engine: 'saved value is loaded' },
  { name: 'clean', sign: '', reach: 'not reached', engine: 'does not run' },
];
