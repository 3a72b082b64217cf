"""The list of artifacts: complete, in order, each with what it prints and with trials that can be built at every scale."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spectralgrad.errors import OptionError
from spectralgrad_lab import artifacts as folder
from spectralgrad_lab.artifacts import registry
from spectralgrad_lab.artifacts.protocols import protocol
from spectralgrad_lab.artifacts.protocols.protocol import SHORT, TAYLOR
from spectralgrad_lab.artifacts.run import run_spec
from spectralgrad_lab.artifacts.spec import Entry, Spec
from spectralgrad_lab.models.build import build
from spectralgrad_lab.models.layers import LayerOptions, norm_of
from spectralgrad_lab.records.results import SCALES, Printed, Scale
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.report.cells import SPECTRUM
from spectralgrad_lab.training.treatments import treat_weight
from support.marks import slow_but

IDS = [
    *("nips19-table1", "nips19-fig1", "nips19-table2", "nips19-fig2", "nips19-table3"),
    *("nips19-table4a", "nips19-table4b", "nips19-table4c", "nips19-fig3"),
    *("nips19-table5", "nips19-fig4", "nips19-time", "draft-table2", "draft-table3"),
    *("pami-fig1a", "pami-fig1b", "pami-fig2", "pami-fig3", "pami-fig4"),
    *("pami-fig5", "pami-table3", "pami-table4", "pami-table5", "pami-table6"),
    "pami-fig6",
    *("pami-fig7", "pami-table7", "pami-table8", "pami-table9", "pami-table10"),
    *("pami-fig9", "pami-fig10", "pami-fig11", "pami-eq60"),
    *("eccv22-fig1", "eccv22-fig2", "eccv22-fig3", "eccv22-fig4", "eccv22-fig5"),
    *("eccv22-table1", "eccv22-table2", "eccv22-table3", "eccv22-table4"),
    *("eccv22-table5", "eccv22-table6"),
    *("ours-contrasts", "ours-survival", "ours-ratios", "ours-floor", "ours-kept", "ours-premise"),
]
STYLE = {"pami-fig2", "pami-table8", "pami-table9", "pami-table10", "pami-fig9", "pami-fig10"}
COMPUTED = {"nips19-table1", "nips19-fig1", "pami-fig1a", "pami-fig3", "pami-fig4", "pami-fig11", "pami-eq60"}
TIMED = {"nips19-time", "pami-fig7", "eccv22-table6"}
SPECTRA = ("ours-ratios", "ours-floor", "ours-kept", "ours-premise")  # of other artifacts' trainings
OWN = {"ours-survival", *SPECTRA}  # that one with a protocol of its own, small enough for two cores
TRAINED = [id for id in IDS if id not in STYLE | COMPUTED | TIMED]

# Trials of a cell in the papers; and the sets they train on.
TRIALS = {
    **dict.fromkeys(("nips19-table2", "pami-table4"), (15,)),
    **dict.fromkeys(("nips19-fig2", "nips19-fig4", "pami-fig5", "pami-fig6", "pami-table7", "eccv22-table5"), (1,)),
    **dict.fromkeys((f"eccv22-fig{i}" for i in range(1, 6)), (1,)),
    **dict.fromkeys(("nips19-table3", "nips19-table4a", "nips19-table4b", "nips19-table4c", "nips19-fig3"), (5,)),
    **dict.fromkeys(("nips19-table5", "pami-table5"), (5,)),
    **dict.fromkeys(("draft-table2", "draft-table3"), (4,)),
    **dict.fromkeys((f"eccv22-table{i}" for i in range(1, 5)), (10,)),
    "pami-fig1b": (18,),
    "pami-table3": (8,),
    "pami-table6": (5, 1),
    "ours-contrasts": (2,),
}
CIFAR100 = {"nips19-table3", "pami-fig5", "pami-table3", "pami-table5", *(f"eccv22-table{i}" for i in (1, 2, 3))}
DATA = {
    **dict.fromkeys(TRAINED, ("cifar10",)),
    **dict.fromkeys((*CIFAR100, "eccv22-fig2", "eccv22-fig3", "eccv22-fig4"), ("cifar100",)),
    **dict.fromkeys(("pami-table7", "eccv22-table5", "eccv22-fig5"), ("folder",)),
    "pami-table6": ("tinyimagenet",),
    **dict.fromkeys(("eccv22-table4", "nips19-fig2"), ("cifar10", "cifar100")),
    "eccv22-fig1": ("cifar100", "folder"),
}
SHORT_DATA = {"eccv22-table4": "cifar10"}  # of both
ILLEGIBLE = {"nips19-table1": 7, "nips19-table3": 1, "draft-table3": 2}
ILLEGIBLE |= {"eccv22-table1": 2, "eccv22-table2": 2, "eccv22-table4": 10, "eccv22-table6": 1}

SPECS = registry.specs()
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
every_training = pytest.mark.parametrize("spec", [SPECS[id] for id in TRAINED], ids=TRAINED)
PRINTED = [id for id in TRAINED if id not in OWN]
every_printed_training = pytest.mark.parametrize("spec", [SPECS[id] for id in PRINTED], ids=PRINTED)


def entries_of(spec: Spec, scale: Scale) -> tuple[Entry, ...]:
    assert spec.entries is not None
    return spec.entries(scale)


def trials_of(spec: Spec, scale: Scale) -> list[Trial]:
    return [trial for entry in entries_of(spec, scale) for trial in entry.trials]


def printed_cells(spec: Spec) -> Iterator[tuple[str, str, str | None]]:
    for printed in spec.printed:
        for row, cells in printed.rows.items():
            yield from ((row, column, cell) for column, cell in zip(printed.columns, cells, strict=True))


def test_every_id_is_there_in_the_order_of_the_papers() -> None:
    assert len(IDS) == 51
    assert list(SPECS) == IDS
    papers = {id.partition("-")[0] for id in IDS}
    found = {path for paper in papers for path in Path(folder.__path__[0], paper).glob("*.py") if path.stem != "__init__"}
    assert {f"{path.parent.name}-{path.stem}" for path in found} == set(IDS)


@every_spec
def test_a_spec_says_what_it_is(spec: Spec) -> None:
    assert SPECS[spec.id] is spec
    assert spec.paper == spec.id.partition("-")[0].upper()
    assert spec.shows
    assert spec.claim.endswith(".")
    assert set(spec.says) <= set(SCALES)


@every_spec
def test_a_spec_has_what_its_kind_needs(spec: Spec) -> None:
    kinds = {**dict.fromkeys(STYLE, "style"), **dict.fromkeys(COMPUTED, "computed"), **dict.fromkeys(TIMED, "timing")}
    assert spec.kind == kinds.get(spec.id, "training")
    assert (spec.entries is not None) == (spec.kind == "training")
    assert (spec.compute is not None) == (spec.kind in ("computed", "timing"))
    assert (spec.make is not None) == (spec.kind == "style")
    assert spec.is_computed == (spec.kind != "training")


@every_training
@pytest.mark.parametrize("scale", SCALES)
def test_entries_are_cells_with_seeds(spec: Spec, scale: Scale) -> None:
    entries = entries_of(spec, scale)
    assert len({(entry.row, entry.column) for entry in entries}) == len(entries) > 0
    for entry in entries:
        assert [trial.seed for trial in entry.trials] == list(range(len(entry.trials)))
        assert len({replace(trial, seed=0) for trial in entry.trials}) == 1
    if scale == "short":
        more = {"pami-table3": {10}, "pami-fig5": {10}, "ours-contrasts": {6}, "ours-survival": {2, 5}}
        counts = more.get(spec.id, {1, 3, 5})
        assert {len(entry.trials) for entry in entries} <= counts
    assert scale != "smoke" or {len(entry.trials) for entry in entries} <= {1, 2}


def test_trials_survive_their_record_and_have_keys_of_their_own() -> None:
    trials = {trial for id in TRAINED for scale in SCALES for trial in trials_of(SPECS[id], scale)}
    assert len(trials) > 1000
    assert len({trial.key for trial in trials}) == len(trials)
    assert all(Trial.from_json(trial.as_json()) == trial for trial in trials)


@pytest.mark.parametrize("scale", slow_but(["paper"], SCALES))
def test_every_network_can_be_built(scale: Scale) -> None:
    """All layers, methods and options that the specs ask for exist. On the meta device nothing is computed."""
    shapes = {"digits": (10, 1, 8), "cifar10": (10, 3, 32), "cifar100": (100, 3, 32), "tinyimagenet": (200, 3, 64)}
    read = [name for name, value in vars(LayerOptions).items() if isinstance(value, property)]
    assert {"model", "layer", "method", "d"} <= set(read)
    trials = {trial for id in TRAINED for trial in trials_of(SPECS[id], scale)}
    networks = {(trial.data, *(getattr(trial, name) for name in read)): trial for trial in trials}  # each once
    with torch.device("meta"):
        for trial in networks.values():
            build(trial, *shapes.get(trial.data, (1000, 3, 224)))


@every_training
def test_smoke_is_digits_and_small(spec: Spec) -> None:
    trials = set(trials_of(spec, "smoke"))
    assert len(trials) <= 18
    for trial in trials:
        assert (trial.data, trial.model.removesuffix("-gcp"), trial.augment) == ("digits", "digits", False)
        assert trial.width <= 16
        assert trial.epochs <= 2
        assert trial.train_samples is not None
        assert trial.train_samples <= 512


@every_printed_training
def test_short_is_the_papers_set_in_a_few_epochs_and_seeds(spec: Spec) -> None:
    trials = set(trials_of(spec, "short"))
    assert sum(trial.model == "resnet50" for trial in trials) <= 6
    for trial in trials:
        sets = [SHORT_DATA.get(spec.id, {"folder": "tinyimagenet"}.get(name, name)) for name in DATA[spec.id]]  # no ImageNet
        assert trial.data in sets
        epochs = {"cifar10": 8, "cifar100": 24, "tinyimagenet": 8}[trial.data]
        epochs = 24 if spec.id == "ours-contrasts" else epochs
        epochs = 16 if spec.id.startswith("eccv22") and trial.layer != "gcp" else epochs
        assert (trial.epochs, trial.batch, trial.lr) == (epochs, 128, 0.1)
        assert (trial.schedule, trial.nesterov, trial.drop_last, trial.precision) == ("onecycle", True, True, "bf16-mixed")


def test_every_beginning_of_a_sweep_is_worth_having() -> None:
    trials = SPECS["pami-table4"].trials("short")
    assert len(trials) == 180
    order = [(t.d in (8, 32), t.method == "pi", t.seed) for t in trials]
    assert order == sorted(order)


@every_printed_training
def test_the_paper_scale_is_the_printed_protocol(spec: Spec) -> None:
    entries = entries_of(spec, "paper")
    assert {len(entry.trials) for entry in entries} == set(TRIALS[spec.id])
    assert {trial.data for entry in entries for trial in entry.trials} == set(DATA[spec.id])
    protocols = {
        "cifar10": (350, (100, 200, 300), 5e-4, 128),
        "cifar100": (350, (100, 200, 300), 5e-4, 128),
        "tinyimagenet": (90, (30, 60), 5e-4, 128),
        "folder": (60, (30, 45), 1e-4, 256),
    }
    for trial in trials_of(spec, "paper"):
        assert (trial.epochs, trial.milestones, trial.weight_decay, trial.batch) == protocols[trial.data]
        assert (trial.lr, trial.momentum, trial.gamma, trial.width, trial.augment) == (0.1, 0.9, 0.1, 64, True)
        assert trial.train_samples is None
        assert trial.test_samples is None


@pytest.mark.parametrize("id", ["nips19-table2", "pami-table4", "pami-table5", "pami-table6", "pami-fig6"])
def test_eps_and_running_statistics_are_those_of_the_paper(id: str) -> None:
    """NIPS19: 1e-4 and a running whitening matrix. PAMI: 1e-2 and a running covariance. PAMI repeats NIPS19's rows."""
    for scale in SCALES:
        for trial in trials_of(SPECS[id], scale):
            if trial.layer != "bn":
                of_nips19 = trial.method in ("svd", "pi", "svd-pi")
                expected = (1e-4, "whitening") if of_nips19 else (1e-2, "covariance")
                assert (trial.layer, trial.eps, trial.running) == ("zca", *expected)


