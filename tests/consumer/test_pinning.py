"""Every so many steps an engine stays at the version just published, until its evaluation has released it."""

from __future__ import annotations

import pytest
from trainer_runs import Run

from stream_rl.config import Config
from stream_rl.consumer.publication import Publication
from stream_rl.sample import WeightVersion


def test_a_pinned_engine_keeps_its_version_until_it_is_released(
    config: Config, buffer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = config.model_dump()
    tree["evaluation"] |= {"every": 2, "episodes": 4}
    run = Run(Config.parse(tree), buffer_url)
    run.open()
    publish, served, pinned = Publication.publish, {}, {}

    def watching(self: Publication, version: WeightVersion) -> None:
        publish(self, version)
        (engine,) = self._runner.run(self._buffer.engines())
        served[version.step], pinned[version.step] = rollouts.engine.version, engine.pinned
        if version.step == 3:
            self._runner.run(self._buffer.release_engine("engine-0"))

    monkeypatch.setattr(Publication, "publish", watching)
    with run.rollouts() as rollouts:
        run.train()
    assert served == {0: "0", 1: "1", 2: "2", 3: "2", 4: "4", 5: "4", 6: "4"}
    assert pinned == {0: None, 1: None, 2: None, 3: (2, 0), 4: None, 5: (4, 0), 6: (4, 0)}
    updates = [body["weight_version"] for path, body in rollouts.engine.calls if path == "/update_weights_from_disk"]
    # Brought up to date as soon as it was released, not at the next publication.
    assert updates == ["0", "1", "2", "3", "4"]
