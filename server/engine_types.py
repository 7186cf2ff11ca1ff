"""The engine's classes, as types alone: to import them is to import MLX, which takes seconds.

Whatever has the methods that are called may stand in for them, as the tests' engine does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reprise.engine.embedding.embedding_engine import EmbeddingEngine as EmbeddingEngine
    from reprise.engine.engine import Engine
    from reprise.engine.generating.generating_engine import GeneratingEngine as GeneratingEngine
    from reprise.engine.text.tokenizer import Tokenizer as Tokenizer

    Models = Engine
    """All models, one or many. As an engine it is that of the one that the server started with."""
    ModelEngine = Models | GeneratingEngine
    """The engine of a model that generates."""
else:
    EmbeddingEngine = GeneratingEngine = Models = ModelEngine = Tokenizer = Any