def test_rows_of_svd_pi_deflate_as_printed_and_those_that_say_so_two_sided() -> None:
    """In every artifact; the tables that compare SVD-PI run both."""
    found = set()
    for id in TRAINED:
        for scale in SCALES:
            for entry in entries_of(SPECS[id], scale):
                if entry.trials[0].method == "svd-pi":
                    ours = entry.row.endswith(", two-sided")
                    assert {trial.deflation for trial in entry.trials} == {"two-sided" if ours else "printed"}
                    found |= {(id, scale)} if ours else set()
                else:
                    assert entry.trials[0].deflation == "two-sided"  # the default, which nothing reads
    both = ("nips19-table2", "nips19-table3", "nips19-table5", "draft-table2", *(f"pami-table{i}" for i in (4, 5, 6, 7)))
    assert found >= {(id, scale) for id in both for scale in SCALES}
    for id in ("nips19-table2", "nips19-table3", "pami-table4", "pami-table5"):
        sizes = {e.column for e in entries_of(SPECS[id], "short") if e.row.endswith(", two-sided")}
        assert sizes >= {"d = 16", "d = 64"}


def test_the_papers_svd_of_denoising_goes_through_the_vectors() -> None:
    for id in ("nips19-table5", "nips19-fig4", "draft-table2"):
        for scale in SCALES:
            ways = {entry.row: entry.trials[0].through for entry in entries_of(SPECS[id], scale)}
            assert {row: way for row, way in ways.items() if way == "vectors"} == {"PCA(SVD)": "vectors"}
            assert "PCA(SVD), projector" in ways


