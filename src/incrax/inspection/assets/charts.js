// Calls over time, and memory over time: one cursor for both, moved by mouse or arrow keys.

const calls = data.calls;
const numCalls = calls.seconds.length;
const KIND_CLASSES = { 'plan': 'plan', 'segments': 'segments', 'slices': 'slices', 'priming': 'whole', 'whole': 'whole', 'saved outputs': 'outputs', 'first call': 'first', 'rows': 'plan' };
const cursor = { call: numCalls - 1, lines: [], sliders: [] };

function buildCharts() {
  byId('calls-note').textContent = callsNote();
  memoryNote();
  for (const id of ['timeline', 'call', 'calls-table', 'memory-chart']) byId(id).hidden = !numCalls;
  if (!numCalls) return;
  timeline();
  memoryChart();
  fillWhenOpened('calls-table', callsTable);
  moveCursor(numCalls - 1, false);
}

function callsNote() {
  const { num_signatures: signatures } = data.function, { aborted } = data.stats;
  const num = many(calls.num, 'call') + (signatures > 1 ? ' with this signature' : '');
  const note = calls.num > numCalls ? `The latest ${exactly(numCalls)} of ${num}.`
    : numCalls ? `${num}.` : 'No call has returned yet.';
  return note + (numCalls ? ' Time until each call returned; results may have been ready later.' : '')
    + (aborted ? ` Calls that raised an error have no row; ${exactly(aborted)} did${signatures > 1 ? ', of all signatures' : ''}.` : '');
}

function kindOf(n) {
  return calls.kinds[calls.kind[n]];
}

function changedText(n) {
  const { num, names } = calls.changes[calls.changed[n]];
  if (num < 0) return 'rows or other inputs';
  if (!num) return 'nothing';
  return names.slice(0, 4).map(shortened).join(', ') + (num > 4 ? ` and ${exactly(num - 4)} more` : '');
}

const WIDTH = Math.min(Math.max(byId('timeline').clientWidth, 320), 1180), LEFT = 64, RIGHT = 10;

function frame(parent, height, label) {
  const svg = d3.select(parent).append('svg').attr('class', 'chart').attr('viewBox', `0 0 ${WIDTH} ${height}`)
    .attr('role', 'slider').attr('tabindex', 0).attr('aria-label', label).attr('aria-valuemin', calls.first + 1)
    .attr('aria-valuemax', calls.first + numCalls).attr('aria-valuenow', calls.first + numCalls);
  cursor.sliders.push(svg);
  svg.on('keydown', event => {
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
    if (event.key === 'Enter') { useCall(cursor.call); return; }
    if (!(event.key in steps)) return;
    event.preventDefault();
    moveCursor(Math.min(Math.max(cursor.call + steps[event.key], 0), numCalls - 1), true);
  });
  const at = event => Math.min(Math.max(Math.floor((d3.pointer(event)[0] - LEFT) / (WIDTH - LEFT - RIGHT) * numCalls), 0), numCalls - 1);
  svg.on('pointermove', event => moveCursor(at(event), false)).on('click', event => useCall(at(event)));
  return svg;
}

function place(n) {
  return LEFT + (n + 0.5) / numCalls * (WIDTH - LEFT - RIGHT);
}

function axis(svg, scale, top, title, format, ticks) {
  const group = svg.append('g').attr('class', 'grid').attr('transform', `translate(${LEFT},0)`);
  group.call(d3.axisLeft(scale).tickValues(ticks).tickSize(-(WIDTH - LEFT - RIGHT)).tickFormat(format)).select('.domain').remove();
  svg.append('text').attr('class', 'title').attr('x', LEFT).attr('y', top - 7).text(title);
}

function callAxis(svg, y) {
  const scale = d3.scaleLinear([calls.first + 1, calls.first + numCalls], [place(0), place(numCalls - 1)]);
  const ticks = numCalls > 1 ? scale.ticks(WIDTH / 90).filter(Number.isInteger) : [calls.first + 1];
  svg.append('g').selectAll('text').data(ticks).join('text').attr('x', scale).attr('y', y).attr('text-anchor', 'middle').text(t => exactly(t));
}

function addCursor(svg, y0, y1) {
  cursor.lines.push(svg.append('line').attr('class', 'cursor').attr('y1', y0).attr('y2', y1));
}

/** Ticks that keep apart: powers of ten, or those times 1, 2 and 5, or few round numbers. */
function logTicks(low, high) {
  const within = factors => d3.range(-8, 7).flatMap(p => factors.map(k => Number(`${k}e${p}`))).filter(t => t >= low && t <= high);
  return [within([1]), within([1, 2, 5])].find(ticks => ticks.length > 1) || d3.ticks(low, high, 3);
}

