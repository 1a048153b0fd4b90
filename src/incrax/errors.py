"""All errors of incrax. Each message says what was seen, the usual cause, the consequence, and what
to do.
"""

from __future__ import annotations


class IncraxError(Exception):
    """Base of all errors of incrax."""


class UnsupportedLeafError(IncraxError, TypeError):
    """A leaf is neither a value for JAX nor a usable static value."""


class UnknownInputError(IncraxError, KeyError):
    """A path names no input."""

    def __str__(self) -> str:
        """The message as it is; `KeyError` would quote it."""
        return str(self.args[0])


class NotCalledError(IncraxError, RuntimeError):
    """A report was asked for before the first call."""


class DeletedInputError(IncraxError, RuntimeError):
    """An input's buffer was donated or deleted."""


class StepTypeError(IncraxError, TypeError):
    """An argument of a step is of another type than the pure form was made for."""


class MemoryBudgetError(IncraxError, MemoryError):
    """What must stay in memory does not fit the byte budget, or what runs does not fit the
    device.
    """


class RowsError(IncraxError, ValueError):
    """Rows do not fit together, or cannot be had."""


class RowShapeError(IncraxError, ValueError):
    """Parts of a row-sparse array do not fit together."""


class MixedRowsError(IncraxError, TypeError):
    """A function of `Rows` does something else with rows than map over them and reduce."""


class MissingExtraError(IncraxError, ImportError):
    """A library that only some functions need is not installed."""


class ReentrantCallError(IncraxError, RuntimeError):
    """A function was called from a callback that a call of it waits for."""


class StaleResultError(IncraxError, RuntimeError):
    """A result differs from that of a fresh evaluation."""


class SelectionError(IncraxError, TypeError):
    """`wrt` does not say what to differentiate, or what it says cannot be differentiated."""


class TangentError(IncraxError, TypeError):
    """A tangent or cotangent does not fit what it belongs to."""


class FreedResidualError(IncraxError, RuntimeError):
    """A pullback was asked for cotangents whose residuals `keep` has freed."""


class PreparedTypeError(IncraxError, TypeError):
    """An argument is of another type than the function was prepared for."""


class LoopTypeError(IncraxError, TypeError):
    """What a loop carries changes its type from turn to turn, or its inputs do not fit together."""


class CapacityError(IncraxError, ValueError):
    """There are more rows than there is room for."""


class TapeError(IncraxError, TypeError):
    """A function that cannot be recorded as a tape, or not under this transformation."""


class FloatGuardError(TapeError):
    """Python turned a traced float into a constant."""


class GuardOnEffectError(TapeError):
    """A branch depends on the result of an effect."""


class CapturedStateError(TapeError):
    """Something that a function captures cannot be compared, so that a change could go
    unnoticed.
    """


class NotReproducibleError(TapeError):
    """A function reads a clock or draws random numbers outside JAX, or takes another way at equal
    values.
    """


class PythonBranchError(TapeError):
    """Python asked for the value of a traced array where none is known."""


class TooManyPathsError(TapeError):
    """A function has more paths than a tape may hold."""


class NotABijectionError(IncraxError, TypeError):
    """What `remember` got has no form of bijection that is known."""


class BindError(IncraxError, TypeError):
    """Inputs do not fit the function that is bound, or what is asked of them."""


class InputValueError(IncraxError, ValueError):
    """A value does not fit the input that it is meant for."""


class AmbiguousInputError(UnknownInputError):
    """A name stands for several inputs."""


class BoundsError(IncraxError, ValueError):
    """Bounds do not fit the parameters."""


class ParameterTypeError(IncraxError, TypeError):
    """A parameter has a type that cannot be fitted."""


class WeightsError(IncraxError, ValueError):
    """Weights do not fit the residuals."""


class CovarianceError(IncraxError, ValueError):
    """A covariance was asked for that is too large."""


class MethodError(IncraxError, ValueError):
    """A minimiser does not exist, or cannot do what was asked of it."""


class MinimumError(IncraxError, RuntimeError):
    """A result cannot answer what only a function, or a minimum, can."""


class StaleRepresentationsError(IncraxError, RuntimeError):
    """Representations of other parameters than those given would be used."""


class BlockError(IncraxError, ValueError):
    """Blocks do not fit the parameters."""


class ProposalError(IncraxError, ValueError):
    """A proposal's widths or a covariance do not fit the parameters."""


class StartError(IncraxError, ValueError):
    """A chain cannot start where it was told to."""


class PositionError(IncraxError, TypeError):
    """A position has another structure than what is sampled."""


class CostError(IncraxError, ValueError):
    """A cost that cannot be told, or not in the way that was asked for."""


class ReportError(IncraxError, TypeError):
    """There is no page about an object of this kind."""
