"""`nearfar bench run --peer`: also run each method with the same loss from pytorch-metric-learning.

Both runs have the same data, batches, network, optimizer, number of steps, seed and initial weights. The run with
pytorch-metric-learning also has the settings that were tuned for our loss; nothing is tuned for the other loss.
"""

from __future__ import annotations

from dataclasses import replace

from nearfar.compat.peer import Peer
from nearfar.compat.peer_table import NAME
from nearfar.config.schema import Config
from nearfar.errors import NearfarError
from nearfar.suites.cells import CellMaker, TunedSettings
from nearfar.suites.suite import Method, Suite
from nearfar.training.components import make_loss


def peer_name(method: str) -> str:
    """Return the name of the table row that shows a method with the loss of pytorch-metric-learning."""
    return f"{method} ({NAME})"


def method_of(name: str) -> str:
    """Return the name of the method in a table row, without the suffix that `peer_name` adds.

    >>> method_of(peer_name("triplet")), method_of("triplet")
    ('triplet', 'triplet')
    """
    return name.removesuffix(f" ({NAME})")


def add_peers(maker: CellMaker, tuned: TunedSettings) -> tuple[Suite, TunedSettings, list[str]]:
    """For each method whose loss pytorch-metric-learning has too, add a method that uses the loss of that library.

    The added method has the same settings otherwise, and comes right after the original one.

    Returns:
        The suite with the added methods, the tuned settings of all methods, and messages. The messages name the methods
        whose loss pytorch-metric-learning does not have, and the losses whose formula differs from ours.
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
                messages.append(f"{method.name}: not run with {NAME} on {dataset.name}: {error}")
        if not peers:
            continue
        differs = next((peer.differs for peer in peers if peer.differs), "")
        twin = replace(
            method,
            name=peer_name(method.name),
            recipe=method.recipe or method.name,
            settings=(*method.settings, "loss.peer=true"),
            baseline=method.name,
            note=f"the formula differs from ours: {differs}" if differs else "",
        )
        methods.append(twin)
        all_tuned |= {(data, twin.name): settings for (data, name), settings in tuned.items() if name == method.name}
        if twin.note:
            messages.append(f"{twin.name}: {twin.note}")
    return replace(suite, methods=tuple(methods)), all_tuned, messages


def peer_of(config: Config) -> Peer:
    """Return the loss from pytorch-metric-learning that corresponds to a run's loss.

    Raises:
        NearfarError: If there is no such loss.
    """
    if config.pacing:
        raise NearfarError(f"pacing.name={config.pacing.get('name')} weights samples, which {NAME} does not support")
    if config.batches.name == "profs":
        raise NearfarError(f"batches.name=profs adds class representatives to batches, which {NAME} does not support")
    loss = make_loss(replace(config, loss={**config.loss, "peer": True}), classes=2, dim=2)
    assert isinstance(loss, Peer)
    return loss


def describe_peers(suite: Suite) -> list[str]:
    """Return a list with the paragraph that explains the rows of pytorch-metric-learning, if the suite has any."""
    if not any(method_of(method.name) != method.name for method in suite.methods):
        return []
    return [
        f"Rows marked ({NAME}) are the same runs with the loss of that library. They have the settings of the method "
        "that they are compared with; tuned settings were tuned for our loss. Seconds are the time of the whole run, "
        "not of the loss alone."
    ]
