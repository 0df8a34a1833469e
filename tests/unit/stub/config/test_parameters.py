"""Parameters of entries and requests: what is understood, and how problems are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brisk.errors import InvalidConfigurationError, InvalidRequestError
from brisk.settings import tolerance
from brisk.stub.config.parameters import (
    DEFAULT_MAX_QUEUE_SIZE,
    JOB_CLASSES,
    ONNXRUNTIME_PARAMETERS,
    needs_classes,
    parse_parameters,
    request_agreement,
    request_class,
)


def said(**values: str) -> dict[str, dict[str, str]]:
    return {name: {"string_value": value} for name, value in values.items()}


def test_nothing_said_means_the_defaults() -> None:
    parameters = parse_parameters({})
    assert parameters.job_class == "normal"
    assert parameters.max_queue_size == DEFAULT_MAX_QUEUE_SIZE
    assert parameters.foreign == parameters.ignored_onnxruntime == ()


def test_what_is_said_is_taken() -> None:
    parameters = parse_parameters(said(brisk_class="realtime", brisk_max_queue_size=" 17 "))
    assert (parameters.job_class, parameters.max_queue_size) == ("realtime", 17)


def test_parameters_of_the_onnx_runtime_backend_are_accepted_and_listed() -> None:
    parameters = parse_parameters({name: {"string_value": "1"} for name in ONNXRUNTIME_PARAMETERS})
    assert parameters.ignored_onnxruntime == tuple(sorted(ONNXRUNTIME_PARAMETERS))
    assert parameters.foreign == ()


def test_parameters_of_others_are_listed_not_refused() -> None:
    parameters = parse_parameters(said(EXECUTION_ENV_PATH="/x", author="me"))
    assert parameters.foreign == ("EXECUTION_ENV_PATH", "author")


@pytest.mark.parametrize("name", ["max_class", "briskmaxclass", "MaxClass", "brisk-max-class"])
def test_an_ignored_name_like_one_of_brisk_s_is_told_with_that(name: str) -> None:
    (line,) = parse_parameters(said(**{name: "realtime", "author": "me"})).ignored()
    assert line.endswith("are unknown to Brisk and ignored; did you mean brisk_max_class?")
    (other,) = parse_parameters(said(author="me", brisk="1")).ignored()
    assert "did you mean" not in other


def test_tensors_in_a_gpu_s_memory_are_refused_by_the_parameter_s_name() -> None:
    assert parse_parameters(said(FORCE_CPU_ONLY_INPUT_TENSORS="yes")).foreign == ()
    with pytest.raises(
        InvalidConfigurationError, match="FORCE_CPU_ONLY_INPUT_TENSORS must be yes"
    ):
        parse_parameters(said(FORCE_CPU_ONLY_INPUT_TENSORS="no"))


def test_all_problems_are_told_together() -> None:
    wrong = said(brisk_class="fast", brisk_max_queue_size="none", brisk_clas="normal")
    with pytest.raises(InvalidConfigurationError) as caught:
        parse_parameters(wrong)
    text = str(caught.value)
    assert "brisk_class must be one of realtime, normal, besteffort, not 'fast'" in text
    assert "brisk_max_queue_size must be a whole number from 1 to 2147483647, not 'none'" in text
    assert "unknown parameter 'brisk_clas', did you mean 'brisk_class'?" in text


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("brisk_max_queue", "brisk_max_queue_size"),
        ("BRISK_CLASS", "brisk_class"),
        ("brisk_zzz", "brisk_"),
    ],
)
def test_the_nearest_name_is_proposed(name: str, nearest: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=f"'{name}', did you mean '{nearest}"):
        parse_parameters(said(**{name: "1"}))


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "2147483648", "", "1e3", "9" * 5000])
def test_a_queue_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="brisk_max_queue_size"):
        parse_parameters(said(brisk_max_queue_size=text))


@given(st.dictionaries(st.text(max_size=25) | st.just("brisk_class"), st.text(max_size=10)))
def test_any_parameters_are_parsed_or_refused(values: dict[str, str]) -> None:
    try:
        parameters = parse_parameters(said(**values))
    except InvalidConfigurationError:
        return
    assert parameters.job_class in JOB_CLASSES


def test_a_request_s_class_wins_over_the_entry_s() -> None:
    entry = parse_parameters(said(brisk_class="normal", brisk_max_class="realtime"))
    assert request_class({}, entry) == "normal"
    assert request_class({"brisk_class": "realtime", "other": 3}, entry) == "realtime"
    assert request_class({"brisk_class": "besteffort"}, entry) == "besteffort"


@pytest.mark.parametrize("most_of_entry", range(3))
@pytest.mark.parametrize("own", range(3))
@pytest.mark.parametrize("asked", range(3))
def test_a_request_asks_for_any_class_up_to_the_entry_s_most_urgent_one(
    most_of_entry: int, own: int, asked: int
) -> None:
    """0 is real-time."""
    said_of_entry = said(brisk_class=JOB_CLASSES[own], brisk_max_class=JOB_CLASSES[most_of_entry])
    if most_of_entry > own:
        with pytest.raises(InvalidConfigurationError, match=r"brisk_max_class '\w+' is below"):
            parse_parameters(said_of_entry)
        return
    entry = parse_parameters(said_of_entry)
    wanted = {"brisk_class": JOB_CLASSES[asked]}
    if asked >= most_of_entry:
        assert request_class(wanted, entry) == JOB_CLASSES[asked]
        return
    with pytest.raises(InvalidRequestError) as caught:
        request_class(wanted, entry)
    text = str(caught.value)
    assert f"asks for class '{JOB_CLASSES[asked]}'" in text
    assert f"allows '{JOB_CLASSES[most_of_entry]}' at most" in text
    assert f'set the parameter brisk_max_class to "{JOB_CLASSES[asked]}" in config.pbtxt' in text


@pytest.mark.parametrize("job_class", JOB_CLASSES)
def test_an_entry_that_says_no_more_allows_its_own_class(job_class: str) -> None:
    assert parse_parameters(said(brisk_class=job_class)).max_class == job_class
    assert parse_parameters({}).max_class == "normal"


def test_a_most_urgent_class_below_the_entry_s_own_says_what_it_may_be() -> None:
    with pytest.raises(
        InvalidConfigurationError,
        match=r"brisk_max_class 'besteffort' is below brisk_class 'normal'.*of realtime, normal",
    ):
        parse_parameters(said(brisk_max_class="besteffort"))
    with pytest.raises(
        InvalidConfigurationError, match=r"brisk_max_class must be one of .*'most'"
    ):
        parse_parameters(said(brisk_max_class="most"))


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, None),
        ({"brisk_early_exit": True}, None),
        ({"brisk_early_exit": "false"}, 1_000_000),
        ({"brisk_early_exit": False, "brisk_accuracy": 0.9}, 1_000_000),
        ({"brisk_accuracy": "0.995"}, 995_000),
        ({"brisk_early_exit": "True", "brisk_accuracy": 1}, 1_000_000),
    ],
)
def test_a_request_says_how_often_early_answers_must_be_the_model_s(
    parameters: dict[str, object], expected: int | None
) -> None:
    assert request_class(parameters, parse_parameters({})) == "normal"
    assert request_agreement(parameters) == expected


@pytest.mark.parametrize("value", [0, -0.5, 1.01, "nan", "high", True, None])
def test_an_accuracy_that_is_no_share_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="brisk_accuracy must be a number above 0"):
        request_agreement({"brisk_accuracy": value})


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"brisk_class": "fast"}, "must be one of realtime, normal, besteffort, not 'fast'"),
        ({"brisk_class": 1}, "not 1"),
        ({"brisk_class": None}, "not None"),
        ({"brisk_priority": 1}, "unknown request parameter 'brisk_priority'"),
        ({"BRISK_CLASS": "realtime"}, "unknown request parameter 'BRISK_CLASS'"),
    ],
)
def test_a_request_that_asks_for_something_unknown_is_refused(
    parameters: dict[str, object], reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        request_class(parameters, parse_parameters({}))


@pytest.mark.parametrize(
    ("said", "of_server", "ppm"),
    [
        ({}, "", 0),
        ({"brisk_accuracy": "0.98"}, "", 980_000),
        ({}, "0.97", 970_000),
        ({"brisk_accuracy": "off"}, "0.97", 0),
        ({"brisk_accuracy": "0.5"}, "off", 500_000),
    ],
)
def test_early_answers_are_asked_for_by_the_entry_or_the_server(
    said: dict[str, str], of_server: str, ppm: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_ACCURACY", of_server)
    written = {name: {"string_value": text} for name, text in said.items()}
    assert parse_parameters(written).accuracy_ppm == ppm


def test_what_only_early_answers_use_is_told_where_none_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = said(brisk_tolerance="cosine 0.99", brisk_smaller_model="small.onnx")
    (line,) = parse_parameters(values).ignored()
    assert line == (
        "parameters brisk_tolerance, brisk_smaller_model have no effect without brisk_accuracy"
    )
    (line,) = parse_parameters(said(brisk_tolerance="cosine 0.99", brisk_accuracy="off")).ignored()
    assert line == "parameter brisk_tolerance has no effect without brisk_accuracy"
    assert list(parse_parameters({**values, **said(brisk_accuracy="0.98")}).ignored()) == []
    monkeypatch.setenv("BRISK_ACCURACY", "0.98")
    assert list(parse_parameters(values).ignored()) == []


@pytest.mark.parametrize(
    ("said", "labels", "is_needed"),
    [
        ({}, "", True),
        ({}, "kinds.txt", False),
        ({"brisk_accuracy": "0.97"}, "", False),
        ({"brisk_tolerance": "cosine 0.9"}, "", False),
        ({"brisk_accuracy": "off"}, "", False),
    ],
)
def test_where_the_server_alone_asks_for_early_answers_nothing_says_that_outputs_are_classes(
    said: dict[str, str], labels: str, is_needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = {name: {"string_value": text} for name, text in said.items()}
    config = {"output": [{"name": "y"}, {"name": "z", "label_filename": labels}]}
    assert not needs_classes(parse_parameters(written), config), "nobody asks"
    monkeypatch.setenv("BRISK_ACCURACY", "0.97")
    assert needs_classes(parse_parameters(written), config) is is_needed


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("cosine 0.990", "cosine 0.99"),
        ("absolute 1e-2", "absolute 0.01"),
        (" cosine .5 ", "cosine 0.5"),
        ("cosine 0.99999999995", "cosine 0.99999999995"),
        ("absolute 2", "absolute 2"),
    ],
)
def test_a_tolerance_says_which_values_are_the_model_s_own(text: str, kept: str) -> None:
    assert parse_parameters({"brisk_tolerance": {"string_value": text}}).tolerance == kept
    assert tolerance(kept) == tolerance(text.strip())


@pytest.mark.parametrize(
    "text", ["", "0.99", "cosine", "cosine 1", "cosine 0", "absolute 0", "absolute inf", "exact 1"]
)
def test_a_tolerance_that_is_none_is_refused(text: str) -> None:
    told = r"brisk_tolerance must be 'cosine S' .* or 'absolute D'"
    with pytest.raises(InvalidConfigurationError, match=told):
        parse_parameters({"brisk_tolerance": {"string_value": text}})


def test_a_smaller_model_is_a_file_s_name() -> None:
    named = {"brisk_smaller_model": {"string_value": "small.onnx"}}
    assert parse_parameters(named).smaller_model == "small.onnx"
    assert parse_parameters({}).smaller_model == ""
    with pytest.raises(InvalidConfigurationError, match="brisk_smaller_model must be a file"):
        parse_parameters({"brisk_smaller_model": {"string_value": ""}})


@pytest.mark.parametrize("text", ["1", "0.9999999", "0.4", "nan", "high", "-0.98", "0,98"])
def test_a_promise_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "brisk_accuracy must be a share from 0.5 to 0.999999, or off"
    with pytest.raises(InvalidConfigurationError, match=told):
        parse_parameters({"brisk_accuracy": {"string_value": text}})
    monkeypatch.setenv("BRISK_ACCURACY", text)
    with pytest.raises(InvalidConfigurationError, match="BRISK_ACCURACY must be a share"):
        parse_parameters({})