def test_one_block_is_a_block_or_a_stage() -> None:
    rows = {entry.row: entry.trials[0] for entry in entries_of(SPECS["draft-table3"], "paper")}
    for name in ("PCA", "ZCA"):
        places = [rows[f"{name}{end}"].where for end in ("(1 layer)", "(1 block)", "(1 block), stage")]
        assert places == ["first", "block", "stage"]
    assert "does not say" in SPECS["draft-table3"].says["paper"]


def test_every_first_stage_has_the_usual_stride() -> None:
    assert {trial.first_stride for trial in trials_of(SPECS["pami-table6"], "paper")} == {None}
    net: Any = build(trials_of(SPECS["pami-table6"], "paper")[0], 200, 3, 64)
    assert net.stages[0][0].body[0].stride == (1, 1)


def test_orthogonal_weights_have_a_row_as_a_skew_convolution() -> None:
    for id in ("eccv22-table1", "eccv22-fig2"):
        rows = {entry.row: entry.trials[0] for entry in entries_of(SPECS[id], "short")}
        assert (rows["SVD + OW"].skew, rows["SVD + OW, skew convolution"].skew) == ("matrix", "convolution")
        assert rows["SVD + OW"].treatments == rows["SVD + OW, skew convolution"].treatments == ("OW",)
        treat_weight(build(rows["SVD + OW, skew convolution"], 10, 3, 32), rows["SVD + OW, skew convolution"])


