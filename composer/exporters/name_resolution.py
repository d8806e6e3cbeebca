"""Which names in a piece of code are those of its module."""

from __future__ import annotations

import ast
from collections.abc import Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Use(ast.NodeVisitor):
    """Finds the names that a node takes from its module; `annotations` are those that only say what something is."""

    def __init__(self) -> None:
        self.scopes: list[set[str]] = []
        self.found: list[ast.Name] = []
        self.annotations: set[ast.expr] = set()
        self.attributes: list[ast.Attribute] = []

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and not any(node.id in scope for scope in self.scopes):
            self.found.append(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.attributes.append(node)
        self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._arguments(node.args)
        self._annotation(node.returns)
        self._inside(bound(node), node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._arguments(node.args)
        self._inside(parameters(node.args), [node.body])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._annotation(node.annotation)
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "cast":
            self._cast(node.args[0])
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, COMPREHENSIONS):
            self.scopes.append({name for each in node.generators for name in stored(each.target)})
            super().generic_visit(node)
            self.scopes.pop()
        else:
            super().generic_visit(node)

    def _arguments(self, arguments: ast.arguments) -> None:
        for each in (*arguments.defaults, *arguments.kw_defaults):
            if each is not None:
                self.visit(each)
        for argument in every_argument(arguments):
            self._annotation(argument.annotation)

    def _annotation(self, node: ast.expr | None) -> None:
        if node is not None:
            self.annotations.update(each for each in ast.walk(node) if isinstance(each, ast.expr))
            self.visit(node)

    def _cast(self, said: ast.expr) -> None:
        """The type that `cast` is told as a text; its names stand where the text does."""
        if isinstance(said, ast.Constant) and isinstance(said.value, str):
            for each in ast.walk(ast.parse(said.value, mode="eval")):
                if isinstance(each, ast.Name):
                    each.lineno = each.end_lineno = said.lineno
                    each.col_offset += said.col_offset + 1
                    each.end_col_offset = (each.end_col_offset or 0) + said.col_offset + 1
                    self.visit_Name(each)

    def _inside(self, names: set[str], body: list[ast.stmt] | list[ast.expr]) -> None:
        self.scopes.append(names)
        for each in body:
            self.visit(each)
        self.scopes.pop()


def used(*nodes: ast.AST) -> Use:
    """What some pieces of one module take from it."""
    use = Use()
    for node in nodes:
        use.visit(node)
    return use


def bound(node: ast.FunctionDef) -> set[str]:
    """The names that are a function's own."""
    return parameters(node.args).union(*(assigned(each) for each in node.body))


def parameters(arguments: ast.arguments) -> set[str]:
    """The names of arguments."""
    return {each.arg for each in every_argument(arguments)}


def every_argument(arguments: ast.arguments) -> Iterator[ast.arg]:
    """Arguments of every kind."""
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (each for each in (arguments.vararg, arguments.kwarg) if each is not None)


def assigned(node: ast.AST) -> set[str]:
    """The names that a statement binds in the function that it stands in."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Lambda):
        return set()
    if isinstance(node, COMPREHENSIONS):
        return {name for each in ast.walk(node) if isinstance(each, ast.NamedExpr) for name in stored(each.target)}
    names = _bound_here(node)
    return names.union(*(assigned(child) for child in ast.iter_child_nodes(node)))


def _bound_here(node: ast.AST) -> set[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(each.asname or each.name).partition(".")[0] for each in names}
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return {name}
    return set()


def stored(node: ast.AST) -> set[str]:
    """The names in a target."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
