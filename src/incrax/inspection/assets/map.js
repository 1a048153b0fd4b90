// The map: a treemap of equations, folded by dependence and source, opened as far as there is room.

const MAX_TILES = 420;
const MIN_OPEN = { width: 84, height: 46 };
const MIN_SHARE = 220;
const HEADER = 19;
const map = { root: null, zoom: null, tiles: [], current: 0, readers: null };

const LEVELS = {
  set: { key: n => `s${eqs.set[n]}`, label: n => shownNames(sets[eqs.set[n]] & ~1n), kind: 'depends on' },
  source: { key: n => { const p = eqs.places[eqs.place[n]]; return `f${p.file} ${p.function}`; },
    label: n => eqs.places[eqs.place[n]].function, kind: 'function' },
  line: { key: n => { const p = eqs.places[eqs.place[n]]; return `l${p.file} ${p.line}`; },
    label: n => { const p = eqs.places[eqs.place[n]]; return p.code || placeText(p); }, kind: 'line' },
  primitive: { key: n => `p${eqs.primitive[n]}`, label: n => primitive(n), kind: 'primitive' },
};
const ORDERS = { set: ['set', 'source', 'line', 'primitive'], source: ['source', 'line', 'set', 'primitive'] };
const MANY = 60;
const CHUNK = 40;
const MAX_GROUPS = 150;
const MIN_WORDS = 200;

/** A part of the tree. Its label is made when it is drawn: of most parts it never is. */
function part(key, label, kind, numbers) {
  return { key, kind, numbers, get label() { return typeof label === 'function' ? label() : label; } };
}

/** The tree of equations; a level with one member is left out. */
function grown(numbers, levels, key, label, kind) {
  const node = part(key, label, kind, numbers);
  if (numbers.length === 1) return Object.assign(node, { equation: numbers[0] });
  let parts = null, rest = levels, level = null;
  while (rest.length && (!parts || parts.size === 1)) {
    level = LEVELS[rest[0]];
    if (rest[0] === 'primitive' && numbers.length <= MANY) { rest = []; break; }
    parts = d3.group(numbers, level.key);
    rest = rest.slice(1);
  }
  if (!parts || parts.size === 1) {
    node.children = numbers.length > MANY ? folded(chunks(numbers, key), key) : numbers.map(n => equationNode(n, key));
    return node;
  }
  const { label: labelOf, kind: kindOfPart } = level;
  node.children = folded([...parts].map(([name, members]) => grown(members, rest, `${key}/${name}`, () => labelOf(members[0]), kindOfPart)), key);
  return node;
}

/** As many groups as can be told apart; the smallest share one, which opens. */
function folded(groups, key) {
  if (groups.length <= MAX_GROUPS) return groups;
  const sizes = new Map(groups.map(group => [group, d3.sum(group.numbers, sizeOf)]));
  const sorted = d3.sort(groups, (a, b) => sizes.get(b) - sizes.get(a));
  const rest = sorted.splice(MAX_GROUPS - 1), restKey = `${key}/rest`;
  const label = `${exactly(rest.length)} smaller groups`;
  return [...sorted, { key: restKey, label, kind: '', numbers: rest.flatMap(group => group.numbers), children: folded(rest, restKey) }];
}

function equationNode(n, key) {
  return { key: `${key}/${n}`, numbers: [n], equation: n, label: primitive(n), kind: 'equation' };
}

/** Many equations of one kind, in the order of the program. */
function chunks(numbers, key) {
  return d3.range(0, numbers.length, CHUNK).map(start => {
    const part = numbers.slice(start, start + CHUNK);
    const label = `${primitive(part[0])} ${exactly(start + 1)} to ${exactly(start + part.length)}`;
    return { key: `${key}/c${start}`, label, kind: 'equations', numbers: part, children: part.map(n => equationNode(n, `${key}/c${start}`)) };
  });
}

function primitive(n) {
  return eqs.primitives[eqs.primitive[n]];
}

