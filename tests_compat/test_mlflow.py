"""MLflow as a tracker: what a run logs is in its database, with env steps as the step."""

from __future__ import annotations

import pytest

import millpond


@pytest.mark.parametrize("given", ["", "elsewhere"])
def test_mlflow_gets_every_number(given, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    place = tmp_path / "runs" / "mine" / "mlflow.db"
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if given:
        place = tmp_path / "elsewhere.db"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}")
    with millpond.run("mine", root=tmp_path / "runs", track="mlflow") as run:
        for step in range(3):
            run.log(step, {"loss": 0.5 * step, "td/<err>": 1.0, "none": None})
        run.evaluated(7, [1.0, 3.0])
    assert place.exists()
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{place}")
    experiment = client.get_experiment_by_name("millpond")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("mine", "FINISHED")
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [(one.step, one.value) for one in history] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert found.data.metrics["train/td/_err_"] == 1.0
    assert found.data.metrics["eval/return"] == 2.0
    assert "train/none" not in found.data.metrics
