"""What an entry says of ONNX Runtime's sessions is what their sessions have, and answers stay."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.runtime.sessions.identity import identity_of
from brisk.segments.model.sources import BareModel
from brisk.segments.onnxruntime import SEVERAL_SPIN_US, SPIN_US, onnxruntime, session_options
from brisk.tuning import (
    ALL,
    BASIC,
    EXTENDED,
    NONE,
    OPTIMISATIONS,
    SESSION_KEYS,
    SessionTuning,
    Setting,
)
from support.models.custom_operators import compile_library, scaled
from support.models.segment_models import by_segments, chain, info, save, whole

ROWS = np.random.default_rng(3).standard_normal((5, 64)).astype(np.float32)
TUNINGS = {
    "one thread": SessionTuning(intra_op_threads=1),
    "parallel": SessionTuning(is_parallel=True, inter_op_threads=2),
    "no arena": SessionTuning(uses_arena=False),
    "no pattern": SessionTuning(uses_memory_pattern=False),
    "shrinking": SessionTuning(shrinks_arena=True),
    "basic": SessionTuning(optimisation=BASIC),
    "extended": SessionTuning(optimisation=EXTENDED),
    "none": SessionTuning(optimisation=NONE),
    "no packing": SessionTuning(settings=(Setting("session.disable_prepacking", "1"),)),
    "own arena": SessionTuning(settings=(Setting("session.use_env_allocators", "0"),)),
    "device allocator": SessionTuning(
        settings=(Setting("session.use_device_allocator_for_initializers", "1"),)
    ),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return chain(tmp_path / "model.onnx", layers=3, width=64)


@pytest.mark.parametrize("tuning", TUNINGS.values(), ids=list(TUNINGS))
def test_answers_are_those_of_onnx_runtime_called_directly(
    tuning: SessionTuning, model: Path
) -> None:
    library = onnxruntime()
    options = library.SessionOptions()
    options.graph_optimization_level = LEVELS(tuning.optimisation)
    direct = library.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    expected = direct.run(["y"], {"x": ROWS})[0]
    for warm in (False, True):
        for _ in range(2):
            source = BareModel(model, 2, tuning=tuning)
            answer = by_segments(source, {"x": ROWS}, warm=warm)["y"]
            np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6)


def LEVELS(optimisation: str) -> object:  # a table of names that need the import
    levels = onnxruntime().GraphOptimizationLevel
    return {
        ALL: levels.ORT_ENABLE_ALL,
        EXTENDED: levels.ORT_ENABLE_EXTENDED,
        BASIC: levels.ORT_ENABLE_BASIC,
        NONE: levels.ORT_DISABLE_ALL,
    }[optimisation]


def test_a_session_has_what_the_entry_says(model: Path) -> None:
    library = onnxruntime()
    tuning = SessionTuning(
        BASIC,
        1,
        2,
        is_parallel=True,
        uses_arena=False,
        uses_memory_pattern=False,
        settings=(Setting("session.dynamic_block_base", "4"),),
    )
    options = BareModel(model, 2, tuning=tuning).open_warm(0).session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 2)
    assert options.execution_mode == library.ExecutionMode.ORT_PARALLEL
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.graph_optimization_level == library.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.get_session_config_entry("session.dynamic_block_base") == "4"
    assert options.get_session_config_entry("session.use_env_allocators") == "0"


def test_threads_wait_for_the_next_operator_without_sleeping_but_not_for_long() -> None:
    spins, duration = "session.intra_op.allow_spinning", "session.intra_op.spin_duration_us"

    stops = "session.force_spinning_stop"

    def said(*settings: Setting, spins_long: bool = False) -> dict[str, str]:
        options = session_options(
            SessionTuning(settings=settings),
            2,
            is_warm=True,
            spins_long=spins_long,
        )
        found = {}
        for key in (spins, duration, stops):
            with contextlib.suppress(RuntimeError):  # it was not said
                found[key] = options.get_session_config_entry(key)
        return found

    assert said() == {duration: str(SPIN_US)}
    several = {duration: str(SEVERAL_SPIN_US), stops: "1"}
    assert said(spins_long=True) == several
    for key, value in ((spins, "0"), (spins, "1"), (duration, "7")):
        assert said(Setting(key, value)) == {key: value}, "the entry's own word is all that counts"


def test_a_release_that_would_spin_without_bound_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime(), "__version__", "1.20.1")
    options = session_options(SessionTuning(), 2, is_warm=True)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_threads_are_those_of_the_entry_up_to_the_worker_s() -> None:
    for asked, had in ((0, 2), (1, 1), (2, 2), (64, 2)):
        tuning = SessionTuning(intra_op_threads=asked, inter_op_threads=asked, is_parallel=True)
        options = session_options(tuning, 2, is_warm=True)
        assert (options.intra_op_num_threads, options.inter_op_num_threads) == (had, had)


def test_what_is_said_of_a_session_counts_its_threads(model: Path) -> None:
    """Not only in its options: a pool of n threads has n - 1 besides the one that asks."""

    def made(threads: int) -> int:
        tasks = Path("/proc/self/task")
        before = len(list(tasks.iterdir()))
        session = BareModel(model, 4, tuning=SessionTuning(intra_op_threads=threads)).open(0)
        session.session.run(["y"], {"x": ROWS})
        return len(list(tasks.iterdir())) - before

    assert (made(1), made(3)) == (0, 2)


@pytest.mark.parametrize("optimisation", OPTIMISATIONS)
def test_a_graph_is_optimised_as_far_as_the_entry_says_and_no_further(
    optimisation: str, tmp_path: Path
) -> None:
    """Basic passes drop the identity, extended ones fuse Gelu, all of them choose layouts."""
    nodes = [
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("Div", ["i", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["a"]),
        helper.make_node("Mul", ["i", "a"], ["m"]),
        helper.make_node("Mul", ["m", "half"], ["y"]),
    ]
    constants = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    weights = {name: np.array(value, np.float32) for name, value in constants.items()}
    shape = ("n", 64)
    path = save(tmp_path / "m.onnx", nodes, [info("x", *shape)], [info("y", *shape)], weights)
    kept = tmp_path / "optimised.onnx"
    options = session_options(SessionTuning(optimisation), 1, is_warm=True)
    options.optimized_model_filepath = str(kept)
    onnxruntime().InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    operators = [node.op_type for node in onnx.load(kept).graph.node]
    assert ("Identity" in operators) == (optimisation == NONE)
    assert ("Gelu" in operators) == (optimisation in (ALL, EXTENDED))
    start = session_options(SessionTuning(optimisation), 1, is_warm=False)
    disabled = onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
    assert start.graph_optimization_level == disabled


@pytest.mark.parametrize(
    ("tuning", "text"),
    [
        (
            SessionTuning("most"),
            "unknown graph optimisation 'most'; expected one of all",
        ),
        (SessionTuning(intra_op_threads=-1), "intra_op_thread_count must be 0 or more, not -1"),
        (SessionTuning(inter_op_threads=-2), "inter_op_thread_count must be 0 or more, not -2"),
        (
            SessionTuning(settings=(Setting("session.optimized_model_filepath", "/x"),)),
            "'session.optimized_model_filepath' is no setting that an entry may make",
        ),
        (
            SessionTuning(settings=(Setting("session.disable_prepacking", "yes"),)),
            "session.disable_prepacking must be 0 or 1, not 'yes'",
        ),
        (SessionTuning(uses_arena=False, shrinks_arena=True), "needs the arena that enable_mem"),
        (SessionTuning(operator_libraries=("/x",) * 65), "65 libraries of operators; expected"),
    ],
)
def test_a_tuning_that_cannot_be_had_is_refused_by_name(
    tuning: SessionTuning, text: str, model: Path
) -> None:
    with pytest.raises(InvalidConfigurationError, match=re.escape(text)):
        BareModel(model, 2, tuning=tuning).check()


def test_no_setting_names_a_file() -> None:
    """What an entry names is opened by ``brisk.paths`` alone."""
    assert not [key for key in SESSION_KEYS if re.search("path|file|folder|context", key)]


def test_entries_of_other_tuning_have_sessions_of_their_own(model: Path, tmp_path: Path) -> None:
    keys = [identity_of(str(model), tuning) for tuning in (SessionTuning(), *TUNINGS.values())]
    assert len(set(keys)) == len(keys)
    assert identity_of(str(model), SessionTuning()) == identity_of(str(model))
    library = tmp_path / "elsewhere.so"
    tuning = SessionTuning(operator_libraries=(str(library),))
    with pytest.raises(InvalidModelError, match=r"custom operators .*elsewhere\.so.* cannot be"):
        identity_of(str(model), tuning)
    library.write_bytes(b"one")
    first = identity_of(str(model), tuning)
    library.write_bytes(b"another")
    assert identity_of(str(model), tuning) != first


def scaled_model(folder: Path, factor: int = 3) -> tuple[Path, SessionTuning]:
    onnx.save(scaled(), folder / "model.onnx")
    library = compile_library(folder / "libscale.so", factor)
    return folder / "model.onnx", SessionTuning(operator_libraries=(str(library),))


def test_operators_of_a_library_are_computed(tmp_path: Path) -> None:
    path, tuning = scaled_model(tmp_path)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for warm in (False, True):
        source = BareModel(path, 2, tuning=tuning)
        np.testing.assert_array_equal(by_segments(source, {"x": x}, warm=warm)["y"], 3 * x + 1)
    with pytest.raises(InvalidModelError, match=r"test\.brisk"):
        BareModel(path, 2).check()


def test_a_new_library_takes_the_place_of_one_that_is_still_in_use(tmp_path: Path) -> None:
    x = np.ones((1, 4), np.float32)
    path, tuning = scaled_model(tmp_path)
    old = BareModel(path, 2, tuning=tuning)
    assert by_segments(old, {"x": x})["y"][0, 0] == 4
    kept = old.open(0)
    scaled_model(tmp_path, factor=5)
    assert by_segments(BareModel(path, 2, tuning=tuning), {"x": x})["y"][0, 0] == 6
    assert kept.session.run(["y"], {"x": x})[0][0, 0] == 4


def test_a_library_that_is_written_over_while_in_use_is_refused(tmp_path: Path) -> None:
    path, tuning = scaled_model(tmp_path)
    source = BareModel(path, 2, tuning=tuning)
    kept = source.open(0)
    library = tmp_path / "libscale.so"
    status = library.stat()
    os.utime(library, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    with pytest.raises(InvalidModelError, match="was written anew while it is in use; expected"):
        BareModel(path, 2, tuning=tuning).check()
    assert kept.session.run(["y"], {"x": np.ones((1, 4), np.float32)})[0][0, 0] == 4


def test_a_library_that_others_could_have_written_is_not_executed(tmp_path: Path) -> None:
    path, tuning = scaled_model(tmp_path)
    (tmp_path / "libscale.so").chmod(0o777)
    with pytest.raises(InvalidModelError, match=r"libscale\.so cannot be used: .*mode 0777"):
        BareModel(path, 2, tuning=tuning).check()


def test_what_is_no_library_of_operators_is_named(tmp_path: Path) -> None:
    path, tuning = scaled_model(tmp_path)
    (tmp_path / "libscale.so").unlink()
    (tmp_path / "libscale.so").write_bytes(b"no library")
    with pytest.raises(InvalidModelError, match=r"libscale\.so cannot be loaded: .*expected a sh"):
        BareModel(path, 2, tuning=tuning).check()
    (tmp_path / "libscale.so").unlink()
    with pytest.raises(InvalidModelError, match=r"libscale\.so cannot be used: .*No such file"):
        BareModel(path, 2, tuning=tuning).check()


def own_format(path: Path, target: Path, level: str = ALL) -> Path:
    """The model at ``path`` as ONNX Runtime writes it for itself."""
    library = onnxruntime()
    options = library.SessionOptions()
    options.graph_optimization_level = LEVELS(level)
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.save_model_format", "ORT")
    library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return target


@pytest.mark.parametrize("level", [ALL, BASIC])
def test_a_model_in_onnx_runtime_s_own_format_is_served(
    level: str, model: Path, tmp_path: Path
) -> None:
    path = own_format(model, tmp_path / "model.ort", level)
    source = BareModel(path, 2)
    assert len(source.segments) == 1
    (given,) = source.plan.inputs
    assert (given.name, given.type.dtype) == ("x", "float32")
    for warm in (False, True):
        answer = by_segments(source, {"x": ROWS}, warm=warm)["y"]
        np.testing.assert_allclose(answer, whole(path, {"x": ROWS})["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kept", [8, 100, 2000, -40])
def test_a_file_of_the_own_format_that_is_cut_off_is_refused(
    kept: int, model: Path, tmp_path: Path
) -> None:
    path = own_format(model, tmp_path / "model.ort")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InvalidModelError, match=r"model\.ort"):
        BareModel(path, 2).check()


def test_types_and_shapes_of_the_own_format_are_read(tmp_path: Path) -> None:
    kinds = (TensorProto.INT64, TensorProto.STRING, TensorProto.FLOAT16, TensorProto.BOOL)
    nodes = [helper.make_node("Identity", [f"x{kind}"], [f"y{kind}"]) for kind in kinds]
    shapes = {kind: ("n", 3)[: 2 - (kind == TensorProto.BOOL)] for kind in kinds}
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [info(f"x{kind}", *shapes[kind], kind=kind) for kind in kinds],
        [info(f"y{kind}", *shapes[kind], kind=kind) for kind in kinds],
    )
    plan = BareModel(own_format(path, tmp_path / "m.ort"), 1).plan
    bare = BareModel(path, 1).plan
    assert plan.inputs == bare.inputs
    assert plan.outputs == bare.outputs
