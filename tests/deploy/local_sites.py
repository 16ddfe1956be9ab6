"""Sites in this process, each reached only through bytes: a federation without a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from coterie.data import Federated
from coterie.deploy.audit import Audit
from coterie.deploy.model_store import MODELS, ModelStore
from coterie.deploy.policy import Policy
from coterie.deploy.site_answers import Site
from coterie.wire.remote import NOT_CONNECTED, PackedReplies


class LocalSites:
    """Sites in this process; ``away`` are not connected, ``mute`` do not answer, and each request is counted."""

    def __init__(self, data: Federated, folder: Path, away: Iterable[str] = (), mute: Iterable[str] = ()) -> None:
        audits = [Audit(folder / f"{name}.jsonl") for name in data.names]
        clients = [data.select([i]) for i in range(len(data))]
        self.sites = [Site(*each, Policy(), audit) for *each, audit in zip(data.names, clients, audits, strict=True)]
        self.names, self.away, self.mute, self.asked = data.names, set(away), set(mute), 0

    def connected(self) -> dict[str, int]:
        """The sites that are not away."""
        return {name: i for i, name in enumerate(self.names) if name not in self.away}

    def __call__(self, requests: Mapping[int, bytes]) -> PackedReplies:
        """The replies of all that answer."""
        self.asked += 1
        received = {i: r for i, r in requests.items() if self.names[i] not in self.away | self.mute}
        why = {i: NOT_CONNECTED if self.names[i] in self.away else "no answer within 1 s" for i in requests}
        missing = {i: why[i] for i in requests if i not in received}
        return PackedReplies({i: self.sites[i].answer(request) for i, request in received.items()}, missing)


class KeepingSites(LocalSites):
    """Sites that keep models, each in a folder of its name, and write down what they tell their operators."""

    def __init__(self, data: Federated, folder: Path, **absent: Sequence[str]) -> None:
        super().__init__(data, folder, **absent)
        self.told: dict[str, list[str]] = {name: [] for name in data.names}
        for name, site in zip(data.names, self.sites, strict=True):
            (folder / name).mkdir(exist_ok=True)
            site.store, site.tell = ModelStore(folder / name / MODELS), self.told[name].append

    def store(self, name: str) -> ModelStore:
        """The models of a site."""
        found = self.sites[self.names.index(name)].store
        assert found is not None
        return found