function sizeOf(n) {
  return chosen.area === 'count' ? 1 : eqs[chosen.area][n];
}

function buildMap() {
  for (const radio of document.querySelectorAll('input[name="view"]')) {
    radio.addEventListener('change', () => choose({ view: radio.value }));
  }
  byId('area').addEventListener('change', event => { chosen.area = event.target.value; plantMap(); });
  byId('grouping').addEventListener('change', event => { chosen.grouping = event.target.value; plantMap(); });
  const frame = byId('treemap');
  frame.addEventListener('keydown', moveByKey);
  frame.addEventListener('pointerleave', () => showDetails(map.tiles[map.current], false));
  map.readers = Array.from({ length: numEquations }, () => []);
  eqs.reads.forEach((read, n) => { for (const m of read) map.readers[m].push(n); });
  plantMap();
  whenChosen(paintMap);
  let width = frame.clientWidth;
  new ResizeObserver(() => {
    if (frame.clientWidth === width) return;
    width = frame.clientWidth;
    drawMap(frame.contains(document.activeElement) ? map.tiles[map.current].data.key : null);
  }).observe(frame);
  fillWhenOpened('map-table', mapTable);
  whenChosen(() => { if (byId('map-table').open) byId('map-table').querySelector('.scroll').replaceChildren(mapTable()); });
}

/** A new tree for another area or grouping. */
function plantMap() {
  const tree = grown(d3.range(numEquations), ORDERS[chosen.grouping], 'all', data.function.name, 'function');
  const total = d3.sum(d3.range(numEquations), sizeOf);
  map.root = d3.hierarchy(tree, node => node.children)
    .sum(node => node.equation === undefined ? 0 : total ? sizeOf(node.equation) : 1)
    .sort((a, b) => b.value - a.value);
  zoomTo(map.root);
  const num = total ? d3.sum(d3.range(numEquations), n => sizeOf(n) ? 0 : 1) : 0;
  byId('areas').textContent = (chosen.area === 'seconds' ? `seconds, ${eqs.how}.` : `${byId('area').selectedOptions[0].text}.`)
    + (num ? ` ${many(num, 'equation')} without any ${num === 1 ? 'is' : 'are'} not drawn.` : '');
}

function zoomTo(node, focusKey = null) {
  map.zoom = node;
  const crumbs = node.ancestors().reverse().map((step, n, all) => n === all.length - 1
    ? make('span', { ariaCurrent: 'location' }, crumb(step))
    : make('button', { type: 'button', className: 'link', onclick: () => zoomTo(step, node.data.key) }, crumb(step)));
  byId('crumbs').replaceChildren(...crumbs.flatMap((step, n) => n ? [make('span', { ariaHidden: 'true' }, '›'), step] : [step]));
  drawMap(focusKey);
}

function crumb(node) {
  return node.data.kind === 'depends on' ? `depends on ${node.data.label}` : node.data.label;
}

