"""Describe all settings: as text for the terminal, as docs/settings.md, and as JSON schemas for editors."""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields
from typing import Any

from nearfar.config.names import suggest_setting
from nearfar.config.recipes import ABOUT, GROUPS, METHOD, OURS_KEYS, PAPER_ONLY
from nearfar.config.recipes import KINDS as DATA_KINDS
from nearfar.config.schema import BENCHMARKS, Config
from nearfar.config.setting import KINDS, Setting, is_section, type_hints, variants, walk
from nearfar.errors import NearfarError
from nearfar.formatting import markdown_table

JSON_TYPES: dict[Any, str] = {
    type(None): "null",
    tuple: "array",
    dict: "object",
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
}
BOUNDS = {"at least": "minimum", "above": "exclusiveMinimum", "at most": "maximum", "below": "exclusiveMaximum"}
INTRO = """# Settings

This page is generated from the schema, `nearfar/config/schema.py`, by `nearfar settings --markdown`.

Set a value with `--set key=value`, or in a YAML file that you pass with `--config`. `nearfar train DATA --dry-run`
prints the resulting configuration. The defaults of the network, the optimizer and the length of the training depend on
the kind of data ([training](training.md#configuration)); the tables show the defaults in the schema. `nearfar settings`
prints this list in the terminal, and `nearfar settings optimizer` prints one section.

Settings marked * do not change the trained weights or their scores, except for rounding. You may change them when you
resume a run.
"""
EDITORS = """## Completion in an editor

Editors that use the YAML language server (VS Code with the YAML extension, Neovim, Emacs) complete and check settings
with a JSON schema:

<!-- not run: writes files -->
```
nearfar settings --schema > nearfar.schema.json           # for files that you pass with --config
nearfar recipes --schema > nearfar-recipe.schema.json     # for recipe files
```

Name the schema in the first line of the YAML file:

```yaml
# yaml-language-server: $schema=nearfar.schema.json
optimizer:
  lr: 5.0e-4
```
"""


def describe_settings(key: str | None = None) -> str:
    """Return a list of all settings, of one section, or of one setting, for the terminal.

    >>> print(describe_settings("optimizer.lr"))
    optimizer.lr = 0.001: a number, above 0
        Learning rate of the backbone.
    """
    lines = []
    for name, each, hint in walk(Config):
        if key is None or name == key or name.startswith(f"{key}."):
            default = "" if is_section(hint) else f" = {_default(each)}: {_type(each, hint)}"
            lines += [f"{name}{default}", f"    {each.metadata['setting'].help}"]
    if not lines:
        known = [name for name, _, _ in walk(Config)]
        near = suggest_setting(str(key).rpartition(".")[2], known, "", known)
        raise NearfarError(f"there is no setting {key!r}{near} Run `nearfar settings` to list all settings")
    return "\n".join(lines)


def settings_page() -> str:
    """Return the text of docs/settings.md."""
    top = [item for item in walk(Config) if "." not in item[0] and not is_section(item[2])]
    parts = [INTRO, "## The run\n", _table(top), ""]
    for name, each, hint in walk(Config):
        if is_section(hint):
            inside = [item for item in walk(hint, f"{name}.") if not is_section(item[2]) and _parent(item[0]) == name]
            parts += [f"## {name}\n", f"{each.metadata['setting'].help}\n", _table(inside), ""]
    return "\n".join([*parts, EDITORS])


def _parent(key: str) -> str:
    return key.rpartition(".")[0]


def _table(items: list[tuple[str, Field[Any], Any]]) -> str:
    rows = []
    for key, each, hint in items:
        about: Setting = each.metadata["setting"]
        readers = [name for name in _samplers() if key.partition(".")[2] in _samplers()[name]]
        read = f" Used by {', '.join(readers)}." if key.startswith("batches.") and readers else ""
        mark = " *" if about.neutral else ""
        rows.append(
            [f"`{key}`{mark}", _type(each, hint), f"`{_default(each)}`", f"{about.help}{read}".replace("|", r"\|")]
        )
    table = markdown_table(["setting", "value", "default", "meaning"], rows)
    return table.replace("---:", "---")


