"""Topics of documents: latent Dirichlet allocation by collapsed Gibbs sampling.

    log p(words, topics) = sum_dk log G(n_dk + alpha) + sum_wk log G(n_wk + beta) - sum_k log G(n_k + W beta)

where n_dk counts the words of document d with topic k, n_wk those of word w, n_k all. A step takes
one word out, looks at the density with each topic, and draws one. A look reads the row of
its document and of its word. No conditional is derived by hand.

Run: python examples/lda.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import gammaln

import incrax

jax.config.update("jax_enable_x64", True)

NUM_DOCUMENTS, NUM_WORDS, NUM_TOPICS = 300, 800, 5
LENGTH = 60
"""Words of a document."""

ALPHA, BETA = 0.1, 0.05
NUM_SWEEPS = 15
NUM_WHOLE = 200
"""Steps with the whole density for each topic."""

ALL_TOPICS = jnp.arange(NUM_TOPICS, dtype=jnp.int32)


def log_density(by_document, by_word, by_topic):
    """Of counts, up to a constant."""
    return (
        jnp.sum(gammaln(by_document + ALPHA))
        + jnp.sum(gammaln(by_word + BETA))
        - jnp.sum(gammaln(by_topic + NUM_WORDS * BETA))
    )


def counted(documents, words, topics):
    """The three tables of counts."""
    one = jax.nn.one_hot(topics, NUM_TOPICS)
    by_document = jnp.zeros((NUM_DOCUMENTS, NUM_TOPICS)).at[documents].add(one)
    return by_document, jnp.zeros((NUM_WORDS, NUM_TOPICS)).at[words].add(one), one.sum(axis=0)


def with_topic(counts, d, w, old, new):
    """What changes where a word has another topic: its rows, and the sums."""
    move = jax.nn.one_hot(new, NUM_TOPICS) - jax.nn.one_hot(old, NUM_TOPICS)
    by_document, by_word, by_topic = counts
    return (d, by_document[d] + move), (w, by_word[w] + move), by_topic + move


@jax.jit
def sweep(sites, carry, documents, words, key):
    """A step for each word, in their order."""

    def step(carry, turn):
        state, topics = carry
        n, key = turn
        d, w, old = documents[n], words[n], topics[n]
        counts = tuple(sites.inputs(state).values())

        def looked(k):
            rows = with_topic(counts, d, w, old, k)
            return sites.look(state, dict(zip(sites.inputs(state), rows, strict=True)))

        values = lax.map(lambda k: looked(k)[1], ALL_TOPICS)
        new = jax.random.categorical(key, values).astype(jnp.int32)
        return (sites.settle(state, looked(new)[0]), topics.at[n].set(new)), None

    turns = jnp.arange(words.size), jax.random.split(key, words.size)
    return lax.scan(step, carry, turns)[0]


@jax.jit
def whole_steps(topics, documents, words, key):
    """The first steps, with the whole density for each topic."""

    def step(carry, turn):
        counts, topics = carry
        n, key = turn

        def written(k):
            (d, row), (w, other), sums = with_topic(counts, documents[n], words[n], topics[n], k)
            return counts[0].at[d].set(row), counts[1].at[w].set(other), sums

        values = jax.vmap(lambda k: log_density(*written(k)))(ALL_TOPICS)
        new = jax.random.categorical(key, values).astype(jnp.int32)
        return (written(new), topics.at[n].set(new)), None

    turns = jnp.arange(NUM_WHOLE), jax.random.split(key, words.size)[:NUM_WHOLE]
    return lax.scan(step, (counted(documents, words, topics), topics), turns)[0][1]


def texts():
    """Documents, words and true topics of all words: a topic prefers some words."""
    rng = np.random.default_rng(0)
    mixtures = rng.dirichlet(np.full(NUM_TOPICS, ALPHA), NUM_DOCUMENTS)
    vocabulary = rng.dirichlet(np.full(NUM_WORDS, BETA), NUM_TOPICS)
    documents = np.repeat(np.arange(NUM_DOCUMENTS, dtype=np.int32), LENGTH)
    topics = np.array([rng.choice(NUM_TOPICS, p=mixtures[d]) for d in documents], np.int32)
    words = np.array([rng.choice(NUM_WORDS, p=vocabulary[k]) for k in topics], np.int32)
    return jnp.asarray(documents), jnp.asarray(words), topics


def main():
    """Both ways, from the same topics with the same random numbers."""
    documents, words, truth = texts()
    topics = jax.random.randint(jax.random.key(0), words.shape, 0, NUM_TOPICS, jnp.int32)
    names = ("by_document", "by_word", "by_topic")
    moves = [("by_document[*]", "by_word[*]", "by_topic")]
    counts = counted(documents, words, topics)
    state, sites = incrax.incremental(log_density).sites(*counts, moves=moves)
    assert tuple(sites.inputs(state)) == names

    key = jax.random.key(1)
    first = jax.block_until_ready(sweep(sites, (state, topics), documents, words, key))
    run = whole_steps.lower(topics, documents, words, key).compile()
    begin_s = time.perf_counter()
    whole = jax.block_until_ready(run(topics, documents, words, key))
    whole_s = (time.perf_counter() - begin_s) / NUM_WHOLE
    assert np.array_equal(first[1][:NUM_WHOLE], whole[:NUM_WHOLE])
    print(f"the first {NUM_WHOLE} topics are the same")

    carry = first
    begin_s = time.perf_counter()
    for own in jax.random.split(jax.random.key(2), NUM_SWEEPS):
        carry = jax.block_until_ready(sweep(sites, carry, documents, words, own))
    ours_s = (time.perf_counter() - begin_s) / NUM_SWEEPS / words.size
    print(
        f"a word: incrax {1e6 * ours_s:.1f} us, the whole density by jax.jit {1e6 * whole_s:.0f} us, "
        f"{whole_s / ours_s:.0f} times"
    )

    state, topics = carry
    expected = counted(documents, words, topics)
    assert all(map(np.array_equal, sites.inputs(state).values(), expected))
    truth_value = float(log_density(*counted(documents, words, truth)))
    found = float(log_density(*expected))
    print(
        f"log-density: start {float(log_density(*counts)):.0f}, found {found:.0f}, truth {truth_value:.0f}"
    )
    assert found > float(log_density(*counts)) + 0.8 * (truth_value - float(log_density(*counts)))


if __name__ == "__main__":
    main()