def test_svd_of_eccv22_has_a_stable_gradient() -> None:
    for id in (id for id in TRAINED if id.startswith("eccv22")):
        for scale in SCALES:
            methods = {(trial.layer, trial.method, trial.iterations) for trial in trials_of(SPECS[id], scale)}
            assert methods <= {
                *(("zca", "taylor", 9), ("gcp", "taylor", 9), ("zca", "newton", None), ("gcp", "newton", None)),
                ("bn", "exact", None),
            }


@pytest.mark.parametrize("scale", ["short", "paper"])
def test_what_is_not_the_texts_is_said_on_the_page(scale: Scale) -> None:
    """ECCV22's stable gradient; how a pooled map is made smaller, and what of its root is handed on."""
    pooled = set()
    for id in TRAINED:
        spec, said = SPECS[id], SPECS[id].says[scale]
        assert not id.startswith("eccv22") or "«SVD» is Taylor(9)" in said
        if any(trial.layer == "gcp" for trial in trials_of(spec, scale)):
            pooled.add(id)
            assert "A 1 x 1 convolution" in said
            assert ("eq. 29" if spec.paper == "PAMI" else "eq. 44") in said
            assert "upper triangle" in said
    assert pooled == {"pami-table7", "eccv22-fig1", "eccv22-fig5", "eccv22-table5"}
    with torch.device("meta"):
        net: Any = [build(trials_of(SPECS[id], "paper")[0], 1000, 3, 224) for id in ("pami-table7", "eccv22-table5")]
    found = [(layer.output, layer.normalize, layer.channels) for layer in (each.head[0] for each in net)]
    assert found == [("triangle", "frobenius", 256), ("triangle", None, 256)]


