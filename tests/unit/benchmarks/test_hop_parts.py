"""A hop's parts and their percentiles."""

from brisk_bench.hop import parts_of, summarise_parts


def times(execution: int = 50_000, total: int = 200_000) -> dict[str, int]:
    return parts_of(
        stage=5_000, copy=30_000, submit=10_000, queue=8_000, execution=execution, total=total
    )


def test_the_hop_is_the_whole_way_less_the_execution() -> None:
    parts = times(execution=50_000, total=200_000)
    assert parts["hop"] == 150_000
    assert parts["execution"] == 50_000


def test_the_remainder_completes_the_hop() -> None:
    parts = times()
    named = sum(parts[name] for name in ("stage", "copy", "submit", "queue", "remainder"))
    assert named == parts["hop"]


def test_each_part_has_a_row_and_the_hop_comes_first() -> None:
    rows = summarise_parts("back to back", [times(total=200_000), times(total=210_000)])
    assert [row["part"] for row in rows] == [
        *("hop", "stage", "copy", "submit", "queue", "remainder", "execution")
    ]
    assert rows[0]["p50_us"] == 150.0
    assert rows[0]["p99_us"] == "too few answers (2 of 1,000)"
    assert {row["runs"] for row in rows} == {2}
    assert {row["requests"] for row in rows} == {"back to back"}
