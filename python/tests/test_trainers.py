"""The layer in the loops of other libraries: the page on them, and accumulated gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import read
from test_docs import PAGES, blocks_of
from torch import nn

import zagros

Layers = Callable[..., zagros.EmbeddingBags]
PAGE = "lightning-and-hf.md"
needs_pages = pytest.mark.skipif(not PAGES.exists(), reason="the docs are not beside the package")


def run_block(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a program of the page, after it has run in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names: dict[str, Any] = {"__name__": "page"}
    with warnings.catch_warnings():
        # Lookups that leave early are those that are trained on.
        warnings.filterwarnings("error", message=".*looked up other tensors")
        exec(blocks_of(PAGE)[number], names)
    return names


@needs_pages
def test_the_lightning_program_of_the_page_learns_and_loads_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    names = run_block(0, tmp_path, monkeypatch)
    assert names["accuracy"] > 0.9 and abs(names["scores"][0]["accuracy"] - names["accuracy"]) < 1e-6
    assert names["model"].tables.steps == 8 * 24 and list((tmp_path / "rows").glob("step-*/manifest.json"))


@needs_pages
def test_the_trainer_program_of_the_page_learns_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    names = run_block(1, tmp_path, monkeypatch)
    assert names["trainer"].evaluate()["eval_accuracy"] > 0.9
    names["model"].tables.close()
    # A process that goes on has new servers, whose rows come from the checkpoint.
    again = names["Clicks"]()
    names["arguments"].num_train_epochs = 9
    trainer = transformers.Trainer(
        again, names["arguments"], train_dataset=names["samples"][:6144], eval_dataset=names["samples"][6144:],
        compute_metrics=names["accuracy"], callbacks=[names["Rows"](again.tables)],
    )
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 9 * 24 and again.tables.steps == 9 * 24
    assert trainer.evaluate()["eval_accuracy"] > 0.9
    again.tables.close()


def test_lightning_accumulates_gradients_in_one_push(layers: Layers, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Net(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tables = layers({"C1": 2}, push_at="step")
            self.network = nn.Linear(2, 1)

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            return self.tables({"C1": batch[0]})["C1"].sum() + 0 * self.network.weight.sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.network.parameters(), lr=0.1)

        def optimizer_step(self, *args: Any, **keywords: Any) -> None:
            super().optimizer_step(*args, **keywords)
            self.tables.step()

    net = Net()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(4).repeat(8)), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, accumulate_grad_batches=2, default_root_dir=tmp_path,
    )
    trainer.fit(net, loader)
    # Eight batches, four pushes; Lightning divides the loss of each by two.
    assert net.tables.steps == 4
    assert read(net.tables, [0, 3]).tolist() == [[-4.0, -4.0], [-4.0, -4.0]]


def test_the_trainer_accumulates_gradients_in_one_push(layers: Layers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = layers({"C1": 2}, push_at="step")
            self.network = nn.Linear(2, 1)

        def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.tables({"C1": ids})["C1"].sum() + 0 * self.network.weight.sum()}

    class Push(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_optimizer_step(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            net.tables.step()

    net = Net()
    arguments = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=1, per_device_train_batch_size=4, gradient_accumulation_steps=2, save_strategy="no",
        report_to="none", use_cpu=True, disable_tqdm=True,
    )
    samples = [{"ids": torch.tensor(index % 4)} for index in range(32)]
    transformers.Trainer(net, arguments, train_dataset=samples, callbacks=[Push()]).train()
    assert net.tables.steps == 4
    assert read(net.tables, [0, 1, 2, 3]).sum().item() == pytest.approx(-32.0)


def test_the_layer_moves_and_is_saved_as_a_module_without_weights(layers: Layers) -> None:
    net = nn.ModuleDict({"tables": layers(), "dense": nn.Linear(2, 1)})
    assert net.to("cpu", torch.float32) is net and net.to(torch.float64)["tables"] is net["tables"]
    assert sorted(net.state_dict()) == ["dense.bias", "dense.weight"] and not list(net["tables"].parameters())
    net.load_state_dict(net.state_dict())
    assert net["tables"]({"C1": torch.tensor([1])})["C1"].dtype is torch.float32
