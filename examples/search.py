"""Search the text files of a folder: python search.py FOLDER "QUESTION".

Embeddings find the 20 passages closest to the question, and a ranking model puts the best first.

This needs a model for each:
    reprise pull sentence-transformers/all-MiniLM-L6-v2
    reprise pull BAAI/bge-reranker-base
    reprise serve --embedding-model sentence-transformers/all-MiniLM-L6-v2 \\
        --rerank-model BAAI/bge-reranker-base

pip install openai numpy
"""

import os
import sys
from pathlib import Path

import numpy as np
from openai import OpenAI

if len(sys.argv) != 3:
    sys.exit(__doc__)
folder, question = Path(sys.argv[1]), sys.argv[2]
client = OpenAI(base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
models = {model.purpose: model.id for model in client.models.list()}
if not {"embed", "rerank"} <= models.keys():
    sys.exit("The server needs a model that embeds and one that ranks.\n" + __doc__)


def embed(texts: list[str]) -> np.ndarray:
    """Return the vectors of texts, a row for each."""
    # What is too long for the model is cut.
    answer = client.embeddings.create(model=models["embed"], input=texts, extra_body={"truncate": True})
    return np.array([item.embedding for item in answer.data])


def read_passages(file: Path) -> list[str]:
    """Return the parts of a file that blank lines separate."""
    parts = file.read_text(encoding="utf-8", errors="replace").split("\n\n")
    return [part.strip() for part in parts if part.strip()]


files = [file for file in sorted(folder.rglob("*")) if file.suffix in (".md", ".txt", ".rst")]
passages = [(file, text) for file in files for text in read_passages(file)]
if not passages:
    sys.exit(f"{folder} has no text files.")
texts = [text for _, text in passages]
print(len(texts), "passages")
vectors = np.concatenate([embed(texts[start : start + 100]) for start in range(0, len(texts), 100)])
closest = np.argsort(-vectors @ embed([question])[0])[:20]

body = {"model": models["rerank"], "query": question, "documents": [texts[i] for i in closest], "top_n": 3}
# OpenAI's client has no method for ranking, but can post to any path.
ranked = client.post("/rerank", body=body, cast_to=object)
for result in ranked["results"]:
    file, text = passages[closest[result["index"]]]
    print(f"{result['relevance_score']:.3f}  {file.relative_to(folder)}\n{text}\n")
