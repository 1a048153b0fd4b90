"""Functions as syntax: the definition of a function, exits moved to the ends of sides, what a side assigns.

In: functions of Python. Out: trees that are the function for sure. It must not know what they are rewritten to.
"""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import inspect
import linecache
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from incrax._locations import shortened
from incrax.control_flow.tapes.captured import all_codes

OURS = "_incrax"
"""Name by which rewritten code finds incrax, and beginning of the names that it adds."""

MAX_NESTED = 16
"""Branches inside one another in a function that is rewritten, at most; its copies grow by their product."""

RESULT = f"{OURS}_result"
_FUTURE = functools.reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SCOPES = frozenset("locals vars dir eval exec globals".split())
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_STATEMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.For, ast.Pass, ast.Expr)
_SUSPENDING = (ast.Await, ast.Yield, ast.YieldFrom)


class Refused(Exception):
    """A function or a branch stays as it is; carries why."""


# --- definitions ------------------------------------------------------------------------------------------------------


def definition(fun: FunctionType) -> ast.FunctionDef:
    """The `def` statement of a function, a copy.

    Raises:
        Refused: there is none that compiles to the function's own code.
    """
    code = fun.__code__
    if code.co_flags & _SUSPENDED or not _SCOPES.isdisjoint(code.co_names):
        raise Refused(f"`{code.co_name}` is a generator, or reads its variables by name")
    source = "".join(linecache.getlines(code.co_filename, fun.__globals__))
    for node in _definitions(source):
        if (node.name, _first_line(node)) == (code.co_name, code.co_firstlineno) and code in _codes(
            source, code.co_flags & _FUTURE
        ):
            return _bare(node)
    raise Refused(f"the source of `{code.co_name}` is not known, or it is no `def`")


@functools.lru_cache(maxsize=16)
def _definitions(source: str) -> list[ast.FunctionDef]:
    try:
        return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    except SyntaxError:
        return []


@functools.lru_cache(maxsize=16)
def _codes(source: str, flags: int) -> set[CodeType]:
    """The code of all functions of a file."""
    return set(all_codes(compile(source, "", "exec", flags, dont_inherit=True)))


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _bare(node: ast.FunctionDef) -> ast.FunctionDef:
    """A definition without what is evaluated where it stands: decorators, defaults, annotations."""
    bare = copy.deepcopy(node)
    bare.decorator_list, bare.returns, bare.args.defaults = [], None, [ast.Constant(None) for _ in bare.args.defaults]
    bare.args.kw_defaults = [None if x is None else ast.Constant(None) for x in bare.args.kw_defaults]
    for arg in ast.walk(bare.args):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    return bare


def compiled(node: ast.FunctionDef, code: CodeType) -> CodeType:
    """The code of a definition in the place of another with the same free variables.

    Raises:
        Refused: a name is mangled by the class around it, or means another variable than in the function.
    """
    names = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    names |= {x.attr for x in ast.walk(node) if isinstance(x, ast.Attribute)}
    if any(name.startswith("__") and not name.endswith("__") for name in names):
        raise Refused(f"`{code.co_name}` uses names that are private to a class")
    free = [name for name in code.co_freevars if name != OURS]
    module = ast.parse(f"def factory({', '.join([*free, OURS])}): pass")
    factory: Any = module.body[0]
    node.name, name = f"{OURS}_function", node.name
    factory.body = [node]
    ast.fix_missing_locations(module)
    found = compile(module, code.co_filename, "exec", code.co_flags & _FUTURE, dont_inherit=True)
    for _ in range(2):
        found = next(x for x in found.co_consts if isinstance(x, CodeType))
    if not {*free, OURS}.issuperset(found.co_freevars):
        raise Refused(f"`{name}` reads a variable that is another one in a copy")
    return found.replace(co_name=code.co_name, co_qualname=code.co_qualname)


