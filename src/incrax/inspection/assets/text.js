// Numbers, places and elements as text and nodes.

const exactly = d3.format(',');

function count(n) {
  return n < 1e6 ? exactly(Math.round(n)) : d3.format('.3s')(n).replace('G', ' G').replace('M', ' M').replace('T', ' T');
}

function duration(s) {
  if (s === null || s === undefined) return 'unknown';
  if (s === 0) return '0 s';
  for (const [unit, factor] of [['s', 1], ['ms', 1e-3], ['µs', 1e-6], ['ns', 1e-9]]) {
    if (s >= factor || unit === 'ns') return `${Number((s / factor).toPrecision(3))} ${unit}`;
  }
}

function byteCount(n) {
  for (const [unit, factor] of [['GB', 1e9], ['MB', 1e6], ['kB', 1e3]]) {
    if (n >= factor) return `${Number((n / factor).toPrecision(3))} ${unit}`;
  }
  return `${n} bytes`;
}

function share(part, whole) {
  if (!whole) return '0%';
  const percent = 100 * part / whole;
  return percent > 0 && percent < 1 ? '<1%' : `${Math.round(percent)}%`;
}

function many(n, word) {
  return `${exactly(n)} ${word}${n === 1 ? '' : 's'}`;
}

/** An element with properties, attributes and children. */
function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node && name !== 'role') node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter(child => child !== null));
  return node;
}

/** Text with code between backticks. */
function coded(text) {
  return text.split('`').map((part, n) => n % 2 ? make('code', {}, part) : part);
}

function byId(id) {
  return document.getElementById(id);
}

function placeText(place) {
  return place.file ? `${place.file}:${place.line} (${place.function})` : place.function;
}

/** A table from a header and rows of text or nodes; the first cell of a row is its header. */
function table(caption, header, rows) {
  const isNumber = cell => typeof cell === 'object' && cell !== null && 'number' in cell;
  const cells = row => row.map((cell, n) => {
    const content = isNumber(cell) ? cell.number : cell;
    const properties = n ? { className: isNumber(cell) ? 'number' : '' } : { scope: 'row' };
    return make(n ? 'td' : 'th', properties, content);
  });
  return make('table', {},
    make('caption', { className: 'visually-hidden' }, caption),
    make('thead', {}, make('tr', {}, header.map((name, n) =>
      make('th', { scope: 'col', className: rows.length && isNumber(rows[0][n]) ? 'number' : '' }, name)))),
    make('tbody', {}, rows.map(row => make('tr', {}, cells(row)))));
}

/** Fill a closed element when it is opened. */
function fillWhenOpened(id, fill) {
  const details = byId(id);
  details.addEventListener('toggle', () => {
    if (details.open) details.querySelector('.scroll').replaceChildren(fill());
  });
}
