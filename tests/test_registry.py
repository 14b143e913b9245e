"""The registry: names, options, suggestions, and classes that are defined twice."""

import pytest

from nearfar.registry import Registry


def make_registry() -> Registry[type]:
    registry: Registry[type] = Registry("shape")

    @registry.register("square")
    class Square:
        def __init__(self, *, side: float, color: str = "red") -> None:
            self.side, self.color = side, color

    return registry


def test_create_checks_options() -> None:
    registry = make_registry()
    assert registry.create("square", side=2).side == 2
    with pytest.raises(ValueError, match=r"unknown shape 'sqare'; did you mean 'square'\? Known: square"):
        registry.create("sqare")
    with pytest.raises(ValueError, match="has no option 'colr'; did you mean 'color'"):
        registry.create("square", side=1, colr="blue")
    with pytest.raises(ValueError, match="requires side: pass side="):
        registry.create("square")


def test_supplied_arguments_are_not_options() -> None:
    registry = make_registry()
    assert list(registry.options("square", supplied=("side",))) == ["color"]
    assert registry.create("square", supplied={"side": 3}).side == 3
    with pytest.raises(ValueError, match="has no option 'side'"):
        registry.create("square", supplied={"side": 3}, side=4)


def test_a_class_may_be_defined_again_but_a_name_has_one_owner() -> None:
    registry: Registry[type] = Registry("shape")

    def define() -> type:
        @registry.register("round")
        class Round:
            pass

        return Round

    define()
    latest = define()  # as a notebook cell that runs twice
    assert registry.get("round") is latest
    with pytest.raises(ValueError, match="'round' is already registered by"):
        registry.register("round")(int)