def place_of_node(node: ast.AST, filename: str) -> str:
    """File, line and text of an expression, as in a guard."""
    text = shortened(_segment(linecache.getlines(filename), node))
    return f"{os.path.basename(filename)}:{getattr(node, 'lineno', 0)}: {text}"


def _segment(lines: Sequence[str], node: Any) -> str:
    """The text of an expression; what `ast.get_source_segment` gives, which splits the file each time."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    if not 0 < first <= last <= len(lines):
        return ""
    found = [line.encode() for line in lines[first - 1 : last]]
    found[-1] = found[-1][: node.end_col_offset]
    found[0] = found[0][node.col_offset :]
    return b"".join(found).decode()


# --- exits ------------------------------------------------------------------------------------------------------------


def with_one_exit(node: ast.FunctionDef) -> bool:
    """Let a function leave at its end, by moving what follows a side that returns into the other; whether it could."""
    try:
        body = _without(copy.deepcopy(node.body), ast.Return, _kept_result)
    except Refused:
        return False
    begin, end = (
        ast.Assign([ast.Name(RESULT, ast.Store())], ast.Constant(None)),
        ast.Return(ast.Name(RESULT, ast.Load())),
    )
    for x in (*ast.walk(begin), *ast.walk(end)):
        ast.copy_location(x, node.body[0])
    node.body = [begin, *body, end]
    return True


def without_continue(body: list[ast.stmt]) -> list[ast.stmt]:
    """The body of a loop whose turns leave at its end, where that can be had."""
    try:
        return _without(copy.deepcopy(body), ast.Continue, lambda x: [ast.copy_location(ast.Pass(), x)])
    except Refused:
        return body


def _kept_result(node: Any) -> list[ast.stmt]:
    value = node.value or ast.copy_location(ast.Constant(None), node)
    target = ast.copy_location(ast.Name(RESULT, ast.Store()), node)
    return [ast.copy_location(ast.Assign([target], value), node)]


def _without(body: list[ast.stmt], kind: type, leave: Callable[[Any], list[ast.stmt]]) -> list[ast.stmt]:
    """Statements without exits of one kind.

    Raises:
        Refused: what follows would have to stand on both sides.
    """
    for number, node in enumerate(body):
        if isinstance(node, kind):
            return [*body[:number], *leave(node)]
        if isinstance(node, ast.If) and _has(node, kind):
            rest, ends = body[number + 1 :], (_leaves(node.body, kind), _leaves(node.orelse, kind))
            if not any(ends):
                raise Refused("exits in the middle")
            node.body = _without(node.body if ends[0] else [*node.body, *rest], kind, leave)
            node.orelse = _without(node.orelse if ends[1] else [*node.orelse, *rest], kind, leave)
            return body[: number + 1]
    return body


def _leaves(body: Sequence[ast.stmt], kind: type) -> bool:
    """Whether a block always ends by an exit."""
    last = body[-1] if body else None
    return isinstance(last, kind) or (
        isinstance(last, ast.If) and _leaves(last.body, kind) and _leaves(last.orelse, kind)
    )


def _has(node: ast.AST, kind: type) -> bool:
    """Whether an exit stands in a statement, those of inner functions and, for turns, of inner loops left out."""
    hidden = (*_INNER, ast.For, ast.While) if kind is ast.Continue else _INNER
    return any(isinstance(x, kind) for x in _walk(node, hidden))


class _Turns(ast.NodeTransformer):
    """Moves what follows `continue`, in loops inside one another too."""

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        node.body = without_continue(node.body)
        return node

    visit_While = visit_For


def check_nesting(node: ast.FunctionDef) -> None:
    """Refuse a function whose branches are too deep once its exits are moved; each is copied as often as it is deep."""
    depth = _nesting(_Turns().visit(copy.deepcopy(node)))
    if depth > MAX_NESTED:
        raise Refused(
            f"{depth} branches of `{node.name}` are inside one another, or follow exits; at most {MAX_NESTED}"
        )


def _nesting(node: ast.AST) -> int:
    own = isinstance(node, (ast.If, ast.IfExp))
    if isinstance(node, (ast.BoolOp, ast.Compare)):
        own = len(node.values if isinstance(node, ast.BoolOp) else node.ops) - 1
    return own + max(map(_nesting, ast.iter_child_nodes(node)), default=0)


# --- what a side does -------------------------------------------------------------------------------------------------


def _walk(node: ast.AST, hidden: tuple[type, ...]) -> Iterator[ast.AST]:
    """A node and what is in it, without what is inside nodes of some types."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, hidden):
            yield from _walk(child, hidden)


