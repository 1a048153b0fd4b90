// Which inputs change: check boxes for inputs and for elements of small arrays.

const chosen = { change: 0n, slice: -1, view: 'reach', area: 'seconds', grouping: 'set' };
const MAX_ELEMENTS = 400;
const MAX_LISTED = 150;
const watchers = [];

function whenChosen(watcher) {
  watchers.push(watcher);
}

/** Another change is one of whole inputs, if it is not said that few of their rows change. */
function choose(changes) {
  Object.assign(chosen, 'change' in changes ? { slice: -1, ...changes } : changes);
  for (const watcher of watchers) watcher();
}

function buildInputs() {
  listInputs('');
  byId('choose-none').addEventListener('click', () => choose({ change: 0n }));
  byId('choose-all').addEventListener('click', () => choose({ change: full }));
  byId('choose-last').disabled = data.last === null;
  byId('choose-last').addEventListener('click', () => choose(changeOf(data.last)));
  byId('filter-row').hidden = data.leaves.length <= 12;
  byId('filter').addEventListener('input', event => { listInputs(event.target.value.toLowerCase()); markInputs(); });
  byId('changes').addEventListener('submit', event => event.preventDefault());
  byId('rows').addEventListener('change', event => showSlice(Number(event.target.value)));
  markInputs();
  whenChosen(markInputs);
}

/** The inputs with a text in their names, the first of them. */
function listInputs(text) {
  const found = d3.range(data.leaves.length).filter(index => data.leaves[index].path.toLowerCase().includes(text));
  byId('leaves').replaceChildren(...found.slice(0, MAX_LISTED).map(index => leafItem(data.leaves[index], index)));
  byId('unlisted').textContent = found.length > MAX_LISTED ? `... and ${exactly(found.length - MAX_LISTED)} more; find them by their names` : '';
}

/** What a call, or a plan, changed: of rows, the inputs that they are of. */
function changeOf({ mask, slice }) {
  return slice < 0 ? { change: BigInt(mask) & full, slice } : { change: slices[slice].mask, slice };
}

/** Few rows of the chosen inputs change; -1: all of them do. */
function showSlice(slice) {
  choose(slice < 0 ? { slice } : { slice, view: 'engine' });
  checkView();
}

/** The switch shows how the map is coloured. */
function checkView() {
  document.querySelector(`input[name="view"][value="${chosen.view}"]`).checked = true;
}

function leafItem(leaf, index) {
  const work = make('i');
  work.style.width = `${100 * works.byLeaf[index].seconds / (everything.seconds || 1)}%`;
  const box = make('input', { type: 'checkbox', id: `leaf-${index}` });
  box.addEventListener('change', () => toggle(leafMask(leaf), box.checked));
  const label = make('label', {}, box, make('span', { className: 'path mono' }, leaf.path),
    make('span', { className: 'kind mono' }, leaf.type));
  const item = make('li', {}, label, make('div', { className: 'work', title: 'share of the work that it reaches' }, work));
  if (leaf.width > 1) item.append(elements(leaf, index));
  return item;
}

function elements(leaf, index) {
  const listed = d3.range(Math.min(leaf.width, MAX_ELEMENTS));
  const items = make('ul', {}, listed.map(k => {
    const box = make('input', { type: 'checkbox', id: `leaf-${index}-${k}`, ariaLabel: `${leaf.path}[${k}]` });
    box.addEventListener('change', () => toggle(elementMask(leaf, k), box.checked));
    return make('li', {}, make('label', {}, box, make('span', { className: 'mono' }, `[${k}]`)));
  }));
  return make('details', {}, make('summary', {}, many(leaf.width, 'element')), items);
}

function toggle(mask, isOn) {
  choose({ change: isOn ? chosen.change | mask : chosen.change & ~mask });
}

/** The boxes show what is chosen. */
function markInputs() {
  data.leaves.forEach((leaf, index) => {
    const box = byId(`leaf-${index}`);
    if (!box) return;
    const part = chosen.change & leafMask(leaf);
    box.checked = part === leafMask(leaf);
    box.indeterminate = Boolean(part) && !box.checked;
    if (leaf.width > 1) {
      for (let k = 0; k < Math.min(leaf.width, MAX_ELEMENTS); k++) {
        byId(`leaf-${index}-${k}`).checked = Boolean(part & elementMask(leaf, k));
      }
    }
  });
}

