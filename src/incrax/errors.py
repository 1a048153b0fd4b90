"""All errors of incrax. Each message says what was seen, the usual cause, the consequence, and what
to do.
"""

from __future__ import annotations


class IncraxError(Exception):
    """Base of all errors of incrax.

    Example:
        >>> import incrax
        >>> try:
        ...     incrax.incremental(abs).explain()
        ... except incrax.IncraxError as error:
        ...     print(type(error).__name__)
        NotCalledError
    """


class UnsupportedLeafError(IncraxError, TypeError):
    """A leaf is neither a value for JAX nor a usable static value.

    Example:
        >>> import incrax
        >>> incrax.incremental(lambda x, tags: x)(1.0, {"a", "b"})
        Traceback (most recent call last):
            ...
        incrax.errors.UnsupportedLeafError: `incremental(f)` got `tags` of type set, which ...
    """


class UnknownInputError(IncraxError, KeyError):
    """A path names no input.

    Example:
        >>> import incrax
        >>> incrax.grad(lambda p: p["mu"] ** 2, wrt="p['nu']")({"mu": 1.0})
        Traceback (most recent call last):
            ...
        incrax.errors.UnknownInputError: `p['nu']` names no input of this function; its ...
    """

    def __str__(self) -> str:
        """The message as it is; `KeyError` would quote it."""
        return str(self.args[0])


class NotCalledError(IncraxError, RuntimeError):
    """A report was asked for before the first call.

    Example:
        >>> import incrax
        >>> incrax.incremental(lambda x: x).explain()
        Traceback (most recent call last):
            ...
        incrax.errors.NotCalledError: `explain()` needs a call to report on, and this ...
    """


class DeletedInputError(IncraxError, RuntimeError):
    """An input's buffer was donated or deleted.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> x = jnp.ones(2)
        >>> x.delete()
        >>> incrax.incremental(jnp.sum)(x)
        Traceback (most recent call last):
            ...
        incrax.errors.DeletedInputError: Array has been deleted: `incremental(f)` got `a` ...
    """


class StepTypeError(IncraxError, TypeError):
    """An argument of a step is of another type than the pure form was made for.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> state, step = incrax.incremental(jnp.sum).pure(jnp.ones(2))
        >>> step(state, jnp.ones(3))
        Traceback (most recent call last):
            ...
        incrax.errors.StepTypeError: `step` got `a` as ...
    """


class MemoryBudgetError(IncraxError, MemoryError):
    """The residuals of a loop's derivative do not fit its `memory`.

    Example:
        >>> import incrax, jax, jax.numpy as jnp
        >>> turn = lambda c, _: (jnp.sin(c), None)
        >>> jax.grad(lambda x: incrax.scan(turn, x, None, 64, memory=20)[0])(1.0)
        Traceback (most recent call last):
            ...
        incrax.errors.MemoryBudgetError: A loop of up to 64 turns was given 20 bytes ...
    """


class RowsError(IncraxError, ValueError):
    """Rows do not fit together, or cannot be had.

    Example:
        >>> import incrax, numpy as np
        >>> incrax.Rows(np.ones(3), chunk_rows=0)
        Traceback (most recent call last):
            ...
        incrax.errors.RowsError: `Rows(chunk_rows=...)` got 0; it must be a power of two, ...
    """


class RowShapeError(IncraxError, ValueError):
    """Parts of a row-sparse array do not fit together.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> incrax.RowSparse(jnp.array([0, 1]), jnp.ones((3, 2)), (4, 2))
        Traceback (most recent call last):
            ...
        incrax.errors.RowShapeError: `RowSparse(indices, values, shape)` got indices ...
    """


class MixedRowsError(IncraxError, TypeError):
    """A function of `Rows` does something else with rows than map over them and reduce.

    Example:
        >>> import incrax, jax.numpy as jnp, numpy as np
        >>> incrax.incremental(jnp.sort)(incrax.Rows(np.ones(100)))
        Traceback (most recent call last):
            ...
        incrax.errors.MixedRowsError: `incremental(f)` got `Rows`, which are evaluated ...
    """