def _samplers() -> dict[str, list[str]]:
    from nearfar import samplers  # imported here because it imports torch, which `describe_settings` does not need

    return {name: list(samplers.options(name)) for name in samplers.names()}


def _default(each: Field[Any]) -> str:
    if isinstance(each.default, str):
        return each.default
    return json.dumps(each.default) if each.default_factory is MISSING else "{}"


def _type(each: Field[Any], hint: Any) -> str:
    about: Setting = each.metadata["setting"]
    if about.choices:
        null = ["null"] if type(None) in variants(hint) else []
        return ", ".join([*about.choices, *null])
    limits = " and ".join(f"{name} {_bound(bound)}" for name, bound in about.limits.items())
    kinds = " or ".join(KINDS[kind] for kind in variants(hint))
    return f"{kinds}, {limits}" if limits else kinds


def _bound(bound: float) -> str:
    return f"2^{int(bound).bit_length() - 1}" if bound > 2**53 else f"{bound:,}"


def config_schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration file."""
    title = "Settings of a nearfar run"
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **_config_object()}


def recipe_schema() -> dict[str, Any]:
    """Return the JSON schema of a recipe file."""
    settings = _config_object()["properties"]
    own = {key: settings[key] for key in (*METHOD, *PAPER_ONLY)}
    differences = {"type": "object", "properties": own, "additionalProperties": False}
    data = {"type": "object", "properties": dict.fromkeys(BENCHMARKS, differences), "additionalProperties": False}
    changes = {"type": "object", "properties": {k: settings[k] for k in OURS_KEYS}, "additionalProperties": False}
    ours = {"type": "object", "properties": dict.fromkeys(DATA_KINDS, changes), "additionalProperties": False}
    about = {key: {"type": "string"} for key in ABOUT} | {"group": {"enum": list(GROUPS)}, "ours": ours, "data": data}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A nearfar recipe",
        "type": "object",
        "properties": {**about, **own},
        "required": ["name", "purpose", "group", "paper", "loss"],
        "additionalProperties": False,
    }


def _config_object() -> dict[str, Any]:
    """Return the JSON schema of a configuration. It lists the registered names, so that editors can complete them.

    Other names are also valid, because users can register losses, pacers, samplers and backbones.
    """
    from nearfar import losses, models, pacing, samplers  # imported here because they import torch

    schema = _object(Config)
    parts = {"loss": losses, "pacing": pacing, "batches": samplers, "model": models}
    for section, package in parts.items():
        properties = schema["properties"][section].setdefault("properties", {})
        about = properties.setdefault("backbone" if section == "model" else "name", {})
        about |= {"anyOf": [{"enum": package.names()}, {"type": "string"}]}
    loss = schema["properties"]["loss"]
    schema["properties"]["loss"] = loss | {"type": ["object", "array"], "items": loss}  # one loss or a list
    return schema


def _object(table: type) -> dict[str, Any]:
    properties = {}
    for each in fields(table):
        hint, about = type_hints(table)[each.name], each.metadata["setting"]
        if is_section(hint):
            properties[each.name] = {"description": about.help, **_object(hint)}
            continue
        types = [JSON_TYPES[kind] for kind in variants(hint)]
        value: dict[str, Any] = {"description": about.help, "type": types[0] if len(types) == 1 else types}
        if about.choices:
            value["enum"] = [*about.choices, *([None] if "null" in types else [])]
        value |= {BOUNDS[name]: bound for name, bound in about.limits.items()}
        properties[each.name] = value
    open_ended = table.__name__ == "Batches"  # a sampler may have options that are not in the schema
    return {"type": "object", "properties": properties, "additionalProperties": open_ended}
