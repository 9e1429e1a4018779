import pytest

from jaxresid.base.text.units import format_bytes, format_flops, parse_budget, parse_bytes


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (int(12.38 * 1024**3), "12.38 GiB"),
        (5 * 1024**4, "5.00 TiB"),
        (2048 * 1024**6, "2048.00 EiB"),
    ],
)
def test_formats(nbytes, text):
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("flops", "text"),
    [
        (0, "0 FLOP"),
        (999, "999 FLOP"),
        (1000, "1.00 kFLOP"),
        (10**6 - 1, "1.00 MFLOP"),
        (180_390_000_000, "180.39 GFLOP"),
        (-8_590_000_000, "-8.59 GFLOP"),
        (-7, "-7 FLOP"),
        (2 * 10**12, "2.00 TFLOP"),
        (3 * 10**15, "3.00 PFLOP"),
        (4000 * 10**18, "4000.00 EFLOP"),
    ],
)
def test_formats_flops(flops, text):
    assert format_flops(flops) == text


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4096B", 4096),
        ("0", 0),
        ("1MiB", 1024**2),
        ("1.5 GiB", 3 * 1024**3 // 2),
        ("2GB", 2 * 10**9),
        ("1kb", 1000),
        (".5KiB", 512),
        ("7B", 7),
    ],
)
def test_parses(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "MiB", "1XB", "-1MiB", "1 2", "1e9", "nan"])
def test_refuses(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


def test_budgets_have_a_unit():
    assert parse_budget(" 1.5GiB ") == parse_bytes("1.5GiB")
    assert parse_budget("7B") == 7
    with pytest.raises(ValueError, match="'12' has no unit; write 12GiB"):
        parse_budget("12")
    with pytest.raises(ValueError, match="leaves no room"):
        parse_budget("0GiB")
    with pytest.raises(ValueError, match="is not a size"):
        parse_budget("much")


@pytest.mark.parametrize(
    ("text", "instead"),
    [("2", "write 2GiB or 2B$"), ("1.5", "write 1.5GiB or 1.5B$"), ("4096", "write 4096B$")],
)
def test_refuses_sizes_without_a_unit(text, instead):
    with pytest.raises(ValueError, match=f"{text!r} has no unit; {instead}"):
        parse_bytes(text)