def test_a_protocol_that_a_paper_does_not_print_is_said_to_be_anothers() -> None:
    for id in PRINTED:
        assert "NIPS19 and the draft print no epochs" in SPECS[id].says["paper"]
    for id in ("draft-table2", "draft-table3"):
        assert all("N H W - 1" in SPECS[id].says[scale] for scale in ("short", "paper"))
    assert "no size of the pictures" in SPECS["pami-table9"].says["paper"]


def test_the_last_map_of_tiny_imagenet_is_averaged_as_a_whole() -> None:
    trial = next(trial for trial in trials_of(SPECS["pami-table6"], "paper") if trial.model == "resnet18")
    net: Any = build(replace(trial, width=4, d=4), 200, 3, 64)
    features = net.features(torch.randn(2, 3, 64, 64))
    assert features.shape[-2:] == (8, 8)
    assert net.mean.output_size == 1
    assert all("8 x 8" in SPECS["pami-table6"].says[scale] for scale in ("short", "paper"))


def test_a_fixed_number_of_eigenvectors_breaks_as_printed() -> None:
    """With 32 of them the break at 99.99 % of the energy comes first, and the page says so."""
    trials = {entry.row: entry.trials[0] for entry in entries_of(SPECS["nips19-table4b"], "paper")}
    generator = torch.Generator().manual_seed(0)
    signals, mix, noise = (torch.randn(*shape, generator=generator) for shape in ((8, 3, 8, 8), (64, 3), (8, 64, 8, 8)))
    x = torch.einsum("cs,nshw->nchw", mix, signals) + 1e-3 * noise  # three directions carry all but a millionth
    kept = {}
    for rank in ("2", "32"):
        y = norm_of(trials[rank])(64)(x).detach().double().transpose(0, 1).flatten(1)
        kept[rank] = int(torch.linalg.matrix_rank(y @ y.mT, rtol=1e-9))
    assert kept == {"2": 2, "32": 3}
    assert "99.99 %" in SPECS["nips19-table4b"].says["paper"]


def test_the_short_form_of_table_4() -> None:
    entries = entries_of(SPECS["pami-table4"], "short")
    methods = {"BN": ("bn", "exact"), "SVD": ("zca", "svd"), "PI": ("zca", "pi"), "SVD-Clip": ("zca", "clip")}
    methods |= {"SVD-PI": ("zca", "svd-pi"), "SVD-PI, two-sided": ("zca", "svd-pi")}
    methods |= {"SVD-Taylor": ("zca", "taylor"), "Exact": ("zca", "exact")}
    sizes = (4, 8, 16, 32, 64)
    assert [(entry.row, entry.column) for entry in entries] == [(row, f"d = {d}") for row in methods for d in sizes]
    for entry in entries:
        assert len(entry.trials) == 5
        for trial in entry.trials:
            assert (trial.layer, trial.method) == methods[entry.row]
            assert (trial.model, trial.width, trial.data) == ("resnet18", 64, "cifar10")
            eps = 1e-4 if trial.method in ("svd", "pi", "svd-pi") else 1e-2
            assert trial.layer == "bn" or (trial.eps, f"d = {trial.d}") == (eps, entry.column)
    assert len({trial for entry in entries for trial in entry.trials}) == 180  # batch norm has no d


