"""Problem B: an amplitude analysis, intensity |sum of complex couplings x Breit-Wigner x angular
factor|^2.

As a user writes it, one amplitude after the other (unrolled) or all at once (vectorised), and as an
expert hoists it by hand for one change, in complex and in real arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Function = Callable[..., Any]
Couplings = Mapping[str, Any]
Shapes = Mapping[str, Any]
Pair = tuple[jax.Array, jax.Array]

NUM_EVENTS = 100_000
NUM_AMPLITUDES = 20
RADIUS = 5.0
MASS_A, MASS_B = 0.13957, 0.49368
SPINS = (0, 1, 2, 1)
WIDTH = 3
"""Number of the amplitude whose width changes."""


class Events(NamedTuple):
    """Mass, cosine of the helicity angle and azimuth of every event."""

    mass: jax.Array
    cosine: jax.Array
    phi: jax.Array


# --- what both forms share ------------------------------------------------------------------------


def momentum_squared(mass: Any) -> Any:
    """Squared break-up momentum of the two daughters."""
    above, below = mass**2 - (MASS_A + MASS_B) ** 2, mass**2 - (MASS_A - MASS_B) ** 2
    return jnp.maximum(above * below / (4.0 * mass**2), 1e-12)


def barrier(spin: int, z: Any) -> Any:
    """Blatt-Weisskopf factor of a spin at z = (q R)^2, without normalisation."""
    if spin == 0:
        return jnp.ones_like(z)
    return z / (1.0 + z) if spin == 1 else z**2 / ((z - 3.0) ** 2 + 9.0 * z)


def angular(number: int, events: Events) -> jax.Array:
    """Angular factor of an amplitude."""
    sine, phase = jnp.sqrt(1.0 - events.cosine**2), jnp.exp(1j * events.phi)
    factors = (
        jnp.ones_like(events.cosine) + 0j,
        events.cosine + 0j,
        -sine / np.sqrt(2.0) * phase,
        -np.sqrt(1.5) * sine * events.cosine * phase,
    )
    return factors[number % len(factors)]


def breit_wigner(mass: jax.Array, pole: Any, width: Any, ratio: Any) -> jax.Array:
    """Relativistic Breit-Wigner with running width; `ratio` is F, the ratio of the barrier
    factors.
    """
    running = (
        width * (pole / mass) * jnp.sqrt(momentum_squared(mass) / momentum_squared(pole)) * ratio
    )
    return pole * width * jnp.sqrt(ratio) / (pole**2 - mass**2 - 1j * pole * running)


def likelihood(data: jax.Array, monte_carlo: jax.Array) -> jax.Array:
    """Negative log-likelihood from the intensities of data and of the simulation that normalises
    them.
    """
    return -jnp.sum(jnp.log(data)) + data.size * jnp.log(jnp.mean(monte_carlo))


# --- as a user writes it --------------------------------------------------------------------------


def intensity_unrolled(couplings: Couplings, shapes: Shapes, events: Events) -> jax.Array:
    """Intensity by a Python loop over the amplitudes."""
    total = 0.0
    for k in range(len(shapes["mass"])):
        spin, pole = SPINS[k % len(SPINS)], shapes["mass"][k]
        z, z_pole = momentum_squared(events.mass) * RADIUS**2, momentum_squared(pole) * RADIUS**2
        ratio = barrier(spin, z) / barrier(spin, z_pole)
        shape = breit_wigner(events.mass, pole, shapes["width"][k], ratio)
        total = total + (couplings["re"][k] + 1j * couplings["im"][k]) * shape * angular(k, events)
    return jnp.real(total) ** 2 + jnp.imag(total) ** 2


def intensity_vectorised(couplings: Couplings, shapes: Shapes, events: Events) -> jax.Array:
    """Intensity from arrays of shape (amplitudes, events)."""
    numbers = np.arange(len(shapes["mass"]))
    spins = np.array(SPINS)[numbers % len(SPINS)]
    mass, pole, width = events.mass, shapes["mass"][:, None], jnp.asarray(shapes["width"])[:, None]

    def any_barrier(z: jax.Array) -> jax.Array:
        return jnp.select(
            [spins[:, None] == spin for spin in range(3)], [barrier(spin, z) for spin in range(3)]
        )

    z = jnp.broadcast_to(momentum_squared(mass) * RADIUS**2, (len(numbers), len(mass)))
    ratio = any_barrier(z) / any_barrier(momentum_squared(pole) * RADIUS**2)
    factors = jnp.stack([angular(k, events) for k in range(len(SPINS))])
    amplitudes = breit_wigner(mass, pole, width, ratio) * factors[numbers % len(SPINS)]
    total = (couplings["re"] + 1j * couplings["im"]) @ amplitudes
    return jnp.real(total) ** 2 + jnp.imag(total) ** 2


def nll_unrolled(
    couplings: Couplings, shapes: Shapes, data: Events, monte_carlo: Events
) -> jax.Array:
    """Likelihood by loops over the amplitudes."""
    return likelihood(
        intensity_unrolled(couplings, shapes, data),
        intensity_unrolled(couplings, shapes, monte_carlo),
    )


def nll_vectorised(
    couplings: Couplings, shapes: Shapes, data: Events, monte_carlo: Events
) -> jax.Array:
    """Likelihood by arrays over the amplitudes."""
    return likelihood(
        intensity_vectorised(couplings, shapes, data),
        intensity_vectorised(couplings, shapes, monte_carlo),
    )


def of_width(nll: Function) -> Function:
    """The likelihood with one width as its first argument, to differentiate by it.

    The widths become a list, so that the unrolled form differentiates one amplitude. (From one
    array with an element replaced, JAX differentiates all of them, and XLA computes every
    derivative to return one.)
    """

    def nll_of_width(width: Any, *rest: Any) -> jax.Array:
        couplings, shapes, data, monte_carlo = rest
        widths = [width if k == WIDTH else shapes["width"][k] for k in range(len(shapes["width"]))]
        return nll(couplings, {**shapes, "width": widths}, data, monte_carlo)

    return nll_of_width


def in_two_programs(
    function: Callable[[Function], Function] = lambda f: f, *, by_width: bool = False
) -> Function:
    """The fastest form without hoisting that we know: data and simulation unrolled, each in a
    program of its own.
    """

    def data_term(couplings: Couplings, shapes: Shapes, data: Events, _: Events) -> jax.Array:
        return -jnp.sum(jnp.log(intensity_unrolled(couplings, shapes, data)))

    def integral_term(
        couplings: Couplings, shapes: Shapes, data: Events, monte_carlo: Events
    ) -> jax.Array:
        return data.mass.size * jnp.log(
            jnp.mean(intensity_unrolled(couplings, shapes, monte_carlo))
        )

    terms = [of_width(term) if by_width else term for term in (data_term, integral_term)]
    first, second = (jax.jit(function(term)) for term in terms)
    add = jax.jit(lambda x, y: jax.tree.map(jnp.add, x, y))
    return lambda *args: add(first(*args), second(*args))


# --- inputs ---------------------------------------------------------------------------------------


class Inputs(NamedTuple):
    """Arguments of the likelihoods."""

    couplings: dict[str, np.ndarray]
    shapes: dict[str, np.ndarray]
    data: Events
    monte_carlo: Events


def make_inputs(
    num_amplitudes: int = NUM_AMPLITUDES, num_events: int = NUM_EVENTS, seed: int = 1
) -> Inputs:
    """Uniform data and simulation, `num_amplitudes` resonances (twice as many real couplings)."""
    rng = np.random.default_rng(seed)
    numbers = np.arange(num_amplitudes)
    couplings = {"re": np.cos(1.0 * numbers), "im": np.sin(1.0 * numbers)}
    shapes = {
        "mass": np.linspace(0.9, 2.3, num_amplitudes),
        "width": np.linspace(0.05, 0.25, num_amplitudes),
    }
    return Inputs(couplings, shapes, _make_events(rng, num_events), _make_events(rng, num_events))


def _make_events(rng: np.random.Generator, num_events: int) -> Events:
    ranges = (0.75, 2.5), (-1.0, 1.0), (-np.pi, np.pi)
    return Events(*(jnp.asarray(rng.uniform(low, high, num_events)) for low, high in ranges))


# --- hoisted by hand: called with the arguments of the likelihoods, of which only the couplings may
# change ------------


def hoisted_couplings(
    inputs: Inputs, transform: Callable[[Function], Function] = lambda f: f
) -> Function:
    """The amplitudes are computed once; the couplings meet them in two complex matrix-vector
    products.
    """
    amplitudes = _all_amplitudes(inputs)

    def nll(couplings: Couplings, data: jax.Array, monte_carlo: jax.Array) -> jax.Array:
        totals = [(couplings["re"] + 1j * couplings["im"]) @ a for a in (data, monte_carlo)]
        return likelihood(*(jnp.real(total) ** 2 + jnp.imag(total) ** 2 for total in totals))

    compiled = jax.jit(transform(nll))
    return lambda couplings, *_: compiled(couplings, *amplitudes)


def hoisted_couplings_real(
    inputs: Inputs, transform: Callable[[Function], Function] = lambda f: f
) -> Function:
    """The same with real and imaginary parts apart."""
    parts = [(a.real.copy(), a.imag.copy()) for a in _all_amplitudes(inputs)]

    def intensity(couplings: Couplings, real: jax.Array, imag: jax.Array) -> jax.Array:
        total_re = couplings["re"] @ real - couplings["im"] @ imag
        total_im = couplings["re"] @ imag + couplings["im"] @ real
        return total_re**2 + total_im**2

    def nll(couplings: Couplings, data: Pair, monte_carlo: Pair) -> jax.Array:
        return likelihood(intensity(couplings, *data), intensity(couplings, *monte_carlo))

    compiled = jax.jit(transform(nll))
    return lambda couplings, *_: compiled(couplings, *parts)


def _all_amplitudes(inputs: Inputs) -> Sequence[jax.Array]:
    """Arrays (amplitudes, events) without couplings, of data and of simulation."""

    @jax.jit
    def amplitudes(shapes: Shapes, events: Events) -> jax.Array:
        return jnp.stack(
            [_amplitude(k, shapes["mass"][k], shapes["width"][k], events) for k in range(num)]
        )

    num = len(inputs.shapes["mass"])
    return [amplitudes(inputs.shapes, events) for events in (inputs.data, inputs.monte_carlo)]


def _amplitude(number: int, pole: Any, width: Any, events: Events) -> jax.Array:
    return breit_wigner(events.mass, pole, width, _ratio(number, pole, events)) * angular(
        number, events
    )


def _ratio(number: int, pole: Any, events: Events) -> jax.Array:
    spin = SPINS[number % len(SPINS)]
    z, z_pole = momentum_squared(events.mass) * RADIUS**2, momentum_squared(pole) * RADIUS**2
    return barrier(spin, z) / barrier(spin, z_pole)


# --- hoisted by hand: called with the one width (or the likelihood's arguments), nothing else may
# change -------------


def hoisted_width(inputs: Inputs, *, with_gradient: bool) -> Function:
    """All other amplitudes are summed once; one Breit-Wigner is left, in complex arithmetic."""
    pole = inputs.shapes["mass"][WIDTH]

    @jax.jit
    def prepare(events: Events) -> tuple[jax.Array, ...]:
        rest, factor = _rest_and_factor(inputs, events)
        return rest, factor, events.mass, _ratio(WIDTH, pole, events)

    def intensity(
        width: Any, rest: jax.Array, factor: jax.Array, mass: jax.Array, ratio: jax.Array
    ) -> jax.Array:
        total = rest + factor * breit_wigner(mass, pole, width, ratio)
        return jnp.real(total) ** 2 + jnp.imag(total) ** 2

    return _of_one_width(inputs, prepare, intensity, with_gradient=with_gradient)


def hoisted_width_real(inputs: Inputs, *, with_gradient: bool) -> Function:
    """The same in real arithmetic; what the Breit-Wigner takes from the events is computed once,
    too.

    With t = pole width, BW = t sqrt(F) (d + i t r) / (d^2 + t^2 r^2), d = pole^2 - m^2, r the
    running width over width.
    """
    pole = inputs.shapes["mass"][WIDTH]

    @jax.jit
    def prepare(events: Events) -> tuple[jax.Array, ...]:
        rest, factor = _rest_and_factor(inputs, events)
        ratio = _ratio(WIDTH, pole, events)
        running = (
            pole
            / events.mass
            * jnp.sqrt(momentum_squared(events.mass) / momentum_squared(pole))
            * ratio
        )
        factor = factor * jnp.sqrt(ratio)
        return rest.real, rest.imag, factor.real, factor.imag, pole**2 - events.mass**2, running

    def intensity(width: Any, *columns: jax.Array) -> jax.Array:
        rest_re, rest_im, factor_re, factor_im, distance, running = columns
        strength = pole * width
        damping = strength * running
        scale = strength / (distance**2 + damping**2)
        total_re = rest_re + scale * (factor_re * distance - factor_im * damping)
        total_im = rest_im + scale * (factor_re * damping + factor_im * distance)
        return total_re**2 + total_im**2

    return _of_one_width(inputs, prepare, intensity, with_gradient=with_gradient)


def _rest_and_factor(inputs: Inputs, events: Events) -> tuple[jax.Array, jax.Array]:
    """Sum of all amplitudes but one, and what multiplies that one's Breit-Wigner."""
    couplings = inputs.couplings["re"] + 1j * inputs.couplings["im"]
    mass, width = inputs.shapes["mass"], inputs.shapes["width"]
    others = [k for k in range(len(mass)) if k != WIDTH]
    rest = sum(couplings[k] * _amplitude(k, mass[k], width[k], events) for k in others)
    return jnp.asarray(rest), couplings[WIDTH] * angular(WIDTH, events)


def _of_one_width(
    inputs: Inputs, prepare: Function, intensity: Function, *, with_gradient: bool
) -> Function:
    """Compile the likelihood of one width; one derivative is cheapest along with the value (forward
    mode).
    """
    saved = prepare(inputs.data), prepare(inputs.monte_carlo)

    def nll(width: Any, data: Sequence[jax.Array], monte_carlo: Sequence[jax.Array]) -> jax.Array:
        return likelihood(intensity(width, *data), intensity(width, *monte_carlo))

    def value_and_derivative(
        width: Any, *columns: Sequence[jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return jax.jvp(lambda w: nll(w, *columns), (width,), (jnp.ones_like(width),))

    compiled = jax.jit(value_and_derivative if with_gradient else nll)
    if with_gradient:
        return lambda width, *_: compiled(width, *saved)
    return lambda _, shapes, *__: compiled(shapes["width"][WIDTH], *saved)