class MissingExtraError(IncraxError, ImportError):
    """A library that only some functions need is not installed.

    Example:
        >>> import incrax
        >>> issubclass(incrax.errors.MissingExtraError, ImportError)
        True
    """


class ReentrantCallError(IncraxError, RuntimeError):
    """A function was called from a callback that a call of it waits for.

    Example:
        >>> import incrax
        >>> issubclass(incrax.errors.ReentrantCallError, RuntimeError)
        True
    """


class StaleResultError(IncraxError, RuntimeError):
    """A result differs from that of a fresh evaluation.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> wrong = lambda a, x: jnp.sum(incrax.keep(a * jnp.exp(x), deps=x))  # it depends on a too
        >>> f = incrax.incremental(wrong, tuning=incrax.Tuning(planner="minimal"))
        >>> values = f(1.0, jnp.ones(9)), f(1.5, jnp.ones(9))
        >>> with incrax.verify():
        ...     f(2.0, jnp.ones(9))
        Traceback (most recent call last):
            ...
        incrax.errors.StaleResultError: `<lambda>` returned an output that differs from a ...
    """


class SelectionError(IncraxError, TypeError):
    """`wrt` does not say what to differentiate, or what it says cannot be differentiated.

    Example:
        >>> import incrax
        >>> incrax.grad(lambda n: n**2)(3)
        Traceback (most recent call last):
            ...
        incrax.errors.SelectionError: `grad` has nothing to differentiate: of `n`, none is ...
    """


class TangentError(IncraxError, TypeError):
    """A tangent or cotangent does not fit what it belongs to.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> incrax.hvp(lambda x: jnp.sum(x**3))(jnp.ones(2), tangent=jnp.ones(3))
        Traceback (most recent call last):
            ...
        incrax.errors.TangentError: `hvp` got a tangent that is ...
    """


class FreedResidualError(IncraxError, RuntimeError):
    """A pullback was asked for cotangents whose residuals `keep` has freed.

    Example:
        >>> import incrax
        >>> value, pullback = incrax.vjp(lambda a, b: a * b, 2.0, 3.0)
        >>> num_bytes = pullback.keep(wrt="a")
        >>> pullback(1.0, wrt="b")
        Traceback (most recent call last):
            ...
        incrax.errors.FreedResidualError: The pullback was asked for the cotangent of `b` ...
    """


class PreparedTypeError(IncraxError, TypeError):
    """An argument is of another type than the function was prepared for.

    Example:
        >>> import incrax, numpy as np
        >>> p = incrax.prepare(lambda x: (x**2).sum(), np.ones(2))
        >>> p.gradient(np.ones(3))
        Traceback (most recent call last):
            ...
        incrax.errors.PreparedTypeError: `prepare(f).gradient` got `x` as ...
    """


class LoopTypeError(IncraxError, TypeError):
    """What a loop carries changes its type from turn to turn, or its inputs do not fit together.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> incrax.scan(lambda c, x: (jnp.array([c, x]), None), 0.0, jnp.ones(3))
        Traceback (most recent call last):
            ...
        incrax.errors.LoopTypeError: The function of `scan` got `carry` as ...
    """


class CapacityError(IncraxError, ValueError):
    """There are more rows than there is room for.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> incrax.scan(lambda c, x: (c + x, None), 0.0, jnp.ones(3), length=5)
        Traceback (most recent call last):
            ...
        incrax.errors.CapacityError: `scan` was asked for 5 rows or turns, and there is ...
    """


class TapeError(IncraxError, TypeError):
    """A function that cannot be recorded as a tape, or not under this transformation.

    Example:
        >>> import incrax, jax
        >>> issubclass(incrax.errors.PythonBranchError, incrax.errors.TapeError)
        True
    """


class FloatGuardError(TapeError):
    """Python turned a traced float into a constant.

    Example:
        >>> import incrax
        >>> incrax.guarded(lambda x: float(x) * 2)(1.5)
        Traceback (most recent call last):
            ...
        incrax.errors.FloatGuardError: `guarded(<lambda>)` saw floats turned into Python or ...
    """