@pytest.mark.parametrize(
    ("change", "channels"),
    [
        ({}, 64),
        ({"model": "resnet50"}, 64),
        ({"width": 32}, 32),
        ({"model": "digits", "width": 8}, 64),
        ({"model": "alexnet"}, 64),
    ],
    ids=str,
)
def test_a_group_of_all_channels_has_one_name(change: dict[str, Any], channels: int) -> None:
    """One training serves tables that leave d out and tables that print it; and it is the same network."""
    base = replace(SHORT, **TAYLOR, **change)
    all_channels, named = protocol.trial(base), protocol.trial(base, {"d": channels})
    assert all_channels == named
    assert all_channels.key == named.key
    assert protocol.trial(base, {"d": channels // 2}) != named
    with torch.device("meta"):
        left_out, written = (build(each, 10, 3, 32).norm1 for each in (base, named))
    assert repr(left_out) == repr(written)
    assert written.running_mean.numel() == channels


def test_d_is_kept_where_norms_differ_in_channels_or_it_means_something_else() -> None:
    assert protocol.trial(SHORT, TAYLOR, {"where": "block", "model": "resnet50"}).d is None
    assert protocol.trial(SHORT, {"layer": "denoise", "method": "taylor", "energy": 0.9}).d is None
    assert protocol.trial(SHORT, {"layer": "gcp", "model": "resnet18-gcp", "d": 64}).d == 64


def test_treatments_are_those_of_the_label() -> None:
    rows = {entry.row: entry.trials[0].treatments for entry in entries_of(SPECS["eccv22-table4"], "paper")}
    assert rows["SVD"] == rows["Newton-Schulz iteration"] == ()
    assert rows["SVD + Orthogonal Loss (OL)"] == ("OL",)
    assert rows["SVD + NOG + OW + OLR"] == ("OW", "NOG", "OLR")
    assert len(set(rows.values())) == 8


def test_tables_and_figures_share_their_trainings() -> None:
    for figure, table in (("nips19-fig3", "nips19-table4b"), ("pami-fig5", "pami-table3"), ("eccv22-fig3", "eccv22-table2")):
        ours, theirs = set(trials_of(SPECS[figure], "paper")), set(trials_of(SPECS[table], "paper"))
        assert ours <= theirs or theirs <= ours


@pytest.mark.slow
@pytest.mark.parametrize("id", [id for id in IDS if id not in STYLE])
def test_smoke_runs_within_a_minute(id: str, tmp_path: Path) -> None:
    """Every cell ends, as a training that finished or as a failure with its reason; every computation leaves a record."""
    pytest.importorskip("lightning_fabric")
    store, spec = Store(tmp_path / "records"), SPECS[id]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several workers with several threads each would wait for each other
    try:
        start = time.perf_counter()
        run_spec(spec, "smoke", store, device="cpu")
        assert time.perf_counter() - start < 60
    finally:
        torch.set_num_threads(threads)
    if spec.compute is not None:
        assert store.load_computed(id, "smoke") is not None
    else:
        outcomes = [store.outcome(trial) for trial in trials_of(spec, "smoke")]
        assert all(outcome is not None and (outcome.status == "finished" or outcome.reason) for outcome in outcomes)
        assert any(outcome is not None and outcome.status == "finished" for outcome in outcomes)


@pytest.mark.slow
def test_smoke_of_style_runs_within_a_minute_each_and_shares_its_trainings(tmp_path: Path) -> None:
    store = Store(tmp_path / "records")
    for id in (id for id in IDS if id in STYLE):
        start = time.perf_counter()
        run_spec(SPECS[id], "smoke", store, device="cpu")
        assert time.perf_counter() - start < 60
        found = store.load_computed(id, "smoke")
        assert found is not None
        assert found.tables or found.pictures
    assert len(list((store.folder / "style").iterdir())) == 5  # a training for each method, and no more


# What the papers print


@every_spec
def test_printed_tables_are_rectangular(spec: Spec) -> None:
    for printed in spec.printed:
        assert printed.caption
        assert len(set(printed.columns)) == len(printed.columns) > 0
        assert all(len(cells) == len(printed.columns) for cells in printed.rows.values())


@every_spec
def test_lost_cells_stay_lost(spec: Spec) -> None:
    assert sum(cell is None for _, _, cell in printed_cells(spec)) == ILLEGIBLE.get(spec.id, 0)


@pytest.mark.parametrize("spec", [SPECS[id] for id in PRINTED if SPECS[id].printed], ids=lambda spec: spec.id)
def test_our_rows_are_called_as_the_printed_ones(spec: Spec) -> None:
    printed = {row.partition(": ")[0] for table in spec.printed for row in table.rows}
    ours = {entry.row for entry in entries_of(spec, "paper")}
    added = {row for row in ours if row.partition(", ")[2] in ("two-sided", "projector", "stage", "skew convolution")}
    assert {row.partition(", ")[0] for row in added} <= ours  # beside the row as printed
    ours -= added
    assert ours <= printed
    others = printed - ours
    assert not others or spec.id == "pami-table7"  # whose other rows are cited
    columns = {column.partition(": ")[0] for table in spec.printed for column in table.columns}
    assert {entry.column for entry in entries_of(spec, "paper")} <= columns | {"Error (%)"}


def mean_of(cell: str) -> float:
    return float(re.match(r"[\d.]+", cell)[0])  # type: ignore[index]


@every_spec
def test_minima_are_not_above_means(spec: Spec) -> None:
    """A slip in copying would show; the one that the papers have is marked."""
    cells = {(row, column): cell for row, column, cell in printed_cells(spec)}
    wrong = [
        (row, column)
        for (row, column), cell in cells.items()
        if row.endswith(": min") and cell and cell[0].isdigit()
        for mean in [cells[row.replace(": min", ": mean"), column]]
        if mean and mean[0].isdigit() and float(cell) > mean_of(mean)
    ]
    marked = any("minimum" in text for printed in spec.printed for text in printed.misprints)
    assert wrong == ([("SVD: min", "d = 4")] if marked else [])


def rows_of(id: str, index: int = 0) -> Printed:
    return SPECS[id].printed[index]


def cell(id: str, row: str, column: str, index: int = 0) -> str | None:
    printed = rows_of(id, index)
    return printed.rows[row][printed.columns.index(column)]


def test_numbers_that_several_tables_print_are_the_same() -> None:
    for network in ("ResNet18", "ResNet50"):
        for what in ("min", "mean"):
            for d in (4, 8, 16, 32, 64):
                first = cell("nips19-table3", f"{network}: {what}", f"d = {d}")
                assert first in (None, cell("pami-table5", f"{network} SVD-PI: {what}", f"d = {d}"))
            norm = cell("pami-table5", f"{network} BN: {what}", "Batch Norm", 1)
            assert cell("nips19-table3", f"{network}: {what}", "BN") == norm
    for what in ("min", "mean"):
        best = cell("pami-table3", f"SVD-Taylor: {what}", "(1e-2, 9)")
        assert best == cell("pami-table5", f"ResNet18 SVD-Taylor: {what}", "d = 64")
    compared = 0
    for other in ("eccv22-table1", "eccv22-table2", "eccv22-table3"):
        for row in set(rows_of(other).rows) & set(rows_of("eccv22-table4").rows):
            for what in rows_of(other).columns:
                pair = {cell(other, row, what), cell("eccv22-table4", row, f"CIFAR-100: {what}")} - {None}
                compared += len(pair)
                assert len(pair) <= 1
    assert compared >= 14


def test_claims_do_not_go_beyond_what_is_printed() -> None:
    """Where a cell says otherwise, or is lost, the claim is the text's and no more."""

    def mean(id: str, row: str, column: str, index: int = 0) -> float:
        return mean_of(cell(id, row, column, index) or "")

    by_size = [mean("nips19-table2", "SVD-PI: mean", f"d = {d}") for d in (8, 16, 32)]
    assert by_size == sorted(by_size)
    assert "can boost" in SPECS["nips19-table2"].claim
    assert cell("nips19-table2", "PI: success rate", "d = 8") == "6.7%"
    assert "very low success rates" in SPECS["pami-table4"].claim
    norm = mean("pami-table6", "ResNet18 BN: mean", "Batch Norm", 1)
    assert mean("pami-table6", "ResNet18 SVD-Taylor: mean", "d = 32") > norm
    assert "batch norm" not in SPECS["pami-table6"].claim
    for style, better in (("Cezanne", "PI-WCT"), ("Ukiyoe", "PI-WCT"), ("Mean", "SVD-WCT")):
        accuracies = {row: mean("pami-table8", row, f"{style}: Acc.") for row in rows_of("pami-table8").rows}
        del accuracies["Original"]
        assert max(accuracies, key=lambda row: accuracies[row]) == better
    assert "in the mean" in SPECS["pami-table8"].claim
    assert cell("draft-table3", "ZCA(1 block): mean", "Error (%)") is None
    assert "no conclusion" in SPECS["draft-table3"].claim


def test_printed_differences_are_differences() -> None:
    """ECCV22 Tables 5 and 6 and PAMI Table 8 print differences to their first row: a second look at what was copied."""
    table = rows_of("eccv22-table5")
    for i in (1, 2):
        for cells in list(table.rows.values())[1:]:
            value, sign, step = re.fullmatch(r"([\d.]+) \((.) ([\d.]+)\)", cells[i]).groups()  # type: ignore[union-attr,arg-type]
            difference = float(value) - float(table.rows["SVD"][i])  # type: ignore[arg-type]
            assert abs(difference - {"↑": 1, "↓": -1}[sign] * float(step)) < 0.0501
    table = rows_of("eccv22-table6")
    noted = [(i, text) for cells in table.rows.values() for i, text in enumerate(cells) if text and "(" in text]
    assert len(noted) == 6
    for i, text in noted:
        value, step = re.fullmatch(r"(\d+) \(\+(\d+)\)", text).groups()  # type: ignore[union-attr]
        assert int(value) - int(step) == int(table.rows["SVD"][i])  # type: ignore[arg-type]
    table = rows_of("pami-table8")
    original = table.rows["Original"]
    for name, cells in table.rows.items():
        accuracies = [float(text) for text in cells[0:10:2]]  # type: ignore[arg-type]
        mean_holds = abs(sum(accuracies) / 5 - float(cells[10])) < 0.006  # type: ignore[arg-type]
        assert mean_holds == (name != "Original")  # a misprint, marked
        if name != "Original":
            for i in range(0, 12, 2):
                assert abs(float(original[i]) - float(cells[i]) - float(cells[i + 1])) < 0.006  # type: ignore[arg-type]
    assert any("95.83" in text for text in table.misprints)


# The door


def test_find_gives_the_spec() -> None:
    assert registry.find("eccv22-fig5") is SPECS["eccv22-fig5"]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("pami-tabel4", "pami-table4"),
        ("pami_table4", "pami-table4"),
        ("NIPS19-Fig1", "nips19-fig1"),
        ("eccv-table5", "eccv22-table5"),
    ],
)
def test_a_wrong_id_suggests_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(OptionError, match=rf"no artifact '{wrong}'. Did you mean {near}\b.*spectralgrad list"):
        registry.find(wrong)