def _loads(nodes: Sequence[ast.AST]) -> Counter[str]:
    """How often each name is read, in inner functions too; `x += 1` reads."""
    found: Counter[str] = Counter()
    for node in (x for top in nodes for x in ast.walk(top)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            found[node.id] += 1
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] += 1
    return found


def _assigned(body: Sequence[ast.stmt]) -> dict[str, None]:
    names = [x for top in body for x in _walk(top, (*_INNER, *_COMPREHENSIONS)) if isinstance(x, ast.Name)]
    return {x.id: None for x in names if isinstance(x.ctx, ast.Store)}


class Scope:
    """What is read where in a function."""

    def __init__(self, node: ast.FunctionDef) -> None:
        self.loads = _loads([node])
        inner = [x for x in ast.walk(node) if isinstance(x, (*_INNER, ast.GeneratorExp)) and x is not node]
        named = [x for x in ast.walk(node) if isinstance(x, (ast.Global, ast.Nonlocal))]
        self.shared = set(_loads(inner)).union(*(x.names for x in named))

    def results(self, node: ast.If) -> list[str]:
        """The variables that the sides of a branch assign and that may be read elsewhere.

        Raises:
            Refused: the sides do more than to assign variables.
        """
        for statement in (*node.body, *node.orelse):
            _check_statement(statement)
        names = _assigned([*node.body, *node.orelse])
        shared = sorted(self.shared.intersection(names))
        if shared:
            raise Refused(f"`{shared[0]}` is shared with an inner function or a global variable")
        return [name for name in names if not self._is_private(name, node)]

    def _is_private(self, name: str, node: ast.If) -> bool:
        """Whether a variable is written before it is read on each side, and read nowhere else."""
        sides = (node.body, node.orelse)
        return self.loads[name] == sum(_loads(side)[name] for side in sides) and all(
            _writes_first(side, name) for side in sides
        )


def _writes_first(side: Sequence[ast.stmt], name: str) -> bool:
    first = next((x for x in side if name in _loads([x]) or name in _assigned([x])), None)
    if isinstance(first, ast.For):
        return name in _assigned([first]) and _loads([first])[name] == _loads(side)[name] and _is_target(first, name)
    return first is None or (isinstance(first, ast.Assign) and name not in _loads([first.value]))


def _is_target(loop: ast.For, name: str) -> bool:
    return isinstance(loop.target, ast.Name) and loop.target.id == name and name not in _loads([loop.iter])


def _check_statement(top: ast.stmt) -> None:
    """Refuse what could change anything but variables of the function."""
    for node in ast.walk(top):
        if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
            raise Refused(f"a side contains `{type(node).__name__.lower()}`")
        if isinstance(node, (ast.NamedExpr, *_SUSPENDING)) or (isinstance(node, ast.For) and node.orelse):
            raise Refused("a side contains `:=`, `yield`, `await` or the `else` of a loop")
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            raise Refused("a side calls something and drops the result: an effect")
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)) and isinstance(node.ctx, ast.Store):
            raise Refused("a side changes an object")


def check_block(body: Sequence[ast.stmt]) -> None:
    """Refuse the body of a function that could change anything but its variables."""
    for statement in body:
        _check_statement(statement)


def can_move(node: ast.expr) -> bool:
    """Whether an expression means the same inside a function of its own."""
    return not any(isinstance(x, (ast.NamedExpr, *_SUSPENDING)) for x in ast.walk(node))
