// The page from top to bottom.

function buildHeader() {
  const { name, planner, num_equations: num, num_outputs: outputs, num_signatures: signatures, has_rows: hasRows } = data.function;
  byId('name').textContent = name;
  const { incrax, jax, python, devices } = data.machine;
  byId('about').textContent = [many(num, 'equation'), many(data.leaves.length, 'input'), many(outputs, 'output'),
    ...(hasRows ? ['one chunk of the rows'] : []), ...(signatures > 1 ? [`one of ${signatures} signatures`] : []), planner, `incrax ${incrax}, JAX ${jax}, Python ${python}`, devices].join(' · ');
  const stats = data.stats, memory = data.memory;
  const figures = [
    ['calls', exactly(stats.calls), `${exactly(stats.unchanged)} with nothing changed${stats.aborted ? `, ${exactly(stats.aborted)} raised` : ''}`
      + (signatures > 1 ? ', of all signatures' : '')],
    [hasRows ? 'whole chunk' : 'whole function', duration(everything.seconds), eqs.how],
    ['saved', byteCount(memory.saved_bytes), `of ${byteCount(memory.budget_bytes)} allowed`],
    ['programs compiled', exactly(stats.compiles), `${many(stats.traces, 'trace')}, ${many(stats.evicted, 'eviction')}`],
  ];
  byId('figures').append(...figures.map(([term, value, note]) => make('div', {}, make('dt', {}, term), make('dd', {}, value, make('small', {}, note)))));
}

function buildTheme() {
  for (const radio of document.querySelectorAll('input[name="theme"]')) {
    radio.addEventListener('change', () => {
      if (radio.value === 'auto') delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = radio.value;
    });
  }
}

/** Links inside the page: a frame without an address of its own cannot follow them by itself. */
function buildLinks() {
  for (const link of document.querySelectorAll('nav a, .skip')) {
    link.addEventListener('click', event => {
      event.preventDefault();
      const target = byId(link.getAttribute('href').slice(1));
      target.focus({ preventScroll: true });
      target.scrollIntoView();
    });
  }
}

/** Whether saving has been worth it, in the words of `explain`; and the seconds gained and lost, as bars. */
function buildVerdict() {
  const { sentence, ours, jit } = data.verdict;
  byId('worth').replaceChildren(...coded(sentence ? `Is it worth it: ${sentence}` : 'Is it worth it: nobody takes times here; what runs follows from dependence alone'));
  const total = parts => d3.sum(Object.values(parts)), most = Math.max(total(ours), total(jit));
  if (!most) return;
  const bar = (kind, seconds, start = 0) => {
    const node = make('i', { className: kind, ariaHidden: 'true' });
    node.dataset.seconds = seconds;
    Object.assign(node.style, { width: `${100 * seconds / most}%`, marginLeft: `${100 * start / most}%` });
    return node;
  };
  const row = (name, bars, text) => [make('dt', {}, name), make('dd', {}, make('div', { className: 'bars' }, bars), text)];
  const whole = (name, parts) => row(name, Object.entries(parts).map(([what, seconds]) => bar(what, seconds)),
    `${duration(total(parts))}: ${Object.entries(parts).map(([what, seconds]) => `${what} ${duration(seconds)}`).join(', ')}`);
  const gain = total(jit) - total(ours), name = gain < 0 ? 'lost' : 'gained', inCalls = jit.calls - ours.calls;
  byId('seconds').replaceChildren(...whole('jax.jit', jit), ...whole('incrax', ours),
    ...row(name, bar(name, Math.abs(gain), Math.min(total(jit), total(ours))),
      `${duration(Math.abs(gain))}: calls ${inCalls < 0 ? 'lost' : 'gained'} ${duration(Math.abs(inCalls))}, learning took ${duration(ours.learning)}`));
}

/** Before anything is drawn, so that it is drawn once. */
function begin(change) {
  Object.assign(chosen, change, change.slice >= 0 ? { view: 'engine' } : {});
  checkView();
}

/** The change shown first: the last call's, or that of the first input. */
function firstChange() {
  const last = data.last && changeOf(data.last);
  return last && last.change ? last : { change: data.leaves.length ? leafMask(data.leaves[0]) : 0n };
}

buildTheme();
buildLinks();
buildHeader();
buildVerdict();
begin(firstChange());
buildInputs();
buildMap();
workTable();
document.documentElement.dataset.ready = 'yes';
