"""Functions whose branches ask `tapes.sides` first, so that two sides can become one `lax.cond`.

In: functions of Python. Out: code that does the same. It must not know about tracers.

    if x > 0:            def yes(s): s = s + x; return s,            each value that is read there is checked
        s = s + x   ->   m = _incrax.merge(x > 0, (s,), yes, no)
                         if m.is_merged: s, = m.values
                         elif m.test: s = s + x                      as it was
"""

from __future__ import annotations

import ast
import copy
import functools
from types import CodeType, FunctionType
from typing import Any

from incrax.control_flow.tapes.syntax import (
    OURS,
    RESULT,
    Refused,
    Scope,
    can_move,
    check_block,
    check_nesting,
    compiled,
    definition,
    place_of_node,
    with_one_exit,
    without_continue,
)

M = f"{OURS}_m"


def rewritten_code(fun: FunctionType, *, is_side: bool) -> CodeType:
    """The code of a function with its branches rewritten; of one that is called on a side, if `is_side`.

    Raises:
        Refused: the function cannot be rewritten, or could change something and is on a side.
    """
    found = _rewritten(fun.__code__, _Holder(fun), is_side)
    if isinstance(found, str):
        raise Refused(found)
    return found


class _Holder:
    """A function that is no part of a key."""

    def __init__(self, fun: FunctionType) -> None:
        self.fun = fun

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Holder)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=1024)
def _rewritten(code: CodeType, holder: _Holder, is_side: bool) -> CodeType | str:
    try:
        node = definition(holder.fun)
        has_one_exit = with_one_exit(node)
        check_nesting(node)
        if is_side:
            check_block(node.body[: -1 if has_one_exit else None])
        rewriter = (_Side if is_side else _Rewriter)(Scope(node), code.co_filename)
        ending = [node.body.pop()] if has_one_exit else []
        node.body = [*rewriter.block(node.body), *ending]
        return compiled(node, code)
    except Refused as error:
        return str(error)
    except RecursionError:
        return f"`{code.co_name}` is too deep"


def _at(text: str, node: ast.AST) -> list[Any]:
    """Statements with the place of a node in the file."""
    body = ast.parse(text).body
    for x in (x for top in body for x in ast.walk(top)):
        ast.copy_location(x, node)
    return body


def _call(method: str, node: ast.AST, *args: Any) -> ast.Call:
    """A call of a method of incrax."""
    call = _at(f"{OURS}.{method}()", node)[0].value
    call.args = [ast.copy_location(ast.Constant(x), node) if isinstance(x, str) else x for x in args]
    return call


def _tuple(names: list[str], form: str = "{}") -> str:
    return "(" + "".join(f"{form.format(name)}, " for name in names) + ")"


