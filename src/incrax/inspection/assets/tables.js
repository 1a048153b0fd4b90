// Inputs against groups of equations.

const MAX_COLUMNS = 6;
const MAX_ROWS = 80;

function showChange(found) {
  choose({ ...changeOf(found), view: 'engine' });
  checkView();
  byId('map').scrollIntoView();
  byId('map').focus({ preventScroll: true });
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
