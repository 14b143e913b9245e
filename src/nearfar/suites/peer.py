"""`nearfar bench run --peer`: beside each method, the same run with the loss of pytorch-metric-learning.

Data, batches, network, optimizer, length, seed and initial weights are the same, and so are the tuned settings. Nothing
is tuned for the peer.
"""

from __future__ import annotations

from dataclasses import replace

from nearfar.compat.peer import NAME, Peer
from nearfar.config.schema import Config
from nearfar.errors import NearfarError
from nearfar.suites.cells import CellMaker, TunedSettings
from nearfar.suites.suite import Method, Suite
from nearfar.training.components import make_loss


def peer_name(method: str) -> str:
    """Return the name of the row that shows a method's peer."""
    return f"{method} ({NAME})"


def method_of(name: str) -> str:
    """Return the method that a row belongs to.

    >>> method_of(peer_name("triplet")), method_of("triplet")
    ('triplet', 'triplet')
    """
    return name.removesuffix(f" ({NAME})")


def add_peers(maker: CellMaker, tuned: TunedSettings) -> tuple[Suite, TunedSettings, list[str]]:
    """Add a peer after each method that has one.

    Returns:
        The suite with peers, the tuned settings of methods and peers, and messages about methods without a peer and
        peers with another formula.
    """
    suite = maker.suite
    methods: list[Method] = []
    all_tuned, messages = dict(tuned), []
    for method in suite.methods:
        methods.append(method)
        peers = []
        for dataset in maker.data:
            settings = tuned.get((dataset.name, method.name), ())
            config = maker.cell(dataset, method, suite.sweep_values[0], suite.seeds[0], tuned=settings).config
            try:
                peers.append(peer_of(config))
            except NearfarError as error:
                messages.append(f"{method.name}: no peer on {dataset.name}, {error}")
        if not peers:
            continue
        differs = next((peer.differs for peer in peers if peer.differs), "")
        twin = replace(
            method,
            name=peer_name(method.name),
            recipe=method.recipe or method.name,
            settings=(*method.settings, "loss.peer=true"),
            baseline=method.name,
            note=f"the formula differs from ours, {differs}" if differs else "",
        )
        methods.append(twin)
        all_tuned |= {(data, twin.name): settings for (data, name), settings in tuned.items() if name == method.name}
        if twin.note:
            messages.append(f"{twin.name}: {twin.note}")
    return replace(suite, methods=tuple(methods)), all_tuned, messages


def peer_of(config: Config) -> Peer:
    """Return the peer of a run's loss; raise an error if there is none."""
    if config.pacing:
        raise NearfarError(f"pacing.name={config.pacing.get('name')} weights samples, which {NAME} does not support")
    if config.batches.name == "profs":
        raise NearfarError(f"batches.name=profs uses representatives, which {NAME} does not support")
    loss = make_loss(replace(config, loss={**config.loss, "peer": True}), classes=2, dim=2)
    assert isinstance(loss, Peer)
    return loss


def describe_peers(suite: Suite) -> list[str]:
    """Return the sentence above the tables that explains the rows of peers."""
    if not any(method_of(method.name) != method.name for method in suite.methods):
        return []
    return [
        f"Rows ({NAME}): the same runs with that library's loss and the settings of the method it is compared with "
        "(tuned settings were tuned for ours); seconds are of whole runs."
    ]