/** Lay out the zoomed part, opening the largest groups first. */
function drawMap(focusKey = null) {
  const frame = byId('treemap');
  const width = frame.clientWidth || 800, height = frame.clientHeight || 480;
  const laid = d3.treemap().size([width, height]).paddingInner(2).paddingTop(node => node.depth ? HEADER : 0)
    .paddingRight(node => node.depth ? 2 : 0).paddingBottom(node => node.depth ? 2 : 0).paddingLeft(node => node.depth ? 2 : 0)
    .round(true)(map.zoom.copy());
  const origin = new Map();
  map.zoom.each(node => origin.set(node.data.key, node));
  const shown = [];
  const queue = [laid];
  while (queue.length) {
    const node = queue.sort((a, b) => area(b) - area(a)).shift();
    const isOpen = node === laid || (node.children && node.x1 - node.x0 >= MIN_OPEN.width && node.y1 - node.y0 >= MIN_OPEN.height
      && area(node) / node.children.length >= MIN_SHARE && shown.length + queue.length + node.children.length <= MAX_TILES);
    if (node !== laid && node.x1 - node.x0 >= 2 && node.y1 - node.y0 >= 2) shown.push({ node, isOpen: isOpen && Boolean(node.children), origin: origin.get(node.data.key) });
    if (isOpen) {
      const wide = (node.children || []).filter(child => area(child) > 0);
      queue.push(...wide.slice(0, Math.max(MAX_TILES - shown.length - queue.length, 0)));
    }
  }
  if (!laid.children && numEquations) shown.push({ node: laid, isOpen: false, origin: map.zoom });
  shown.sort((a, b) => a.node.depth - b.node.depth || a.node.y0 - b.node.y0 || a.node.x0 - b.node.x0);
  map.tiles = shown.map(tileOf);
  const percent = (part, whole) => `${(100 * part / whole).toFixed(3)}%`;
  for (const { element, box } of map.tiles) {
    Object.assign(element.style, { left: percent(box.x0, width), width: percent(box.x1 - box.x0, width),
      top: percent(box.y0, height), height: percent(box.y1 - box.y0, height) });
  }
  frame.replaceChildren(...map.tiles.map(tile => tile.element));
  frame.dataset.drawn = map.tiles.length;
  map.current = Math.max(map.tiles.findIndex(tile => tile.data.key === focusKey), 0);
  paintMap();
  setCurrent(map.current, focusKey !== null);
}

function area(node) {
  return (node.x1 - node.x0) * (node.y1 - node.y0);
}

function tileOf({ node, isOpen, origin }, index) {
  const element = make('button', { type: 'button', className: 'tile', tabIndex: -1 });
  const tile = { element, data: node.data, origin, isOpen, box: node, value: node.value };
  element.addEventListener('click', event => {
    setCurrent(map.tiles.indexOf(tile), false);
    if (node.children) zoomTo(origin, event.detail ? null : '');  // a click without a pointer is a key, which keeps the focus
  });
  element.addEventListener('focus', () => setCurrent(map.tiles.indexOf(tile), false));
  element.addEventListener('pointerenter', () => showDetails(tile, true));
  return tile;
}

/** Colours and labels for what is chosen now. */
function paintMap() {
  const states = statesOf(chosen);
  for (const tile of map.tiles) {
    const { element, data: node, isOpen } = tile;
    const height = tile.box.y1 - tile.box.y0, width = tile.box.x1 - tile.box.x0;
    const isEquation = node.equation !== undefined;
    const state = isEquation ? STATES[states[node.equation]] : null;
    tile.counts = isEquation ? null : STATES.map((_, s) => d3.sum(node.numbers, n => states[n] === s ? 1 : 0));
    element.className = `tile ${isEquation ? state.name : isOpen ? 'group' : 'fold'}`;
    element.dataset.state = isEquation ? state.name : '';
    const room = { any: width >= 26 && height >= 13, two: !isOpen && width >= 26 && height > 34, three: !isOpen && width >= 26 && height > 52,
      words: width >= MIN_WORDS };
    element.replaceChildren(...(isEquation ? equationText(node.equation, state, room) : groupText(tile, room)));
    if (!isEquation && !isOpen) element.append(mix(node, states, !room.any || height < 24 ? 0 : height > 60 ? 36 : 18));
  }
  const view = chosen.view;
  byId('legend').replaceChildren(...STATES.filter(state => state[view]).map(state => make('li', {},
    make('span', { className: `swatch ${state.name}`, ariaHidden: 'true' }, state.sign), state[view])),
  make('li', {}, make('span', { className: 'dot', ariaHidden: 'true' }, '◆'), 'its value is saved now'));
  showDetails(map.tiles[map.current], false);
  showNumbers();
}

/** How much of a folded group is in which state, below its label. */
function mix(node, states, top) {
  const total = d3.sum(node.numbers, sizeOf) || 1;
  const bars = make('span', { className: 'mix', ariaHidden: 'true' }, STATES.map((state, s) => {
    const bar = make('i', { className: state.name });
    bar.style.width = `${100 * d3.sum(node.numbers, n => states[n] === s ? sizeOf(n) : 0) / total}%`;
    return bar;
  }));
  bars.style.top = `${top}px`;
  return bars;
}

