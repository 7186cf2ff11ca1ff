"""What tells one model's weights from another's."""

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from engine.loading import find_fingerprint
from tests.engine.support import CONFIGS, make_model


def test_the_same_weights_have_one_fingerprint_and_others_another():
    model = make_model("llama")
    config = dict(CONFIGS["llama"])
    known = find_fingerprint(model, config)
    assert find_fingerprint(model, dict(reversed(config.items()))) == known
    assert find_fingerprint(model, config | {"rope_theta": 5.0}) != known
    for name, array in tree_flatten(model.parameters()):
        model.load_weights([(name, array + 1)], strict=False)
        assert find_fingerprint(model, config) != known, name
        model.load_weights([(name, array)], strict=False)
    assert find_fingerprint(model, config) == known
    model.update(tree_map(lambda array: array.astype(mx.float16), model.parameters()))
    assert find_fingerprint(model, config) != known
