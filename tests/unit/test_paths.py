"""What an entry may name: files inside of its version folder, whatever links are on the way."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from brisk.artefacts.content import ITSELF, content_of, stamps
from brisk.cli.views.model_files import version_files
from brisk.errors import InvalidModelError
from brisk.exits.files.container import DamagedFileError, read_container
from brisk.paths import find_inside, open_file, open_inside, version_folder
from brisk.pipelines import read_pipeline
from brisk.segments.model.model_file import read_model_file
from brisk.stub.config.entry import find_model
from brisk.stub.config.signature import read_signature

SECRET = b"of another tenant"


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """The version folder of an entry; ``secret.onnx`` lies outside of the repository."""
    folder = tmp_path / "repository" / "entry" / "1"
    folder.mkdir(parents=True)
    (tmp_path / "secret.onnx").write_bytes(SECRET)
    (folder / "model.onnx").write_bytes(b"the model")
    return folder


def link_to_secret(version: Path) -> str:
    (version / "link.onnx").symlink_to(version.parents[2] / "secret.onnx")
    return "link.onnx"


def folder_linked_out(version: Path) -> str:
    (version / "folder").symlink_to(version.parents[2])
    return "folder/secret.onnx"


def fifo(version: Path) -> str:
    os.mkfifo(version / "fifo.onnx")
    return "fifo.onnx"


def link_to_a_device(version: Path) -> str:
    (version / "zero.onnx").symlink_to("/dev/zero")
    return "zero.onnx"


def bound_socket(version: Path) -> str:
    here = os.getcwd()
    os.chdir(version)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket.onnx")
    finally:
        os.chdir(here)
    return "socket.onnx"


def link_to_itself(version: Path) -> str:
    (version / "loop.onnx").symlink_to("loop.onnx")
    return "loop.onnx"


OUTSIDE: dict[str, Callable[[Path], str]] = {
    "upwards": lambda version: "../../../secret.onnx",
    "upwards and nowhere": lambda version: "../../../absent.onnx",
    "down and upwards": lambda version: "sub/../../2/model.onnx",
    "absolute": lambda version: str(version / "model.onnx"),
    "a link out": link_to_secret,
    "a folder linked out": folder_linked_out,
    "a link to a device": link_to_a_device,
}
NO_TEXT = "no text"
"""Characters that neither a file's name nor a protocol buffer holds."""

