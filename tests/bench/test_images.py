"""`reprise bench images` from the command line, on servers with scripted answers."""

import base64
import io
import json
from collections import Counter

from PIL import Image

from cli.main import main


def bench(file, *given):
    sizes = ["--sizes", "16,24", "--size", "8", "--streams", "3", "--rounds", "1"]
    status = main(["bench", "images", *sizes, "--json", str(file), *given])
    return status, json.loads(file.read_text())["images"]["rows"]


def picture(body):
    """Return the bytes and the side of the only image in a request."""
    shown, _ = body["messages"][0]["content"]
    file = base64.b64decode(shown["image_url"]["url"].removeprefix("data:image/png;base64,"))
    width, height = Image.open(io.BytesIO(file)).size
    assert width == height
    return file, width


def test_all_peers_are_shown_the_same_new_images_by_size_and_several_at_once(
    server, other_server, full_answer, tmp_path, capsys
):
    for one in (server, other_server):
        one.play(*full_answer)
    given = ["--server", f"a={server.url}", "--server", f"b={other_server.url}"]
    status, rows = bench(tmp_path / "found.json", *given)
    assert status == 0
    cases = [("16 pixels", 1), ("24 pixels", 1), ("3 images", 1), ("3 images", 3)]
    expected = [(*case, name) for case in cases for name in "ab"]
    assert [(row["workload"], row["streams"], row["name"]) for row in rows] == expected
    assert [row["streams"] for row in rows if row.get("gain")] == [3, 3]
    assert all(row["ttft_ms"] > 0 and row["speedup"] > 0 for row in rows)
    ours, theirs = ([picture(body) for body in one.bodies] for one in (server, other_server))
    assert Counter(ours) == Counter(theirs)
    assert len(set(ours)) == len(ours)
    assert [side for _, side in ours] == [16, 16, 24, 24, *[8] * 12]
    assert {body["max_tokens"] for body in server.bodies[:4]} == {1}
    assert "to one" in capsys.readouterr().out


def test_an_mlx_vlm_that_is_not_there_is_one_line(server, capsys):
    assert main(["bench", "images", "--server", f"it={server.url}", "--mlx-vlm", "no-such-python"]) == 1
    assert "mlx-vlm is not installed" in capsys.readouterr().err
