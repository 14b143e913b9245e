"""`nearfar bench run --peer`: beside each method, pytorch-metric-learning's loss in the very same run.

Data, batches, network, optimizer, budget, seed and start are those of ours, and so are the settings that tuning chose:
nothing is searched for the peer.
"""

from __future__ import annotations

from dataclasses import replace

from nearfar.compat.peer import NAME, Peer
from nearfar.config.schema import Config
from nearfar.errors import NearfarError
from nearfar.suites.cells import CellMaker, Chosen
from nearfar.suites.suite import Method, Suite
from nearfar.training.prepare import make_loss


def peer_name(method: str) -> str:
    """The row of a method's peer."""
    return f"{method} ({NAME})"


def method_of(name: str) -> str:
    """The method that a row belongs to.

    >>> method_of(peer_name("triplet")), method_of("triplet")
    ('triplet', 'triplet')
    """
    return name.removesuffix(f" ({NAME})")


def with_peers(maker: CellMaker, chosen: Chosen) -> tuple[Suite, Chosen, list[str]]:
    """The suite with a peer after each method that has one, what tuning chose for both, and lines about them."""
    suite = maker.suite
    methods: list[Method] = []
    found, told = dict(chosen), []
    for method in suite.methods:
        methods.append(method)
        peers, reasons = [], []
        for source in maker.data:
            tuned = chosen.get((source.name, method.name), ())
            config = maker.cell(source, method, suite.sweep_values[0], suite.seeds[0], tuned=tuned).config
            try:
                peers.append(peer_of(config))
            except NearfarError as error:
                reasons.append(f"{method.name}: no peer on {source.name}, {error}")
        told += reasons
        if not peers:
            continue
        differs = next((each.differs for each in peers if each.differs), "")
        twin = replace(
            method,
            name=peer_name(method.name),
            recipe=method.recipe or method.name,
            settings=(*method.settings, "loss.peer=true"),
            baseline=method.name,
            note=f"not our formula, {differs}" if differs else "",
        )
        methods.append(twin)
        found |= {(data, twin.name): settings for (data, name), settings in chosen.items() if name == method.name}
        if twin.note:
            told.append(f"{twin.name}: {twin.note}")
    return replace(suite, methods=tuple(methods)), found, told


def peer_of(config: Config) -> Peer:
    """The peer of a run's loss; an error where there is none."""
    if config.pacing:
        raise NearfarError(f"pacing.name={config.pacing.get('name')} weights samples, and {NAME} takes no weights")
    if config.batches.name == "profs":
        raise NearfarError(f"batches.name=profs has representatives, and {NAME} does not know them")
    loss = make_loss(replace(config, loss={**config.loss, "peer": True}), classes=2, dim=2)
    assert isinstance(loss, Peer)
    return loss


def told(suite: Suite) -> list[str]:
    """For the head of the tables."""
    if not any(method_of(each.name) != each.name for each in suite.methods):
        return []
    return [
        f"Rows ({NAME}): that library's loss in the very same runs, with the settings of the method it is against "
        "(where these were tuned, they were tuned for ours); seconds are of whole runs.",
    ]