// --- what it costs ----------------------------------------------------------------------------------------------

function showNumbers() {
  const reached = sums(reach(chosen.change)), edge = frontier(reach(chosen.change)), outlook = outlookOf(chosen.change, chosen.slice);
  const kinds = d3.range(slices.length).filter(k => slices[k].mask === chosen.change);
  byId('rows-row').hidden = !kinds.length;
  byId('rows').replaceChildren(make('option', { value: -1 }, 'all rows'), ...kinds.map(k => make('option', { value: k }, slices[k].rows.split(';')[0])));
  byId('rows').value = chosen.slice;
  const subject = chosen.change ? shownNames(chosen.change) : 'nothing';
  byId('sentence').replaceChildren('Changing ', make('b', {}, subject),
    ` reaches ${exactly(reached.num)} of ${many(numEquations, 'equation')}; served by `, make('b', {}, outlook.served_by),
    `, which runs ${exactly(outlook.num_ran)}${derivedText(outlook)}${outlook.rows && `: ${outlook.rows}`}.`);
  const whole = everything.seconds;
  const rows = [
    ['equations', cell(reached.num, `${exactly(reached.num)} of ${exactly(numEquations)}`),
      cell(outlook.num_ran, ranText(outlook))],
    ['FLOPs', cell(reached.flops, count(reached.flops)), cell(outlook.flops_ran, count(outlook.flops_ran))],
    ['FLOPs avoided', cell(everything.flops - reached.flops, count(everything.flops - reached.flops)),
      cell(outlook.flops_avoided, count(outlook.flops_avoided))],
    ['transcendentals', cell(reached.transcendentals, count(reached.transcendentals)),
      cell(outlook.transcendentals_ran, count(outlook.transcendentals_ran))],
    ['saved values loaded', cell(sums(edge).num, `${exactly(sums(edge).num)} (${byteCount(d3.sum(edge, (mark, n) => mark ? eqs.bytes[n] : 0))})`),
      cell(outlook.num_loaded, `${exactly(outlook.num_loaded)} (${byteCount(outlook.loaded_bytes)})`)],
    ['saved values filled', cell(0, ''), cell(outlook.num_filled, exactly(outlook.num_filled))],
    ['time', cell(reached.seconds, `${duration(reached.seconds)} of ${duration(whole)}`),
      make('td', {}, timesText(outlook))],
    ['why', cell('', 'by dependence'), cell('', whyText(outlook))],
  ];
  byId('numbers').tBodies[0].replaceChildren(...rows.map(([name, ...cells]) => {
    const row = make('tr', {}, make('th', { scope: 'row' }, name), cells);
    row.dataset.name = name;
    return row;
  }));
  const states = statesOf(chosen);
  byId('share').replaceChildren(...STATES.map((state, s) => {
    const bar = make('i', { className: state.name });
    bar.style.width = `${100 * d3.sum(states, (found, n) => found === s ? eqs.seconds[n] : 0) / (whole || 1)}%`;
    return bar;
  }));
}

/** Equations run: those that fill values come on top, and a plan may have equations that the program has not. */
function ranText(outlook) {
  const { num_ran: num, num_filled: filled, num_derived: derived } = outlook;
  const isPart = !filled && !derived;
  return `${exactly(num)}${isPart ? ` of ${exactly(numEquations)}` : ''}${filled ? ', fills included' : ''}${derivedText(outlook)}`;
}

function derivedText({ num_derived: derived }) {
  return derived ? `, ${exactly(derived)} of them derived` : '';
}

function timesText({ seconds }) {
  const found = Object.entries(seconds);
  return found.length ? found.map(([name, s]) => make('div', {}, `${name}: ${duration(s)}`)) : 'not timed';
}

/** A call starts from the saved values that suit it best, which need not be those of the call before. */
function whyText({ why, differs }) {
  const mask = differs === undefined ? chosen.change : BigInt(differs) & full;
  return mask === chosen.change ? why : `${why}; it starts from values of an earlier call, against which ${shownNames(mask)} changed`;
}

function cell(value, text) {
  const node = make('td', {}, text);
  node.dataset.value = value;
  return node;
}