class _Rewriter(ast.NodeTransformer):
    """Rewrites code that is run as it was where a branch is not merged."""

    def __init__(self, scope: Scope, filename: str) -> None:
        self.scope, self.filename = scope, filename
        self.count = 0

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Statements, rewritten."""
        found: list[ast.stmt] = []
        for node in body:
            new = self.visit(node)
            found += new if isinstance(new, list) else [new]
        return found

    def side(self) -> _Side:
        """What rewrites the sides of branches."""
        side = _Side(self.scope, self.filename)
        self.count += 1000
        side.count = self.count
        return side

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = visit_GeneratorExp = visit_FunctionDef  # type: ignore[assignment]

    def visit_For(self, node: ast.For) -> Any:
        node.body = without_continue(node.body)
        return self.generic_visit(node)

    visit_While = visit_For  # type: ignore[assignment]

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        node.func = _call("inner", node.func, node.func)
        return node

    def visit_If(self, node: ast.If) -> Any:
        place = place_of_node(node.test, self.filename)
        try:
            names = self.scope.results(node)
        except Refused as error:
            node.test = _call("kept", node.test, self.test(node.test), place, str(error))
            node.body, node.orelse = self.block(node.body), self.block(node.orelse)
            return node
        yes, no, merged = self._sides(node, names, place)
        m, unbound = merged.targets[0].id, [f"    if {name} is {OURS}.unbound: del {name}\n" for name in names]
        choice = _at(
            f"if {m}.is_merged:\n    {_tuple(names)} = {m}.values\n{''.join(unbound)}elif {m}.test: pass\nelse: pass",
            node.test,
        )[0]
        choice.orelse[0].body = self.block(node.body)
        choice.orelse[0].orelse = self.block(node.orelse)
        return [yes, no, merged, choice]

    def _sides(self, node: ast.If, names: list[str], place: str, method: str = "merge") -> list[Any]:
        """Definitions of both sides, and a call that makes one of them."""
        test, side = self.test(node.test), self.side()
        name = f"{OURS}_{self.count}"
        heads = "".join(f"def {name}_{side}{_tuple(names)}: return {_tuple(names)}\n" for side in ("yes", "no"))
        call = f"{name} = {OURS}.{method}(0, 0, {_tuple(names, 'lambda: {}')}, {name}_yes, {name}_no, {names!r})"
        yes, no, merged = _at(heads + call, node.test)
        yes.body[:0] = side.block(copy.deepcopy(node.body))
        no.body[:0] = side.block(copy.deepcopy(node.orelse))
        merged.value.args[:2] = [ast.copy_location(ast.Constant(place), node.test), test]
        return [yes, no, merged]

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        if not can_move(node):
            return self.generic_visit(node)
        return self._choice(node.test, node.body, node.orelse, "'its value'")

    def _choice(self, test: ast.expr, yes: ast.expr, no: ast.expr, names: str) -> Any:
        """An expression that is one of two."""
        call = self._choice_call(test, yes, no, names, "merge")
        found = _at(f"(lambda {M}: {M}.values[0] if {M}.is_merged else (0 if {M}.test else 0))(0)", test)[0].value
        found.func.body.orelse.body, found.func.body.orelse.orelse = self.visit(yes), self.visit(no)
        found.args = [call]
        return found

    def _choice_call(self, test: ast.expr, yes: ast.expr, no: ast.expr, names: str, method: str) -> Any:
        side = self.side()
        call = _at(f"{OURS}.{method}(0, 0, (), lambda: (0,), lambda: (0,), [{names}])", test)[0].value
        call.args[:2] = [ast.copy_location(ast.Constant(place_of_node(test, self.filename)), test)] + [
            self.test(copy.deepcopy(test))
        ]
        visit = side.test if names == "None" else side.visit
        call.args[3].body.elts[0], call.args[4].body.elts[0] = (visit(copy.deepcopy(x)) for x in (yes, no))
        return call

    def test(self, node: ast.expr) -> Any:
        """An expression of which only its truth matters."""
        if not can_move(node):
            return self.visit(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _call("negation", node, self.test(node.operand))
        if isinstance(node, ast.Compare) and len(node.ops) > 1 and _are_simple(node.comparators[:-1]):
            return self.test(_chain(node))
        if isinstance(node, ast.BoolOp):
            first, rest = node.values[0], node.values[1:]
            other = rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(node.op, rest), rest[0])
            fixed = ast.copy_location(ast.Constant(isinstance(node.op, ast.Or)), node)
            sides = (other, fixed) if isinstance(node.op, ast.And) else (fixed, other)
            return self._choice(first, *sides, "None")
        return self.visit(node)


def _are_simple(nodes: list[ast.expr]) -> bool:
    """Whether expressions may be evaluated twice."""
    return all(isinstance(x, (ast.Name, ast.Constant)) for x in nodes)


def _chain(node: ast.Compare) -> ast.BoolOp:
    """`a < b < c` as two comparisons."""
    terms = [node.left, *node.comparators]
    pairs = zip(terms, node.ops, terms[1:], strict=False)
    parts: list[ast.expr] = [
        ast.copy_location(ast.Compare(copy.deepcopy(a), [op], [copy.deepcopy(b)]), node) for a, op, b in pairs
    ]
    return ast.copy_location(ast.BoolOp(ast.And(), parts), node)


class _Side(_Rewriter):
    """Rewrites code that runs on a side: whatever it reads is checked, and all that may be different is refused."""

    def visit_Name(self, node: ast.Name) -> Any:
        is_ours = node.id.startswith(OURS) and node.id != RESULT
        return node if is_ours or not isinstance(node.ctx, ast.Load) else _call("plain", node, node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        base = node.value if isinstance(node.value, ast.Name) else self.visit(node.value)
        return _call("attribute", node, base, node.attr)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        return _call("plain", node, self.generic_visit(node))

    def visit_Call(self, node: ast.Call) -> Any:
        return self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return self.generic_visit(node)

    visit_GeneratorExp = visit_Lambda  # type: ignore[assignment]

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        self.generic_visit(node)
        node.iter = _call("rows", node.iter, node.iter)
        return node

    def visit_For(self, node: ast.For) -> Any:
        node.body = self.block(without_continue(node.body))
        node.iter = _call("rows", node.iter, self.visit(node.iter))
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        assert isinstance(node.target, ast.Name)
        old = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        value = ast.BinOp(_call("unchanging", node, self.visit(old)), node.op, self.visit(node.value))
        return ast.copy_location(ast.Assign([node.target], ast.copy_location(value, node)), node)

    def visit_If(self, node: ast.If) -> Any:
        names = self.scope.results(node)
        yes, no, merged = self._sides(node, names, place_of_node(node.test, self.filename), "either")
        merged.targets = [_at(f"{_tuple(names)} = 0", node.test)[0].targets[0]]
        return [yes, no, merged]

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return self._choice(node.test, node.body, node.orelse, "'its value'")

    def _choice(self, test: ast.expr, yes: ast.expr, no: ast.expr, names: str) -> Any:
        call = self._choice_call(test, yes, no, names, "either")
        found = _at("0[0]", test)[0].value
        found.value = call
        return found
