"""Talks to a server with clients for embeddings and ranking, and prints what they got as one JSON object.

Usage: python talk.py ADDRESS. tests/end_to_end/clients/test_embedding_clients.py asserts.
"""

import json
import sys

import cohere
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

TEXTS = ["The cat sits on the mat.", "A kitten rests on a rug.", "Interest rates rose again."]
ADDRESS = sys.argv[1]
PLACE = {"api_base": f"{ADDRESS}/v1", "api_key": "none"}


def ranked(answer):
    return [[one.index, one.relevance_score] for one in answer.results]


def refused(call):
    try:
        call()
    except Exception as fault:  # noqa: BLE001 - what it is called is what is tested
        return [type(fault).__name__, getattr(fault, "status_code", None), str(fault)]
    return None


langchain = OpenAIEmbeddings(
    model="model", base_url=f"{ADDRESS}/v1", api_key="none", check_embedding_ctx_length=False
)
llama_index = OpenAIEmbedding(model_name="model", **PLACE)
alike = OpenAILikeEmbedding(model_name="model", **PLACE)
first, second = cohere.Client("none", base_url=ADDRESS), cohere.ClientV2("none", base_url=ADDRESS)
question = {"model": "ranks", "query": "cats", "documents": TEXTS}
print(
    json.dumps(
        {
            "langchain": [langchain.embed_documents(TEXTS), langchain.embed_query(TEXTS[0])],
            "langchain short": OpenAIEmbeddings(
                model="model",
                base_url=f"{ADDRESS}/v1",
                api_key="none",
                check_embedding_ctx_length=False,
                dimensions=8,
            ).embed_query(TEXTS[0]),
            "llama-index": [
                llama_index.get_text_embedding_batch(TEXTS),
                llama_index.get_query_embedding(TEXTS[0]),
            ],
            "llama-index alike": [alike.get_text_embedding_batch(TEXTS), alike.get_query_embedding(TEXTS[0])],
            "cohere 1": ranked(first.rerank(**question)),
            "cohere 1 texts": [
                one.document.text for one in first.rerank(**question, return_documents=True).results
            ],
            "cohere 2": ranked(second.rerank(**question)),
            "cohere 2 best": ranked(second.rerank(**question, top_n=1, max_tokens_per_doc=64)),
            "refused": [
                refused(lambda: langchain.embed_documents([""])),
                refused(lambda: second.rerank(model="model", query="cats", documents=TEXTS)),
                refused(lambda: first.rerank(model="ranks", query="cats", documents=["a", ""])),
            ],
        }
    )
)