function sizeText(numbers) {
  const total = d3.sum(numbers, sizeOf);
  if (chosen.area === 'seconds') return duration(total);
  if (chosen.area === 'bytes') return byteCount(total);
  return chosen.area === 'flops' ? `${count(total)} FLOPs` : '';
}

/** What a tile shows, as far as there is room, and what is only read out. */
function equationText(n, state, room) {
  const hidden = isShown => isShown ? '' : 'visually-hidden';
  const saved = eqs.state[n] === 2;
  const rest = [`${count(eqs.flops[n])} FLOPs`, state[chosen.view], saved ? 'saved now' : '', placeText(eqs.places[eqs.place[n]])];
  return [
    make('b', { className: hidden(room.any) }, make('span', { className: 'sign', ariaHidden: 'true' }, `${state.sign} `), primitive(n),
      saved ? make('span', { className: 'sign', ariaHidden: 'true' }, ' ◆') : ''), ' ',
    make('span', { className: `mono ${hidden(room.two)}` }, eqs.types[eqs.type[n]]), ' ',
    make('span', { className: hidden(room.three) }, sizeText([n]) || duration(eqs.seconds[n])),
    make('span', { className: 'visually-hidden' }, ` ${rest.filter(Boolean).join(', ')}`),
  ];
}

const SHORT = { run: 'run', rows: 'run by rows', extra: 'run unreached', load: 'loaded', clean: 'clean' };

function groupText({ data: node, isOpen, counts }, room) {
  const text = [many(node.numbers.length, 'equation'), sizeText(node.numbers)].filter(Boolean).join(', ');
  const parts = STATES.map((state, s) => counts[s] ? `${exactly(counts[s])} ${SHORT[state.name]}` : '').filter(Boolean).join(', ');
  const label = node.kind === 'depends on' ? [make('span', { className: room.words ? '' : 'visually-hidden' }, 'depends on '), node.label] : [node.label];
  const isSeen = room.any && (isOpen || room.three);
  return [
    make('b', { className: room.any ? (node.kind === 'line' ? 'mono' : '') : 'visually-hidden' }, ...label,
      isOpen ? make('small', {}, ` · ${text}`) : ''), ' ',
    isOpen ? '' : make('span', { className: isSeen ? '' : 'visually-hidden' }, text),
    make('span', { className: 'visually-hidden' }, `; ${parts}. Opens.`),
  ];
}

// --- moving -----------------------------------------------------------------------------------------------------

