"""`reprise bench serve --images` from the command line, on servers with scripted answers."""

import base64
import io
import json
from collections import Counter

from PIL import Image

from reprise.cli.main import main


def bench(file, *given):
    sizes = [
        "--images",
        "16,24",
        "--concurrency",
        "1,3",
        "--chats",
        "3",
        "--rounds",
        "1",
        "--max-tokens",
        "4",
    ]
    status = main(["bench", "serve", *sizes, "--json", str(file), *given])
    return status, json.loads(file.read_text())["serve"]["levels"]


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
    cases = [(f"{side} pixels", streams) for streams in (1, 3) for side in (16, 24)]
    expected = [(*case, name) for case in cases for name in "ab"]
    assert [(row["workload"], row["streams"], row["name"]) for row in rows] == expected
    assert {row["model"] for row in rows} == {"qwen3_vl"}
    assert all(row["ttft_ms"] > 0 and row["speedup"] > 0 for row in rows)
    ours, theirs = ([picture(body) for body in one.bodies] for one in (server, other_server))
    assert Counter(ours) == Counter(theirs)
    assert len(set(ours)) == len(ours)
    assert [side for _, side in ours] == ([16] * 6 + [24] * 6) * 2
    assert "16 pixels" in capsys.readouterr().out


def test_an_mlx_vlm_that_is_not_there_is_one_line(server, capsys):
    assert main(["bench", "serve", "--server", f"it={server.url}", "--mlx-vlm", "no-such-python"]) == 1
    assert "mlx-vlm is not installed" in capsys.readouterr().err