class GuardOnEffectError(TapeError):
    """A branch depends on the result of an effect.

    Example:
        >>> import incrax, jax, numpy as np
        >>> from jax.experimental import io_callback
        >>> read = lambda x: io_callback(np.sin, jax.ShapeDtypeStruct((), x.dtype), x)
        >>> incrax.guarded(lambda x: x if read(x) > 0 else -x)(np.float32(2.0))
        Traceback (most recent call last):
            ...
        incrax.errors.GuardOnEffectError: Python asked for a value that `io_callback` made ...
    """


class CapturedStateError(TapeError):
    """Something that a function captures cannot be compared, so that a change could go
    unnoticed.

    Example:
        >>> import incrax
        >>> numbers = iter([1, 2, 3])
        >>> incrax.guarded(lambda x: x * next(numbers))(2.0)
        Traceback (most recent call last):
            ...
        incrax.errors.CapturedStateError: `guarded(<lambda>)` captures `numbers`, of type ...
    """


class NotReproducibleError(TapeError):
    """A function takes another way at equal values: it depends on something that was not seen.

    Example:
        >>> import gc, incrax
        >>> f = incrax.guarded(lambda n: n * int(n) if gc.isenabled() else n * bool(n))
        >>> y = f(2)
        >>> gc.disable()
        >>> f(3)
        Traceback (most recent call last):
            ...
        incrax.errors.NotReproducibleError: `guarded(<lambda>)` went another way than before ...
        >>> gc.enable()
    """


class PythonBranchError(TapeError):
    """Python asked for the value of a traced array where none is known.

    Example:
        >>> import incrax
        >>> incrax.incremental(lambda x: x if x > 0 else -x)(2.0)
        Traceback (most recent call last):
            ...
        incrax.errors.PythonBranchError: `incremental(<lambda>)` found Python control flow ...
    """


class TooManyPathsError(TapeError):
    """A function has more paths than a tape may hold.

    Example:
        >>> import incrax
        >>> f = incrax.guarded(lambda n, x: x * int(n), max_paths=1, fallback="error")
        >>> f(1, 2.0), f(2, 2.0)
        Traceback (most recent call last):
            ...
        incrax.errors.TooManyPathsError: `guarded(<lambda>)` has met more than 1 paths. ...
    """


class NotABijectionError(IncraxError, TypeError):
    """What `remember` got has no form of bijection that is known.

    Example:
        >>> from incrax import bijectors
        >>> bijectors.remember(3)
        Traceback (most recent call last):
            ...
        incrax.errors.NotABijectionError: `remember` got <class 'int'>, which has none of ...
    """


class BindError(IncraxError, TypeError):
    """Inputs do not fit the function that is bound, or what is asked of them.

    Example:
        >>> import incrax
        >>> incrax.bind(lambda mu: mu**2, nu=1.0)
        Traceback (most recent call last):
            ...
        incrax.errors.BindError: `bind(<lambda>)` got `nu`, and the function takes `mu`. ...
    """


class InputValueError(IncraxError, ValueError):
    """A value does not fit the input that it is meant for.

    Example:
        >>> import incrax, numpy as np
        >>> m = incrax.bind(lambda mu: mu**2, mu=1.0)
        >>> m.set(mu=np.ones(2))
        Traceback (most recent call last):
            ...
        incrax.errors.InputValueError: `mu` is of type ...
    """


class AmbiguousInputError(UnknownInputError):
    """A name stands for several inputs.

    Example:
        >>> import incrax
        >>> incrax.grad(lambda p, q: p["mu"] * q["mu"], wrt="mu")({"mu": 1.0}, {"mu": 2.0})
        Traceback (most recent call last):
            ...
        incrax.errors.AmbiguousInputError: `mu` may be `p['mu']`, `q['mu']`. Nothing was ...
    """


