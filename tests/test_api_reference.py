# SPDX-License-Identifier: Apache-2.0
"""docs/api.md names what is public, with its parameters, and nothing else."""

import ast
import inspect
import pathlib
import re

import pytest

import nvsym
from nvsym import errors

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nvsym"
DOCUMENT = ROOT / "docs" / "api.md"

# How the text writes what the stubs cannot say: the class of an element type.
WRITTEN = {"SHMEMBuffer(n)": "SHMEMBuffer[dtype](n)"}
# Its methods are called by torch.distributed.
NO_MEMBERS = {"ProcessGroup"}


def parse(module):
    """The stub of a module of nvsym, which test_typing.py compares with the module, or else its source."""
    path = PACKAGE.joinpath(*module.split("."))
    files = (path.with_suffix(".pyi"), path.with_suffix(".py"), path / "__init__.py")
    return ast.parse(next(file for file in files if file.is_file()).read_text())


def names_in(tree, name="__all__"):
    """The strings of a list that is assigned to a name."""
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(getattr(target, "id", None) == name for target in node.targets)
    )
    return [element.value for element in value.elts]


def where_from(tree, package=""):
    """The module of nvsym that each name of a package is imported from."""
    return {
        alias.asname or alias.name: f"{package}{node.module}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }


def signature(function, name=None):
    """``name(parameters)`` without types, self and cls."""
    arguments = function.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if one is not None:
            one.annotation = None
    for group in (arguments.posonlyargs, arguments.args):
        if group and group[0].arg in ("self", "cls"):
            del group[0]
    return f"{name or function.name}({ast.unparse(arguments)})"


def members(node):
    """What the text has to say of a class: its constructor, and its public methods, properties and fields."""
    found = set()
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            decorators = {getattr(one, "id", None) for one in item.decorator_list}
            if item.name in ("__init__", "__new__"):
                made = signature(item, node.name)
                if made != f"{node.name}()":
                    found.add(WRITTEN.get(made, made))
            elif not item.name.startswith("_"):
                found.add(item.name if "property" in decorators else signature(item))
        else:
            targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
            found |= {one.id for one in targets if isinstance(one, ast.Name) and not one.id.startswith("_")}
    return found


def described(name, module):
    """(section or None, spans of code) that the text has to have for a public name."""
    tree = parse(module)
    aliases = {
        node.targets[0].id: node.value.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
    }
    own = [node for node in tree.body if getattr(node, "name", None) in (name, aliases.get(name, name))]
    if not own:  # a constant
        return None, {name}
    (node,) = own
    if isinstance(node, ast.FunctionDef):
        return None, {signature(node, name)}
    return name, set() if name in NO_MEMBERS else members(node)


def wanted():
    """[(section or None, spans of code)]: everything public."""
    top = parse("__init__")
    modules = where_from(top)
    found = [(None, {"__version__"})]
    for name in nvsym.__all__:
        if name in errors.__all__:
            own = {"status"} if name == "BackendError" else {"pes"} if name == "PeerError" else set()
            found.append((None, {name, *own}))
        elif name != "__version__":
            found.append(described(name, modules.get(name, "__init__")))
    found.append(described("Heap", "heap"))
    torch = parse("torch")
    found += [described(name, where_from(torch, "torch.")[name]) for name in names_in(torch)]
    testing = parse("testing")
    found += [described(name, where_from(testing, "testing.")[name]) for name in names_in(testing)]
    fixtures = parse("testing._fixtures").body
    for node in fixtures:
        if isinstance(node, ast.FunctionDef) and node.decorator_list and not node.name.startswith("_"):
            found.append((None, {node.name}))
    found += [described(name, "simulator") for name in names_in(parse("simulator"))]
    return found


WANTED = wanted()
ALL = {span for section, spans in WANTED for span in (spans | {section} if section else spans)}


def section_of(text, name):
    found = re.search(rf"^#+ {re.escape(name)}\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    return "" if found is None else found[1]


def missing(text):
    """What is public and not in the text: a member of a class in the section of the class, all else outside of these."""
    found = []
    rest = text
    for section, _ in WANTED:
        if section is not None:
            rest = rest.replace(section_of(text, section), "")
    for section, spans in WANTED:
        part = rest if section is None else section_of(text, section)
        if section is not None and not part:
            found.append(f"## {section}")
        else:
            found += [f"{section}: {span}" if section else span for span in spans if f"`{span}`" not in part]
    return sorted(found)


def test_everything_public_is_in_the_reference():
    assert missing(DOCUMENT.read_text()) == []


def test_the_reference_has_nothing_else():
    text = DOCUMENT.read_text()
    text = text.replace(section_of(text, "Arguments that many calls have"), "")
    rows = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    spans = [span for row in rows for span in re.findall(r"`([^`]+)`", row)]
    assert len(spans) > 150
    assert [span for span in spans if span not in ALL] == []


@pytest.mark.parametrize(
    ("span", "reported"),
    [
        ("`quiet(*, stream=None)`", "quiet(*, stream=None)"),
        ("`reduce(dest, source, op='sum', *, team=None, stream=None, algorithm='auto')`", None),
        ("`TEAM_SHARED`", "TEAM_SHARED"),
        ("`PeerExitedError`", "PeerExitedError"),
        ("`peer_pointers(team=None)`", "SHMEMBuffer: peer_pointers(team=None)"),
        ("`high_water`", "Heap: high_water"),
        ("`record_event(event=None)`", "Stream: record_event(event=None)"),
        ("## Team\n", "## Team"),
        ("`capacity_bytes(num_devices, num_tokens, hidden_size, itemsize=2)`", None),
        ("`asked_by`", "AllreduceChoice: asked_by"),
        ("`staging`", "Options: staging"),
        ("`nvsym_context`", "nvsym_context"),
        ("`fence_alias()`", "fence_alias()"),
    ],
)
def test_what_is_taken_out_is_missed(span, reported):
    text = DOCUMENT.read_text()
    assert span in text
    found = missing(text.replace(span, ""))
    assert len(found) == 1
    assert reported in (None, found[0])


def test_the_signatures_are_those_of_the_package():
    """The stubs are compared with the package by test_typing.py; this looks at some, so as to fail without mypy, too."""
    spans = {span for _, spans in WANTED for span in spans}
    for function in (nvsym.put, nvsym.put_signal, nvsym.init, nvsym.warmup, nvsym.explain_allreduce, nvsym.barrier):
        assert f"{function.__name__}{inspect.signature(function)}" in spans