UNREADABLE: dict[str, tuple[Callable[[Path], str], str]] = {
    "a FIFO": (fifo, "a FIFO, not a regular file"),
    "a socket": (bound_socket, "a socket, not a regular file"),
    "a loop of links": (link_to_itself, "cannot be read: Too many levels of symbolic links"),
    "NUL": (lambda version: "model.onnx\0.txt", r"NUL.*"),
    "a name too long": (lambda version: "m" * 300, "File name too long"),
    "a path too long": (lambda version: "m/" * 5000, "File name too long"),
    NO_TEXT: (lambda version: "\ud800", "is no file's name"),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_leads_out_of_the_version_is_refused_by_parameter_value_and_reason(
    version: Path, case: str
) -> None:
    name = OUTSIDE[case](version)
    for attempt in (
        lambda: find_inside(version, name, "default_model_filename"),
        lambda: open_inside(version, name, "default_model_filename"),
        lambda: find_model(version.parent, 1, {"default_model_filename": name}),
    ):
        with pytest.raises(InvalidModelError, match="outside the model's folder") as caught:
            attempt()
        caught.match("default_model_filename '")
        assert name in str(caught.value)
        caught.match("expected a path to a regular file inside that folder")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("case", UNREADABLE)
def test_what_is_no_regular_file_is_refused_at_once(version: Path, case: str) -> None:
    make, reason = UNREADABLE[case]
    name = make(version)
    with pytest.raises(InvalidModelError, match=reason) as caught:
        find_model(version.parent, 1, {"default_model_filename": name})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    with pytest.raises(InvalidModelError, match=reason):
        open_inside(version, name, "external data")


def test_an_empty_name_and_a_directory_are_no_file(version: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"external data '' .* is empty"):
        open_inside(version, "", "external data")
    (version / "folder").mkdir()
    with pytest.raises(InvalidModelError, match="a directory, not a regular file"):
        open_inside(version, "folder", "external data")
    with pytest.raises(InvalidModelError, match=r"no model file .*folder/model\.onnx"):
        find_model(version.parent, 1, {"default_model_filename": "folder"})
    with pytest.raises(FileNotFoundError):
        open_inside(version, "absent", "external data")


def test_links_inside_of_the_version_are_followed_as_a_mounted_configuration_has_them(
    version: Path,
) -> None:
    """Kubernetes mounts ``NAME -> ..data/NAME`` and ``..data -> ..TIME``."""
    (version / "..2026").mkdir()
    (version / "..data").symlink_to("..2026")
    (version / "model.onnx").rename(version / "..2026" / "model.onnx")
    (version / "model.onnx").symlink_to("..data/model.onnx")
    assert find_model(version.parent, 1, {}) == version / "model.onnx"
    with open_file(version / "model.onnx") as file:
        assert file.read() == b"the model"


@pytest.mark.parametrize("linked", ["the version", "the entry", "the repository"])
def test_the_version_and_what_is_above_it_may_be_links(version: Path, linked: str) -> None:
    place = {"the version": 0, "the entry": 1, "the repository": 2}[linked]
    above = [version, *version.parents][place]
    elsewhere = version.parents[2] / "elsewhere"
    above.rename(elsewhere)
    above.symlink_to(elsewhere)
    assert find_model(version.parent, 1, {}) == version / "model.onnx"
    with open_file(version / "model.onnx") as file:
        assert file.read() == b"the model"
    (version / "link.onnx").symlink_to(version.parents[2] / "secret.onnx")
    with pytest.raises(InvalidModelError, match="outside the model's folder"):
        open_file(version / "link.onnx")


def test_an_entry_s_blobs_outside_of_it_are_refused_with_the_way_out(version: Path) -> None:
    """A model hub's cache: snapshots of links into a folder of blobs beside them."""
    blobs = version.parents[2] / "blobs"
    blobs.mkdir()
    (version / "model.onnx").rename(blobs / "3f2a")
    (version / "model.onnx").symlink_to(blobs / "3f2a")
    for config in ({}, {"default_model_filename": "model.onnx"}):  # as Triton completes it
        with pytest.raises(InvalidModelError, match=f"leads to {blobs}/3f2a, outside") as refusal:
            find_model(version.parent, 1, config)
        refusal.match(r"^model file 'model\.onnx' ")
        refusal.match(r"copy it there \(cp -L\) or link it hard; expected")
    with pytest.raises(InvalidModelError, match="outside the model's folder"):
        version_files(version.parent)


def test_a_file_that_is_exchanged_while_it_is_looked_at_is_never_read(version: Path) -> None:
    """A racing exchange of a file by a link out: what was checked is what is read."""
    ended = threading.Event()
    secret = version.parents[2] / "secret.onnx"

    def exchange() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            new = version / f"new-{number % 2}"
            new.unlink(missing_ok=True)
            if number % 2:
                new.symlink_to(secret)
            else:
                new.write_bytes(b"the model")
            new.rename(version / "model.onnx")

    racing = threading.Thread(target=exchange)
    racing.start()
    read, refused = 0, 0
    try:
        while (read < 50 or refused < 50) and read + refused < 20_000:
            try:
                with open_file(version / "model.onnx") as file:
                    assert file.read() != SECRET
                    read += 1
            except InvalidModelError:
                refused += 1
    finally:
        ended.set()
        racing.join()
    assert read
    assert refused


def test_the_folder_of_a_version_is_the_nearest_that_has_a_number() -> None:
    assert version_folder(Path("/models/7/entry/12/sub/model.onnx")) == Path("/models/7/entry/12")
    assert version_folder(Path("/home/user/model.onnx")) == Path("/home/user")
    assert version_folder(Path("model.onnx")) == Path()


def external(location: str) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    added = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([added], "g", values[:1], values[1:])
    weight = graph.initializer.add(
        name="w", data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL, dims=[4]
    )
    weight.external_data.add(key="location", value=location)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", [*OUTSIDE, *sorted(set(UNREADABLE) - {NO_TEXT})])
def test_external_data_of_such_names_is_neither_read_nor_digested(
    version: Path, case: str
) -> None:
    make = OUTSIDE[case] if case in OUTSIDE else UNREADABLE[case][0]
    location = make(version)
    path = version / "model.onnx"
    path.write_bytes(external(location).SerializeToString())
    with pytest.raises(InvalidModelError, match="tensor 'w': external data '"):
        read_model_file(path)
    for look in (content_of, stamps):
        with pytest.raises(InvalidModelError, match="file of the model '"):
            look(path, (ITSELF, location))


def test_external_data_leaves_not_even_through_a_folder_inside_of_the_version(
    version: Path,
) -> None:
    outside = version.parents[2] / "outside"
    outside.mkdir()
    (outside / "model.onnx").write_bytes(external("weights").SerializeToString())
    (outside / "weights").write_bytes(bytes(16))
    (version / "sub").symlink_to(outside)
    with pytest.raises(InvalidModelError, match="outside the model's folder"):
        read_model_file(version / "sub" / "model.onnx")
    with pytest.raises(InvalidModelError, match="outside the model's folder"):
        open_inside(version / "sub", "weights", "external data")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [link_to_secret, fifo, link_to_a_device])
def test_every_reader_of_an_entry_s_file_refuses_what_is_not_its_own(
    version: Path, make: Callable[[Path], str]
) -> None:
    path = version / make(version)
    for read in (read_signature, read_pipeline, read_model_file):
        with pytest.raises(InvalidModelError, match="expected a path to a regular file"):
            read(path)
    with pytest.raises(DamagedFileError, match="expected a path to a regular file"):
        read_container(path)
