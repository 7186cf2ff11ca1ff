"""Before anything is imported: nothing that a test measures goes into the user's cache."""

import os
import tempfile

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="reprise-tests-")


def pytest_collection_modifyitems(items):
    # The longest one begins first, so that nobody waits for it at the end.
    items.sort(key=lambda item: item.path.name != "test_soak.py")
