"""Before anything is imported: nothing that a test measures goes into the user's cache."""

import os
import tempfile

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="reprise-tests-")

LONGEST = (
    "test_soak.py",
    "test_drafting.py",
    "test_trie.py",
    "test_memory_budget.py",
    "test_leaving.py",
    "test_verify.py",
    "test_rollback_models.py",
    "test_stations.py",
)


def pytest_collection_modifyitems(items):
    # The longest ones begin first, so that no process waits for another one's at the end.
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))