/** Seconds on a logarithmic axis, and below them how many equations ran. */
function timeline() {
  const svg = frame('#timeline', 300, 'Calls: left and right arrows move from call to call, Enter shows one in the map');
  const times = calls.seconds.map(s => Math.max(s, 1e-7));
  const y = d3.scaleLog([d3.min(times) / 1.5, d3.max(times) * 1.2], [170, 24]).clamp(true);
  axis(svg, y, 24, 'time of the call', duration, logTicks(...y.domain()));
  const width = Math.max((WIDTH - LEFT - RIGHT) / numCalls - (numCalls > 300 ? 0 : 1), 0.8);
  const bars = svg.append('g').selectAll('rect').data(d3.range(numCalls)).join('rect')
    .attr('class', n => `k-${KIND_CLASSES[kindOf(n)] || 'outputs'}`).attr('x', n => place(n) - width / 2).attr('width', width);
  bars.attr('y', n => y(times[n])).attr('height', n => 170 - y(times[n]));
  const isRows = calls.kinds.includes('rows');
  const ran = d3.scaleLinear([0, d3.max(calls.ran) || 1], [272, 206]).nice();
  axis(svg, ran, 206, isRows ? 'chunks run' : 'equations run', count, ran.ticks(3));
  svg.append('g').selectAll('rect').data(d3.range(numCalls)).join('rect')
    .attr('class', n => `k-${KIND_CLASSES[kindOf(n)] || 'outputs'}`).attr('x', n => place(n) - width / 2).attr('width', width)
    .attr('y', n => ran(calls.ran[n])).attr('height', n => 272 - ran(calls.ran[n]));
  callAxis(svg, 292);
  addCursor(svg, 20, 274);
  const kinds = d3.rollups(d3.range(numCalls), part => part.length, kindOf);
  byId('timeline').append(make('ul', { className: 'kinds', ariaLabel: 'What served the calls' }, kinds.map(([kind, num]) =>
    make('li', {}, make('i', { className: `b-${KIND_CLASSES[kind] || 'outputs'}`, ariaHidden: 'true' }), `${kind}: ${many(num, 'call')}`))));
}

function memoryNote() {
  const { saved_bytes: saved, budget_bytes: budget, num_saved: num, versions } = data.memory;
  byId('memory-note').textContent = `${many(num, 'value')} saved, ${byteCount(saved)} of a budget of ${byteCount(budget)}; up to ${versions} versions are kept.`
    + (numCalls ? ' Bytes are added up after each of the first calls, after each that computed saved values, and after one in 16.' : '');
}

function memoryChart() {
  const svg = frame('#memory-chart', 190, 'Saved bytes after each call: arrows move from call to call');
  const most = d3.max(calls.saved_bytes) || 1;
  const budget = data.memory.budget_bytes;
  const isNear = budget <= 4 * most;
  const y = d3.scaleLinear([0, isNear ? budget * 1.05 : most * 1.15], [162, 24]);
  axis(svg, y, 24, 'saved bytes', byteCount, y.ticks(4));
  const steps = d3.area().x((_, n) => place(n)).y0(162).y1(y).curve(d3.curveStepAfter);
  svg.append('path').attr('class', 'area').attr('d', steps(calls.saved_bytes));
  svg.append('path').attr('class', 'line').attr('d', d3.line().x((_, n) => place(n)).y(y).curve(d3.curveStepAfter)(calls.saved_bytes));
  if (isNear) svg.append('line').attr('class', 'budget').attr('x1', LEFT).attr('x2', WIDTH - RIGHT).attr('y1', y(budget)).attr('y2', y(budget));
  svg.append('text').attr('x', WIDTH - RIGHT).attr('y', isNear ? y(budget) - 5 : 14).attr('text-anchor', 'end')
    .text(isNear ? 'budget' : `budget ${byteCount(budget)}, far above`);
  callAxis(svg, 182);
  addCursor(svg, 20, 164);
}

function callText(n) {
  const rows = kindOf(n) === 'rows';
  const did = rows ? '' : `, ${many(calls.ran[n], 'equation')} run, ${exactly(calls.loaded[n])} loaded, ${exactly(calls.filled[n])} filled`;
  return `call ${exactly(calls.first + n + 1)}: ${changedText(n)} changed; ${kindOf(n)}, ${duration(calls.seconds[n])}${did}`;
}

function moveCursor(n, isKey) {
  if (n === cursor.call && cursor.shown && !isKey) return;
  Object.assign(cursor, { call: n, shown: true });
  for (const line of cursor.lines) line.attr('x1', place(n)).attr('x2', place(n));
  for (const slider of cursor.sliders) slider.attr('aria-valuenow', calls.first + n + 1).attr('aria-valuetext', callText(n));
  const saved = numCalls && data.memory ? `, ${byteCount(calls.saved_bytes[n])} saved` : '';
  byId('call').replaceChildren(make('div', {}, make('b', {}, `Call ${exactly(calls.first + n + 1)}`), callText(n).replace(/^call [\d,]+/, ''), saved),
    make('div', { className: 'note' }, calls.whys[calls.why[n]]));
}

/** Show what a call changed in the map. */
function useCall(n) {
  moveCursor(n, true);
  const { mask } = calls.changes[calls.changed[n]];
  if (mask === null) return;
  choose(changeOf({ mask, slice: calls.slice[n] }));
  byId('call').append(make('div', {}, 'The map shows this change. ',
    make('button', { type: 'button', className: 'link', onclick: () => showChange({ mask, slice: calls.slice[n] }) }, 'See what the engine would run')));
}

function callsTable() {
  const rows = d3.range(numCalls).reverse().map(n => [
    exactly(calls.first + n + 1), changedText(n), kindOf(n), { number: duration(calls.seconds[n]) }, { number: exactly(calls.ran[n]) },
    { number: exactly(calls.loaded[n]) }, { number: byteCount(calls.saved_bytes[n]) }, calls.whys[calls.why[n]],
  ]);
  return table('Calls, the latest first', ['call', 'changed', 'served by', 'time', 'equations run', 'loaded', 'saved', 'why'], rows);
}
