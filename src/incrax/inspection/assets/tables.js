// Plans and their races, saved values, and inputs against groups of equations.

const MAX_COLUMNS = 10;
const MAX_ROWS = 80;

function buildTables() {
  plansTable();
  savedTable();
  workTable();
}

function plansTable() {
  const whole = data.whole;
  byId('plans-note').replaceChildren(...coded(`The whole ${data.function.has_rows ? 'function of one chunk' : 'function'} takes ${duration(whole.seconds)} (${whole.is_measured ? 'measured' : 'estimated'}); `
    + (whole.first_s ? `its first run, with compilation, took ${duration(whole.first_s)}. ` : 'it has not run by itself yet. ')
    + `Trying candidates has cost ${whole.lost_s ? duration(whole.lost_s) : 'nothing'} so far.`
    + (data.function.bypasses ? ' The next calls are those of jax.jit, since saving did not pay.' : '')));
  if (!data.plans.length) {
    byId('plans-table').replaceChildren(make('p', {}, 'No change has been seen yet.'));
    return;
  }
  const most = d3.max(data.plans.flatMap(plan => plan.candidates), c => c.seconds) || whole.seconds || 1;
  byId('plans-table').replaceChildren(table('Plans', ['change', 'seen', 'served by', 'race', 'equations run', 'loaded', 'why'], data.plans.map(plan => [
    make('button', { type: 'button', className: 'link', onclick: () => showChange(plan) }, shownNames(BigInt(plan.mask), 4), plan.slice < 0 ? '' : `, ${slices[plan.slice].rows.split(' of ')[0]} rows`),
    { number: exactly(plan.count) }, plan.candidate, race(plan, most),
    { number: plan.num_derived ? `${exactly(plan.num_ran)} (${exactly(plan.num_derived)} derived)` : `${exactly(plan.num_ran)} of ${exactly(numEquations)}` }, { number: plan.num_loaded ? `${exactly(plan.num_loaded)} (${byteCount(plan.loaded_bytes)})` : '0' },
    make('span', {}, [plan.why, ...plan.statistics].join('; ')),
  ])));
}

/** The candidates as bars of their seconds. */
function race(plan, most) {
  if (!plan.candidates.length) return plan.promise_s === null ? 'no race yet' : `a plan promises ${duration(plan.promise_s)}`;
  return make('div', { className: 'race' }, plan.candidates.flatMap(c => {
    const bar = make('i', { className: `b-${c.name}${c.is_measured ? '' : ' expected'}`, ariaHidden: 'true' });
    bar.style.width = `${100 * c.seconds / most}%`;
    const chosenClass = c.name === plan.candidate ? 'is-chosen' : '';
    return [make('span', { className: chosenClass }, c.name), bar,
      make('span', { className: chosenClass }, `${duration(c.seconds)}${c.is_measured ? '' : ', expected'}${c.name === plan.candidate ? ' ✓' : ''}`)];
  }));
}

function showChange(found) {
  choose({ ...changeOf(found), view: 'engine' });
  checkView();
  byId('map').scrollIntoView();
  byId('map').focus({ preventScroll: true });
}

function savedTable() {
  const { saved, num_saved: num } = data.memory;
  if (!num) {
    byId('saved-table').replaceChildren(make('p', { className: 'note' }, 'Nothing.'));
    return;
  }
  byId('saved-table').replaceChildren(table('Saved values', ['value', 'bytes', 'made by', 'source', 'depends on'], saved.map(value => {
    const n = value.equation, place = n < 0 ? null : eqs.places[eqs.place[n]];
    const { names, num: numNames } = value.depends_on;
    return [make('code', {}, value.name ? `${value.name} ${value.type}` : value.type), { number: byteCount(value.bytes) },
      n < 0 ? 'a plan (derived)' : primitive(n), place ? placeText(place) : '',
      names.slice(0, 4).map(shortened).join(', ') + (numNames > 4 ? ` and ${numNames - 4} more` : '') || 'no input'];
  })));
  addUnlisted('saved-table', num - saved.length);
}

/** How many rows, smaller than those that a table has, it leaves out. */
function addUnlisted(id, num) {
  if (num) byId(id).append(make('p', { className: 'note' }, `... and ${exactly(num)} smaller ones`));
}

/** Rows: inputs. Columns: groups of equations with the same dependence, the most expensive first. */
function workTable() {
  const costs = works.bySet;
  const order = d3.range(sets.length).sort((a, b) => costs[b].seconds - costs[a].seconds);
  const columns = order.slice(0, MAX_COLUMNS), rest = order.slice(MAX_COLUMNS);
  const most = d3.max(columns, s => costs[s].seconds) || 1;
  const inputs = data.leaves.map((leaf, index) => ({ leaf, mask: leafMask(leaf), total: works.byLeaf[index] }));
  inputs.sort((a, b) => b.total.seconds - a.total.seconds);
  byId('inputs-note').textContent = 'What runs again when an input changes: one column for each group of equations that depend on the same inputs, the most '
    + `expensive first${rest.length ? `; ${many(rest.length, 'smaller group')} are added up in the last` : ''}.`
    + (inputs.length > MAX_ROWS ? ` The ${MAX_ROWS} inputs with most work of ${exactly(inputs.length)}.` : '');
  const header = ['input', 'reaches', ...columns.map(s => `${shownNames(sets[s] & ~1n, 2)} (${many(costs[s].num, 'equation')})`), ...(rest.length ? ['other groups'] : [])];
  const rows = inputs.slice(0, MAX_ROWS).map(({ leaf, mask, total }) => [
    make('button', { type: 'button', className: 'link mono', onclick: () => showChange({ mask, slice: -1 }) }, leaf.path),
    `${many(total.num, 'equation')}, ${duration(total.seconds)} (${share(total.seconds, everything.seconds)})`,
    ...columns.map(s => sets[s] & mask ? workCell(costs[s].seconds, most) : ''),
    ...(rest.length ? [workCell(d3.sum(rest, s => sets[s] & mask ? costs[s].seconds : 0), most)] : []),
  ]);
  byId('inputs-table').replaceChildren(table('Inputs and work', header, rows));
}

function workCell(seconds, most) {
  if (!seconds) return '';
  const bar = make('i', { ariaHidden: 'true' });
  bar.style.width = `${Math.min(100 * seconds / most, 100)}%`;
  return make('div', { className: 'cell' }, bar, make('small', {}, duration(seconds)));
}