class BoundsError(IncraxError, ValueError):
    """Bounds do not fit the parameters.

    Example:
        >>> from incrax import fit
        >>> fit.minimize(lambda mu: mu**2, 3.0, bounds={"mu": (0, 1)})
        Traceback (most recent call last):
            ...
        incrax.errors.BoundsError: `minimize` starts with `mu` = 3, outside of its bounds ...
    """


class ParameterTypeError(IncraxError, TypeError):
    """A parameter has a type that cannot be fitted.

    Example:
        >>> from incrax import fit
        >>> fit.LeastSquaresSteps(lambda p, x: p - x).init(1.0 + 2.0j)
        Traceback (most recent call last):
            ...
        incrax.errors.ParameterTypeError: `LeastSquaresSteps` was asked to fit `p` of type ...
    """


class MethodError(IncraxError, ValueError):
    """A minimiser does not exist, or cannot do what was asked of it.

    Example:
        >>> from incrax import fit
        >>> fit.minimize(lambda mu: mu**2, 3.0, method="simplex")
        Traceback (most recent call last):
            ...
        incrax.errors.MethodError: `minimize(method=...)` got 'simplex'. Nothing was ...
    """


class MinimumError(IncraxError, RuntimeError):
    """A result cannot answer what only a function, or a minimum, can.

    Example:
        >>> from incrax import fit
        >>> fit.minimize(lambda p: p**2, 1.0).minos("q")
        Traceback (most recent call last):
            ...
        incrax.errors.MinimumError: 'q' names no free element of this fit. This is usually a typing ...
    """


class BlockError(IncraxError, ValueError):
    """Blocks do not fit the parameters.

    Example:
        >>> from incrax import samplers
        >>> w = samplers.Walk(0.5)
        >>> samplers.gibbs(lambda p: -(p["a"] ** 2), {"a": 0.0}, updates={"p": w, "p['a']": w}, key=0, num_sweeps=5)
        Traceback (most recent call last):
            ...
        incrax.errors.BlockError: `p['a']` belong to more than one block. Nothing was ...
    """


class ProposalError(IncraxError, ValueError):
    """A proposal's widths, or values of a row, do not fit the parameters.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import samplers
        >>> moves = {"mu": samplers.Walk([0.5, 0.5, 0.5])}
        >>> samplers.gibbs(lambda mu: -jnp.sum(mu**2), jnp.zeros(2), updates=moves, key=0, num_sweeps=5)
        Traceback (most recent call last):
            ...
        incrax.errors.ProposalError: `Walk` got [0.5, 0.5, 0.5] for the block of `mu[0]`, ...
    """


class StartError(IncraxError, ValueError):
    """A chain cannot start at the given point.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import samplers
        >>> samplers.gibbs(lambda mu: jnp.log(mu), -1.0, updates={"mu": samplers.Walk(1.0)}, key=0, num_sweeps=5)
        Traceback (most recent call last):
            ...
        incrax.errors.StartError: The log-density at the start is -inf. This is usually a ...
    """


class PositionError(IncraxError, TypeError):
    """A position has another structure than what is sampled.

    Example:
        >>> from incrax import samplers
        >>> density = samplers.logdensity(lambda p: -(p["a"] ** 2), {"a": 0.0})
        >>> density({"b": 0.0})
        Traceback (most recent call last):
            ...
        incrax.errors.PositionError: A log-density of positions of the structure ...
    """


class CostError(IncraxError, ValueError):
    """A cost that cannot be found, or not in the way that was asked for.

    Example:
        >>> import incrax
        >>> incrax.cost(lambda x: x**2, 3.0, branches="none")
        Traceback (most recent call last):
            ...
        incrax.errors.CostError: `cost(branches=...)` got 'none'; use 'max' or ...
    """


class ReportError(IncraxError, TypeError):
    """There is no page about an object of this kind.

    Example:
        >>> import incrax
        >>> incrax.report(lambda x: x)
        Traceback (most recent call last):
            ...
        incrax.errors.ReportError: `report(f)` got a function. A page shows what an ...
    """