function setCurrent(index, isFocused) {
  const tile = map.tiles[index];
  if (!tile) return;
  map.tiles[map.current]?.element.setAttribute('tabindex', -1);
  map.current = index;
  tile.element.tabIndex = 0;
  if (isFocused) tile.element.focus();
  showDetails(tile, true);
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function moveByKey(event) {
  if (!map.tiles.length) return;
  if (event.key === 'Escape' && map.zoom.parent) {
    event.preventDefault();
    zoomTo(map.zoom.parent, map.zoom.data.key);
  } else if (event.key === 'Enter' && map.tiles[map.current].box.children) {
    event.preventDefault();
    zoomTo(map.tiles[map.current].origin, '');
  } else if (event.key === 'Home' || event.key === 'End') {
    event.preventDefault();
    setCurrent(event.key === 'Home' ? 0 : map.tiles.length - 1, true);
  } else if (ARROWS[event.key]) {
    event.preventDefault();
    const next = neighbour(ARROWS[event.key]);
    if (next >= 0) setCurrent(next, true);
  }
}

/** The tile whose label is nearest in a direction. */
function neighbour([dx, dy]) {
  const at = tile => [tile.box.x0 + Math.min(40, (tile.box.x1 - tile.box.x0) / 2), tile.box.y0 + Math.min(9, (tile.box.y1 - tile.box.y0) / 2)];
  const [x, y] = at(map.tiles[map.current]);
  let best = -1, least = Infinity;
  map.tiles.forEach((tile, n) => {
    const [u, v] = at(tile);
    const along = (u - x) * dx + (v - y) * dy, aside = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
    if (along > 1 && along + 2.5 * aside < least) { least = along + 2.5 * aside; best = n; }
  });
  return best;
}

// --- details ----------------------------------------------------------------------------------------------------

function showDetails(tile, isMarked) {
  if (!tile) return;
  byId('details').replaceChildren(...(tile.data.equation === undefined ? groupDetails(tile) : equationDetails(tile.data.equation)));
  const n = tile.data.equation;
  const near = isMarked && n !== undefined ? new Set([...eqs.reads[n], ...map.readers[n]]) : new Set();
  for (const other of map.tiles) other.element.classList.toggle('is-near', other.data.equation !== undefined && near.has(other.data.equation));
}

function terms(pairs) {
  return make('dl', {}, pairs.map(([name, value]) => make('div', {}, make('dt', {}, name), make('dd', {}, value))));
}

function equationDetails(n) {
  const place = eqs.places[eqs.place[n]], state = STATES[statesOf(chosen)[n]];
  const saved = ['not saved', 'saved when it is needed', 'saved now'][eqs.state[n]];
  return [
    make('div', {}, make('b', {}, primitive(n)), ` · ${state[chosen.view]} · ${placeText(place)}`),
    place.code ? make('code', { className: 'code' }, place.code) : make('span', {}),
    terms([
      ['result', make('code', {}, eqs.types[eqs.type[n]])], ['bytes', byteCount(eqs.bytes[n])],
      ['FLOPs', count(eqs.flops[n])], ['transcendentals', count(eqs.transcendentals[n])],
      ['time', `${duration(eqs.seconds[n])}, ${eqs.how}`], ['depends on', shownNames(sets[eqs.set[n]] & ~1n, 6)],
      ['value', saved], ['reads / is read by', `${many(eqs.reads[n].length, 'equation')} / ${exactly(map.readers[n].length)}`],
    ]),
  ];
}

function groupDetails(tile) {
  const { numbers, kind, label } = tile.data, place = eqs.places[eqs.place[numbers[0]]];
  const total = name => d3.sum(numbers, n => eqs[name][n]);
  const head = kind === 'line' || kind === 'function' ? ` · ${place.file}${kind === 'line' ? `:${place.line} (${place.function})` : ''}` : '';
  return [
    make('div', {}, kind ? `${kind} ` : '', make('b', { className: kind === 'line' ? 'mono' : '' }, label), head),
    terms([
      ['equations', exactly(numbers.length)], ['FLOPs', count(total('flops'))], ['transcendentals', count(total('transcendentals'))],
      ['time', duration(total('seconds'))], ['bytes of results', byteCount(total('bytes'))],
      ...STATES.map((state, s) => [state[chosen.view], exactly(tile.counts[s])]).filter(([name]) => name),
    ]),
  ];
}

/** Groups by dependence and source function, as text. */
function mapTable() {
  const states = statesOf(chosen);
  const groups = d3.groups(d3.range(numEquations), n => eqs.set[n], n => LEVELS.source.key(n)).flatMap(([, parts]) => parts.map(part => part[1]));
  const rows = groups.map(numbers => [
    shownNames(sets[eqs.set[numbers[0]]] & ~1n), eqs.places[eqs.place[numbers[0]]].function, { number: exactly(numbers.length) },
    { number: exactly(d3.sum(numbers, n => states[n] < LOAD ? 1 : 0)) }, { number: exactly(d3.sum(numbers, n => states[n] === LOAD ? 1 : 0)) },
    { number: count(d3.sum(numbers, n => eqs.flops[n])) }, { number: duration(d3.sum(numbers, n => eqs.seconds[n])) },
  ]);
  return table('Groups of equations', ['depends on', 'function', 'equations', 'run', 'loaded', 'FLOPs', 'time'], rows);
}