def test_nonsense_suggests_nothing() -> None:
    with pytest.raises(OptionError, match=r"no artifact 'zzz'\. `spectralgrad list`"):
        registry.find("zzz")


def test_survival_has_steps_enough_and_a_learning_rate_that_stays() -> None:
    """Five seeds of 5000 steps on CIFAR-10 for each d, 100,000 on the digits; the papers' 137,000 at paper."""
    images = {"cifar10": 50_000, "digits": 1437}
    for scale, least in (("short", {"cifar10": 5000, "digits": 100_000}), ("paper", dict.fromkeys(images, 136_850))):
        entries = entries_of(SPECS["ours-survival"], scale)
        for entry in entries:
            trial = entry.trials[0]
            assert (trial.lr, trial.milestones, trial.schedule, trial.eps) == (0.1, (), "steps", 1e-4)
            assert (trial.augment, trial.precision, trial.train_samples) == (True, "32-true", None)
            steps = trial.epochs * (images[trial.data] // trial.batch)
            assert steps >= (least[trial.data] if entry.row != "PI" else least[trial.data] // 10)
            assert entry.row in ("SVD-Taylor", "Exact") or len(entry.trials) >= 5
        assert {e.trials[0].d for e in entries if e.row == "SVD" and e.trials[0].data == "cifar10"} == {4, 8, 16, 32, 64}
    with torch.device("meta"):
        net: Any = build(SPECS["ours-survival"].trials("short")[0], 10, 3, 32)
    assert tuple(net.conv1.weight.shape) == (64, 3, 3, 3)


@pytest.mark.parametrize("id", SPECTRA)
@pytest.mark.parametrize("scale", SCALES)
def test_what_is_read_off_the_spectrum_trains_nothing_of_its_own(id: str, scale: Scale) -> None:
    others = {trial for other in PRINTED for trial in trials_of(SPECS[other], scale)}
    trials = set(trials_of(SPECS[id], scale))
    assert trials
    assert trials <= others
    assert {entry.figure for entry in entries_of(SPECS[id], scale)} <= set(SPECTRUM)
